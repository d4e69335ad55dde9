//! Hash tables for keys that hold a name: one probe a line, no copy of the name.
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Numbers by hash; the caller compares keys. The seed differs in every run, so that no input can
/// be made to collide.
#[derive(Debug)]
pub struct Index {
    slots: Vec<(u64, u32)>,
    used: usize,
    seed: u64,
}

impl Default for Index {
    fn default() -> Self {
        Index {
            slots: vec![(0, 0); 64],
            used: 0,
            seed: RandomState::new().hash_one(0u8),
        }
    }
}

impl Index {
    /// The hash of a key; never 0.
    pub fn hash(&self, key: u64, name: &[u8]) -> u64 {
        let mut hash = (self.seed ^ key).wrapping_mul(FACTOR);
        let mut chunks = name.chunks_exact(8);
        for chunk in &mut chunks {
            let word = chunk.try_into().map_or(0, u64::from_le_bytes);
            hash = (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
        }
        let mut last = [0u8; 8];
        let rest = chunks.remainder();
        if let Some(to) = last.get_mut(..rest.len()) {
            to.copy_from_slice(rest);
        }
        hash = (hash.rotate_left(23) ^ u64::from_le_bytes(last)).wrapping_mul(FACTOR);
        (hash ^ (hash >> 29) ^ name.len() as u64) | 1 << 63
    }

    /// The number under this hash whose key is the same.
    pub fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            match self.slots.get(at) {
                Some((found, value)) if *found == hash && same(*value) => return Some(*value),
                None | Some((0, _)) => return None,
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    /// Add a number that `find` did not find.
    pub fn insert(&mut self, hash: u64, value: u32) {
        if (self.used + 1) * 2 > self.slots.len() {
            let doubled = vec![(0, 0); self.slots.len() * 2];
            for (hash, value) in std::mem::replace(&mut self.slots, doubled) {
                if hash != 0 {
                    self.place(hash, value);
                }
            }
        }
        self.used += 1;
        self.place(hash, value);
    }

    fn place(&mut self, hash: u64, value: u32) {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while let Some(slot) = self.slots.get_mut(at) {
            if slot.0 == 0 {
                *slot = (hash, value);
                return;
            }
            at = (at + 1) & mask;
        }
    }
}

/// Texts, each once.
#[derive(Debug, Default)]
pub struct Names {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    index: Index,
}

impl Names {
    /// The number of a text.
    pub fn add(&mut self, name: &[u8]) -> u32 {
        let hash = self.index.hash(0, name);
        let found = self.index.find(hash, |number| self.get(number) == name);
        if let Some(number) = found {
            return number;
        }
        let number = u32::try_from(self.ends.len()).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(name);
        self.ends.push(self.bytes.len());
        self.index.insert(hash, number);
        number
    }

    /// The text of a number.
    pub fn get(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let end = self.ends.get(number).copied().unwrap_or(0);
        let start = number
            .checked_sub(1)
            .and_then(|before| self.ends.get(before).copied())
            .unwrap_or(0);
        self.bytes.get(start..end).unwrap_or(&[])
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Every text, in the order of the numbers.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len()).map(|number| self.get(u32::try_from(number).unwrap_or(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_once_each() {
        let mut names = Names::default();
        let numbers: Vec<u32> = (0..2_000)
            .map(|i| names.add(format!("function_{}", i % 700).as_bytes()))
            .collect();
        assert_eq!((names.len(), names.is_empty()), (700, false));
        for (i, number) in numbers.iter().enumerate() {
            assert_eq!(
                names.get(*number),
                format!("function_{}", i % 700).as_bytes()
            );
        }
        assert_eq!(names.iter().count(), 700);
        assert_eq!(names.get(9_999), b"");
    }
}
