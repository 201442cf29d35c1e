/* Quantizers of values that another operator would store first: SwiGLU's hidden rows, tokens gathered for their
 * experts. The codes are those of the two calls. A device whose kernel table has quantize_from never stores the values;
 * elsewhere they go through the workspace. */
#include "ops/op_rows.h"
#include "ops/planes.h"

#include "base/error.h"

#define CODES_OUT(rows, row_blocks, cols, col_blocks)                                                                  \
    {                                                                                                                  \
        {"row_codes", rows, MX8I_CODES | MX8I_OPTIONAL}, {"row_scales", row_blocks, MX8I_SCALES | MX8I_OPTIONAL},      \
            {"col_codes", cols, MX8I_CODES | MX8I_OPTIONAL}, {"col_scales", col_blocks, MX8I_SCALES | MX8I_OPTIONAL},  \
            {"ends", "G", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},                                                     \
    }
static const struct mx8_port swiglu_in[] = {
    {"gate", "MF", MX8I_HP | MX8I_ROWS},
    {"up", "MF", MX8I_HP | MX8I_SAME | MX8I_ROWS},
    {"offsets", "G", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port swiglu_out[] = CODES_OUT("MF", "Mf", "FP", "Fp");
static const struct mx8_port permute_in[] = {
    {"x", "TD", MX8I_HP | MX8I_PACKED},
    {"order", "M", MX8I_I32 | MX8I_PACKED},
    {"positions", "TJ", MX8I_I32 | MX8I_PACKED},
    {"weights", "TJ", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
    {"offsets", "G", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port permute_out[] = CODES_OUT("MD", "Md", "DP", "Dp");
static const struct mx8_port norm_in[] = {
    {"x", "TD", MX8I_HP | MX8I_PACKED},
    {"w", "D", MX8I_HP | MX8I_PACKED},
    {"add", "TD", MX8I_HP | MX8I_SAME | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port norm_out[] = {
    {"y", "TD", MX8I_HP | MX8I_PACKED},
    {"rstd", "T", MX8I_F32 | MX8I_PACKED},
    {"sum", "TD", MX8I_HP | MX8I_PACKED | MX8I_OPTIONAL},
    {"codes", "TD", MX8I_CODES},
    {"scales", "Td", MX8I_SCALES},
};
static const struct mx8_pass norm_pass = MX8I_PASS(norm_in, norm_out);
static const struct mx8_pass swiglu_pass = MX8I_PASS(swiglu_in, swiglu_out);
static const struct mx8_pass permute_pass = MX8I_PASS(permute_in, permute_out);

enum { ROW_CODES, ROW_SCALES, COL_CODES, COL_SCALES, ENDS };

/* ---- shapes ---- */

/* Outputs of M rows and `width` columns; the workspace holds the values. */
static enum mx8_status put_codes(
    struct mx8_op_call *call, const struct mx8_pass *pass, struct mx8_dims *d, char width) {
    const int64_t rows = mx8i_get_dim(d, 'M'), groups = mx8i_get_dim(d, 'G');
    const struct mx8_style style = mx8i_get_style(&call->options, 0);
    MX8_TRY(mx8i_check_styles(d->op, &call->options));
    if (groups == 0 || (groups > 0 && (rows > INT32_MAX / 2 || groups > INT32_MAX / 2 / style.padding)))
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s: %lld rows in %lld groups, expected at least one group and at most 2^30 rows", d->op, (long long)rows,
            (long long)groups);
    MX8_TRY(groups < 0 ? mx8i_set_dim(d, 'P', rows, "rows")
                       : mx8i_set_dim(d, 'P', mx8i_padded_rows(rows, (int32_t)groups, style.padding),
                             "rows + alignment G rounded up to it"));
    const size_t bytes = (size_t)rows * (size_t)mx8i_get_dim(d, width) * mx8_get_dtype_size(call->in[0].dtype);
    mx8i_clear_outputs(call, pass, bytes);
    for (int32_t i = ROW_CODES; i < ENDS; i += 2) {
        mx8i_put_output(call, pass, i, d, style.format);
        mx8i_put_output(call, pass, i + 1, d, MX8_F8_E8M0);
    }
    if (groups > 0) mx8i_put_output(call, pass, ENDS, d, MX8_I32);
    return MX8_OK;
}

static enum mx8_status infer_swiglu(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "swiglu_quantize", call, &swiglu_pass, 0, swiglu_pass.n_in));
    return put_codes(call, &swiglu_pass, &d, 'F');
}

static enum mx8_status infer_permute(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "permute_quantize", call, &permute_pass, 0, permute_pass.n_in));
    const int64_t T = mx8i_get_dim(&d, 'T'), k = mx8i_get_dim(&d, 'J');
    if (k > 0 && T > INT32_MAX / k)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "permute_quantize: %lld tokens with %lld experts each are more than 2^31 - 1 rows", (long long)T,
            (long long)k);
    MX8_TRY(mx8i_set_dim(&d, 'M', T * k, "tokens times top_k"));
    return put_codes(call, &permute_pass, &d, 'D');
}

static enum mx8_status infer_norm(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "rmsnorm_quantize", call, &norm_pass, 0, norm_pass.n_in));
    MX8_TRY(mx8i_check_styles("rmsnorm_quantize", &call->options));
    if (call->options.eps < 0)
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "rmsnorm_quantize: eps is %g, expected 0 or more", (double)call->options.eps);
    mx8i_clear_outputs(call, &norm_pass, 0);
    mx8i_put_output(call, &norm_pass, 0, &d, call->in[0].dtype);
    mx8i_put_output(call, &norm_pass, 1, &d, MX8_F32);
    if (mx8i_is_present(&call->in[2])) mx8i_put_output(call, &norm_pass, 2, &d, call->in[0].dtype);
    mx8i_put_output(call, &norm_pass, 3, &d, mx8i_get_style(&call->options, 0).format);
    mx8i_put_output(call, &norm_pass, 4, &d, MX8_F8_E8M0);
    return MX8_OK;
}

/* ---- passes ---- */

static enum mx8_status check_pair(
    const char *op, const struct mx8_op_call *call, const struct mx8_pass *pass, int32_t codes) {
    if (mx8i_is_present(&call->out[codes]) == mx8i_is_present(&call->out[codes + 1])) return MX8_OK;
    const int32_t missing = mx8i_is_present(&call->out[codes]) ? codes + 1 : codes;
    return MX8_FAIL(
        MX8_INVALID_ARGUMENT, "%s: %s is missing, expected codes and scales or neither", op, pass->out[missing].name);
}

/* `values`: the matrix that would be stored, in the workspace. */
static enum mx8_status start_job(struct mx8_context *ctx, const char *op, const struct mx8_op_call *call,
    const struct mx8_pass *pass, const struct mx8_tensor *values, const struct mx8_tensor *offsets,
    struct mx8_quant_job *job) {
    const struct mx8_style style = mx8i_get_style(&call->options, 0);
    MX8_TRY(check_pair(op, call, pass, ROW_CODES));
    MX8_TRY(check_pair(op, call, pass, COL_CODES));
    const int cols = mx8i_is_present(&call->out[COL_CODES]), grouped = mx8i_is_present(offsets);
    if (cols && grouped && !mx8i_is_present(&call->out[ENDS]))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: ends is missing, expected it with offsets and col_codes", op);
    *job = mx8i_start_quant(ctx, values, style);
    for (int32_t i = ROW_CODES; i < ENDS; i += 2) {
        if (!mx8i_is_present(&call->out[i])) continue;
        const struct mx8_code_pair pair = {&call->out[i], &call->out[i + 1]};
        const struct mx8_plane plane = mx8i_view_plane(&pair, 0, style);
        if (i == ROW_CODES)
            mx8i_emit_rows(job, &plane);
        else
            mx8i_emit_cols(job, &plane);
    }
    if (grouped) mx8i_set_groups(job, offsets, cols ? call->out[ENDS].data : NULL);
    return MX8_OK;
}

static enum mx8_status make_codes(
    struct mx8_context *ctx, const struct mx8_quant_source *source, const struct mx8_quant_job *job) {
    if (!ctx->exec.k->quantize_from || mx8i_counts_gaps(ctx)) return MX8_UNSUPPORTED; /* who counts wants the values */
    return ctx->exec.k->quantize_from(&ctx->exec, source, job);
}

static enum mx8_status run_swiglu(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *gate = &call->in[0], *up = &call->in[1];
    const struct mx8_tensor values = mx8_make_tensor(call->workspace, gate->dtype, 2, gate->shape);
    struct mx8_quant_job job;
    MX8_TRY(start_job(ctx, "swiglu_quantize", call, &swiglu_pass, &values, &call->in[2], &job));
    const struct mx8_quant_source source = {
        .kind = MX8_FROM_SWIGLU, .a = gate->data, .b = up->data, .a_ls = gate->stride[0], .b_ls = up->stride[0]};
    const enum mx8_status status = make_codes(ctx, &source, &job);
    if (status != MX8_UNSUPPORTED) return status;
    const struct mx8_swiglu_job store = {.M = gate->shape[0],
        .F = gate->shape[1],
        .dtype = gate->dtype,
        .gate = gate->data,
        .up = up->data,
        .h = values.data,
        .gate_ls = gate->stride[0],
        .up_ls = up->stride[0],
        .h_ls = values.stride[0]};
    MX8_TRY(ctx->exec.k->swiglu(&ctx->exec, &store));
    return mx8i_run_quant(ctx, &job);
}

static enum mx8_status run_permute(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in;
    const int64_t shape[2] = {in[1].shape[0], in[0].shape[1]};
    const int32_t k = (int32_t)in[2].shape[1];
    const struct mx8_tensor values = mx8_make_tensor(call->workspace, in[0].dtype, 2, shape);
    struct mx8_quant_job job;
    MX8_TRY(start_job(ctx, "permute_quantize", call, &permute_pass, &values, &in[4], &job));
    const struct mx8_quant_source source = {.kind = MX8_FROM_PERMUTE,
        .a = in[0].data,
        .a_ls = shape[1],
        .order = in[1].data,
        .weights = in[3].data,
        .k = k};
    const enum mx8_status status = make_codes(ctx, &source, &job);
    if (status != MX8_UNSUPPORTED) return status;
    const struct mx8_permute_job store = {.T = in[0].shape[0],
        .D = shape[1],
        .k = k,
        .dtype = in[0].dtype,
        .x = in[0].data,
        .order = in[1].data,
        .positions = in[2].data,
        .weights = in[3].data,
        .rows = values.data};
    if (shape[1] > 0) MX8_TRY(ctx->exec.k->permute(&ctx->exec, &store)); /* rows without columns have no place */
    return mx8i_run_quant(ctx, &job);
}

static enum mx8_status run_norm(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in, *out = call->out;
    const struct mx8_style style = mx8i_get_style(&call->options, 0);
    const struct mx8_code_pair pair = {&out[3], &out[4]};
    const struct mx8_plane rows = mx8i_view_plane(&pair, 0, style);
    struct mx8_quant_job codes = mx8i_start_quant(ctx, &out[0], style);
    mx8i_emit_rows(&codes, &rows);
    const struct mx8_rmsnorm_job norm = {.T = in[0].shape[0],
        .D = in[0].shape[1],
        .dtype = in[0].dtype,
        .w_dtype = in[1].dtype,
        .eps = call->options.eps > 0 ? call->options.eps : 1e-5f,
        .x = in[0].data,
        .w = in[1].data,
        .add = in[2].data,
        .y = out[0].data,
        .rstd = out[1].data,
        .sum = out[2].data};
    if (ctx->exec.k->rmsnorm_quantize && !mx8i_counts_gaps(ctx)) {
        const enum mx8_status status = ctx->exec.k->rmsnorm_quantize(&ctx->exec, &norm, &codes);
        if (status != MX8_UNSUPPORTED) return status;
    }
    MX8_TRY(ctx->exec.k->rmsnorm(&ctx->exec, &norm));
    return mx8i_run_quant(ctx, &codes);
}

/* ---- rows ---- */

#define CODES_SCHEMA " -> (Tensor? row_codes, Tensor? row_scales, Tensor? col_codes, Tensor? col_scales, Tensor? ends)"

const struct mx8_op_row mx8i_swiglu_quantize_row = {
    .op =
        {
            .name = "swiglu_quantize",
            .schema = "swiglu_quantize(Tensor gate, Tensor up, Tensor? offsets)" CODES_SCHEMA,
            .description =
                "Codes of h (M,F) = silu(gate) * up without h itself: the bits of swiglu, then quantize_rows, "
                "quantize_cols or "
                "quantize_both. Outputs that are absent are not made; ends comes with offsets and col_codes. "
                "The workspace "
                "holds h where a device has no kernel that makes both at once.",
            .infer = infer_swiglu,
            .forward = run_swiglu,
        },
    .forward = MX8I_PASS(swiglu_in, swiglu_out),
};

const struct mx8_op_row mx8i_permute_quantize_row = {
    .op =
        {
            .name = "permute_quantize",
            .schema = "permute_quantize(Tensor x, Tensor order, Tensor positions, Tensor? weights, Tensor? "
                      "offsets)" CODES_SCHEMA,
            .description =
                "Codes of rows (T*k,D), tokens in the order of their experts (times their scores when weights "
                "is given), without the "
                "rows themselves: the bits of permute, then quantize_rows, quantize_cols or quantize_both. "
                "Outputs and workspace as for swiglu_quantize.",
            .infer = infer_permute,
            .forward = run_permute,
        },
    .forward = MX8I_PASS(permute_in, permute_out),
};

const struct mx8_op_row mx8i_rmsnorm_quantize_row = {
    .op =
        {
            .name = "rmsnorm_quantize",
            .schema = "rmsnorm_quantize(Tensor x, Tensor w, Tensor? add) -> (Tensor y, Tensor rstd, Tensor? sum, "
                      "Tensor codes, Tensor scales)",
            .description = "rmsnorm and quantize_rows of its y, from one read where a device has a kernel for it; the "
                           "bits are those of the two calls. Its gradient is rmsnorm's.",
            .infer = infer_norm,
            .forward = run_norm,
        },
    .forward = MX8I_PASS(norm_in, norm_out),
};
