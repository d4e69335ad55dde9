//! Further rules of a Landlock allow list, from a file: what many of them cost.

use crate::error::{describe, ProbeError};
use crate::mechanism::Allowance;
use crate::sys::landlock::{EXECUTE, READ_DIR, READ_FILE};
use std::ffi::CString;
use std::path::Path;

const READ: u64 = READ_FILE | READ_DIR;
/// Writing, and all that changes a directory: every right that is neither reading nor executing.
const WRITE: u64 = !(READ | EXECUTE);

/// One rule a line: its rights (`r`, `w`, `x` or some of them together), a space, the path.
pub fn read(file: &Path) -> Result<Vec<Allowance>, ProbeError> {
    let refused =
        |reason: &str| ProbeError::Usage(format!("--landlock-rules {}: {reason}", file.display()));
    let text = std::fs::read(file).map_err(|error| refused(&describe(&error)))?;
    let mut rules = Vec::new();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if !line.trim_ascii().is_empty() {
            rules.push(parse(line).ok_or_else(|| {
                refused(&format!(
                    "line {}: expected rights and an absolute path, as in `rx /usr`",
                    number + 1
                ))
            })?);
        }
    }
    if rules.is_empty() {
        return Err(refused("holds no rule"));
    }
    Ok(rules)
}

fn parse(line: &[u8]) -> Option<Allowance> {
    let space = line.iter().position(|byte| *byte == b' ')?;
    let (words, path) = (line.get(..space)?, line.get(space + 1..)?);
    let rights = words.iter().try_fold(0, |rights, letter| {
        Some(
            rights
                | match letter {
                    b'r' => READ,
                    b'w' => WRITE,
                    b'x' => EXECUTE,
                    _ => return None,
                },
        )
    })?;
    if rights == 0 || !path.starts_with(b"/") {
        return None;
    }
    Some(Allowance {
        path: CString::new(path).ok()?,
        rights,
    })
}

/// The last rule that lets its path be read: opening it proves that such rules are in force.
pub fn provable(rules: &[Allowance]) -> Option<&Allowance> {
    rules.iter().rfind(|rule| rule.rights & READ == READ)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(line: &str) -> Option<u64> {
        parse(line.as_bytes()).map(|rule| rule.rights)
    }

    #[test]
    fn a_line_gives_rights_and_a_path_that_may_hold_spaces() {
        let rule = parse(b"rx /srv/a b").unwrap();
        assert_eq!(rule.path.as_c_str(), c"/srv/a b");
        assert_eq!(rule.rights, READ | EXECUTE);
        assert_eq!(rights("rwx /"), Some(u64::MAX));
    }

    #[test]
    fn what_is_no_rule_is_none() {
        for line in [
            "", "r", "r ", "r srv", "q /srv", " /srv", "/srv", "r\t/srv", "r /a\0b",
        ] {
            assert_eq!(rights(line), None, "{line:?}");
        }
    }
}
