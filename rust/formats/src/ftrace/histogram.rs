//! Histograms that can be added up: 32 buckets an octave, so a bucket is 3 % wide at most.

/// Buckets of each octave, as a power of two.
const BITS: u32 = 5;
const PER_OCTAVE: u64 = 1 << BITS;
const COUNT_BITS: u32 = 48;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Counts by bucket; only buckets in use take memory.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Bucket above, count below, sorted.
    used: Vec<u64>,
    last: usize,
}

/// The bucket of a value.
pub fn bucket(value: u64) -> u16 {
    if value < PER_OCTAVE {
        return u16::try_from(value).unwrap_or(0);
    }
    let shift = 63 - value.leading_zeros() - BITS;
    let within = (value >> shift) - PER_OCTAVE;
    u16::try_from(u64::from(shift + 1) * PER_OCTAVE + within).unwrap_or(u16::MAX)
}

/// The smallest value of a bucket.
pub fn lower(bucket: u16) -> u64 {
    let (octave, within) = (
        u64::from(bucket) / PER_OCTAVE,
        u64::from(bucket) % PER_OCTAVE,
    );
    if octave == 0 {
        return within;
    }
    u32::try_from(octave - 1)
        .ok()
        .filter(|shift| *shift < 64 - BITS)
        .map_or(u64::MAX, |shift| (PER_OCTAVE + within) << shift)
}

impl Histogram {
    /// Count a value.
    pub fn add(&mut self, value: u64) {
        let key = u64::from(bucket(value)) << COUNT_BITS;
        let same = |entry: &u64| entry & !COUNT_MASK == key;
        if let Some(entry) = self.used.get_mut(self.last) {
            if same(entry) && *entry & COUNT_MASK != COUNT_MASK {
                *entry += 1;
                return;
            }
        }
        let at = self.used.partition_point(|entry| entry & !COUNT_MASK < key);
        match self.used.get_mut(at) {
            Some(entry) if same(entry) => {
                if *entry & COUNT_MASK != COUNT_MASK {
                    *entry += 1;
                }
            }
            _ => self.used.insert(at, key | 1),
        }
        self.last = at;
    }

    /// Add another histogram's counts.
    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in other.buckets() {
            let key = u64::from(bucket) << COUNT_BITS;
            let at = self.used.partition_point(|entry| entry & !COUNT_MASK < key);
            match self.used.get_mut(at) {
                Some(entry) if *entry & !COUNT_MASK == key => {
                    *entry = key | ((*entry & COUNT_MASK) + count).min(COUNT_MASK);
                }
                _ => self.used.insert(at, key | count),
            }
        }
    }

    /// Buckets in use with their counts, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.used.iter().map(|entry| {
            let bucket = u16::try_from(entry >> COUNT_BITS).unwrap_or(u16::MAX);
            (bucket, entry & COUNT_MASK)
        })
    }

    /// How many buckets are in use.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for shift in 0..64 {
            for value in [
                1u64 << shift,
                (1u64 << shift) + 1,
                (1u64 << shift).wrapping_sub(1),
            ] {
                let found = bucket(value);
                assert!(lower(found) <= value, "{value}");
                assert!(
                    found == u16::MAX || value < lower(found + 1) || lower(found + 1) == u64::MAX,
                    "{value}"
                );
            }
        }
        assert!(bucket(u64::MAX) < 60 * 32 + 32);
    }

    #[test]
    fn counts_add_up_in_any_order() {
        let (mut a, mut b, mut all) = <(Histogram, Histogram, Histogram)>::default();
        for value in [5, 70, 5, 1_000_000, 71, 0, 5] {
            if value < 10 {
                a.add(value)
            } else {
                b.add(value)
            }
            all.add(value);
        }
        a.merge(&b);
        assert_eq!(
            a.buckets().collect::<Vec<_>>(),
            all.buckets().collect::<Vec<_>>()
        );
        assert_eq!(a.buckets().map(|(_, count)| count).sum::<u64>(), 7);
        assert_eq!((a.len(), a.is_empty()), (4, false)); // 70 and 71 share one
    }
}
