//! The part of BTF that finds a type by kind and name: a union's members, or a function's id.
//!
//! The program inside lab guests is built from this file too.
//!
//! Source: Documentation/bpf/btf.rst.

const MAGIC: u16 = 0xeb9f;
const UNION: u32 = 5;
const FUNC: u32 = 12;
const HOOKS: &str = "security_list_options";

/// A type of that kind and name.
struct Found<'data> {
    id: u32,
    /// What follows its three words, a member in 12 bytes if it has members.
    tail: &'data [u8],
    strings: &'data [u8],
}

fn u16_at(data: &[u8], offset: usize) -> Option<u16> {
    let bytes = data.get(offset..offset.checked_add(2)?)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

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

fn text_at(strings: &[u8], offset: u32) -> Option<&[u8]> {
    let text = strings.get(offset as usize..)?;
    text.get(..text.iter().position(|&byte| byte == 0)?)
}

fn section(data: &[u8], header: usize, words: usize) -> Option<&[u8]> {
    let start = header.checked_add(u32_at(data, words)? as usize)?;
    let length = u32_at(data, words.checked_add(4)?)? as usize;
    data.get(start..start.checked_add(length)?)
}

fn find<'data>(data: &'data [u8], wanted: u32, name: &str) -> Option<Found<'data>> {
    if u16_at(data, 0)? != MAGIC {
        return None;
    }
    let header = u32_at(data, 4)? as usize;
    let types = section(data, header, 8)?;
    let strings = section(data, header, 16)?;
    let mut offset = 0_usize;
    let mut id = 1_u32;
    while offset < types.len() {
        let info = u32_at(types, offset.checked_add(4)?)?;
        let kind = (info >> 24) & 0x1f;
        let start = offset.checked_add(12)?;
        let end = start.checked_add(tail_bytes(kind, (info & 0xffff) as usize)?)?;
        if kind == wanted && text_at(strings, u32_at(types, offset)?)? == name.as_bytes() {
            let tail = types.get(start..end)?;
            return Some(Found { id, tail, strings });
        }
        offset = end;
        id = id.checked_add(1)?;
    }
    None
}

/// Names of this kernel's hooks, in their order; `None` if the data do not have them.
pub fn hooks(data: &[u8]) -> Option<Vec<String>> {
    let Found { tail, strings, .. } = find(data, UNION, HOOKS)?;
    let name =
        |member: &[u8]| String::from_utf8(text_at(strings, u32_at(member, 0)?)?.to_vec()).ok();
    tail.chunks_exact(12).map(name).collect()
}

/// Type id of the function called `name`; `None` if the data do not have it.
pub fn function_id(data: &[u8], name: &str) -> Option<u32> {
    find(data, FUNC, name).map(|found| found.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BTF of an `int`, the union of two hooks, and the functions `first` and `second`.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0security_list_options\0file_open\0inode_permission\0first\0second\0";
        let mut types = Vec::new();
        for words in [
            vec![1, 1 << 24, 4, 32],
            vec![5, UNION << 24 | 2, 8, 27, 1, 0, 37, 1, 0],
            vec![54, FUNC << 24, 1],
            vec![60, FUNC << 24, 1],
        ] {
            types.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        }
        let (length, text) = (types.len() as u32, strings.len() as u32);
        let mut data = MAGIC.to_ne_bytes().to_vec();
        data.extend([1, 0]);
        data.extend(
            [24, 0, length, length, text]
                .into_iter()
                .flat_map(u32::to_ne_bytes),
        );
        data.extend(&types);
        data.extend(strings);
        data
    }

    #[test]
    fn the_members_of_the_union_of_hooks_are_the_hooks() {
        let names = ["file_open", "inode_permission"].map(str::to_owned);
        assert_eq!(hooks(&sample()), Some(names.to_vec()));
    }

    #[test]
    fn a_function_is_found_past_types_with_members() {
        assert_eq!(function_id(&sample(), "first"), Some(3));
        assert_eq!(function_id(&sample(), "second"), Some(4));
    }

    #[test]
    fn another_kinds_name_is_not_a_function() {
        assert_eq!(function_id(&sample(), "int"), None);
    }

    #[test]
    fn data_cut_off_anywhere_give_nothing() {
        let whole = sample();
        for end in 0..whole.len() {
            assert!(hooks(&whole[..end]).is_none(), "{end}");
            assert!(function_id(&whole[..end], "second").is_none(), "{end}");
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
