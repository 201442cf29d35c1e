/* The vector layer's bytes: vb holds 32 of them, whatever the instruction set, because a block of codes has 32. A vb
 * packed from 16-bit lanes keeps them in the order that is cheapest: position p holds lane vb_lane(p), and
 * vb_store_lanes puts them in order. See simd.h. */
#ifndef MX8_KERNELS_CPU_SIMD_BYTES_H
#define MX8_KERNELS_CPU_SIMD_BYTES_H

enum { VB_HALVES = 32 / (2 * MX8_VF) }; /* vectors of 16-bit lanes that make a vb */

#if defined(MX8_ISA_SCALAR)

typedef struct { uint8_t v[32]; } vb;

#define MX8_BYTE_LANES(expression)                                  \
    vb r;                                                           \
    for (int i = 0; i < 32; i++) r.v[i] = (uint8_t)(expression);    \
    return r

MX8_INLINE int vb_lane(int p) { return p; }
MX8_INLINE vb vb_set(int x) { MX8_BYTE_LANES(x); }
MX8_INLINE vb vb_or(vb a, vb b) { MX8_BYTE_LANES(a.v[i] | b.v[i]); }
MX8_INLINE vb vb_min(vb a, vb b) { MX8_BYTE_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
MX8_INLINE vb vb_add(vb a, vb b) { MX8_BYTE_LANES(a.v[i] + b.v[i]); }
MX8_INLINE vb vb_equal(vb a, vb b) { MX8_BYTE_LANES(a.v[i] == b.v[i] ? 255 : 0); }
MX8_INLINE vb vb_subs(vb a, vb b) { MX8_BYTE_LANES(a.v[i] > b.v[i] ? a.v[i] - b.v[i] : 0); }
MX8_INLINE int vb_is_zero(vb v) {
    int any = 0;
    for (int i = 0; i < 32; i++) any |= v.v[i];
    return any == 0;
}
MX8_INLINE vb vb_pack(const vh *v) { MX8_BYTE_LANES(v[i / 16].v[i % 16] < 255 ? v[i / 16].v[i % 16] : 255); }
MX8_INLINE vb vb_pack_signs(const vh *v, vb sign) { MX8_BYTE_LANES(v[i / 16].v[i % 16] >> 8 & sign.v[i]); }
MX8_INLINE vb vb_keep(vb v) { return v; }
MX8_INLINE vb vb_load_lanes(const uint8_t *p) { MX8_BYTE_LANES(p[i]); }
MX8_INLINE void vb_store(uint8_t *p, vb v) { memcpy(p, v.v, 32); }
MX8_INLINE void vb_store_first8(uint8_t *p, vb v) { memcpy(p, v.v, 8); }
MX8_INLINE void vb_store_lanes(uint8_t *p, vb v) { memcpy(p, v.v, 32); }
MX8_INLINE void vb_stream(uint8_t *p, vb v) { memcpy(p, v.v, 32); }
MX8_INLINE void vb_stream_lanes(uint8_t *p, vb v) { memcpy(p, v.v, 32); }

MX8_INLINE void vb_gather8(vb to[8], const vb r[8]) {
    for (int i = 0; i < 8; i++)
        for (int q = 0; q < 4; q++)
            for (int row = 0; row < 8; row++) to[i].v[8 * q + row] = r[row].v[16 * (q / 2) + 2 * i + q % 2];
}

MX8_INLINE void vb_join4(const vb *g, int64_t pitch, vb out[4]) {
    for (int q = 0; q < 4; q++)
        for (int k = 0; k < 4; k++) memcpy(out[q].v + 8 * k, g[k * pitch].v + 8 * q, 8);
}

#else

#include <immintrin.h>

typedef __m256i vb;

MX8_INLINE vb vb_set(int x) { return _mm256_set1_epi8((char)x); }
MX8_INLINE vb vb_or(vb a, vb b) { return _mm256_or_si256(a, b); }
MX8_INLINE vb vb_min(vb a, vb b) { return _mm256_min_epu8(a, b); }
MX8_INLINE vb vb_add(vb a, vb b) { return _mm256_add_epi8(a, b); }
MX8_INLINE vb vb_equal(vb a, vb b) { return _mm256_cmpeq_epi8(a, b); }
MX8_INLINE vb vb_subs(vb a, vb b) { return _mm256_subs_epu8(a, b); }
MX8_INLINE int vb_is_zero(vb v) { return _mm256_testz_si256(v, v); }
MX8_INLINE vb vb_keep(vb v) {
    __asm__("" : "+x"(v));
    return v;
}
MX8_INLINE void vb_store(uint8_t *p, vb v) { _mm256_storeu_si256((__m256i *)(void *)p, v); }
MX8_INLINE void vb_store_first8(uint8_t *p, vb v) {
    _mm_storel_epi64((__m128i *)(void *)p, _mm256_castsi256_si128(v));
}
MX8_INLINE void vb_stream(uint8_t *p, vb v) { _mm256_stream_si256((__m256i *)(void *)p, v); }

#if defined(MX8_ISA_AVX512)
MX8_INLINE int vb_lane(int p) { return p; }
MX8_INLINE vb vb_in_order(vb v) { return v; }
MX8_INLINE vb vb_pack(const vh *v) { return _mm512_cvtusepi16_epi8(v[0]); }
MX8_INLINE vb vb_pack_signs(const vh *v, vb sign) { return _mm256_maskz_mov_epi8(_mm512_movepi16_mask(v[0]), sign); }
#else
/* The packs work inside the 128-bit halves: the middle quarters change places. */
MX8_INLINE int vb_lane(int p) { return (p & 7) | (p & 8) << 1 | (p & 16) >> 1; }
MX8_INLINE vb vb_in_order(vb v) { return _mm256_permute4x64_epi64(v, 0xD8); }
MX8_INLINE vb vb_pack(const vh *v) { return _mm256_packus_epi16(v[0], v[1]); }
MX8_INLINE vb vb_pack_signs(const vh *v, vb sign) { return _mm256_and_si256(_mm256_packs_epi16(v[0], v[1]), sign); }
#endif
MX8_INLINE vb vb_load_lanes(const uint8_t *p) {
    return vb_in_order(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
MX8_INLINE void vb_store_lanes(uint8_t *p, vb v) { vb_store(p, vb_in_order(v)); }
MX8_INLINE void vb_stream_lanes(uint8_t *p, vb v) { vb_stream(p, vb_in_order(v)); }

MX8_INLINE void vb_gather8(vb to[8], const vb r[8]) {
    vb t[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
        t[4 + i] = _mm256_unpackhi_epi8(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        u[i / 2 * 4 + i % 2] = _mm256_unpacklo_epi16(t[2 * i], t[2 * i + 1]);
        u[i / 2 * 4 + 2 + i % 2] = _mm256_unpackhi_epi16(t[2 * i], t[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        to[2 * i] = _mm256_unpacklo_epi32(u[2 * i], u[2 * i + 1]);
        to[2 * i + 1] = _mm256_unpackhi_epi32(u[2 * i], u[2 * i + 1]);
    }
}

/* Two halves of vectors that lie in memory: loads need no shuffle. */
MX8_INLINE vb vb_load_pair(const char *low, const char *high) {
    vb v = _mm256_castsi128_si256(_mm_load_si128((const __m128i *)(const void *)low));
    return _mm256_inserti128_si256(v, _mm_load_si128((const __m128i *)(const void *)high), 1);
}
MX8_INLINE void vb_join4(const vb *g, int64_t pitch, vb out[4]) {
    const char *a = (const char *)g, *b = (const char *)(g + pitch), *c = (const char *)(g + 2 * pitch),
               *d = (const char *)(g + 3 * pitch);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        vb even = vb_load_pair(a + 16 * h, c + 16 * h), odd = vb_load_pair(b + 16 * h, d + 16 * h);
        out[2 * h] = _mm256_unpacklo_epi64(even, odd);
        out[2 * h + 1] = _mm256_unpackhi_epi64(even, odd);
    }
}

#endif

/* Position, in a row, of what vb_join4 gives as out[q] for the i-th of vb_gather8's vectors. */
MX8_INLINE int vb_position(int i, int q) { return 16 * (q / 2) + 2 * i + q % 2; }

#endif
