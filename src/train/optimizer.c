/* The optimizer step as two kernels chained on the device: the clip factor never visits the host. */
#include "train/optimizer.h"
#include <math.h>
#include "base/error.h"
#include "base/rng.h"

enum { AT_SUM = 0, AT_FACTOR = 8, AT_NORM = 12, SCALARS = 16, AT_STATE = 16 /* struct mx8_adamw_state */ };

struct mx8_flat mx8i_view_flat(struct mx8_model *m, struct mx8_dist *dist) {
    struct mx8_flat flat = {.master = mx8i_get_masters(m),
        .grad = mx8i_get_gradients(m),
        .m = mx8i_get_moment(m, 0),
        .v = mx8i_get_moment(m, 1),
        .copy = mx8i_get_copies(m),
        .n = (int64_t)mx8i_get_params(m)->elements,
        .dist = dist,
        .model = m,
        .moment_dtype = mx8i_get_moment_dtype(m)};
    flat.stretch = mx8i_get_stretches(m, &flat.stretches);
    return flat;
}

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

static struct mx8_adamw_state get_state(const struct mx8_optimizer *o, const struct mx8_adamw *a, double lr) {
    const double t = (double)o->updates;
    uint32_t random[4];
    mx8i_philox(o->seed, mx8i_hash_text("optimizer.state_dtype"), (uint64_t)o->updates, random);
    return (struct mx8_adamw_state){(float)lr, (float)(1 - pow(a->beta1, t)), (float)(1 - pow(a->beta2, t)), random[0]};
}

enum mx8_status mx8i_begin_update(struct mx8_optimizer *o, const struct mx8_adamw *a, double lr) {
    o->updates++;
    if (!o->scalars_on_device) return MX8_OK;
    const struct mx8_adamw_state state = get_state(o, a, lr);
    return o->ctx->exec.k->upload(&o->ctx->exec, o->scalars + AT_STATE, &state, sizeof state);
}

static void *move(void *p, size_t elements, int32_t dtype) {
    return p ? (uint8_t *)p + elements * mx8_get_dtype_size(dtype) : NULL;
}

enum mx8_status mx8i_apply_adamw(
    struct mx8_optimizer *o, const struct mx8_flat *flat, const struct mx8_adamw *a, double lr) {
    const struct mx8_adamw_state state = get_state(o, a, lr);
    const struct mx8_stretch all = {.n = flat->n, .has_copy = 1}, *stretch = flat->stretch ? flat->stretch : &all;
    struct mx8_adamw_job job = {.lr = state.lr,
        .beta1 = (float)a->beta1,
        .beta2 = (float)a->beta2,
        .eps = (float)a->eps,
        .weight_decay = (float)a->weight_decay,
        .bias1 = state.bias1,
        .bias2 = state.bias2,
        .grad_scale = (const float *)(const void *)(o->scalars + AT_FACTOR),
        .copy_dtype = MX8_BF16,
        .moment_dtype = flat->moment_dtype,
        .rounding = state.rounding};
    if (o->scalars_on_device) job.state = (const struct mx8_adamw_state *)(const void *)(o->scalars + AT_STATE);
    for (int64_t i = 0; i < (flat->stretch ? flat->stretches : 1); i++, stretch++) {
        job.n = stretch->n;
        job.first = stretch->place;
        job.master = flat->master + stretch->at;
        job.grad = flat->grad + stretch->at;
        job.m = move(flat->m, stretch->at, flat->moment_dtype);
        job.v = move(flat->v, stretch->at, flat->moment_dtype);
        job.copy = stretch->has_copy ? move(flat->copy, stretch->copy_at, MX8_BF16) : NULL;
        MX8_TRY(o->ctx->exec.k->adamw(&o->ctx->exec, &job));
    }
    return flat->model ? mx8i_update_converted(flat->model, &job) : MX8_OK;
}
