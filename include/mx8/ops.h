/* The operator table: every differentiable operator of mx8 as one row {name, schema, infer, forward, backward}.
 * `mx8 ops` prints it, docs/operators.md is generated from it, Python registers its custom operators from it. */
#ifndef MX8_OPS_H
#define MX8_OPS_H

#include "mx8/context.h"
#include "mx8/formats.h"

#ifdef __cplusplus
extern "C" {
#endif

enum mx8_precision {
    MX8_PRECISION_HIGH = 0, /* multiply the operands as they are (bf16 or f32), accumulate in fp32 */
    MX8_PRECISION_MXFP8 = 1 /* each operand quantized along its own contraction axis from the original */
};

enum mx8_scale_layout {
    MX8_LAYOUT_PLAIN = 0,      /* one (R, C) scale matrix */
    MX8_LAYOUT_M_GROUPS = 1,   /* row ranges, cumulative ends in `offsets` */
    MX8_LAYOUT_K_GROUPS = 2,   /* column ranges, cumulative ends in `offsets`, counted in scale columns */
    MX8_LAYOUT_PER_EXPERT = 3  /* (E, R, C), each expert a matrix of its own */
};

enum mx8_score_func { MX8_SCORE_SIGMOID = 0, MX8_SCORE_SOFTMAX = 1 };
enum mx8_mask { MX8_MASK_CAUSAL = 0, MX8_MASK_DOCUMENT = 1 };

/* One options struct for all operators; zero is the default everywhere and a field that an operator does not name in
 * its description is ignored by it. `size` is sizeof of the caller's struct (0 is read as today's size). */
struct mx8_op_options {
    uint32_t size;
    /* quantization: quantize_*, linear, grouped_linear, lm_head_loss */
    int32_t precision;    /* enum mx8_precision */
    int32_t scale_rule;   /* enum mx8_scale_rule */
    int32_t scale_group;  /* elements along the contraction axis whose block scales are forced equal: 0 or 32, 128, 256 */
    int32_t tile_rows;    /* rows that share a scale too: 0 or 1, 32, 128 (weight tiles) */
    int32_t col_tile_rows; /* lines that share a scale in the column orientation of x (weight gradient); 0: tile_rows.
                            * dy always uses tile_rows: a tensor core may want one operand tiled and the other not */
    int32_t weight_scale_group, weight_tile_rows; /* the same for the weight of linear and grouped_linear */
    int32_t format;       /* MX8_F8_E4M3 (0 means this) or MX8_F8_E5M2 */
    int32_t exact;        /* 1: dequantize, then multiply in high precision: the reference on every device */
    int32_t wgrad_hp;     /* 1: weight gradient from the unquantized operands */
    int32_t accumulate;   /* 1: weight and bias gradients are added to what the output holds */
    int32_t out_dtype;    /* 0: dtype of the first input; else 1 + enum mx8_dtype */
    int32_t layout;       /* enum mx8_scale_layout */
    int32_t alignment;    /* group_pad, and the column codes of quantize_cols, quantize_both and grouped_linear: rows that
                           * group sizes are rounded up to, a multiple of 32; 0 means 32 */
    /* model operators */
    int32_t n_heads, n_kv_heads;     /* attention, rope */
    int32_t mask;                    /* attention: enum mx8_mask */
    int32_t chunk;                   /* attention: keys outside the query's chunk of this length are masked; 0: none */
    int32_t top_k;                   /* router */
    int32_t score_func;              /* router: enum mx8_score_func */
    int32_t route_norm;              /* router */
    int32_t chunk_rows;              /* lm_head_loss: rows of logits alive at once; 0 picks */
    float route_scale;               /* router: 0 means 1 */
    float eps;                       /* rmsnorm: 0 means 1e-5 */
    float rope_theta;                /* rope: 0 means 500000 */
    float loss_scale;                /* lm_head_loss: factor of the gradient and of the summed loss; 0 means 1 / rows */
    float attn_scale;                /* attention: 0 means 1 / sqrt(head dim) */
    int64_t seq_len;                 /* attention, rope: tokens of one sequence; rows are batch * seq_len */
    float limit;                     /* clamp: more than 0 */
    int32_t via_bf16;                /* quantize_both, quantize_experts: 1: f32 values are rounded to bf16 first */
};

#define MX8_MAX_INPUTS 16
#define MX8_MAX_OUTPUTS 8

/* One call. An absent optional input or output is a zeroed tensor, so n_in and n_out may stay 0. Outputs must have the
 * shapes and dtypes that infer gives; strides are the caller's unless the description fixes them. Inputs and outputs
 * may not overlap unless the description says so. `workspace` may be NULL when infer asks for 0 bytes; it needs 64-byte
 * alignment. */
struct mx8_op_call {
    struct mx8_tensor in[MX8_MAX_INPUTS];
    struct mx8_tensor out[MX8_MAX_OUTPUTS];
    int32_t n_in, n_out;
    struct mx8_op_options options;
    void *workspace;
    size_t workspace_size;
};

/* Schemas are written as PyTorch's: "linear(Tensor x, Tensor w, Tensor? bias) -> Tensor y". The inputs of a backward
 * are the output gradients, then what forward read or saved; its outputs are the input gradients. One that the schema
 * writes `Tensor?` is optional: absent, it is not computed. infer reads shapes, strides and dtypes of call->in and
 * call->options, never data; it fills call->out (data left NULL), n_out and workspace_size (bytes wanted), or returns
 * the error that the call itself would give. infer and infer_backward allocate nothing and need no context.
 * A caller may fill a row of its own and give it to mx8_infer_op and mx8_run_op: outputs are then held to the shapes,
 * dtypes and strides that its infer announces (examples/add_operator.c). */
struct mx8_op {
    const char *name;
    const char *schema;
    const char *backward_schema; /* NULL: not differentiable */
    const char *description;
    enum mx8_status (*infer)(struct mx8_op_call *call);
    enum mx8_status (*infer_backward)(struct mx8_op_call *call);
    enum mx8_status (*forward)(struct mx8_context *ctx, const struct mx8_op_call *call);
    enum mx8_status (*backward)(struct mx8_context *ctx, const struct mx8_op_call *call);
};

MX8_API int32_t mx8_get_op_count(void);
/* index in [0, mx8_get_op_count()), else NULL. Rows live as long as the library. */
MX8_API const struct mx8_op *mx8_get_op(int32_t index);
/* NULL when there is no operator of that name. */
MX8_API const struct mx8_op *mx8_find_op(const char *name);

/* Checks the call against infer, then runs it. `backward` chooses the pass. Errors: whatever infer reports,
 * WORKSPACE_TOO_SMALL, INVALID_ARGUMENT for outputs of another shape or dtype, NULL data where elements exist. */
MX8_API enum mx8_status mx8_infer_op(const struct mx8_op *op, int32_t backward, struct mx8_op_call *call);
MX8_API enum mx8_status mx8_run_op(struct mx8_context *ctx, const struct mx8_op *op, int32_t backward,
                                   const struct mx8_op_call *call);

#ifdef __cplusplus
}
#endif
#endif
