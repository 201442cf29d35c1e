/* linear: a dense product with its three gradients. The arithmetic is in product.c. */
#include "ops/op_rows.h"
#include "ops/product.h"

#include "base/error.h"

static const struct mx8_port forward_in[] = {
    {"x", "MK", MX8I_HP | MX8I_OPTIONAL},
    {"w", "NK", MX8I_HP | MX8I_OPTIONAL},
    {"bias", "N", MX8I_HP | MX8I_OPTIONAL | MX8I_PACKED},
    {"xq", "MK", MX8I_CODES | MX8I_OPTIONAL},
    {"xs", "Mk", MX8I_SCALES | MX8I_OPTIONAL},
    {"wq", "NK", MX8I_CODES | MX8I_OPTIONAL},
    {"ws", "Nk", MX8I_SCALES | MX8I_OPTIONAL},
};
static const struct mx8_port forward_out[] = {{"y", "MN", MX8I_HP | MX8I_ROWS}};
static const struct mx8_port backward_in[] = {
    {"dy", "MN", MX8I_HP},
    {"x", "MK", MX8I_HP | MX8I_OPTIONAL},
    {"w", "NK", MX8I_HP | MX8I_OPTIONAL},
    {"dyq", "MN", MX8I_CODES | MX8I_OPTIONAL},
    {"dys", "Mn", MX8I_SCALES | MX8I_OPTIONAL},
    {"dyq_t", "NP", MX8I_CODES | MX8I_OPTIONAL},
    {"dys_t", "Np", MX8I_SCALES | MX8I_OPTIONAL},
    {"xq_t", "KP", MX8I_CODES | MX8I_OPTIONAL},
    {"xs_t", "Kp", MX8I_SCALES | MX8I_OPTIONAL},
    {"wq_t", "KN", MX8I_CODES | MX8I_OPTIONAL},
    {"ws_t", "Kn", MX8I_SCALES | MX8I_OPTIONAL},
};
static const struct mx8_port backward_out[] = {
    {"dx", "MK", MX8I_HP | MX8I_ROWS | MX8I_OPTIONAL},
    {"dw", "NK", MX8I_HP | MX8I_ROWS | MX8I_OPTIONAL | MX8I_CHOICE},
    {"dbias", "N", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_pass forward_pass = MX8I_PASS(forward_in, forward_out);
static const struct mx8_pass backward_pass = MX8I_PASS(backward_in, backward_out);
static const struct mx8_tensor absent;

/* Sizes from the operands themselves: K, and N in forward, from whichever form of an operand is there. */
static int64_t find_extent(const struct mx8_tensor *t, const struct mx8_tensor *otherwise, int32_t axis) {
    return mx8i_is_present(t) ? t->shape[axis] : otherwise->shape[axis];
}

static enum mx8_status read_forward(const struct mx8_op_call *call, struct mx8_product *p) {
    const struct mx8_tensor *in = call->in;
    *p = (struct mx8_product){.op = "linear", .options = &call->options, .x = &in[0], .w = &in[1], .bias = &in[2]};
    p->dy = p->offsets = p->ends = &absent;
    MX8_TRY(mx8i_get_code_pair("linear", call, &forward_pass, 3, &p->xq));
    MX8_TRY(mx8i_get_code_pair("linear", call, &forward_pass, 5, &p->wq));
    p->M = find_extent(p->x, p->xq.codes, 0);
    p->N = find_extent(p->w, p->wq.codes, 0);
    p->K = find_extent(p->x, p->xq.codes, 1);
    return MX8_OK;
}

static enum mx8_status read_backward(const struct mx8_op_call *call, struct mx8_product *p) {
    const struct mx8_tensor *in = call->in;
    *p = (struct mx8_product){.op = "linear", .options = &call->options, .dy = &in[0], .x = &in[1], .w = &in[2]};
    p->bias = p->offsets = p->ends = &absent;
    MX8_TRY(mx8i_get_code_pair("linear", call, &backward_pass, 3, &p->dyq));
    MX8_TRY(mx8i_get_code_pair("linear", call, &backward_pass, 5, &p->dyq_t));
    MX8_TRY(mx8i_get_code_pair("linear", call, &backward_pass, 7, &p->xq_t));
    MX8_TRY(mx8i_get_code_pair("linear", call, &backward_pass, 9, &p->wq_t));
    p->M = p->dy->shape[0];
    p->N = p->dy->shape[1];
    if (mx8i_is_present(p->x) || mx8i_is_present(p->w))
        p->K = find_extent(p->x, p->w, 1);
    else
        p->K = find_extent(p->xq_t.codes, p->wq_t.codes, 0);
    return MX8_OK;
}

static enum mx8_status infer(struct mx8_op_call *call) {
    struct mx8_dims d;
    struct mx8_product p;
    int32_t dtype;
    MX8_TRY(mx8i_bind_inputs(&d, "linear", call, &forward_pass, 0, forward_pass.n_in));
    MX8_TRY(read_forward(call, &p));
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
    MX8_TRY(mx8i_bind_inputs(&d, "linear", call, &backward_pass, 0, 1));
    MX8_TRY(mx8i_set_dim(&d, 'P', mx8i_round_up(mx8i_get_dim(&d, 'M'), MX8_BLOCK), "M rounded up to 32"));
    MX8_TRY(mx8i_bind_inputs(&d, "linear", call, &backward_pass, 1, backward_pass.n_in));
    MX8_TRY(read_backward(call, &p));
    MX8_TRY(mx8i_check_backward(&p, &d));
    MX8_TRY(mx8i_choose_dtype("linear", &call->options, p.dy->dtype, &dtype));
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

const struct mx8_op_row mx8i_linear_row = {
    .op =
        {
            .name = "linear",
            .schema = "linear(Tensor? x, Tensor? w, Tensor? bias, Tensor? xq, Tensor? xs, Tensor? wq, Tensor? ws) -> "
                      "Tensor y",
            .backward_schema =
                "linear_backward(Tensor dy, Tensor? x, Tensor? w, Tensor? dyq, Tensor? dys, Tensor? dyq_t, Tensor? "
                "dys_t, Tensor? xq_t, Tensor? xs_t, Tensor? wq_t, Tensor? ws_t) -> (Tensor? dx, Tensor? dw, Tensor? "
                "dbias)",
            .description =
                "y (M,N) = x (M,K) w (N,K)^T + bias (N). options.precision high multiplies x and w as they are. With "
                "mxfp8 every product gets operands quantized along its own contraction axis from the original: x and "
                "w along K for y, dy and w along N for dx, dy and x along M for dw (from the originals with "
                "wgrad_hp). scale_rule and format hold for all of them, scale_group and tile_rows for x and dy, "
                "weight_scale_group and weight_tile_rows for w. Codes and scales that are given are taken instead of "
                "quantizing again, and the original may then be absent: xq (M,K), xs (M,K/32), wq (N,K), ws (N,K/32); "
                "in backward dyq (M,N), dys (M,N/32), dyq_t (N,Mp), dys_t (N,Mp/32), xq_t (K,Mp), xs_t (K,Mp/32), "
                "wq_t (K,N), ws_t (K,N/32) with Mp = M rounded up to 32. In mxfp8, K must be a multiple of 32 for y "
                "and N for dx; M may be anything. Inputs may have any strides, so with weight tiles wq_t may be a "
                "transposed view of wq. y has the dtype of x, else of w, else bf16; dx that of dy; options.out_dtype "
                "overrides. dw is f32 or bf16, dbias (N) f32; options.accumulate adds to both. options.exact "
                "multiplies dequantized operands in high precision. The workspace holds what is quantized inside.",
            .infer = infer,
            .infer_backward = infer_backward,
            .forward = forward,
            .backward = backward,
        },
    .forward = MX8I_PASS(forward_in, forward_out),
    .backward = MX8I_PASS(backward_in, backward_out),
};
