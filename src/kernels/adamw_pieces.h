/* adamw_quantize without a kernel of its own: a piece of the weights is updated and stored rounded, then quantized. C
 * and CUDA compile this text. */
#ifndef MX8_KERNELS_ADAMW_PIECES_H
#define MX8_KERNELS_ADAMW_PIECES_H

#include "kernels/pieces.h"

/* Elements that a caller makes room for; backends may take smaller pieces. */
#define MX8_ADAMW_PIECE (INT64_C(1) << 24)

typedef enum mx8_status mx8i_adamw_kernel(const struct mx8_exec *x, const struct mx8_adamw_job *a);
typedef enum mx8_status mx8i_quantize_kernel(const struct mx8_exec *x, const struct mx8_quant_job *j);

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

static inline enum mx8_status mx8i_adamw_by_pieces(const struct mx8_exec *x, const struct mx8_adamw_job *a,
    const struct mx8_quant_job *j, mx8i_adamw_kernel *first, mx8i_quantize_kernel *second, int64_t most) {
    const int64_t all = j->batch * j->rows * j->cols;
    for (int64_t at = 0; at < all;) {
        const struct mx8_piece p = mx8i_choose_piece(j, at, most);
        const struct mx8_quant_job codes = mx8i_cut_codes(j, &p, a->copy);
        struct mx8_adamw_job update = *a;
        mx8i_cut_adamw(&update, at, mx8i_size_piece(j, &p));
        enum mx8_status status = first(x, &update);
        if (status == MX8_OK) status = second(x, &codes);
        if (status != MX8_OK) return status;
        at += update.n;
    }
    return MX8_OK;
}

#endif
