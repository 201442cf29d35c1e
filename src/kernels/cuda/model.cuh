// What the model kernels share: rows of bf16 or f32 read and written as packs of N floats, sums in a fixed order, and
// how many threads a row gets. Jobs go to kernels by value; a NULL in one is a uniform branch.
#pragma once
#include <cuda_bf16.h>
#include "backend.h"
#include "convert.cuh"

typedef __nv_bfloat16 bf16;
enum { WIDE = 8 }; // elements of a wide pack: one 16-byte access of bf16, two of f32

template <int N> struct pack { float v[N]; };

__device__ __forceinline__ float bf16_low(uint32_t two) {
    return __uint_as_float(two << 16);
}
__device__ __forceinline__ float bf16_high(uint32_t two) {
    return __uint_as_float(two & 0xFFFF0000u);
}
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

template <int N> __device__ __forceinline__ pack<N> load(const float *p) {
    pack<N> r;
    if constexpr (N == 1) {
        r.v[0] = *p;
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float4 f = *(const float4 *)(p + i);
            r.v[i] = f.x;
            r.v[i + 1] = f.y;
            r.v[i + 2] = f.z;
            r.v[i + 3] = f.w;
        }
    }
    return r;
}

template <int N> __device__ __forceinline__ pack<N> load(const bf16 *p) {
    pack<N> r;
    if constexpr (N == 1) {
        r.v[0] = __bfloat162float(*p);
    } else {
        uint32_t u[N / 2];
        if constexpr (N == 8)
            *(uint4 *)u = *(const uint4 *)p;
        else
            *(uint2 *)u = *(const uint2 *)p;
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            r.v[i] = bf16_low(u[i / 2]);
            r.v[i + 1] = bf16_high(u[i / 2]);
        }
    }
    return r;
}

template <int N> __device__ __forceinline__ void store(float *p, const pack<N> &a) {
    if constexpr (N == 1) {
        *p = a.v[0];
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) *(float4 *)(p + i) = make_float4(a.v[i], a.v[i + 1], a.v[i + 2], a.v[i + 3]);
    }
}

template <int N> __device__ __forceinline__ void store(bf16 *p, const pack<N> &a) {
    if constexpr (N == 1) {
        *p = __float2bfloat16_rn(a.v[0]);
    } else {
        uint32_t u[N / 2];
#pragma unroll
        for (int i = 0; i < N; i += 2) u[i / 2] = bf16_pair(a.v[i], a.v[i + 1]);
        if constexpr (N == 8)
            *(uint4 *)p = *(const uint4 *)u;
        else
            *(uint2 *)p = *(const uint2 *)u;
    }
}

// What storing as T and loading again gives.
__device__ __forceinline__ float round_as(float v, const float *) {
    return v;
}
__device__ __forceinline__ float round_as(float v, const bf16 *) {
    return __bfloat162float(__float2bfloat16_rn(v));
}

// e^x where it must be good to the last place, and where a bf16 result hides the error of the fast instruction (fast_exp).
__device__ __forceinline__ float exp_for(float x, const float *) {
    return expf(x);
}
__device__ __forceinline__ float exp_for(float x, const bf16 *) {
    return mx8::fast_exp(x);
}
__device__ __forceinline__ float sigmoid_for(float x, const float *) {
    return 1.0f / (1.0f + expf(-x));
}
__device__ __forceinline__ float sigmoid_for(float x, const bf16 *) {
    return mx8::fast_sigmoid(x);
}

__device__ __forceinline__ float swiglu_for(float gate, float up, const float *) {
    return up * (gate * sigmoid_for(gate, (const float *)NULL));
}
__device__ __forceinline__ float swiglu_for(float gate, float up, const bf16 *) {
    return mx8::fast_swiglu(gate, up);
}

// ---- sums: a butterfly, so every lane ends with the same bits ----

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, m);
    return v;
}
__device__ __forceinline__ float warp_max(float v) { // a NaN is passed over
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, m));
    return v;
}
// Over the whole block, blockDim.x a multiple of 32; `parts` holds 32 floats in shared memory.
__device__ __forceinline__ float block_sum(float v, float *parts) {
    const int lane = threadIdx.x & 31;
    v = warp_sum(v);
    __syncthreads(); // the call before may still be reading
    if (lane == 0) parts[threadIdx.x >> 5] = v;
    __syncthreads();
    return warp_sum(lane < (int)(blockDim.x >> 5) ? parts[lane] : 0.0f);
}
__device__ __forceinline__ float block_max(float v, float *parts) {
    const int lane = threadIdx.x & 31;
    v = warp_max(v);
    __syncthreads();
    if (lane == 0) parts[threadIdx.x >> 5] = v;
    __syncthreads();
    return warp_max(parts[lane < (int)(blockDim.x >> 5) ? lane : 0]);
}

// ---- launching ----

// Threads of a block that owns a row of `items` packs: few enough to be busy in every turn.
static inline int row_threads(int64_t items) {
    const int64_t turns = (items + 511) / 512, each = turns ? (items + turns - 1) / turns : 1;
    return (int)((each + 31) / 32 * 32);
}
// One block a row; kernels stride over what is left.
static inline unsigned row_blocks(int64_t rows) {
    return (unsigned)(rows < 0x7FFFFFFF ? rows : 0x7FFFFFFF);
}
static inline bool is_aligned(const void *p) {
    return ((uintptr_t)p & 15) == 0;
}
static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// Run the statement with T the type of a dtype, with N the width of a pack.
#define BY_TYPE(dtype, T, ...)                                                                                         \
    do {                                                                                                               \
        if ((dtype) == MX8_BF16) {                                                                                     \
            typedef bf16 T;                                                                                            \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            typedef float T;                                                                                           \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)
#define BY_WIDTH(wide, N, ...)                                                                                         \
    do {                                                                                                               \
        if (wide) {                                                                                                    \
            constexpr int N = WIDE;                                                                                    \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            constexpr int N = 1;                                                                                       \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

// ---- colsum.cu: sums down columns ----

// Rows of f32 partial sums that fit the scratch, at most `wanted`.
static inline int64_t partial_rows(const struct mx8_exec *x, int64_t wanted, int64_t cols) {
    const int64_t room = (int64_t)(x->scratch_bytes / sizeof(float)) / (cols > 0 ? cols : 1);
    return wanted < room ? wanted : room;
}
// out (cols) [+]= the sum of `rows` rows of partial (rows, cols), in order, in double.
enum mx8_status cuda_add_partials(
    const struct mx8_exec *x, float *out, int accumulate, const float *partial, int64_t rows, int64_t cols);
// out [+]= sum over rows of a, or of a * (b * factor[row]) when b is given; only rows before *last_end when that is
// given.
struct column_sum {
    float *out;
    int accumulate;
    const void *a, *b;
    const float *factor;
    int64_t rows, cols, ls;
    int32_t dtype;
    const int32_t *last_end;
};
enum mx8_status cuda_sum_columns(const struct mx8_exec *x, const struct column_sum *s);

// ---- sort.cu: one stable pass of a counting sort ----

// Item i has key min(keys[i] as unsigned, limit) and value values[i] (i itself when NULL); it moves to the place p that
// its digit (key >> shift) & mask gives it. Every output may be NULL; ends (bins) are cumulative.
struct sort_pass {
    const int32_t *keys, *values;
    int64_t n;
    uint32_t limit, mask;
    int shift, bins;
    int32_t *out_keys, *out_values, *positions, *ends;
};
enum { MAX_BINS = 1024 };
enum mx8_status cuda_sort_pass(const struct mx8_exec *x, const struct sort_pass *p);
