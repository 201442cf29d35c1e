/* The attention half of a layer: out = attention(norm(x)) wo^T, and its gradient. */
#include "model/internal.h"
#include "base/error.h"

/* The layer's input is stream_f + last_h, summed by the norm itself, but for the first layer (the embedding) and for a
 * recomputation, whose input is saved. */
static enum mx8_status normalize_input(struct mx8_model *m, struct mx8_layer *l, struct mx8_need need) {
    struct mx8_activations *a = &l->a;
    const int64_t T = m->T, D = m->config.dim;
    a->n1 = (struct mx8_forms){.hp = mx8i_take_hp(m, need, T, D)};
    a->rstd_attention = mx8i_take(&m->saved, MX8_F32, 1, &T);
    if (!m->last_h.ndim) {
        return mx8i_make_norm(m, &a->n1, need, a->rstd_attention, MX8_ABSENT, a->x, MX8_ABSENT, l->attention_norm);
    }
    return mx8i_make_norm(m, &a->n1, need, a->rstd_attention, a->x, m->stream_f, m->last_h, l->attention_norm);
}

static struct mx8_op_options make_attention_options(const struct mx8_model *m, const struct mx8_layer *l) {
    return (struct mx8_op_options){.n_heads = (int32_t)m->config.n_heads,
        .n_kv_heads = (int32_t)m->config.n_kv_heads,
        .mask = m->config.attn_mask,
        .chunk = (int32_t)l->chunk,
        .seq_len = m->options.seq_len};
}

static struct mx8_tensor view_docs(const struct mx8_model *m) {
    if (m->config.attn_mask != MX8_MASK_DOCUMENT) return MX8_ABSENT;
    return mx8_make_tensor(m->io.docs, MX8_I32, 1, &m->T);
}

static enum mx8_status project_inputs(struct mx8_model *m, struct mx8_layer *l) {
    for (enum mx8_head_kind kind = MX8_QUERIES; kind <= MX8_VALUES; kind++) {
        MX8_TRY(mx8i_heads_forward(m, l, kind));
    }
    return MX8_OK;
}

enum mx8_status mx8i_attention_forward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor out) {
    size_t mark = m->scratch.used;
    struct mx8_activations *a = &l->a;
    const int64_t T = m->T;
    struct mx8_need need = mx8i_find_need(m, mx8i_keeps_forms(m), 3, (const struct mx8_param *[]){l->wq, l->wk, l->wv});
    MX8_TRY(normalize_input(m, l, need));
    MX8_TRY(project_inputs(m, l));

    a->o = (struct mx8_forms){.hp = mx8i_take_rows(&m->saved, m->recipe.dtype, T, l->wq->shape[0])};
    a->lse = mx8i_take_rows(&m->saved, MX8_F32, T, m->config.n_heads);
    struct mx8_op_call call = {.in = {a->q, a->k, a->v, view_docs(m)},
        .n_in = 4,
        .out = {a->o.hp, a->lse},
        .n_out = 2,
        .options = make_attention_options(m, l)};
    MX8_TRY(mx8i_call(m, MX8_OP_ATTENTION, 0, &call));

    struct mx8_need o_need = mx8i_find_need(m, mx8i_keeps_forms(m), 1, (const struct mx8_param *[]){l->wo});
    MX8_TRY(mx8i_quantize_forms(m, &a->o, o_need, MX8_ABSENT, &m->saved, 0));
    MX8_TRY(mx8i_run_linear(m, out, &a->o, l->wo, MX8_ABSENT));
    o_need.hp = 1; /* attention's backward reads its output */
    mx8i_forget_forms(&a->o, o_need);
    mx8i_forget_forms(&a->n1, need);
    m->scratch.used = mark;
    return MX8_OK;
}

/* dn1 = dq wq + dk wk + dv wv. */
static enum mx8_status project_backward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor dn,
    struct mx8_tensor dq, struct mx8_tensor dk, struct mx8_tensor dv) {
    size_t mark = m->scratch.used;
    struct mx8_tensor part = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, m->config.dim);
    MX8_TRY(mx8i_run_linear_backward(m, dn, dq, &l->a.n1, l->wq, MX8_ABSENT));
    MX8_TRY(mx8i_run_linear_backward(m, part, dk, &l->a.n1, l->wk, MX8_ABSENT));
    MX8_TRY(mx8i_run_add(m, dn, dn, part));
    MX8_TRY(mx8i_run_linear_backward(m, part, dv, &l->a.n1, l->wv, MX8_ABSENT));
    MX8_TRY(mx8i_run_add(m, dn, dn, part));
    m->scratch.used = mark;
    return MX8_OK;
}

static struct mx8_tensor view_rows(struct mx8_tensor t, int64_t rows, int64_t cols) {
    return mx8_make_tensor(t.data, t.dtype, 2, (const int64_t[]){rows, cols});
}

enum mx8_status mx8i_attention_backward(
    struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor dx, struct mx8_tensor dout) {
    size_t mark = m->scratch.used;
    struct mx8_activations *a = &l->a;
    const struct mx8_param *inputs[] = {l->wq, l->wk, l->wv};
    const int64_t T = m->T, Q = l->wq->shape[0], KV = l->wk->shape[0];
    const int32_t dtype = m->recipe.dtype;
    struct mx8_tensor dn = mx8i_take_rows(&m->scratch, dtype, T, Q > m->config.dim ? Q : m->config.dim);
    struct mx8_tensor d_o = view_rows(dn, T, Q), dq = mx8i_take_rows(&m->scratch, dtype, T, Q);
    struct mx8_tensor dk = mx8i_take_rows(&m->scratch, dtype, T, KV), dv = mx8i_take_rows(&m->scratch, dtype, T, KV);
    size_t output = m->scratch.used;
    MX8_TRY(mx8i_remake_codes(m, &a->o, mx8i_find_backward_need(m, 1, &l->wo), MX8_ABSENT));
    MX8_TRY(mx8i_run_linear_backward(m, d_o, dout, &a->o, l->wo, MX8_ABSENT));
    m->scratch.used = output;
    struct mx8_op_call call = {.in = {d_o, a->q, a->k, a->v, a->o.hp, a->lse, view_docs(m)},
        .n_in = 7,
        .out = {dq, dk, dv},
        .n_out = 3,
        .options = make_attention_options(m, l)};
    MX8_TRY(mx8i_call(m, MX8_OP_ATTENTION, 1, &call));
    MX8_TRY(mx8i_heads_backward(m, l, MX8_QUERIES, &dq));
    MX8_TRY(mx8i_heads_backward(m, l, MX8_KEYS, &dk));
    MX8_TRY(mx8i_heads_backward(m, l, MX8_VALUES, &dv));
    dn = view_rows(dn, T, m->config.dim); /* d_o is no longer needed */
    struct mx8_need need = mx8i_find_backward_need(m, 3, inputs);
    MX8_TRY(mx8i_remake_norm(m, &a->n1, need, a->x, a->rstd_attention, l->attention_norm));
    MX8_TRY(project_backward(m, l, dn, dq, dk, dv));
    MX8_TRY(mx8i_run_norm_backward(m, dx, dn, a->x, a->rstd_attention, dout, l->attention_norm));
    m->scratch.used = mark;
    return MX8_OK;
}
