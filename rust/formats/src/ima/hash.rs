//! Digests of template data and the PCR extend, on the raw block functions.
//!
//! The hash crates choose SHA-NI or ARMv8 instructions at run time. Whole messages are hashed block
//! by block from the input slice, so that nothing is copied but the last, padded block. Where both
//! SHA-1 and SHA-256 are wanted, `excise_paired_sha` computes them together.
use excise_paired_sha::{Block, Pair};
use sha1::digest::generic_array::typenum::{U128, U64};
use sha1::digest::generic_array::GenericArray;
use sha1::digest::Digest as _;

use super::bank::{Bank, BankSet, Digest, MAX_DIGEST_BYTES};

const SHA1_INIT: [u32; 5] = [
    0x6745_2301,
    0xefcd_ab89,
    0x98ba_dcfe,
    0x1032_5476,
    0xc3d2_e1f0,
];
const SHA256_INIT: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
const SHA384_INIT: [u64; 8] = [
    0xcbbb_9d5d_c105_9ed8,
    0x629a_292a_367c_d507,
    0x9159_015a_3070_dd17,
    0x152f_ecd8_f70e_5939,
    0x6733_2667_ffc0_0b31,
    0x8eb4_4a87_6858_1511,
    0xdb0c_2e0d_64f9_8fa7,
    0x47b5_481d_befa_4fa4,
];
const SHA512_INIT: [u64; 8] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];

type WideBlock = [u8; 128];

#[inline]
fn sha1_block(state: &mut [u32; 5], block: &Block) {
    let block: &GenericArray<u8, U64> = block.into();
    sha1::compress(state, core::slice::from_ref(block));
}

#[inline]
fn sha256_block(state: &mut [u32; 8], block: &Block) {
    let block: &GenericArray<u8, U64> = block.into();
    sha2::compress256(state, core::slice::from_ref(block));
}

fn sha512_block(state: &mut [u64; 8], block: &WideBlock) {
    let block: &GenericArray<u8, U128> = block.into();
    sha2::compress512(state, core::slice::from_ref(block));
}

#[inline]
fn put_words(words: &[u32], out: &mut [u8]) {
    for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
}

fn put_wide_words(words: &[u64], out: &mut [u8]) {
    for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
}

/// Digests of one message in several banks.
#[derive(Clone, Copy, Debug)]
pub struct Digests {
    values: [Digest; 5],
    /// SHA-1 and SHA-256 as words, when both were computed.
    pair: Pair,
    /// Whether `values` lags behind `pair`.
    lagging: bool,
}

impl Default for Digests {
    fn default() -> Self {
        Digests {
            values: [[0; MAX_DIGEST_BYTES]; 5],
            pair: Pair::INITIAL,
            lagging: false,
        }
    }
}

impl Digests {
    /// The digest of a bank, as long as the bank's digests are; zeros when it was not computed.
    #[inline]
    #[must_use]
    pub fn get(&self, bank: Bank) -> &[u8] {
        let value = match bank {
            Bank::Sha1 => &self.values[0],
            Bank::Sha256 => &self.values[1],
            Bank::Sha384 => &self.values[2],
            Bank::Sha512 => &self.values[3],
            Bank::Sm3 => &self.values[4],
        };
        value.get(..bank.size()).unwrap_or(&[])
    }

    /// Whether the digest of a bank is the one given.
    #[inline]
    #[must_use]
    pub fn equals(&self, bank: Bank, digest: &[u8]) -> bool {
        match bank {
            Bank::Sha1 if self.lagging => digest == self.pair.sha1_digest(),
            Bank::Sha256 if self.lagging => digest == self.pair.sha256_digest(),
            _ => digest == self.get(bank),
        }
    }

    /// SHA-1 and SHA-256 as words; meaningful when both were computed.
    #[inline]
    #[must_use]
    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// Bring up to date what [`Digests::get`] and [`Digests::padded`] give.
    #[inline]
    pub fn refresh(&mut self) {
        if std::mem::take(&mut self.lagging) {
            self.values[0][..20].copy_from_slice(&self.pair.sha1_digest());
            self.values[1][..32].copy_from_slice(&self.pair.sha256_digest());
        }
    }

    /// The whole digest of a bank, zero-padded on the right to the widest size.
    #[inline]
    #[must_use]
    pub fn padded(&self, bank: Bank) -> &Digest {
        match bank {
            Bank::Sha1 => &self.values[0],
            Bank::Sha256 => &self.values[1],
            Bank::Sha384 => &self.values[2],
            Bank::Sha512 => &self.values[3],
            Bank::Sm3 => &self.values[4],
        }
    }

    /// Compute the message's digest in every bank of the set.
    #[inline]
    pub fn compute(&mut self, banks: BankSet, message: &[u8]) {
        let (sha1, sha256) = (banks.contains(Bank::Sha1), banks.contains(Bank::Sha256));
        self.lagging = sha1 && sha256;
        if self.lagging {
            self.pair = excise_paired_sha::digest(message);
            self.refresh();
        } else if sha1 || sha256 {
            self.narrow(sha1, sha256, message);
        }
        self.compute_wide(banks, message);
    }

    /// Compute the message's digest in the banks of the set other than SHA-1 and SHA-256.
    #[inline]
    pub fn compute_wide(&mut self, banks: BankSet, message: &[u8]) {
        if banks.contains(Bank::Sha384) {
            let state = wide(SHA384_INIT, message);
            put_wide_words(&state[..6], &mut self.values[2][..48]);
        }
        if banks.contains(Bank::Sha512) {
            let state = wide(SHA512_INIT, message);
            put_wide_words(&state, &mut self.values[3]);
        }
        if banks.contains(Bank::Sm3) {
            let digest = sm3::Sm3::digest(message);
            self.values[4][..32].copy_from_slice(digest.as_slice());
        }
    }

    /// Compute the SHA-1 and SHA-256 digests of a message, and beside them an extend of both banks.
    ///
    /// The extend is that of the entry before, which does not depend on the message. Until
    /// [`Digests::refresh`], only [`Digests::pair`] and [`Digests::equals`] know of the digests.
    #[inline]
    pub fn compute_beside(&mut self, message: &[u8], extend: &mut PairedExtend) {
        let PairedExtend { register, value } = extend;
        self.pair = excise_paired_sha::digest_beside(message, register, value);
        self.lagging = true;
    }

    #[inline]
    fn narrow(&mut self, sha1: bool, sha256: bool, message: &[u8]) {
        let (mut small, mut large) = (SHA1_INIT, SHA256_INIT);
        let tail = excise_paired_sha::padded_tail(message);
        for block in excise_paired_sha::blocks(message, &tail) {
            if sha1 {
                sha1_block(&mut small, block);
            }
            if sha256 {
                sha256_block(&mut large, block);
            }
        }
        if sha1 {
            put_words(&small, &mut self.values[0][..20]);
        }
        if sha256 {
            put_words(&large, &mut self.values[1][..32]);
        }
    }
}

/// A register's SHA-1 and SHA-256 bank, and what they are extended with next.
#[derive(Clone, Copy, Debug)]
pub struct PairedExtend {
    register: Pair,
    value: Pair,
}

impl PairedExtend {
    /// Registers as they are, and no value yet.
    #[must_use]
    pub fn new(sha1: &Digest, sha256: &Digest) -> Self {
        PairedExtend {
            register: Pair::from_digests(sha1, sha256),
            value: Pair::ONES,
        }
    }

    /// Set the values to extend with.
    #[inline]
    pub fn set(&mut self, value: &Pair) {
        self.value = *value;
    }

    /// Extend, without a message beside it.
    pub fn step(&mut self) {
        excise_paired_sha::extend(&mut self.register, &self.value);
    }

    /// The registers.
    #[inline]
    #[must_use]
    pub fn register(&self) -> &Pair {
        &self.register
    }
}

fn wide(mut state: [u64; 8], message: &[u8]) -> [u64; 8] {
    let mut blocks = message.chunks_exact(128);
    for block in &mut blocks {
        if let Ok(block) = <&WideBlock>::try_from(block) {
            sha512_block(&mut state, block);
        }
    }
    let rest = blocks.remainder();
    let bits = (message.len() as u128).wrapping_mul(8).to_be_bytes();
    let mut tail: WideBlock = [0; 128];
    for (to, from) in tail.iter_mut().zip(rest) {
        *to = *from;
    }
    if let Some(end) = tail.get_mut(rest.len()) {
        *end = 0x80;
    }
    if rest.len() >= 112 {
        sha512_block(&mut state, &tail);
        tail = [0; 128];
    }
    tail[112..].copy_from_slice(&bits);
    sha512_block(&mut state, &tail);
    state
}

/// Extend a PCR: `pcr := H(pcr || value)`, both as wide as the bank's digests.
///
/// TCG TPM 2.0 Library, Part 1, "Extend of a PCR".
#[inline]
pub fn extend(bank: Bank, pcr: &mut Digest, value: &Digest) {
    match bank {
        Bank::Sha1 => {
            let mut block = [0u8; 64];
            block[..20].copy_from_slice(&pcr[..20]);
            block[20..40].copy_from_slice(&value[..20]);
            block[40] = 0x80;
            block[62..].copy_from_slice(&320u16.to_be_bytes());
            let mut state = SHA1_INIT;
            sha1_block(&mut state, &block);
            put_words(&state, &mut pcr[..20]);
        }
        Bank::Sha256 => {
            let mut block = [0u8; 64];
            block[..32].copy_from_slice(&pcr[..32]);
            block[32..].copy_from_slice(&value[..32]);
            let mut state = SHA256_INIT;
            sha256_block(&mut state, &block);
            sha256_block(&mut state, &PADDING_512);
            put_words(&state, &mut pcr[..32]);
        }
        Bank::Sha384 => {
            let mut message = [0u8; 96];
            message[..48].copy_from_slice(&pcr[..48]);
            message[48..].copy_from_slice(&value[..48]);
            put_wide_words(&wide(SHA384_INIT, &message)[..6], &mut pcr[..48]);
        }
        Bank::Sha512 => {
            let mut message: WideBlock = [0u8; 128];
            message[..64].copy_from_slice(pcr);
            message[64..].copy_from_slice(value);
            put_wide_words(&wide(SHA512_INIT, &message), pcr);
        }
        Bank::Sm3 => {
            let digest = sm3::Sm3::new()
                .chain_update(&pcr[..32])
                .chain_update(&value[..32])
                .finalize();
            pcr[..32].copy_from_slice(digest.as_slice());
        }
    }
}

/// Second block of a 64-byte SHA-256 message: the end mark and the length, 512 bits.
const PADDING_512: Block = {
    let mut block = [0u8; 64];
    block[0] = 0x80;
    block[62] = 2;
    block
};

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> BankSet {
        let mut set = BankSet::default();
        for bank in Bank::ALL {
            set.insert(bank);
        }
        set
    }

    #[test]
    fn digests_equal_the_crates_own_at_every_length_around_a_block() {
        let data: Vec<u8> = (0..300u32).map(|i| (i * 7 + 3) as u8).collect();
        for length in 0..data.len() {
            let message = &data[..length];
            let mut digests = Digests::default();
            digests.compute(all(), message);
            assert_eq!(
                digests.get(Bank::Sha1),
                sha1::Sha1::digest(message).as_slice()
            );
            assert_eq!(
                digests.get(Bank::Sha256),
                sha2::Sha256::digest(message).as_slice()
            );
            assert_eq!(
                digests.get(Bank::Sha384),
                sha2::Sha384::digest(message).as_slice()
            );
            assert_eq!(
                digests.get(Bank::Sha512),
                sha2::Sha512::digest(message).as_slice()
            );
            assert_eq!(digests.get(Bank::Sm3), sm3::Sm3::digest(message).as_slice());
        }
    }

    #[test]
    fn an_extend_beside_a_message_equals_both_apart() {
        let data: Vec<u8> = (0..300u32).map(|i| (i * 11 + 5) as u8).collect();
        let (mut small, mut large) = ([3u8; MAX_DIGEST_BYTES], [4u8; MAX_DIGEST_BYTES]);
        let mut paired = PairedExtend::new(&small, &large);
        for length in 0..data.len() {
            let mut value = Digests::default();
            value.compute(all(), &data[length..]);
            paired.set(value.pair());
            extend(Bank::Sha1, &mut small, value.padded(Bank::Sha1));
            extend(Bank::Sha256, &mut large, value.padded(Bank::Sha256));
            let (mut beside, mut apart) = (Digests::default(), Digests::default());
            beside.compute_beside(&data[..length], &mut paired);
            apart.compute(all(), &data[..length]);
            assert!(beside.equals(Bank::Sha1, apart.get(Bank::Sha1)));
            assert!(!beside.equals(Bank::Sha256, &[0; 32]));
            beside.refresh();
            assert_eq!(beside.get(Bank::Sha1), apart.get(Bank::Sha1));
            assert_eq!(beside.get(Bank::Sha256), apart.get(Bank::Sha256));
            assert_eq!(paired.register().sha1_digest(), small[..20]);
            assert_eq!(paired.register().sha256_digest(), large[..32]);
        }
    }

    #[test]
    fn extend_hashes_the_register_and_the_value() {
        for bank in Bank::ALL {
            let mut digests = Digests::default();
            digests.compute(all(), b"measured");
            let mut pcr = [0u8; MAX_DIGEST_BYTES];
            pcr[..bank.size()].fill(0x11);
            let mut message = vec![0x11u8; bank.size()];
            message.extend_from_slice(digests.get(bank));
            let mut expected = Digests::default();
            expected.compute(all(), &message);
            extend(bank, &mut pcr, digests.padded(bank));
            assert_eq!(&pcr[..bank.size()], expected.get(bank), "{}", bank.name());
        }
    }
}
