/* Group padding: rows of each group moved to a start that is a multiple of the alignment, and back. Every thread walks
 * all the groups and takes its share of each one's rows; bytes moved: rows * cols * elem_size, twice. */
#include <string.h>
#include "kernels/cpu/cpu_kernels.h"

static char *row_of(void *base, int64_t row, int64_t stride, const struct mx8_pad_job *j) {
    return (char *)base + row * stride * (int64_t)j->elem_size;
}

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

static void write_bounds(const struct mx8_pad_job *j) {
    int64_t start = 0, padded = 0;
    for (int32_t g = 0; g < j->n_groups; g++) {
        if (j->starts) j->starts[g] = (int32_t)padded;
        padded += round_up(j->offsets[g] - start, j->alignment);
        if (j->ends) j->ends[g] = (int32_t)padded;
        start = j->offsets[g];
    }
}

enum mx8_status mx8i_cpu_pad_groups(const struct mx8_exec *x, const struct mx8_pad_job *j) {
    size_t bytes = (size_t)j->cols * j->elem_size;
    write_bounds(j);
    if (bytes == 0) return MX8_OK;
#pragma omp parallel num_threads(x->threads)
    {
        int64_t start = 0, padded = 0;
        for (int32_t g = 0; g < j->n_groups; g++) {
            int64_t size = j->offsets[g] - start, padded_size = round_up(size, j->alignment);
#pragma omp for schedule(static) nowait
            for (int64_t r = 0; r < padded_size; r++) {
                char *to = row_of(j->padded, padded + r, j->padded_stride, j);
                if (r < size)
                    memcpy(to, row_of(j->x, start + r, j->x_stride, j), bytes);
                else
                    memset(to, 0, bytes);
            }
            start = j->offsets[g];
            padded += padded_size;
        }
#pragma omp for schedule(static) nowait
        for (int64_t r = padded; r < j->padded_rows; r++) memset(row_of(j->padded, r, j->padded_stride, j), 0, bytes);
    }
    return MX8_OK;
}

enum mx8_status mx8i_cpu_unpad_groups(const struct mx8_exec *x, const struct mx8_pad_job *j) {
    size_t bytes = (size_t)j->cols * j->elem_size;
    if (bytes == 0) return MX8_OK;
#pragma omp parallel num_threads(x->threads)
    {
        int64_t start = 0;
        for (int32_t g = 0; g < j->n_groups; g++) {
            int64_t end = j->offsets[g];
#pragma omp for schedule(static) nowait
            for (int64_t r = start; r < end; r++)
                memcpy(row_of(j->x, r, j->x_stride, j),
                    row_of(j->padded, j->starts[g] + r - start, j->padded_stride, j), bytes);
            start = end;
        }
#pragma omp for schedule(static) nowait
        for (int64_t r = start; r < j->rows; r++) memset(row_of(j->x, r, j->x_stride, j), 0, bytes);
    }
    return MX8_OK;
}
