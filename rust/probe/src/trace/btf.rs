//! The part of BTF that lists the members of a union: the kernel's own list of its hooks.
//!
//! Source: Documentation/bpf/btf.rst.

const MAGIC: u16 = 0xeb9f;
const UNION: u32 = 5;
const HOOKS: &str = "security_list_options";

fn u32_at(data: &[u8], offset: usize) -> Option<u32> {
    let bytes = data.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Bytes that follow a type's three words, by its kind and the number of its members.
fn tail_bytes(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        1 | 14 | 17 => 4,
        3 => 12,
        4 | 5 | 15 | 19 => members.checked_mul(12)?,
        6 | 13 => members.checked_mul(8)?,
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

fn text_at(strings: &[u8], offset: u32) -> Option<&str> {
    let text = strings.get(offset as usize..)?;
    let end = text.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(text.get(..end)?).ok()
}

fn section(data: &[u8], header: usize, words: usize) -> Option<&[u8]> {
    let start = header.checked_add(u32_at(data, words)? as usize)?;
    let length = u32_at(data, words.checked_add(4)?)? as usize;
    data.get(start..start.checked_add(length)?)
}

/// Names of this kernel's hooks, in their order; `None` if the data do not have them.
pub fn hooks(data: &[u8]) -> Option<Vec<String>> {
    let magic = u16::from_ne_bytes(data.get(..2)?.try_into().ok()?);
    if magic != MAGIC {
        return None;
    }
    let header = u32_at(data, 4)? as usize;
    let types = section(data, header, 8)?;
    let strings = section(data, header, 16)?;
    let mut offset = 0_usize;
    while offset < types.len() {
        let info = u32_at(types, offset.checked_add(4)?)?;
        let (kind, members) = ((info >> 24) & 0x1f, (info & 0xffff) as usize);
        let tail = offset.checked_add(12)?;
        if kind == UNION && text_at(strings, u32_at(types, offset)?)? == HOOKS {
            return (0..members)
                .map(|member| {
                    let name = u32_at(types, tail.checked_add(member.checked_mul(12)?)?)?;
                    text_at(strings, name).map(str::to_owned)
                })
                .collect();
        }
        offset = tail.checked_add(tail_bytes(kind, members)?)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let strings = b"\0int\0security_list_options\0file_open\0inode_permission\0";
        let mut types = Vec::new();
        for words in [
            vec![1, 1 << 24, 4, 32],
            vec![5, UNION << 24 | 2, 8, 27, 1, 0, 37, 1, 0],
        ] {
            for value in words {
                types.extend(u32::to_ne_bytes(value));
            }
        }
        let mut data = MAGIC.to_ne_bytes().to_vec();
        data.extend([1, 0]);
        for value in [
            24,
            0,
            types.len() as u32,
            types.len() as u32,
            strings.len() as u32,
        ] {
            data.extend(u32::to_ne_bytes(value));
        }
        data.extend(&types);
        data.extend(strings);
        data
    }

    #[test]
    fn the_members_of_the_union_of_hooks_are_the_hooks() {
        assert_eq!(hooks(&sample()).unwrap(), ["file_open", "inode_permission"]);
    }

    #[test]
    fn data_cut_off_anywhere_give_nothing() {
        let whole = sample();
        for end in 0..whole.len() {
            assert!(hooks(&whole[..end]).is_none(), "{end}");
        }
    }

    #[test]
    fn the_running_kernel_names_hundreds_if_it_has_them() {
        let Ok(data) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            return;
        };
        if let Some(found) = hooks(&data) {
            assert!(found.len() > 150, "{}", found.len());
            assert!(found.iter().any(|name| name == "inode_permission"));
        }
    }
}
