/* The operator table: finding rows, and running one after checking the call against it. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "ops/op_rows.h"

enum { WORKSPACE_ALIGNMENT = 64 };

static const struct mx8_op_row *const rows[MX8_OP_COUNT] = {
    [MX8_OP_QUANTIZE_ROWS] = &mx8i_quantize_rows_row,
    [MX8_OP_QUANTIZE_COLS] = &mx8i_quantize_cols_row,
    [MX8_OP_QUANTIZE_BOTH] = &mx8i_quantize_both_row,
    [MX8_OP_QUANTIZE_3D] = &mx8i_quantize_3d_row,
    [MX8_OP_DEQUANTIZE] = &mx8i_dequantize_row,
    [MX8_OP_BLOCK_SCALES] = &mx8i_block_scales_row,
    [MX8_OP_UNBLOCK_SCALES] = &mx8i_unblock_scales_row,
    [MX8_OP_GROUP_PAD] = &mx8i_group_pad_row,
    [MX8_OP_GROUP_UNPAD] = &mx8i_group_unpad_row,
    [MX8_OP_LINEAR] = &mx8i_linear_row,
    [MX8_OP_GROUPED_LINEAR] = &mx8i_grouped_linear_row,
    [MX8_OP_EMBEDDING] = &mx8i_embedding_row,
    [MX8_OP_RMSNORM] = &mx8i_rmsnorm_row,
    [MX8_OP_ROPE] = &mx8i_rope_row,
    [MX8_OP_ATTENTION] = &mx8i_attention_row,
    [MX8_OP_ROUTER] = &mx8i_router_row,
    [MX8_OP_PERMUTE] = &mx8i_permute_row,
    [MX8_OP_COMBINE] = &mx8i_combine_row,
    [MX8_OP_SWIGLU] = &mx8i_swiglu_row,
    [MX8_OP_LM_HEAD_LOSS] = &mx8i_lm_head_loss_row,
    [MX8_OP_ADD] = &mx8i_add_row,
};

int32_t mx8_get_op_count(void) {
    return MX8_OP_COUNT;
}

const struct mx8_op *mx8_get_op(int32_t index) {
    return index >= 0 && index < MX8_OP_COUNT ? &rows[index]->op : NULL;
}

const struct mx8_op *mx8_find_op(const char *name) {
    for (int32_t i = 0; name && i < MX8_OP_COUNT; i++)
        if (strcmp(rows[i]->op.name, name) == 0) return &rows[i]->op;
    return NULL;
}

static enum mx8_status check_call(const struct mx8_op *op, int32_t backward, const struct mx8_op_call *call) {
    if (!op || !call) return MX8_FAIL(MX8_INVALID_ARGUMENT, "operator call: %s is NULL", op ? "call" : "op");
    if (backward && !op->backward)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: a backward pass is asked for, but the operator has none", op->name);
    if (call->n_in < 0 || call->n_in > MX8_MAX_INPUTS)
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: n_in is %d, expected 0 to %d", op->name, (int)call->n_in, MX8_MAX_INPUTS);
    if (call->options.size != 0 && call->options.size != sizeof call->options)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s: options.size is %u, expected %zu; was the caller built for another version?", op->name,
            (unsigned)call->options.size, sizeof call->options);
    return MX8_OK;
}

enum mx8_status mx8_infer_op(const struct mx8_op *op, int32_t backward, struct mx8_op_call *call) {
    MX8_TRY(check_call(op, backward, call));
    return backward ? op->infer_backward(call) : op->infer(call);
}

static enum mx8_status check_workspace(const char *op, const struct mx8_op_call *call, size_t wanted) {
    if (call->workspace_size < wanted || (wanted > 0 && !call->workspace))
        return MX8_FAIL(MX8_WORKSPACE_TOO_SMALL, "%s: the workspace has %zu bytes, expected %zu", op,
            call->workspace ? call->workspace_size : 0, wanted);
    if (wanted > 0 && (uintptr_t)call->workspace % WORKSPACE_ALIGNMENT != 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: the workspace at %p is not aligned to %d bytes", op, call->workspace,
            WORKSPACE_ALIGNMENT);
    return MX8_OK;
}

enum mx8_status mx8_run_op(
    struct mx8_context *ctx, const struct mx8_op *op, int32_t backward, const struct mx8_op_call *call) {
    MX8_TRY(check_call(op, backward, call));
    if (!ctx) return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: the context is NULL", op->name);
    const struct mx8_op_row *row = mx8i_get_row(op);
    const struct mx8_pass *pass = backward ? &row->backward : &row->forward;

    struct mx8_op_call inferred = *call;
    MX8_TRY(mx8_infer_op(op, backward, &inferred));
    MX8_TRY(mx8i_check_data(op->name, call, pass));
    MX8_TRY(mx8i_check_outputs(op->name, call, &inferred, pass));
    MX8_TRY(check_workspace(op->name, call, inferred.workspace_size));
    return backward ? op->backward(ctx, call) : op->forward(ctx, call);
}
