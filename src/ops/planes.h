/* Quantized operands of matrix products, and the workspace they lie in. */
#ifndef MX8_OPS_PLANES_H
#define MX8_OPS_PLANES_H

#include "ops/check.h"

/* Hands out aligned pieces of a workspace. With base NULL it only counts: the same code says the size. */
struct mx8_carver {
    char *base;
    size_t used;
};
/* More than MX8I_MOST_WORKSPACE bytes in all leave `used` beyond it, and mx8_infer_op refuses the call. */
#define MX8I_MOST_WORKSPACE ((size_t)INT64_MAX / 64)
void *mx8i_carve(struct mx8_carver *c, int64_t bytes);
/* INT64_MAX when the product of these sizes is beyond it: shapes without elements may have any lengths. */
int64_t mx8i_multiply_sizes(int64_t a, int64_t b);

/* How values become codes: the resolved options of one operand. */
struct mx8_style {
    int32_t rule, group, tile, format;
    int32_t col_tile; /* of x in the column orientation */
    int32_t padding;  /* of groups in the column orientation */
};
/* Zeros become defaults. `weight` picks the weight_* fields; linear products quantize with two styles. */
struct mx8_style mx8i_get_style(const struct mx8_op_options *o, int weight);
/* The styles of x along M and of dy, which is never tiled across columns in one orientation only. */
struct mx8_style mx8i_get_col_style(const struct mx8_op_options *o);
struct mx8_style mx8i_get_dy_style(const struct mx8_op_options *o);
enum mx8_status mx8i_check_styles(const char *op, const struct mx8_op_options *o);
/* Checks the styles and sets P, the length of column codes, from M rows: M itself, or with G groups room for each to be
 * padded. */
enum mx8_status mx8i_set_padded_dim(struct mx8_dims *d, const struct mx8_op_options *o);

/* Codes and scales of a matrix (lines, depth) for each of `batch` entries, blocks along depth. The element (l, k) of
 * entry g is codes[g*gs + l*ls + k*ks], its scale scales[g*sgs + l*sls + k/32*sks]. */
struct mx8_plane {
    uint8_t *codes, *scales;
    int64_t lines, depth;
    int64_t ls, ks, gs, sls, sks, sgs;
    struct mx8_style style;
};

/* Codes and scales that a caller gave, both absent or both present. */
struct mx8_code_pair {
    const struct mx8_tensor *codes, *scales;
};
static inline int mx8i_has_codes(const struct mx8_code_pair *p) {
    return p->codes && mx8i_is_present(p->codes);
}
/* Inputs at `index` and `index + 1`; fails when one comes without the other. */
enum mx8_status mx8i_get_code_pair(const char *op, const struct mx8_op_call *call, const struct mx8_pass *pass,
    int32_t index, struct mx8_code_pair *out);

/* A packed plane in the workspace: codes (lines, depth), scales (lines, ceil(depth/32)). */
struct mx8_plane mx8i_carve_plane(struct mx8_carver *c, int64_t lines, int64_t depth, struct mx8_style style);
/* The planes of (E,N,K) weights. For a product over N they are as mx8_quantize_3d writes them. */
struct mx8_plane mx8i_carve_weights(
    struct mx8_carver *c, int64_t E, int64_t lines, int64_t depth, int over_middle, struct mx8_style style);
/* What the caller gave: dimensions (lines, depth), behind a batch dimension when there are three; over_middle says that
 * the contraction is the second of three. */
struct mx8_plane mx8i_view_plane(const struct mx8_code_pair *pair, int over_middle, struct mx8_style style);

/* A quantization of `x` (2-D, or 3-D with a batch in front) that writes nothing yet. */
struct mx8_quant_job mx8i_start_quant(
    const struct mx8_context *ctx, const struct mx8_tensor *x, struct mx8_style style);
/* Lets it write blocks along the last dimension, or along the one before it. */
void mx8i_emit_rows(struct mx8_quant_job *j, const struct mx8_plane *p);
void mx8i_emit_cols(struct mx8_quant_job *j, const struct mx8_plane *p);
void mx8i_set_groups(struct mx8_quant_job *j, const struct mx8_tensor *offsets, int32_t *padded_ends);

/* The kernel, and what else the context counts. */
enum mx8_status mx8i_run_quant(struct mx8_context *ctx, const struct mx8_quant_job *j);
/* Of values that are made on the way. UNSUPPORTED, with nothing written, where the device or what the context counts wants
 * them stored. */
enum mx8_status mx8i_run_quant_from(
    struct mx8_context *ctx, const struct mx8_quant_source *source, const struct mx8_quant_job *j);
/* The same codes as of a bf16 copy of an f32 source, of which a piece at a time is in `scratch`: as many bytes as
 * mx8i_size_rounding says of the source. Its rows are packed and form no groups. */
enum mx8_status mx8i_run_quant_rounded(struct mx8_context *ctx, const struct mx8_quant_job *j, void *scratch);
size_t mx8i_size_rounding(const struct mx8_tensor *x);
/* Whether blocks far below their scale are counted, which reads the values once more: they must be stored. */
int mx8i_counts_gaps(const struct mx8_context *ctx);

/* Operands of the product kernel. Two axes of `t` are lines and contraction; a third in front is the group. */
struct mx8_matrix mx8i_use_tensor(const struct mx8_tensor *t, int32_t line_axis, int32_t depth_axis);
struct mx8_matrix mx8i_use_plane(const struct mx8_plane *p);

#endif
