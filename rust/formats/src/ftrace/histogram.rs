//! Histograms that can be added up: 32 buckets an octave, so a bucket is 3 % wide at most.

/// Buckets of each octave, as a power of two.
const BITS: u32 = 5;
const PER_OCTAVE: u64 = 1 << BITS;

/// Counts by bucket, from the smallest in use to the largest.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    first: u16,
    counts: Vec<u32>,
    /// Buckets that have counted `u32::MAX` once more.
    full: Vec<u16>,
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
        let bucket = bucket(value);
        if let Some(count) = self.place(bucket) {
            match count.checked_add(1) {
                Some(more) => *count = more,
                None => {
                    *count = 1;
                    self.full.push(bucket);
                }
            }
        }
    }

    /// The count of a bucket, with room made for it.
    fn place(&mut self, bucket: u16) -> Option<&mut u32> {
        if self.counts.is_empty() {
            self.first = bucket;
        }
        if bucket < self.first {
            let before = usize::from(self.first - bucket);
            self.counts.splice(0..0, std::iter::repeat_n(0, before));
            self.first = bucket;
        }
        let at = usize::from(bucket - self.first);
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts.get_mut(at)
    }

    /// Buckets in use with their counts, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let full = |bucket| self.full.iter().filter(|known| **known == bucket).count() as u64;
        (self.first..=u16::MAX)
            .zip(&self.counts)
            .filter(|(_, count)| **count > 0)
            .map(move |(bucket, count)| {
                let more = full(bucket).saturating_mul(u64::from(u32::MAX));
                (bucket, more.saturating_add(u64::from(*count)))
            })
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
    fn counts_stand_in_order_of_their_values() {
        let mut found = Histogram::default();
        for value in [70, 5, 5, 1_000_000, 71, 0, 5] {
            found.add(value);
        }
        let counts: Vec<(u64, u64)> = found
            .buckets()
            .map(|(bucket, count)| (lower(bucket), count))
            .collect();
        // 70 and 71 share a bucket.
        assert_eq!(counts, [(0, 1), (5, 3), (70, 2), (999_424, 1)]);
    }

    #[test]
    fn a_full_count_goes_on() {
        let mut found = Histogram::default();
        found.add(3);
        if let Some(count) = found.place(3) {
            *count = u32::MAX;
        }
        found.add(3);
        assert_eq!(found.buckets().collect::<Vec<_>>(), [(3, 1 << 32)]);
    }
}
