// Attention forward, after FlashAttention-2 (Dao 2023): a block owns a tile of queries of one head, keys and values
// pass by in tiles, the softmax is online:
//     m' = max(m, s), l' = l e^(m-m') + sum e^(s-m'), o' = o e^(m-m') + e^(s-m') v;   o / l and lse = m + ln l at the
//     end.
// Four warps of M x 16 queries each: with M = 2 a fragment of k or v serves two products, which keeps shared memory
// ahead of the tensor cores. The keys' next tile is copied while the values are multiplied and the other way round.
// Tiles that the causal, document or chunk mask hides whole are neither copied nor multiplied. 4 d multiplications a
// visible pair.
#include <math.h>
#include "attention.cuh"

using namespace attention;

enum { WARPS = 4, THREADS = WARPS * 32 };

template <int M> struct row_state { float max[M][2], sum[M][2]; }; // sum: this lane's columns only

// Hidden scores become -Inf. `row` and `col` are the position of this lane's first score.
template <int M, int BN>
static __device__ __forceinline__ void hide_scores(float (&s)[M][BN / 8][4], const struct mask &m, int row, int col) {
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = row + i * 16 + half * 8, least = first_key(m, query), doc = doc_at(m, query);
#pragma unroll
            for (int n = 0; n < BN / 8; n++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int key = col + n * 8 + e;
                    if (key > query || key < least || (m.doc && doc_at(m, key) != doc))
                        s[i][n][half * 2 + e] = -INFINITY;
                }
            }
        }
    }
}

// One step of the online softmax: scores become probabilities, o is rescaled. A row that has seen nothing has maximum
// -Inf.
template <int M, int BN, int HD>
static __device__ __forceinline__ void soften(
    float (&s)[M][BN / 8][4], float (&o)[M][HD / 8][4], struct row_state<M> &rows, float scale2) {
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float max = rows.max[i][half];
#pragma unroll
            for (int n = 0; n < BN / 8; n++) max = fmaxf(max, fmaxf(s[i][n][half * 2], s[i][n][half * 2 + 1]));
            max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, 1));
            max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, 2));
            const float base = max == -INFINITY ? 0.0f : max * scale2,
                        rescale = power2(rows.max[i][half] * scale2 - base);
            float sum = 0;
#pragma unroll
            for (int n = 0; n < BN / 8; n++) {
#pragma unroll
                for (int e = half * 2; e < half * 2 + 2; e++) {
                    s[i][n][e] = power2(fmaf(s[i][n][e], scale2, -base));
                    sum += s[i][n][e];
                }
            }
            rows.max[i][half] = max;
            rows.sum[i][half] = fmaf(rows.sum[i][half], rescale, sum);
#pragma unroll
            for (int n = 0; n < HD / 8; n++) {
                o[i][n][half * 2] *= rescale;
                o[i][n][half * 2 + 1] *= rescale;
            }
        }
    }
}

template <int M, int HD>
static __device__ __forceinline__ void store_rows(const struct mx8_attention_job &j, const float (&o)[M][HD / 8][4],
    const struct row_state<M> &rows, int64_t start, int64_t h, int row) {
    const int col = (threadIdx.x & 3) * 2;
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = rows.sum[i][half];
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
            const int query = row + i * 16 + half * 8;
            if (query >= j.S) continue;
            const int64_t t = start + query;
            if (col == 0) j.lse[t * j.H + h] = rows.max[i][half] * j.scale + logf(sum);
            const float inverse = 1.0f / sum;
            bf16 *to = (bf16 *)j.o + t * j.o_ls + h * j.d + col;
#pragma unroll
            for (int n = 0; n < HD / 8; n++)
                if (n * 8 < j.d)
                    *(uint32_t *)(to + n * 8) = bf16_pair(o[i][n][half * 2] * inverse, o[i][n][half * 2 + 1] * inverse);
        }
    }
}

template <int HD, int M, int BN>
static __global__ void __launch_bounds__(THREADS) attend(struct mx8_attention_job j, const int2 *ranges) {
    constexpr int BM = WARPS * M * 16;
    extern __shared__ __align__(1024) char memory[];
    const uint32_t q_tile = shared_address(memory), k_tile = q_tile + BM * HD * 2, v_tile = k_tile + BN * HD * 2;
    const int tiles = (int)((j.S + BM - 1) / BM), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int query = (tiles - 1 - (int)(blockIdx.x % tiles)) * BM; // the longest first
    const int64_t head = blockIdx.x / tiles, h = head % j.H, start = head / j.H * j.S, kv = h / (j.H / j.KV);
    const struct mask m = mask_of(j, ranges, head / j.H);
    const bf16 *q = (const bf16 *)j.q + (start + query) * j.q_ls + h * j.d;
    const bf16 *k = (const bf16 *)j.k + start * j.k_ls + kv * j.d, *v = (const bf16 *)j.v + start * j.v_ls + kv * j.d;
    const int d = (int)j.d, end = min(query + BM, m.S), warp_query = query + warp * M * 16, row = warp_query + lane / 4;
    const int2 queries = range_at(m, query, BM);
    const uint32_t q_lane = lane_of_a<HD>(q_tile) + warp * M * 16 * HD * 2, k_lane = lane_of_b<HD>(k_tile),
                   v_lane = lane_of_transposed<HD>(v_tile);
    const float scale2 = j.scale * LOG2E;

    float o[M][HD / 8][4] = {};
    struct row_state<M> rows;
#pragma unroll
    for (int i = 0; i < M; i++) {
        rows.max[i][0] = rows.max[i][1] = -INFINITY;
        rows.sum[i][0] = rows.sum[i][1] = 0;
    }
    int key = next_tile(m, first_key(m, query) / BN * BN, end, BN, queries);
    copy_tile<HD, BM, THREADS>(q_tile, q, j.q_ls, m.S - query, d);
    if (key < end) copy_tile<HD, BN, THREADS>(k_tile, k + key * j.k_ls, j.k_ls, m.S - key, d);
    commit_copies();
    while (key < end) {
        wait_copies(); // keys are here, values free
        copy_tile<HD, BN, THREADS>(v_tile, v + key * j.v_ls, j.v_ls, m.S - key, d);
        commit_copies();
        float s[M][BN / 8][4] = {};
#pragma unroll
        for (int step = 0; step < HD / 16; step++) {
            uint32_t a[M][4];
#pragma unroll
            for (int i = 0; i < M; i++) load_matrices(a[i], moved<HD>(q_lane, i * 16, step));
#pragma unroll
            for (int n = 0; n < BN / 16; n++) {
                uint32_t b[4];
                load_matrices(b, moved<HD>(k_lane, n * 16, step));
#pragma unroll
                for (int i = 0; i < M; i++) {
                    multiply(s[i][2 * n], a[i], b[0], b[1]);
                    multiply(s[i][2 * n + 1], a[i], b[2], b[3]);
                }
            }
        }
        const int next = next_tile(m, key + BN, end, BN, queries);
        wait_copies(); // values are here, keys free
        if (next < end) copy_tile<HD, BN, THREADS>(k_tile, k + next * j.k_ls, j.k_ls, m.S - next, d);
        commit_copies();
        if (key + BN - 1 > warp_query || hides(m, key, end - 1, range_at(m, key, BN), queries))
            hide_scores<M, BN>(s, m, row, key + (lane & 3) * 2);
        soften<M, BN, HD>(s, o, rows, scale2);
#pragma unroll
        for (int step = 0; step < BN / 16; step++) {
            uint32_t a[M][4];
#pragma unroll
            for (int i = 0; i < M; i++) as_operand(a[i], s[i][2 * step], s[i][2 * step + 1]);
#pragma unroll
            for (int n = 0; n < HD / 16; n++) {
                uint32_t b[4];
                load_transposed(b, moved<HD>(v_lane, step * 16, n));
#pragma unroll
                for (int i = 0; i < M; i++) {
                    multiply(o[i][2 * n], a[i], b[0], b[1]);
                    multiply(o[i][2 * n + 1], a[i], b[2], b[3]);
                }
            }
        }
        key = next;
    }
    store_rows<M, HD>(j, o, rows, start, h, row);
}

template <int HD, int M, int BN>
static enum mx8_status launch_forward(const struct mx8_exec *x, const struct mx8_attention_job *j, const int2 *ranges) {
    constexpr int BM = WARPS * M * 16, bytes = (BM + 2 * BN) * HD * 2;
    CUDA_TRY(cudaFuncSetAttribute(attend<HD, M, BN>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attention");
    const int64_t blocks = j->T / j->S * j->H * ceil_div(j->S, BM);
    attend<HD, M, BN><<<(unsigned)blocks, THREADS, bytes, stream_of(x)>>>(*j, ranges);
    CUDA_LAUNCHED("attention");
}

enum mx8_status cuda_attention(const struct mx8_exec *x, const struct mx8_attention_job *j) {
    if (j->T == 0 || j->H * j->d == 0) return MX8_OK;
    const enum mx8_status tried = cuda_attention_cudnn(x, j, 0);
    if (tried != MX8_UNSUPPORTED) return tried;
    if (!is_fast(j)) return simt_forward(x, j);
    int2 *ranges = (int2 *)j->workspace;
    const enum mx8_status status = make_ranges(x, j, ranges);
    if (status != MX8_OK) return status;
    if (j->d <= 64) return launch_forward<64, 2, 64>(x, j, ranges);
    if (j->d <= 128) return launch_forward<128, 2, 64>(x, j, ranges);
    return launch_forward<256, 1, 32>(x, j, ranges);
}

// ---- workspace: the row terms (backward only), then the document ranges ----

size_t cuda_attention_workspace(const struct mx8_attention_job *j, int32_t backward, int32_t threads) {
    (void)threads;
    const size_t own = (backward ? delta_bytes(j) : 0) + (size_t)range_count(j) * sizeof(int2),
                 cudnn = cuda_attention_cudnn_workspace(j, backward);
    return own > cudnn ? own : cudnn; // either may be the one that runs
}

// One warp an entry.
static __global__ void find_ranges(const int32_t *doc, int2 *ranges, int64_t S, int64_t count) {
    const int64_t entry = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5), per_sequence = (S + RANGE - 1) / RANGE;
    if (entry >= count) return;
    const int64_t sequence = entry / per_sequence, first = entry % per_sequence * RANGE,
                  end = first + RANGE < S ? first + RANGE : S;
    int least = 0x7FFFFFFF, largest = -0x7FFFFFFF - 1;
    for (int64_t i = first + (threadIdx.x & 31); i < end; i += 32) {
        const int at = doc[sequence * S + i];
        least = min(least, at);
        largest = max(largest, at);
    }
    for (int step = 16; step > 0; step >>= 1) {
        least = min(least, __shfl_xor_sync(0xFFFFFFFFu, least, step));
        largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    }
    if ((threadIdx.x & 31) == 0) ranges[entry] = make_int2(least, largest);
}

enum mx8_status attention::make_ranges(const struct mx8_exec *x, const struct mx8_attention_job *j, int2 *ranges) {
    if (!j->doc) return MX8_OK;
    const int64_t count = range_count(j);
    find_ranges<<<blocks_for(count, WARPS, 0x7FFFFFFF), THREADS, 0, stream_of(x)>>>(j->doc, ranges, j->S, count);
    CUDA_LAUNCHED("attention ranges");
}
