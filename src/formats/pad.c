/* Group padding: rows of each group copied to a start that is a multiple of the alignment, and back. */
#include <string.h>
#include "formats/jobs.h"

/* Pointer arithmetic in bytes; a row is `cols` elements without gaps. */
static void *find_row(void *base, int64_t row, int64_t stride, const struct mx8_pad_job *j) {
    return (char *)base + row * stride * (int64_t)j->elem_size;
}

static void copy_rows(const struct mx8_pad_job *j, void *to, int64_t to_row, int64_t to_stride, void *from,
    int64_t from_row, int64_t from_stride, int64_t rows) {
    size_t size = (size_t)j->cols * j->elem_size;
    for (int64_t r = 0; r < rows && size > 0; r++) {
        memcpy(find_row(to, to_row + r, to_stride, j), find_row(from, from_row + r, from_stride, j), size);
    }
}

static void clear_rows(const struct mx8_pad_job *j, void *base, int64_t first, int64_t end, int64_t stride) {
    size_t size = (size_t)j->cols * j->elem_size;
    for (int64_t r = first; r < end && size > 0; r++) memset(find_row(base, r, stride, j), 0, size);
}

void mx8i_reference_pad_groups(const struct mx8_pad_job *j) {
    int64_t start = 0, padded = 0;
    for (int32_t g = 0; g < j->n_groups; g++) {
        int64_t size = j->offsets[g] - start;
        int64_t padded_end = padded + (size + j->alignment - 1) / j->alignment * j->alignment;
        copy_rows(j, j->padded, padded, j->padded_stride, j->x, start, j->x_stride, size);
        clear_rows(j, j->padded, padded + size, padded_end, j->padded_stride);
        if (j->starts) j->starts[g] = (int32_t)padded;
        if (j->ends) j->ends[g] = (int32_t)padded_end;
        start = j->offsets[g];
        padded = padded_end;
    }
    clear_rows(j, j->padded, padded, j->padded_rows, j->padded_stride);
}

/* Reads where each group begins from `starts`, as pad_groups wrote it. */
void mx8i_reference_unpad_groups(const struct mx8_pad_job *j) {
    int64_t start = 0;
    for (int32_t g = 0; g < j->n_groups; g++) {
        copy_rows(j, j->x, start, j->x_stride, j->padded, j->starts[g], j->padded_stride, j->offsets[g] - start);
        start = j->offsets[g];
    }
    clear_rows(j, j->x, start, j->rows, j->x_stride);
}
