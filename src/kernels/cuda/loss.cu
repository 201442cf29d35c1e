// Cross entropy over rows of logits: loss = log(sum(exp(l - max))) + max - l[target]; in place, the gradient
// (exp(l - max) / sum - onehot) * scale. One block of 1024 threads a row, one block an SM: each thread keeps a running
// maximum and the sum that belongs to it (online softmax), then the row is read again, backwards, because its end is
// still in the second-level cache (132 rows of 202,048 bf16 logits are 53 MB). 6 bytes a logit with grad, 2 without.
#include <math.h>
#include <float.h>
#include "model.cuh"

enum { THREADS = 1024, AHEAD = 4 };

struct running {
    float max, sum;
}; // max starts finite: exp(max - max) must not be NaN where nothing was seen

template <class T, int N> static __device__ __forceinline__ void see(struct running &r, const pack<N> &l) {
    float max = r.max;
#pragma unroll
    for (int e = 0; e < N; e++) max = fmaxf(max, l.v[e]);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < N; e++) sum += exp_for(l.v[e] - max, (const T *)NULL);
    r.sum = fmaf(r.sum, exp_for(r.max - max, (const T *)NULL), sum);
    r.max = max;
}

// Maximum and sum of the row, the same in every thread.
template <class T, int N> static __device__ struct running see_row(const T *l, int64_t V, float *parts) {
    struct running r = {-FLT_MAX, 0};
    const int64_t packs = V / N;
    int64_t i = threadIdx.x;
    for (; i + (AHEAD - 1) * THREADS < packs; i += AHEAD * THREADS) {
        pack<N> v[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) v[a] = load<N>(l + (i + a * THREADS) * N);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) see<T, N>(r, v[a]);
    }
    for (; i < packs; i += THREADS) see<T, N>(r, load<N>(l + i * N));
    const int64_t rest = packs * N + threadIdx.x;
    if (rest < V) see<T, 1>(r, load<1>(l + rest));
    struct running all;
    all.max = block_max(r.max, parts);
    all.sum = block_sum(r.sum * exp_for(r.max - all.max, (const T *)NULL), parts);
    return all;
}

template <class T, int N> static __device__ __forceinline__ void write_gradient(T *l, float max, float factor) {
    pack<N> v = load<N>(l);
#pragma unroll
    for (int e = 0; e < N; e++) v.v[e] = exp_for(v.v[e] - max, l) * factor;
    store(l, v);
}

template <class T, int N>
static __global__ void __launch_bounds__(THREADS, 1) cross_entropy_rows(struct mx8_cross_entropy_job j) {
    __shared__ float parts[32];
    const int64_t V = j.V, packs = V / N, rest = packs * N + threadIdx.x;
    for (int64_t t = blockIdx.x; t < j.T; t += gridDim.x) {
        T *l = (T *)j.logits + t * j.ls;
        const int64_t target = j.targets[t];
        const bool counts = target >= 0 && target < V;
        if (!counts) {
            if (threadIdx.x == 0) j.losses[t] = 0;
            if (threadIdx.x == 0 && j.rows) j.rows[t] = {0, 0, 0, -1};
            if (!j.grad) continue;
            for (int64_t i = threadIdx.x; i < packs; i += THREADS) store(l + i * N, pack<N>{});
            if (rest < V) store(l + rest, pack<1>{});
            continue;
        }
        const float hit = load<1>(l + target).v[0];
        const struct running r = see_row<T, N>(l, V, parts); // its barriers stand between reading hit and writing
        if (threadIdx.x == 0) j.losses[t] = (float)(log((double)r.sum) + (double)r.max - (double)hit);
        if (threadIdx.x == 0 && j.rows)
            j.rows[t] = {r.max, (float)((double)j.scale / (double)r.sum),
                (float)((exp((double)hit - (double)r.max) / (double)r.sum - 1.0) * (double)j.scale), (int32_t)target};
        if (!j.grad) continue;
        const float factor = (float)((double)j.scale / (double)r.sum);
        if (rest < V) write_gradient<T, 1>(l + rest, r.max, factor);
#pragma unroll 4
        for (int64_t i = packs - 1 - threadIdx.x; i >= 0; i -= THREADS) write_gradient<T, N>(l + i * N, r.max, factor);
        __syncthreads();
        if (threadIdx.x == 0)
            store(l + target,
                pack<1>{(float)((exp((double)hit - (double)r.max) / (double)r.sum - 1.0) * (double)j.scale)});
    }
}

enum mx8_status cuda_cross_entropy(const struct mx8_exec *x, const struct mx8_cross_entropy_job *j) {
    if (j->T == 0) return MX8_OK;
    const bool wide = is_aligned(j->logits) && j->ls % WIDE == 0;
    BY_TYPE(
        j->dtype, T, BY_WIDTH(wide, N, cross_entropy_rows<T, N><<<row_blocks(j->T), THREADS, 0, stream_of(x)>>>(*j)));
    CUDA_LAUNCHED("cross_entropy");
}
