/* The vector layer on AVX2, FMA and F16C: eight lanes. See simd.h. */
#ifndef MX8_KERNELS_CPU_SIMD_AVX2_H
#define MX8_KERNELS_CPU_SIMD_AVX2_H

#include <immintrin.h>

#define MX8_VF 8
typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vm; /* a true lane is all ones */

MX8_INLINE vm vm_first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
MX8_INLINE vm vm_and(vm a, vm b) { return _mm256_and_si256(a, b); }
MX8_INLINE vm vm_or(vm a, vm b) { return _mm256_or_si256(a, b); }
MX8_INLINE int vm_any(vm m) { return _mm256_movemask_epi8(m) != 0; }

MX8_INLINE vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
MX8_INLINE vi vi_load(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
MX8_INLINE void vi_store(int32_t *p, vi v) { _mm256_storeu_si256((__m256i *)(void *)p, v); }
MX8_INLINE vi vi_load_part(const int32_t *p, int n) { return _mm256_maskload_epi32(p, vm_first(n)); }
MX8_INLINE void vi_store_part(int32_t *p, vi v, int n) { _mm256_maskstore_epi32(p, vm_first(n), v); }
MX8_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
MX8_INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
MX8_INLINE vi vi_mul(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
MX8_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
MX8_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
MX8_INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
MX8_INLINE vi vi_andnot(vi a, vi b) { return _mm256_andnot_si256(a, b); }
MX8_INLINE vi vi_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
MX8_INLINE vi vi_min(vi a, vi b) { return _mm256_min_epi32(a, b); }
MX8_INLINE vm vi_gt(vi a, vi b) { return _mm256_cmpgt_epi32(a, b); }
MX8_INLINE vm vi_eq(vi a, vi b) { return _mm256_cmpeq_epi32(a, b); }
MX8_INLINE vi vi_select(vm m, vi a, vi b) { return _mm256_blendv_epi8(b, a, m); }
#define vi_shl(v, n) _mm256_slli_epi32(v, n) /* macros: the count must reach the instruction as a constant */
#define vi_shr(v, n) _mm256_srli_epi32(v, n)
#define vi_sar(v, n) _mm256_srai_epi32(v, n)

MX8_INLINE vi vi_load_u8(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

MX8_INLINE vi vi_load_u8_part(const uint8_t *p, int n) {
    uint8_t lanes[8] = {0};
    for (int i = 0; i < n; i++) lanes[i] = p[i];
    return vi_load_u8(lanes);
}

MX8_INLINE uint64_t vi_pack_u8(vi v) {
    const __m256i low = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, /**/
        0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i b = _mm256_shuffle_epi8(v, low);
    __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    return (uint64_t)_mm_cvtsi128_si64(both);
}

MX8_INLINE void vi_store_u8(uint8_t *p, vi v) {
    uint64_t bytes = vi_pack_u8(v);
    memcpy(p, &bytes, sizeof bytes);
}

MX8_INLINE void vi_store_u8_part(uint8_t *p, vi v, int n) {
    uint64_t bytes = vi_pack_u8(v);
    for (int i = 0; i < n; i++) p[i] = (uint8_t)(bytes >> (8 * i));
}


MX8_INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
MX8_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
MX8_INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
MX8_INLINE vf vf_load_part(const float *p, int n) { return _mm256_maskload_ps(p, vm_first(n)); }
MX8_INLINE void vf_store_part(float *p, vf v, int n) { _mm256_maskstore_ps(p, vm_first(n), v); }
MX8_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
MX8_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
MX8_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
MX8_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
MX8_INLINE vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
MX8_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
MX8_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
MX8_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
MX8_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
MX8_INLINE vi vf_bits(vf v) { return _mm256_castps_si256(v); }
MX8_INLINE vf vf_from_bits(vi v) { return _mm256_castsi256_ps(v); }
MX8_INLINE vf vf_from_int(vi v) { return _mm256_cvtepi32_ps(v); }
MX8_INLINE vi vi_from_float(vf v) { return _mm256_cvtps_epi32(v); }
MX8_INLINE vf vf_abs(vf v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
MX8_INLINE vf vf_neg(vf v) { return _mm256_xor_ps(_mm256_set1_ps(-0.0f), v); }
MX8_INLINE vm vf_lt(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
MX8_INLINE vm vf_le(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LE_OQ)); }
MX8_INLINE vm vf_eq(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
MX8_INLINE vm vf_is_nan(vf v) { return _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)); }
MX8_INLINE vf vf_select(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(m)); }

MX8_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return vf_from_bits(vi_shl(_mm256_cvtepu16_epi32(h), 16));
}

MX8_INLINE vf vf_load_bf16_part(const uint16_t *p, int n) {
    uint16_t lanes[8] = {0};
    for (int i = 0; i < n; i++) lanes[i] = p[i];
    return vf_load_bf16(lanes);
}

MX8_INLINE __m128i vf_pack_bf16(vf v) {
    vi u = vf_bits(v), high = vi_shr(u, 16);
    vi even = vi_add(vi_set(0x7FFF), vi_and(high, vi_set(1)));
    vi rounded = vi_shr(vi_add(u, even), 16);
    vi bits = vi_select(vf_is_nan(v), vi_or(high, vi_set(0x40)), rounded);
    bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
    return _mm256_castsi256_si128(bits);
}

MX8_INLINE void vf_store_bf16(uint16_t *p, vf v) { _mm_storeu_si128((__m128i *)(void *)p, vf_pack_bf16(v)); }

MX8_INLINE void vf_store_bf16_part(uint16_t *p, vf v, int n) {
    uint16_t lanes[8];
    vf_store_bf16(lanes, v);
    for (int i = 0; i < n; i++) p[i] = lanes[i];
}

/* An e4m3 code is a half's exponent and mantissa at another bias: 2^8 apart, subnormals included. */
MX8_INLINE vf vf_from_e4m3(uint64_t codes) {
    __m128i h = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((int64_t)codes)), top = _mm_set1_epi16(0x3F80);
    __m128i magnitude = _mm_and_si128(_mm_slli_epi16(h, 7), top);
    __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, top), _mm_set1_epi16(0x7C00));
    __m128i sign = _mm_slli_epi16(_mm_srli_epi16(h, 7), 15);
    __m128i half = _mm_or_si128(_mm_or_si128(magnitude, sign), nan);
    return vf_mul(_mm256_cvtph_ps(half), vf_set(256.0f));
}

/* An e5m2 code is the upper byte of a half. */
MX8_INLINE vf vf_from_e5m2(uint64_t codes) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_cvtsi64_si128((int64_t)codes)), 8));
}

MX8_INLINE uint64_t load_codes(const uint8_t *p) {
    uint64_t codes;
    memcpy(&codes, p, sizeof codes);
    return codes;
}

MX8_INLINE uint64_t load_codes_part(const uint8_t *p, int n) {
    uint64_t codes = 0;
    for (int i = 0; i < n; i++) codes |= (uint64_t)p[i] << (8 * i);
    return codes;
}

MX8_INLINE vf vf_load_e4m3(const uint8_t *p) { return vf_from_e4m3(load_codes(p)); }
MX8_INLINE vf vf_load_e4m3_part(const uint8_t *p, int n) { return vf_from_e4m3(load_codes_part(p, n)); }
MX8_INLINE vf vf_load_e5m2(const uint8_t *p) { return vf_from_e5m2(load_codes(p)); }
MX8_INLINE vf vf_load_e5m2_part(const uint8_t *p, int n) { return vf_from_e5m2(load_codes_part(p, n)); }

MX8_INLINE void vf_transpose(vf r[8]) {
    vf t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

MX8_INLINE vf vf_swap_pairs(vf v) { return _mm256_permute_ps(v, 0xB1); }
MX8_INLINE vf vf_even(vf v) { return _mm256_moveldup_ps(v); }
MX8_INLINE vf vf_odd(vf v) { return _mm256_movehdup_ps(v); }

MX8_INLINE float vf_sum(vf v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

MX8_INLINE float vf_max_all(vf v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

/* ---- 16-bit lanes ---- */

typedef __m256i vh;

MX8_INLINE vh vh_set(int x) { return _mm256_set1_epi16((int16_t)x); }
MX8_INLINE vh vh_load(const uint16_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
MX8_INLINE void vh_store(uint16_t *p, vh v) { _mm256_storeu_si256((__m256i *)(void *)p, v); }
MX8_INLINE void vh_store_lower(uint16_t *p, vh v) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(v));
}
MX8_INLINE vh vh_and(vh a, vh b) { return _mm256_and_si256(a, b); }
MX8_INLINE vh vh_or(vh a, vh b) { return _mm256_or_si256(a, b); }
MX8_INLINE vh vh_add(vh a, vh b) { return _mm256_add_epi16(a, b); }
MX8_INLINE vh vh_sub(vh a, vh b) { return _mm256_sub_epi16(a, b); }
MX8_INLINE vh vh_max(vh a, vh b) { return _mm256_max_epu16(a, b); }
MX8_INLINE vh vh_min(vh a, vh b) { return _mm256_min_epu16(a, b); }
MX8_INLINE vh vh_subs(vh a, vh b) { return _mm256_subs_epu16(a, b); }
MX8_INLINE vh vh_gt(vh a, vh b) { return _mm256_cmpgt_epi16(a, b); }
MX8_INLINE int vh_is_zero(vh v) { return _mm256_testz_si256(v, v); }
#define vh_shl(v, n) _mm256_slli_epi16(v, n)
#define vh_shr(v, n) _mm256_srli_epi16(v, n)

MX8_INLINE vh vh_keep(vh v) {
    __asm__("" : "+x"(v));
    return v;
}
MX8_INLINE vi round_odd(vi v) { return vi_or(vi_shr(v, 16), _mm256_min_epu16(v, vi_set(1))); }
MX8_INLINE vh vh_round_odd(vi a, vi b) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(round_odd(a), round_odd(b)), 0xD8);
}

/* Three rounds inside the 128-bit halves, then the halves. */
MX8_INLINE vh vh_max_each(const vh v[8]) {
    vh a[4], b[2];
    for (int i = 0; i < 4; i++)
        a[i] = vh_max(_mm256_unpacklo_epi16(v[i], v[4 + i]), _mm256_unpackhi_epi16(v[i], v[4 + i]));
    for (int i = 0; i < 2; i++)
        b[i] = vh_max(_mm256_unpacklo_epi16(a[i], a[2 + i]), _mm256_unpackhi_epi16(a[i], a[2 + i]));
    vh c = vh_max(_mm256_unpacklo_epi16(b[0], b[1]), _mm256_unpackhi_epi16(b[0], b[1]));
    return _mm256_zextsi128_si256(_mm_max_epu16(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1)));
}

MX8_INLINE void stream_fence(void) { _mm_sfence(); }

#endif
