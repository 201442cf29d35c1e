// Embedding: rows of w by token; 4 bytes an element of bf16.
// Backward: tokens are sorted stably by id (sort.cu, a few digits), then the block of an id's first place adds the id's
// rows of dy to dw in rising order of t: no atomics, and the CPU's bits. It reads dy once and touches only rows of dw
// that occur.
#include "model.cuh"

static __device__ __forceinline__ bool is_known(int32_t token, int64_t V) {
    return token >= 0 && token < V;
}

template <class T, class W, int N> static __global__ void gather_rows(struct mx8_embedding_job j) {
    for (int64_t t = blockIdx.x; t < j.T; t += gridDim.x) {
        const int32_t token = j.tokens[t];
        const W *w = is_known(token, j.V) ? (const W *)j.w + token * j.D : NULL;
        T *y = (T *)j.y + t * j.D;
        for (int64_t i = threadIdx.x * N; i < j.D; i += (int64_t)blockDim.x * N) {
            pack<N> v = {};
            if (w) v = load<N>(w + i);
            store(y + i, v);
        }
    }
}

enum mx8_status cuda_embedding(const struct mx8_exec *x, const struct mx8_embedding_job *j) {
    if (j->T == 0 || j->D == 0) return MX8_OK;
    const bool wide = j->D % WIDE == 0 && is_aligned(j->w) && is_aligned(j->y);
    BY_TYPE(j->dtype, T,
        BY_TYPE(j->w_dtype, W,
            BY_WIDTH(wide, N, gather_rows<T, W, N><<<row_blocks(j->T), row_threads(j->D / N), 0, stream_of(x)>>>(*j))));
    CUDA_LAUNCHED("embedding");
}

// ---- backward ----

enum { ADD_THREADS = 128, AHEAD = 8, DIGIT_BITS = 8 };

// Keys and values, in two copies that the passes alternate between.
size_t cuda_embedding_workspace(const struct mx8_embedding_job *j) {
    return (size_t)j->T * 4 * sizeof(int32_t);
}

// Block (p, c): place p of the sorted tokens, columns c * blockDim.x * N and on. AHEAD rows are on their way at a time.
template <class T, int N>
static __global__ void __launch_bounds__(ADD_THREADS)
    add_token_rows(struct mx8_embedding_job j, const int32_t *ids, const int32_t *at) {
    const int64_t first = blockIdx.x;
    const int32_t id = ids[first];
    if (!is_known(id, j.V) || (first > 0 && ids[first - 1] == id)) return;
    const int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (c >= j.D) return;
    const T *dy = (const T *)j.dy + c;
    float *dw = j.dw + id * j.D + c;
    pack<N> sum = load<N>(dw);
    for (int64_t p = first; p < j.T && ids[p] == id; p += AHEAD) {
        pack<N> row[AHEAD];
        bool same[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            same[a] = p + a < j.T && ids[p + a] == id;
            if (same[a]) row[a] = load<N>(dy + at[p + a] * j.D);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (!same[a]) break;
#pragma unroll
            for (int e = 0; e < N; e++) sum.v[e] += row[a].v[e];
        }
    }
    store(dw, sum);
}

enum mx8_status cuda_embedding_backward(const struct mx8_exec *x, const struct mx8_embedding_job *j) {
    if (j->T == 0 || j->D == 0 || j->V == 0) return MX8_OK;
    int32_t *const space = (int32_t *)j->workspace;
    int bits = 1;
    while (bits < 32 && (j->V >> bits) > 0) bits++; // V itself stands for every unknown token
    const int passes = (bits + DIGIT_BITS - 1) / DIGIT_BITS, digit = (bits + passes - 1) / passes;
    struct sort_pass p = {};
    p.keys = j->tokens;
    p.n = j->T;
    p.limit = (uint32_t)j->V;
    p.bins = 1 << digit;
    p.mask = (uint32_t)p.bins - 1;
    for (int i = 0; i < passes; i++) {
        p.shift = i * digit;
        p.out_keys = space + (i % 2 ? 2 * j->T : 0);
        p.out_values = p.out_keys + j->T;
        const enum mx8_status status = cuda_sort_pass(x, &p);
        if (status != MX8_OK) return status;
        p.keys = p.out_keys;
        p.values = p.out_values;
    }
    const bool wide = j->D % WIDE == 0 && is_aligned(j->dy) && is_aligned(j->dw);
    const int64_t items = wide ? j->D / WIDE : j->D;
    const int threads = items < ADD_THREADS ? (int)(items + 31) / 32 * 32 : ADD_THREADS;
    const dim3 grid((unsigned)j->T, (unsigned)ceil_div(items, threads));
    BY_TYPE(
        j->dtype, T, BY_WIDTH(wide, N, add_token_rows<T, N><<<grid, threads, 0, stream_of(x)>>>(*j, p.keys, p.values)));
    CUDA_LAUNCHED("embedding_backward");
}
