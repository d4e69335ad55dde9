//! A set of (path, digest) pairs in sorted arrays: 16 bytes of SHA-256 of the path, then the digest.
//!
//! A million SHA-256 pairs take 48 MB, and 2 MB for the index. Paths are not kept: 128 bits of their hash tell them apart,
//! and a path made to collide with a listed one would still need that one's digest to be allowed.
use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::column::{Column, KEY_BYTES};

/// Longest digest kept.
pub const MAX_DIGEST_BYTES: usize = 64;
/// Longest algorithm name in a compiled file.
pub(super) const MAX_NAME_BYTES: usize = 32;

/// What a table says of a path and its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The path is listed with this digest.
    Allowed,
    /// The path is listed in this algorithm, with other digests only.
    Differs,
    /// The path is listed, but in other algorithms only.
    OtherAlgorithm,
    /// The path is not listed.
    Unknown,
}

/// Name of the algorithm that list formats mean by a digest's length alone.
#[must_use]
pub fn algorithm_of_size(size: usize) -> Option<&'static str> {
    match size {
        16 => Some("md5"),
        20 => Some("sha1"),
        28 => Some("sha224"),
        32 => Some("sha256"),
        48 => Some("sha384"),
        64 => Some("sha512"),
        _ => None,
    }
}

fn key_of(path: &[u8]) -> [u8; KEY_BYTES] {
    let mut key = [0u8; KEY_BYTES];
    for (to, from) in key.iter_mut().zip(Sha256::digest(path)) {
        *to = from;
    }
    key
}
/// Pairs under way.
#[derive(Clone, Debug, Default)]
pub struct DigestTableBuilder {
    columns: BTreeMap<String, Column>,
}

impl DigestTableBuilder {
    /// Add a pair. Pairs may repeat, and a path may have many digests.
    ///
    /// # Errors
    /// When the digest is empty, too long, or not as long as others of its algorithm.
    pub fn push(&mut self, path: &[u8], algorithm: &str, digest: &[u8]) -> Result<(), String> {
        if digest.is_empty() || digest.len() > MAX_DIGEST_BYTES {
            return Err(format!("digest of {} bytes", digest.len()));
        }
        if !self.columns.contains_key(algorithm) {
            if algorithm.is_empty() || algorithm.len() > MAX_NAME_BYTES {
                return Err("algorithm without a usable name".to_owned());
            }
            let column = Column::new(digest.len());
            self.columns.insert(algorithm.to_owned(), column);
        }
        match self.columns.get_mut(algorithm) {
            Some(column) if column.digest_bytes == digest.len() => {
                column.push(&key_of(path), digest);
                Ok(())
            }
            _ => Err(format!("{algorithm} digest of {} bytes", digest.len())),
        }
    }

    /// Sort, drop repetitions, and give the table.
    #[must_use]
    pub fn finish(mut self) -> DigestTable {
        for column in self.columns.values_mut() {
            column.sort();
        }
        DigestTable {
            columns: self.columns,
        }
    }
}

/// Pairs, sorted; nothing changes them.
#[derive(Clone, Debug)]
pub struct DigestTable {
    pub(super) columns: BTreeMap<String, Column>,
}

impl DigestTable {
    /// What the table says of a path and its digest.
    #[must_use]
    pub fn lookup(&self, path: &[u8], algorithm: &str, digest: &[u8]) -> Verdict {
        let key = key_of(path);
        let mut listed = false;
        if let Some(column) = self.columns.get(algorithm) {
            for known in column.digests(key) {
                if known == digest {
                    return Verdict::Allowed;
                }
                listed = true;
            }
        }
        if listed {
            return Verdict::Differs;
        }
        let elsewhere = self
            .columns
            .iter()
            .any(|(name, column)| name != algorithm && column.digests(key).next().is_some());
        if elsewhere {
            Verdict::OtherAlgorithm
        } else {
            Verdict::Unknown
        }
    }

    /// Digests listed for a path in one algorithm.
    #[must_use]
    pub fn expected(&self, path: &[u8], algorithm: &str) -> Vec<&[u8]> {
        let key = key_of(path);
        self.columns
            .get(algorithm)
            .map_or_else(Vec::new, |column| column.digests(key).collect())
    }

    /// Whether any path has this digest; reads the whole column.
    #[must_use]
    pub fn holds_digest(&self, algorithm: &str, digest: &[u8]) -> bool {
        self.columns.get(algorithm).is_some_and(|column| {
            column.shards.iter().any(|shard| {
                shard
                    .chunks_exact(column.record_bytes())
                    .any(|row| row.get(KEY_BYTES..) == Some(digest))
            })
        })
    }

    /// Each algorithm with its number of pairs and of paths.
    #[must_use]
    pub fn counts(&self) -> Vec<(&str, usize, usize)> {
        self.columns
            .iter()
            .map(|(name, column)| (name.as_str(), column.len(), column.paths))
            .collect()
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.values().map(Column::len).sum()
    }

    /// Whether there is no pair at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory the arrays take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.columns.values().map(Column::memory_bytes).sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn table(pairs: &[(&str, u8)]) -> DigestTable {
        let mut builder = DigestTableBuilder::default();
        for (path, byte) in pairs {
            builder
                .push(path.as_bytes(), "sha256", &[*byte; 32])
                .unwrap();
        }
        builder.finish()
    }

    #[test]
    fn every_pair_is_found_and_no_other() {
        let mut builder = DigestTableBuilder::default();
        for number in 0u32..5000 {
            let digest = Sha256::digest(number.to_le_bytes());
            let path = format!("/usr/bin/{number}");
            builder.push(path.as_bytes(), "sha256", &digest).unwrap();
        }
        let table = builder.finish();
        assert_eq!(table.len(), 5000);
        for number in 0u32..5000 {
            let path = format!("/usr/bin/{number}");
            let digest = Sha256::digest(number.to_le_bytes());
            let other = Sha256::digest(number.to_be_bytes());
            let lookup = |digest: &[u8]| table.lookup(path.as_bytes(), "sha256", digest);
            assert_eq!(lookup(&digest), Verdict::Allowed);
            if other != digest {
                assert_eq!(lookup(&other), Verdict::Differs);
            }
            let sha1 = table.lookup(path.as_bytes(), "sha1", &[0; 20]);
            assert_eq!(sha1, Verdict::OtherAlgorithm);
        }
        let unknown = table.lookup(b"/usr/bin/5000", "sha256", &[0; 32]);
        assert_eq!(unknown, Verdict::Unknown);
    }

    #[test]
    fn keys_are_found_however_they_are_spread() {
        for count in 0..40u32 {
            for spread in [1u32, 7, 300, 1600, 1 << 18] {
                let mut column = Column::new(1);
                let key = |number: u32| {
                    let mut key = [0u8; KEY_BYTES];
                    key[..4].copy_from_slice(&(number * spread).to_be_bytes());
                    key
                };
                for number in (0..count).rev() {
                    column.push(&key(2 * number), &[1]);
                    column.push(&key(2 * number), &[2]);
                }
                column.sort();
                assert_eq!(
                    (column.len(), column.paths),
                    (2 * count as usize, count as usize)
                );
                for number in 0..90 {
                    let listed: Vec<&[u8]> = column.digests(key(number)).collect();
                    if number % 2 == 0 && number / 2 < count {
                        assert_eq!(listed, [[1], [2]], "{count} {spread} {number}");
                    } else {
                        assert!(listed.is_empty(), "{count} {spread} {number}");
                    }
                }
            }
        }
    }

    #[test]
    fn order_and_repetition_do_not_change_the_digest() {
        let (left, right) = (
            table(&[("/a", 1), ("/b", 2), ("/a", 3)]),
            table(&[("/a", 3), ("/a", 1), ("/b", 2), ("/b", 2)]),
        );
        let digest = |table: &DigestTable| table.write_to(b"{}", &mut Vec::new()).unwrap();
        assert_eq!(digest(&left), digest(&right));
        assert_eq!(right.counts(), [("sha256", 3, 2)]);
        assert_ne!(
            digest(&left),
            left.write_to(b"{ }", &mut Vec::new()).unwrap()
        );
    }

    #[test]
    fn written_table_is_read_back_and_every_changed_byte_is_noticed() {
        let made = table(&[("/a", 1), ("/b", 2), ("/c", 3)]);
        let mut bytes = Vec::new();
        let digest = made.write_to(b"{\"x\":1}", &mut bytes).unwrap();
        let (back, meta, found) = DigestTable::read_from(&mut bytes.as_slice()).unwrap();
        assert_eq!((meta.as_slice(), found), (&b"{\"x\":1}"[..], digest));
        assert_eq!(back.lookup(b"/b", "sha256", &[2; 32]), Verdict::Allowed);
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            *changed.get_mut(place).unwrap() ^= 0x11;
            assert!(
                DigestTable::read_from(&mut changed.as_slice()).is_err(),
                "{place}"
            );
            let cut = bytes.get(..place).unwrap();
            assert!(DigestTable::read_from(&mut &*cut).is_err(), "{place}");
        }
        bytes.push(0);
        assert!(DigestTable::read_from(&mut bytes.as_slice()).is_err());
    }

    #[test]
    fn digests_of_one_algorithm_have_one_length() {
        let mut builder = DigestTableBuilder::default();
        builder.push(b"/a", "sha256", &[0; 32]).unwrap();
        assert!(builder.push(b"/a", "sha256", &[0; 20]).is_err());
        assert!(builder.push(b"/a", "sha1", &[]).is_err());
        assert!(builder.push(b"/a", "", &[0; 20]).is_err());
    }
}
