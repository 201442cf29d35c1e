/* SwiGLU: out = w2 (silu(w1 in) * (w3 in)), dense or over groups of rows (routed experts), and its gradient. */
#include "model/internal.h"
#include "base/error.h"

static struct mx8_maker make_swiglu(const struct mx8_ffn_saved *s) {
    return (struct mx8_maker){MX8_OP_SWIGLU, MX8_OP_SWIGLU_QUANTIZE, {s->gate, s->up}, 2};
}

/* MX8_AC_OPS: the weight gradient's operand again. dhidden is free until that product's twin writes it. */
static enum mx8_status remake_hidden(struct mx8_model *m, const struct mx8_ffn *w, const struct mx8_ffn_saved *s,
    struct mx8_tensor dhidden, struct mx8_tensor offsets, struct mx8_forms *hidden) {
    if (m->options.ac_mode != MX8_AC_OPS) return MX8_OK;
    struct mx8_need need = mx8i_find_backward_need(m, 1, &w->w2);
    *hidden = (struct mx8_forms){.hp = mx8i_take_remade(m, need, dhidden)};
    const struct mx8_maker swiglu = make_swiglu(s);
    return mx8i_remake_forms(m, hidden, need, &swiglu, offsets);
}

enum mx8_status mx8i_ffn_forward(struct mx8_model *m, const struct mx8_ffn *w, struct mx8_ffn_saved *s,
    struct mx8_tensor out, const struct mx8_forms *in, struct mx8_tensor offsets) {
    size_t mark = m->scratch.used;
    const int64_t rows = in->hp.shape[0], F = w->w1->shape[w->w1->ndim - 2];
    s->gate = mx8i_take_rows(&m->saved, m->recipe.dtype, rows, F);
    s->up = mx8i_take_rows(&m->saved, m->recipe.dtype, rows, F);
    MX8_TRY(mx8i_run_linear(m, s->gate, in, w->w1, offsets));
    MX8_TRY(mx8i_run_linear(m, s->up, in, w->w3, offsets));

    struct mx8_need need = mx8i_find_need(m, mx8i_keeps_forms(m), 1, &w->w2);
    if (!out.ndim) need.row = 0;
    s->hidden = (struct mx8_forms){.hp = mx8i_take_hp(m, need, rows, F)};
    const struct mx8_maker swiglu = make_swiglu(s);
    MX8_TRY(mx8i_make_forms(m, &s->hidden, need, &swiglu, offsets, &m->saved));
    if (out.ndim) MX8_TRY(mx8i_run_linear(m, out, &s->hidden, w->w2, offsets));
    mx8i_forget_forms(&s->hidden, need);
    m->scratch.used = mark;
    return MX8_OK;
}

/* What the gradients of gate and up are made of, and where they lead. */
struct gradients {
    const struct mx8_ffn *w;
    struct mx8_tensor dx, dhidden, gate, up, offsets;
    struct mx8_forms hidden; /* its last use is over */
    const struct mx8_forms *in;
};

/* dgate and dup take the place of gate and up, and are quantized one after the other. `mark`: below dhidden. */
static enum mx8_status run_one_by_one(struct mx8_model *m, const struct gradients *g, size_t mark) {
    struct mx8_op_call call = {.in = {g->dhidden, g->gate, g->up}, .n_in = 3, .out = {g->gate, g->up}, .n_out = 2};
    MX8_TRY(mx8i_call(m, MX8_OP_SWIGLU, 1, &call));
    m->scratch.used = mark;
    struct mx8_tensor part = mx8i_take(&m->scratch, g->dx.dtype, 2, g->dx.shape);
    MX8_TRY(mx8i_run_linear_backward(m, g->dx, g->gate, g->in, g->w->w1, g->offsets));
    MX8_TRY(mx8i_run_linear_backward(m, part, g->up, g->in, g->w->w3, g->offsets));
    return mx8i_run_add(m, g->dx, g->dx, part);
}

/* Whether the codes of both gradients are made at once: for scale groups of 256, where GPUs have a kernel that does so.
 * Elsewhere it would gain nothing, and it needs the memory of both. */
static int32_t joins_gradients(const struct mx8_model *m, const struct mx8_ffn *w) {
    return w->w1->mxfp8 && w->w3->mxfp8 && !m->recipe.wgrad_hp && m->recipe.scale_group == 256;
}

/* dgate and dup exist as codes only. Two of their four parts find memory that nobody reads any more: hidden's column
 * codes are dgate's in shape, and dx, not written before the last product, has room for dup's row codes. */
static enum mx8_status run_joined(struct mx8_model *m, const struct gradients *g) {
    const int64_t rows = g->gate.shape[0], F = g->gate.shape[1], D = g->dx.shape[1];
    const int64_t width = (int64_t)mx8_get_dtype_size(g->dx.dtype);
    struct mx8_forms d[2] = {0};
    d[0].col = g->hidden.col;
    d[0].col_scale = g->hidden.col_scale;
    if (F <= D * width) d[1].row = mx8_make_tensor(g->dx.data, MX8_U8, 2, (const int64_t[]){rows, F});
    MX8_TRY(mx8i_make_gradient_forms(m, d, g->dhidden, g->gate, g->up, g->offsets));
    struct mx8_tensor part = mx8_make_tensor(g->gate.data, g->dx.dtype, 2, g->dx.shape);
    if (D > F) part = mx8i_take(&m->scratch, g->dx.dtype, 2, g->dx.shape);
    d[0].hp = g->gate; /* their shapes: codes are what products read */
    d[1].hp = g->up;
    d[0].ends = d[1].ends = g->in->ends;
    MX8_TRY(mx8i_multiply_backward(m, part, &d[1], g->in, g->w->w3, g->offsets));
    MX8_TRY(mx8i_multiply_backward(m, g->dx, &d[0], g->in, g->w->w1, g->offsets));
    return mx8i_run_add(m, g->dx, g->dx, part);
}

/* dx may be dout, which nobody reads after the first product. */
enum mx8_status mx8i_ffn_backward(struct mx8_model *m, const struct mx8_ffn *w, const struct mx8_ffn_saved *s,
    struct mx8_tensor dx, struct mx8_tensor dout, const struct mx8_forms *in, struct mx8_tensor offsets) {
    size_t mark = m->scratch.used;
    struct mx8_tensor dhidden = mx8i_take(&m->scratch, m->recipe.dtype, 2, s->gate.shape);
    struct gradients g = {w, dx, dhidden, s->gate, s->up, offsets, s->hidden, in};
    MX8_TRY(remake_hidden(m, w, s, dhidden, offsets, &g.hidden));
    MX8_TRY(mx8i_run_linear_backward(m, dhidden, dout, &g.hidden, w->w2, offsets));
    const int32_t joined = joins_gradients(m, w), looked_at = mx8i_looks_at_values(m);
    if (joined && (m->planning || !looked_at)) MX8_TRY(run_joined(m, &g)); /* the plan has room for either */
    if (!joined || m->planning || looked_at) MX8_TRY(run_one_by_one(m, &g, mark));
    m->scratch.used = mark;
    return MX8_OK;
}
