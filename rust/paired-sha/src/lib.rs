//! SHA-1 and SHA-256 of one message at once, and beside them the extend of both banks' register.
//!
//! Replaying a measurement list is four hash computations for each entry, of which only two have to
//! wait for the entry before. One block function after another, as hash libraries offer them, leaves
//! the SHA instructions idle for most of their latency; here the rounds of independent blocks
//! alternate. Machines without these instructions take the block functions of the `sha1` and `sha2`
//! crates, which are also what the tests compare with.
//!
//! The `unsafe` code of the native readers is confined to the module `x86`: calls of intrinsics
//! that a run-time check has found to be there.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

/// The state of both hashes, or a register's value in both banks, as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// SHA-1.
    pub sha1: [u32; 5],
    /// SHA-256.
    pub sha256: [u32; 8],
}

impl Pair {
    /// The initial states (FIPS 180-4, 5.3).
    pub const INITIAL: Pair = Pair {
        sha1: [
            0x6745_2301,
            0xefcd_ab89,
            0x98ba_dcfe,
            0x1032_5476,
            0xc3d2_e1f0,
        ],
        sha256: [
            0x6a09_e667,
            0xbb67_ae85,
            0x3c6e_f372,
            0xa54f_f53a,
            0x510e_527f,
            0x9b05_688c,
            0x1f83_d9ab,
            0x5be0_cd19,
        ],
    };

    /// All bits set, as a violation extends.
    pub const ONES: Pair = Pair {
        sha1: [u32::MAX; 5],
        sha256: [u32::MAX; 8],
    };

    /// The words of two digests; missing bytes are zero.
    #[must_use]
    pub fn from_digests(sha1: &[u8], sha256: &[u8]) -> Pair {
        let mut pair = Pair {
            sha1: [0; 5],
            sha256: [0; 8],
        };
        words(sha1, &mut pair.sha1);
        words(sha256, &mut pair.sha256);
        pair
    }

    /// The SHA-1 digest.
    #[must_use]
    pub fn sha1_digest(&self) -> [u8; 20] {
        let mut out = [0; 20];
        bytes(&self.sha1, &mut out);
        out
    }

    /// The SHA-256 digest.
    #[must_use]
    pub fn sha256_digest(&self) -> [u8; 32] {
        let mut out = [0; 32];
        bytes(&self.sha256, &mut out);
        out
    }
}

fn words(digest: &[u8], out: &mut [u32]) {
    for (word, bytes) in out.iter_mut().zip(digest.chunks_exact(4)) {
        *word = bytes.try_into().map_or(0, u32::from_be_bytes);
    }
}

fn bytes(words: &[u32], out: &mut [u8]) {
    for (to, word) in out.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_be_bytes());
    }
}

/// Bytes of a block of either hash.
pub type Block = [u8; 64];

/// The last one or two blocks of a message for either hash: what is left, the end mark, the length
/// in bits (FIPS 180-4, 5.1.1); and how many they are.
#[inline]
#[must_use]
pub fn padded_tail(message: &[u8]) -> ([Block; 2], usize) {
    let rest = message.chunks_exact(64).remainder();
    let bits = (message.len() as u64).wrapping_mul(8).to_be_bytes();
    let mut tail = [[0u8; 64]; 2];
    if let Some(to) = tail[0].get_mut(..rest.len()) {
        to.copy_from_slice(rest);
    }
    if let Some(end) = tail[0].get_mut(rest.len()) {
        *end = 0x80;
    }
    if rest.len() < 56 {
        tail[0][56..].copy_from_slice(&bits);
        (tail, 1)
    } else {
        tail[1][56..].copy_from_slice(&bits);
        (tail, 2)
    }
}

/// The blocks of a message that has its tail.
#[inline]
pub fn blocks<'a>(
    message: &'a [u8],
    tail: &'a ([Block; 2], usize),
) -> impl Iterator<Item = &'a Block> {
    let whole = message
        .chunks_exact(64)
        .filter_map(|block| block.try_into().ok());
    whole.chain(tail.0.iter().take(tail.1))
}

/// Both digests of a message.
#[inline]
#[must_use]
pub fn digest(message: &[u8]) -> Pair {
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        return x86::digest(message);
    }
    portable::digest(message)
}

/// Extend a register in both banks: it becomes the hash of itself and the value.
#[inline]
pub fn extend(register: &mut Pair, value: &Pair) {
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        return x86::extend(register, value);
    }
    portable::extend(register, value);
}

/// Both digests of a message, and beside them the extend of a register by a value.
#[inline]
#[must_use]
pub fn digest_beside(message: &[u8], register: &mut Pair, value: &Pair) -> Pair {
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        return x86::digest_beside(message, register, value);
    }
    portable::extend(register, value);
    portable::digest(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: usize) -> Vec<u8> {
        (0..length)
            .map(|i| (i * 31 + length * 7 + 5) as u8)
            .collect()
    }

    #[test]
    fn known_digests_are_computed() {
        // FIPS 180-4 examples: "abc".
        let pair = digest(b"abc");
        assert_eq!(pair.sha1[0], 0xa999_3e36);
        assert_eq!(pair.sha256[0], 0xba78_16bf);
        assert_eq!(pair.sha1[4], 0x9cd0_d89d);
        assert_eq!(pair.sha256[7], 0xf200_15ad);
    }

    #[test]
    fn every_length_equals_the_portable_code() {
        let mut register = Pair::from_digests(&message(20), &message(32));
        let mut other = register;
        for length in 0..400 {
            let data = message(length);
            let value = portable::digest(&message(length + 1));
            assert_eq!(digest(&data), portable::digest(&data), "{length}");
            let beside = digest_beside(&data, &mut register, &value);
            assert_eq!(beside, portable::digest(&data), "{length}");
            portable::extend(&mut other, &value);
            assert_eq!(register, other, "{length}");
            extend(&mut register, &beside);
            portable::extend(&mut other, &beside);
            assert_eq!(register, other, "{length}");
        }
    }

    #[test]
    fn words_and_digests_are_the_same_thing() {
        let pair = digest(b"words");
        let again = Pair::from_digests(&pair.sha1_digest(), &pair.sha256_digest());
        assert_eq!(pair, again);
    }
}
