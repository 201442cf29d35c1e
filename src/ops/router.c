/* Routing: which experts each token goes to, rows sorted by expert, and the way back. */
#include "ops/op_rows.h"

#include "base/error.h"

/* ---- router ---- */

static const struct mx8_port router_in[] = {
    {"logits", "TE", MX8I_HP | MX8I_PACKED},
    {"bias", "E", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port router_out[] = {
    {"scores", "TE", MX8I_F32 | MX8I_PACKED},
    {"indices", "TJ", MX8I_I32 | MX8I_PACKED},
    {"weights", "TJ", MX8I_F32 | MX8I_PACKED},
    {"order", "S", MX8I_I32 | MX8I_PACKED},
    {"positions", "TJ", MX8I_I32 | MX8I_PACKED},
    {"offsets", "E", MX8I_I32 | MX8I_PACKED},
};
static const struct mx8_port router_backward_in[] = {
    {"dweights", "TJ", MX8I_F32 | MX8I_PACKED},
    {"scores", "TE", MX8I_F32 | MX8I_PACKED},
    {"indices", "TJ", MX8I_I32 | MX8I_PACKED},
    {"weights", "TJ", MX8I_F32 | MX8I_PACKED},
};
static const struct mx8_port router_backward_out[] = {{"dlogits", "TE", MX8I_HP | MX8I_PACKED | MX8I_CHOICE}};
static const struct mx8_pass router_pass = MX8I_PASS(router_in, router_out);
static const struct mx8_pass router_backward_pass = MX8I_PASS(router_backward_in, router_backward_out);

/* Slots t*k + j are numbered in 32 bits. */
static enum mx8_status set_slots(struct mx8_dims *d) {
    int64_t T = mx8i_get_dim(d, 'T'), k = mx8i_get_dim(d, 'J');
    if (k > 0 && T > INT32_MAX / k)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %lld tokens with %lld experts each are more than 2^31 - 1 rows",
            d->op, (long long)T, (long long)k);
    return mx8i_set_dim(d, 'S', T * k, "tokens times top_k");
}

static enum mx8_status infer_router(struct mx8_op_call *call) {
    struct mx8_dims d;
    const struct mx8_op_options *o = &call->options;
    MX8_TRY(mx8i_bind_inputs(&d, "router", call, &router_pass, 0, router_pass.n_in));
    MX8_TRY(mx8i_check_choice("router", "score_func", o->score_func, MX8_SCORE_SOFTMAX + 1));
    if (o->top_k < 1 || o->top_k > mx8i_get_dim(&d, 'E'))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "router: top_k is %d, expected 1 to %lld (columns of logits)",
            (int)o->top_k, (long long)mx8i_get_dim(&d, 'E'));
    MX8_TRY(mx8i_set_dim(&d, 'J', o->top_k, "top_k"));
    MX8_TRY(set_slots(&d));
    mx8i_clear_outputs(call, &router_pass, 0);
    for (int32_t i = 0; i < router_pass.n_out; i++)
        mx8i_put_output(call, &router_pass, i, &d, router_out[i].takes & MX8I_F32 ? MX8_F32 : MX8_I32);
    return MX8_OK;
}

static enum mx8_status infer_router_backward(struct mx8_op_call *call) {
    struct mx8_dims d;
    int32_t dtype;
    MX8_TRY(mx8i_bind_inputs(&d, "router", call, &router_backward_pass, 0, router_backward_pass.n_in));
    if (mx8i_get_dim(&d, 'J') > mx8i_get_dim(&d, 'E'))
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "router: dweights has %lld columns, expected at most %lld (columns of scores)",
            (long long)mx8i_get_dim(&d, 'J'), (long long)mx8i_get_dim(&d, 'E'));
    MX8_TRY(mx8i_check_choice("router", "score_func", call->options.score_func, MX8_SCORE_SOFTMAX + 1));
    MX8_TRY(mx8i_choose_dtype("router", &call->options, MX8_F32, &dtype));
    mx8i_clear_outputs(call, &router_backward_pass, 0);
    mx8i_put_output(call, &router_backward_pass, 0, &d, dtype);
    return MX8_OK;
}

static struct mx8_router_job start_router(const struct mx8_op_options *o, int64_t T, int64_t E, int64_t k) {
    return (struct mx8_router_job){
        .T = T,
        .E = E,
        .k = (int32_t)k,
        .score_func = o->score_func,
        .route_norm = o->route_norm,
        .route_scale = o->route_scale != 0 ? o->route_scale : 1.0f,
    };
}

static enum mx8_status run_router(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in, *out = call->out;
    struct mx8_router_job j = start_router(&call->options, in[0].shape[0], in[0].shape[1], call->options.top_k);
    j.dtype = in[0].dtype;
    j.logits = in[0].data;
    j.bias = in[1].data;
    j.scores = out[0].data;
    j.indices = out[1].data;
    j.weights = out[2].data;
    j.order = out[3].data;
    j.positions = out[4].data;
    j.offsets = out[5].data;
    return ctx->exec.k->router(&ctx->exec, &j);
}

static enum mx8_status run_router_backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in;
    struct mx8_router_job j = start_router(&call->options, in[1].shape[0], in[1].shape[1], in[0].shape[1]);
    j.dtype = call->out[0].dtype;
    j.dweights = in[0].data;
    j.scores = in[1].data;
    j.indices = in[2].data;
    j.weights = in[3].data;
    j.dlogits = call->out[0].data;
    return ctx->exec.k->router_backward(&ctx->exec, &j);
}

const struct mx8_op_row mx8i_router_row = {
    .op =
        {
            .name = "router",
            .schema =
                "router(Tensor logits, Tensor? bias) -> (Tensor scores, Tensor indices, Tensor weights, Tensor order, "
                "Tensor positions, Tensor offsets)",
            .backward_schema =
                "router_backward(Tensor dweights, Tensor scores, Tensor indices, Tensor weights) -> Tensor dlogits",
            .description =
                "scores (T,E) f32 = sigmoid or softmax (options.score_func) of logits (T,E). indices (T,k) are the k "
                "= options.top_k largest of scores + bias (E), in falling order, the lowest index first among equals. "
                "weights (T,k) are their scores without bias, divided by their sum with options.route_norm, times "
                "options.route_scale (0: 1). Slots t*k + j sorted stably by expert: order (T*k) lists them, positions "
                "(T,k) is its inverse, offsets (E) are cumulative ends. bias steers the choice alone and gets no "
                "gradient. A NaN counts as the largest value. dlogits is f32 unless options.out_dtype or the output "
                "itself says bf16.",
            .infer = infer_router,
            .infer_backward = infer_router_backward,
            .forward = run_router,
            .backward = run_router_backward,
        },
    .forward = MX8I_PASS(router_in, router_out),
    .backward = MX8I_PASS(router_backward_in, router_backward_out),
};

/* ---- permute ---- */

static const struct mx8_port permute_in[] = {
    {"x", "TD", MX8I_HP | MX8I_PACKED},
    {"order", "S", MX8I_I32 | MX8I_PACKED},
    {"positions", "TJ", MX8I_I32 | MX8I_PACKED},
    {"weights", "TJ", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port permute_out[] = {{"rows", "SD", MX8I_HP | MX8I_PACKED}};
static const struct mx8_port permute_backward_in[] = {
    {"drows", "SD", MX8I_HP | MX8I_PACKED},
    {"x", "TD", MX8I_HP | MX8I_SAME | MX8I_PACKED | MX8I_OPTIONAL},
    {"order", "S", MX8I_I32 | MX8I_PACKED},
    {"positions", "TJ", MX8I_I32 | MX8I_PACKED},
    {"weights", "TJ", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
    {"dres", "TD", MX8I_HP | MX8I_SAME | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port permute_backward_out[] = {
    {"dx", "TD", MX8I_HP | MX8I_PACKED},
    {"dweights", "TJ", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_pass permute_pass = MX8I_PASS(permute_in, permute_out);
static const struct mx8_pass permute_backward_pass = MX8I_PASS(permute_backward_in, permute_backward_out);

static enum mx8_status infer_permute(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "permute", call, &permute_pass, 0, permute_pass.n_in));
    MX8_TRY(set_slots(&d));
    mx8i_clear_outputs(call, &permute_pass, 0);
    mx8i_put_output(call, &permute_pass, 0, &d, call->in[0].dtype);
    return MX8_OK;
}

static enum mx8_status infer_permute_backward(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "permute", call, &permute_backward_pass, 0, permute_backward_pass.n_in));
    MX8_TRY(set_slots(&d));
    mx8i_clear_outputs(call, &permute_backward_pass, 0);
    mx8i_put_output(call, &permute_backward_pass, 0, &d, call->in[0].dtype);
    if (mx8i_is_present(&call->in[4]) && mx8i_is_present(&call->in[1]))
        mx8i_put_output(call, &permute_backward_pass, 1, &d, MX8_F32);
    return MX8_OK;
}

static enum mx8_status run_permute(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in;
    struct mx8_permute_job j = {
        .T = in[0].shape[0],
        .D = in[0].shape[1],
        .k = (int32_t)in[2].shape[1],
        .dtype = in[0].dtype,
        .x = in[0].data,
        .order = in[1].data,
        .positions = in[2].data,
        .weights = in[3].data,
        .rows = call->out[0].data,
    };
    if (j.D == 0) return MX8_OK; /* rows without columns have no place */
    return ctx->exec.k->permute(&ctx->exec, &j);
}

static enum mx8_status run_permute_backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in;
    struct mx8_permute_job j = {
        .T = in[3].shape[0],
        .D = in[0].shape[1],
        .k = (int32_t)in[3].shape[1],
        .dtype = in[0].dtype,
        .drows = in[0].data,
        .x = in[1].data,
        .order = in[2].data,
        .positions = in[3].data,
        .weights = in[4].data,
        .dres = in[5].data,
        .dx = call->out[0].data,
        .dweights = call->out[1].data,
    };
    return ctx->exec.k->permute_backward(&ctx->exec, &j);
}

const struct mx8_op_row mx8i_permute_row = {
    .op =
        {
            .name = "permute",
            .schema = "permute(Tensor x, Tensor order, Tensor positions, Tensor? weights) -> Tensor rows",
            .backward_schema =
                "permute_backward(Tensor drows, Tensor? x, Tensor order, Tensor positions, Tensor? weights, "
                "Tensor? dres) -> (Tensor dx, Tensor? dweights)",
            .description =
                "Copies tokens into the order of their experts: rows (T*k, D)[p] = x[order[p] / k], times "
                "weights[order[p]] when weights (T,k) are given. dx (T,D) sums the k rows of each token in order of "
                "j, plus dres (which dx may overwrite); dweights (T,k) needs x and weights.",
            .infer = infer_permute,
            .infer_backward = infer_permute_backward,
            .forward = run_permute,
            .backward = run_permute_backward,
        },
    .forward = MX8I_PASS(permute_in, permute_out),
    .backward = MX8I_PASS(permute_backward_in, permute_backward_out),
};

/* ---- combine ---- */

static const struct mx8_port combine_in[] = {
    {"rows", "SD", MX8I_HP | MX8I_PACKED},
    {"order", "S", MX8I_I32 | MX8I_PACKED},
    {"positions", "TJ", MX8I_I32 | MX8I_PACKED},
    {"weights", "TJ", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
    {"base", "TD", MX8I_HP | MX8I_SAME | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port combine_out[] = {{"y", "TD", MX8I_HP | MX8I_PACKED}};
static const struct mx8_port combine_backward_in[] = {
    {"dy", "TD", MX8I_HP | MX8I_PACKED},
    {"rows", "SD", MX8I_HP | MX8I_SAME | MX8I_PACKED | MX8I_OPTIONAL},
    {"order", "S", MX8I_I32 | MX8I_PACKED},
    {"positions", "TJ", MX8I_I32 | MX8I_PACKED},
    {"weights", "TJ", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port combine_backward_out[] = {
    {"drows", "SD", MX8I_HP | MX8I_PACKED},
    {"dweights", "TJ", MX8I_F32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_pass combine_pass = MX8I_PASS(combine_in, combine_out);
static const struct mx8_pass combine_backward_pass = MX8I_PASS(combine_backward_in, combine_backward_out);

static enum mx8_status infer_combine(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "combine", call, &combine_pass, 0, combine_pass.n_in));
    MX8_TRY(set_slots(&d));
    mx8i_clear_outputs(call, &combine_pass, 0);
    mx8i_put_output(call, &combine_pass, 0, &d, call->in[0].dtype);
    return MX8_OK;
}

static enum mx8_status infer_combine_backward(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "combine", call, &combine_backward_pass, 0, combine_backward_pass.n_in));
    MX8_TRY(set_slots(&d));
    mx8i_clear_outputs(call, &combine_backward_pass, 0);
    mx8i_put_output(call, &combine_backward_pass, 0, &d, call->in[0].dtype);
    if (mx8i_is_present(&call->in[4]) && mx8i_is_present(&call->in[1]))
        mx8i_put_output(call, &combine_backward_pass, 1, &d, MX8_F32);
    return MX8_OK;
}

static enum mx8_status run_combine(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in;
    struct mx8_combine_job j = {
        .T = in[2].shape[0],
        .D = in[0].shape[1],
        .k = (int32_t)in[2].shape[1],
        .dtype = in[0].dtype,
        .rows = in[0].data,
        .order = in[1].data,
        .positions = in[2].data,
        .weights = in[3].data,
        .base = in[4].data,
        .y = call->out[0].data,
    };
    return ctx->exec.k->combine(&ctx->exec, &j);
}

static enum mx8_status run_combine_backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in;
    struct mx8_combine_job j = {
        .T = in[3].shape[0],
        .D = in[0].shape[1],
        .k = (int32_t)in[3].shape[1],
        .dtype = in[0].dtype,
        .dy = in[0].data,
        .rows = in[1].data,
        .order = in[2].data,
        .positions = in[3].data,
        .weights = in[4].data,
        .drows = call->out[0].data,
        .dweights = call->out[1].data,
    };
    return ctx->exec.k->combine_backward(&ctx->exec, &j);
}

const struct mx8_op_row mx8i_combine_row = {
    .op =
        {
            .name = "combine",
            .schema = "combine(Tensor rows, Tensor order, Tensor positions, Tensor? weights, Tensor? base) -> Tensor y",
            .backward_schema =
                "combine_backward(Tensor dy, Tensor? rows, Tensor order, Tensor positions, Tensor? weights) -> "
                "(Tensor drows, Tensor? dweights)",
            .description =
                "The reverse of permute: y (T,D)[t] = base[t] plus the sum over j, in order, of rows[positions[t,j]], "
                "times weights[t,j] when weights (T,k) are given. base may be absent and may be y itself; its "
                "gradient is dy. drows (T*k, D); dweights (T,k) needs rows and weights.",
            .infer = infer_combine,
            .infer_backward = infer_combine_backward,
            .forward = run_combine,
            .backward = run_combine_backward,
        },
    .forward = MX8I_PASS(combine_in, combine_out),
    .backward = MX8I_PASS(combine_backward_in, combine_backward_out),
};
