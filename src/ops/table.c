/* The operator table: finding rows, and running one after checking the call against it. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "ops/op_rows.h"
#include "ops/planes.h"

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
    [MX8_OP_CLAMP] = &mx8i_clamp_row,
    [MX8_OP_SWIGLU_QUANTIZE] = &mx8i_swiglu_quantize_row,
    [MX8_OP_PERMUTE_QUANTIZE] = &mx8i_permute_quantize_row,
    [MX8_OP_RMSNORM_QUANTIZE] = &mx8i_rmsnorm_quantize_row,
    [MX8_OP_QUANTIZE_EXPERTS] = &mx8i_quantize_experts_row,
    [MX8_OP_SWIGLU_BACKWARD_QUANTIZE] = &mx8i_swiglu_backward_quantize_row,
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

/* A row of the caller's own has no ports: any input will do (its infer is the judge), and outputs are exactly what it
 * announces. */
#define ANY_IN(n)                                                                                                      \
    { "input " #n, NULL, MX8I_ANY_DTYPE | MX8I_OPTIONAL }
#define ANY_OUT(n)                                                                                                     \
    { #n, NULL, MX8I_ANY_DTYPE | MX8I_OPTIONAL | MX8I_FIXED }
static const struct mx8_port any_in[MX8_MAX_INPUTS] = {ANY_IN(1), ANY_IN(2), ANY_IN(3), ANY_IN(4), ANY_IN(5), ANY_IN(6),
    ANY_IN(7), ANY_IN(8), ANY_IN(9), ANY_IN(10), ANY_IN(11), ANY_IN(12), ANY_IN(13), ANY_IN(14), ANY_IN(15),
    ANY_IN(16)};
static const struct mx8_port any_out[MX8_MAX_OUTPUTS] = {
    ANY_OUT(1), ANY_OUT(2), ANY_OUT(3), ANY_OUT(4), ANY_OUT(5), ANY_OUT(6), ANY_OUT(7), ANY_OUT(8)};
static const struct mx8_pass any_pass = MX8I_PASS(any_in, any_out);

static const struct mx8_pass *find_pass(const struct mx8_op *op, int32_t backward) {
    for (int32_t i = 0; i < MX8_OP_COUNT; i++)
        if (op == &rows[i]->op) return backward ? &rows[i]->backward : &rows[i]->forward;
    return &any_pass;
}

static enum mx8_status check_call(const struct mx8_op *op, int32_t backward, const struct mx8_op_call *call) {
    if (!op || !call) return MX8_FAIL(MX8_INVALID_ARGUMENT, "operator call: %s is NULL", op ? "call" : "op");
    if (backward && (!op->backward || !op->infer_backward))
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
    if (find_pass(op, backward) == &any_pass) {
        struct mx8_dims d;
        MX8_TRY(mx8i_bind_inputs(&d, op->name, call, &any_pass, 0, any_pass.n_in));
    }
    MX8_TRY(backward ? op->infer_backward(call) : op->infer(call));
    if (call->workspace_size <= MX8I_MOST_WORKSPACE) return MX8_OK;
    return MX8_FAIL(
        MX8_INVALID_ARGUMENT, "%s: needs a workspace of more than %zu bytes", op->name, MX8I_MOST_WORKSPACE);
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

static int writes_anything(const struct mx8_op_call *call) {
    for (int32_t i = 0; i < MX8_MAX_OUTPUTS; i++)
        if (mx8i_is_present(&call->out[i]) && mx8_count_elements(&call->out[i]) > 0) return 1;
    return 0;
}

enum mx8_status mx8_run_op(
    struct mx8_context *ctx, const struct mx8_op *op, int32_t backward, const struct mx8_op_call *call) {
    MX8_TRY(check_call(op, backward, call));
    if (!ctx) return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: the context is NULL", op->name);
    const struct mx8_pass *pass = find_pass(op, backward);
    struct mx8_op_call inferred = *call;
    MX8_TRY(mx8_infer_op(op, backward, &inferred));
    MX8_TRY(mx8i_check_data(op->name, call, pass));
    MX8_TRY(mx8i_check_outputs(op->name, call, &inferred, pass));
    MX8_TRY(check_workspace(op->name, call, inferred.workspace_size));
    if (!writes_anything(call)) return MX8_OK; /* a kernel would still walk over 2^60 rows of nothing */
    return backward ? op->backward(ctx, call) : op->forward(ctx, call);
}
