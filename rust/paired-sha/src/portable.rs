//! The same on any machine, by the block functions of the `sha1` and `sha2` crates.
use sha1::digest::generic_array::typenum::U64;
use sha1::digest::generic_array::GenericArray;

use crate::{blocks, bytes, padded_tail, Block, Pair};

fn compress(state: &mut Pair, block: &Block) {
    compress_sha1(&mut state.sha1, block);
    compress_sha256(&mut state.sha256, block);
}

fn compress_sha1(state: &mut [u32; 5], block: &Block) {
    let block: &GenericArray<u8, U64> = block.into();
    sha1::compress(state, core::slice::from_ref(block));
}

fn compress_sha256(state: &mut [u32; 8], block: &Block) {
    let block: &GenericArray<u8, U64> = block.into();
    sha2::compress256(state, core::slice::from_ref(block));
}

pub(crate) fn digest(message: &[u8]) -> Pair {
    let mut state = Pair::INITIAL;
    let tail = padded_tail(message);
    for block in blocks(message, &tail) {
        compress(&mut state, block);
    }
    state
}

/// Second block of a 64-byte message: the end mark and the length, 512 bits.
const PADDING_512: Block = {
    let mut block = [0u8; 64];
    block[0] = 0x80;
    block[62] = 2;
    block
};

pub(crate) fn extend(register: &mut Pair, value: &Pair) {
    let mut small: Block = [0; 64];
    bytes(&register.sha1, &mut small[..20]);
    bytes(&value.sha1, &mut small[20..40]);
    small[40] = 0x80;
    small[62..].copy_from_slice(&320u16.to_be_bytes());
    let mut large: Block = [0; 64];
    bytes(&register.sha256, &mut large[..32]);
    bytes(&value.sha256, &mut large[32..]);
    *register = Pair::INITIAL;
    compress_sha1(&mut register.sha1, &small);
    compress_sha256(&mut register.sha256, &large);
    compress_sha256(&mut register.sha256, &PADDING_512);
}
