// Router: scores of every expert, the top_k of them, and the slots sorted stably by expert (sort.cu). One warp a token
// holds all its scores in registers; each of the k rounds is a maximum over the warp. Latency, not bytes, is the cost:
// 6 bytes an expert of a token.
#include "model.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

// A number whose order is the order of selection: larger first, NaN before every number, +0 and -0 equal.
static __device__ __forceinline__ uint32_t rank_of(float v) {
    if (v != v) return 0xFFFFFFFFu;
    const uint32_t u = __float_as_uint(v == 0.0f ? 0.0f : v);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __device__ __forceinline__ uint64_t warp_largest(uint64_t v) {
    for (int m = 16; m > 0; m >>= 1) {
        const uint64_t other = __shfl_xor_sync(0xFFFFFFFFu, v, m);
        v = other > v ? other : v;
    }
    return v;
}

// A NaN logit makes the whole row NaN, as in PyTorch.
template <int C> static __device__ void softmax(float (&l)[C], int64_t E, int lane) {
    float max = -INFINITY, sum = 0;
#pragma unroll
    for (int c = 0; c < C; c++)
        if (c * 32 + lane < E) max = fmaxf(max, l[c]);
    max = warp_max(max);
#pragma unroll
    for (int c = 0; c < C; c++) {
        l[c] = c * 32 + lane < E ? expf(l[c] - max) : 0.0f;
        sum += l[c];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int c = 0; c < C; c++) l[c] /= sum;
}

// Lane i holds the scores of experts i, i + 32, ...; C * 32 >= E.
template <class T, int C> static __global__ void __launch_bounds__(THREADS) route_tokens(struct mx8_router_job j) {
    const int lane = threadIdx.x & 31;
    const int64_t t = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5), E = j.E;
    if (t >= j.T) return;
    const T *logits = (const T *)j.logits + t * E;
    float score[C];
    uint64_t rank[C]; // the lower index wins among equals; 0 once chosen or where there is no expert
#pragma unroll
    for (int c = 0; c < C; c++) score[c] = c * 32 + lane < E ? load<1>(logits + c * 32 + lane).v[0] : 0.0f;
    if (j.score_func == MX8_SCORE_SOFTMAX) {
        softmax<C>(score, E, lane);
    } else {
#pragma unroll
        for (int c = 0; c < C; c++) score[c] = 1.0f / (1.0f + expf(-score[c]));
    }
#pragma unroll
    for (int c = 0; c < C; c++) {
        const int e = c * 32 + lane;
        rank[c] = 0;
        if (e >= E) continue;
        j.scores[t * E + e] = score[c];
        rank[c] = (uint64_t)rank_of(score[c] + (j.bias ? j.bias[e] : 0.0f)) << 32 | (0xFFFFFFFFu - (uint32_t)e);
    }
    float total = 0, *weights = j.weights + t * j.k;
    for (int s = 0; s < j.k; s++) {
        uint64_t best = 0;
#pragma unroll
        for (int c = 0; c < C; c++) best = rank[c] > best ? rank[c] : best;
        best = warp_largest(best);
        const uint32_t chosen = 0xFFFFFFFFu - (uint32_t)best;
        float mine = 0;
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (rank[c] != best) continue;
            mine = score[c];
            rank[c] = 0;
        }
        const float weight = __shfl_sync(0xFFFFFFFFu, mine, chosen & 31);
        total += weight;
        if (lane == 0) {
            j.indices[t * j.k + s] = (int32_t)chosen;
            weights[s] = weight;
        }
    }
    __syncwarp();
    for (int s = lane; s < j.k; s += 32) {
        const float weight = j.route_norm ? weights[s] / (total + 1e-20f) : weights[s];
        weights[s] = weight * j.route_scale;
    }
}

template <class T> static void launch_route(const struct mx8_exec *x, const struct mx8_router_job *j) {
    const unsigned blocks = blocks_for(j->T, WARPS, 0x7FFFFFFF);
    if (j->E <= 32)
        route_tokens<T, 1><<<blocks, THREADS, 0, stream_of(x)>>>(*j);
    else if (j->E <= 128)
        route_tokens<T, 4><<<blocks, THREADS, 0, stream_of(x)>>>(*j);
    else if (j->E <= 256)
        route_tokens<T, 8><<<blocks, THREADS, 0, stream_of(x)>>>(*j);
    else
        route_tokens<T, 32><<<blocks, THREADS, 0, stream_of(x)>>>(*j);
}

enum mx8_status cuda_router(const struct mx8_exec *x, const struct mx8_router_job *j) {
    if (j->E == 0) return MX8_OK;
    if (j->E > MAX_BINS)
        return CUDA_FAIL(
            MX8_UNSUPPORTED, "cuda router: E is %lld, expected at most %d", (long long)j->E, (int)MAX_BINS);
    if (j->T > 0) {
        BY_TYPE(j->dtype, T, launch_route<T>(x, j));
        CUDA_TRY(cudaGetLastError(), "router");
    }
    struct sort_pass p = {};
    p.keys = j->indices;
    p.n = j->T * j->k;
    p.limit = (uint32_t)j->E;
    p.mask = 0xFFFFFFFFu;
    p.bins = (int)j->E;
    p.out_values = j->order;
    p.positions = j->positions;
    p.ends = j->offsets;
    return cuda_sort_pass(x, &p);
}

// With s the chosen scores and c = route_scale: w = c s, or with route_norm w = c s / S, S = sum(s) + 1e-20, so that
// ds_j = c (dw_j / S - sum(dw s) / S^2). Sigmoid: dl = ds s (1 - s); softmax: dl_e = s_e (ds_e - sum(ds s)). Experts
// that were not chosen have ds = 0. The terms of ds cancel: every rounding is the CPU's.
template <class T> static __global__ void __launch_bounds__(THREADS) route_tokens_backward(struct mx8_router_job j) {
    const int lane = threadIdx.x & 31;
    const int64_t t = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5), E = j.E;
    if (t >= j.T) return;
    const float *scores = j.scores + t * E, *dw = j.dweights + t * j.k;
    const int32_t *chosen = j.indices + t * j.k;
    T *dlogits = (T *)j.dlogits + t * E;
    const bool softmax = j.score_func == MX8_SCORE_SOFTMAX;
    float total = 0, along = 0, pull = 0;
    for (int s = 0; s < j.k; s++) {
        total = __fadd_rn(total, scores[chosen[s]]);
        along = __fadd_rn(along, __fmul_rn(dw[s], scores[chosen[s]]));
    }
    const float inverse = j.route_norm ? 1.0f / (total + 1e-20f) : 1.0f;
    const float shared = j.route_norm ? __fmul_rn(__fmul_rn(along, inverse), inverse) : 0.0f;
    if (softmax) pull = j.route_scale * __fsub_rn(__fmul_rn(along, inverse), __fmul_rn(total, shared)); // sum(ds s)
    for (int64_t e = lane; e < E; e += 32) store(dlogits + e, pack<1>{-scores[e] * pull});
    __syncwarp(); // the chosen are written again
    for (int s = lane; s < j.k; s += 32) {
        const float score = scores[chosen[s]], ds = j.route_scale * __fsub_rn(__fmul_rn(dw[s], inverse), shared);
        store(dlogits + chosen[s], pack<1>{softmax ? score * __fsub_rn(ds, pull) : ds * score * (1.0f - score)});
    }
}

enum mx8_status cuda_router_backward(const struct mx8_exec *x, const struct mx8_router_job *j) {
    if (j->T == 0 || j->E == 0) return MX8_OK;
    BY_TYPE(
        j->dtype, T, route_tokens_backward<T><<<blocks_for(j->T, WARPS, 0x7FFFFFFF), THREADS, 0, stream_of(x)>>>(*j));
    CUDA_LAUNCHED("router_backward");
}
