/* Blocks whose values lie far below the scale that they share with others. A count for studies: each value is read once
 * more, one at a time. */
#include "kernels/cpu/cpu_kernels.h"
#include <string.h>

static uint32_t read_magnitude(const struct mx8_quant_job *j, int64_t at) {
    uint32_t bits;
    if (j->src_dtype == MX8_BF16) return ((uint32_t)((const uint16_t *)j->src)[at] << 16) & 0x7FFFFFFFu;
    memcpy(&bits, (const float *)j->src + at, sizeof bits);
    return bits & 0x7FFFFFFFu;
}

/* n values from `at`, `step` apart, under the scale byte `shared`. */
static int is_wide(const struct mx8_quant_job *j, int64_t at, int64_t step, int64_t n, uint8_t shared) {
    uint32_t amax = 0;
    float value;
    if (shared == 255) return 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t magnitude = read_magnitude(j, at + i * step);
        if (magnitude > amax) amax = magnitude;
    }
    if (amax == 0) return 0;
    memcpy(&value, &amax, sizeof value);
    return shared - mx8_compute_scale(value, j->rule, j->format) > MX8_WIDE_GAP;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t count_row_blocks(const struct mx8_exec *x, const struct mx8_quant_job *j) {
    const int64_t rows = j->n_groups > 0 ? j->offsets[j->n_groups - 1] : j->rows, *ss = j->row_scale_stride;
    int64_t count = 0;
#pragma omp parallel for num_threads(x->threads) schedule(static) reduction(+ : count)
    for (int64_t line = 0; line < j->batch * rows; line++) {
        const int64_t b = line / rows, r = line % rows;
        const int64_t from = b * j->src_stride[0] + r * j->src_stride[1];
        for (int64_t c = 0; c < j->cols; c += MX8_BLOCK) {
            count += is_wide(j, from + c * j->src_stride[2], j->src_stride[2], smaller(MX8_BLOCK, j->cols - c),
                j->row_scales[b * ss[0] + r * ss[1] + c / MX8_BLOCK * ss[2]]);
        }
    }
    return count;
}

/* Rows [start, end) of matrix b, whose blocks begin at block `first` of the stored lines. */
static int64_t count_col_blocks(
    const struct mx8_exec *x, const struct mx8_quant_job *j, int64_t b, int64_t start, int64_t end, int64_t first) {
    const int64_t *ss = j->col_scale_stride, step = j->src_stride[1];
    int64_t count = 0;
#pragma omp parallel for num_threads(x->threads) schedule(static) reduction(+ : count)
    for (int64_t r = start; r < end; r += MX8_BLOCK) {
        for (int64_t c = 0; c < j->cols; c++) {
            count +=
                is_wide(j, b * j->src_stride[0] + r * step + c * j->src_stride[2], step, smaller(MX8_BLOCK, end - r),
                    j->col_scales[b * ss[0] + (first + (r - start) / MX8_BLOCK) * ss[1] + c * ss[2]]);
        }
    }
    return count;
}

enum mx8_status mx8i_cpu_count_wide_blocks(const struct mx8_exec *x, const struct mx8_quant_job *j, int64_t *count) {
    const int64_t padding = j->padding > 0 ? j->padding : MX8_BLOCK, tile = j->tile > 1 ? j->tile : 1;
    if (j->row_codes && (j->group > MX8_BLOCK || tile > 1)) *count += count_row_blocks(x, j);
    if (!j->col_codes || (j->group <= MX8_BLOCK && (j->col_tile > 0 ? j->col_tile : tile) == 1)) return MX8_OK;
    for (int64_t b = 0; b < j->batch; b++) {
        int64_t start = 0, padded = 0;
        for (int32_t g = 0; g < (j->n_groups > 0 ? j->n_groups : 1); g++) {
            const int64_t end = j->n_groups > 0 ? j->offsets[g] : j->rows;
            *count += count_col_blocks(x, j, b, start, end, padded / MX8_BLOCK);
            padded += (end - start + padding - 1) / padding * padding;
            start = end;
        }
    }
    return MX8_OK;
}
