// Blocks whose values lie far below the scale that they share with others. A count for studies: each value is read once
// more (2 bytes), by the thread that has its block; the sum is of integers, so its order does not matter.
#include "backend.h"
#include "scale.cuh"

namespace {
__device__ __forceinline__ uint32_t magnitude_of(const struct mx8_quant_job &j, int64_t at) {
    if (j.src_dtype == MX8_BF16) return ((uint32_t)((const uint16_t *)j.src)[at] << 16) & 0x7FFFFFFFu;
    return ((const uint32_t *)j.src)[at] & 0x7FFFFFFFu;
}

// n values from `at`, `step` apart, under the scale byte `shared`.
__device__ __forceinline__ bool is_wide(const struct mx8_quant_job &j, int64_t at, int64_t step, int64_t n, int shared) {
    uint32_t amax = 0;
    for (int64_t i = 0; i < n; i++) amax = max(amax, magnitude_of(j, at + i * step));
    if (amax == 0 || shared == 255) return false;
    return shared - (int)mx8::scale_byte(amax, j.rule, j.format == MX8_F8_E5M2) > MX8_WIDE_GAP;
}

__device__ __forceinline__ void report(unsigned long long found, int64_t *count) {
    if (found) atomicAdd((unsigned long long *)count, found);
}

__global__ void count_row_blocks(const __grid_constant__ struct mx8_quant_job j, int64_t *count) {
    const int64_t rows = j.n_groups > 0 ? j.offsets[j.n_groups - 1] : j.rows, blocks = (j.cols + MX8_BLOCK - 1) / MX8_BLOCK;
    const int64_t *ss = j.row_scale_stride, *xs = j.src_stride;
    unsigned long long found = 0;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < j.batch * rows * blocks; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t k = i % blocks, r = i / blocks % rows, b = i / blocks / rows, c = k * MX8_BLOCK;
        found += is_wide(j, b * xs[0] + r * xs[1] + c * xs[2], xs[2], min((int64_t)MX8_BLOCK, j.cols - c),
                         j.row_scales[b * ss[0] + r * ss[1] + k * ss[2]]);
    }
    report(found, count);
}

// Threads walk over stored blocks, columns fastest; which rows those hold follows from the groups.
__global__ void count_col_blocks(const __grid_constant__ struct mx8_quant_job j, int64_t stored, int64_t *count) {
    const int64_t *ss = j.col_scale_stride, *xs = j.src_stride, padding = j.padding > 0 ? j.padding : MX8_BLOCK;
    unsigned long long found = 0;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < j.batch * stored * j.cols; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t c = i % j.cols, k = i / j.cols % stored, b = i / j.cols / stored;
        int64_t row = k * MX8_BLOCK, end = j.rows;
        if (j.n_groups > 0) {
            int64_t start = 0, padded = 0;
            int g = 0;
            for (;; g++) {
                if (g == j.n_groups) break;
                end = j.offsets[g];
                const int64_t next = padded + (end - start + padding - 1) / padding * padding;
                if (k * MX8_BLOCK < next) break;
                padded = next;
                start = end;
            }
            if (g == j.n_groups) continue; // behind the last group
            row = start + k * MX8_BLOCK - padded;
        }
        if (row >= end) continue; // a group's padding
        found += is_wide(j, b * xs[0] + row * xs[1] + c * xs[2], xs[1], min((int64_t)MX8_BLOCK, end - row),
                         j.col_scales[b * ss[0] + k * ss[1] + c * ss[2]]);
    }
    report(found, count);
}
} // namespace

enum mx8_status cuda_count_wide_blocks(const struct mx8_exec *x, const struct mx8_quant_job *j, int64_t *count) {
    const int64_t tile = j->tile > 1 ? j->tile : 1, col_tile = j->col_tile > 0 ? j->col_tile : tile;
    const int64_t length = j->n_groups == 0 && j->padded_rows < j->rows ? j->rows : j->padded_rows;
    const int64_t across = (j->cols + MX8_BLOCK - 1) / MX8_BLOCK, stored = (length + MX8_BLOCK - 1) / MX8_BLOCK;
    if (j->batch * j->rows * j->cols == 0) return MX8_OK;
    if (j->row_codes && (j->group > MX8_BLOCK || tile > 1))
        count_row_blocks<<<blocks_for(j->batch * j->rows * across, 256, 4096), 256, 0, stream_of(x)>>>(*j, count);
    if (j->col_codes && (j->group > MX8_BLOCK || col_tile > 1))
        count_col_blocks<<<blocks_for(j->batch * stored * j->cols, 256, 4096), 256, 0, stream_of(x)>>>(*j, stored, count);
    CUDA_LAUNCHED("count_wide_blocks");
}
