/* The vector layer in plain C: eight lanes as an array, every operation a loop that the compiler may vectorise with
 * whatever the baseline has. It exists so that every kernel runs anywhere and can be checked against the other two. */
#ifndef MX8_KERNELS_CPU_SIMD_SCALAR_H
#define MX8_KERNELS_CPU_SIMD_SCALAR_H

#include <math.h>

#define MX8_VF 8
typedef struct { float v[MX8_VF]; } vf;
typedef struct { int32_t v[MX8_VF]; } vi;
typedef struct { int32_t v[MX8_VF]; } vm; /* a true lane is 1 */

/* A function body: lane i of the result is `expression`. */
#define MX8_LANES(type, expression)                            \
    type r;                                                    \
    for (int i = 0; i < MX8_VF; i++) r.v[i] = (expression);    \
    return r

MX8_INLINE vm vm_first(int n) { MX8_LANES(vm, i < n); }
MX8_INLINE vm vm_and(vm a, vm b) { MX8_LANES(vm, a.v[i] & b.v[i]); }
MX8_INLINE vm vm_or(vm a, vm b) { MX8_LANES(vm, a.v[i] | b.v[i]); }
MX8_INLINE int vm_any(vm m) {
    int32_t any = 0;
    for (int i = 0; i < MX8_VF; i++) any |= m.v[i];
    return any;
}

MX8_INLINE vi vi_set(int32_t x) { MX8_LANES(vi, x); }
MX8_INLINE vi vi_load(const int32_t *p) { MX8_LANES(vi, p[i]); }
MX8_INLINE vi vi_load_part(const int32_t *p, int n) { MX8_LANES(vi, i < n ? p[i] : 0); }
MX8_INLINE void vi_store_part(int32_t *p, vi v, int n) {
    for (int i = 0; i < n; i++) p[i] = v.v[i];
}
MX8_INLINE void vi_store(int32_t *p, vi v) { vi_store_part(p, v, MX8_VF); }
MX8_INLINE vi vi_add(vi a, vi b) { MX8_LANES(vi, (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i])); }
MX8_INLINE vi vi_sub(vi a, vi b) { MX8_LANES(vi, (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i])); }
MX8_INLINE vi vi_mul(vi a, vi b) { MX8_LANES(vi, (int32_t)((uint32_t)a.v[i] * (uint32_t)b.v[i])); }
MX8_INLINE vi vi_and(vi a, vi b) { MX8_LANES(vi, a.v[i] & b.v[i]); }
MX8_INLINE vi vi_or(vi a, vi b) { MX8_LANES(vi, a.v[i] | b.v[i]); }
MX8_INLINE vi vi_xor(vi a, vi b) { MX8_LANES(vi, a.v[i] ^ b.v[i]); }
MX8_INLINE vi vi_andnot(vi a, vi b) { MX8_LANES(vi, ~a.v[i] & b.v[i]); }
MX8_INLINE vi vi_max(vi a, vi b) { MX8_LANES(vi, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
MX8_INLINE vi vi_min(vi a, vi b) { MX8_LANES(vi, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
MX8_INLINE vm vi_gt(vi a, vi b) { MX8_LANES(vm, a.v[i] > b.v[i]); }
MX8_INLINE vm vi_eq(vi a, vi b) { MX8_LANES(vm, a.v[i] == b.v[i]); }
MX8_INLINE vi vi_select(vm m, vi a, vi b) { MX8_LANES(vi, m.v[i] ? a.v[i] : b.v[i]); }
MX8_INLINE vi vi_shl(vi a, int n) { MX8_LANES(vi, (int32_t)((uint32_t)a.v[i] << n)); }
MX8_INLINE vi vi_shr(vi a, int n) { MX8_LANES(vi, (int32_t)((uint32_t)a.v[i] >> n)); }
MX8_INLINE vi vi_sar(vi a, int n) { MX8_LANES(vi, a.v[i] >> n); }

MX8_INLINE vi vi_load_u8(const uint8_t *p) { MX8_LANES(vi, p[i]); }
MX8_INLINE vi vi_load_u8_part(const uint8_t *p, int n) { MX8_LANES(vi, i < n ? p[i] : 0); }
MX8_INLINE void vi_store_u8_part(uint8_t *p, vi v, int n) {
    for (int i = 0; i < n; i++) p[i] = (uint8_t)v.v[i];
}
MX8_INLINE void vi_store_u8(uint8_t *p, vi v) { vi_store_u8_part(p, v, MX8_VF); }

MX8_INLINE vf vf_set(float x) { MX8_LANES(vf, x); }
MX8_INLINE vf vf_load(const float *p) { MX8_LANES(vf, p[i]); }
MX8_INLINE vf vf_load_part(const float *p, int n) { MX8_LANES(vf, i < n ? p[i] : 0.0f); }
MX8_INLINE void vf_store_part(float *p, vf v, int n) {
    for (int i = 0; i < n; i++) p[i] = v.v[i];
}
MX8_INLINE void vf_store(float *p, vf v) { vf_store_part(p, v, MX8_VF); }
MX8_INLINE vi vf_bits(vf v) {
    vi r;
    memcpy(&r, &v, sizeof r);
    return r;
}
MX8_INLINE vf vf_from_bits(vi v) {
    vf r;
    memcpy(&r, &v, sizeof r);
    return r;
}
MX8_INLINE vf vf_add(vf a, vf b) { MX8_LANES(vf, a.v[i] + b.v[i]); }
MX8_INLINE vf vf_sub(vf a, vf b) { MX8_LANES(vf, a.v[i] - b.v[i]); }
MX8_INLINE vf vf_mul(vf a, vf b) { MX8_LANES(vf, a.v[i] * b.v[i]); }
MX8_INLINE vf vf_div(vf a, vf b) { MX8_LANES(vf, a.v[i] / b.v[i]); }
MX8_INLINE vf vf_sqrt(vf a) { MX8_LANES(vf, sqrtf(a.v[i])); }
MX8_INLINE vf vf_fma(vf a, vf b, vf c) { MX8_LANES(vf, a.v[i] * b.v[i] + c.v[i]); } /* fmaf would be a library call */
MX8_INLINE vf vf_fnma(vf a, vf b, vf c) { MX8_LANES(vf, c.v[i] - a.v[i] * b.v[i]); }
MX8_INLINE vf vf_max(vf a, vf b) { MX8_LANES(vf, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
MX8_INLINE vf vf_min(vf a, vf b) { MX8_LANES(vf, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
MX8_INLINE vf vf_from_int(vi v) { MX8_LANES(vf, (float)v.v[i]); }
MX8_INLINE vf vf_abs(vf v) { return vf_from_bits(vi_and(vf_bits(v), vi_set(0x7FFFFFFF))); }
MX8_INLINE vf vf_neg(vf v) { return vf_from_bits(vi_xor(vf_bits(v), vi_set(INT32_MIN))); }
MX8_INLINE vm vf_lt(vf a, vf b) { MX8_LANES(vm, a.v[i] < b.v[i]); }
MX8_INLINE vm vf_le(vf a, vf b) { MX8_LANES(vm, a.v[i] <= b.v[i]); }
MX8_INLINE vm vf_eq(vf a, vf b) { MX8_LANES(vm, a.v[i] == b.v[i]); }
MX8_INLINE vm vf_is_nan(vf v) { MX8_LANES(vm, v.v[i] != v.v[i]); }
MX8_INLINE vf vf_select(vm m, vf a, vf b) { MX8_LANES(vf, m.v[i] ? a.v[i] : b.v[i]); }

/* As the hardware's conversion: what no int32 holds, NaN included, gives INT32_MIN. The addition of 1.5 * 2^23 rounds
 * to nearest even in the default mode; values from 2^22 on are integers, or close enough to take the other way. */
MX8_INLINE int32_t round_to_int32(float x) {
    if (!(x >= -2147483648.0f && x < 2147483648.0f)) return INT32_MIN;
    if (x >= 4194304.0f || x <= -4194304.0f) return (int32_t)rintf(x);
    return (int32_t)((x + 12582912.0f) - 12582912.0f);
}
MX8_INLINE vi vi_from_float(vf v) { MX8_LANES(vi, round_to_int32(v.v[i])); }

MX8_INLINE vf vf_load_bf16_part(const uint16_t *p, int n) {
    vi bits = vi_set(0);
    for (int i = 0; i < n; i++) bits.v[i] = (int32_t)((uint32_t)p[i] << 16);
    return vf_from_bits(bits);
}
MX8_INLINE vf vf_load_bf16(const uint16_t *p) { return vf_load_bf16_part(p, MX8_VF); }

MX8_INLINE void vf_store_bf16_part(uint16_t *p, vf v, int n) {
    vi bits = vf_bits(v);
    for (int i = 0; i < n; i++) {
        uint32_t u = (uint32_t)bits.v[i], rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16;
        p[i] = (uint16_t)((u & 0x7FFFFFFF) > 0x7F800000 ? u >> 16 | 0x40 : rounded);
    }
}
MX8_INLINE void vf_store_bf16(uint16_t *p, vf v) { vf_store_bf16_part(p, v, MX8_VF); }

/* A code's exponent and mantissa moved to a float's place are off by the difference of the biases, as a factor. */
MX8_INLINE float f32_from_e4m3(uint32_t code) {
    if ((code & 0x7F) == 0x7F) return NAN;
    uint32_t bits = (code & 0x80) << 24 | (code & 0x7F) << 20;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f * 0x1p120f;
}

MX8_INLINE float f32_from_e5m2(uint32_t code) {
    if ((code & 0x7F) > 0x7C) return NAN;
    uint32_t bits = (code & 0x80) << 24 | (code & 0x7F) << 21;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (code & 0x7F) == 0x7C ? f * INFINITY : f * 0x1p112f;
}

MX8_INLINE vf vf_load_e4m3_part(const uint8_t *p, int n) { MX8_LANES(vf, i < n ? f32_from_e4m3(p[i]) : 0.0f); }
MX8_INLINE vf vf_load_e4m3(const uint8_t *p) { return vf_load_e4m3_part(p, MX8_VF); }
MX8_INLINE vf vf_load_e5m2_part(const uint8_t *p, int n) { MX8_LANES(vf, i < n ? f32_from_e5m2(p[i]) : 0.0f); }
MX8_INLINE vf vf_load_e5m2(const uint8_t *p) { return vf_load_e5m2_part(p, MX8_VF); }

MX8_INLINE void vf_transpose(vf r[MX8_VF]) {
    for (int i = 0; i < MX8_VF; i++)
        for (int k = 0; k < i; k++) {
            float f = r[i].v[k];
            r[i].v[k] = r[k].v[i];
            r[k].v[i] = f;
        }
}

MX8_INLINE vf vf_swap_pairs(vf v) { MX8_LANES(vf, v.v[i ^ 1]); }
MX8_INLINE vf vf_even(vf v) { MX8_LANES(vf, v.v[i & ~1]); }
MX8_INLINE vf vf_odd(vf v) { MX8_LANES(vf, v.v[i | 1]); }

MX8_INLINE float vf_sum(vf v) {
    for (int half = MX8_VF / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v.v[i] += v.v[i + half];
    return v.v[0];
}
MX8_INLINE float vf_max_all(vf v) {
    for (int half = MX8_VF / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v.v[i] = v.v[i] > v.v[i + half] ? v.v[i] : v.v[i + half];
    return v.v[0];
}

/* ---- 16-bit lanes ---- */

typedef struct { uint16_t v[2 * MX8_VF]; } vh;

#define MX8_HALF_LANES(expression)                                         \
    vh r;                                                                  \
    for (int i = 0; i < 2 * MX8_VF; i++) r.v[i] = (uint16_t)(expression);  \
    return r

MX8_INLINE vh vh_set(int x) { MX8_HALF_LANES(x); }
MX8_INLINE vh vh_load(const uint16_t *p) { MX8_HALF_LANES(p[i]); }
MX8_INLINE void vh_store(uint16_t *p, vh v) { memcpy(p, &v, sizeof v); }
MX8_INLINE vh vh_and(vh a, vh b) { MX8_HALF_LANES(a.v[i] & b.v[i]); }
MX8_INLINE vh vh_or(vh a, vh b) { MX8_HALF_LANES(a.v[i] | b.v[i]); }
MX8_INLINE vh vh_add(vh a, vh b) { MX8_HALF_LANES(a.v[i] + b.v[i]); }
MX8_INLINE vh vh_sub(vh a, vh b) { MX8_HALF_LANES(a.v[i] - b.v[i]); }
MX8_INLINE vh vh_max(vh a, vh b) { MX8_HALF_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
MX8_INLINE vh vh_min(vh a, vh b) { MX8_HALF_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
MX8_INLINE vh vh_gt(vh a, vh b) { MX8_HALF_LANES((int16_t)a.v[i] > (int16_t)b.v[i] ? 0xFFFF : 0); }
MX8_INLINE int vh_is_zero(vh v) {
    int any = 0;
    for (int i = 0; i < 2 * MX8_VF; i++) any |= v.v[i];
    return any == 0;
}
MX8_INLINE vh vh_subs(vh a, vh b) { MX8_HALF_LANES(a.v[i] > b.v[i] ? a.v[i] - b.v[i] : 0); }
MX8_INLINE vh vh_shl(vh a, int n) { MX8_HALF_LANES(a.v[i] << n); }
MX8_INLINE vh vh_shr(vh a, int n) { MX8_HALF_LANES(a.v[i] >> n); }
MX8_INLINE uint32_t round_odd(int32_t bits) { return (uint32_t)bits >> 16 | ((uint32_t)bits << 16 != 0); }
MX8_INLINE vh vh_keep(vh v) { return v; }
MX8_INLINE vh vh_round_odd(vi a, vi b) { MX8_HALF_LANES(round_odd(i < MX8_VF ? a.v[i] : b.v[i - MX8_VF])); }
MX8_INLINE void vh_store_lower(uint16_t *p, vh v) { memcpy(p, &v, sizeof v / 2); }
MX8_INLINE vh vh_max_each(const vh v[MX8_VF]) {
    vh r = vh_set(0);
    for (int i = 0; i < MX8_VF; i++)
        for (int l = 0; l < 2 * MX8_VF; l++) r.v[i] = v[i].v[l] > r.v[i] ? v[i].v[l] : r.v[i];
    return r;
}

MX8_INLINE void stream_fence(void) {}

#endif
