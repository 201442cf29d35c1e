// Fast quantizers of bf16 to e4m3: both orientations from one read. The same bits as quantize.cu, which takes every job
// that these do not. Since sm_90: earlier GPUs convert to e4m3 in software and have no TMA.
//
//   quantize_256   scale groups of 256 in either or both orientations, tiles of 1 or 32 lines (quantize_256.cuh)
//   quantize_128   scale groups of 32 or 128, column codes with or without row codes
//   quantize_rows  row codes alone, scale groups of 32, 128 or 256 (quantize_fused.cuh)
//
// Bytes: 2 read and 1.03 written per element and orientation. This file chooses, and holds the second.
#include "quantize_256.cuh"
#pragma nv_diag_suppress 177 // before sm_90 nobody calls what the kernels call

namespace fused {
namespace {
// ---- groups of 32 and 128: a CTA makes one tile of 128 x 128, kept in registers ----

// Row tile `index` of the groups; every warp searches 32 groups at a time.
[[maybe_unused]] __device__ bool find_tile(const Job &p, int index, Tile *t) {
    const int lane = threadIdx.x % 32;
    int start = 0, before = 0, padded = 0, end = p.rows, room = p.padded_rows;
    for (int g = 0; g < p.n_groups; g += 32) {
        const int last = p.offsets[min(g + lane, p.n_groups - 1)], up = __shfl_up_sync(~0u, last, 1), first = lane ? up : start;
        const int n = divide_up(last - first, 128), size = round_up(last - first, p.padding);
        int tiles = n, sizes = size;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const int a = __shfl_up_sync(~0u, tiles, o), b = __shfl_up_sync(~0u, sizes, o);
            if (lane >= o) { tiles += a; sizes += b; }
        }
        const unsigned found = __ballot_sync(~0u, index < before + tiles);
        const int from = found ? __ffs(found) - 1 : 31;
        end = __shfl_sync(~0u, last, from);
        if (found) {
            start = __shfl_sync(~0u, first, from);
            before += __shfl_sync(~0u, tiles - n, from);
            padded += __shfl_sync(~0u, sizes - size, from);
            room = min(p.padded_rows, padded + __shfl_sync(~0u, size, from));
            break;
        }
        start = end;
        before += __shfl_sync(~0u, tiles, 31);
        padded += __shfl_sync(~0u, sizes, 31);
        if (g + 32 >= p.n_groups) return false;
    }
    const int down = (index - before) * 128;
    *t = {(int)blockIdx.y, start + down, min(128, end - start - down), 0, padded + down, room - padded - down, 0};
    return t->rows > 0;
}

// Thread t holds columns 8 (t%16) .. of rows 8 (t/16) ..; a warp holds 16 rows of all columns.
template <int GROUP> struct Tile128 {
    uint2 transposed[128 * 16];         // [column][8 rows], the second index ^= column / 8
    uint32_t warp_max[8][64];           // pairs of columns
    uint32_t col_factor[128 / GROUP][64];  // [group][pair of columns]
    uint32_t row_factor[128 / GROUP][128]; // [group][row], the same in both halves; first the maxima
    uint8_t bytes[256][4];              // scales of [column][block], and of [128 + row][block]
};
#define FOR8 _Pragma("unroll") for (int i = 0; i < 8; i++)

template <int GROUP, bool ROW> __device__ __forceinline__ void find_maxima_128(Tile128<GROUP> &sm, const uint4 *v) {
    const int t = threadIdx.x, cx = t % 16, ry = t / 16;
    uint32_t cm[4] = {}, rm[8];
    FOR8 {
        cm[0] = max2_abs(cm[0], v[i].x); cm[1] = max2_abs(cm[1], v[i].y); cm[2] = max2_abs(cm[2], v[i].z); cm[3] = max2_abs(cm[3], v[i].w);
        if (ROW) rm[i] = max8_abs(v[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) { cm[i] = magnitudes(cm[i]); cm[i] = max2(cm[i], __shfl_xor_sync(~0u, cm[i], 16)); }
    if (t % 32 < 16) *(uint4 *)&sm.warp_max[t / 32][cx * 4] = make_uint4(cm[0], cm[1], cm[2], cm[3]);
    if (ROW) {
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const uint32_t m = max_lanes<1, GROUP / 8>(magnitudes(max2_abs(lows(rm[i], rm[i + 1]), highs(rm[i], rm[i + 1]))));
            if (cx % (GROUP / 8) == 0) *(uint2 *)&sm.row_factor[cx / (GROUP / 8)][ry * 8 + i] = make_uint2(m & 0xFFFF, m >> 16);
        }
    }
}

template <int GROUP, bool ROW> __device__ __forceinline__ void make_scales_128(const Job &p, Tile128<GROUP> &sm) {
    const int t = threadIdx.x;
    for (int i = t; ROW && i < 128 * (128 / GROUP); i += 256) {
        const int g = i / 128, r = i % 128;
        uint32_t m = sm.row_factor[g][r];
        if (p.row_tile == 32) m = __reduce_max_sync(~0u, m);
        const uint32_t b = byte_of(m, p.rule), f = factor_of(b);
        sm.row_factor[g][r] = lows(f, f);
#pragma unroll
        for (int k = 0; k < GROUP / 32; k++) sm.bytes[128 + r][g * GROUP / 32 + k] = (uint8_t)b;
    }
    if (t < 64 * (128 / GROUP)) {
        constexpr int WARPS = GROUP / 16;
        const int g = t / 64, pair = t % 64;
        uint32_t m = sm.warp_max[g * WARPS][pair];
#pragma unroll
        for (int i = 1; i < WARPS; i++) m = max2(m, sm.warp_max[g * WARPS + i][pair]);
        if (p.col_tile == 32) m = max_lanes<1, 16>(max2(m, swap2(m)));
        const uint32_t b0 = byte_of(m & 0xFFFF, p.rule), b1 = byte_of(m >> 16, p.rule);
        sm.col_factor[g][pair] = lows(factor_of(b0), factor_of(b1));
#pragma unroll
        for (int i = 0; i < GROUP / 32; i++) {
            sm.bytes[2 * pair][g * GROUP / 32 + i] = (uint8_t)b0;
            sm.bytes[2 * pair + 1][g * GROUP / 32 + i] = (uint8_t)b1;
        }
    }
}

__device__ __forceinline__ void store_half_piece(uint8_t *to, uint2 v, int room) { // as store_piece
    if (room >= 8) { __stcs((uint2 *)to, v); return; }
#pragma unroll 1
    for (int i = 0; i < room; i++) to[i] = (uint8_t)((i < 4 ? v.x : v.y) >> 8 * (i % 4));
}

// FULL: a tile without an edge, nearly all of them; no bounds.
template <int GROUP, bool ROW, bool COUNT, bool FULL> __device__ __forceinline__ void quantize_tile_128(const Job &p, Tile128<GROUP> &sm, const Tile &tile) {
    const int t = threadIdx.x, cx = t % 16, ry = t / 16;
    const int col = tile.col + cx * 8, rows = FULL ? 8 : col < p.cols ? tile.rows - ry * 8 : 0; // rows of this thread that exist
    uint4 v[8];
    const __nv_bfloat16 *src = p.src + tile.batch * p.src_batch + (int64_t)(tile.row + ry * 8) * p.src_row + col;
    FOR8 { v[i] = i < rows ? __ldcs((const uint4 *)src) : make_uint4(0, 0, 0, 0); src += p.src_row; }
    find_maxima_128<GROUP, ROW>(sm, v);
    __syncthreads();
    make_scales_128<GROUP, ROW>(p, sm);
    __syncthreads();
    Encoder<COUNT> encoder;
    if (ROW) {
        const uint4 *f = (const uint4 *)&sm.row_factor[cx * 8 / GROUP][ry * 8], f0 = f[0], f1 = f[1];
        const uint32_t factors[8] = {f0.x, f0.y, f0.z, f0.w, f1.x, f1.y, f1.z, f1.w};
        uint8_t *to = p.row_codes + tile.batch * p.rc_batch + (tile.row + ry * 8) * p.rc_row + col;
        FOR8 {
            const uint2 codes = encoder.eight(v[i], factors[i]);
            if (i < rows) __stcs((uint2 *)to, codes);
            to += p.rc_row;
        }
    }
    const uint4 f4 = *(const uint4 *)&sm.col_factor[ry * 8 / GROUP][cx * 4];
    const uint32_t f[4] = {f4.x, f4.y, f4.z, f4.w};
    Encoder<COUNT && !ROW> column;
#pragma unroll
    for (int j = 0; j < 4; j++) { // columns 2j and 2j + 1
        uint32_t x[8];
        FOR8 x[i] = j == 0 ? v[i].x : j == 1 ? v[i].y : j == 2 ? v[i].z : v[i].w;
        uint2 a, b;
        column.two_columns(x[0], x[1], x[2], x[3], f[j], &a.x, &b.x);
        column.two_columns(x[4], x[5], x[6], x[7], f[j], &a.y, &b.y);
        if (!FULL) { // padding is zero in a group of NaN too
            const int n = tile.rows - ry * 8;
            a = make_uint2(keep_bytes(a.x, n), keep_bytes(a.y, n - 4));
            b = make_uint2(keep_bytes(b.x, n), keep_bytes(b.y, n - 4));
        }
        sm.transposed[(cx * 8 + 2 * j) * 16 + (ry ^ cx)] = a;
        sm.transposed[(cx * 8 + 2 * j + 1) * 16 + (ry ^ cx)] = b;
    }
    encoder.clipped += column.clipped;
    const uint32_t four = *(const uint32_t *)sm.bytes[t];
    if (t < 128 && tile.col + t < p.cols) {
        uint8_t *to = p.col_scales + tile.batch * p.cs_batch + (tile.col + t) * p.cs_col + (tile.at / 32) * p.cs_block;
        store_scales<4>(to, p.cs_block, four, divide_up(tile.rows, 32), min(4, divide_up(tile.room, 32)));
    }
    if (ROW && t >= 128 && t - 128 < tile.rows) {
        const int blocks = min(4, divide_up(p.cols - tile.col, 32));
        uint8_t *to = p.row_scales + tile.batch * p.rs_batch + (tile.row + t - 128) * p.rs_row + (tile.col / 32) * p.rs_block;
        store_scales<4>(to, p.rs_block, four, blocks, blocks);
    }
    __syncthreads();
    uint8_t *to = p.col_codes + tile.batch * p.cc_batch + (tile.col + ry) * p.cc_col + tile.at + cx * 8;
#pragma unroll
    for (int i = 0; i < 8; i++, to += 16 * p.cc_col) {
        const int c = i * 16 + ry, room = tile.room - cx * 8;
        const uint2 codes = sm.transposed[c * 16 + (cx ^ (c / 8))];
        if (FULL) __stcs((uint2 *)to, codes);
        else if (tile.col + c < p.cols) store_half_piece(to, codes, room);
    }
    encoder.report(p.saturated);
}
#undef FOR8

template <int GROUP, bool ROW, bool COUNT> __global__ __launch_bounds__(256, 3) void quantize_128(const __grid_constant__ Job p) {
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(16) Tile128<GROUP> sm;
    const int across = divide_up(p.cols, 128);
    Tile tile;
    if (!find_tile(p, blockIdx.x / across, &tile)) return;
    tile.col = blockIdx.x % across * 128;
    if (tile.rows == 128 && tile.room >= 128 && tile.col + 128 <= p.cols) quantize_tile_128<GROUP, ROW, COUNT, true>(p, sm, tile);
    else quantize_tile_128<GROUP, ROW, COUNT, false>(p, sm, tile);
#endif
}

// ---- behind the groups ----

// Rows past the last group (row orientation), positions past the last group's padding (column orientation), and the padded
// ends. What lies between groups is the tiles' own. Every block sums the groups up, 32 at a time.
__global__ void finish_groups(const __grid_constant__ Job p) {
    __shared__ int ends[2];
    if (threadIdx.x < 32) {
        int start = 0, padded = 0;
        for (int g = 0; g < p.n_groups; g += 32) {
            const int lane = threadIdx.x, last = p.offsets[min(g + lane, p.n_groups - 1)], up = __shfl_up_sync(~0u, last, 1);
            int sizes = round_up(last - (lane ? up : start), p.padding);
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                const int a = __shfl_up_sync(~0u, sizes, o);
                if (lane >= o) sizes += a;
            }
            if (p.padded_ends && blockIdx.x == 0 && g + lane < p.n_groups) p.padded_ends[g + lane] = padded + sizes;
            start = __shfl_sync(~0u, last, 31);
            padded += __shfl_sync(~0u, sizes, 31);
        }
        if (threadIdx.x == 0) { ends[0] = start; ends[1] = padded; }
    }
    __syncthreads();
    const int64_t thread = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    if (p.row_codes) {
        const int64_t pieces = p.cols / 8, blocks = divide_up(p.cols, 32), rows = p.rows - ends[0];
        for (int64_t i = thread; i < rows * pieces; i += step) *(uint2 *)(p.row_codes + (ends[0] + i / pieces) * p.rc_row + i % pieces * 8) = make_uint2(0, 0);
        for (int64_t i = thread; i < rows * blocks; i += step) p.row_scales[(ends[0] + i / blocks) * p.rs_row + i % blocks * p.rs_block] = 0;
    }
    if (p.col_codes && ends[1] < p.padded_rows) {
        const int64_t pieces = divide_up(p.padded_rows - ends[1], 16), blocks = divide_up(p.padded_rows - ends[1], 32);
        for (int64_t i = thread; i < p.cols * pieces; i += step) {
            const int at = ends[1] + (int)(i % pieces) * 16;
            store_piece(p.col_codes + i / pieces * p.cc_col + at, make_uint4(0, 0, 0, 0), p.padded_rows - at);
        }
        for (int64_t i = thread; i < p.cols * blocks; i += step) p.col_scales[i / blocks * p.cs_col + (ends[1] / 32 + i % blocks) * p.cs_block] = 0;
    }
}

// ---- which job goes where ----

bool fits(const void *p, int64_t row_bytes, int64_t batch_bytes, int64_t unit) {
    return ((uint64_t)(uintptr_t)p | (uint64_t)row_bytes | (uint64_t)batch_bytes) % (uint64_t)unit == 0;
}

} // namespace

bool takes(const struct mx8_quant_job *j) {
    const int64_t limit = INT32_MAX - 65536, padding = j->padding > 0 ? j->padding : 32;
    const int64_t bs = j->batch > 1 ? 1 : 0; // strides between matrices mean nothing when there is one
    if (j->src_dtype != MX8_BF16 || j->format != MX8_F8_E4M3 || j->rows <= 0 || j->cols <= 0 || j->cols % 8 || 256 % padding) return false;
    if (j->rows > limit || j->cols > limit || j->padded_rows > limit || (j->n_groups > 0 && j->batch != 1)) return false;
    if (j->src_stride[2] != 1 || j->src_stride[1] < j->cols || !fits(j->src, j->src_stride[1] * 2, bs * j->src_stride[0] * 2, 16)) return false;
    if (j->row_codes && (j->row_code_stride[2] != 1 || !fits(j->row_codes, j->row_code_stride[1], bs * j->row_code_stride[0], 8))) return false;
    return !j->col_codes || (j->col_code_stride[1] == 1 && fits(j->col_codes, j->col_code_stride[2], bs * j->col_code_stride[0], 16));
}

Job make_job(const struct mx8_quant_job *j) {
    Job p = {};
    p.src = (const __nv_bfloat16 *)j->src; p.src_batch = j->src_stride[0]; p.src_row = j->src_stride[1];
    p.rows = (int)j->rows; p.cols = (int)j->cols; p.batch = (int)j->batch;
    p.offsets = j->offsets; p.n_groups = j->n_groups; p.padding = j->padding > 0 ? j->padding : 32; p.padded_ends = j->padded_ends;
    p.padded_rows = (int)(j->n_groups == 0 && j->padded_rows < j->rows ? j->rows : j->padded_rows);
    p.row_codes = j->row_codes; p.rc_batch = j->row_code_stride[0]; p.rc_row = j->row_code_stride[1];
    p.row_scales = j->row_scales; p.rs_batch = j->row_scale_stride[0]; p.rs_row = j->row_scale_stride[1]; p.rs_block = j->row_scale_stride[2];
    p.col_codes = j->col_codes; p.cc_batch = j->col_code_stride[0]; p.cc_col = j->col_code_stride[2];
    p.col_scales = j->col_scales; p.cs_batch = j->col_scale_stride[0]; p.cs_block = j->col_scale_stride[1]; p.cs_col = j->col_scale_stride[2];
    p.rule = j->rule; p.group = j->group > 32 ? j->group : 32;
    p.row_tile = j->tile > 1 ? j->tile : 1; p.col_tile = j->col_tile > 0 ? j->col_tile : p.row_tile;
    p.saturated = (unsigned long long *)j->saturated;
    return p;
}

namespace {
template <int GROUP> enum mx8_status run_128(const struct mx8_exec *x, const Job &p) {
    if ((p.row_codes && p.row_tile > 32) || p.col_tile > 32 || 128 % p.padding) return MX8_UNSUPPORTED;
    const int64_t tiles = ((int64_t)(p.rows + 127) / 128 + p.n_groups) * ((p.cols + 127) / 128);
    if (tiles > INT32_MAX) return MX8_UNSUPPORTED;
    const dim3 grid((unsigned)tiles, (unsigned)p.batch);
    if (p.row_codes && counts(p)) quantize_128<GROUP, true, true><<<grid, 256, 0, stream_of(x)>>>(p);
    else if (p.row_codes) quantize_128<GROUP, true, false><<<grid, 256, 0, stream_of(x)>>>(p);
    else if (counts(p)) quantize_128<GROUP, false, true><<<grid, 256, 0, stream_of(x)>>>(p);
    else quantize_128<GROUP, false, false><<<grid, 256, 0, stream_of(x)>>>(p);
    CUDA_LAUNCHED("quantize");
}

enum mx8_status choose(const struct mx8_exec *x, const Job &p) {
    if (!p.col_codes && p.row_tile == 1) return run_rows(x, p, Stored());
    if (p.group == 256) return run_256(x, p);
    if (!p.col_codes) return MX8_UNSUPPORTED;
    return p.group == 32 ? run_128<32>(x, p) : p.group == 128 ? run_128<128>(x, p) : MX8_UNSUPPORTED;
}
} // namespace

enum mx8_status finish(const struct mx8_exec *x, const Job &p) {
    finish_groups<<<132, 256, 0, stream_of(x)>>>(p);
    CUDA_LAUNCHED("quantize");
}
} // namespace fused

enum mx8_status cuda_quantize_fused(const struct mx8_exec *x, const struct mx8_quant_job *j) {
    if (backend_of(x)->capability != 90 || !fused::takes(j) || (!j->row_codes && !j->col_codes)) return MX8_UNSUPPORTED;
    const fused::Job p = fused::make_job(j);
    const enum mx8_status s = fused::choose(x, p);
    return s == MX8_OK && p.n_groups > 0 ? fused::finish(x, p) : s;
}
