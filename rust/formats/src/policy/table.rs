//! A set of (path, digest) pairs in sorted arrays: 16 bytes of SHA-256 of the path, then the digest.
//!
//! A million SHA-256 pairs take 48 MB, and 2 MB for the index. Paths are not kept: 128 bits of their hash tell them apart,
//! and a path made to collide with a listed one would still need that one's digest to be allowed.
use std::collections::BTreeMap;
use std::io::{Read, Write};

use sha2::{Digest as _, Sha256};

use super::error::PolicyError;

/// Bytes of a path's hash that are kept.
pub const KEY_BYTES: usize = 16;
/// Longest digest kept.
pub const MAX_DIGEST_BYTES: usize = 64;
/// Longest algorithm name in a compiled file.
const MAX_NAME_BYTES: usize = 32;
/// Longest description in a compiled file.
const MAX_META_BYTES: u64 = 256 << 20;
/// Shards by the first byte of the key, so that growing and sorting need little memory beside.
const SHARDS: usize = 256;
/// First bytes of a compiled file; the last is the version of the layout.
const MAGIC: &[u8; 8] = b"EXCPOL\x00\x01";

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

/// Pairs of one algorithm: `SHARDS` arrays of records of `KEY_BYTES + digest_bytes`.
#[derive(Clone, Debug)]
struct Column {
    digest_bytes: usize,
    shards: Vec<Vec<u8>>,
    /// For each shard, once it is sorted, where the keys of each bucket begin.
    buckets: Vec<Buckets>,
    /// Number of different keys, counted then.
    paths: usize,
}

/// Where the records begin whose keys are alike in the bits after the first byte: two records a
/// bucket, since keys are hashes, and so as a rule one or two lines of memory for a key.
#[derive(Clone, Debug, Default)]
struct Buckets {
    bits: u32,
    /// Offsets in bytes, one more than there are buckets.
    starts: Vec<u32>,
}

impl Buckets {
    fn of(shard: &[u8], record: usize) -> Self {
        let bits = (shard.len() / record / 2).max(1).ilog2().min(16);
        let starts = Vec::with_capacity((1usize << bits).saturating_add(1));
        let mut buckets = Buckets { bits, starts };
        for (index, row) in shard.chunks_exact(record).enumerate() {
            buckets.fill(buckets.bucket(row), index.saturating_mul(record));
        }
        buckets.fill(1 << bits, shard.len());
        buckets
    }

    /// Let all buckets up to one begin at an offset, but those that have begun.
    fn fill(&mut self, bucket: usize, offset: usize) {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        while self.starts.len() <= bucket {
            self.starts.push(offset);
        }
    }

    /// The bucket of what begins with a key.
    #[inline]
    fn bucket(&self, key: &[u8]) -> usize {
        match *key {
            [_, first, second, ..] => {
                usize::from(u16::from_be_bytes([first, second])) >> (16 - self.bits)
            }
            _ => 0,
        }
    }

    /// The records of a shard that a key may be among.
    #[inline]
    fn records<'a>(&self, shard: &'a [u8], key: &[u8; KEY_BYTES]) -> &'a [u8] {
        let bucket = self.bucket(key);
        match self.starts.get(bucket..=bucket.saturating_add(1)) {
            Some(&[start, end]) => shard.get(start as usize..end as usize).unwrap_or(&[]),
            _ => &[],
        }
    }
}

impl Column {
    fn new(digest_bytes: usize) -> Self {
        Column {
            digest_bytes,
            shards: vec![Vec::new(); SHARDS],
            buckets: Vec::new(),
            paths: 0,
        }
    }

    const fn record_bytes(&self) -> usize {
        KEY_BYTES.saturating_add(self.digest_bytes)
    }

    fn push(&mut self, key: &[u8; KEY_BYTES], digest: &[u8]) {
        let record = self.record_bytes();
        let [first, ..] = *key;
        if let Some(shard) = self.shards.get_mut(usize::from(first)) {
            if shard.capacity().saturating_sub(shard.len()) < record {
                // A quarter more instead of doubling: slack is what the memory bound would pay for.
                let more = (shard.len() / 4).max(record.saturating_mul(64));
                shard.reserve_exact(more);
            }
            shard.extend_from_slice(key);
            shard.extend_from_slice(digest);
        }
    }

    fn sort(&mut self) {
        let record = self.record_bytes();
        for shard in &mut self.shards {
            let mut rows: Vec<&[u8]> = shard.chunks_exact(record).collect();
            rows.sort_unstable();
            rows.dedup();
            *shard = rows.concat();
        }
        self.index();
    }

    /// Index the shards, which are sorted and change no more.
    fn index(&mut self) {
        let record = self.record_bytes();
        let buckets = |shard: &Vec<u8>| Buckets::of(shard, record);
        self.buckets = self.shards.iter().map(buckets).collect();
        self.paths = self.count_paths();
    }

    fn len(&self) -> usize {
        let bytes: usize = self.shards.iter().map(Vec::len).sum();
        bytes / self.record_bytes()
    }

    fn count_paths(&self) -> usize {
        let record = self.record_bytes();
        let mut count = 0usize;
        for shard in &self.shards {
            let keys = || shard.chunks_exact(record).map(|row| row.get(..KEY_BYTES));
            let repeated = keys().zip(keys().skip(1)).filter(|(one, next)| one == next);
            let rows = shard.len() / record;
            count = count.saturating_add(rows.saturating_sub(repeated.count()));
        }
        count
    }

    /// The digests listed for a key, in ascending order.
    #[inline]
    fn digests(&self, key: [u8; KEY_BYTES]) -> impl Iterator<Item = &[u8]> {
        let record = self.record_bytes();
        let [first, ..] = key;
        let first = usize::from(first);
        let mut rest = match (self.shards.get(first), self.buckets.get(first)) {
            (Some(shard), Some(buckets)) => buckets.records(shard, &key),
            _ => &[][..],
        };
        std::iter::from_fn(move || {
            let (row, after) = rest.split_at_checked(record)?;
            rest = after;
            row.split_at_checked(KEY_BYTES)
        })
        .skip_while(move |(found, _)| *found < key.as_slice())
        .take_while(move |(found, _)| *found == key.as_slice())
        .map(|(_, digest)| digest)
    }

    fn memory_bytes(&self) -> usize {
        let records: usize = self.shards.iter().map(Vec::capacity).sum();
        let starts: usize = self.buckets.iter().map(|b| b.starts.capacity()).sum();
        records.saturating_add(starts.saturating_mul(size_of::<u32>()))
    }
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
    columns: BTreeMap<String, Column>,
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

    /// Write the table and a description, then the SHA-256 of both; returns that digest.
    ///
    /// The digest depends on the pairs and the description alone, not on the order in which they
    /// were read.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_to(&self, meta: &[u8], to: &mut impl Write) -> std::io::Result<[u8; 32]> {
        let mut out = Hashing {
            to,
            hash: Sha256::new(),
        };
        out.put(MAGIC)?;
        out.put(&(meta.len() as u64).to_be_bytes())?;
        out.put(meta)?;
        out.put(&(self.columns.len() as u64).to_be_bytes())?;
        for (name, column) in &self.columns {
            out.put(&(name.len() as u64).to_be_bytes())?;
            out.put(name.as_bytes())?;
            out.put(&(column.digest_bytes as u64).to_be_bytes())?;
            out.put(&(column.len() as u64).to_be_bytes())?;
            for shard in &column.shards {
                out.put(shard)?;
            }
        }
        let digest: [u8; 32] = out.hash.finalize().into();
        to.write_all(&digest)?;
        Ok(digest)
    }

    /// Read what `write_to` wrote: the table, the description and the digest.
    ///
    /// # Errors
    /// When it is no compiled policy, is damaged, or is not sorted.
    pub fn read_from(
        from: &mut impl Read,
    ) -> Result<(DigestTable, Vec<u8>, [u8; 32]), PolicyError> {
        let mut input = Checked {
            from,
            hash: Sha256::new(),
            offset: 0,
        };
        let mut magic = [0u8; 8];
        input.fill(&mut magic, "magic")?;
        if &magic != MAGIC {
            return Err(PolicyError::at(
                0,
                "magic",
                "not a compiled policy of this version",
            ));
        }
        let meta = input.sized("description", MAX_META_BYTES)?;
        let columns = input.number("algorithms", 64)?;
        let mut table = DigestTable {
            columns: BTreeMap::new(),
        };
        for _ in 0..columns {
            let name = input.sized("algorithm", MAX_NAME_BYTES as u64)?;
            let name = String::from_utf8(name)
                .map_err(|_| PolicyError::at(input.offset, "algorithm", "not UTF-8"))?;
            if table
                .columns
                .keys()
                .next_back()
                .is_some_and(|last| *last >= name)
            {
                return Err(PolicyError::at(input.offset, "algorithm", "out of order"));
            }
            let column = input.column()?;
            table.columns.insert(name, column);
        }
        let expected: [u8; 32] = input.hash.finalize().into();
        let mut found = [0u8; 32];
        let read = input.from.read_exact(&mut found);
        if read.is_err() || found != expected {
            return Err(PolicyError::at(
                input.offset,
                "digest",
                "the file is damaged",
            ));
        }
        match input.from.read(&mut [0u8]) {
            Ok(0) => Ok((table, meta, expected)),
            _ => Err(PolicyError::at(
                input.offset,
                "digest",
                "bytes after the end",
            )),
        }
    }
}

struct Hashing<'a, W: Write> {
    to: &'a mut W,
    hash: Sha256,
}

impl<W: Write> Hashing<'_, W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.to.write_all(bytes)
    }
}

struct Checked<'a, R: Read> {
    from: &'a mut R,
    hash: Sha256,
    offset: u64,
}

impl<R: Read> Checked<'_, R> {
    fn fill(&mut self, to: &mut [u8], field: &'static str) -> Result<(), PolicyError> {
        self.from
            .read_exact(to)
            .map_err(|error| PolicyError::at(self.offset, field, error.to_string()))?;
        self.hash.update(&*to);
        self.offset = self.offset.saturating_add(to.len() as u64);
        Ok(())
    }

    fn number(&mut self, field: &'static str, limit: u64) -> Result<u64, PolicyError> {
        let mut bytes = [0u8; 8];
        let at = self.offset;
        self.fill(&mut bytes, field)?;
        let number = u64::from_be_bytes(bytes);
        if number > limit {
            return Err(PolicyError::at(
                at,
                field,
                format!("{number} exceeds {limit}"),
            ));
        }
        Ok(number)
    }

    fn sized(&mut self, field: &'static str, limit: u64) -> Result<Vec<u8>, PolicyError> {
        let mut left = usize::try_from(self.number(field, limit)?).unwrap_or(0);
        let mut bytes = Vec::new();
        while left > 0 {
            // In pieces, so that a wrong length cannot make us reserve what is not there.
            let piece = left.min(1 << 20);
            let start = bytes.len();
            bytes.resize(start.saturating_add(piece), 0);
            self.fill(bytes.get_mut(start..).unwrap_or(&mut []), field)?;
            left = left.saturating_sub(piece);
        }
        Ok(bytes)
    }

    fn column(&mut self) -> Result<Column, PolicyError> {
        let size = self.number("digest size", MAX_DIGEST_BYTES as u64)?;
        if size == 0 {
            return Err(PolicyError::at(self.offset, "digest size", "is 0"));
        }
        let count = self.number("count", u64::MAX)?;
        let mut column = Column::new(usize::try_from(size).unwrap_or(0));
        let mut row = vec![0u8; column.record_bytes()];
        let mut last: Option<Vec<u8>> = None;
        for _ in 0..count {
            self.fill(&mut row, "record")?;
            if last.as_ref().is_some_and(|last| *last >= row) {
                return Err(PolicyError::at(self.offset, "record", "out of order"));
            }
            if let Some((key, digest)) = row.split_at_checked(KEY_BYTES) {
                let key: [u8; KEY_BYTES] = key.try_into().unwrap_or_default();
                column.push(&key, digest);
            }
            match &mut last {
                Some(last) => last.copy_from_slice(&row),
                None => last = Some(row.clone()),
            }
        }
        for shard in &mut column.shards {
            shard.shrink_to_fit();
        }
        column.index();
        Ok(column)
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
