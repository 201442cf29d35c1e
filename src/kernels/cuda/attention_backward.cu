// Attention backward. Probabilities are recomputed from the saved log-sum-exp; with delta = sum(dout * o) of a row,
//     p = e^(s - lse), dp = dout v^T, ds = p (dp - delta);   dv = p^T dout, dk = scale ds^T q, dq = scale ds k.
// Two kernels, as on the CPU: a block owns keys and sees every head of the group and every tile of queries that the
// mask lets by, in order, for dk and dv; then a block owns queries for dq. That recomputes s and dp once more (7
// products instead of 5), and in exchange nothing is shared, nothing atomic, and every sum has one order. Each warp
// owns 16 rows; the first kernel works on transposed scores (keys x queries), so that in both what came out of the
// first products is, rounded to bf16, the left operand of the second ones without leaving the registers. With d <= 128
// a warp's own rows (k and v, or q and dout) stay in registers as well (KEPT). The other side's tiles are copied one
// turn ahead.
#include "attention.cuh"

using namespace attention;

// Sixteen rows of a tile as left operands.
template <int HD> static __device__ __forceinline__ void load_rows(uint32_t (&a)[HD / 16][4], uint32_t lane_address) {
#pragma unroll
    for (int step = 0; step < HD / 16; step++) load_matrices(a[step], moved<HD>(lane_address, 0, step));
}

// c (16 x 8 N) += a b^T: a from registers, or from the tile at a_lane; b the 8 N rows of a tile from b_lane on.
template <int HD, int N, bool KEPT>
static __device__ __forceinline__ void multiply_rows(
    float (&c)[N][4], const uint32_t (&kept)[KEPT ? HD / 16 : 1][4], uint32_t a_lane, uint32_t b_lane) {
#pragma unroll
    for (int step = 0; step < HD / 16; step++) {
        uint32_t a[4], b[4];
        if constexpr (KEPT) {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = kept[step][i];
        } else {
            load_matrices(a, moved<HD>(a_lane, 0, step));
        }
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            load_matrices(b, moved<HD>(b_lane, n * 16, step));
            multiply(c[2 * n], a, b[0], b[1]);
            multiply(c[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// sum (16 x OD) += the 16 x 16 block (left, right), rounded to bf16, times 16 rows of a tile, columns 16 * first_step
// and on.
template <int HD, int OD>
static __device__ __forceinline__ void add_product(
    float (&sum)[OD / 8][4], const float (&left)[4], const float (&right)[4], uint32_t lane_address, int first_step) {
    uint32_t a[4];
    as_operand(a, left, right);
#pragma unroll
    for (int n = 0; n < OD / 16; n++) {
        uint32_t b[4];
        load_transposed(b, moved<HD>(lane_address, 0, first_step + n));
        multiply(sum[2 * n], a, b[0], b[1]);
        multiply(sum[2 * n + 1], a, b[2], b[3]);
    }
}

// 16 rows of results; `to` is this lane's first element of the first row, of which `rows` exist from this lane's row
// on.
template <int OD>
static __device__ __forceinline__ void store_rows(
    bf16 *to, int64_t ls, const float (&sum)[OD / 8][4], float factor, int rows, int cols) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half * 8 >= rows) break;
#pragma unroll
        for (int n = 0; n < OD / 8; n++)
            if (n * 8 < cols)
                *(uint32_t *)(to + half * 8 * ls + n * 8) =
                    bf16_pair(sum[n][half * 2] * factor, sum[n][half * 2 + 1] * factor);
    }
}

// ---- dk and dv ----

// A tile of queries of one head of the group.
struct turn {
    int head, query;
};

// The next turn whose queries see some of the keys; head is `group` when there is none.
template <int BM>
static __device__ __forceinline__ struct turn next_turn(
    const struct mask &m, struct turn at, int first, int end, int group, int2 keys) {
    at.query = next_tile(m, at.query, end, BM, keys);
    while (at.query >= end && ++at.head < group) at.query = next_tile(m, first, end, BM, keys);
    return at;
}

// OD of the HD columns of dk and dv, of WARPS * 16 keys, over tiles of BM queries.
template <int HD, int OD, int BM, int WARPS, bool KEPT>
static __global__ void __launch_bounds__(WARPS * 32)
    attend_keys(struct mx8_attention_job j, const float *delta, const int2 *ranges) {
    constexpr int BN = WARPS * 16, THREADS = WARPS * 32, TILE = BM * HD * 2, STAGE = 2 * TILE, TERMS = 2 * BM * 4;
    static_assert(!KEPT || BN <= 2 * BM, "keys and values pass through the stages");
    extern __shared__ __align__(1024) char memory[];
    const uint32_t stages = shared_address(memory), own = KEPT ? stages : stages + 2 * STAGE;
    float *const terms =
        (float *)(memory + 2 * STAGE + (KEPT ? 0 : 2 * BN * HD * 2)); // of a stage: BM of lse, BM of delta
    const int tiles = (int)((j.S + BN - 1) / BN), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int part = blockIdx.x % (HD / OD), key = (int)(blockIdx.x / (HD / OD) % tiles) * BN; // the longest first
    const int64_t head = blockIdx.x / (HD / OD) / tiles, kv = head % j.KV, start = head / j.KV * j.S;
    const struct mask m = mask_of(j, ranges, head / j.KV);
    const int d = (int)j.d, group = (int)(j.H / j.KV), warp_key = key + warp * 16, row = warp_key + lane / 4,
              col = (lane & 3) * 2;
    const int last_key = min(key + BN, m.S) - 1, first = key / BM * BM,
              end = m.chunk ? (int)min(first_key(m, last_key) + (int64_t)m.chunk, (int64_t)m.S) : m.S;
    const int2 keys = range_at(m, key, BN);
    const float scale2 = j.scale * LOG2E;

    copy_tile<HD, BN, THREADS>(own, (const bf16 *)j.k + (start + key) * j.k_ls + kv * d, j.k_ls, m.S - key, d);
    copy_tile<HD, BN, THREADS>(
        own + BN * HD * 2, (const bf16 *)j.v + (start + key) * j.v_ls + kv * d, j.v_ls, m.S - key, d);
    commit_copies();
    const uint32_t k_lane = lane_of_a<HD>(own) + warp * 16 * HD * 2, v_lane = k_lane + BN * HD * 2;
    uint32_t k_kept[KEPT ? HD / 16 : 1][4], v_kept[KEPT ? HD / 16 : 1][4];
    if constexpr (KEPT) {
        wait_copies();
        load_rows<HD>(k_kept, k_lane);
        load_rows<HD>(v_kept, v_lane);
        __syncthreads(); // before the stages are filled
    }

    const auto copy_turn = [&](struct turn at, int stage) {
        const int64_t t = start + at.query, h = kv * group + at.head;
        const uint32_t to = stages + stage * STAGE;
        copy_tile<HD, BM, THREADS>(to, (const bf16 *)j.q + t * j.q_ls + h * d, j.q_ls, m.S - at.query, d);
        copy_tile<HD, BM, THREADS>(to + TILE, (const bf16 *)j.dout + t * j.do_ls + h * d, j.do_ls, m.S - at.query, d);
        if (threadIdx.x < BM) {
            const bool live = at.query + (int)threadIdx.x < m.S;
            const int64_t from = live ? (t + threadIdx.x) * j.H + h : 0;
            const uint32_t term = shared_address(terms) + stage * TERMS + threadIdx.x * 4;
            copy4(term, j.lse + from, live);
            copy4(term + BM * 4, delta + from, live);
        }
        commit_copies();
    };

    float dk[OD / 8][4] = {}, dv[OD / 8][4] = {};
    struct turn at = next_turn<BM>(m, {0, first}, first, end, group, keys);
    if (at.head < group) copy_turn(at, 0);
    for (int stage = 0; at.head < group; stage ^= 1) {
        const struct turn next = next_turn<BM>(m, {at.head, at.query + BM}, first, end, group, keys);
        wait_copies(); // this turn's tiles are here, the other stage is free
        if (next.head < group) copy_turn(next, stage ^ 1);
        const uint32_t tile = stages + stage * STAGE;
        const float *lse = terms + stage * (TERMS / 4) + col, *row_term = lse + BM;
        const bool partly = hides(m, key, min(at.query + BM, m.S) - 1, keys, range_at(m, at.query, BM));
#pragma unroll 1
        for (int u = 0; u < BM; u += 16) {
            const int query = at.query + u;
            if (query + 15 < warp_key) continue; // all of them before the first key
            float p[2][4] = {}, ds[2][4] = {};
            multiply_rows<HD, 2, KEPT>(p, k_kept, k_lane, lane_of_b<HD>(tile) + u * HD * 2);
            multiply_rows<HD, 2, KEPT>(ds, v_kept, v_lane, lane_of_b<HD>(tile + TILE) + u * HD * 2);
            const bool masked = partly || query < warp_key + 15;
#pragma unroll
            for (int n = 0; n < 2; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int c = u + n * 8 + (e & 1);
                    p[n][e] = power2(fmaf(p[n][e], scale2, -lse[c] * LOG2E));
                    if (masked) {
                        const int i = query + n * 8 + col + (e & 1), k = row + (e >> 1) * 8;
                        if (i < k || k < first_key(m, i) || (m.doc && doc_at(m, i) != doc_at(m, k))) p[n][e] = 0;
                    }
                    ds[n][e] = p[n][e] * (ds[n][e] - row_term[c]);
                }
            }
            add_product<HD, OD>(dv, p[0], p[1], lane_of_transposed<HD>(tile + TILE) + u * HD * 2, part * (OD / 16));
            add_product<HD, OD>(dk, ds[0], ds[1], lane_of_transposed<HD>(tile) + u * HD * 2, part * (OD / 16));
        }
        at = next;
    }
    const int64_t element = kv * d + part * OD + col;
    store_rows<OD>((bf16 *)j.dk + (start + row) * j.dk_ls + element, j.dk_ls, dk, j.scale, m.S - row, d - part * OD);
    store_rows<OD>((bf16 *)j.dv + (start + row) * j.dv_ls + element, j.dv_ls, dv, 1.0f, m.S - row, d - part * OD);
}

// ---- dq ----

// WARPS * 16 queries over tiles of BN keys, SUB of them at a time.
template <int HD, int BN, int WARPS, int SUB, bool KEPT>
static __global__ void __launch_bounds__(WARPS * 32)
    attend_queries(struct mx8_attention_job j, const float *delta, const int2 *ranges) {
    constexpr int BM = WARPS * 16, THREADS = WARPS * 32, TILE = BN * HD * 2, STAGE = 2 * TILE;
    static_assert(!KEPT || BM <= 2 * BN, "queries and gradients pass through the stages");
    extern __shared__ __align__(1024) char memory[];
    const uint32_t stages = shared_address(memory), own = KEPT ? stages : stages + 2 * STAGE;
    const int tiles = (int)((j.S + BM - 1) / BM), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int query = (tiles - 1 - (int)(blockIdx.x % tiles)) * BM; // the longest first
    const int64_t head = blockIdx.x / tiles, h = head % j.H, start = head / j.H * j.S, kv = h / (j.H / j.KV);
    const struct mask m = mask_of(j, ranges, head / j.H);
    const int d = (int)j.d, end = min(query + BM, m.S), warp_query = query + warp * 16, row = warp_query + lane / 4,
              col = (lane & 3) * 2;
    const int2 queries = range_at(m, query, BM);
    const float scale2 = j.scale * LOG2E;

    copy_tile<HD, BM, THREADS>(own, (const bf16 *)j.q + (start + query) * j.q_ls + h * d, j.q_ls, m.S - query, d);
    copy_tile<HD, BM, THREADS>(
        own + BM * HD * 2, (const bf16 *)j.dout + (start + query) * j.do_ls + h * d, j.do_ls, m.S - query, d);
    commit_copies();
    const uint32_t q_lane = lane_of_a<HD>(own) + warp * 16 * HD * 2, g_lane = q_lane + BM * HD * 2;
    uint32_t q_kept[KEPT ? HD / 16 : 1][4], g_kept[KEPT ? HD / 16 : 1][4];
    if constexpr (KEPT) {
        wait_copies();
        load_rows<HD>(q_kept, q_lane);
        load_rows<HD>(g_kept, g_lane);
        __syncthreads(); // before the stages are filled
    }
    float lse2[2], row_term[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool live = row + half * 8 < m.S;
        const int64_t term = (start + row + half * 8) * j.H + h;
        lse2[half] = live ? j.lse[term] * LOG2E : 0.0f;
        row_term[half] = live ? delta[term] : 0.0f;
    }
    const auto copy_keys = [&](int key, int stage) {
        const uint32_t to = stages + stage * STAGE;
        copy_tile<HD, BN, THREADS>(to, (const bf16 *)j.k + (start + key) * j.k_ls + kv * d, j.k_ls, m.S - key, d);
        copy_tile<HD, BN, THREADS>(
            to + TILE, (const bf16 *)j.v + (start + key) * j.v_ls + kv * d, j.v_ls, m.S - key, d);
        commit_copies();
    };

    float dq[HD / 8][4] = {};
    int key = next_tile(m, first_key(m, query) / BN * BN, end, BN, queries);
    if (key < end) copy_keys(key, 0);
    for (int stage = 0; key < end; stage ^= 1) {
        const int next = next_tile(m, key + BN, end, BN, queries);
        wait_copies(); // this turn's tiles are here, the other stage is free
        if (next < end) copy_keys(next, stage ^ 1);
        const uint32_t tile = stages + stage * STAGE;
        const bool partly = hides(m, key, end - 1, range_at(m, key, BN), queries);
#pragma unroll 1
        for (int u = 0; u < BN; u += SUB) {
            if (key + u > warp_query + 15) break; // all of them after the last query
            float p[SUB / 8][4] = {}, ds[SUB / 8][4] = {};
            multiply_rows<HD, SUB / 8, KEPT>(p, q_kept, q_lane, lane_of_b<HD>(tile) + u * HD * 2);
            multiply_rows<HD, SUB / 8, KEPT>(ds, g_kept, g_lane, lane_of_b<HD>(tile + TILE) + u * HD * 2);
            const bool masked = partly || key + u + SUB - 1 > warp_query;
#pragma unroll
            for (int n = 0; n < SUB / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float prob = power2(fmaf(p[n][e], scale2, -lse2[e >> 1]));
                    if (masked) {
                        const int k = key + u + n * 8 + col + (e & 1), i = row + (e >> 1) * 8;
                        if (i < k || k < first_key(m, i) || (m.doc && doc_at(m, i) != doc_at(m, k))) prob = 0;
                    }
                    ds[n][e] = prob * (ds[n][e] - row_term[e >> 1]);
                }
            }
#pragma unroll
            for (int s = 0; s < SUB / 16; s++)
                add_product<HD, HD>(
                    dq, ds[2 * s], ds[2 * s + 1], lane_of_transposed<HD>(tile) + (u + s * 16) * HD * 2, 0);
        }
        key = next;
    }
    store_rows<HD>((bf16 *)j.dq + (start + row) * j.dq_ls + h * d + col, j.dq_ls, dq, j.scale, m.S - row, d);
}

// ---- launching ----

// delta = sum(dout * o); one warp a row and head.
template <class T, int N> static __global__ void find_row_terms(struct mx8_attention_job j, float *delta) {
    const int64_t i = (int64_t)blockIdx.x * 4 + (threadIdx.x >> 5);
    if (i >= j.T * j.H) return;
    const int64_t t = i / j.H, h = i % j.H;
    const T *o = (const T *)j.o + t * j.o_ls + h * j.d, *g = (const T *)j.dout + t * j.do_ls + h * j.d;
    float sum = 0;
    for (int64_t c = (threadIdx.x & 31) * N; c < j.d; c += 32 * N) {
        const pack<N> a = load<N>(o + c), b = load<N>(g + c);
#pragma unroll
        for (int e = 0; e < N; e++) sum = fmaf(a.v[e], b.v[e], sum);
    }
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) == 0) delta[i] = sum;
}

template <int HD, int OD, int BM, int WARPS, bool KEPT>
static enum mx8_status launch_keys(
    const struct mx8_exec *x, const struct mx8_attention_job *j, const float *delta, const int2 *ranges) {
    constexpr int bytes = (4 * BM + (KEPT ? 0 : 2 * WARPS * 16)) * HD * 2 + 4 * BM * 4;
    CUDA_TRY(
        cudaFuncSetAttribute(attend_keys<HD, OD, BM, WARPS, KEPT>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention_backward");
    const int64_t blocks = j->T / j->S * j->KV * ceil_div(j->S, WARPS * 16) * (HD / OD);
    attend_keys<HD, OD, BM, WARPS, KEPT><<<(unsigned)blocks, WARPS * 32, bytes, stream_of(x)>>>(*j, delta, ranges);
    CUDA_LAUNCHED("attention_backward");
}

template <int HD, int BN, int WARPS, int SUB, bool KEPT>
static enum mx8_status launch_queries(
    const struct mx8_exec *x, const struct mx8_attention_job *j, const float *delta, const int2 *ranges) {
    constexpr int bytes = (4 * BN + (KEPT ? 0 : 2 * WARPS * 16)) * HD * 2;
    CUDA_TRY(cudaFuncSetAttribute(
                 attend_queries<HD, BN, WARPS, SUB, KEPT>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention_backward");
    const int64_t blocks = j->T / j->S * j->H * ceil_div(j->S, WARPS * 16);
    attend_queries<HD, BN, WARPS, SUB, KEPT><<<(unsigned)blocks, WARPS * 32, bytes, stream_of(x)>>>(*j, delta, ranges);
    CUDA_LAUNCHED("attention_backward");
}

enum mx8_status cuda_attention_backward(const struct mx8_exec *x, const struct mx8_attention_job *j) {
    if (j->T == 0 || j->H * j->d == 0) return MX8_OK;
    const enum mx8_status tried = cuda_attention_cudnn(x, j, 1);
    if (tried != MX8_UNSUPPORTED) return tried;
    float *const delta = (float *)j->workspace;
    int2 *const ranges = (int2 *)((char *)j->workspace + delta_bytes(j));
    const bool fast = is_fast(j) && rows_fit(j->dout, j->do_ls) && rows_fit(j->dq, j->dq_ls) &&
                      rows_fit(j->dk, j->dk_ls) && rows_fit(j->dv, j->dv_ls);
    const unsigned blocks = blocks_for(j->T * j->H, 4, 0x7FFFFFFF);
    if (fast)
        find_row_terms<bf16, WIDE><<<blocks, 128, 0, stream_of(x)>>>(*j, delta);
    else
        BY_TYPE(j->dtype, T, find_row_terms<T, 1><<<blocks, 128, 0, stream_of(x)>>>(*j, delta));
    CUDA_TRY(cudaGetLastError(), "attention_backward");
    if (!fast) return simt_backward(x, j, delta);
    enum mx8_status status = make_ranges(x, j, ranges);
    if (status != MX8_OK) return status;
    if (j->d <= 64) {
        status = launch_keys<64, 64, 64, 8, true>(x, j, delta, ranges);
        return status != MX8_OK ? status : launch_queries<64, 64, 8, 32, true>(x, j, delta, ranges);
    }
    if (j->d <= 128) {
        status = launch_keys<128, 128, 64, 8, true>(x, j, delta, ranges);
        return status != MX8_OK ? status : launch_queries<128, 64, 8, 32, true>(x, j, delta, ranges);
    }
    status = launch_keys<256, 128, 16, 4, false>(x, j, delta, ranges);
    return status != MX8_OK ? status : launch_queries<256, 16, 4, 16, false>(x, j, delta, ranges);
}
