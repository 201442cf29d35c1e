/* Quantizers of values that another operator would store first: SwiGLU's hidden rows and their gradients, tokens
 * gathered for their experts. The codes are those of the two calls. A device whose kernel table has quantize_from (or
 * quantize_swiglu_backward) never stores the values; elsewhere they go through the workspace. (The norm, whose values
 * are stored as well: norm_rope.c.) */
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
static const struct mx8_port gradients_in[] = {
    {"dh", "MF", MX8I_HP | MX8I_ROWS},
    {"gate", "MF", MX8I_HP | MX8I_SAME | MX8I_ROWS},
    {"up", "MF", MX8I_HP | MX8I_SAME | MX8I_ROWS},
    {"offsets", "G", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port gradients_out[] = {
    {"dgate_row_codes", "MF", MX8I_CODES | MX8I_OPTIONAL},
    {"dgate_row_scales", "Mf", MX8I_SCALES | MX8I_OPTIONAL},
    {"dgate_col_codes", "FP", MX8I_CODES | MX8I_OPTIONAL},
    {"dgate_col_scales", "Fp", MX8I_SCALES | MX8I_OPTIONAL},
    {"dup_row_codes", "MF", MX8I_CODES | MX8I_OPTIONAL},
    {"dup_row_scales", "Mf", MX8I_SCALES | MX8I_OPTIONAL},
    {"dup_col_codes", "FP", MX8I_CODES | MX8I_OPTIONAL},
    {"dup_col_scales", "Fp", MX8I_SCALES | MX8I_OPTIONAL},
};
static const struct mx8_pass gradients_pass = MX8I_PASS(gradients_in, gradients_out);
static const struct mx8_pass swiglu_pass = MX8I_PASS(swiglu_in, swiglu_out);
static const struct mx8_pass permute_pass = MX8I_PASS(permute_in, permute_out);

enum { ROW_CODES, ROW_SCALES, COL_CODES, COL_SCALES, ENDS, SIDES = ENDS /* outputs of one of two gradients */ };

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

/* dgate and dup in the workspace: one behind the other, each at a multiple of 256 bytes. Returns its size. */
static size_t carve_gradients(const struct mx8_op_call *call, void *workspace, struct mx8_tensor values[2]) {
    const struct mx8_tensor *gate = &call->in[1];
    struct mx8_carver carver = {workspace, 0};
    for (int i = 0; i < 2; i++) {
        values[i] = mx8_make_tensor(NULL, gate->dtype, 2, gate->shape);
        values[i].data = mx8i_carve(&carver, mx8_count_elements(&values[i]) * (int64_t)mx8_get_dtype_size(gate->dtype));
    }
    return carver.used;
}

static enum mx8_status infer_gradients(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "swiglu_backward_quantize", call, &gradients_pass, 0, gradients_pass.n_in));
    MX8_TRY(mx8i_set_padded_dim(&d, &call->options));
    struct mx8_tensor values[2];
    mx8i_clear_outputs(call, &gradients_pass, carve_gradients(call, NULL, values));
    for (int32_t i = 0; i < 2 * SIDES; i += 2) {
        mx8i_put_output(call, &gradients_pass, i, &d, mx8i_get_style(&call->options, 0).format);
        mx8i_put_output(call, &gradients_pass, i + 1, &d, MX8_F8_E8M0);
    }
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

/* `values`: the matrix that would be stored, in the workspace; its codes are outputs from `first` on. */
static enum mx8_status emit_codes(struct mx8_context *ctx, const char *op, const struct mx8_op_call *call,
    const struct mx8_pass *pass, int32_t first, const struct mx8_tensor *values, struct mx8_quant_job *job) {
    const struct mx8_style style = mx8i_get_style(&call->options, 0);
    MX8_TRY(check_pair(op, call, pass, first + ROW_CODES));
    MX8_TRY(check_pair(op, call, pass, first + COL_CODES));
    *job = mx8i_start_quant(ctx, values, style);
    for (int32_t i = ROW_CODES; i < ENDS; i += 2) {
        const struct mx8_code_pair pair = {&call->out[first + i], &call->out[first + i + 1]};
        if (!mx8i_has_codes(&pair)) continue;
        const struct mx8_plane plane = mx8i_view_plane(&pair, 0, style);
        if (i == ROW_CODES)
            mx8i_emit_rows(job, &plane);
        else
            mx8i_emit_cols(job, &plane);
    }
    return MX8_OK;
}

static enum mx8_status start_job(struct mx8_context *ctx, const char *op, const struct mx8_op_call *call,
    const struct mx8_pass *pass, const struct mx8_tensor *values, const struct mx8_tensor *offsets,
    struct mx8_quant_job *job) {
    MX8_TRY(emit_codes(ctx, op, call, pass, 0, values, job));
    const int cols = mx8i_is_present(&call->out[COL_CODES]), grouped = mx8i_is_present(offsets);
    if (cols && grouped && !mx8i_is_present(&call->out[ENDS]))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: ends is missing, expected it with offsets and col_codes", op);
    if (grouped) mx8i_set_groups(job, offsets, cols ? call->out[ENDS].data : NULL);
    return MX8_OK;
}

static enum mx8_status run_swiglu(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *gate = &call->in[0], *up = &call->in[1];
    const struct mx8_tensor values = mx8_make_tensor(call->workspace, gate->dtype, 2, gate->shape);
    struct mx8_quant_job job;
    MX8_TRY(start_job(ctx, "swiglu_quantize", call, &swiglu_pass, &values, &call->in[2], &job));
    const struct mx8_quant_source source = {
        .kind = MX8_FROM_SWIGLU, .a = gate->data, .b = up->data, .a_ls = gate->stride[0], .b_ls = up->stride[0]};
    const enum mx8_status status = mx8i_run_quant_from(ctx, &source, &job);
    if (status != MX8_UNSUPPORTED) return status;
    const struct mx8_op_call store = {.in = {*gate, *up}, .n_in = 2, .out = {values}, .n_out = 1};
    MX8_TRY(mx8i_swiglu_row.op.forward(ctx, &store));
    return mx8i_run_quant(ctx, &job);
}

static enum mx8_status make_gradient_codes(
    struct mx8_context *ctx, const struct mx8_op_call *call, const struct mx8_quant_job job[2]) {
    const struct mx8_tensor *dh = &call->in[0], *gate = &call->in[1], *up = &call->in[2];
    if (!ctx->exec.k->quantize_swiglu_backward || mx8i_counts_gaps(ctx)) return MX8_UNSUPPORTED;
    const struct mx8_swiglu_job source = {.M = gate->shape[0],
        .F = gate->shape[1],
        .dtype = gate->dtype,
        .gate = gate->data,
        .up = up->data,
        .dh = dh->data,
        .gate_ls = gate->stride[0],
        .up_ls = up->stride[0],
        .dh_ls = dh->stride[0]};
    return ctx->exec.k->quantize_swiglu_backward(&ctx->exec, &source, &job[0], &job[1]);
}

static enum mx8_status run_gradients(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_tensor values[2];
    struct mx8_quant_job job[2];
    carve_gradients(call, call->workspace, values);
    for (int i = 0; i < 2; i++) {
        MX8_TRY(emit_codes(ctx, "swiglu_backward_quantize", call, &gradients_pass, i * SIDES, &values[i], &job[i]));
        if (mx8i_is_present(&call->in[3])) mx8i_set_groups(&job[i], &call->in[3], NULL);
    }
    const enum mx8_status status = make_gradient_codes(ctx, call, job);
    if (status != MX8_UNSUPPORTED) return status;
    const struct mx8_op_call store = {
        .in = {call->in[0], call->in[1], call->in[2]}, .n_in = 3, .out = {values[0], values[1]}, .n_out = 2};
    MX8_TRY(mx8i_swiglu_row.op.backward(ctx, &store));
    for (int i = 0; i < 2; i++)
        if (job[i].row_codes || job[i].col_codes) MX8_TRY(mx8i_run_quant(ctx, &job[i]));
    return MX8_OK;
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
    const enum mx8_status status = mx8i_run_quant_from(ctx, &source, &job);
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
                "quantize_cols or quantize_both. Outputs that are absent are not made; ends comes with offsets and "
                "col_codes. The workspace holds h where a device has no kernel that makes both at once.",
            .infer = infer_swiglu,
            .forward = run_swiglu,
        },
    .forward = MX8I_PASS(swiglu_in, swiglu_out),
};

const struct mx8_op_row mx8i_swiglu_backward_quantize_row = {
    .op =
        {
            .name = "swiglu_backward_quantize",
            .schema =
                "swiglu_backward_quantize(Tensor dh, Tensor gate, Tensor up, Tensor? offsets) -> (Tensor? "
                "dgate_row_codes, Tensor? dgate_row_scales, Tensor? dgate_col_codes, Tensor? dgate_col_scales, "
                "Tensor? dup_row_codes, Tensor? dup_row_scales, Tensor? dup_col_codes, Tensor? dup_col_scales)",
            .description =
                "Codes of swiglu's gradients dgate and dup (M,F) without the gradients themselves: the bits of "
                "swiglu_backward, then quantize_rows, quantize_cols or quantize_both of each. Outputs that are absent "
                "are not made. Padded ends of groups are those that quantize_cols gives for the same offsets. The "
                "workspace holds dgate and dup where a device has no kernel that makes all at once; it may be the "
                "memory of gate and up, if they are packed and up follows gate at the next multiple of 256 bytes, and "
                "what they hold is undefined then.",
            .infer = infer_gradients,
            .forward = run_gradients,
        },
    .forward = MX8I_PASS(gradients_in, gradients_out),
};

const struct mx8_op_row mx8i_permute_quantize_row = {
    .op =
        {
            .name = "permute_quantize",
            .schema = "permute_quantize(Tensor x, Tensor order, Tensor positions, Tensor? weights, Tensor? "
                      "offsets)" CODES_SCHEMA,
            .description =
                "Codes of rows (T*k,D), tokens in the order of their experts (times their scores when weights is "
                "given), without the rows themselves: the bits of permute, then quantize_rows, quantize_cols or "
                "quantize_both. Outputs and workspace as for swiglu_quantize.",
            .infer = infer_permute,
            .forward = run_permute,
        },
    .forward = MX8I_PASS(permute_in, permute_out),
};
