// AdamW, and what clipping needs. The update reads four floats and writes three and a copy for each weight, 30 bytes:
// memory is the limit (adamw.cuh holds the arithmetic).
// Sums run in double over a fixed number of blocks; a last block adds theirs in a fixed order.
#include "adamw.cuh"

enum { THREADS = 256, QUAD = 4, SUM_BLOCKS = 1024 };

template <class C, class S, int N>
static __global__ void adamw_packs(struct mx8_adamw_job j, struct adamw_constants c, int64_t first, int64_t packs) {
    const float grad_scale = j.grad_scale ? *j.grad_scale : 1.0f;
    S *moment1 = (S *)j.m, *moment2 = (S *)j.v;
    read_adamw_state(j, c);
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < packs; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t at = first + i * N;
        const pack<N> grad = load<N>(j.grad + at);
        pack<N> m = load<N>(moment1 + at), v = load<N>(moment2 + at), p = load<N>(j.master + at);
#pragma unroll
        for (int e = 0; e < N; e++)
            update_element<S>(j, c, grad_scale, at + e, grad.v[e], p.v[e], m.v[e], v.v[e]);
        store(moment1 + at, m);
        store(moment2 + at, v);
        store(j.master + at, p);
        if (j.copy) store((C *)j.copy + at, p);
    }
}

template <class S> static enum mx8_status run_adamw(const struct mx8_exec *x, const struct mx8_adamw_job *j) {
    const struct adamw_constants c = make_adamw_constants(j);
    const bool wide =
        is_aligned(j->grad) && is_aligned(j->m) && is_aligned(j->v) && is_aligned(j->master) && is_aligned(j->copy);
    const int64_t packs = wide ? j->n / QUAD : 0, rest = j->n - packs * QUAD;
    BY_TYPE(j->copy_dtype, C, {
        if (packs) adamw_packs<C, S, QUAD><<<blocks_for(packs, THREADS), THREADS, 0, stream_of(x)>>>(*j, c, 0, packs);
        if (rest)
            adamw_packs<C, S, 1><<<blocks_for(rest, THREADS), THREADS, 0, stream_of(x)>>>(*j, c, packs * QUAD, rest);
    });
    CUDA_LAUNCHED("adamw");
}

enum mx8_status cuda_adamw(const struct mx8_exec *x, const struct mx8_adamw_job *j) {
    return j->moment_dtype == MX8_BF16 ? run_adamw<bf16>(x, j) : run_adamw<float>(x, j);
}

// ---- sums ----

// The same in every thread; `parts` holds 32 doubles.
static __device__ double block_sum(double v, double *parts) {
    const int lane = threadIdx.x & 31;
    for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, m);
    if (lane == 0) parts[threadIdx.x >> 5] = v;
    __syncthreads();
    v = lane < (int)(blockDim.x >> 5) ? parts[lane] : 0.0;
    for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, m);
    return v;
}

// Thread i of all takes quads i, i + threads, ...: what it adds does not depend on how the quads are loaded.
template <bool SQUARED, int N> static __global__ void sum_parts(double *partial, const float *a, int64_t n) {
    __shared__ double parts[32];
    double sum = 0;
#pragma unroll 4
    for (int64_t i = (blockIdx.x * (int64_t)THREADS + threadIdx.x) * QUAD; i < n;
         i += (int64_t)SUM_BLOCKS * THREADS * QUAD) {
        float v[QUAD];
        if (N == QUAD && i + QUAD <= n) {
            *(float4 *)v = *(const float4 *)(a + i);
        } else {
            for (int e = 0; e < QUAD; e++) v[e] = i + e < n ? a[i + e] : 0.0f;
        }
#pragma unroll
        for (int e = 0; e < QUAD; e++) sum += SQUARED ? (double)v[e] * (double)v[e] : (double)v[e];
    }
    sum = block_sum(sum, parts);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void add_parts(double *out, const double *partial) {
    __shared__ double parts[32];
    const double sum = block_sum(partial[threadIdx.x], parts);
    if (threadIdx.x == 0) *out += sum;
}

template <bool SQUARED>
static enum mx8_status add_sum(const struct mx8_exec *x, double *out, const float *a, int64_t n) {
    if (n == 0) return MX8_OK;
    double *partial = (double *)x->scratch;
    if (is_aligned(a))
        sum_parts<SQUARED, QUAD><<<SUM_BLOCKS, THREADS, 0, stream_of(x)>>>(partial, a, n);
    else
        sum_parts<SQUARED, 1><<<SUM_BLOCKS, THREADS, 0, stream_of(x)>>>(partial, a, n);
    CUDA_TRY(cudaGetLastError(), "sum");
    add_parts<<<1, SUM_BLOCKS, 0, stream_of(x)>>>(out, partial);
    CUDA_LAUNCHED("sum");
}

enum mx8_status cuda_sum_squares(const struct mx8_exec *x, double *out, const float *a, int64_t n) {
    return add_sum<true>(x, out, a, n);
}
enum mx8_status cuda_sum(const struct mx8_exec *x, double *out, const float *a, int64_t n) {
    return add_sum<false>(x, out, a, n);
}

// A NaN norm gives a NaN factor: a check of the norm must not be fooled by a step that looks clipped.
static __global__ void find_clip_factor(float *factor, float *norm, const double *squares, float max_norm) {
    const float length = (float)sqrt(*squares), ratio = max_norm / (length + 1e-6f);
    *norm = length;
    *factor = ratio > 1.0f ? 1.0f : ratio;
}

enum mx8_status cuda_clip_factor(
    const struct mx8_exec *x, float *factor, float *norm, const double *sum_squares, float max_norm) {
    find_clip_factor<<<1, 1, 0, stream_of(x)>>>(factor, norm, sum_squares, max_norm);
    CUDA_LAUNCHED("clip_factor");
}
