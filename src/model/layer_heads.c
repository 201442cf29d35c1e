/* From a layer's normalised input to the queries, keys and values that attention reads: projection, then what the model
 * asks for of norm, clamp and RoPE. Every step but the turning is absent in a plain Llama. */
#include "model/internal.h"
#include "base/error.h"

/* One of the three, with its weights and its places among the activations. */
struct path {
    const struct mx8_param *w, *norm;
    struct mx8_tensor *raw, *out, *rstd;
    int64_t heads;
    int32_t normed;
    const float *table; /* of RoPE, or of the temperature; NULL: none */
};

static struct path find_path(
    const struct mx8_model *m, const struct mx8_layer *l, struct mx8_activations *a, enum mx8_head_kind kind) {
    const struct mx8_model_config *c = &m->config;
    const int32_t normed = c->qk_norm != MX8_QK_NORM_NONE && (c->qk_norm != MX8_QK_NORM_L2 || l->uses_rope);
    /* While planning there are no tables yet: any address says that one will be there. */
    static const float planned[2] = {1, 0};
    const float *rope = l->uses_rope ? (m->planning ? planned : m->io.rope_table) : NULL;
    const int32_t heated = !l->uses_rope && c->attn_temperature > 0;
    const float *temperature = heated ? (m->planning ? planned : m->io.temperature_table) : NULL;
    switch (kind) {
    case MX8_QUERIES:
        return (struct path){
            l->wq, l->q_norm, &a->raw_q, &a->q, &a->rstd_q, c->n_heads, normed, rope ? rope : temperature};
    case MX8_KEYS:
        return (struct path){l->wk, l->k_norm, &a->raw_k, &a->k, &a->rstd_k, c->n_kv_heads, normed, rope};
    case MX8_VALUES:
        break;
    }
    return (struct path){l->wv, NULL, &a->raw_v, &a->v, NULL, c->n_kv_heads, 0, NULL};
}

static enum mx8_status turn(struct mx8_model *m, const struct path *p, struct mx8_tensor x, int32_t backward) {
    if (!p->table) return MX8_OK;
    const int64_t shape[3] = {m->options.seq_len, mx8i_get_head_dim(&m->config) / 2, 2};
    struct mx8_op_call call = {.in = {x, mx8_make_tensor((void *)(uintptr_t)p->table, MX8_F32, 3, shape)},
        .n_in = 2,
        .out = {x},
        .n_out = 1,
        .options = {.n_heads = (int32_t)p->heads, .seq_len = m->options.seq_len}};
    return mx8i_call(m, MX8_OP_ROPE, backward, &call);
}

/* The rows that a norm is taken of: each head's, or the whole projection's. */
static struct mx8_tensor view_normed(const struct mx8_model *m, const struct path *p, struct mx8_tensor x) {
    if (m->config.qk_norm == MX8_QK_NORM_PROJECTION) return x;
    const int64_t shape[2] = {m->T * p->heads, mx8i_get_head_dim(&m->config)};
    return mx8_make_tensor(x.data, x.dtype, 2, shape);
}

static struct mx8_tensor view_norm_weight(const struct mx8_model *m, const struct path *p) {
    const int64_t d = mx8i_get_head_dim(&m->config);
    return p->norm ? mx8i_view_weight(m, p->norm).hp : mx8_make_tensor(m->io.ones, MX8_F32, 1, &d);
}

static enum mx8_status normalize(
    struct mx8_model *m, const struct path *p, struct mx8_tensor y, struct mx8_tensor rstd, struct mx8_tensor x) {
    struct mx8_op_call call = {.in = {view_normed(m, p, x), view_norm_weight(m, p)},
        .n_in = 2,
        .out = {view_normed(m, p, y), rstd},
        .n_out = 2,
        .options = {.eps = (float)m->config.norm_eps}};
    return mx8i_call(m, MX8_OP_RMSNORM, 0, &call);
}

static enum mx8_status normalize_backward(
    struct mx8_model *m, const struct path *p, struct mx8_tensor dx, struct mx8_tensor dy) {
    struct mx8_op_call call = {
        .in = {view_normed(m, p, dy), view_normed(m, p, *p->raw), view_norm_weight(m, p), *p->rstd},
        .n_in = 4,
        .out = {view_normed(m, p, dx), p->norm ? mx8i_view_gradient(m, p->norm) : MX8_ABSENT},
        .n_out = p->norm ? 2 : 1,
        .options = {.eps = (float)m->config.norm_eps, .accumulate = m->accumulate}};
    return mx8i_call(m, MX8_OP_RMSNORM, 1, &call);
}

static enum mx8_status clamp(struct mx8_model *m, struct mx8_tensor y, struct mx8_tensor x) {
    struct mx8_op_call call = {.in = {x}, .n_in = 1, .out = {y}, .n_out = 1};
    call.options.limit = (float)m->config.clip_qkv;
    return mx8i_call(m, MX8_OP_CLAMP, 0, &call);
}

/* What was clamped is the norm's output, which is computed again: the same bits. */
static enum mx8_status clamp_backward(struct mx8_model *m, const struct path *p, struct mx8_tensor d) {
    size_t mark = m->scratch.used;
    struct mx8_tensor before = *p->raw;
    if (p->normed) {
        before = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, p->w->shape[0]);
        struct mx8_tensor rstd = mx8i_take(&m->scratch, MX8_F32, 1, p->rstd->shape);
        MX8_TRY(normalize(m, p, before, rstd, *p->raw));
    }
    struct mx8_op_call call = {.in = {d, before}, .n_in = 2, .out = {d}, .n_out = 1};
    call.options.limit = (float)m->config.clip_qkv;
    MX8_TRY(mx8i_call(m, MX8_OP_CLAMP, 1, &call));
    m->scratch.used = mark;
    return MX8_OK;
}

enum mx8_status mx8i_heads_forward(struct mx8_model *m, struct mx8_layer *l, enum mx8_head_kind kind) {
    const struct path p = find_path(m, l, &l->a, kind);
    const int64_t T = m->T, N = p.w->shape[0];
    const int32_t clamped = m->config.clip_qkv > 0;
    *p.out = mx8i_take_rows(&m->saved, m->recipe.dtype, T, N);
    *p.raw = p.normed || clamped ? mx8i_take_rows(&m->saved, m->recipe.dtype, T, N) : MX8_ABSENT;
    struct mx8_tensor at = p.raw->ndim ? *p.raw : *p.out;
    MX8_TRY(mx8i_run_linear(m, at, &l->a.n1, p.w, MX8_ABSENT));
    if (p.normed) {
        const int64_t rows = view_normed(m, &p, at).shape[0];
        *p.rstd = mx8i_take(&m->saved, MX8_F32, 1, &rows);
        MX8_TRY(normalize(m, &p, *p.out, *p.rstd, at));
        at = *p.out;
    }
    if (clamped) MX8_TRY(clamp(m, *p.out, at));
    return turn(m, &p, *p.out, 0);
}

enum mx8_status mx8i_heads_backward(
    struct mx8_model *m, const struct mx8_layer *l, enum mx8_head_kind kind, struct mx8_tensor *d) {
    struct mx8_activations a = l->a;
    const struct path p = find_path(m, l, &a, kind);
    MX8_TRY(turn(m, &p, *d, 1));
    if (m->config.clip_qkv > 0) MX8_TRY(clamp_backward(m, &p, *d));
    if (!p.normed) return MX8_OK;
    struct mx8_tensor dx = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, p.w->shape[0]);
    MX8_TRY(normalize_backward(m, &p, dx, *d));
    *d = dx;
    return MX8_OK;
}
