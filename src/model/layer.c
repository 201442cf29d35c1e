/* One layer: h = x + attention(norm(x)), out = h + ffn(norm(h)). The second sum is left to the norm that follows: a
 * layer hands on h and f. */
#include "model/internal.h"
#include "base/error.h"

/* The layer's second half, from the normalised h to stream_f. */
static enum mx8_status run_second_half(
    struct mx8_model *m, struct mx8_layer *l, struct mx8_need need, int32_t recompute) {
    struct mx8_activations *a = &l->a;
    if (l->moe >= 0) {
        MX8_TRY(mx8i_moe_forward(m, l, m->stream_f, recompute));
    } else {
        MX8_TRY(mx8i_ffn_forward(m, &l->dense, &a->dense, recompute ? MX8_ABSENT : m->stream_f, &a->n2, MX8_ABSENT));
    }
    mx8i_forget_forms(&a->n2, need);
    return MX8_OK;
}

static struct mx8_need find_second_need(const struct mx8_model *m, const struct mx8_layer *l, int32_t keep) {
    if (l->moe >= 0) return mx8i_find_moe_need(m, l, keep);
    return mx8i_find_need(m, keep, 2, (const struct mx8_param *[]){l->dense.w1, l->dense.w3});
}

enum mx8_status mx8i_layer_forward(struct mx8_model *m, struct mx8_layer *l, int32_t recompute) {
    struct mx8_activations *a = &l->a;
    const int64_t T = m->T, D = m->config.dim;
    a->mark = m->saved.used;
    size_t mark = m->scratch.used;
    /* The layer's input has been read and its output not begun. During backward stream_f holds the gradient. */
    struct mx8_tensor attention = recompute ? m->stream_h : m->stream_f;
    MX8_TRY(mx8i_attention_forward(m, l, attention));

    struct mx8_need need = find_second_need(m, l, mx8i_keeps_forms(m));
    a->h = m->keep ? mx8i_take_rows(&m->saved, m->recipe.dtype, T, D) : m->stream_h;
    a->n2 = (struct mx8_forms){.hp = mx8i_take_hp(m, need, T, D)};
    a->rstd_ffn = mx8i_take(&m->saved, MX8_F32, 1, &T);
    MX8_TRY(mx8i_make_norm(m, &a->n2, need, a->rstd_ffn, a->h, attention, a->x, l->ffn_norm));
    MX8_TRY(run_second_half(m, l, need, recompute));
    m->last_h = a->h;
    m->scratch.used = mark;
    if (!m->keep) m->saved.used = a->mark;
    return MX8_OK;
}

/* d: gradient of the layer's output on entry, of its input on return. */
enum mx8_status mx8i_layer_backward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor d) {
    size_t mark = m->scratch.used;
    struct mx8_activations *a = &l->a;
    struct mx8_tensor dn = m->stream_h; /* forward's, which is over */
    struct mx8_need need = find_second_need(m, l, 1);
    need.row = 0;
    if (l->moe >= 0) need.col = 0; /* not before the routed experts are through: that is where memory peaks */
    MX8_TRY(mx8i_remake_norm(m, &a->n2, need, a->h, a->rstd_ffn, l->ffn_norm));
    if (l->moe >= 0) {
        MX8_TRY(mx8i_moe_backward(m, l, dn, d));
    } else {
        MX8_TRY(mx8i_ffn_backward(m, &l->dense, &a->dense, dn, d, &a->n2, MX8_ABSENT));
    }
    MX8_TRY(mx8i_run_norm_backward(m, d, dn, a->h, a->rstd_ffn, d, l->ffn_norm));
    m->scratch.used = mark;
    MX8_TRY(mx8i_attention_backward(m, l, d, d));
    m->saved.used = a->mark;
    return MX8_OK;
}
