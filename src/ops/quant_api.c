/* The typed functions of quant.h: each fills a call of its row and runs it. */
#include <string.h>

#include "base/error.h"
#include "ops/op_rows.h"
#include "mx8/quant.h"

static enum mx8_status start(
    const struct mx8_op_row *row, const struct mx8_op_options *options, struct mx8_op_call *call) {
    memset(call, 0, sizeof *call);
    call->n_in = row->forward.n_in;
    call->n_out = row->forward.n_out;
    if (!options) return MX8_OK;
    size_t size = options->size ? options->size : sizeof *options;
    if (size > sizeof *options)
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: options.size is %zu, expected at most %zu", row->op.name, size, sizeof *options);
    memcpy(&call->options, options, size);
    call->options.size = 0;
    return MX8_OK;
}

/* NULL stands for an absent tensor. */
static void put(struct mx8_tensor *slot, const struct mx8_tensor *t) {
    if (t) *slot = *t;
}

static enum mx8_status quantize_once(struct mx8_context *ctx, const struct mx8_op_row *row,
    const struct mx8_tensor *codes, const struct mx8_tensor *scales, const struct mx8_tensor *x,
    const struct mx8_op_options *options) {
    struct mx8_op_call call;
    MX8_TRY(start(row, options, &call));
    put(&call.in[0], x);
    put(&call.out[0], codes);
    put(&call.out[1], scales);
    return mx8_run_op(ctx, &row->op, 0, &call);
}

enum mx8_status mx8_quantize_rows(struct mx8_context *ctx, const struct mx8_tensor *codes,
    const struct mx8_tensor *scales, const struct mx8_tensor *x, const struct mx8_op_options *options) {
    return quantize_once(ctx, &mx8i_quantize_rows_row, codes, scales, x, options);
}

enum mx8_status mx8_quantize_cols(struct mx8_context *ctx, const struct mx8_tensor *codes,
    const struct mx8_tensor *scales, const struct mx8_tensor *x, const struct mx8_op_options *options) {
    return quantize_once(ctx, &mx8i_quantize_cols_row, codes, scales, x, options);
}

enum mx8_status mx8_quantize_3d(struct mx8_context *ctx, const struct mx8_tensor *codes,
    const struct mx8_tensor *scales, const struct mx8_tensor *w, const struct mx8_op_options *options) {
    return quantize_once(ctx, &mx8i_quantize_3d_row, codes, scales, w, options);
}

enum mx8_status mx8_quantize_both(struct mx8_context *ctx, const struct mx8_tensor *row_codes,
    const struct mx8_tensor *row_scales, const struct mx8_tensor *col_codes, const struct mx8_tensor *col_scales,
    const struct mx8_tensor *x, const struct mx8_op_options *options) {
    struct mx8_op_call call;
    MX8_TRY(start(&mx8i_quantize_both_row, options, &call));
    put(&call.in[0], x);
    put(&call.out[0], row_codes);
    put(&call.out[1], row_scales);
    put(&call.out[2], col_codes);
    put(&call.out[3], col_scales);
    return mx8_run_op(ctx, &mx8i_quantize_both_row.op, 0, &call);
}

/* The output's dtype says what is wanted. */
enum mx8_status mx8_dequantize(struct mx8_context *ctx, const struct mx8_tensor *x, const struct mx8_tensor *codes,
    const struct mx8_tensor *scales, const struct mx8_op_options *options) {
    struct mx8_op_call call;
    MX8_TRY(start(&mx8i_dequantize_row, options, &call));
    put(&call.in[0], codes);
    put(&call.in[1], scales);
    put(&call.out[0], x);
    if (x && call.options.out_dtype == 0) call.options.out_dtype = 1 + x->dtype;
    return mx8_run_op(ctx, &mx8i_dequantize_row.op, 0, &call);
}

enum mx8_status mx8_block_scales(struct mx8_context *ctx, const struct mx8_tensor *blocked,
    const struct mx8_tensor *starts, const struct mx8_tensor *scales, const struct mx8_tensor *offsets,
    const struct mx8_op_options *options) {
    struct mx8_op_call call;
    MX8_TRY(start(&mx8i_block_scales_row, options, &call));
    put(&call.in[0], scales);
    put(&call.in[1], offsets);
    put(&call.out[0], blocked);
    put(&call.out[1], starts);
    return mx8_run_op(ctx, &mx8i_block_scales_row.op, 0, &call);
}

enum mx8_status mx8_unblock_scales(struct mx8_context *ctx, const struct mx8_tensor *scales,
    const struct mx8_tensor *blocked, const struct mx8_tensor *offsets, const struct mx8_op_options *options) {
    struct mx8_op_call call;
    MX8_TRY(start(&mx8i_unblock_scales_row, options, &call));
    put(&call.in[0], blocked);
    put(&call.in[1], offsets);
    put(&call.in[2], scales);
    put(&call.out[0], scales);
    return mx8_run_op(ctx, &mx8i_unblock_scales_row.op, 0, &call);
}

enum mx8_status mx8_pad_groups(struct mx8_context *ctx, const struct mx8_tensor *padded,
    const struct mx8_tensor *starts, const struct mx8_tensor *ends, const struct mx8_tensor *x,
    const struct mx8_tensor *offsets, const struct mx8_op_options *options) {
    struct mx8_op_call call;
    MX8_TRY(start(&mx8i_group_pad_row, options, &call));
    put(&call.in[0], x);
    put(&call.in[1], offsets);
    put(&call.out[0], padded);
    put(&call.out[1], starts);
    put(&call.out[2], ends);
    return mx8_run_op(ctx, &mx8i_group_pad_row.op, 0, &call);
}

enum mx8_status mx8_unpad_groups(struct mx8_context *ctx, const struct mx8_tensor *x, const struct mx8_tensor *padded,
    const struct mx8_tensor *starts, const struct mx8_tensor *offsets, const struct mx8_op_options *options) {
    struct mx8_op_call call;
    MX8_TRY(start(&mx8i_group_unpad_row, options, &call));
    put(&call.in[0], padded);
    put(&call.in[1], starts);
    put(&call.in[2], offsets);
    put(&call.in[3], x);
    put(&call.out[0], x);
    return mx8_run_op(ctx, &mx8i_group_unpad_row.op, 0, &call);
}
