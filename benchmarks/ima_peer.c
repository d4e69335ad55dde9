/* The limit to measure against: one loop over a list in memory, SHA-1 and SHA-256 by the SHA
 * instructions of x86, both banks' PCR 10 and the template hash of every entry. It knows only
 * little-endian lists with SHA-1 headers and trusts its input.
 *
 * usage: ima_peer LIST   prints: entries, entries with a wrong template hash, PCR 10 of both banks
 */
#include <fcntl.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const uint32_t K256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static const uint32_t IV1[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
static const uint32_t IV256[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static inline void sha256_block(uint32_t s[8], const uint8_t *p) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bULL, 0x0405060700010203ULL);
    __m128i lo = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)s), 0xb1);
    __m128i hi = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(s + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(lo, hi, 8), cdgh = _mm_blend_epi16(hi, lo, 0xf0);
    const __m128i abef0 = abef, cdgh0 = cdgh;
    __m128i m[4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        __m128i w;
        if (i < 4) {
            w = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), swap);
        } else {
            w = _mm_sha256msg1_epu32(m[i & 3], m[(i + 1) & 3]);
            w = _mm_add_epi32(w, _mm_alignr_epi8(m[(i + 3) & 3], m[(i + 2) & 3], 4));
            w = _mm_sha256msg2_epu32(w, m[(i + 3) & 3]);
        }
        m[i & 3] = w;
        __m128i k = _mm_add_epi32(w, _mm_loadu_si128((const __m128i *)(K256 + 4 * i)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef0);
    cdgh = _mm_add_epi32(cdgh, cdgh0);
    lo = _mm_shuffle_epi32(abef, 0x1b);
    hi = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)s, _mm_blend_epi16(lo, hi, 0xf0));
    _mm_storeu_si128((__m128i *)(s + 4), _mm_alignr_epi8(hi, lo, 8));
}

static inline void sha1_block(uint32_t s[5], const uint8_t *p) {
    const __m128i swap = _mm_set_epi64x(0x0001020304050607ULL, 0x08090a0b0c0d0e0fULL);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)s), 0x1b);
    const __m128i abcd0 = abcd, e0 = _mm_set_epi32((int)s[4], 0, 0, 0);
    __m128i m[4], before = abcd, e;
#pragma GCC unroll 20
    for (int i = 0; i < 20; i++) {
        __m128i w;
        if (i < 4) {
            w = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), swap);
        } else {
            w = _mm_sha1msg1_epu32(m[i & 3], m[(i + 1) & 3]);
            w = _mm_xor_si128(w, m[(i + 2) & 3]);
            w = _mm_sha1msg2_epu32(w, m[(i + 3) & 3]);
        }
        m[i & 3] = w;
        e = i == 0 ? _mm_add_epi32(e0, w) : _mm_sha1nexte_epu32(before, w);
        before = abcd;
        switch (i / 5) {
        case 0: abcd = _mm_sha1rnds4_epu32(abcd, e, 0); break;
        case 1: abcd = _mm_sha1rnds4_epu32(abcd, e, 1); break;
        case 2: abcd = _mm_sha1rnds4_epu32(abcd, e, 2); break;
        default: abcd = _mm_sha1rnds4_epu32(abcd, e, 3); break;
        }
    }
    e = _mm_sha1nexte_epu32(before, e0);
    abcd = _mm_shuffle_epi32(_mm_add_epi32(abcd, abcd0), 0x1b);
    _mm_storeu_si128((__m128i *)s, abcd);
    s[4] = (uint32_t)_mm_extract_epi32(e, 3);
}

static inline void put(uint8_t *out, const uint32_t *words, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t swapped = __builtin_bswap32(words[i]);
        memcpy(out + 4 * i, &swapped, 4);
    }
}

static void both(const uint8_t *data, size_t size, uint8_t d1[20], uint8_t d256[32]) {
    uint32_t s1[5], s256[8];
    uint8_t tail[128] = {0};
    memcpy(s1, IV1, sizeof s1);
    memcpy(s256, IV256, sizeof s256);
    size_t whole = size / 64, rest = size % 64, tails = rest < 56 ? 1 : 2;
    for (size_t i = 0; i < whole; i++) {
        sha1_block(s1, data + 64 * i);
        sha256_block(s256, data + 64 * i);
    }
    memcpy(tail, data + 64 * whole, rest);
    tail[rest] = 0x80;
    uint64_t bits = __builtin_bswap64((uint64_t)size * 8);
    memcpy(tail + 64 * tails - 8, &bits, 8);
    for (size_t i = 0; i < tails; i++) {
        sha1_block(s1, tail + 64 * i);
        sha256_block(s256, tail + 64 * i);
    }
    put(d1, s1, 5);
    put(d256, s256, 8);
}

static uint32_t u32(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, 4);
    return value;
}

int main(int argc, char **argv) {
    struct stat st;
    int fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &st) != 0)
        return 2;
    const uint8_t *list = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (list == MAP_FAILED)
        return 2;
    uint8_t block1[64] = {0}, block256[128] = {0}, d1[20], d256[32];
    block1[40] = 0x80, block1[62] = 320 >> 8, block1[63] = 320 & 0xff;
    block256[64] = 0x80, block256[126] = 2;
    static const uint8_t zero[20];
    size_t at = 0, entries = 0, bad = 0;
    while (at + 32 <= (size_t)st.st_size) {
        const uint8_t *hash = list + at + 4;
        size_t data_at = at + 28 + u32(list + at + 24);
        size_t size = u32(list + data_at);
        if (memcmp(hash, zero, 20) == 0) {
            memset(d1, 0xff, 20);
            memset(d256, 0xff, 32);
        } else {
            both(list + data_at + 4, size, d1, d256);
            bad += memcmp(hash, d1, 20) != 0;
        }
        uint32_t s1[5], s256[8];
        memcpy(s1, IV1, sizeof s1);
        memcpy(s256, IV256, sizeof s256);
        memcpy(block1 + 20, d1, 20);
        memcpy(block256 + 32, d256, 32);
        sha1_block(s1, block1);
        sha256_block(s256, block256);
        sha256_block(s256, block256 + 64);
        put(block1, s1, 5);
        put(block256, s256, 8);
        at = data_at + 4 + size;
        entries++;
    }
    printf("%zu %zu ", entries, bad);
    for (int i = 0; i < 20; i++)
        printf("%02x", block1[i]);
    printf(" ");
    for (int i = 0; i < 32; i++)
        printf("%02x", block256[i]);
    printf("\n");
    return 0;
}
