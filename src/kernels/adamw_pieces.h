/* adamw_quantize without a kernel of its own: a piece of the weights is updated and stored rounded, then quantized
 * while a cache still has it. Pieces are whole matrices, or rows of one that end where the largest tiles and scale
 * groups do, so that the codes are those of the whole. C and CUDA compile this text. */
#ifndef MX8_KERNELS_ADAMW_PIECES_H
#define MX8_KERNELS_ADAMW_PIECES_H

#include "kernels/kernels.h"

enum { MX8_PIECE_ROWS = 256 };
#define MX8_ADAMW_PIECE (INT64_C(1) << 24) /* elements that a caller makes room for; backends may take smaller pieces  \
                                            */

typedef enum mx8_status mx8i_adamw_kernel(const struct mx8_exec *x, const struct mx8_adamw_job *a);
typedef enum mx8_status mx8i_quantize_kernel(const struct mx8_exec *x, const struct mx8_quant_job *j);

/* One piece: `count` matrices from `entry` on, or rows [row, row + count) of it. */
struct mx8_adamw_piece {
    int64_t entry, row, count;
    int32_t is_rows;
};

static inline void mx8i_cut_adamw(struct mx8_adamw_job *a, int64_t at, int64_t n) {
    const int64_t moment = at * (a->moment_dtype == MX8_BF16 ? 2 : 4);
    a->n = n;
    a->first += (uint64_t)at;
    a->master += at;
    a->grad += at;
    a->m = (char *)a->m + moment;
    a->v = (char *)a->v + moment;
    a->copy_dtype = MX8_BF16;
}

static inline void mx8i_cut_codes(struct mx8_quant_job *j, const struct mx8_adamw_piece *p) {
    const int64_t block = p->row / MX8_BLOCK, is_last = p->row + p->count == j->rows;
    j->row_codes += p->entry * j->row_code_stride[0] + p->row * j->row_code_stride[1];
    j->row_scales += p->entry * j->row_scale_stride[0] + p->row * j->row_scale_stride[1];
    j->col_codes += p->entry * j->col_code_stride[0] + p->row * j->col_code_stride[1];
    j->col_scales += p->entry * j->col_scale_stride[0] + block * j->col_scale_stride[1];
    j->batch = p->is_rows ? 1 : p->count;
    if (!p->is_rows) return;
    j->padded_rows = is_last && j->padded_rows > j->rows ? j->padded_rows - p->row : p->count;
    j->rows = p->count;
}

/* The piece behind the elements [0, at), of about `most` elements. */
static inline struct mx8_adamw_piece mx8i_choose_piece(const struct mx8_quant_job *j, int64_t at, int64_t most) {
    const int64_t matrix = j->rows * j->cols;
    struct mx8_adamw_piece p = {at / matrix, at % matrix / j->cols, 0, matrix > most};
    int64_t rows = most / j->cols / MX8_PIECE_ROWS * MX8_PIECE_ROWS;
    if (rows < MX8_PIECE_ROWS) rows = MX8_PIECE_ROWS;
    const int64_t left = p.is_rows ? j->rows - p.row : j->batch - p.entry, count = p.is_rows ? rows : most / matrix;
    p.count = count < left ? count : left;
    return p;
}

/* Elements of the largest piece: what a->copy holds. */
static inline int64_t mx8i_count_adamw_copy(const struct mx8_quant_job *j, int64_t most) {
    if (j->batch * j->rows * j->cols == 0) return 0;
    const struct mx8_adamw_piece p = mx8i_choose_piece(j, 0, most);
    return p.count * j->cols * (p.is_rows ? 1 : j->rows);
}

static inline enum mx8_status mx8i_adamw_by_pieces(const struct mx8_exec *x, const struct mx8_adamw_job *a,
    const struct mx8_quant_job *j, mx8i_adamw_kernel *first, mx8i_quantize_kernel *second, int64_t most) {
    const int64_t matrix = j->rows * j->cols, all = j->batch * matrix;
    for (int64_t at = 0; at < all;) {
        const struct mx8_adamw_piece p = mx8i_choose_piece(j, at, most);
        struct mx8_adamw_job update = *a;
        struct mx8_quant_job codes = *j;
        mx8i_cut_adamw(&update, at, p.count * (p.is_rows ? j->cols : matrix));
        mx8i_cut_codes(&codes, &p);
        codes.src = a->copy;
        codes.src_dtype = MX8_BF16;
        codes.src_stride[0] = matrix;
        codes.src_stride[1] = j->cols;
        codes.src_stride[2] = 1;
        enum mx8_status status = first(x, &update);
        if (status == MX8_OK) status = second(x, &codes);
        if (status != MX8_OK) return status;
        at += update.n;
    }
    return MX8_OK;
}

#endif
