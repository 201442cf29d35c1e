// RMSNorm: y = s * rstd * w, s = x (+ add), rstd = 1 / sqrt(mean(s^2) + eps).
// Backward, with g = dy * w: dx = rstd * g - s * rstd^3 * mean(g * s) (+ dres); dw = sum over rows of dy * s * rstd.
// One block a row, which stays in registers (KEEP packs a thread) between the sum and the result: forward moves 4 bytes
// an element of bf16 (8 with add and sum), backward 6 (8 with dres). Rows too long for that are read twice.
// Backward deals its rows to a fixed number of blocks: each keeps its share of dw in registers and writes it once.
#include "model.cuh"
#include "quantize_fused.cuh"

enum { KEEP = 4, MAX_THREADS = 1024 };
enum { BACKWARD_THREADS = 512, BACKWARD_BLOCKS = 792, BACKWARD_ROWS = 16 }; // three packs a turn: twice the registers

// Threads of a block that keeps a row of `items` packs; 0 when it is too long for `limit` threads.
static int keeping_threads(int64_t items, int limit) {
    const int64_t threads = (ceil_div(items, KEEP) + 31) / 32 * 32;
    return threads > limit ? 0 : (int)threads;
}

template <class T, int N> __device__ __forceinline__ pack<N> load_sum(const T *x, const T *add, int64_t at) {
    pack<N> v = load<N>(x + at);
    if (add) {
        const pack<N> a = load<N>(add + at);
#pragma unroll
        for (int i = 0; i < N; i++) v.v[i] = round_as(v.v[i] + a.v[i], x);
    }
    return v;
}

template <int N> __device__ __forceinline__ float dot(const pack<N> &a, const pack<N> &b, float sum) {
#pragma unroll
    for (int i = 0; i < N; i++) sum = fmaf(a.v[i], b.v[i], sum);
    return sum;
}

// The row's packs of this thread, and their share of its sum of squares.
template <class T, int N> __device__ __forceinline__ float keep_row(pack<N> *kept, const T *x, const T *add, int64_t items) {
    float squares = 0;
#pragma unroll
    for (int p = 0; p < KEEP; p++) {
        const int64_t i = threadIdx.x + p * (int64_t)blockDim.x;
        if (i < items) kept[p] = load_sum<T, N>(x, add, i * N);
    }
#pragma unroll
    for (int p = 0; p < KEEP; p++)
        if (threadIdx.x + p * (int64_t)blockDim.x < items) squares = dot(kept[p], kept[p], squares);
    return squares;
}

template <class T, class W, int N>
__device__ __forceinline__ pack<N> store_norm(T *y, const W *w, pack<N> v, float rstd, int64_t at) {
    const pack<N> by = load<N>(w + at);
#pragma unroll
    for (int i = 0; i < N; i++) v.v[i] = v.v[i] * rstd * by.v[i];
    store(y + at, v);
    return v;
}

// Row codes of what a warp has just stored: 256 neighbours, eight a lane (zeros past the row's end).
template <int GROUP, bool COUNT>
__device__ __forceinline__ void store_codes(const fused::Job &q, const pack<8> &v, int row, int col, bool there, fused::Encoder<COUNT> *encoder) {
    using namespace fused;
    const uint4 two = make_uint4(bf16_pair(v.v[0], v.v[1]), bf16_pair(v.v[2], v.v[3]), bf16_pair(v.v[4], v.v[5]), bf16_pair(v.v[6], v.v[7]));
    uint32_t m = magnitudes(max8_abs(two));
    m = max_lanes<1, GROUP / 8>(max2(m, swap2(m)));
    const uint32_t byte = byte_of(m & 0xFFFF, q.rule), f = factor_of(byte);
    const uint2 codes = encoder->eight(two, lows(f, f));
    if (!there) return;
    __stcs((uint2 *)(q.row_codes + row * q.rc_row + col), codes);
    if (threadIdx.x % 4 == 0) q.row_scales[row * q.rs_row + (col / 32) * q.rs_block] = (uint8_t)byte;
}

// norm_rows for bf16 rows that stay in registers, and their codes.
template <class W, int GROUP, bool COUNT>
static __global__ void __launch_bounds__(MAX_THREADS) norm_quantize_rows(const __grid_constant__ struct mx8_rmsnorm_job j, const __grid_constant__ fused::Job q) {
#if __CUDA_ARCH__ >= 900
    __shared__ float parts[32];
    const int64_t items = j.D / WIDE;
    const W *w = (const W *)j.w;
    fused::Encoder<COUNT> encoder;
    for (int64_t t = blockIdx.x; t < j.T; t += gridDim.x) {
        const bf16 *x = (const bf16 *)j.x + t * j.D, *add = j.add ? (const bf16 *)j.add + t * j.D : NULL;
        bf16 *sum = j.sum ? (bf16 *)j.sum + t * j.D : NULL, *y = (bf16 *)j.y + t * j.D;
        pack<WIDE> kept[KEEP] = {};
        const float squares = keep_row(kept, x, add, items);
        const float rstd = 1.0f / sqrtf(block_sum(squares, parts) / (float)j.D + j.eps);
        if (j.rstd && threadIdx.x == 0) j.rstd[t] = rstd;
#pragma unroll
        for (int p = 0; p < KEEP; p++) {
            const int64_t i = threadIdx.x + p * (int64_t)blockDim.x;
            if (i - threadIdx.x % 32 >= items) break; // the whole warp
            pack<WIDE> v = kept[p];
            if (i < items) {
                if (sum) store(sum + i * WIDE, v);
                v = store_norm(y, w, v, rstd, i * WIDE);
            }
            store_codes<GROUP, COUNT>(q, v, (int)t, (int)(i * WIDE), i < items, &encoder);
        }
    }
    encoder.report(q.saturated);
#endif
}

template <class T, class W, int N, bool KEPT>
static __global__ void __launch_bounds__(MAX_THREADS) norm_rows(struct mx8_rmsnorm_job j) {
    __shared__ float parts[32];
    const int64_t items = j.D / N;
    const W *w = (const W *)j.w;
    for (int64_t t = blockIdx.x; t < j.T; t += gridDim.x) {
        const T *x = (const T *)j.x + t * j.D, *add = j.add ? (const T *)j.add + t * j.D : NULL;
        T *sum = j.sum ? (T *)j.sum + t * j.D : NULL, *y = (T *)j.y + t * j.D;
        pack<N> kept[KEPT ? KEEP : 1];
        float squares = 0;
        if constexpr (KEPT) {
            squares = keep_row(kept, x, add, items);
        } else {
            for (int64_t i = threadIdx.x; i < items; i += blockDim.x) {
                const pack<N> v = load_sum<T, N>(x, add, i * N);
                if (sum) store(sum + i * N, v);
                squares = dot(v, v, squares);
            }
        }
        const float rstd = 1.0f / sqrtf(block_sum(squares, parts) / (float)j.D + j.eps);
        if (j.rstd && threadIdx.x == 0) j.rstd[t] = rstd;
        if constexpr (KEPT) {
#pragma unroll
            for (int p = 0; p < KEEP; p++) {
                const int64_t i = threadIdx.x + p * (int64_t)blockDim.x;
                if (i >= items) break;
                if (sum) store(sum + i * N, kept[p]);
                store_norm<T, W, N>(y, w, kept[p], rstd, i * N);
            }
        } else {
            for (int64_t i = threadIdx.x; i < items;
                 i += blockDim.x) { // from sum where there is one: it may have replaced x
                const pack<N> v = sum ? load<N>(sum + i * N) : load_sum<T, N>(x, add, i * N);
                store_norm<T, W, N>(y, w, v, rstd, i * N);
            }
        }
    }
}

enum mx8_status cuda_rmsnorm(const struct mx8_exec *x, const struct mx8_rmsnorm_job *j) {
    if (j->T == 0 || j->D == 0) return MX8_OK;
    const bool wide = j->D % WIDE == 0 && is_aligned(j->x) && is_aligned(j->add) && is_aligned(j->w) &&
                      is_aligned(j->y) && is_aligned(j->sum);
    const int threads = keeping_threads(wide ? j->D / WIDE : j->D, MAX_THREADS);
    BY_TYPE(j->dtype, T, BY_TYPE(j->w_dtype, W, BY_WIDTH(wide, N, {
        if (threads)
            norm_rows<T, W, N, true><<<row_blocks(j->T), threads, 0, stream_of(x)>>>(*j);
        else
            norm_rows<T, W, N, false><<<row_blocks(j->T), MAX_THREADS, 0, stream_of(x)>>>(*j);
    })));
    CUDA_LAUNCHED("rmsnorm");
}

// UNSUPPORTED without a message when the job is not for it, and then nothing was written.
enum mx8_status cuda_rmsnorm_quantize(const struct mx8_exec *x, const struct mx8_rmsnorm_job *j, const struct mx8_quant_job *codes) {
    struct mx8_quant_job of_y = *codes;
    of_y.src = j->y;
    if (backend_of(x)->capability != 90 || j->dtype != MX8_BF16 || codes->col_codes || !codes->row_codes || codes->n_groups || codes->batch != 1 ||
        codes->tile > 1 || !fused::takes(&of_y))
        return MX8_UNSUPPORTED;
    const fused::Job q = fused::make_job(&of_y);
    const int threads = keeping_threads(j->D / WIDE, MAX_THREADS);
    if (!threads || !is_aligned(j->x) || !is_aligned(j->add) || !is_aligned(j->w) || !is_aligned(j->y) || !is_aligned(j->sum)) return MX8_UNSUPPORTED;
    BY_TYPE(j->w_dtype, W, {
        const bool counted = fused::counts(q);
        void (*const kernel)(struct mx8_rmsnorm_job, fused::Job) =
            q.group == 32    ? counted ? norm_quantize_rows<W, 32, true> : norm_quantize_rows<W, 32, false>
            : q.group == 128 ? counted ? norm_quantize_rows<W, 128, true> : norm_quantize_rows<W, 128, false>
                             : counted ? norm_quantize_rows<W, 256, true> : norm_quantize_rows<W, 256, false>;
        kernel<<<row_blocks(j->T), threads, 0, stream_of(x)>>>(*j, q);
    });
    CUDA_LAUNCHED("rmsnorm");
}

// dx of one pack: g * rstd - x * along (+ dres).
template <class T, int N>
__device__ __forceinline__ void store_gradient(
    T *dx, const T *dres, const pack<N> &g, const pack<N> &x, float rstd, float along, int64_t at) {
    pack<N> d;
#pragma unroll
    for (int i = 0; i < N; i++) d.v[i] = fmaf(-x.v[i], along, g.v[i] * rstd);
    if (dres) {
        const pack<N> r = load<N>(dres + at);
#pragma unroll
        for (int i = 0; i < N; i++) d.v[i] += r.v[i];
    }
    store(dx + at, d);
}

template <class T, class W, int N>
__device__ __forceinline__ pack<N> times_weight(const pack<N> &dy, const W *w, int64_t at) {
    pack<N> g = load<N>(w + at);
#pragma unroll
    for (int i = 0; i < N; i++) g.v[i] *= dy.v[i];
    return g;
}

// Block b owns rows b, b + gridDim.x, ...; partial (gridDim.x, D) receives its share of dw, NULL when that is not
// wanted.
template <class T, class W, int N>
static __global__ void __launch_bounds__(BACKWARD_THREADS)
    norm_backward_kept(struct mx8_rmsnorm_backward_job j, float *partial) {
    __shared__ float parts[32];
    const int64_t items = j.D / N;
    pack<N> dw[KEEP] = {};
    for (int64_t t = blockIdx.x; t < j.T; t += gridDim.x) {
        const T *x = (const T *)j.x + t * j.D, *dy = (const T *)j.dy + t * j.D;
        pack<N> v[KEEP], d[KEEP];
#pragma unroll
        for (int p = 0; p < KEEP; p++) {
            const int64_t i = threadIdx.x + p * (int64_t)blockDim.x;
            if (i >= items) continue;
            v[p] = load<N>(x + i * N);
            d[p] = load<N>(dy + i * N);
        }
        const float rstd = j.rstd[t];
        float sum = 0;
#pragma unroll
        for (int p = 0; p < KEEP; p++) {
            const int64_t i = threadIdx.x + p * (int64_t)blockDim.x;
            if (i >= items) continue;
#pragma unroll
            for (int e = 0; e < N; e++) dw[p].v[e] = fmaf(d[p].v[e], v[p].v[e] * rstd, dw[p].v[e]);
            d[p] = times_weight<T, W, N>(d[p], (const W *)j.w, i * N);
            sum = dot(d[p], v[p], sum);
        }
        if (!j.dx) continue;
        const float along = rstd * rstd * rstd * (block_sum(sum, parts) / (float)j.D);
        T *dx = (T *)j.dx + t * j.D;
        const T *dres = j.dres ? (const T *)j.dres + t * j.D : NULL;
#pragma unroll
        for (int p = 0; p < KEEP; p++) {
            const int64_t i = threadIdx.x + p * (int64_t)blockDim.x;
            if (i < items) store_gradient<T, N>(dx, dres, d[p], v[p], rstd, along, i * N);
        }
    }
    if (!partial) return;
#pragma unroll
    for (int p = 0; p < KEEP; p++) {
        const int64_t i = threadIdx.x + p * (int64_t)blockDim.x;
        if (i < items) store(partial + blockIdx.x * j.D + i * N, dw[p]);
    }
}

template <class T, class W, int N> static __global__ void norm_backward_long(struct mx8_rmsnorm_backward_job j) {
    __shared__ float parts[32];
    const int64_t items = j.D / N;
    const W *w = (const W *)j.w;
    for (int64_t t = blockIdx.x; t < j.T; t += gridDim.x) {
        const T *x = (const T *)j.x + t * j.D, *dy = (const T *)j.dy + t * j.D,
                *dres = j.dres ? (const T *)j.dres + t * j.D : NULL;
        float sum = 0;
        for (int64_t i = threadIdx.x; i < items; i += blockDim.x)
            sum = dot(times_weight<T, W, N>(load<N>(dy + i * N), w, i * N), load<N>(x + i * N), sum);
        const float rstd = j.rstd[t], along = rstd * rstd * rstd * (block_sum(sum, parts) / (float)j.D);
        for (int64_t i = threadIdx.x; i < items; i += blockDim.x)
            store_gradient<T, N>((T *)j.dx + t * j.D, dres, times_weight<T, W, N>(load<N>(dy + i * N), w, i * N),
                load<N>(x + i * N), rstd, along, i * N);
    }
}

static enum mx8_status long_rows_backward(
    const struct mx8_exec *x, const struct mx8_rmsnorm_backward_job *j, bool wide) {
    if (j->dw) { // first, because dx may lie where dy does
        struct column_sum s = {};
        s.out = j->dw;
        s.accumulate = j->accumulate;
        s.a = j->dy;
        s.b = j->x;
        s.factor = j->rstd;
        s.rows = j->T;
        s.cols = j->D;
        s.ls = j->D;
        s.dtype = j->dtype;
        const enum mx8_status status = cuda_sum_columns(x, &s);
        if (status != MX8_OK) return status;
    }
    if (!j->dx || j->T == 0) return MX8_OK;
    BY_TYPE(j->dtype, T,
        BY_TYPE(j->w_dtype, W,
            BY_WIDTH(wide, N, norm_backward_long<T, W, N><<<row_blocks(j->T), MAX_THREADS, 0, stream_of(x)>>>(*j))));
    CUDA_LAUNCHED("rmsnorm_backward");
}

enum mx8_status cuda_rmsnorm_backward(const struct mx8_exec *x, const struct mx8_rmsnorm_backward_job *j) {
    if (j->D == 0) return MX8_OK;
    const bool wide = j->D % WIDE == 0 && is_aligned(j->dy) && is_aligned(j->x) && is_aligned(j->w) &&
                      is_aligned(j->dres) && is_aligned(j->dx);
    const int threads = keeping_threads(wide ? j->D / WIDE : j->D, BACKWARD_THREADS);
    const int64_t wanted = ceil_div(j->T, BACKWARD_ROWS);
    const int64_t blocks = partial_rows(x, wanted < BACKWARD_BLOCKS ? wanted : BACKWARD_BLOCKS, j->D);
    if (!threads || blocks < 1) return long_rows_backward(x, j, wide);
    float *partial = j->dw ? (float *)x->scratch : NULL;
    BY_TYPE(j->dtype, T,
        BY_TYPE(j->w_dtype, W,
            BY_WIDTH(
                wide, N, norm_backward_kept<T, W, N><<<(unsigned)blocks, threads, 0, stream_of(x)>>>(*j, partial))));
    CUDA_TRY(cudaGetLastError(), "rmsnorm_backward");
    return j->dw ? cuda_add_partials(x, j->dw, j->accumulate, partial, blocks, j->D) : MX8_OK;
}
