/* Quantizers of values that another operator would store first: SwiGLU's hidden rows, tokens gathered for their
 * experts. The codes are those of the two calls. A device whose kernel table has quantize_from never stores the values;
 * elsewhere they go through the workspace. (The norm, whose values are stored as well: norm_rope.c.) */
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
static const struct mx8_pass swiglu_pass = MX8I_PASS(swiglu_in, swiglu_out);
static const struct mx8_pass permute_pass = MX8I_PASS(permute_in, permute_out);

enum { ROW_CODES, ROW_SCALES, COL_CODES, COL_SCALES, ENDS };

/* ---- shapes ---- */

/* Outputs of M rows and `width` columns; the workspace holds the values. */
static enum mx8_status put_codes(
    struct mx8_op_call *call, const struct mx8_pass *pass, struct mx8_dims *d, char width) {
    const int64_t rows = mx8i_get_dim(d, 'M');
    const struct mx8_style style = mx8i_get_style(&call->options, 0);
    MX8_TRY(mx8i_set_padded_dim(d, &call->options));
    const size_t bytes = (size_t)rows * (size_t)mx8i_get_dim(d, width) * mx8_get_dtype_size(call->in[0].dtype);
    mx8i_clear_outputs(call, pass, bytes);
    for (int32_t i = ROW_CODES; i < ENDS; i += 2) {
        mx8i_put_output(call, pass, i, d, style.format);
        mx8i_put_output(call, pass, i + 1, d, MX8_F8_E8M0);
    }
    if (mx8i_get_dim(d, 'G') > 0) mx8i_put_output(call, pass, ENDS, d, MX8_I32);
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
    const struct mx8_op_call store = {.in = {*gate, *up}, .n_in = 2, .out = {values}, .n_out = 1};
    MX8_TRY(mx8i_swiglu_row.op.forward(ctx, &store));
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
    const struct mx8_op_call store = {.in = {in[0], in[1], in[2], in[3]}, .n_in = 4, .out = {values}, .n_out = 1};
    MX8_TRY(mx8i_permute_row.op.forward(ctx, &store));
    return mx8i_run_quant(ctx, &job);
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
