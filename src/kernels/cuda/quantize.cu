// Quantizers for every job: any strides, geometry, rule and format. Rows of a group, or of the whole matrix, form a plane of
// lines that blocks run along (rows, or columns in the column orientation). A warp makes one tile of `tile` lines by `group`
// positions: amax first, then codes; the second read hits the caches. Jobs of the trainer's shape (contiguous bf16, groups of
// 256) are taken by quantize_fused.cu instead.
//
// Bytes: 2 read and 1.03 written per element and orientation.
#include "backend.h"
#include "scale.cuh"

namespace {
struct Plane {
    const void *src; int src_bf16; int64_t batch_step, line_step, pos_step; // source strides
    uint8_t *codes; int64_t code_batch, code_line, code_pos;
    uint8_t *scales; int64_t scale_batch, scale_line, scale_block;
    int64_t lines, length;     // of the whole matrix
    int along_rows;            // positions are rows: groups cut positions (column orientation), else they cut lines
    int group, tile, rule, e5m2, padding; int64_t padded;
    const int *offsets; int n_groups; int32_t *padded_ends; unsigned long long *saturated;
};

// A warp's tile: lines [l, l_end), source positions [s, s_end), and where position s lands among the codes.
struct Tile { int64_t l, l_end, s, s_end, at; };

// Tile `unit` of the plane; group boundaries are read on the device. False: past the last tile.
__device__ bool find_tile(const Plane &p, int64_t unit, Tile *t) {
    const int G = p.n_groups > 0 ? p.n_groups : 1;
    int64_t begin = 0, padded = 0;
    for (int g = 0; g < G; g++) {
        const int64_t end = p.n_groups > 0 ? p.offsets[g] : p.along_rows ? p.length : p.lines, size = end - begin;
        const int64_t n_lines = ((p.along_rows ? p.lines : size) + p.tile - 1) / p.tile;
        const int64_t n_groups = ((p.along_rows ? size : p.length) + p.group - 1) / p.group, n = n_lines * n_groups;
        if (unit < n) {
            // Neighbouring warps take neighbouring memory: along rows that is the next line, else the next group of a line.
            const int64_t a = p.along_rows ? unit % n_lines : unit / n_groups, b = p.along_rows ? unit / n_lines : unit % n_groups;
            const int64_t line0 = p.along_rows ? 0 : begin, pos0 = p.along_rows ? begin : 0;
            t->l = line0 + a * p.tile;
            t->l_end = min(t->l + p.tile, line0 + (p.along_rows ? p.lines : size));
            t->s = pos0 + b * p.group;
            t->s_end = min(t->s + p.group, pos0 + (p.along_rows ? size : p.length));
            t->at = p.along_rows ? padded + b * p.group : t->s;
            return true;
        }
        unit -= n;
        begin = end;
        padded += (size + p.padding - 1) / p.padding * p.padding;
    }
    return false;
}

__device__ __forceinline__ float read(const Plane &p, int64_t at) {
    return p.src_bf16 ? __bfloat162float(((const __nv_bfloat16 *)p.src)[at]) : ((const float *)p.src)[at];
}

// Lanes run along positions when those are contiguous in the source, else along lines.
__global__ __launch_bounds__(256) void quantize_tiles(const __grid_constant__ Plane p, int64_t units) {
    const int lane = threadIdx.x % 32;
    const int64_t b = blockIdx.y;
    unsigned long long clipped = 0;
    for (int64_t u = blockIdx.x * 8 + threadIdx.x / 32; u < units; u += gridDim.x * 8) {
        Tile t;
        if (!find_tile(p, u, &t)) break;
        const int64_t nl = t.l_end - t.l, ns = t.s_end - t.s, src = b * p.batch_step + t.l * p.line_step + t.s * p.pos_step;
        uint32_t amax = 0;
        for (int64_t i = lane; i < nl * ns; i += 32)
            amax = max(amax, __float_as_uint(read(p, src + i / ns * p.line_step + i % ns * p.pos_step)) & 0x7FFFFFFFu);
        amax = __reduce_max_sync(~0u, amax);
        const uint32_t byte = mx8::scale_byte(amax, p.rule, p.e5m2);
        const float inv = mx8::inverse_scale(byte);
        for (int64_t i = lane; i < nl * ns; i += 32) {
            const int64_t l = i / ns, s = i % ns;
            const float v = read(p, src + l * p.line_step + s * p.pos_step) * inv;
            p.codes[b * p.code_batch + (t.l + l) * p.code_line + (t.at + s) * p.code_pos] = (uint8_t)mx8::encode_f8(v, byte, p.e5m2);
            clipped += byte != 255 && mx8::is_clipped(v, p.e5m2);
        }
        const int64_t blocks = (ns + 31) / 32;
        for (int64_t i = lane; i < nl * blocks; i += 32)
            p.scales[b * p.scale_batch + (t.l + i / blocks) * p.scale_line + (t.at / 32 + i % blocks) * p.scale_block] = (uint8_t)byte;
    }
    if (p.saturated && clipped) atomicAdd(p.saturated, clipped);
}

// The column orientation with one scale per line: a lane is a line, so that reads of a row-major source coalesce.
__global__ __launch_bounds__(256) void quantize_lines(const __grid_constant__ Plane p, int64_t units) {
    const int lane = threadIdx.x % 32;
    const int64_t b = blockIdx.y;
    Plane q = p;
    q.tile = 32; // find_tile hands out 32 lines at a time
    unsigned long long clipped = 0;
    for (int64_t u = blockIdx.x * 8 + threadIdx.x / 32; u < units; u += gridDim.x * 8) {
        Tile t;
        if (!find_tile(q, u, &t)) break;
        const int64_t l = t.l + lane;
        if (l >= t.l_end) continue;
        const int64_t src = b * p.batch_step + l * p.line_step;
        uint32_t amax = 0;
#pragma unroll 8
        for (int64_t s = t.s; s < t.s_end; s++) amax = max(amax, __float_as_uint(read(p, src + s * p.pos_step)) & 0x7FFFFFFFu);
        const uint32_t byte = mx8::scale_byte(amax, p.rule, p.e5m2);
        const float inv = mx8::inverse_scale(byte);
        uint8_t *codes = p.codes + b * p.code_batch + l * p.code_line;
        for (int64_t s = t.s; s < t.s_end; s += 4) {
            uint32_t word = 0;
            const int n = (int)min((int64_t)4, t.s_end - s);
            for (int i = 0; i < n; i++) {
                const float v = read(p, src + (s + i) * p.pos_step) * inv;
                word |= mx8::encode_f8(v, byte, p.e5m2) << 8 * i;
                clipped += byte != 255 && mx8::is_clipped(v, p.e5m2);
            }
            uint8_t *out = codes + (t.at + s - t.s) * p.code_pos;
            if (n == 4 && p.code_pos == 1 && (uintptr_t)out % 4 == 0) *(uint32_t *)out = word;
            else for (int i = 0; i < n; i++) out[i * p.code_pos] = (uint8_t)(word >> 8 * i);
        }
        for (int64_t i = 0; i < (t.s_end - t.s + 31) / 32; i++)
            p.scales[b * p.scale_batch + l * p.scale_line + (t.at / 32 + i) * p.scale_block] = (uint8_t)byte;
    }
    if (p.saturated && clipped) atomicAdd(p.saturated, clipped);
}

// Everything that holds no source element becomes zero: rows past the last group (row orientation), or the gaps behind
// each group and the tail (column orientation). One block walks one gap; y is the batch.
__global__ void clear_gaps(const __grid_constant__ Plane p) {
    const int64_t b = blockIdx.y;
    int64_t begin = 0, padded = 0, from, to, blocks_from, blocks_to;
    const int G = p.n_groups > 0 ? p.n_groups : 1, g = blockIdx.x; // gap g follows group g; gap G-1 reaches to the end
    for (int i = 0; i <= g; i++) {
        const int64_t end = p.n_groups > 0 ? p.offsets[i] : p.along_rows ? p.length : p.lines;
        from = padded + end - begin;
        padded += (end - begin + p.padding - 1) / p.padding * p.padding;
        begin = end;
    }
    if (!p.along_rows) { // whole lines
        for (int64_t l = begin + threadIdx.x / 32; l < p.lines && g == G - 1; l += blockDim.x / 32) {
            for (int64_t s = threadIdx.x % 32; s < p.length; s += 32) p.codes[b * p.code_batch + l * p.code_line + s * p.code_pos] = 0;
            for (int64_t s = threadIdx.x % 32; s < (p.length + 31) / 32; s += 32) p.scales[b * p.scale_batch + l * p.scale_line + s * p.scale_block] = 0;
        }
        return;
    }
    to = g == G - 1 ? p.padded : min(padded, p.padded);
    blocks_from = (from + 31) / 32;
    blocks_to = (to + 31) / 32;
    for (int64_t l = threadIdx.x / 32 + blockIdx.z * (blockDim.x / 32); l < p.lines; l += (int64_t)gridDim.z * (blockDim.x / 32)) {
        for (int64_t s = from + threadIdx.x % 32; s < to; s += 32) p.codes[b * p.code_batch + l * p.code_line + s * p.code_pos] = 0;
        for (int64_t s = blocks_from + threadIdx.x % 32; s < blocks_to; s += 32) p.scales[b * p.scale_batch + l * p.scale_line + s * p.scale_block] = 0;
    }
    if (p.padded_ends && threadIdx.x == 0 && blockIdx.z == 0) p.padded_ends[g] = (int32_t)padded;
}

__global__ void write_padded_ends(const int *offsets, int G, int padding, int32_t *ends) {
    if (threadIdx.x) return;
    int64_t begin = 0, padded = 0;
    for (int g = 0; g < G; g++) {
        padded += ((offsets[g] - begin) + padding - 1) / padding * padding;
        ends[g] = (int32_t)padded;
        begin = offsets[g];
    }
}

Plane make_plane(const struct mx8_quant_job *j, bool rows) {
    Plane p = {};
    p.src = j->src; p.src_bf16 = j->src_dtype == MX8_BF16;
    p.batch_step = j->src_stride[0];
    p.line_step = j->src_stride[rows ? 1 : 2]; p.pos_step = j->src_stride[rows ? 2 : 1];
    const int64_t *cs = rows ? j->row_code_stride : j->col_code_stride, *ss = rows ? j->row_scale_stride : j->col_scale_stride;
    p.codes = rows ? j->row_codes : j->col_codes; p.scales = rows ? j->row_scales : j->col_scales;
    p.code_batch = cs[0]; p.code_line = cs[rows ? 1 : 2]; p.code_pos = cs[rows ? 2 : 1];
    p.scale_batch = ss[0]; p.scale_line = ss[rows ? 1 : 2]; p.scale_block = ss[rows ? 2 : 1];
    p.lines = rows ? j->rows : j->cols; p.length = rows ? j->cols : j->rows;
    p.along_rows = !rows;
    p.group = j->group > 32 ? j->group : 32;
    p.tile = !rows && j->col_tile > 0 ? j->col_tile : j->tile > 1 ? j->tile : 1;
    p.rule = j->rule; p.e5m2 = j->format == MX8_F8_E5M2;
    p.padding = j->padding > 0 ? j->padding : 32;
    p.padded = j->n_groups == 0 && j->padded_rows < j->rows ? j->rows : j->padded_rows;
    p.offsets = j->offsets; p.n_groups = j->n_groups; p.padded_ends = rows ? NULL : j->padded_ends;
    p.saturated = rows || !j->row_codes ? (unsigned long long *)j->saturated : NULL;
    return p;
}

enum mx8_status run_plane(const struct mx8_exec *x, const struct mx8_quant_job *j, bool rows) {
    const Plane p = make_plane(j, rows);
    const bool by_lane = p.along_rows && p.tile == 1 && p.line_step == 1; // lanes along contiguous lines
    const int64_t tile = by_lane ? 32 : p.tile, cut = p.n_groups > 0 ? p.n_groups : 0;
    const int64_t lines = (p.lines + tile - 1) / tile, groups = (p.length + p.group - 1) / p.group;
    const int64_t units = rows ? (lines + cut) * groups : lines * (groups + cut); // a group boundary may split a tile
    if (units > 0) {
        const dim3 grid(blocks_for(units, 8, 132 * 16), (unsigned)j->batch);
        if (by_lane) quantize_lines<<<grid, 256, 0, stream_of(x)>>>(p, units);
        else quantize_tiles<<<grid, 256, 0, stream_of(x)>>>(p, units);
    }
    const bool gaps = rows ? p.n_groups > 0 : p.n_groups > 0 || p.padded > p.length;
    if (gaps) {
        const int n = p.n_groups > 0 ? p.n_groups : 1;
        const dim3 grid((unsigned)n, (unsigned)j->batch, rows ? 1u : 64u);
        clear_gaps<<<grid, 256, 0, stream_of(x)>>>(p);
    }
    CUDA_LAUNCHED("quantize");
}
} // namespace

enum mx8_status cuda_quantize(const struct mx8_exec *x, const struct mx8_quant_job *j) {
    if (j->batch == 0) return MX8_OK;
    if (j->batch > 65535) return CUDA_FAIL(MX8_UNSUPPORTED, "quantize: batch is %lld, expected at most 65535", (long long)j->batch);
    enum mx8_status s = MX8_UNSUPPORTED;
    if (j->cols > 0 || j->padded_ends) s = cuda_quantize_fused(x, j);
    if (s != MX8_UNSUPPORTED) return s;
    s = MX8_OK;
    if (j->row_codes) s = run_plane(x, j, true);
    if (s == MX8_OK && j->col_codes) s = run_plane(x, j, false);
    if (s == MX8_OK && j->padded_ends && !j->col_codes && j->n_groups > 0) {
        write_padded_ends<<<1, 32, 0, stream_of(x)>>>(j->offsets, j->n_groups, j->padding > 0 ? j->padding : 32, j->padded_ends);
        CUDA_LAUNCHED("quantize");
    }
    return s;
}
