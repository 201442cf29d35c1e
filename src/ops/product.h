/* The matrix products behind linear, grouped_linear and lm_head_loss: y = x w^T (+ bias), dx = dy w, dw = dy^T x. */
#ifndef MX8_OPS_PRODUCT_H
#define MX8_OPS_PRODUCT_H

#include "ops/planes.h"

/* Operands under common names. Tensors are never NULL but may be absent; without offsets the product is dense. Codes
 * end in _t where the blocks run along the contraction of the backward pass: along N for w, along M for x and dy. */
struct mx8_product {
    const char *op;
    const struct mx8_op_options *options;
    int64_t M, N, K;
    int32_t groups;
    const struct mx8_tensor *x, *w, *bias, *dy, *offsets, *ends;
    const struct mx8_quant_source *dy_source; /* not NULL: dy's codes are made of this, and dy is not read */
    int32_t at_once; /* dy's codes are made at once, however large: whoever sizes for one product and runs smaller ones, or
                        has a dy_source, says so to both */
    struct mx8_code_pair xq, wq, dyq, dyq_t, xq_t, wq_t;
};

/* A dense backward call makes codes of at most so many elements of dy in one orientation at a time: a converted head's dy
 * is as large as everything else. The bits do not depend on it. Tests make it small. */
extern int64_t mx8i_most_dy_codes;

/* Which results the operands allow. */
enum { MX8I_WANT_DX = 1, MX8I_WANT_DW = 2 };
int mx8i_find_wanted(const struct mx8_product *p);

/* The operands are there and long enough to be cut into blocks. */
enum mx8_status mx8i_check_forward(const struct mx8_product *p, const struct mx8_dims *d);
enum mx8_status mx8i_check_backward(const struct mx8_product *p, const struct mx8_dims *d);

/* Dtype of y: options.out_dtype, else that of x, of w, or bf16 when there are only codes. */
enum mx8_status mx8i_choose_product_dtype(const struct mx8_product *p, int32_t *out);
/* Fills a backward call's outputs dx, dw, dbias and its workspace size. dx and dw stay absent where no input gives
 * them. */
void mx8i_put_gradients(struct mx8_op_call *call, const struct mx8_pass *pass, const struct mx8_product *p,
    const struct mx8_dims *d, int32_t dx_dtype);

size_t mx8i_size_forward(const struct mx8_product *p);
size_t mx8i_size_backward(const struct mx8_product *p, int wanted);

enum mx8_status mx8i_run_forward(
    struct mx8_context *ctx, const struct mx8_product *p, const struct mx8_tensor *y, void *workspace);
/* Absent outputs are not computed. */
enum mx8_status mx8i_run_backward(struct mx8_context *ctx, const struct mx8_product *p, const struct mx8_tensor *dx,
    const struct mx8_tensor *dw, const struct mx8_tensor *dbias, void *workspace);

#endif
