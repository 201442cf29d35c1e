// Scale layouts, group padding and dequantization: index maps, one thread an output (or plain) byte or 16-byte piece.
// Group starts are running sums over the offsets, formed on the device by each block.
#include "backend.h"
#include "scale.cuh"

namespace {
struct Layout {
    uint8_t *plain, *blocked; int64_t E, R, C, ps[3]; int by_rows, grouped, n_groups, to_blocked; const int *offsets; int64_t *starts;
};
__host__ __device__ __forceinline__ int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
__device__ __forceinline__ int64_t locate(int64_t r, int64_t c, int64_t cols) {
    return (r / 128 * (up(cols, 4) / 4) + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
}

// One thread per plain byte: finds its group, then its place. Unused blocked bytes were cleared before.
__global__ void move_scales(const __grid_constant__ Layout p) {
    const int64_t n = p.E * p.R * p.C, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += step) {
        const int64_t e = i / (p.R * p.C), r = i / p.C % p.R, c = i % p.C;
        uint8_t *plain = p.plain + e * p.ps[0] + r * p.ps[1] + c * p.ps[2];
        int64_t at = e * up(p.R, 128) * up(p.C, 4) + locate(r, c, p.C);
        if (p.grouped) {
            const int64_t unit = p.by_rows ? 128 : 4, pitch = p.by_rows ? up(p.C, 4) : up(p.R, 128), x = p.by_rows ? r : c;
            int64_t begin = 0, start = 0, size = 0;
            int g = 0;
            for (; g < p.n_groups; g++) {
                size = p.offsets[g] - begin;
                if (x < begin + size) break;
                begin += size;
                start += up(size, unit);
            }
            if (g == p.n_groups) { // past the last group
                if (!p.to_blocked) *plain = 0;
                continue;
            }
            at = start * pitch + (p.by_rows ? locate(r - begin, c, p.C) : locate(r, c - begin, size));
        }
        if (p.to_blocked) p.blocked[at] = *plain;
        else *plain = p.blocked[at];
    }
    if (p.starts && p.to_blocked && p.grouped && blockIdx.x == 0 && threadIdx.x == 0) {
        int64_t begin = 0, start = 0;
        for (int g = 0; g <= p.n_groups; g++) {
            p.starts[g] = start;
            if (g == p.n_groups) break;
            start += up(p.offsets[g] - begin, p.by_rows ? 128 : 4);
            begin = p.offsets[g];
        }
    }
}

enum mx8_status move(const struct mx8_exec *x, const struct mx8_layout_job *j, int to_blocked) {
    Layout p = {j->plain, j->blocked, j->E, j->R, j->C, {j->plain_stride[0], j->plain_stride[1], j->plain_stride[2]},
                j->layout == MX8_LAYOUT_M_GROUPS, j->layout == MX8_LAYOUT_M_GROUPS || j->layout == MX8_LAYOUT_K_GROUPS,
                j->n_groups, to_blocked, j->offsets, j->starts};
    if (to_blocked) {
        const int64_t rows = up(j->R, 128), cols = up(j->C, 4);
        const int64_t bytes = !p.grouped ? j->E * rows * cols : p.by_rows ? (j->R + 128 * (int64_t)j->n_groups) * cols : rows * (j->C + 4 * (int64_t)j->n_groups);
        if (bytes > 0) CUDA_TRY(cudaMemsetAsync(j->blocked, 0, (size_t)bytes, stream_of(x)), "block scales");
    }
    move_scales<<<blocks_for(j->E * j->R * j->C, 256, 132 * 32), 256, 0, stream_of(x)>>>(p);
    CUDA_LAUNCHED("scale layout");
}

struct Pad {
    char *padded, *x; int64_t rows, padded_rows, row_bytes, x_bytes, padded_bytes; const int *offsets; int n_groups, alignment, word;
    int32_t *starts, *ends; int to_padded;
};
template <class W> __device__ void copy_row(char *dst, const char *src, int64_t bytes) {
    for (int64_t i = threadIdx.x; i < bytes / (int64_t)sizeof(W); i += blockDim.x) ((W *)dst)[i] = src ? ((const W *)src)[i] : W();
}
// A block a destination row.
__global__ void move_rows(const __grid_constant__ Pad p) {
    const int64_t n = p.to_padded ? p.padded_rows : p.rows;
    for (int64_t r = blockIdx.x; r < n; r += gridDim.x) {
        int64_t begin = 0, start = 0, from = -1;
        for (int g = 0; g < p.n_groups; g++) {
            const int64_t size = p.offsets[g] - begin;
            if (!p.to_padded) start = p.starts[g];
            const int64_t at = r - (p.to_padded ? start : begin);
            if (at >= 0 && at < size) { from = (p.to_padded ? begin : start) + at; break; }
            begin += size;
            start += up(size, p.alignment);
        }
        char *dst = p.to_padded ? p.padded + r * p.padded_bytes : p.x + r * p.x_bytes;
        const char *src = from < 0 ? NULL : p.to_padded ? p.x + from * p.x_bytes : p.padded + from * p.padded_bytes;
        if (p.word == 16) copy_row<uint4>(dst, src, p.row_bytes);
        else if (p.word == 4) copy_row<uint32_t>(dst, src, p.row_bytes);
        else copy_row<uint8_t>(dst, src, p.row_bytes);
    }
    if (p.to_padded && blockIdx.x == 0 && threadIdx.x == 0) {
        int64_t begin = 0, start = 0;
        for (int g = 0; g < p.n_groups; g++) {
            if (p.starts) p.starts[g] = (int32_t)start;
            start += up(p.offsets[g] - begin, p.alignment);
            begin = p.offsets[g];
            if (p.ends) p.ends[g] = (int32_t)start;
        }
    }
}
enum mx8_status pad(const struct mx8_exec *x, const struct mx8_pad_job *j, int to_padded) {
    const int64_t es = (int64_t)j->elem_size;
    Pad p = {(char *)j->padded, (char *)j->x, j->rows, j->padded_rows, j->cols * es, j->x_stride * es, j->padded_stride * es,
             j->offsets, j->n_groups, j->alignment, 1, j->starts, j->ends, to_padded};
    const uint64_t bits = (uintptr_t)j->padded | (uintptr_t)j->x | (uint64_t)p.row_bytes | (uint64_t)p.x_bytes | (uint64_t)p.padded_bytes;
    p.word = bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
    move_rows<<<blocks_for(to_padded ? j->padded_rows : j->rows, 1, 132 * 16), 256, 0, stream_of(x)>>>(p);
    CUDA_LAUNCHED("group padding");
}

__global__ void dequantize(const __grid_constant__ struct mx8_dequant_job j) {
    const int64_t n = j.rows * j.cols, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += step) {
        const int64_t r = i / j.cols, c = i % j.cols, at = r * j.dst_stride[0] + c * j.dst_stride[1];
        const float v = mx8::decode_f8(j.codes[r * j.code_stride[0] + c * j.code_stride[1]], j.format == MX8_F8_E5M2) *
                        mx8::decode_e8m0(j.scales[r * j.scale_stride[0] + c / 32 * j.scale_stride[1]]);
        if (j.dst_dtype == MX8_F32) ((float *)j.dst)[at] = v;
        else ((__nv_bfloat16 *)j.dst)[at] = __float2bfloat16(v);
    }
}
} // namespace

enum mx8_status cuda_block_scales(const struct mx8_exec *x, const struct mx8_layout_job *j) { return move(x, j, 1); }
enum mx8_status cuda_unblock_scales(const struct mx8_exec *x, const struct mx8_layout_job *j) { return move(x, j, 0); }
enum mx8_status cuda_pad_groups(const struct mx8_exec *x, const struct mx8_pad_job *j) { return pad(x, j, 1); }
enum mx8_status cuda_unpad_groups(const struct mx8_exec *x, const struct mx8_pad_job *j) { return pad(x, j, 0); }
enum mx8_status cuda_dequantize(const struct mx8_exec *x, const struct mx8_dequant_job *j) {
    if (j->rows == 0 || j->cols == 0) return MX8_OK;
    dequantize<<<blocks_for(j->rows * j->cols, 256, 132 * 32), 256, 0, stream_of(x)>>>(*j);
    CUDA_LAUNCHED("dequantize");
}
