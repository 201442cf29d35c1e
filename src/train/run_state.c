/* What of a run outlives a step. Everything else is made anew from it: bf16 copies and MXFP8 codes from the masters,
 * gradients and activations by the next step, random numbers from the seed, samples from the position. */
#include "train/run_state.h"
#include "base/error.h"
#include "base/memory.h"

static enum mx8_status add_weights(struct mx8_run *r, struct mx8_state *s) {
    const struct mx8_param_table *t = mx8i_get_params(r->model);
    for (int64_t i = 0; i < t->count; i++) {
        const struct mx8_param *p = &t->param[i];
        const struct mx8_part_of part = mx8i_get_part(r->model, p);
        MX8_TRY(mx8i_add_state_part(
            s, p->name, MX8_F32, p->ndim, p->shape, mx8i_get_masters(r->model) + p->at, part.first, part.count));
    }
    return MX8_OK;
}

static enum mx8_status add_buffers(struct mx8_run *r, struct mx8_state *s) {
    const struct mx8_param_table *t = mx8i_get_params(r->model);
    for (int64_t i = 0; i < t->buffer_count; i++) {
        const struct mx8_buffer *b = &t->buffer[i];
        MX8_TRY(mx8i_add_state(s, b->name, MX8_F32, 1, &b->count, mx8i_get_buffers(r->model) + b->at, 0));
    }
    return MX8_OK;
}

/* A skipped step leaves its counts to the next bias update. */
static enum mx8_status add_counts(struct mx8_run *r, struct mx8_state *s) {
    const int64_t shape[] = {mx8i_count_moe_layers(r->model), r->job->config.num_experts};
    if (!shape[0]) return MX8_OK;
    return mx8i_add_state(s, "moe.tokens_per_expert", MX8_I64, 2, shape, mx8i_get_expert_counts(r->model), 1);
}

static enum mx8_status add_moments(struct mx8_run *r, struct mx8_state *s) {
    static const char *const names[] = {"optimizer.exp_avg", "optimizer.exp_avg_sq"};
    const struct mx8_param_table *t = mx8i_get_params(r->model);
    const int32_t dtype = r->job->model.moment_dtype;
    const size_t width = mx8_get_dtype_size(dtype);
    for (int32_t which = 0; which < 2; which++) {
        for (int64_t i = 0; i < t->count; i++) {
            const struct mx8_param *p = &t->param[i];
            char *name = mx8i_format_text("%s.%s", names[which], p->name);
            uint8_t *data = mx8i_get_moment(r->model, which);
            const struct mx8_part_of part = mx8i_get_part(r->model, p);
            enum mx8_status status = MX8_OUT_OF_MEMORY;
            if (name)
                status = mx8i_add_state_part(
                    s, name, dtype, p->ndim, p->shape, data + p->at * width, part.first, part.count);
            if (status == MX8_OK) s->tensor[s->n_tensors - 1].may_round = 1;
            mx8i_release(name);
            MX8_TRY(status);
        }
    }
    return MX8_OK;
}

static enum mx8_status add_history(struct mx8_run *r, struct mx8_state *s) {
    static const int64_t one = 1;
    MX8_TRY(mx8i_add_state(s, MX8_HISTORY_LOSSES, MX8_F64, 1, &r->n_losses, r->losses, 1));
    return mx8i_add_state(s, "history.first_loss", MX8_F64, 1, &one, &r->first_loss, 1);
}

static enum mx8_status describe(
    struct mx8_run *r, enum mx8_checkpoint_kind kind, int32_t without, struct mx8_state *s) {
    int full = kind == MX8_CHECKPOINT_FULL;
    if (!(without & MX8_EXCLUDE_MODEL)) {
        MX8_TRY(add_weights(r, s));
        for (int64_t i = 0; !full && i < s->n_tensors; i++) s->tensor[i].stored = r->job->checkpoint.export_dtype;
        MX8_TRY(add_buffers(r, s)); /* always in f32: routing follows their last bit */
        for (int64_t i = 0; i < s->n_tensors; i++) s->tensor[i].is_weight = 1;
        if (full) MX8_TRY(add_counts(r, s));
    }
    if (full && !(without & MX8_EXCLUDE_OPTIMIZER)) MX8_TRY(add_moments(r, s));
    if (full && !(without & MX8_EXCLUDE_TRAIN_STATE)) MX8_TRY(add_history(r, s));
    return MX8_OK;
}

enum mx8_status mx8i_describe_state(
    struct mx8_run *r, enum mx8_checkpoint_kind kind, int32_t without, struct mx8_state *out) {
    *out = (struct mx8_state){0};
    enum mx8_status status = describe(r, kind, without, out);
    if (status != MX8_OK) mx8i_free_state(out);
    return status;
}
