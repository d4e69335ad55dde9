//! Pairs of one algorithm in sorted arrays.

/// Bytes of a path's hash that are kept.
pub const KEY_BYTES: usize = 16;
/// Shards by the first byte of the key, so that growing and sorting need little memory beside.
const SHARDS: usize = 256;

/// Pairs of one algorithm: `SHARDS` arrays of records of `KEY_BYTES + digest_bytes`.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) digest_bytes: usize,
    pub(super) shards: Vec<Vec<u8>>,
    /// For each shard, once it is sorted, where the keys of each bucket begin.
    buckets: Vec<Buckets>,
    /// Number of different keys, counted then.
    pub(super) paths: usize,
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
    pub(super) fn new(digest_bytes: usize) -> Self {
        Column {
            digest_bytes,
            shards: vec![Vec::new(); SHARDS],
            buckets: Vec::new(),
            paths: 0,
        }
    }

    pub(super) const fn record_bytes(&self) -> usize {
        KEY_BYTES.saturating_add(self.digest_bytes)
    }

    pub(super) fn push(&mut self, key: &[u8; KEY_BYTES], digest: &[u8]) {
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

    pub(super) fn sort(&mut self) {
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
    pub(super) fn index(&mut self) {
        let record = self.record_bytes();
        let buckets = |shard: &Vec<u8>| Buckets::of(shard, record);
        self.buckets = self.shards.iter().map(buckets).collect();
        self.paths = self.count_paths();
    }

    pub(super) fn len(&self) -> usize {
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
    pub(super) fn digests(&self, key: [u8; KEY_BYTES]) -> impl Iterator<Item = &[u8]> {
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

    pub(super) fn memory_bytes(&self) -> usize {
        let records: usize = self.shards.iter().map(Vec::capacity).sum();
        let starts: usize = self.buckets.iter().map(|b| b.starts.capacity()).sum();
        records.saturating_add(starts.saturating_mul(size_of::<u32>()))
    }
}
