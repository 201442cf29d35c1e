/* rmsnorm, with the residual addition before it and a quantizer behind it, and rope. */
#include "ops/op_rows.h"
#include "ops/planes.h"

#include "base/error.h"

/* ---- rmsnorm ---- */

static const struct mx8_port norm_in[] = {
    {"x", "TD", MX8I_HP | MX8I_PACKED},
    {"w", "D", MX8I_HP | MX8I_PACKED},
    {"add", "TD", MX8I_HP | MX8I_SAME | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port norm_out[] = {
    {"y", "TD", MX8I_HP | MX8I_PACKED},
    {"rstd", "T", MX8I_F32 | MX8I_PACKED},
    {"sum", "TD", MX8I_HP | MX8I_PACKED | MX8I_OPTIONAL},
    {"codes", "TD", MX8I_CODES}, /* from here on rmsnorm_quantize's alone */
    {"scales", "Td", MX8I_SCALES},
};
#define NORM_PASS                                                                                                      \
    { norm_in, norm_out, 3, 3 }
#define QUANTIZE_PASS                                                                                                  \
    { norm_in, norm_out, 3, 5 }
static const struct mx8_port norm_backward_in[] = {
    {"dy", "TD", MX8I_HP | MX8I_PACKED},
    {"x", "TD", MX8I_HP | MX8I_SAME | MX8I_PACKED},
    {"w", "D", MX8I_HP | MX8I_PACKED},
    {"rstd", "T", MX8I_F32 | MX8I_PACKED},
    {"dres", "TD", MX8I_HP | MX8I_SAME | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port norm_backward_out[] = {
    {"dx", "TD", MX8I_HP | MX8I_PACKED},
    {"dw", "D", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_pass norm_pass = NORM_PASS, quantize_pass = QUANTIZE_PASS;
static const struct mx8_pass norm_backward_pass = MX8I_PASS(norm_backward_in, norm_backward_out);

/* y, rstd and sum. */
static enum mx8_status put_norm(
    struct mx8_op_call *call, const char *op, const struct mx8_pass *pass, struct mx8_dims *d) {
    MX8_TRY(mx8i_bind_inputs(d, op, call, pass, 0, pass->n_in));
    if (call->options.eps < 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: eps is %g, expected 0 or more", op, (double)call->options.eps);
    int32_t dtype = call->in[0].dtype;
    mx8i_clear_outputs(call, pass, 0);
    mx8i_put_output(call, pass, 0, d, dtype);
    mx8i_put_output(call, pass, 1, d, MX8_F32);
    if (mx8i_is_present(&call->in[2])) mx8i_put_output(call, pass, 2, d, dtype);
    return MX8_OK;
}

static enum mx8_status infer_norm(struct mx8_op_call *call) {
    struct mx8_dims d;
    return put_norm(call, "rmsnorm", &norm_pass, &d);
}

static enum mx8_status infer_quantize(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(put_norm(call, "rmsnorm_quantize", &quantize_pass, &d));
    MX8_TRY(mx8i_check_styles("rmsnorm_quantize", &call->options));
    mx8i_put_output(call, &quantize_pass, 3, &d, mx8i_get_style(&call->options, 0).format);
    mx8i_put_output(call, &quantize_pass, 4, &d, MX8_F8_E8M0);
    return MX8_OK;
}

static enum mx8_status infer_norm_backward(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "rmsnorm", call, &norm_backward_pass, 0, norm_backward_pass.n_in));
    mx8i_clear_outputs(call, &norm_backward_pass, 0);
    mx8i_put_output(call, &norm_backward_pass, 0, &d, call->in[0].dtype);
    mx8i_put_output(call, &norm_backward_pass, 1, &d, MX8_F32);
    return MX8_OK;
}

static struct mx8_rmsnorm_job start_norm(const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in, *out = call->out;
    return (struct mx8_rmsnorm_job){
        .T = in[0].shape[0],
        .D = in[0].shape[1],
        .dtype = in[0].dtype,
        .w_dtype = in[1].dtype,
        .eps = call->options.eps > 0 ? call->options.eps : 1e-5f,
        .x = in[0].data,
        .w = in[1].data,
        .add = in[2].data,
        .y = out[0].data,
        .rstd = out[1].data,
        .sum = out[2].data,
    };
}

static enum mx8_status run_norm(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_rmsnorm_job j = start_norm(call);
    return ctx->exec.k->rmsnorm(&ctx->exec, &j);
}

static enum mx8_status run_quantize(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_style style = mx8i_get_style(&call->options, 0);
    const struct mx8_code_pair pair = {&call->out[3], &call->out[4]};
    const struct mx8_plane rows = mx8i_view_plane(&pair, 0, style);
    struct mx8_quant_job codes = mx8i_start_quant(ctx, &call->out[0], style);
    mx8i_emit_rows(&codes, &rows);
    if (ctx->exec.k->rmsnorm_quantize && !mx8i_counts_gaps(ctx)) {
        const struct mx8_rmsnorm_job norm = start_norm(call);
        const enum mx8_status status = ctx->exec.k->rmsnorm_quantize(&ctx->exec, &norm, &codes);
        if (status != MX8_UNSUPPORTED) return status;
    }
    MX8_TRY(run_norm(ctx, call));
    return mx8i_run_quant(ctx, &codes);
}

static enum mx8_status run_norm_backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in, *out = call->out;
    struct mx8_rmsnorm_backward_job j = {
        .T = in[0].shape[0],
        .D = in[0].shape[1],
        .dtype = in[0].dtype,
        .w_dtype = in[2].dtype,
        .dy = in[0].data,
        .x = in[1].data,
        .w = in[2].data,
        .rstd = in[3].data,
        .dres = in[4].data,
        .dx = out[0].data,
        .dw = out[1].data,
        .accumulate = call->options.accumulate,
    };
    return ctx->exec.k->rmsnorm_backward(&ctx->exec, &j);
}

const struct mx8_op_row mx8i_rmsnorm_row = {
    .op =
        {
            .name = "rmsnorm",
            .schema = "rmsnorm(Tensor x, Tensor w, Tensor? add) -> (Tensor y, Tensor rstd, Tensor? sum)",
            .backward_schema =
                "rmsnorm_backward(Tensor dy, Tensor x, Tensor w, Tensor rstd, Tensor? dres) -> (Tensor dx, Tensor? dw)",
            .description =
                "y = s * rstd * w with s = x + add (add may be absent), rstd = 1 / sqrt(mean(s^2) + options.eps) over "
                "each row of (T,D); eps 0 means 1e-5. sum receives s, rounded to the dtype of x, and is what the norm "
                "is taken of. In backward x is that sum, and dx includes dres, the gradient that reaches it by the "
                "residual path (which dx may overwrite). dw (D) f32; options.accumulate adds to it. All row-major "
                "without gaps.",
            .infer = infer_norm,
            .infer_backward = infer_norm_backward,
            .forward = run_norm,
            .backward = run_norm_backward,
        },
    .forward = NORM_PASS,
    .backward = MX8I_PASS(norm_backward_in, norm_backward_out),
};

const struct mx8_op_row mx8i_rmsnorm_quantize_row = {
    .op =
        {
            .name = "rmsnorm_quantize",
            .schema = "rmsnorm_quantize(Tensor x, Tensor w, Tensor? add) -> (Tensor y, Tensor rstd, Tensor? sum, "
                      "Tensor codes, Tensor scales)",
            .description = "rmsnorm and quantize_rows of its y, from one read where a device has a kernel for it; the "
                           "bits are those of the two calls. Its gradient is rmsnorm's.",
            .infer = infer_quantize,
            .forward = run_quantize,
        },
    .forward = QUANTIZE_PASS,
};

/* ---- rope ---- */

static const struct mx8_port rope_in[] = {
    {"x", "TC", MX8I_HP | MX8I_ROWS},
    {"table", "SP2", MX8I_F32 | MX8I_PACKED},
};
static const struct mx8_port rope_out[] = {{"y", "TC", MX8I_HP | MX8I_ROWS}};
static const struct mx8_port rope_backward_in[] = {
    {"dy", "TC", MX8I_HP | MX8I_ROWS},
    {"table", "SP2", MX8I_F32 | MX8I_PACKED},
};
static const struct mx8_port rope_backward_out[] = {{"dx", "TC", MX8I_HP | MX8I_ROWS}};
static const struct mx8_pass rope_pass = MX8I_PASS(rope_in, rope_out);
static const struct mx8_pass rope_backward_pass = MX8I_PASS(rope_backward_in, rope_backward_out);

static int64_t find_sequence(const struct mx8_op_call *call) {
    return call->options.seq_len > 0 ? call->options.seq_len : call->in[1].shape[0];
}

static enum mx8_status infer_rotation(struct mx8_op_call *call, const struct mx8_pass *pass) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "rope", call, pass, 0, 2));
    int64_t cols = mx8i_get_dim(&d, 'C'), head = 2 * mx8i_get_dim(&d, 'P'), heads = call->options.n_heads;
    if (head == 0 || cols % head != 0 || (heads != 0 && cols / head != heads))
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "rope: %s has %lld columns, expected n_heads (%lld) heads of %lld as in table", pass->in[0].name,
            (long long)cols, (long long)heads, (long long)head);
    if (find_sequence(call) < 1 || find_sequence(call) > mx8i_get_dim(&d, 'S'))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "rope: seq_len is %lld, expected 1 to %lld (rows of table)",
            (long long)call->options.seq_len, (long long)mx8i_get_dim(&d, 'S'));
    mx8i_clear_outputs(call, pass, 0);
    mx8i_put_output(call, pass, 0, &d, call->in[0].dtype);
    return MX8_OK;
}

static enum mx8_status infer_rope(struct mx8_op_call *call) {
    return infer_rotation(call, &rope_pass);
}
static enum mx8_status infer_rope_backward(struct mx8_op_call *call) {
    return infer_rotation(call, &rope_backward_pass);
}

static enum mx8_status rotate(struct mx8_context *ctx, const struct mx8_op_call *call, int32_t inverse) {
    const struct mx8_tensor *x = &call->in[0], *table = &call->in[1], *y = &call->out[0];
    int64_t head = 2 * table->shape[1];
    struct mx8_rope_job j = {
        .T = x->shape[0],
        .H = x->shape[1] / head,
        .d = head,
        .S = find_sequence(call),
        .dtype = x->dtype,
        .inverse = inverse,
        .x = x->data,
        .y = y->data,
        .x_ls = x->stride[0],
        .y_ls = y->stride[0],
        .table = table->data,
    };
    return ctx->exec.k->rope(&ctx->exec, &j);
}

static enum mx8_status run_rope(struct mx8_context *ctx, const struct mx8_op_call *call) {
    return rotate(ctx, call, 0);
}
static enum mx8_status run_rope_backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    return rotate(ctx, call, 1);
}

const struct mx8_op_row mx8i_rope_row = {
    .op =
        {
            .name = "rope",
            .schema = "rope(Tensor x, Tensor table) -> Tensor y",
            .backward_schema = "rope_backward(Tensor dy, Tensor table) -> Tensor dx",
            .description =
                "Rotates the pairs (2i, 2i+1) of every head of x (T, H*d) by the angle of position t % "
                "options.seq_len (0: rows of table), whose cosine and sine are table (S, d/2, 2) f32. options.n_heads "
                "is checked when given. Row strides are free; y may be x. The backward pass turns the other way.",
            .infer = infer_rope,
            .infer_backward = infer_rope_backward,
            .forward = run_rope,
            .backward = run_rope_backward,
        },
    .forward = MX8I_PASS(rope_in, rope_out),
    .backward = MX8I_PASS(rope_backward_in, rope_backward_out),
};
