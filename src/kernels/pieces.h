/* Pieces of a matrix, or of several, that are made in bf16 and quantized while a cache still has them. They are whole
 * matrices, or rows of one that end where the largest tiles and scale groups do, so that the codes are those of the
 * whole. C and CUDA compile this text. */
#ifndef MX8_KERNELS_PIECES_H
#define MX8_KERNELS_PIECES_H

#include "kernels/kernels.h"

enum { MX8_PIECE_ROWS = 256 };

/* `count` matrices from `entry` on, or rows [row, row + count) of it. */
struct mx8_piece {
    int64_t entry, row, count;
    int32_t is_rows;
};

/* The piece behind the elements [0, at), of about `most` elements. */
static inline struct mx8_piece mx8i_choose_piece(const struct mx8_quant_job *j, int64_t at, int64_t most) {
    const int64_t matrix = j->rows * j->cols;
    struct mx8_piece p = {at / matrix, at % matrix / j->cols, 0, matrix > most};
    int64_t rows = most / j->cols / MX8_PIECE_ROWS * MX8_PIECE_ROWS;
    if (rows < MX8_PIECE_ROWS) rows = MX8_PIECE_ROWS;
    const int64_t left = p.is_rows ? j->rows - p.row : j->batch - p.entry, count = p.is_rows ? rows : most / matrix;
    p.count = count < left ? count : left;
    return p;
}

static inline int64_t mx8i_size_piece(const struct mx8_quant_job *j, const struct mx8_piece *p) {
    return p->count * j->cols * (p->is_rows ? 1 : j->rows);
}

/* Elements of the largest one. */
static inline int64_t mx8i_size_largest_piece(const struct mx8_quant_job *j, int64_t most) {
    if (j->batch * j->rows * j->cols == 0) return 0;
    const struct mx8_piece p = mx8i_choose_piece(j, 0, most);
    return mx8i_size_piece(j, &p);
}

/* Has a job read packed matrices of its shape in bf16. */
static inline void mx8i_read_packed(struct mx8_quant_job *j, const void *values) {
    j->src = values;
    j->src_dtype = MX8_BF16;
    j->src_stride[0] = j->rows * j->cols;
    j->src_stride[1] = j->cols;
    j->src_stride[2] = 1;
}

/* The job of a piece whose values in bf16 are packed at `values`. */
static inline struct mx8_quant_job mx8i_cut_codes(
    const struct mx8_quant_job *j, const struct mx8_piece *p, const void *values) {
    const int64_t block = p->row / MX8_BLOCK, is_last = p->row + p->count == j->rows;
    struct mx8_quant_job part = *j;
    mx8i_read_packed(&part, values);
    if (j->row_codes) {
        part.row_codes += p->entry * j->row_code_stride[0] + p->row * j->row_code_stride[1];
        part.row_scales += p->entry * j->row_scale_stride[0] + p->row * j->row_scale_stride[1];
    }
    if (j->col_codes) {
        part.col_codes += p->entry * j->col_code_stride[0] + p->row * j->col_code_stride[1];
        part.col_scales += p->entry * j->col_scale_stride[0] + block * j->col_scale_stride[1];
    }
    part.batch = p->is_rows ? 1 : p->count;
    if (!p->is_rows) return part;
    part.padded_rows = is_last && j->padded_rows > j->rows ? j->padded_rows - p->row : p->count;
    part.rows = p->count;
    return part;
}

#endif
