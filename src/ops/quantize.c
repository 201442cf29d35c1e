/* The quantizers and the dequantizer as operators. Each fills a job for the kernel; none needs a workspace. */
#include "ops/op_rows.h"
#include "ops/planes.h"

#include "base/error.h"

static const struct mx8_port rows_in[] = {{"x", "MK", MX8I_HP}};
static const struct mx8_port rows_out[] = {{"codes", "MK", MX8I_CODES}, {"scales", "Mk", MX8I_SCALES}};
static const struct mx8_port cols_in[] = {
    {"x", "MK", MX8I_HP}, {"offsets", "G", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL}};
static const struct mx8_port cols_out[] = {
    {"codes", "KP", MX8I_CODES},
    {"scales", "Kp", MX8I_SCALES},
    {"ends", "G", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port both_out[] = {
    {"row_codes", "MK", MX8I_CODES},
    {"row_scales", "Mk", MX8I_SCALES},
    {"col_codes", "KP", MX8I_CODES},
    {"col_scales", "Kp", MX8I_SCALES},
    {"ends", "G", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port weights_in[] = {{"w", "ENK", MX8I_HP}};
static const struct mx8_port weights_out[] = {
    {"codes", "ENK", MX8I_CODES | MX8I_FIXED}, {"scales", "EnK", MX8I_SCALES | MX8I_PACKED}};
static const struct mx8_port experts_out[] = {
    {"row_codes", "ENK", MX8I_CODES},
    {"row_scales", "ENk", MX8I_SCALES},
    {"codes", "ENK", MX8I_CODES | MX8I_FIXED},
    {"scales", "EnK", MX8I_SCALES | MX8I_PACKED},
};
static const struct mx8_port dequantize_in[] = {{"codes", NULL, MX8I_CODES}, {"scales", NULL, MX8I_SCALES}};
static const struct mx8_port dequantize_out[] = {{"x", NULL, MX8I_HP}};

static const struct mx8_pass rows_pass = MX8I_PASS(rows_in, rows_out);
static const struct mx8_pass cols_pass = MX8I_PASS(cols_in, cols_out);
static const struct mx8_pass both_pass = MX8I_PASS(cols_in, both_out);
static const struct mx8_pass weights_pass = MX8I_PASS(weights_in, weights_out);
static const struct mx8_pass experts_pass = MX8I_PASS(weights_in, experts_out);
static const struct mx8_pass dequantize_pass = MX8I_PASS(dequantize_in, dequantize_out);

static int32_t find_format(const struct mx8_op_call *call) {
    return mx8i_get_style(&call->options, 0).format;
}

/* ---- shapes ---- */

static enum mx8_status bind_source(
    struct mx8_dims *d, const char *op, const struct mx8_op_call *call, const struct mx8_pass *pass) {
    MX8_TRY(mx8i_bind_inputs(d, op, call, pass, 0, pass->n_in));
    return mx8i_set_padded_dim(d, &call->options);
}

static enum mx8_status infer_rows(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "quantize_rows", call, &rows_pass, 0, 1));
    MX8_TRY(mx8i_check_styles("quantize_rows", &call->options));
    mx8i_clear_outputs(call, &rows_pass, 0);
    mx8i_put_output(call, &rows_pass, 0, &d, find_format(call));
    mx8i_put_output(call, &rows_pass, 1, &d, MX8_F8_E8M0);
    return MX8_OK;
}

static enum mx8_status infer_cols(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(bind_source(&d, "quantize_cols", call, &cols_pass));
    mx8i_clear_outputs(call, &cols_pass, 0);
    mx8i_put_output(call, &cols_pass, 0, &d, find_format(call));
    mx8i_put_output(call, &cols_pass, 1, &d, MX8_F8_E8M0);
    if (mx8i_is_present(&call->in[1])) mx8i_put_output(call, &cols_pass, 2, &d, MX8_I32);
    return MX8_OK;
}

/* Whether the source is rounded on its way, and the workspace for it. */
static int is_rounded(const struct mx8_op_call *call) {
    return call->options.via_bf16 && call->in[0].dtype == MX8_F32 && mx8_count_elements(&call->in[0]) > 0;
}

static enum mx8_status size_rounding(const char *op, const struct mx8_op_call *call, size_t *bytes) {
    const struct mx8_tensor *x = &call->in[0];
    *bytes = 0;
    MX8_TRY(mx8i_check_choice(op, "via_bf16", call->options.via_bf16, 2));
    if (!is_rounded(call)) return MX8_OK;
    if (mx8i_is_present(&call->in[1]))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: via_bf16 is 1 with offsets, expected one or the other", op);
    const int64_t cols = x->shape[x->ndim - 1];
    if (x->stride[x->ndim - 1] != 1 || x->stride[x->ndim - 2] != cols)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: rows have strides %lld and %lld, expected %lld and 1 with via_bf16",
            op, (long long)x->stride[x->ndim - 2], (long long)x->stride[x->ndim - 1], (long long)cols);
    *bytes = mx8i_size_rounding(x);
    return MX8_OK;
}

static enum mx8_status infer_both(struct mx8_op_call *call) {
    struct mx8_dims d;
    size_t workspace;
    MX8_TRY(bind_source(&d, "quantize_both", call, &both_pass));
    MX8_TRY(size_rounding("quantize_both", call, &workspace));
    mx8i_clear_outputs(call, &both_pass, workspace);
    for (int32_t i = 0; i < 4; i += 2) {
        mx8i_put_output(call, &both_pass, i, &d, find_format(call));
        mx8i_put_output(call, &both_pass, i + 1, &d, MX8_F8_E8M0);
    }
    if (mx8i_is_present(&call->in[1])) mx8i_put_output(call, &both_pass, 4, &d, MX8_I32);
    return MX8_OK;
}

static enum mx8_status infer_3d(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "quantize_3d", call, &weights_pass, 0, 1));
    MX8_TRY(mx8i_check_styles("quantize_3d", &call->options));
    mx8i_clear_outputs(call, &weights_pass, 0);
    mx8i_put_output(call, &weights_pass, 0, &d, find_format(call));
    mx8i_put_output(call, &weights_pass, 1, &d, MX8_F8_E8M0);
    call->out[0].stride[1] = 1;
    call->out[0].stride[2] = mx8i_get_dim(&d, 'N');
    return MX8_OK;
}

static enum mx8_status infer_experts(struct mx8_op_call *call) {
    struct mx8_dims d;
    size_t workspace;
    MX8_TRY(mx8i_bind_inputs(&d, "quantize_experts", call, &experts_pass, 0, 1));
    MX8_TRY(mx8i_check_styles("quantize_experts", &call->options));
    MX8_TRY(size_rounding("quantize_experts", call, &workspace));
    mx8i_clear_outputs(call, &experts_pass, workspace);
    for (int32_t i = 0; i < 4; i += 2) {
        mx8i_put_output(call, &experts_pass, i, &d, find_format(call));
        mx8i_put_output(call, &experts_pass, i + 1, &d, MX8_F8_E8M0);
    }
    call->out[2].stride[1] = 1;
    call->out[2].stride[2] = mx8i_get_dim(&d, 'N');
    return MX8_OK;
}

static enum mx8_status infer_dequantize(struct mx8_op_call *call) {
    struct mx8_dims d;
    const struct mx8_tensor *codes = &call->in[0], *scales = &call->in[1];
    int32_t dtype;
    MX8_TRY(mx8i_bind_inputs(&d, "dequantize", call, &dequantize_pass, 0, 2));
    MX8_TRY(mx8i_check_styles("dequantize", &call->options));
    if (codes->ndim < 1 || scales->ndim != codes->ndim)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "dequantize: codes have %d dimensions and scales %d, expected as many, at least 1", (int)codes->ndim,
            (int)scales->ndim);
    for (int32_t i = 0; i < codes->ndim; i++) {
        int64_t expected = i == codes->ndim - 1 ? mx8i_count_blocks(codes->shape[i]) : codes->shape[i];
        if (scales->shape[i] != expected)
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "dequantize: scales have size %lld in dimension %d, expected %lld",
                (long long)scales->shape[i], (int)i, (long long)expected);
    }
    MX8_TRY(mx8i_choose_dtype("dequantize", &call->options, MX8_BF16, &dtype));
    struct mx8_tensor x = mx8_make_tensor(NULL, dtype, codes->ndim, codes->shape);
    mx8i_clear_outputs(call, &dequantize_pass, 0);
    call->out[0] = x;
    return MX8_OK;
}

/* ---- passes ---- */

/* Where the caller wants codes and scales, whose first dimension is the lines of either orientation. */
static struct mx8_plane use_outputs(const struct mx8_op_call *call, int32_t index) {
    struct mx8_code_pair pair = {&call->out[index], &call->out[index + 1]};
    return mx8i_view_plane(&pair, 0, mx8i_get_style(&call->options, 0));
}

static enum mx8_status run_rows(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_quant_job j = mx8i_start_quant(ctx, &call->in[0], mx8i_get_style(&call->options, 0));
    struct mx8_plane rows = use_outputs(call, 0);
    mx8i_emit_rows(&j, &rows);
    return mx8i_run_quant(ctx, &j);
}

static enum mx8_status run_cols(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_quant_job j = mx8i_start_quant(ctx, &call->in[0], mx8i_get_style(&call->options, 0));
    struct mx8_plane cols = use_outputs(call, 0);
    mx8i_emit_cols(&j, &cols);
    if (mx8i_is_present(&call->in[1])) mx8i_set_groups(&j, &call->in[1], call->out[2].data);
    return mx8i_run_quant(ctx, &j);
}

static enum mx8_status run_both(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_quant_job j = mx8i_start_quant(ctx, &call->in[0], mx8i_get_style(&call->options, 0));
    struct mx8_plane rows = use_outputs(call, 0), cols = use_outputs(call, 2);
    mx8i_emit_rows(&j, &rows);
    mx8i_emit_cols(&j, &cols);
    if (is_rounded(call)) return mx8i_run_quant_rounded(ctx, &j, call->workspace);
    if (mx8i_is_present(&call->in[1])) mx8i_set_groups(&j, &call->in[1], call->out[4].data);
    return mx8i_run_quant(ctx, &j);
}

static enum mx8_status run_3d(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_style style = mx8i_get_style(&call->options, 0);
    struct mx8_quant_job j = mx8i_start_quant(ctx, &call->in[0], style);
    struct mx8_code_pair pair = {&call->out[0], &call->out[1]};
    struct mx8_plane cols = mx8i_view_plane(&pair, 1, style);
    mx8i_emit_cols(&j, &cols);
    return mx8i_run_quant(ctx, &j);
}

static enum mx8_status run_experts(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_style style = mx8i_get_style(&call->options, 0);
    struct mx8_quant_job j = mx8i_start_quant(ctx, &call->in[0], style);
    struct mx8_code_pair along_k = {&call->out[0], &call->out[1]}, along_n = {&call->out[2], &call->out[3]};
    struct mx8_plane rows = mx8i_view_plane(&along_k, 0, style), cols = mx8i_view_plane(&along_n, 1, style);
    mx8i_emit_rows(&j, &rows);
    mx8i_emit_cols(&j, &cols);
    return is_rounded(call) ? mx8i_run_quant_rounded(ctx, &j, call->workspace) : mx8i_run_quant(ctx, &j);
}

/* The last two dimensions as one matrix. */
static enum mx8_status dequantize_matrix(
    struct mx8_context *ctx, const struct mx8_op_call *call, char *x, const uint8_t *codes, const uint8_t *scales) {
    const struct mx8_tensor *c = &call->in[0], *s = &call->in[1], *out = &call->out[0];
    int32_t last = c->ndim - 1;
    struct mx8_dequant_job j = {
        .dst = x,
        .dst_dtype = out->dtype,
        .rows = last > 0 ? c->shape[last - 1] : 1,
        .cols = c->shape[last],
        .dst_stride = {last > 0 ? out->stride[last - 1] : 0, out->stride[last]},
        .codes = codes,
        .code_stride = {last > 0 ? c->stride[last - 1] : 0, c->stride[last]},
        .scales = scales,
        .scale_stride = {last > 0 ? s->stride[last - 1] : 0, s->stride[last]},
        .format = c->dtype == MX8_U8 ? find_format(call) : c->dtype,
    };
    return ctx->exec.k->dequantize(&ctx->exec, &j);
}

static enum mx8_status run_dequantize(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *c = &call->in[0], *s = &call->in[1], *x = &call->out[0];
    if (mx8_count_elements(c) == 0) return MX8_OK;
    int64_t element = (int64_t)mx8_get_dtype_size(x->dtype);
    int64_t outer[2] = {1, 1}, at[2] = {0, 0};                 /* of the dimensions before the last two */
    const int32_t n_outer = c->ndim - 2 < 2 ? c->ndim - 2 : 2; /* infer takes no more */
    for (int32_t i = 0; i < n_outer; i++) outer[i] = c->shape[i];
    for (at[0] = 0; at[0] < outer[0]; at[0]++) {
        for (at[1] = 0; at[1] < outer[1]; at[1]++) {
            int64_t code = 0, scale = 0, value = 0;
            for (int32_t i = 0; i < n_outer; i++) {
                code += at[i] * c->stride[i];
                scale += at[i] * s->stride[i];
                value += at[i] * x->stride[i];
            }
            MX8_TRY(dequantize_matrix(
                ctx, call, (char *)x->data + value * element, (uint8_t *)c->data + code, (uint8_t *)s->data + scale));
        }
    }
    return MX8_OK;
}

/* ---- rows ---- */

const struct mx8_op_row mx8i_quantize_rows_row = {
    .op =
        {
            .name = "quantize_rows",
            .schema = "quantize_rows(Tensor x) -> (Tensor codes, Tensor scales)",
            .description =
                "Blocks of 1x32 along K: x (M,K) bf16 or f32 with any strides to codes (M,K) and scales (M, "
                "ceil(K/32)). options.scale_rule picks the scale's rule, options.format e4m3 or e5m2. "
                "options.scale_group 128 or 256 makes the scales of that many neighbouring elements along K equal, "
                "options.tile_rows 32 or 128 those of that many rows: the result stays a valid MXFP8 tensor. A short "
                "last block behaves as if zeros followed.",
            .infer = infer_rows,
            .forward = run_rows,
        },
    .forward = MX8I_PASS(rows_in, rows_out),
};

const struct mx8_op_row mx8i_quantize_cols_row = {
    .op =
        {
            .name = "quantize_cols",
            .schema = "quantize_cols(Tensor x, Tensor? offsets) -> (Tensor codes, Tensor scales, Tensor? ends)",
            .description =
                "Blocks of 32x1 along M, stored transposed: x (M,K) to codes (K,M) and scales (K, ceil(M/32)). With "
                "offsets (G), the cumulative ends of row groups, blocks start anew in every group: codes are (K,Mp) "
                "and scales (K,Mp/32) with A = options.alignment (32) and Mp = M + A G rounded up to A, each group "
                "padded to A rows with zero bytes, and ends (G) receives the padded cumulative ends. Rows at and past "
                "offsets[G-1] are not read. Options as for quantize_rows, scale_group along M and tile_rows across "
                "columns.",
            .infer = infer_cols,
            .forward = run_cols,
        },
    .forward = MX8I_PASS(cols_in, cols_out),
};

const struct mx8_op_row mx8i_quantize_both_row = {
    .op =
        {
            .name = "quantize_both",
            .schema =
                "quantize_both(Tensor x, Tensor? offsets) -> (Tensor row_codes, Tensor row_scales, Tensor col_codes, "
                "Tensor col_scales, Tensor? ends)",
            .description =
                "quantize_rows and quantize_cols from one read of x; the bits are those of the two calls. With "
                "offsets, the row codes and scales of rows at and past offsets[G-1] are zero. options.via_bf16, "
                "without offsets: a row-major f32 x is rounded to bf16 on its way, in the workspace where no kernel does.",
            .infer = infer_both,
            .forward = run_both,
        },
    .forward = MX8I_PASS(cols_in, both_out),
};

const struct mx8_op_row mx8i_quantize_3d_row = {
    .op =
        {
            .name = "quantize_3d",
            .schema = "quantize_3d(Tensor w) -> (Tensor codes, Tensor scales)",
            .description =
                "Expert weights w (E,N,K) in blocks of 32x1 along N, the right operand of the input gradient: codes "
                "(E,N,K) with strides (N*K, 1, N), scales (E, ceil(N/32), K) row-major. Options as for quantize_cols.",
            .infer = infer_3d,
            .forward = run_3d,
        },
    .forward = MX8I_PASS(weights_in, weights_out),
};

const struct mx8_op_row mx8i_quantize_experts_row = {
    .op =
        {
            .name = "quantize_experts",
            .schema =
                "quantize_experts(Tensor w) -> (Tensor row_codes, Tensor row_scales, Tensor codes, Tensor scales)",
            .description =
                "Both forms of expert weights w (E,N,K) from one read: blocks of 1x32 along K, row_codes (E,N,K) and "
                "row_scales (E, N, ceil(K/32)), as quantize_rows makes them of each expert; codes and scales as "
                "quantize_3d. options.via_bf16: a row-major f32 w is rounded to bf16 on its way, in the workspace where no "
                "kernel does.",
            .infer = infer_experts,
            .forward = run_experts,
        },
    .forward = MX8I_PASS(weights_in, experts_out),
};

const struct mx8_op_row mx8i_dequantize_row = {
    .op =
        {
            .name = "dequantize",
            .schema = "dequantize(Tensor codes, Tensor scales) -> Tensor x",
            .description =
                "codes (..,K) and scales (.., ceil(K/32)) to x (..,K): code * 2^(scale - 127), rounded once to "
                "options.out_dtype (bf16 where it is 0). Blocks run along the last dimension; strides are free, so "
                "other axes are a matter of views. Scale byte 255 gives NaN. Codes of dtype u8 are read as "
                "options.format.",
            .infer = infer_dequantize,
            .forward = run_dequantize,
        },
    .forward = MX8I_PASS(dequantize_in, dequantize_out),
};
