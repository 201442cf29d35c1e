/* torchtitan's initial weights: normals truncated at +-cut, the embedding's not truncated, norms at one. */
#include <math.h>
#include "model/internal.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"

static double get_normal_probability(double x) {
    return 0.5 * erfc(-x * 0.70710678118654752440);
}

static enum mx8_status fill_ones(const struct mx8_exec *x, float *values, int64_t n) {
    float *ones = mx8i_allocate((size_t)n * sizeof *ones, "initial norm");
    if (!ones) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    enum mx8_status status = x->k->upload(x, values, ones, (size_t)n * sizeof *ones);
    if (status == MX8_OK) status = x->k->synchronize(x);
    mx8i_release(ones);
    return status;
}

/* Value i depends on (seed, name, i) alone, so a shard can make its own part. */
static enum mx8_status init_param(struct mx8_model *m, const struct mx8_param *p, uint64_t seed) {
    const struct mx8_exec *x = &m->ctx->exec;
    const struct mx8_part_of part = mx8i_get_part(m, p);
    float *values = m->masters + p->at;
    if (!part.count) return MX8_OK;
    if (p->kind == MX8_PARAM_NORM) return fill_ones(x, values, part.count);
    struct mx8_normal_job job = {.out = values,
        .n = part.count,
        .seed = seed,
        .stream = mx8i_hash_text(p->name),
        .first = (uint64_t)part.first,
        .std = p->init_std,
        .width = 1};
    if (p->init_cut > 0) {
        job.low = get_normal_probability(-p->init_cut / p->init_std);
        job.width = 1 - 2 * job.low;
    }
    return x->k->fill_normal(x, &job);
}

enum mx8_status mx8i_init_weights(struct mx8_model *m, uint64_t seed) {
    for (int64_t i = 0; i < m->params.count; i++) MX8_TRY(init_param(m, &m->params.param[i], seed));
    const struct mx8_exec *x = &m->ctx->exec;
    MX8_TRY(x->k->fill(x, m->buffers, 0, m->params.buffer_elements * sizeof *m->buffers));
    return mx8i_refresh_weights(m, 0);
}
