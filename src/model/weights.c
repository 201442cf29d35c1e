/* Masters to what the operators read: bf16 copies and MXFP8 codes, once per optimizer step; with several processes
 * codes are made whenever a unit has been gathered, and in one most codes are made with the update (update.c). Nobody
 * reads a converted weight in bf16 but its quantizer: masters are rounded to bf16 piece by piece, in memory that a step
 * uses for other things. */
#include "model/internal.h"
#include "base/error.h"

enum { GRANULE = 256 /* rows: every scale group and tile divides it */ };

struct mx8_op_options mx8i_make_weight_quantizer(const struct mx8_model *m) {
    const struct mx8_recipe *r = &m->recipe;
    return (struct mx8_op_options){.scale_rule = r->scale_rule,
        .scale_group = r->weight_scale_group,
        .tile_rows = r->weight_tile_rows,
        .format = r->format};
}

static enum mx8_status quantize_matrix(struct mx8_model *m, const struct mx8_forms *w) {
    struct mx8_op_call call = {.in = {w->hp},
        .n_in = 1,
        .out = {w->row, w->row_scale, w->col, w->col_scale},
        .n_out = 4,
        .options = mx8i_make_weight_quantizer(m)};
    return mx8i_call(m, MX8_OP_QUANTIZE_BOTH, 0, &call);
}

static enum mx8_status quantize_experts(struct mx8_model *m, const struct mx8_forms *w) {
    struct mx8_op_call call = {.in = {w->hp},
        .n_in = 1,
        .out = {w->row, w->row_scale, w->col, w->col_scale},
        .n_out = 4,
        .options = mx8i_make_weight_quantizer(m)};
    return mx8i_call(m, MX8_OP_QUANTIZE_EXPERTS, 0, &call);
}

static enum mx8_status quantize_weight(struct mx8_model *m, const struct mx8_forms *weight) {
    struct mx8_forms w = *weight;
    struct mx8_op_options options = mx8i_make_weight_quantizer(m);
    MX8_TRY(mx8i_round_for_control(m, &w.hp, &options, 0));
    return w.hp.ndim == 3 ? quantize_experts(m, &w) : quantize_matrix(m, &w);
}

enum mx8_status mx8i_round_masters(struct mx8_model *m, void *to, size_t at, size_t n) {
    if (m->planning || !n) return MX8_OK;
    return m->ctx->exec.k->cast(&m->ctx->exec, to, m->recipe.dtype, m->masters + at, MX8_F32, (int64_t)n);
}

static void narrow(struct mx8_tensor *t, int32_t dim, int64_t first, int64_t count) {
    if (t->data) t->data = (uint8_t *)t->data + (size_t)(first * t->stride[dim]) * mx8_get_dtype_size(t->dtype);
    t->shape[dim] = count;
}

/* Rows [first, first + count) of a matrix, or so many experts: the codes that they alone decide. */
static struct mx8_forms cut_codes(const struct mx8_forms *weight, int64_t first, int64_t count) {
    struct mx8_forms w = *weight;
    const int32_t is_matrix = w.row.ndim == 2;
    narrow(&w.row, 0, first, count);
    narrow(&w.row_scale, 0, first, count);
    narrow(&w.col, is_matrix, first, count);
    narrow(&w.col_scale, is_matrix, is_matrix ? first / MX8_BLOCK : first, is_matrix ? count / MX8_BLOCK : count);
    return w;
}

/* Rows or experts of a piece. The recipe has seen to it that tiles end with an expert. */
static int64_t choose_piece(const struct mx8_model *m, const struct mx8_param *p) {
    const int64_t most = m->weight_piece / (p->count / p->shape[0]);
    if (most >= p->shape[0]) return p->shape[0];
    if (p->ndim == 3) return most > 1 ? most : 1;
    return most > GRANULE ? most / GRANULE * GRANULE : GRANULE;
}

static enum mx8_status quantize_masters(struct mx8_model *m, const struct mx8_param *p) {
    const struct mx8_forms all = mx8i_view_weight(m, p);
    const int64_t piece = choose_piece(m, p), line = p->count / p->shape[0];
    const size_t mark = m->scratch.used;
    for (int64_t first = 0; first < p->shape[0]; first += piece) {
        const int64_t count = p->shape[0] - first < piece ? p->shape[0] - first : piece;
        struct mx8_forms w = cut_codes(&all, first, count);
        w.hp = mx8i_take(&m->scratch, m->recipe.dtype, p->ndim, w.row.shape);
        MX8_TRY(mx8i_round_masters(m, w.hp.data, p->at + (size_t)(first * line), (size_t)(count * line)));
        MX8_TRY(quantize_weight(m, &w));
        m->scratch.used = mark;
    }
    return MX8_OK;
}

/* `updated`: all but those that were quantized with their update. */
static enum mx8_status walk_weights(struct mx8_model *m, int32_t unit, int32_t updated) {
    /* between steps nothing in it is needed; with several processes a unit may arrive amid a step */
    const size_t mark = m->parallel ? m->scratch.used : 0;
    m->scratch.used = mark;
    mx8i_begin_pass(m, "weights", -1);
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        if (!p->mxfp8 || m->shard[i].unit != unit || (updated && mx8i_updates_codes(m, p))) continue;
        if (mx8i_is_codes_only(m, p)) {
            MX8_TRY(quantize_masters(m, p));
        } else {
            const struct mx8_forms w = mx8i_view_weight(m, p);
            MX8_TRY(quantize_weight(m, &w));
        }
        m->scratch.used = mark;
    }
    return MX8_OK;
}

enum mx8_status mx8i_walk_weights(struct mx8_model *m, int32_t unit) {
    return walk_weights(m, unit, 0);
}

enum mx8_status mx8i_refresh_weights(struct mx8_model *m, int32_t updated) {
    for (int64_t i = 0; m->copies && !updated && i < m->stretches; i++) {
        const struct mx8_stretch *s = &m->stretch[i];
        if (s->has_copy) MX8_TRY(mx8i_round_masters(m, m->copies + s->copy_at, s->at, (size_t)s->n));
    }
    if (!m->parallel) return walk_weights(m, 0, updated);
    mx8i_forget_units(m); /* they are gathered, and quantized, when they are used next */
    return MX8_OK;
}
