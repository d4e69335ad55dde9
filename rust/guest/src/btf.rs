//! The part of BTF that finds a function's type id by name.
//!
//! Source: Documentation/bpf/btf.rst.

/// Number of the `FUNC` kind.
const FUNC: u32 = 12;
const MAGIC: u16 = 0xeb9f;

fn u32_at(data: &[u8], offset: usize) -> Option<u32> {
    let bytes = data.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
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

/// Return the type id of the function called `name`, or None if the data does not have it.
pub fn function_id(data: &[u8], name: &str) -> Option<u32> {
    let magic = u16::from_le_bytes(data.get(..2)?.try_into().ok()?);
    if magic != MAGIC {
        return None;
    }
    let header = u32_at(data, 4)? as usize;
    let start = header.checked_add(u32_at(data, 8)? as usize)?;
    let types = data.get(start..start.checked_add(u32_at(data, 12)? as usize)?)?;
    let start = header.checked_add(u32_at(data, 16)? as usize)?;
    let strings = data.get(start..start.checked_add(u32_at(data, 20)? as usize)?)?;
    let mut offset = 0_usize;
    let mut id = 1_u32;
    while offset < types.len() {
        let info = u32_at(types, offset.checked_add(4)?)?;
        let kind = (info >> 24) & 0x1f;
        if kind == FUNC {
            let text = strings.get(u32_at(types, offset)? as usize..)?;
            let end = text.iter().position(|&byte| byte == 0)?;
            if text.get(..end)? == name.as_bytes() {
                return Some(id);
            }
        }
        offset = offset
            .checked_add(12)?
            .checked_add(tail_bytes(kind, (info & 0xffff) as usize)?)?;
        id = id.checked_add(1)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BTF of an `int`, a struct of one member, and the functions `first` and `second`.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0first\0second\0";
        let word = |value: u32| value.to_le_bytes();
        let mut types = Vec::new();
        for (name, info, last, tail) in [
            (1, 1 << 24, 4, vec![32]),
            (0, 4 << 24 | 1, 4, vec![1, 1, 0]),
            (5, FUNC << 24, 1, vec![]),
            (11, FUNC << 24, 1, vec![]),
        ] {
            for value in [name, info, last].into_iter().chain(tail) {
                types.extend(word(value));
            }
        }
        let mut data = vec![0x9f, 0xeb, 1, 0];
        for value in [
            24,
            0,
            types.len() as u32,
            types.len() as u32,
            strings.len() as u32,
        ] {
            data.extend(word(value));
        }
        data.extend(&types);
        data.extend(strings);
        data
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
    fn data_cut_off_anywhere_finds_nothing_or_the_same() {
        let whole = sample();
        for end in 0..whole.len() {
            let found = function_id(&whole[..end], "second");
            assert!(found.is_none(), "{end}");
        }
    }
}
