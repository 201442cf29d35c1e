// AdamW, and both orientations of codes of the new weights in scale groups of 256: weight, gradient and moments are read
// once, and what is rounded to bf16 is quantized on the spot and never stored. Bytes a weight: 16 read and 14.06 written
// with moments in f32, 8 less with moments in bf16; the kernels one after the other move 8 more (the weights once more, and
// bf16 written and read).
//
// A persistent CTA walks tiles of 256 x 256, as quantize_256 does. Pass A updates: a warp has a row of 256 at a time, every
// lane four columns of each half, so that all accesses are whole lines of 512 (256) bytes; the row behind it is on its way
// in registers meanwhile, 64 to 128 KB an SM, enough to hide the memory's latency without TMA. The rounded weights stay in
// shared memory, maxima in registers. Pass B is quantize_256's; the next tile's first rows arrive during it.
#include "adamw.cuh"
#include "kernels/adamw_pieces.h"
#include "quantize_256.cuh"
#pragma nv_diag_suppress 177 // before sm_90 nobody calls what the kernel calls

namespace fused {
namespace {
enum { WARPS = 16, ROWS_EACH = 256 / WARPS, SMEM_UPDATE = 4 * PIECE + 2 * BUFFER + 256 * 4 + 128 * 4 };

struct Update {
    struct mx8_adamw_job job;
    struct adamw_constants constants;
};

// Four neighbours as they are stored, and as floats.
__device__ __forceinline__ float4 fetch(const float *p) { return __ldcs((const float4 *)p); }
__device__ __forceinline__ uint2 fetch(const bf16 *p) { return __ldcs((const uint2 *)p); }
__device__ __forceinline__ void unpack(float4 a, float *v) { v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; }
__device__ __forceinline__ void unpack(uint2 a, float *v) { v[0] = low(a.x); v[1] = high(a.x); v[2] = low(a.y); v[3] = high(a.y); }
__device__ __forceinline__ void put(float *p, const float *v) { __stcs((float4 *)p, make_float4(v[0], v[1], v[2], v[3])); }
__device__ __forceinline__ void put(bf16 *p, const float *v) { __stcs((uint2 *)p, make_uint2(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]))); }

// A lane's part of a row: four columns of either half.
template <class S> struct Row {
    decltype(fetch((const S *)nullptr)) m[2], v[2];
    float4 p[2], g[2];
};

__device__ __forceinline__ Tile find_tile(const Job &p, unsigned unit) {
    const unsigned across = divide_up(p.cols, 256), down = divide_up(p.rows, 256), band = unit / across;
    Tile t;
    t.band = band;
    t.batch = band / down;
    t.row = t.at = band % down * 256;
    t.col = unit % across * 256;
    t.rows = min(256, p.rows - t.row);
    t.room = p.padded_rows - t.at;
    return t;
}

// Of the job's first column of the row that is r below the tile's top, r < tile.rows.
__device__ __forceinline__ int64_t row_start(const Job &p, const Tile &tile, int r) {
    return ((int64_t)tile.batch * p.rows + tile.row + r) * p.cols;
}

template <class S> __device__ __forceinline__ void load_row(const Job &p, const Update &u, const Tile &tile, int r, Row<S> *row) {
    if (r >= tile.rows) return;
    const int64_t start = row_start(p, tile, r);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int col = tile.col + h * 128 + threadIdx.x % 32 * 4;
        if (col >= p.cols) continue;
        const int64_t at = start + col;
        row->g[h] = fetch(u.job.grad + at);
        row->v[h] = fetch((const S *)u.job.v + at);
        row->m[h] = fetch((const S *)u.job.m + at);
        row->p[h] = fetch((const float *)u.job.master + at);
    }
}

// Updates row r of the tile, puts what it becomes in bf16 into the slots (zeros where there is none) and its maximum into
// row_factor; columns: maxima of this lane's four pairs, signs meaning nothing.
template <class S>
__device__ __forceinline__ void update_row(const Job &p, const Update &u, float grad_scale, const Shared &sm, const Tile &tile, int r,
                                           const Row<S> &row, uint32_t *columns) {
    const int lane = threadIdx.x % 32;
    uint32_t two[4] = {0, 0, 0, 0};
    if (r < tile.rows) {
        const int64_t start = row_start(p, tile, r);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int col = tile.col + h * 128 + lane * 4;
            if (col >= p.cols) continue;
            const int64_t at = start + col;
            float w[4], g[4], m[4], v[4];
            unpack(row.p[h], w);
            unpack(row.g[h], g);
            unpack(row.m[h], m);
            unpack(row.v[h], v);
#pragma unroll
            for (int e = 0; e < 4; e++) update_element<S>(u.job, u.constants, grad_scale, at + e, g[e], w[e], m[e], v[e]);
            put((S *)u.job.m + at, m);
            put((S *)u.job.v + at, v);
            put(u.job.master + at, w);
            two[2 * h] = bf16_pair(w[0], w[1]);
            two[2 * h + 1] = bf16_pair(w[2], w[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) columns[i] = max2_abs(columns[i], two[i]);
    const uint32_t pair = magnitudes(max8_abs(make_uint4(two[0], two[1], two[2], two[3])));
    const uint32_t most = __reduce_max_sync(~0u, max(pair & 0xFFFF, pair >> 16)); // bits of magnitudes order as they do, NaN above all
    if (lane == 0) sm.row_factor[r] = most;
    uint8_t *const to = sm.slots + r / 128 * PIECE + r % 128 * 256 + lane * 8; // piece s: column half s/2, row half s%2
    *(uint2 *)to = make_uint2(two[0], two[1]);
    *(uint2 *)(to + 2 * PIECE) = make_uint2(two[2], two[3]);
}

// Pass A. first: this warp's first row, on its way; what comes back is that of `next`, if there is one.
template <class S>
__device__ __forceinline__ void update_tile(const Job &p, const Update &u, float grad_scale, const Shared &sm, const Tile &tile, bool more,
                                            const Tile &next, Row<S> *first) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t columns[4] = {0, 0, 0, 0};
    Row<S> second;
#pragma unroll 1
    for (int i = 0; i < ROWS_EACH; i += 2) {
        const int r = i * WARPS + warp;
        load_row(p, u, tile, r + WARPS, &second);
        update_row<S>(p, u, grad_scale, sm, tile, r, *first, columns);
        if (i + 2 < ROWS_EACH) load_row(p, u, tile, r + 2 * WARPS, first);
        else if (more) load_row(p, u, next, warp, first);
        update_row<S>(p, u, grad_scale, sm, tile, r + WARPS, second, columns);
    }
    uint32_t *const to = sm.warp_max() + warp * 128 + lane * 2;
    *(uint2 *)to = make_uint2(magnitudes(columns[0]), magnitudes(columns[1]));
    *(uint2 *)(to + 64) = make_uint2(magnitudes(columns[2]), magnitudes(columns[3]));
}

// Pass B, as quantize_tile of quantize_256.cuh.
template <bool COUNT, bool FULL>
__device__ __forceinline__ void convert_tile(const Job &p, const Shared &sm, const Tile &tile, Encoder<COUNT> *encoder) {
    const int t = threadIdx.x;
    uint8_t *const row_to = p.row_codes + tile.batch * p.rc_batch + (tile.row + t / 16 * 4) * p.rc_row + tile.col + t % 16 * 8;
    uint8_t *const col_to = p.col_codes + tile.batch * p.cc_batch + (tile.col + t / 8) * p.cc_col + tile.at + t % 8 * 16;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint8_t *const buffer = sm.buffers + (s & 1) * BUFFER;
        const uint4 rows = *(const uint4 *)&sm.row_factor[s % 2 * 128 + t / 16 * 4];
        convert_piece<true, true, COUNT, FULL>(p, rows, sm.col_factor + s / 2 * 64, tile, sm.slots + s * PIECE, buffer, s % 2 * 128, s / 2 * 128,
                                               row_to, encoder);
        __syncthreads(); // behind the last one nobody reads the slots or the first buffer any more
        store_columns<FULL>(p, tile, buffer, s % 2 * 128, s / 2 * 128, col_to);
    }
}

template <class S, bool COUNT>
__global__ __launch_bounds__(512, 1) void adamw_quantize_256(const __grid_constant__ Job p, const __grid_constant__ Update given, unsigned units) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) uint8_t memory[];
    Shared sm = {memory, memory + 4 * PIECE, (uint32_t *)(memory + 4 * PIECE + 2 * BUFFER), nullptr, 0};
    sm.col_factor = sm.row_factor + 256;
    Update u = given;
    read_adamw_state(u.job, u.constants);
    const float grad_scale = u.job.grad_scale ? *u.job.grad_scale : 1.0f;
    Encoder<COUNT> encoder;
    Row<S> first;
    load_row(p, u, find_tile(p, blockIdx.x), threadIdx.x / 32, &first);
#pragma unroll 1
    for (unsigned unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const Tile tile = find_tile(p, unit);
        const bool more = unit + gridDim.x < units;
        update_tile<S>(p, u, grad_scale, sm, tile, more, find_tile(p, more ? unit + gridDim.x : unit), &first);
        __syncthreads();
        make_scales<true, true>(p, sm, tile);
        __syncthreads();
        if (tile.rows == 256 && tile.col + 256 <= p.cols && tile.room >= 256) convert_tile<COUNT, true>(p, sm, tile, &encoder);
        else convert_tile<COUNT, false>(p, sm, tile, &encoder);
    }
    encoder.report(p.saturated);
#endif
}

template <class S, bool COUNT> enum mx8_status launch(const struct mx8_exec *x, const Job &p, const Update &u) {
    const int64_t units = (int64_t)((p.rows + 255) / 256) * ((p.cols + 255) / 256) * p.batch, most = backend_of(x)->sm_count;
    if (units > INT32_MAX) return MX8_UNSUPPORTED;
    CUDA_TRY(cudaFuncSetAttribute(adamw_quantize_256<S, COUNT>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_UPDATE), "adamw_quantize");
    adamw_quantize_256<S, COUNT><<<(unsigned)(units < most ? units : most), 512, SMEM_UPDATE, stream_of(x)>>>(p, u, (unsigned)units);
    CUDA_LAUNCHED("adamw_quantize");
}

enum mx8_status run(const struct mx8_exec *x, const Job &p, const Update &u) {
    Scratch scratch = all_scratch(x);
    const Job gathered = gather_scales(&scratch, p);
    const bool narrow = u.job.moment_dtype == MX8_BF16;
    const enum mx8_status status = narrow ? (counts(p) ? launch<bf16, true>(x, gathered, u) : launch<bf16, false>(x, gathered, u))
                                          : (counts(p) ? launch<float, true>(x, gathered, u) : launch<float, false>(x, gathered, u));
    return status == MX8_OK ? spread_scales(x, gathered) : status;
}

// The job as if it read a bf16 matrix of this shape. False: not for this kernel.
bool take(const struct mx8_exec *x, const struct mx8_adamw_job *a, const struct mx8_quant_job *j, Job *out) {
    if (backend_of(x)->capability != 90 || !j->row_codes || !j->col_codes || j->n_groups) return false;
    if (!is_aligned(a->master) || !is_aligned(a->grad) || !is_aligned(a->m) || !is_aligned(a->v)) return false;
    struct mx8_quant_job k = *j;
    mx8i_read_packed(&k, nullptr);
    if (!takes(&k)) return false;
    *out = make_job(&k);
    return fits_256(*out);
}
} // namespace
} // namespace fused

enum mx8_status cuda_adamw_quantize(const struct mx8_exec *x, const struct mx8_adamw_job *a, const struct mx8_quant_job *j) {
    fused::Job p;
    if (j->batch * j->rows * j->cols == 0) return MX8_OK;
    if (fused::take(x, a, j, &p)) {
        const enum mx8_status status = fused::run(x, p, {*a, make_adamw_constants(a)});
        if (status != MX8_UNSUPPORTED) return status;
    }
    return mx8i_adamw_by_pieces(x, a, j, cuda_adamw, cuda_quantize, MX8_ADAMW_PIECE);
}
