/* The vector layer on AVX-512 F, BW, VL, DQ: sixteen lanes, truth values in mask registers. See simd.h. */
#ifndef MX8_KERNELS_CPU_SIMD_AVX512_H
#define MX8_KERNELS_CPU_SIMD_AVX512_H

#include <immintrin.h>

#define MX8_VF 16
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

MX8_INLINE vm vm_first(int n) { return (vm)((1u << n) - 1); }
MX8_INLINE vm vm_and(vm a, vm b) { return (vm)(a & b); }
MX8_INLINE vm vm_or(vm a, vm b) { return (vm)(a | b); }
MX8_INLINE int vm_any(vm m) { return m != 0; }

MX8_INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
MX8_INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
MX8_INLINE void vi_store(int32_t *p, vi v) { _mm512_storeu_si512(p, v); }
MX8_INLINE vi vi_load_part(const int32_t *p, int n) { return _mm512_maskz_loadu_epi32(vm_first(n), p); }
MX8_INLINE void vi_store_part(int32_t *p, vi v, int n) { _mm512_mask_storeu_epi32(p, vm_first(n), v); }
MX8_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
MX8_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
MX8_INLINE vi vi_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
MX8_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
MX8_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
MX8_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
MX8_INLINE vi vi_andnot(vi a, vi b) { return _mm512_andnot_si512(a, b); }
MX8_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
MX8_INLINE vi vi_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
MX8_INLINE vm vi_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask(a, b); }
MX8_INLINE vm vi_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask(a, b); }
MX8_INLINE vi vi_select(vm m, vi a, vi b) { return _mm512_mask_mov_epi32(b, m, a); }
#define vi_shl(v, n) _mm512_slli_epi32(v, n) /* macros: the count must reach the instruction as a constant */
#define vi_shr(v, n) _mm512_srli_epi32(v, n)
#define vi_sar(v, n) _mm512_srai_epi32(v, n)

MX8_INLINE vi vi_load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
MX8_INLINE vi vi_load_u8_part(const uint8_t *p, int n) {
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(vm_first(n), p));
}
MX8_INLINE void vi_store_u8(uint8_t *p, vi v) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(v));
}
MX8_INLINE void vi_store_u8_part(uint8_t *p, vi v, int n) {
    _mm_mask_storeu_epi8(p, vm_first(n), _mm512_cvtepi32_epi8(v));
}

MX8_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
MX8_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
MX8_INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
MX8_INLINE vf vf_load_part(const float *p, int n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
MX8_INLINE void vf_store_part(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, vm_first(n), v); }
MX8_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
MX8_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
MX8_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
MX8_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
MX8_INLINE vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
MX8_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
MX8_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
MX8_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
MX8_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
MX8_INLINE vi vf_bits(vf v) { return _mm512_castps_si512(v); }
MX8_INLINE vf vf_from_bits(vi v) { return _mm512_castsi512_ps(v); }
MX8_INLINE vf vf_from_int(vi v) { return _mm512_cvtepi32_ps(v); }
MX8_INLINE vi vi_from_float(vf v) { return _mm512_cvtps_epi32(v); }
MX8_INLINE vf vf_abs(vf v) { return _mm512_abs_ps(v); }
MX8_INLINE vf vf_neg(vf v) { return _mm512_xor_ps(_mm512_set1_ps(-0.0f), v); }
MX8_INLINE vm vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
MX8_INLINE vm vf_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
MX8_INLINE vm vf_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
MX8_INLINE vm vf_is_nan(vf v) { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q); }
MX8_INLINE vf vf_select(vm m, vf a, vf b) { return _mm512_mask_mov_ps(b, m, a); }

MX8_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return vf_from_bits(vi_shl(_mm512_cvtepu16_epi32(h), 16));
}
MX8_INLINE vf vf_load_bf16_part(const uint16_t *p, int n) {
    return vf_from_bits(vi_shl(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(vm_first(n), p)), 16));
}

MX8_INLINE __m256i vf_pack_bf16(vf v) {
    vi u = vf_bits(v), high = vi_shr(u, 16);
    vi even = vi_add(vi_set(0x7FFF), vi_and(high, vi_set(1)));
    vi rounded = vi_shr(vi_add(u, even), 16);
    return _mm512_cvtepi32_epi16(vi_select(vf_is_nan(v), vi_or(high, vi_set(0x40)), rounded));
}

MX8_INLINE void vf_store_bf16(uint16_t *p, vf v) { _mm256_storeu_si256((__m256i *)(void *)p, vf_pack_bf16(v)); }
MX8_INLINE void vf_store_bf16_part(uint16_t *p, vf v, int n) {
    _mm256_mask_storeu_epi16(p, vm_first(n), vf_pack_bf16(v));
}

/* An e4m3 code is a half's exponent and mantissa at another bias: 2^8 apart, subnormals included. */
MX8_INLINE vf vf_from_e4m3(__m128i codes) {
    __m256i h = _mm256_cvtepu8_epi16(codes), top = _mm256_set1_epi16(0x3F80);
    __m256i magnitude = _mm256_and_si256(_mm256_slli_epi16(h, 7), top);
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, top), _mm256_set1_epi16(0x7C00));
    __m256i sign = _mm256_slli_epi16(_mm256_srli_epi16(h, 7), 15);
    __m256i half = _mm256_or_si256(_mm256_or_si256(magnitude, sign), nan);
    return vf_mul(_mm512_cvtph_ps(half), vf_set(256.0f));
}

/* An e5m2 code is the upper byte of a half. */
MX8_INLINE vf vf_from_e5m2(__m128i codes) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
}

MX8_INLINE __m128i load_codes(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
MX8_INLINE __m128i load_codes_part(const uint8_t *p, int n) { return _mm_maskz_loadu_epi8(vm_first(n), p); }

MX8_INLINE vf vf_load_e4m3(const uint8_t *p) { return vf_from_e4m3(load_codes(p)); }
MX8_INLINE vf vf_load_e4m3_part(const uint8_t *p, int n) { return vf_from_e4m3(load_codes_part(p, n)); }
MX8_INLINE vf vf_load_e5m2(const uint8_t *p) { return vf_from_e5m2(load_codes(p)); }
MX8_INLINE vf vf_load_e5m2_part(const uint8_t *p, int n) { return vf_from_e5m2(load_codes_part(p, n)); }

/* 4x4 inside the 128-bit quarters, then the 4x4 of quarters in two rounds. */
MX8_INLINE void vf_transpose(vf r[16]) {
    vf t[16], u[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) { /* u[4i+q]: column 4s+q of rows 4i..4i+3 in quarter s */
        u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
        u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
    }
    for (int q = 0; q < 4; q++) {
        vf even01 = _mm512_shuffle_f32x4(u[q], u[4 + q], 0x88), odd01 = _mm512_shuffle_f32x4(u[q], u[4 + q], 0xDD);
        vf even23 = _mm512_shuffle_f32x4(u[8 + q], u[12 + q], 0x88);
        vf odd23 = _mm512_shuffle_f32x4(u[8 + q], u[12 + q], 0xDD);
        r[q] = _mm512_shuffle_f32x4(even01, even23, 0x88);
        r[8 + q] = _mm512_shuffle_f32x4(even01, even23, 0xDD);
        r[4 + q] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
        r[12 + q] = _mm512_shuffle_f32x4(odd01, odd23, 0xDD);
    }
}

MX8_INLINE vf vf_swap_pairs(vf v) { return _mm512_permute_ps(v, 0xB1); }
MX8_INLINE vf vf_even(vf v) { return _mm512_moveldup_ps(v); }
MX8_INLINE vf vf_odd(vf v) { return _mm512_movehdup_ps(v); }

MX8_INLINE float vf_sum(vf v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

MX8_INLINE float vf_max_all(vf v) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

/* ---- 16-bit lanes ---- */

typedef __m512i vh;

MX8_INLINE vh vh_set(int x) { return _mm512_set1_epi16((int16_t)x); }
MX8_INLINE vh vh_load(const uint16_t *p) { return _mm512_loadu_si512(p); }
MX8_INLINE void vh_store(uint16_t *p, vh v) { _mm512_storeu_si512(p, v); }
MX8_INLINE void vh_store_lower(uint16_t *p, vh v) {
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_castsi512_si256(v));
}
MX8_INLINE vh vh_and(vh a, vh b) { return _mm512_and_si512(a, b); }
MX8_INLINE vh vh_or(vh a, vh b) { return _mm512_or_si512(a, b); }
MX8_INLINE vh vh_add(vh a, vh b) { return _mm512_add_epi16(a, b); }
MX8_INLINE vh vh_sub(vh a, vh b) { return _mm512_sub_epi16(a, b); }
MX8_INLINE vh vh_max(vh a, vh b) { return _mm512_max_epu16(a, b); }
MX8_INLINE vh vh_min(vh a, vh b) { return _mm512_min_epu16(a, b); }
MX8_INLINE vh vh_subs(vh a, vh b) { return _mm512_subs_epu16(a, b); }
MX8_INLINE vh vh_gt(vh a, vh b) { return _mm512_movm_epi16(_mm512_cmpgt_epi16_mask(a, b)); }
MX8_INLINE int vh_is_zero(vh v) { return _mm512_test_epi32_mask(v, v) == 0; }
#define vh_shl(v, n) _mm512_slli_epi16(v, n)
#define vh_shr(v, n) _mm512_srli_epi16(v, n)

MX8_INLINE vh vh_keep(vh v) {
    __asm__("" : "+v"(v));
    return v;
}
MX8_INLINE vi round_odd(vi v) { return vi_or(vi_shr(v, 16), _mm512_min_epu16(v, vi_set(1))); }
MX8_INLINE vh vh_round_odd(vi a, vi b) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7); /* packs work inside the 128-bit quarters */
    return _mm512_permutexvar_epi64(order, _mm512_packus_epi32(round_odd(a), round_odd(b)));
}

/* The largest of the 128-bit quarters. */
MX8_INLINE __m128i max_quarters(vh v) {
    __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    return _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* Three rounds inside the quarters, then the quarters. */
MX8_INLINE vh vh_max_each(const vh v[16]) {
    vh a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = vh_max(_mm512_unpacklo_epi16(v[i], v[8 + i]), _mm512_unpackhi_epi16(v[i], v[8 + i]));
    for (int i = 0; i < 4; i++)
        b[i] = vh_max(_mm512_unpacklo_epi16(a[i], a[4 + i]), _mm512_unpackhi_epi16(a[i], a[4 + i]));
    for (int i = 0; i < 2; i++)
        c[i] = vh_max(_mm512_unpacklo_epi16(b[i], b[2 + i]), _mm512_unpackhi_epi16(b[i], b[2 + i]));
    __m128i low = max_quarters(_mm512_unpacklo_epi16(c[0], c[1])); /* c[p] has vectors p, p + 2, p + 4 and so on */
    __m128i high = max_quarters(_mm512_unpackhi_epi16(c[0], c[1]));
    return _mm512_zextsi256_si512(_mm256_set_m128i(high, low));
}

MX8_INLINE void stream_fence(void) { _mm_sfence(); }

#endif
