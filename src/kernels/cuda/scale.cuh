// Scale bytes and 8-bit codes on the device: the same bits as src/formats/scale.c and elements.c.
#pragma once
#include "convert.cuh"
#include "kernels/kernels.h"

namespace mx8 {
// amax as float bits without sign: they order as the values do, Inf above every number and NaN above Inf.
__device__ __forceinline__ uint32_t scale_byte(uint32_t bits, int rule, bool e5m2) {
    if (bits >> 23 == 255) return 255;
    if (rule == MX8_SCALE_EVEN) {
        bits += 1u << (22 - (e5m2 ? 2 : 3));
        if (bits >> 23 == 255) return 255;
    }
    int byte = (int)(bits >> 23) - (e5m2 ? 15 : 8);
    const uint32_t mantissa = bits & 0x7FFFFFu;
    if (rule == MX8_SCALE_CEIL) byte += mantissa > 0;
    if (rule == MX8_SCALE_RCEIL) byte += mantissa > 0x600000u && bits != (e5m2 ? 0x07E00001u : 0x04600001u);
    return byte > 0 ? (uint32_t)byte : 0;
}
__device__ __forceinline__ float inverse_scale(uint32_t byte) { return decode_e8m0(254 - byte & 255); }

// A tile with byte 255 holds 0x7F throughout. `v` is already multiplied by the inverse scale.
__device__ __forceinline__ uint32_t encode_f8(float v, uint32_t byte, bool e5m2) {
    if (byte == 255) return 0x7F;
    return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}
// Two values to two e4m3 codes, the first in the low byte; finite values of a finite tile only.
__device__ __forceinline__ uint32_t encode_e4m3x2(float low, float high) {
    uint16_t r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ bool is_clipped(float v, bool e5m2) {
    const float a = fabsf(v);
    return e5m2 ? a >= 61440.f : a > 464.f;
}
} // namespace mx8
