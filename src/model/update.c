/* The update of converted weights: AdamW and the codes of the new values by one kernel, tensor by tensor. Nothing but
 * masters, moments and codes outlives it; the rest of the flat arrays is the optimizer's to walk over (stretches). */
#include "model/internal.h"
#include "base/error.h"
#include "kernels/adamw_pieces.h"
#include "ops/planes.h"

int32_t mx8i_updates_codes(const struct mx8_model *m, const struct mx8_param *p) {
    return !m->parallel && mx8i_is_codes_only(m, p) && m->options.control != MX8_CONTROL_REUSED_CODES &&
           !m->options.count_gaps;
}

/* What quantize_both or quantize_experts would run of the rounded weight. */
static struct mx8_quant_job make_codes(const struct mx8_model *m, const struct mx8_param *p) {
    static const struct mx8_context nobody; /* while planning */
    const struct mx8_forms w = mx8i_view_weight(m, p);
    const struct mx8_op_options options = mx8i_make_weight_quantizer(m);
    const struct mx8_style style = mx8i_get_style(&options, 0);
    const struct mx8_tensor rounded = mx8_make_tensor(NULL, MX8_BF16, p->ndim, p->shape);
    const struct mx8_code_pair along_rows = {&w.row, &w.row_scale}, along_cols = {&w.col, &w.col_scale};
    const struct mx8_plane rows = mx8i_view_plane(&along_rows, 0, style);
    const struct mx8_plane cols = mx8i_view_plane(&along_cols, p->ndim == 3, style);
    struct mx8_quant_job j = mx8i_start_quant(m->ctx ? m->ctx : &nobody, &rounded, style);
    mx8i_emit_rows(&j, &rows);
    mx8i_emit_cols(&j, &cols);
    return j;
}

static enum mx8_status update_weight(
    struct mx8_model *m, const struct mx8_param *p, const struct mx8_adamw_job *update) {
    const struct mx8_quant_job codes = make_codes(m, p);
    const int64_t room = mx8i_size_largest_piece(&codes, MX8_ADAMW_PIECE);
    const struct mx8_tensor copy = mx8i_take_rows(&m->scratch, MX8_BF16, room, 1);
    if (m->planning) return MX8_OK;
    const size_t before = p->at * mx8_get_dtype_size(m->options.moment_dtype);
    struct mx8_adamw_job job = *update;
    job.n = p->count;
    job.first = mx8i_get_shard(m, p)->place;
    job.master = m->masters + p->at;
    job.grad = m->gradients + p->at;
    job.m = (uint8_t *)mx8i_get_moment(m, 0) + before;
    job.v = (uint8_t *)mx8i_get_moment(m, 1) + before;
    job.copy = copy.data;
    job.copy_dtype = MX8_BF16;
    return m->ctx->exec.k->adamw_quantize(&m->ctx->exec, &job, &codes);
}

enum mx8_status mx8i_update_converted(struct mx8_model *m, const struct mx8_adamw_job *update) {
    m->scratch.used = 0; /* between steps nothing in it is needed */
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        if (!mx8i_updates_codes(m, p)) continue;
        MX8_TRY(update_weight(m, p, update));
        m->scratch.used = 0;
    }
    return MX8_OK;
}
