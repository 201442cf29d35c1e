/* The vector layer: kernel bodies (*.inl) are written once against it and compiled once per instruction set.
 *
 * Types: vf holds MX8_VF floats, vi as many 32-bit integers, vm as many truth values. They are typedefs because they
 * stand for what the compiler calls __m256 or __m512; nothing else in mx8 is one. MX8_VF is 16 with AVX-512, else 8:
 * the portable layer emulates eight lanes with plain loops, so that one body serves all three.
 *
 * Each simd_<isa>.h provides, with p any address and n in [0, MX8_VF]:
 *   vf_set(x)  vf_load(p)  vf_store(p,v)  vf_load_part(p,n)  vf_store_part(p,v,n)     floats; other lanes read as 0
 *   vf_load_bf16(p)  vf_load_bf16_part(p,n)                                           bf16 widened, exact
 *   vf_store_bf16(p,v)  vf_store_bf16_part(p,v,n)                                     nearest even, NaN stays quiet NaN
 *   vf_add sub mul div sqrt abs neg, vf_fma(a,b,c) = a*b+c, vf_fnma(a,b,c) = c-a*b    fused where the CPU can
 *   vf_max(a,b)  vf_min(a,b)                                                          b when either is NaN
 *   vf_lt le eq (a,b), vf_is_nan(v), vf_select(m,a,b) = m ? a : b
 *   vf_bits(v) -> vi, vf_from_bits(v), vf_from_int(v), vi_from_float(v)               the last rounds to nearest even
 *   vi_set load store load_part store_part add sub mul and or xor andnot(a,b) = ~a & b, max min (signed)
 *   vi_shl(v,n) vi_shr(v,n) vi_sar(v,n) by a constant, vi_gt vi_eq (a,b), vi_select
 *   vi_load_u8(p)  vi_load_u8_part(p,n)  vi_store_u8(p,v)  vi_store_u8_part(p,v,n)    bytes; a store keeps the low byte
 *   vf_load_e4m3(p)  vf_load_e5m2(p) and their _part forms                            codes to values, exact
 *   vf_transpose(r)                                                                   MX8_VF vectors, in place
 *   vh: 2 MX8_VF unsigned 16-bit lanes; vh_set load store and or add sub subs (not below 0) max min, vh_gt signed, all
 *   ones where true, vh_shl vh_shr by a constant, vh_is_zero(v)
 *   vh_round_odd(a,b)      bits of 2 MX8_VF floats as bf16: cut, and odd where something was lost (quantize_cell.inl)
 *   vh_max_each(v)  vh_store_lower(p,v)       largest lane of each of MX8_VF vectors, zeros behind; the lower half
 *   vb: 32 bytes; vb_set or add min subs (not below 0) equal store, vb_is_zero(v), vb_stream(p,v) past the caches, p a
 *   multiple of 32, stream_fence() afterwards
 *   vb_pack(v)  vb_pack_signs(v,s)      32 halves below 0x8000: low bytes, 255 from there on; s, 0x80, where negative; in
 *   the order of vb_lane(p)
 *   vh_keep  vb_keep                    a constant that is held rather than made anew after each call that might happen
 *   vb_load_lanes  vb_store_lanes  vb_stream_lanes                                    memory has the lanes in order
 *   vb_gather8(to,r)       8 rows of 32 to groups of 8 that stood below each other; vb_join4 four of those to 32
 *   vm_and vm_or vm_any vm_first(n)
 *   vf_swap_pairs(v)  vf_even(v)  vf_odd(v)                                           lane i takes i^1, i & ~1, i | 1
 *   vf_sum(v)  vf_max_all(v)                                                          halves folded in order
 */
#ifndef MX8_KERNELS_CPU_SIMD_H
#define MX8_KERNELS_CPU_SIMD_H

#include <stdint.h>
#include <string.h>
#include "mx8/tensor.h"

/* Vector operations must end up inside the loops that use them. The emulated ones are loops themselves: there the
 * compiler chooses, because inlining them all takes it minutes. */
#if defined(MX8_ISA_SCALAR)
#define MX8_INLINE static inline
#else
#define MX8_INLINE static inline __attribute__((always_inline))
#endif

#if defined(MX8_ISA_AVX512)
#include "kernels/cpu/simd_avx512.h"
#elif defined(MX8_ISA_AVX2)
#include "kernels/cpu/simd_avx2.h"
#else
#include "kernels/cpu/simd_scalar.h"
#endif

#include "kernels/cpu/simd_bytes.h"

/* Element i of an f32 or bf16 array. Called with a constant dtype from an inlined body, the choice costs nothing. */
MX8_INLINE vf vf_load_as(const void *p, int64_t i, int32_t dtype) {
    return dtype == MX8_BF16 ? vf_load_bf16((const uint16_t *)p + i) : vf_load((const float *)p + i);
}

MX8_INLINE vf vf_load_part_as(const void *p, int64_t i, int32_t dtype, int n) {
    return dtype == MX8_BF16 ? vf_load_bf16_part((const uint16_t *)p + i, n) : vf_load_part((const float *)p + i, n);
}

MX8_INLINE void vf_store_as(void *p, int64_t i, int32_t dtype, vf v) {
    if (dtype == MX8_BF16)
        vf_store_bf16((uint16_t *)p + i, v);
    else
        vf_store((float *)p + i, v);
}

MX8_INLINE void vf_store_part_as(void *p, int64_t i, int32_t dtype, vf v, int n) {
    if (dtype == MX8_BF16)
        vf_store_bf16_part((uint16_t *)p + i, v, n);
    else
        vf_store_part((float *)p + i, v, n);
}

/* Lanes that a step at i of a loop over [0, n) has: MX8_VF, or what is left. */
MX8_INLINE int vf_lanes(int64_t i, int64_t n) { return n - i < MX8_VF ? (int)(n - i) : MX8_VF; }

MX8_INLINE float f32_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

MX8_INLINE uint32_t f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

MX8_INLINE float f32_from_bf16(uint16_t h) { return f32_from_bits((uint32_t)h << 16); }

MX8_INLINE uint16_t bf16_from_f32(float f) {
    uint32_t u = f32_bits(f);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

MX8_INLINE float f32_load_as(const void *p, int64_t i, int32_t dtype) {
    return dtype == MX8_BF16 ? f32_from_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

MX8_INLINE void f32_store_as(void *p, int64_t i, int32_t dtype, float f) {
    if (dtype == MX8_BF16)
        ((uint16_t *)p)[i] = bf16_from_f32(f);
    else
        ((float *)p)[i] = f;
}

/* e^r for x = n ln2 + r with |r| <= ln2/2, and n: the polynomial of Cephes' expf. */
MX8_INLINE vf vf_exp_parts(vf x, vi *n) {
    *n = vi_from_float(vf_mul(x, vf_set(1.44269504f)));
    vf nf = vf_from_int(*n);
    vf r = vf_fnma(nf, vf_set(0.693359375f), x);
    r = vf_fnma(nf, vf_set(-2.12194440e-4f), r);
    vf p = vf_fma(vf_set(1.9875691500e-4f), r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    return vf_add(vf_fma(p, vf_mul(r, r), r), vf_set(1.0f));
}

/* e^x within 2 ulp, subnormal results included; -Inf gives 0, overflow Inf, NaN NaN. 2^n in two factors, so that
 * neither leaves the normal range. */
MX8_INLINE vf vf_exp(vf x) {
    vi n, bias = vi_set(127);
    vf p = vf_exp_parts(vf_max(vf_set(-104.0f), vf_min(vf_set(89.0f), x)), &n);
    vi half = vi_sar(n, 1);
    p = vf_mul(p, vf_from_bits(vi_shl(vi_add(half, bias), 23)));
    return vf_mul(p, vf_from_bits(vi_shl(vi_add(vi_sub(n, half), bias), 23)));
}

/* The same bits where results are normal: for x from -87, and 88 stands for what is above it. NaN stays. */
MX8_INLINE vf vf_exp_normal(vf x) {
    vi n;
    vf p = vf_exp_parts(vf_min(vf_set(88.0f), x), &n);
    return vf_from_bits(vi_add(vf_bits(p), vi_shl(n, 23)));
}

#endif
