/* Mixture of experts: torchtitan's token-choice router, routed experts in groups of rows, shared experts. */
#include "model/internal.h"
#include "base/error.h"

struct mx8_need mx8i_find_moe_need(const struct mx8_model *m, const struct mx8_layer *l, int32_t keep) {
    const struct mx8_param *consumers[3] = {l->gate, l->dense.w1, l->dense.w3};
    struct mx8_need need = mx8i_find_need(m, keep, l->dense.w1 ? 3 : 1, consumers);
    if (keep && m->config.score_before_experts) need.hp = 1; /* for the gradient of the scores */
    return need;
}

struct mx8_routing mx8i_take_routing(struct mx8_model *m, const struct mx8_layer *l) {
    const int64_t T = m->T, E = m->config.num_experts, k = m->config.top_k, slots = T * k;
    struct mx8_stack *s = &m->saved;
    /* The offsets are also the expert load, so they live where one download at the end of the step finds them all. */
    void *offsets = m->io.readback ? m->io.readback + sizeof(double) + (size_t)(l->moe * E) * sizeof(int32_t) : NULL;
    struct mx8_routing r = {.scores = mx8i_take_rows(s, MX8_F32, T, E),
        .indices = mx8i_take_rows(s, MX8_I32, T, k),
        .weights = mx8i_take_rows(s, MX8_F32, T, k),
        .order = mx8i_take(s, MX8_I32, 1, &slots),
        .positions = mx8i_take_rows(s, MX8_I32, T, k),
        .offsets = mx8_make_tensor(offsets, MX8_I32, 1, &E)};
    const int64_t here = m->experts_here;
    r.groups = mx8i_is_spread(m) ? mx8i_take(s, MX8_I32, 1, &here) : r.offsets;
    return r;
}

/* Benchmarks: the indices become a round robin (uploaded once), the weights the scores at those indices. */
static enum mx8_status force_routing(struct mx8_model *m, struct mx8_routing *r) {
    const int64_t T = m->T, E = m->config.num_experts, k = m->config.top_k, slots = T * k;
    const int64_t table[2] = {T * E, 1}, picked[2] = {slots, 1};
    struct mx8_op_call call = {.in = {mx8_make_tensor(m->io.forced_slots, MX8_I32, 1, &slots),
                                   mx8_make_tensor(r->scores.data, MX8_F32, 2, table)},
        .n_in = 2,
        .out = {mx8_make_tensor(r->weights.data, MX8_F32, 2, picked)},
        .n_out = 1};
    MX8_TRY(mx8i_call(m, MX8_OP_EMBEDDING, 0, &call));
    if (m->planning) return MX8_OK;
    const struct mx8_exec *x = &m->ctx->exec;
    const size_t bytes = (size_t)slots * sizeof(int32_t);
    MX8_TRY(x->k->scale(x, r->weights.data, NULL, (float)m->config.route_scale, slots));
    MX8_TRY(x->k->copy(x, r->indices.data, m->io.forced_indices, bytes));
    MX8_TRY(x->k->copy(x, r->order.data, m->io.forced_order, bytes));
    MX8_TRY(x->k->copy(x, r->positions.data, m->io.forced_positions, bytes));
    return x->k->copy(x, r->offsets.data, m->io.forced_offsets, (size_t)E * sizeof(int32_t));
}

static struct mx8_op_options make_router_options(const struct mx8_model *m) {
    const struct mx8_model_config *c = &m->config;
    return (struct mx8_op_options){.top_k = (int32_t)c->top_k,
        .score_func = c->score_func,
        .route_norm = c->route_norm,
        .route_scale = (float)c->route_scale};
}

static enum mx8_status route(struct mx8_model *m, struct mx8_layer *l) {
    size_t mark = m->scratch.used;
    struct mx8_routing *r = &l->a.routing;
    struct mx8_tensor logits = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, m->config.num_experts), bias = {0};
    if (l->bias) bias = mx8_make_tensor(m->buffers ? m->buffers + l->bias->at : NULL, MX8_F32, 1, &l->bias->count);
    MX8_TRY(mx8i_run_linear(m, logits, &l->a.n2, l->gate, MX8_ABSENT));
    struct mx8_op_call call = {.in = {logits, bias},
        .n_in = 2,
        .out = {r->scores, r->indices, r->weights, r->order, r->positions, r->offsets},
        .n_out = 6,
        .options = make_router_options(m)};
    MX8_TRY(mx8i_call(m, MX8_OP_ROUTER, 0, &call));
    if (m->config.force_balance) MX8_TRY(force_routing(m, r));
    m->scratch.used = mark;
    return mx8i_plan_dispatch(m, l);
}

static struct mx8_maker make_permute(const struct mx8_model *m, const struct mx8_layer *l) {
    const struct mx8_routing *r = &l->a.routing;
    const struct mx8_tensor weights = m->config.score_before_experts ? r->weights : MX8_ABSENT;
    return (struct mx8_maker){
        MX8_OP_PERMUTE, MX8_OP_PERMUTE_QUANTIZE, {l->a.n2.hp, r->order, r->positions, weights}, 4};
}

/* Rows of each expert side by side, on the rank that holds it. `spare` (may be absent): memory for those of this rank.
 */
static enum mx8_status send_rows(
    struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor to, struct mx8_tensor spare) {
    size_t mark = m->scratch.used;
    if (!spare.ndim) spare = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T * m->config.top_k, m->config.dim);
    const struct mx8_maker permute = make_permute(m, l);
    MX8_TRY(mx8i_make_forms(m, &(struct mx8_forms){.hp = spare}, (struct mx8_need){0}, &permute, MX8_ABSENT, NULL));
    MX8_TRY(mx8i_dispatch_rows(m, l, to, spare));
    m->scratch.used = mark;
    return MX8_OK;
}

/* MX8_AC_OPS: the experts' input again. `there` and `spare` are free until the gradient of the combination comes. */
static enum mx8_status remake_rows(
    struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor there, struct mx8_tensor spare) {
    if (m->options.ac_mode != MX8_AC_OPS) return MX8_OK;
    struct mx8_need need = mx8i_find_backward_need(m, 2, (const struct mx8_param *[]){l->experts.w1, l->experts.w3});
    l->a.rows = (struct mx8_forms){.hp = mx8i_take_remade(m, need, there)};
    if (mx8i_is_spread(m)) {
        MX8_TRY(send_rows(m, l, l->a.rows.hp, spare));
        return mx8i_remake_codes(m, &l->a.rows, need, l->a.routing.groups);
    }
    const struct mx8_maker permute = make_permute(m, l);
    return mx8i_remake_forms(m, &l->a.rows, need, &permute, l->a.routing.groups);
}

/* The expert networks. out (rows as they were routed) absent: what backward needs, no more. */
static enum mx8_status run_experts(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor out) {
    struct mx8_activations *a = &l->a;
    const struct mx8_tensor groups = a->routing.groups;
    const int64_t rows = mx8i_count_expert_rows(m, l), D = m->config.dim;
    struct mx8_need need =
        mx8i_find_need(m, mx8i_keeps_forms(m), 2, (const struct mx8_param *[]){l->experts.w1, l->experts.w3});
    struct mx8_tensor there = out; /* the output where it is made */
    if (out.ndim && mx8i_is_spread(m)) there = mx8i_take_rows(&m->scratch, m->recipe.dtype, rows, D);
    /* Unless they are kept, the rows are dead before the experts' output is written. */
    a->rows = (struct mx8_forms){.hp = there};
    if (need.hp || !out.ndim) a->rows.hp = mx8i_take_hp(m, need, rows, D);
    if (mx8i_is_spread(m)) {
        MX8_TRY(send_rows(m, l, a->rows.hp, out));
        MX8_TRY(mx8i_quantize_forms(m, &a->rows, need, groups, &m->saved, 0));
    } else {
        const struct mx8_maker permute = make_permute(m, l);
        MX8_TRY(mx8i_make_forms(m, &a->rows, need, &permute, groups, &m->saved));
    }
    MX8_TRY(mx8i_ffn_forward(m, &l->experts, &a->experts, there, &a->rows, groups));
    mx8i_forget_forms(&a->rows, need);
    return out.ndim ? mx8i_return_rows(m, l, out, there) : MX8_OK;
}

enum mx8_status mx8i_moe_forward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor out, int32_t recompute) {
    size_t mark = m->scratch.used;
    struct mx8_activations *a = &l->a;
    const struct mx8_routing *r = &a->routing;
    const int32_t scores_after = !m->config.score_before_experts;
    if (!recompute) MX8_TRY(route(m, l));

    /* A score that multiplies the expert's output needs that output for its gradient. */
    struct mx8_tensor expert_out = {0};
    struct mx8_stack *stack = scores_after ? &m->saved : &m->scratch;
    if (!recompute || scores_after) {
        expert_out = mx8i_take_rows(stack, m->recipe.dtype, m->T * m->config.top_k, m->config.dim);
    }
    MX8_TRY(run_experts(m, l, expert_out));
    a->expert_out = scores_after ? expert_out : MX8_ABSENT;
    if (l->dense.w1) {
        MX8_TRY(mx8i_ffn_forward(m, &l->dense, &a->dense, recompute ? MX8_ABSENT : out, &a->n2, MX8_ABSENT));
    }
    if (!recompute) {
        struct mx8_op_call call = {.in = {expert_out, r->order, r->positions, scores_after ? r->weights : MX8_ABSENT,
                                       l->dense.w1 ? out : MX8_ABSENT},
            .n_in = 5,
            .out = {out},
            .n_out = 1};
        MX8_TRY(mx8i_call(m, MX8_OP_COMBINE, 0, &call));
    }
    m->scratch.used = mark;
    return MX8_OK;
}

/* drows: gradient of the experts' input rows, and before that of their output. dweights too when the scores multiplied
 * the experts' output. */
static enum mx8_status experts_backward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor drows,
    struct mx8_tensor dweights, struct mx8_tensor dout) {
    size_t mark = m->scratch.used;
    const struct mx8_activations *a = &l->a;
    const struct mx8_routing *r = &a->routing;
    struct mx8_tensor there = drows;
    if (mx8i_is_spread(m)) {
        there = mx8i_take_rows(&m->scratch, m->recipe.dtype, mx8i_count_expert_rows(m, l), drows.shape[1]);
    }
    MX8_TRY(remake_rows(m, l, there, drows));
    struct mx8_op_call call = {.in = {dout, MX8_ABSENT, r->order, r->positions}, .n_in = 4, .out = {drows}, .n_out = 1};
    if (!m->config.score_before_experts) {
        call.in[1] = a->expert_out;
        call.in[call.n_in++] = r->weights;
        call.out[call.n_out++] = dweights;
    }
    MX8_TRY(mx8i_call(m, MX8_OP_COMBINE, 1, &call));
    MX8_TRY(mx8i_dispatch_rows(m, l, there, drows));
    MX8_TRY(mx8i_ffn_backward(m, &l->experts, &a->experts, there, there, &a->rows, r->groups));
    MX8_TRY(mx8i_return_rows(m, l, drows, there));
    m->scratch.used = mark;
    return MX8_OK;
}

static enum mx8_status permute_backward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor dx,
    struct mx8_tensor dweights, struct mx8_tensor drows, struct mx8_tensor dres) {
    const struct mx8_routing *r = &l->a.routing;
    struct mx8_op_call call = {
        .in = {drows, MX8_ABSENT, r->order, r->positions, MX8_ABSENT, dres}, .n_in = 6, .out = {dx}, .n_out = 1};
    if (m->config.score_before_experts) {
        call.in[1] = l->a.n2.hp;
        call.in[4] = r->weights;
        call.out[call.n_out++] = dweights;
    }
    return mx8i_call(m, MX8_OP_PERMUTE, 1, &call);
}

/* dx += gradient through the router's scores. */
static enum mx8_status router_backward(
    struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor dx, struct mx8_tensor dweights) {
    size_t mark = m->scratch.used;
    const struct mx8_routing *r = &l->a.routing;
    struct mx8_tensor dlogits = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, m->config.num_experts);
    struct mx8_tensor part = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, m->config.dim);
    struct mx8_op_call call = {.in = {dweights, r->scores, r->indices, r->weights},
        .n_in = 4,
        .out = {dlogits},
        .n_out = 1,
        .options = make_router_options(m)};
    call.options.out_dtype = 1 + m->recipe.dtype;
    MX8_TRY(mx8i_call(m, MX8_OP_ROUTER, 1, &call));
    MX8_TRY(mx8i_run_linear_backward(m, part, dlogits, &l->a.n2, l->gate, MX8_ABSENT));
    MX8_TRY(mx8i_run_add(m, dx, dx, part));
    m->scratch.used = mark;
    return MX8_OK;
}

enum mx8_status mx8i_moe_backward(
    struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor dx, struct mx8_tensor dout) {
    size_t mark = m->scratch.used;
    const int64_t T = m->T, D = m->config.dim, k = m->config.top_k;
    struct mx8_tensor dweights = mx8i_take_rows(&m->scratch, MX8_F32, T, k);
    struct mx8_tensor drows = mx8i_take_rows(&m->scratch, m->recipe.dtype, T * k, D);
    struct mx8_tensor shared = MX8_ABSENT;
    MX8_TRY(experts_backward(m, l, drows, dweights, dout));
    struct mx8_need need = mx8i_find_moe_need(m, l, 1);
    need.row = 0;
    MX8_TRY(mx8i_remake_codes(m, &l->a.n2, need, MX8_ABSENT));
    if (l->dense.w1) {
        shared = dx;
        MX8_TRY(mx8i_ffn_backward(m, &l->dense, &l->a.dense, dx, dout, &l->a.n2, MX8_ABSENT));
    }
    MX8_TRY(permute_backward(m, l, dx, dweights, drows, shared));
    MX8_TRY(router_backward(m, l, dx, dweights));
    m->scratch.used = mark;
    return MX8_OK;
}
