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

/* dx may be dout: what dout says is in dgate and dup before dx is written. */
enum mx8_status mx8i_ffn_backward(struct mx8_model *m, const struct mx8_ffn *w, const struct mx8_ffn_saved *s,
    struct mx8_tensor dx, struct mx8_tensor dout, const struct mx8_forms *in, struct mx8_tensor offsets) {
    size_t mark = m->scratch.used;
    const int64_t rows = dout.shape[0], F = w->w1->shape[w->w1->ndim - 2], D = m->config.dim;
    const int32_t dtype = m->recipe.dtype;
    struct mx8_tensor dhidden = mx8i_take_rows(&m->scratch, dtype, rows, F);
    struct mx8_forms hidden = s->hidden;
    MX8_TRY(remake_hidden(m, w, s, dhidden, offsets, &hidden));
    MX8_TRY(mx8i_run_linear_backward(m, dhidden, dout, &hidden, w->w2, offsets));
    struct mx8_tensor dgate = s->gate, dup = s->up; /* the last use of both: their gradients take their place */
    struct mx8_op_call call = {.in = {dhidden, s->gate, s->up}, .n_in = 3, .out = {dgate, dup}, .n_out = 2};
    MX8_TRY(mx8i_call(m, MX8_OP_SWIGLU, 1, &call));
    m->scratch.used = mark;
    struct mx8_tensor part = mx8i_take_rows(&m->scratch, dtype, rows, D);
    MX8_TRY(mx8i_run_linear_backward(m, dx, dgate, in, w->w1, offsets));
    MX8_TRY(mx8i_run_linear_backward(m, part, dup, in, w->w3, offsets));
    MX8_TRY(mx8i_run_add(m, dx, dx, part));
    m->scratch.used = mark;
    return MX8_OK;
}
