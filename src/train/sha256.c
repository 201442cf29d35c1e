#include "train/sha256.h"
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t constants[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7,
    0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c,
    0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void mix_block(uint32_t state[8], const uint8_t *block) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t low = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t high = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + low + w[i - 7] + high;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i++) {
        uint32_t first =
            h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] + w[i];
        uint32_t second = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + first;
        d = c, c = b, b = a, a = first + second;
    }
    const uint32_t mixed[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) state[i] += mixed[i];
}

void mx8i_mix_sha256(uint32_t state[8], const uint8_t *blocks, size_t count) {
    for (size_t i = 0; i < count; i++) mix_block(state, blocks + 64 * i);
}

#if defined(__x86_64__)
/* The processor's own instructions (SHA extensions): 4 rounds a turn, the schedule 4 words at a time. */
__attribute__((target("sha,sse4.1"))) static void mix_by_instruction(
    uint32_t state[8], const uint8_t *blocks, size_t count) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)state);        /* a b c d */
    __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(state + 4)); /* e f g h */
    low = _mm_shuffle_epi32(low, 0xB1);
    high = _mm_shuffle_epi32(high, 0x1B);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xF0);
    for (size_t block = 0; block < count; block++, blocks += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(blocks + 16 * i)), big_endian);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i sum = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(const void *)(constants + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
            if (i >= 12) continue;
            const __m128i w1 = w[(i + 1) & 3], w2 = w[(i + 2) & 3], w3 = w[(i + 3) & 3];
            const __m128i seven_back = _mm_alignr_epi8(w3, w2, 4);
            w[i & 3] = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w1), seven_back), w3);
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    low = _mm_shuffle_epi32(abef, 0x1B);
    high = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(low, high, 0xF0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(high, low, 8));
}

static int has_instructions(void) {
    unsigned eax, ebx, ecx, edx;
    const unsigned ssse3_sse41 = 1u << 9 | 1u << 19, sha = 1u << 29;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & ssse3_sse41) != ssse3_sse41) return 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & sha);
}

#else
static int has_instructions(void) {
    return 0;
}

static void mix_by_instruction(uint32_t state[8], const uint8_t *blocks, size_t count) {
    mx8i_mix_sha256(state, blocks, count);
}
#endif

static void mix_blocks(struct mx8_sha256 *h, const uint8_t *blocks, size_t count) {
    if (h->by_instruction)
        mix_by_instruction(h->state, blocks, count);
    else
        mx8i_mix_sha256(h->state, blocks, count);
}

void mx8i_begin_sha256(struct mx8_sha256 *h) {
    *h = (struct mx8_sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
        .by_instruction = has_instructions()};
}

void mx8i_add_sha256(struct mx8_sha256 *h, const void *data, size_t size) {
    const uint8_t *bytes = data;
    while (size > 0) {
        size_t held = h->size % 64, n = 64 - held < size ? 64 - held : size;
        if (n == 64) {
            n = size / 64 * 64;
            mix_blocks(h, bytes, size / 64);
        } else {
            memcpy(h->block + held, bytes, n);
            if (held + n == 64) mix_blocks(h, h->block, 1);
        }
        h->size += n;
        bytes += n;
        size -= n;
    }
}

void mx8i_end_sha256(struct mx8_sha256 *h, char hex[65]) {
    static const uint8_t zeros[64] = {0}, one = 0x80;
    static const char digits[] = "0123456789abcdef";
    uint64_t bits = h->size * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    mx8i_add_sha256(h, &one, 1);
    mx8i_add_sha256(h, zeros, (size_t)(120 - h->size % 64) % 64);
    mx8i_add_sha256(h, length, sizeof length);
    for (int i = 0; i < 64; i++) hex[i] = digits[h->state[i / 8] >> (28 - 4 * (i % 8)) & 15];
    hex[64] = 0;
}

enum mx8_status mx8i_hash_file(const char *path, char hex[65]) {
    struct mx8_map map;
    struct mx8_sha256 h;
    MX8_TRY(mx8i_map_file(path, &map));
    mx8i_begin_sha256(&h);
    mx8i_add_sha256(&h, map.data, map.size);
    mx8i_end_sha256(&h, hex);
    mx8i_unmap_file(&map);
    return MX8_OK;
}
