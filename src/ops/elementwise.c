/* Embedding, swiglu and addition. */
#include "base/error.h"
#include "ops/device.h"
#include "ops/op_rows.h"

/* ---- embedding ---- */

static const struct mx8_port embedding_in[] = {
    {"tokens", "T", MX8I_I32 | MX8I_PACKED},
    {"w", "VD", MX8I_HP | MX8I_PACKED},
};
static const struct mx8_port embedding_out[] = {{"y", "TD", MX8I_HP | MX8I_PACKED}};
static const struct mx8_port embedding_backward_in[] = {
    {"dy", "TD", MX8I_HP | MX8I_PACKED},
    {"tokens", "T", MX8I_I32 | MX8I_PACKED},
};
static const struct mx8_port embedding_backward_out[] = {{"dw", "VD", MX8I_F32 | MX8I_PACKED}};
static const struct mx8_pass embedding_pass = MX8I_PASS(embedding_in, embedding_out);
static const struct mx8_pass embedding_backward_pass = MX8I_PASS(embedding_backward_in, embedding_backward_out);

static enum mx8_status infer_embedding(struct mx8_op_call *call) {
    struct mx8_dims d;
    int32_t dtype;
    MX8_TRY(mx8i_bind_inputs(&d, "embedding", call, &embedding_pass, 0, 2));
    MX8_TRY(mx8i_choose_dtype("embedding", &call->options, call->in[1].dtype, &dtype));
    mx8i_clear_outputs(call, &embedding_pass, 0);
    mx8i_put_output(call, &embedding_pass, 0, &d, dtype);
    return MX8_OK;
}

static struct mx8_embedding_job start_backward(const struct mx8_op_call *call) {
    const struct mx8_tensor *dy = &call->in[0], *dw = &call->out[0];
    return (struct mx8_embedding_job){
        .T = dy->shape[0],
        .V = dw->shape[0],
        .D = dy->shape[1],
        .tokens = call->in[1].data,
        .dtype = dy->dtype,
        .dy = dy->data,
        .dw = dw->data,
    };
}

/* The vocabulary shows in no input: the caller says it by the shape of its output. */
static enum mx8_status infer_embedding_backward(struct mx8_op_call *call) {
    struct mx8_dims d;
    const struct mx8_tensor *dw = &call->out[0];
    MX8_TRY(mx8i_bind_inputs(&d, "embedding", call, &embedding_backward_pass, 0, 2));
    if (dw->ndim != 2 || dw->shape[0] < 0 || dw->shape[1] != mx8i_get_dim(&d, 'D'))
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "embedding: output dw has %d dimensions and %lld columns, expected shape (V, %lld) set by the caller",
            (int)dw->ndim, (long long)dw->shape[1], (long long)mx8i_get_dim(&d, 'D'));
    MX8_TRY(mx8i_set_dim(&d, 'V', dw->shape[0], "rows of dw"));
    struct mx8_embedding_job j = start_backward(call);
    mx8i_clear_outputs(call, &embedding_backward_pass, mx8i_bound_embedding(&j));
    mx8i_put_output(call, &embedding_backward_pass, 0, &d, MX8_F32);
    return MX8_OK;
}

static enum mx8_status run_embedding(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *tokens = &call->in[0], *w = &call->in[1], *y = &call->out[0];
    struct mx8_embedding_job j = {
        .T = tokens->shape[0],
        .V = w->shape[0],
        .D = w->shape[1],
        .tokens = tokens->data,
        .w = w->data,
        .w_dtype = w->dtype,
        .y = y->data,
        .dtype = y->dtype,
    };
    return ctx->exec.k->embedding(&ctx->exec, &j);
}

/* The kernel adds to dw. */
static enum mx8_status run_embedding_backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_embedding_job j = start_backward(call);
    j.workspace = call->workspace;
    size_t bytes = (size_t)mx8_count_elements(&call->out[0]) * sizeof(float);
    if (!call->options.accumulate) MX8_TRY(ctx->exec.k->fill(&ctx->exec, j.dw, 0, bytes));
    return ctx->exec.k->embedding_backward(&ctx->exec, &j);
}

const struct mx8_op_row mx8i_embedding_row = {
    .op =
        {
            .name = "embedding",
            .schema = "embedding(Tensor tokens, Tensor w) -> Tensor y",
            .backward_schema = "embedding_backward(Tensor dy, Tensor tokens) -> Tensor dw",
            .description =
                "y (T,D)[t] = w[tokens[t]] of w (V,D), in the dtype of w or options.out_dtype. A token outside [0,V) "
                "reads as zeros and has no gradient. dw (V,D) f32 sums rows of dy in rising order of t, or adds to "
                "what it holds with options.accumulate; infer_backward takes V from the shape that the caller gave dw.",
            .infer = infer_embedding,
            .infer_backward = infer_embedding_backward,
            .forward = run_embedding,
            .backward = run_embedding_backward,
        },
    .forward = MX8I_PASS(embedding_in, embedding_out),
    .backward = MX8I_PASS(embedding_backward_in, embedding_backward_out),
};

/* ---- swiglu ---- */

static const struct mx8_port swiglu_in[] = {
    {"gate", "MF", MX8I_HP | MX8I_ROWS},
    {"up", "MF", MX8I_HP | MX8I_SAME | MX8I_ROWS},
};
static const struct mx8_port swiglu_out[] = {{"h", "MF", MX8I_HP | MX8I_ROWS}};
static const struct mx8_port swiglu_backward_in[] = {
    {"dh", "MF", MX8I_HP | MX8I_ROWS},
    {"gate", "MF", MX8I_HP | MX8I_SAME | MX8I_ROWS},
    {"up", "MF", MX8I_HP | MX8I_SAME | MX8I_ROWS},
};
static const struct mx8_port swiglu_backward_out[] = {
    {"dgate", "MF", MX8I_HP | MX8I_ROWS},
    {"dup", "MF", MX8I_HP | MX8I_ROWS},
};
static const struct mx8_pass swiglu_pass = MX8I_PASS(swiglu_in, swiglu_out);
static const struct mx8_pass swiglu_backward_pass = MX8I_PASS(swiglu_backward_in, swiglu_backward_out);

static enum mx8_status infer_swiglu(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "swiglu", call, &swiglu_pass, 0, 2));
    mx8i_clear_outputs(call, &swiglu_pass, 0);
    mx8i_put_output(call, &swiglu_pass, 0, &d, call->in[0].dtype);
    return MX8_OK;
}

static enum mx8_status infer_swiglu_backward(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "swiglu", call, &swiglu_backward_pass, 0, 3));
    mx8i_clear_outputs(call, &swiglu_backward_pass, 0);
    mx8i_put_output(call, &swiglu_backward_pass, 0, &d, call->in[0].dtype);
    mx8i_put_output(call, &swiglu_backward_pass, 1, &d, call->in[0].dtype);
    return MX8_OK;
}

static struct mx8_swiglu_job start_swiglu(const struct mx8_tensor *gate, const struct mx8_tensor *up) {
    return (struct mx8_swiglu_job){
        .M = gate->shape[0],
        .F = gate->shape[1],
        .dtype = gate->dtype,
        .gate = gate->data,
        .up = up->data,
        .gate_ls = gate->stride[0],
        .up_ls = up->stride[0],
    };
}

static enum mx8_status run_swiglu(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_swiglu_job j = start_swiglu(&call->in[0], &call->in[1]);
    j.h = call->out[0].data;
    j.h_ls = call->out[0].stride[0];
    return ctx->exec.k->swiglu(&ctx->exec, &j);
}

static enum mx8_status run_swiglu_backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_swiglu_job j = start_swiglu(&call->in[1], &call->in[2]);
    j.dh = call->in[0].data;
    j.dh_ls = call->in[0].stride[0];
    j.dgate = call->out[0].data;
    j.dgate_ls = call->out[0].stride[0];
    j.dup = call->out[1].data;
    j.dup_ls = call->out[1].stride[0];
    return ctx->exec.k->swiglu_backward(&ctx->exec, &j);
}

const struct mx8_op_row mx8i_swiglu_row = {
    .op =
        {
            .name = "swiglu",
            .schema = "swiglu(Tensor gate, Tensor up) -> Tensor h",
            .backward_schema = "swiglu_backward(Tensor dh, Tensor gate, Tensor up) -> (Tensor dgate, Tensor dup)",
            .description =
                "h (M,F) = silu(gate) * up with silu(x) = x / (1 + e^-x). Row strides are free, so gate and up may be "
                "halves of one tensor; dgate and dup may overwrite gate and up.",
            .infer = infer_swiglu,
            .infer_backward = infer_swiglu_backward,
            .forward = run_swiglu,
            .backward = run_swiglu_backward,
        },
    .forward = MX8I_PASS(swiglu_in, swiglu_out),
    .backward = MX8I_PASS(swiglu_backward_in, swiglu_backward_out),
};

/* ---- add ---- */

static const struct mx8_port add_in[] = {
    {"a", NULL, MX8I_HP | MX8I_PACKED},
    {"b", NULL, MX8I_HP | MX8I_SAME | MX8I_PACKED},
};
static const struct mx8_port add_out[] = {{"y", NULL, MX8I_HP | MX8I_PACKED}};
static const struct mx8_pass add_pass = MX8I_PASS(add_in, add_out);

static enum mx8_status infer_add(struct mx8_op_call *call) {
    struct mx8_dims d;
    const struct mx8_tensor *a = &call->in[0], *b = &call->in[1];
    MX8_TRY(mx8i_bind_inputs(&d, "add", call, &add_pass, 0, 2));
    int same = a->ndim == b->ndim;
    for (int32_t i = 0; same && i < a->ndim; i++) same = a->shape[i] == b->shape[i];
    if (!same)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "add: b has %lld elements in %d dimensions, expected the shape of a (%lld in %d)",
            (long long)mx8_count_elements(b), (int)b->ndim, (long long)mx8_count_elements(a), (int)a->ndim);
    struct mx8_tensor y = mx8_make_tensor(NULL, a->dtype, a->ndim, a->shape);
    mx8i_clear_outputs(call, &add_pass, 0);
    call->out[0] = y;
    return MX8_OK;
}

static enum mx8_status run_add(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *a = &call->in[0];
    return ctx->exec.k->add(&ctx->exec, call->out[0].data, a->data, call->in[1].data, a->dtype, mx8_count_elements(a));
}

const struct mx8_op_row mx8i_add_row = {
    .op =
        {
            .name = "add",
            .schema = "add(Tensor a, Tensor b) -> Tensor y",
            .description =
                "y = a + b, element by element, for tensors of one shape and dtype without gaps. y may be a or b. Both "
                "gradients are dy itself, so there is no backward pass.",
            .infer = infer_add,
            .forward = run_add,
        },
    .forward = MX8I_PASS(add_in, add_out),
};
