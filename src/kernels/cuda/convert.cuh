// Number formats on the device: the same bits as src/formats.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

namespace mx8 {
__device__ __forceinline__ float decode_e8m0(uint32_t byte) { // 255 NaN, 0 the subnormal 2^-127
    return __uint_as_float(byte == 255 ? 0x7FC00000u : byte == 0 ? 0x00400000u : byte << 23);
}
// Exact in fp32, NaN kept: half holds every e4m3 and e5m2 value.
__device__ __forceinline__ float decode_f8(uint8_t code, bool e5m2) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, e5m2 ? __NV_E5M2 : __NV_E4M3)));
}
// e^x within 2^-21 of itself; below 2^-126 it is 0, which saves a comparison and two products. The stored form of a value and
// the form that goes straight into a quantizer must both use these.
__device__ __forceinline__ float fast_exp(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.4426950408889634f));
    return r;
}
__device__ __forceinline__ float fast_sigmoid(float x) { return __fdividef(1.0f, 1.0f + fast_exp(-x)); }
__device__ __forceinline__ float fast_swiglu(float gate, float up) { return up * (gate * fast_sigmoid(gate)); }
// Both gradients of swiglu, `s` the sigmoid of `gate`.
__device__ __forceinline__ void swiglu_gradients(float dh, float gate, float up, float s, float *dgate, float *dup) {
    *dgate = dh * up * (s * fmaf(gate, 1.0f - s, 1.0f));
    *dup = dh * (gate * s);
}
template <class T> __device__ __forceinline__ float to_float(T v) { return (float)v; }
template <> __device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <class T> __device__ __forceinline__ T from_float(float v) { return (T)v; }
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float v) { return __float2bfloat16(v); }
} // namespace mx8
