/* The optimizer step as two kernels chained on the device: the clip factor never visits the host. */
#include "train/optimizer.h"
#include <math.h>
#include "base/error.h"

enum { AT_SUM = 0, AT_FACTOR = 8, AT_NORM = 12, SCALARS = 16, AT_STATE = 16 /* lr, bias1, bias2 */ };

enum mx8_status mx8i_open_optimizer(struct mx8_context *ctx, struct mx8_optimizer *out) {
    void *scalars = NULL;
    *out = (struct mx8_optimizer){.ctx = ctx};
    MX8_TRY(ctx->exec.k->allocate(&ctx->exec, MX8_OPTIMIZER_BYTES, &scalars));
    out->scalars = scalars;
    return MX8_OK;
}

void mx8i_close_optimizer(struct mx8_optimizer *o) {
    if (o->scalars) o->ctx->exec.k->release(&o->ctx->exec, o->scalars);
    *o = (struct mx8_optimizer){0};
}

/* Of the ranks that hold the other parts. */
static enum mx8_status join_sum(const struct mx8_exec *x, double *sum, struct mx8_dist *d) {
    double value = 0;
    MX8_TRY(x->k->download(x, &value, sum, sizeof value));
    MX8_TRY(mx8i_sum_over_shards(d, &value));
    return x->k->upload(x, sum, &value, sizeof value);
}

enum mx8_status mx8i_clip_gradients(
    struct mx8_optimizer *o, const struct mx8_flat *flat, double max_norm, double *norm) {
    const struct mx8_exec *x = &o->ctx->exec;
    double *sum = (double *)(void *)(o->scalars + AT_SUM);
    float *factor = (float *)(void *)(o->scalars + AT_FACTOR), *device_norm = (float *)(void *)(o->scalars + AT_NORM);
    float result = 0;
    MX8_TRY(x->k->fill(x, o->scalars, 0, SCALARS));
    MX8_TRY(x->k->sum_squares(x, sum, flat->grad, flat->n));
    if (flat->dist) MX8_TRY(join_sum(x, sum, flat->dist));
    MX8_TRY(x->k->clip_factor(x, factor, device_norm, sum, (float)max_norm));
    MX8_TRY(x->k->download(x, &result, device_norm, sizeof result));
    *norm = (double)result;
    return MX8_OK;
}

static void get_state(const struct mx8_optimizer *o, const struct mx8_adamw *a, double lr, float state[3]) {
    const double t = (double)o->updates;
    state[0] = (float)lr;
    state[1] = (float)(1 - pow(a->beta1, t));
    state[2] = (float)(1 - pow(a->beta2, t));
}

enum mx8_status mx8i_begin_update(struct mx8_optimizer *o, const struct mx8_adamw *a, double lr) {
    float state[3];
    o->updates++;
    if (!o->scalars_on_device) return MX8_OK;
    get_state(o, a, lr, state);
    return o->ctx->exec.k->upload(&o->ctx->exec, o->scalars + AT_STATE, state, sizeof state);
}

enum mx8_status mx8i_apply_adamw(
    struct mx8_optimizer *o, const struct mx8_flat *flat, const struct mx8_adamw *a, double lr) {
    float state[3];
    get_state(o, a, lr, state);
    struct mx8_adamw_job job = {.n = flat->n,
        .lr = state[0],
        .beta1 = (float)a->beta1,
        .beta2 = (float)a->beta2,
        .eps = (float)a->eps,
        .weight_decay = (float)a->weight_decay,
        .bias1 = state[1],
        .bias2 = state[2],
        .grad_scale = (const float *)(const void *)(o->scalars + AT_FACTOR),
        .master = flat->master,
        .m = flat->m,
        .v = flat->v,
        .grad = flat->grad,
        .copy = flat->copy,
        .copy_dtype = MX8_BF16};
    if (o->scalars_on_device) job.state = (const float *)(const void *)(o->scalars + AT_STATE);
    return o->ctx->exec.k->adamw(&o->ctx->exec, &job);
}
