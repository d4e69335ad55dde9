//! Settle the entries of a list of which a policy has nothing to say, and only count them.
//!
//! What remains, to be judged one by one, is what is not simply allowed: other digests and unknown
//! files, violations, buffers, and files whose signature has to be verified.
use std::sync::Arc;

use super::table::{DigestTable, Verdict};
use crate::ima::{FileDigest, Record, Row};

/// The event name of the entry that stands for the PCRs of the boot.
const BOOT_AGGREGATE: &[u8] = b"boot_aggregate";
/// Bytes before the signature in `security.ima` of version 2: type, version, hash, key, length.
const SIGNATURE_HEADER_BYTES: usize = 9;
/// Type of a `security.ima` value that holds a signature of a file's digest.
const SIGNATURE: u8 = 3;

/// What needs no judgement.
#[derive(Clone, Debug)]
pub struct Screen {
    /// File digests by name; `None` to be told of nothing but violations.
    pub table: Option<Arc<DigestTable>>,
    /// Beginnings of names that are excluded.
    pub prefixes: Vec<Vec<u8>>,
    /// Whether a listed digest is enough for a file; else only excluded files are settled.
    pub digest_suffices: bool,
    /// Whether signatures are verified; else it is only said which files have one.
    pub verifies_signatures: bool,
    /// Hashes that a signature may be of, by the kernel's numbers.
    pub signature_hashes: Vec<u8>,
}

/// Entries that were settled, by what was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Files with a listed digest.
    pub allowed: u64,
    /// Files whose name is excluded.
    pub excluded: u64,
    /// Allowed files without a signature.
    pub without_signature: u64,
    /// Allowed files with a signature that no key is asked for.
    pub unknown_key: u64,
    /// Allowed files, without a listed boot aggregate.
    pub files: u64,
}

/// What a signature field says while no key is asked for.
enum Signed {
    No,
    UnknownKey,
    /// It takes a closer look.
    Unclear,
}

impl Screen {
    /// Whether an entry needs no judgement; it is then counted.
    #[inline]
    pub fn settles(&self, record: &Record<'_>, row: &Row<'_>, settled: &mut Settled) -> bool {
        if record.is_violation() {
            return false;
        }
        let Some(table) = self.table.as_ref() else {
            return true;
        };
        let Some(name) = row.name else { return false };
        let buffer = row.buf.is_some_and(|buffer| !buffer.is_empty());
        if buffer || row.digest.digest.is_empty() {
            return false;
        }
        match verdict(table, name, &row.digest) {
            Some(Verdict::Allowed) => self.settles_allowed(name, row.signature, settled),
            Some(_) if name != BOOT_AGGREGATE => {
                let excluded = self.prefixes.iter().any(|start| name.starts_with(start));
                settled.excluded = settled.excluded.saturating_add(u64::from(excluded));
                excluded
            }
            _ => false,
        }
    }

    fn settles_allowed(&self, name: &[u8], signature: Option<&[u8]>, to: &mut Settled) -> bool {
        if !self.digest_suffices {
            return false;
        }
        let count = match self.signed(signature.unwrap_or(&[])) {
            Signed::No => &mut to.without_signature,
            Signed::UnknownKey => &mut to.unknown_key,
            Signed::Unclear => return false,
        };
        *count = count.saturating_add(1);
        to.allowed = to.allowed.saturating_add(1);
        let file = u64::from(name != BOOT_AGGREGATE);
        to.files = to.files.saturating_add(file);
        true
    }

    fn signed(&self, signature: &[u8]) -> Signed {
        let Some((header, body)) = signature.split_at_checked(SIGNATURE_HEADER_BYTES) else {
            return if signature.is_empty() {
                Signed::No
            } else {
                Signed::Unclear
            };
        };
        match *header {
            [SIGNATURE, 2, hash, _, _, _, _, high, low]
                if !self.verifies_signatures
                    && self.signature_hashes.contains(&hash)
                    && body.len() == usize::from(u16::from_be_bytes([high, low])) =>
            {
                Signed::UnknownKey
            }
            _ => Signed::Unclear,
        }
    }
}

/// What the table says of a name; `None` where the algorithm's name is not understood.
#[inline]
fn verdict(table: &DigestTable, name: &[u8], found: &FileDigest<'_>) -> Option<Verdict> {
    let algorithm = match found.algorithm {
        // The old template has SHA-1 or MD5, and does not say which.
        b"" => match found.digest.len() {
            16 => "md5",
            20 => "sha1",
            _ => "",
        },
        b"sm3" | b"sm3-256" => "sm3_256",
        other => std::str::from_utf8(other).ok()?,
    };
    if found.kind == b"verity" {
        // The root of a hash tree, never the digest of the file's bytes.
        let algorithm = format!("verity:{algorithm}");
        return Some(table.lookup(name, &algorithm, found.digest));
    }
    Some(table.lookup(name, algorithm, found.digest))
}
