/* grouped_linear: one product per expert over the rows routed to it, with its gradients. The arithmetic is in
 * product.c. */
#include "ops/op_rows.h"
#include "ops/product.h"

#include "base/error.h"

static const struct mx8_port forward_in[] = {
    {"x", "MK", MX8I_HP | MX8I_OPTIONAL},
    {"w", "ENK", MX8I_HP | MX8I_OPTIONAL},
    {"offsets", "E", MX8I_I32 | MX8I_PACKED},
    {"bias", "N", MX8I_HP | MX8I_OPTIONAL | MX8I_PACKED},
    {"xq", "MK", MX8I_CODES | MX8I_OPTIONAL},
    {"xs", "Mk", MX8I_SCALES | MX8I_OPTIONAL},
    {"wq", "ENK", MX8I_CODES | MX8I_OPTIONAL},
    {"ws", "ENk", MX8I_SCALES | MX8I_OPTIONAL},
};
static const struct mx8_port forward_out[] = {{"y", "MN", MX8I_HP | MX8I_ROWS}};
static const struct mx8_port backward_in[] = {
    {"dy", "MN", MX8I_HP},
    {"x", "MK", MX8I_HP | MX8I_OPTIONAL},
    {"w", "ENK", MX8I_HP | MX8I_OPTIONAL},
    {"offsets", "E", MX8I_I32 | MX8I_PACKED},
    {"dyq", "MN", MX8I_CODES | MX8I_OPTIONAL},
    {"dys", "Mn", MX8I_SCALES | MX8I_OPTIONAL},
    {"dyq_t", "NP", MX8I_CODES | MX8I_OPTIONAL},
    {"dys_t", "Np", MX8I_SCALES | MX8I_OPTIONAL},
    {"ends", "E", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},
    {"xq_t", "KP", MX8I_CODES | MX8I_OPTIONAL},
    {"xs_t", "Kp", MX8I_SCALES | MX8I_OPTIONAL},
    {"wq_t", "ENK", MX8I_CODES | MX8I_OPTIONAL},
    {"ws_t", "EnK", MX8I_SCALES | MX8I_OPTIONAL},
};
static const struct mx8_port backward_out[] = {
    {"dx", "MK", MX8I_HP | MX8I_ROWS | MX8I_OPTIONAL},
    {"dw", "ENK", MX8I_HP | MX8I_ROWS | MX8I_OPTIONAL | MX8I_CHOICE},
    {"dbias", "N", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_pass forward_pass = MX8I_PASS(forward_in, forward_out);
static const struct mx8_pass backward_pass = MX8I_PASS(backward_in, backward_out);
static const struct mx8_tensor absent;
static const char *const op_name = "grouped_linear";

static enum mx8_status check_groups(const struct mx8_tensor *offsets) {
    if (offsets->shape[0] >= 1 && offsets->shape[0] <= INT32_MAX / 4096) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: offsets has %lld elements, expected one per expert, at least 1", op_name,
        (long long)offsets->shape[0]);
}

/* Offsets are 32-bit, the padded ones included. */
static enum mx8_status check_rows(const struct mx8_product *p) {
    if (mx8i_padded_rows(p->M, p->groups, mx8i_get_style(p->options, 0).padding) <= INT32_MAX) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %lld rows in %d groups are more than 32-bit offsets can count", op_name,
        (long long)p->M, (int)p->groups);
}

static enum mx8_status read_forward(const struct mx8_op_call *call, struct mx8_product *p) {
    const struct mx8_tensor *in = call->in;
    *p = (struct mx8_product){.op = op_name, .options = &call->options, .x = &in[0], .w = &in[1], .offsets = &in[2]};
    p->bias = &in[3];
    p->dy = p->ends = &absent;
    MX8_TRY(mx8i_get_code_pair(op_name, call, &forward_pass, 4, &p->xq));
    MX8_TRY(mx8i_get_code_pair(op_name, call, &forward_pass, 6, &p->wq));
    const struct mx8_tensor *x = mx8i_is_present(p->x) ? p->x : p->xq.codes;
    const struct mx8_tensor *w = mx8i_is_present(p->w) ? p->w : p->wq.codes;
    p->groups = (int32_t)p->offsets->shape[0];
    p->M = x->shape[0];
    p->N = w->shape[1];
    p->K = x->shape[1];
    return MX8_OK;
}

static enum mx8_status read_backward(const struct mx8_op_call *call, struct mx8_product *p) {
    const struct mx8_tensor *in = call->in;
    *p = (struct mx8_product){.op = op_name, .options = &call->options, .dy = &in[0], .x = &in[1], .w = &in[2]};
    p->offsets = &in[3];
    p->ends = &in[8];
    p->bias = &absent;
    MX8_TRY(mx8i_get_code_pair(op_name, call, &backward_pass, 4, &p->dyq));
    MX8_TRY(mx8i_get_code_pair(op_name, call, &backward_pass, 6, &p->dyq_t));
    MX8_TRY(mx8i_get_code_pair(op_name, call, &backward_pass, 9, &p->xq_t));
    MX8_TRY(mx8i_get_code_pair(op_name, call, &backward_pass, 11, &p->wq_t));
    p->groups = (int32_t)p->offsets->shape[0];
    p->M = p->dy->shape[0];
    p->N = p->dy->shape[1];
    if (mx8i_is_present(p->x))
        p->K = p->x->shape[1];
    else if (mx8i_is_present(p->w))
        p->K = p->w->shape[2];
    else
        p->K = mx8i_has_codes(&p->xq_t) ? p->xq_t.codes->shape[0] : p->wq_t.codes->shape[2];
    return MX8_OK;
}

static enum mx8_status infer(struct mx8_op_call *call) {
    struct mx8_dims d;
    struct mx8_product p;
    int32_t dtype;
    MX8_TRY(mx8i_bind_inputs(&d, op_name, call, &forward_pass, 0, forward_pass.n_in));
    MX8_TRY(check_groups(&call->in[2]));
    MX8_TRY(read_forward(call, &p));
    MX8_TRY(check_rows(&p));
    MX8_TRY(mx8i_check_forward(&p, &d));
    MX8_TRY(mx8i_choose_product_dtype(&p, &dtype));
    mx8i_clear_outputs(call, &forward_pass, mx8i_size_forward(&p));
    mx8i_put_output(call, &forward_pass, 0, &d, dtype);
    return MX8_OK;
}

static enum mx8_status infer_backward(struct mx8_op_call *call) {
    struct mx8_dims d;
    struct mx8_product p;
    int32_t dtype;
    MX8_TRY(mx8i_bind_inputs(&d, op_name, call, &backward_pass, 0, 4));
    MX8_TRY(check_groups(&call->in[3]));
    MX8_TRY(mx8i_check_styles(op_name, &call->options));
    int64_t padding = mx8i_get_style(&call->options, 0).padding;
    int64_t padded = mx8i_padded_rows(mx8i_get_dim(&d, 'M'), (int32_t)mx8i_get_dim(&d, 'E'), padding);
    MX8_TRY(mx8i_set_dim(
        &d, 'P', padded, padding == 32 ? "M + 32 E rounded up to 32" : "M + alignment E rounded up to it"));
    MX8_TRY(mx8i_bind_inputs(&d, op_name, call, &backward_pass, 4, backward_pass.n_in));
    MX8_TRY(read_backward(call, &p));
    MX8_TRY(check_rows(&p));
    MX8_TRY(mx8i_check_backward(&p, &d));
    MX8_TRY(mx8i_choose_dtype(op_name, &call->options, p.dy->dtype, &dtype));
    mx8i_put_gradients(call, &backward_pass, &p, &d, dtype);
    return MX8_OK;
}

static enum mx8_status forward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_product p;
    MX8_TRY(read_forward(call, &p));
    return mx8i_run_forward(ctx, &p, &call->out[0], call->workspace);
}

static enum mx8_status backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_product p;
    MX8_TRY(read_backward(call, &p));
    return mx8i_run_backward(ctx, &p, &call->out[0], &call->out[1], &call->out[2], call->workspace);
}

const struct mx8_op_row mx8i_grouped_linear_row = {
    .op =
        {
            .name = "grouped_linear",
            .schema = "grouped_linear(Tensor? x, Tensor? w, Tensor offsets, Tensor? bias, Tensor? xq, Tensor? xs, "
                      "Tensor? wq, Tensor? ws) -> Tensor y",
            .backward_schema =
                "grouped_linear_backward(Tensor dy, Tensor? x, Tensor? w, Tensor offsets, Tensor? dyq, Tensor? dys, "
                "Tensor? dyq_t, Tensor? dys_t, Tensor? ends, Tensor? xq_t, Tensor? xs_t, Tensor? wq_t, Tensor? ws_t) "
                "-> (Tensor? dx, Tensor? dw, Tensor? dbias)",
            .description =
                "Rows of x (M,K) lie in E groups with cumulative ends offsets (E); group e is multiplied with w[e] of "
                "w (E,N,K): y (M,N) = x w[e]^T + bias (N), one bias for all experts. Groups may have any size, 0 "
                "included, and there may be any number of them; the caller pads nothing. Rows at and past "
                "offsets[E-1] of x and dy are never read, and those of y and dx are zero; dw (E,N,K) of an empty "
                "group is zero, or untouched with options.accumulate. Precision, options, dtypes and given codes are "
                "as for linear; the codes of the backward pass along M are those of quantize_cols or quantize_both "
                "for the same offsets: dyq_t (N,Mp) and xq_t (K,Mp) with Mp = M + A E rounded up to A = "
                "options.alignment (32), and their padded ends (E), needed when both are given. wq_t (E,N,K) and ws_t "
                "(E,N/32,K) are those of quantize_3d. No group size is ever read on the host.",
            .infer = infer,
            .infer_backward = infer_backward,
            .forward = forward,
            .backward = backward,
        },
    .forward = MX8I_PASS(forward_in, forward_out),
    .backward = MX8I_PASS(backward_in, backward_out),
};
