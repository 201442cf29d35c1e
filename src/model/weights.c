/* Masters to what the operators read: bf16 copies and MXFP8 codes, once per optimizer step; with several processes
 * codes are made whenever a unit has been gathered. */
#include "model/internal.h"
#include "base/error.h"

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

/* Row codes of (E,N,K) are those of a matrix of E*N rows; the transposed ones are the 3D operator's. */
static enum mx8_status quantize_experts(struct mx8_model *m, const struct mx8_forms *w) {
    const int64_t rows = w->hp.shape[0] * w->hp.shape[1], K = w->hp.shape[2];
    const int64_t values[2] = {rows, K}, scales[2] = {rows, K / MX8_BLOCK};
    struct mx8_op_call call = {.in = {mx8_make_tensor(w->hp.data, w->hp.dtype, 2, values)},
        .n_in = 1,
        .out = {mx8_make_tensor(w->row.data, w->row.dtype, 2, values),
            mx8_make_tensor(w->row_scale.data, MX8_F8_E8M0, 2, scales)},
        .n_out = 2,
        .options = mx8i_make_weight_quantizer(m)};
    MX8_TRY(mx8i_call(m, MX8_OP_QUANTIZE_ROWS, 0, &call));
    struct mx8_op_call call_3d = {
        .in = {w->hp}, .n_in = 1, .out = {w->col, w->col_scale}, .n_out = 2, .options = mx8i_make_weight_quantizer(m)};
    return mx8i_call(m, MX8_OP_QUANTIZE_3D, 0, &call_3d);
}

enum mx8_status mx8i_walk_weights(struct mx8_model *m, int32_t unit) {
    /* between steps nothing in it is needed; with several processes a unit may arrive amid a step */
    const size_t mark = m->parallel ? m->scratch.used : 0;
    m->scratch.used = mark;
    mx8i_begin_pass(m, "weights", -1);
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        if (!p->mxfp8 || m->shard[i].unit != unit) continue;
        struct mx8_forms w = mx8i_view_weight(m, p);
        struct mx8_op_options options = mx8i_make_weight_quantizer(m);
        MX8_TRY(mx8i_round_for_control(m, &w.hp, &options, 0));
        MX8_TRY(p->ndim == 3 ? quantize_experts(m, &w) : quantize_matrix(m, &w));
        m->scratch.used = mark;
    }
    return MX8_OK;
}

enum mx8_status mx8i_refresh_weights(struct mx8_model *m, int32_t copies_done) {
    const struct mx8_exec *x = &m->ctx->exec;
    if (m->copies && !copies_done) {
        MX8_TRY(x->k->cast(x, m->copies, MX8_BF16, m->masters, MX8_F32, (int64_t)m->params.elements));
    }
    if (!m->parallel) return mx8i_walk_weights(m, 0);
    mx8i_forget_units(m); /* they are gathered, and quantized, when they are used next */
    return MX8_OK;
}
