//! The SHA instructions of x86, with the rounds of independent blocks alternating.
//!
//! Every function that is `unsafe` here needs the instruction sets `sha`, `ssse3` and `sse4.1`, and
//! nothing else; the three safe functions are called only after [`available`] has found them. Loads
//! and stores go through references to arrays of the size they need.
//!
//! Intrinsics are unsafe to call up to Rust 1.86 and safe after; a block around each would be needed
//! for the one and superfluous for the other.
#![allow(unsafe_op_in_unsafe_fn)]
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_blend_epi16, _mm_extract_epi32, _mm_loadu_si128,
    _mm_set_epi32, _mm_set_epi64x, _mm_sha1msg1_epu32, _mm_sha1msg2_epu32, _mm_sha1nexte_epu32,
    _mm_sha1rnds4_epu32, _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32,
    _mm_shuffle_epi32, _mm_shuffle_epi8, _mm_storeu_si128, _mm_xor_si128,
};

use crate::{blocks, padded_tail, Block, Pair};

/// Round constants of SHA-256 (FIPS 180-4, 4.2.2).
static K256: [u32; 64] = [
    0x428a_2f98,
    0x7137_4491,
    0xb5c0_fbcf,
    0xe9b5_dba5,
    0x3956_c25b,
    0x59f1_11f1,
    0x923f_82a4,
    0xab1c_5ed5,
    0xd807_aa98,
    0x1283_5b01,
    0x2431_85be,
    0x550c_7dc3,
    0x72be_5d74,
    0x80de_b1fe,
    0x9bdc_06a7,
    0xc19b_f174,
    0xe49b_69c1,
    0xefbe_4786,
    0x0fc1_9dc6,
    0x240c_a1cc,
    0x2de9_2c6f,
    0x4a74_84aa,
    0x5cb0_a9dc,
    0x76f9_88da,
    0x983e_5152,
    0xa831_c66d,
    0xb003_27c8,
    0xbf59_7fc7,
    0xc6e0_0bf3,
    0xd5a7_9147,
    0x06ca_6351,
    0x1429_2967,
    0x27b7_0a85,
    0x2e1b_2138,
    0x4d2c_6dfc,
    0x5338_0d13,
    0x650a_7354,
    0x766a_0abb,
    0x81c2_c92e,
    0x9272_2c85,
    0xa2bf_e8a1,
    0xa81a_664b,
    0xc24b_8b70,
    0xc76c_51a3,
    0xd192_e819,
    0xd699_0624,
    0xf40e_3585,
    0x106a_a070,
    0x19a4_c116,
    0x1e37_6c08,
    0x2748_774c,
    0x34b0_bcb5,
    0x391c_0cb3,
    0x4ed8_aa4a,
    0x5b9c_ca4f,
    0x682e_6ff3,
    0x748f_82ee,
    0x78a5_636f,
    0x84c8_7814,
    0x8cc7_0208,
    0x90be_fffa,
    0xa450_6ceb,
    0xbef9_a3f7,
    0xc671_78f2,
];

/// Round constants plus the message schedule of the second block of a 64-byte message.
static K256_PADDING: [u32; 64] = {
    let mut w = [0u32; 64];
    w[0] = 0x8000_0000;
    w[15] = 512;
    let mut i = 16;
    while i < 64 {
        let a = w[i - 15];
        let b = w[i - 2];
        let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
        let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
        w[i] = w[i - 16]
            .wrapping_add(s0)
            .wrapping_add(w[i - 7])
            .wrapping_add(s1);
        i += 1;
    }
    let mut i = 0;
    while i < 64 {
        w[i] = w[i].wrapping_add(K256[i]);
        i += 1;
    }
    w
};

/// Whether this machine has the instructions.
#[inline]
pub(crate) fn available() -> bool {
    is_x86_feature_detected!("sha")
        && is_x86_feature_detected!("sse4.1")
        && is_x86_feature_detected!("ssse3")
}

/// Both digests of a message.
#[inline]
pub(crate) fn digest(message: &[u8]) -> Pair {
    // SAFETY: `available` was asked.
    unsafe { digest_native(message) }
}

/// Extend a register in both banks.
#[inline]
pub(crate) fn extend(register: &mut Pair, value: &Pair) {
    // SAFETY: `available` was asked.
    unsafe { extend_native(register, value) }
}

/// Both digests of a message, beside the extend of a register.
#[inline]
pub(crate) fn digest_beside(message: &[u8], register: &mut Pair, value: &Pair) -> Pair {
    // SAFETY: `available` was asked.
    unsafe { digest_beside_native(message, register, value) }
}

/// A SHA-256 computation: its state, the state before the block, and the schedule's last words.
#[derive(Clone, Copy)]
struct Large {
    abef: __m128i,
    cdgh: __m128i,
    abef_before: __m128i,
    cdgh_before: __m128i,
    w: [__m128i; 4],
}

/// A SHA-1 computation.
#[derive(Clone, Copy)]
struct Small {
    abcd: __m128i,
    abcd_before: __m128i,
    e_before: __m128i,
    last: __m128i,
    w: [__m128i; 4],
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
unsafe fn load(words: &[u32; 4]) -> __m128i {
    _mm_loadu_si128(words.as_ptr().cast())
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
unsafe fn load_bytes<const AT: usize>(block: &Block) -> __m128i {
    const { assert!(AT + 16 <= 64) };
    _mm_loadu_si128(block.as_ptr().add(AT).cast())
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
unsafe fn constants<const GROUP: usize>(table: &[u32; 64]) -> __m128i {
    const { assert!(GROUP < 16) };
    _mm_loadu_si128(table.as_ptr().add(4 * GROUP).cast())
}

impl Large {
    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn new(state: &[u32; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = *state;
        let low = _mm_shuffle_epi32(load(&[a, b, c, d]), 0xb1);
        let high = _mm_shuffle_epi32(load(&[e, f, g, h]), 0x1b);
        let abef = _mm_alignr_epi8(low, high, 8);
        let cdgh = _mm_blend_epi16(high, low, 0xf0);
        Large {
            abef,
            cdgh,
            abef_before: abef,
            cdgh_before: cdgh,
            w: [abef; 4],
        }
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn begin(&mut self, block: &Block) {
        let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        self.w = [
            _mm_shuffle_epi8(load_bytes::<0>(block), swap),
            _mm_shuffle_epi8(load_bytes::<16>(block), swap),
            _mm_shuffle_epi8(load_bytes::<32>(block), swap),
            _mm_shuffle_epi8(load_bytes::<48>(block), swap),
        ];
        self.keep();
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn begin_extend(&mut self, register: &[u32; 8], value: &[u32; 8]) {
        let [a, b, c, d, e, f, g, h] = *register;
        let [i, j, k, l, m, n, o, p] = *value;
        self.w = [
            load(&[a, b, c, d]),
            load(&[e, f, g, h]),
            load(&[i, j, k, l]),
            load(&[m, n, o, p]),
        ];
        self.keep();
    }

    #[inline]
    fn keep(&mut self) {
        self.abef_before = self.abef;
        self.cdgh_before = self.cdgh;
    }

    /// Four rounds, with their part of the message schedule.
    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn rounds<const GROUP: usize>(&mut self) {
        if GROUP >= 4 {
            let [w0, w1, w2, w3] = self.w;
            let next = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));
            self.w = [w1, w2, w3, _mm_sha256msg2_epu32(next, w3)];
        }
        let w = if GROUP < 4 {
            self.w[GROUP & 3]
        } else {
            self.w[3]
        };
        self.rounds_of(_mm_add_epi32(w, constants::<GROUP>(&K256)));
    }

    /// Four rounds of the padding block, whose schedule is constant.
    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn padding_rounds<const GROUP: usize>(&mut self) {
        self.rounds_of(constants::<GROUP>(&K256_PADDING))
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn rounds_of(&mut self, wk: __m128i) {
        self.cdgh = _mm_sha256rnds2_epu32(self.cdgh, self.abef, wk);
        self.abef = _mm_sha256rnds2_epu32(self.abef, self.cdgh, _mm_shuffle_epi32(wk, 0x0e));
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn end(&mut self) {
        self.abef = _mm_add_epi32(self.abef, self.abef_before);
        self.cdgh = _mm_add_epi32(self.cdgh, self.cdgh_before);
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn state(&self, out: &mut [u32; 8]) {
        let low = _mm_shuffle_epi32(self.abef, 0x1b);
        let high = _mm_shuffle_epi32(self.cdgh, 0xb1);
        let to = out.as_mut_ptr();
        _mm_storeu_si128(to.cast(), _mm_blend_epi16(low, high, 0xf0));
        _mm_storeu_si128(to.add(4).cast(), _mm_alignr_epi8(high, low, 8));
    }
}

impl Small {
    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn new(state: &[u32; 5]) -> Self {
        let [a, b, c, d, e] = *state;
        let abcd = _mm_shuffle_epi32(load(&[a, b, c, d]), 0x1b);
        Small {
            abcd,
            abcd_before: abcd,
            e_before: _mm_set_epi32(e as i32, 0, 0, 0),
            last: abcd,
            w: [abcd; 4],
        }
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn begin(&mut self, block: &Block) {
        let swap = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
        self.w = [
            _mm_shuffle_epi8(load_bytes::<0>(block), swap),
            _mm_shuffle_epi8(load_bytes::<16>(block), swap),
            _mm_shuffle_epi8(load_bytes::<32>(block), swap),
            _mm_shuffle_epi8(load_bytes::<48>(block), swap),
        ];
        self.abcd_before = self.abcd;
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn begin_extend(&mut self, register: &[u32; 5], value: &[u32; 5]) {
        let [a, b, c, d, e] = register.map(|word| word as i32);
        let [f, g, h, i, j] = value.map(|word| word as i32);
        self.w = [
            _mm_set_epi32(a, b, c, d),
            _mm_set_epi32(e, f, g, h),
            _mm_set_epi32(i, j, i32::MIN, 0),
            _mm_set_epi32(0, 0, 0, 320),
        ];
        self.abcd_before = self.abcd;
    }

    /// Four rounds, with their part of the message schedule.
    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn rounds<const GROUP: usize>(&mut self) {
        if GROUP >= 4 {
            let [w0, w1, w2, w3] = self.w;
            let next = _mm_xor_si128(_mm_sha1msg1_epu32(w0, w1), w2);
            self.w = [w1, w2, w3, _mm_sha1msg2_epu32(next, w3)];
        }
        let w = if GROUP < 4 {
            self.w[GROUP & 3]
        } else {
            self.w[3]
        };
        let e = if GROUP == 0 {
            _mm_add_epi32(self.e_before, w)
        } else {
            _mm_sha1nexte_epu32(self.last, w)
        };
        self.last = self.abcd;
        self.abcd = match GROUP / 5 {
            0 => _mm_sha1rnds4_epu32(self.abcd, e, 0),
            1 => _mm_sha1rnds4_epu32(self.abcd, e, 1),
            2 => _mm_sha1rnds4_epu32(self.abcd, e, 2),
            _ => _mm_sha1rnds4_epu32(self.abcd, e, 3),
        };
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn end(&mut self) {
        self.e_before = _mm_sha1nexte_epu32(self.last, self.e_before);
        self.abcd = _mm_add_epi32(self.abcd, self.abcd_before);
    }

    #[inline]
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn state(&self, out: &mut [u32; 5]) {
        let abcd = _mm_shuffle_epi32(self.abcd, 0x1b);
        _mm_storeu_si128(out.as_mut_ptr().cast(), abcd);
        out[4] = _mm_extract_epi32(self.e_before, 3) as u32;
    }
}

/// Run the same groups of four rounds on several computations in turn.
macro_rules! alternate {
    ([$($group:literal)*] $($who:ident . $what:ident),*) => {
        alternate!(@each [$($group)*] [$($who . $what),*])
    };
    (@each [] $calls:tt) => {};
    (@each [$group:literal $($rest:literal)*] [$($who:ident . $what:ident),*]) => {
        $( $who.$what::<$group>(); )*
        alternate!(@each [$($rest)*] [$($who . $what),*])
    };
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
unsafe fn digest_native(message: &[u8]) -> Pair {
    let mut pair = Pair::INITIAL;
    let tail = padded_tail(message);
    let mut small = Small::new(&pair.sha1);
    let mut large = Large::new(&pair.sha256);
    for block in blocks(message, &tail) {
        both(&mut small, &mut large, block);
    }
    small.state(&mut pair.sha1);
    large.state(&mut pair.sha256);
    pair
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
unsafe fn both(small: &mut Small, large: &mut Large, block: &Block) {
    small.begin(block);
    large.begin(block);
    alternate!([0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] large.rounds, small.rounds);
    alternate!([16 17 18 19] small.rounds);
    small.end();
    large.end();
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
unsafe fn extend_native(register: &mut Pair, value: &Pair) {
    let mut small = Small::new(&Pair::INITIAL.sha1);
    let mut large = Large::new(&Pair::INITIAL.sha256);
    small.begin_extend(&register.sha1, &value.sha1);
    large.begin_extend(&register.sha256, &value.sha256);
    alternate!([0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] large.rounds, small.rounds);
    alternate!([16 17 18 19] small.rounds);
    large.end();
    large.keep();
    alternate!([0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] large.padding_rounds);
    large.end();
    small.end();
    small.state(&mut register.sha1);
    large.state(&mut register.sha256);
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
unsafe fn digest_beside_native(message: &[u8], register: &mut Pair, value: &Pair) -> Pair {
    let mut pair = Pair::INITIAL;
    let tail = padded_tail(message);
    let mut todo = blocks(message, &tail);
    let Some(first) = todo.next() else {
        return pair;
    };
    let mut small = Small::new(&pair.sha1);
    let mut large = Large::new(&pair.sha256);
    let mut pcr_small = small;
    let mut pcr_large = large;
    large.begin(first);
    pcr_large.begin_extend(&register.sha256, &value.sha256);
    small.begin(first);
    pcr_small.begin_extend(&register.sha1, &value.sha1);
    alternate!(
        [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
        large.rounds, pcr_large.rounds, small.rounds
    );
    alternate!([16 17 18 19] small.rounds);
    large.end();
    small.end();
    pcr_large.end();
    pcr_large.keep();
    if let Some(second) = todo.next() {
        large.begin(second);
        small.begin(second);
        alternate!(
            [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
            large.rounds, pcr_large.padding_rounds, small.rounds, pcr_small.rounds
        );
        alternate!([16 17 18 19] small.rounds, pcr_small.rounds);
        large.end();
        small.end();
    } else {
        alternate!(
            [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
            pcr_large.padding_rounds, pcr_small.rounds
        );
        alternate!([16 17 18 19] pcr_small.rounds);
    }
    pcr_small.end();
    pcr_small.state(&mut register.sha1);
    pcr_large.end();
    pcr_large.state(&mut register.sha256);
    for block in todo {
        both(&mut small, &mut large, block);
    }
    small.state(&mut pair.sha1);
    large.state(&mut pair.sha256);
    pair
}
