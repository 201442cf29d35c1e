/* The rows of the operator table, each defined in its operator's file. */
#ifndef MX8_OPS_OP_ROWS_H
#define MX8_OPS_OP_ROWS_H

#include "ops/check.h"

extern const struct mx8_op_row mx8i_quantize_rows_row, mx8i_quantize_cols_row, mx8i_quantize_both_row,
    mx8i_quantize_3d_row, mx8i_quantize_experts_row, mx8i_dequantize_row; /* quantize.c */
extern const struct mx8_op_row mx8i_block_scales_row, mx8i_unblock_scales_row, mx8i_group_pad_row,
    mx8i_group_unpad_row;                                                                  /* layout.c */
extern const struct mx8_op_row mx8i_linear_row;                                            /* linear.c */
extern const struct mx8_op_row mx8i_grouped_linear_row;                                    /* grouped_linear.c */
extern const struct mx8_op_row mx8i_rmsnorm_row, mx8i_rmsnorm_quantize_row, mx8i_rope_row; /* norm_rope.c */
extern const struct mx8_op_row mx8i_attention_row;                                         /* attention.c */
extern const struct mx8_op_row mx8i_router_row, mx8i_permute_row, mx8i_combine_row;        /* router.c */
extern const struct mx8_op_row mx8i_embedding_row, mx8i_swiglu_row, mx8i_add_row;          /* elementwise.c */
extern const struct mx8_op_row mx8i_clamp_row;                                             /* clamp.c */
extern const struct mx8_op_row mx8i_swiglu_quantize_row, mx8i_permute_quantize_row,
    mx8i_swiglu_backward_quantize_row;                                                     /* quantize_made.c */
extern const struct mx8_op_row mx8i_lm_head_loss_row;                                      /* lm_head.c */

/* The row behind a public operator, which is its first member. */
static inline const struct mx8_op_row *mx8i_get_row(const struct mx8_op *op) {
    return (const struct mx8_op_row *)op;
}

#endif
