// Permute gathers token rows into expert order; combine adds expert rows back to their tokens. One block a row that is
// written, its terms added in slot order: nothing atomic, and the CPU's bits. Slot s = t*k + j belongs to token t;
// order[p] is the slot of expert row p and positions[s] the row of a slot. permute and combine_backward move 4 bytes an
// element of bf16 (6 with dweights), combine and permute_backward 2 (k + 1), more with base and dres.
#include <type_traits>
#include "model.cuh"

template <class T, int N> __device__ __forceinline__ void move_row(T *y, const T *x, const float *weight, int64_t D) {
    if (!weight) { // bits, whatever they mean
        typedef typename std::conditional<N == WIDE, uint4, T>::type unit;
        const int64_t units = D * (int64_t)sizeof(T) / (int64_t)sizeof(unit);
        for (int64_t i = threadIdx.x; i < units; i += blockDim.x) ((unit *)y)[i] = ((const unit *)x)[i];
        return;
    }
    const float w = *weight;
    for (int64_t i = threadIdx.x * N; i < D; i += (int64_t)blockDim.x * N) {
        pack<N> v = load<N>(x + i);
#pragma unroll
        for (int e = 0; e < N; e++) v.v[e] *= w;
        store(y + i, v);
    }
}

// The whole block calls; every thread gets the sum.
template <class T, int N> __device__ __forceinline__ float dot_rows(const T *a, const T *b, int64_t D, float *parts) {
    float sum = 0;
    for (int64_t i = threadIdx.x * N; i < D; i += (int64_t)blockDim.x * N) {
        const pack<N> v = load<N>(a + i), w = load<N>(b + i);
#pragma unroll
        for (int e = 0; e < N; e++) sum = fmaf(v.v[e], w.v[e], sum);
    }
    return block_sum(sum, parts);
}

// y = sum over j of rows[positions[j]] (* weights[j]) (+ base, before the sum or after it).
template <class T, int N>
__device__ __forceinline__ void gather_sum(T *y, const T *rows, const int32_t *positions, const float *weights, int k,
    const T *base, bool base_first, int64_t D) {
    for (int64_t i = threadIdx.x * N; i < D; i += (int64_t)blockDim.x * N) {
        pack<N> sum = {}, b = {};
        if (base) b = load<N>(base + i);
        if (base_first) sum = b;
#pragma unroll 4
        for (int s = 0; s < k; s++) {
            const pack<N> v = load<N>(rows + positions[s] * D + i);
            const float w = weights ? weights[s] : 1.0f; // fma(v, 1, sum) is v + sum
#pragma unroll
            for (int e = 0; e < N; e++) sum.v[e] = fmaf(v.v[e], w, sum.v[e]);
        }
        if (!base_first) {
#pragma unroll
            for (int e = 0; e < N; e++) sum.v[e] += b.v[e];
        }
        store(y + i, sum);
    }
}

template <class T, int N> static __global__ void permute_rows(struct mx8_permute_job j) {
    for (int64_t p = blockIdx.x; p < j.T * j.k; p += gridDim.x) {
        const int32_t slot = j.order[p];
        move_row<T, N>((T *)j.rows + p * j.D, (const T *)j.x + (int64_t)(slot / j.k) * j.D,
            j.weights ? j.weights + slot : NULL, j.D);
    }
}

template <class T, int N> static __global__ void permute_backward_tokens(struct mx8_permute_job j) {
    __shared__ float parts[32];
    for (int64_t t = blockIdx.x; t < j.T; t += gridDim.x) {
        const int32_t *positions = j.positions + t * j.k;
        const float *weights = j.weights ? j.weights + t * j.k : NULL;
        const T *drows = (const T *)j.drows;
        if (weights && j.dweights) { // before dx, which may replace x
            for (int s = 0; s < j.k; s++) {
                const float d = dot_rows<T, N>(drows + positions[s] * j.D, (const T *)j.x + t * j.D, j.D, parts);
                if (threadIdx.x == 0) j.dweights[t * j.k + s] = d;
            }
        }
        if (!j.dx) continue;
        gather_sum<T, N>((T *)j.dx + t * j.D, drows, positions, weights, j.k,
            j.dres ? (const T *)j.dres + t * j.D : NULL, false, j.D);
    }
}

template <class T, int N> static __global__ void combine_tokens(struct mx8_combine_job j) {
    for (int64_t t = blockIdx.x; t < j.T; t += gridDim.x)
        gather_sum<T, N>((T *)j.y + t * j.D, (const T *)j.rows, j.positions + t * j.k,
            j.weights ? j.weights + t * j.k : NULL, j.k, j.base ? (const T *)j.base + t * j.D : NULL, true, j.D);
}

template <class T, int N> static __global__ void combine_backward_rows(struct mx8_combine_job j) {
    __shared__ float parts[32];
    for (int64_t p = blockIdx.x; p < j.T * j.k; p += gridDim.x) {
        const int32_t slot = j.order[p];
        const T *dy = (const T *)j.dy + (int64_t)(slot / j.k) * j.D;
        if (j.weights && j.dweights) { // before drows, which may replace rows
            const float d = dot_rows<T, N>(dy, (const T *)j.rows + p * j.D, j.D, parts);
            if (threadIdx.x == 0) j.dweights[slot] = d;
        }
        if (j.drows) move_row<T, N>((T *)j.drows + p * j.D, dy, j.weights ? j.weights + slot : NULL, j.D);
    }
}

// What the four launches share: T, N and the threads of a row.
#define LAUNCH(kernel, j, rows, what, ...)                                                                             \
    do {                                                                                                               \
        if ((rows) == 0 || (j)->D == 0) return MX8_OK;                                                                 \
        const void *touched[] = {__VA_ARGS__};                                                                         \
        bool wide = (j)->D % WIDE == 0;                                                                                \
        for (const void *p : touched) wide = wide && is_aligned(p);                                                    \
        BY_TYPE((j)->dtype, T,                                                                                         \
            BY_WIDTH(wide, N, kernel<T, N><<<row_blocks(rows), row_threads((j)->D / N), 0, stream_of(x)>>>(*(j))));    \
        CUDA_LAUNCHED(what);                                                                                           \
    } while (0)

enum mx8_status cuda_permute(const struct mx8_exec *x, const struct mx8_permute_job *j) {
    LAUNCH(permute_rows, j, j->T * j->k, "permute", j->x, j->rows);
}
enum mx8_status cuda_permute_backward(const struct mx8_exec *x, const struct mx8_permute_job *j) {
    LAUNCH(permute_backward_tokens, j, j->T, "permute_backward", j->x, j->drows, j->dres, j->dx);
}
enum mx8_status cuda_combine(const struct mx8_exec *x, const struct mx8_combine_job *j) {
    LAUNCH(combine_tokens, j, j->T, "combine", j->rows, j->base, j->y);
}
enum mx8_status cuda_combine_backward(const struct mx8_exec *x, const struct mx8_combine_job *j) {
    LAUNCH(combine_backward_rows, j, j->T * j->k, "combine_backward", j->rows, j->dy, j->drows);
}
