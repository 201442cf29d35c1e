/* torchtitan's initial weights: normals truncated at +-cut, the embedding's not truncated, norms at one. */
#include <math.h>
#include "model/internal.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"

enum { CHUNK = 1 << 22, PIECE = 1 << 14 }; /* values made on the host at a time; by a thread at a time */

static double get_normal_probability(double x) {
    return 0.5 * erfc(-x * 0.70710678118654752440);
}

/* Values [from, from + n) of tensor p. Value i depends on (seed, name, i) alone, so a shard can make its own part. */
static void fill_values(const struct mx8_param *p, uint64_t seed, int64_t from, int64_t n, float *out) {
    uint64_t stream = mx8i_hash_text(p->name);
    if (p->kind == MX8_PARAM_NORM) {
        for (int64_t i = 0; i < n; i++) out[i] = 1;
    } else if (p->init_cut <= 0) {
        for (int64_t i = 0; i < n; i++) {
            out[i] = (float)(p->init_std * mx8i_random_normal(seed, stream, (uint64_t)(from + i)));
        }
    } else {
        double low = get_normal_probability(-p->init_cut / p->init_std), width = 1 - 2 * low;
        for (int64_t i = 0; i < n; i++) {
            double u = mx8i_random_uniform(seed, stream, (uint64_t)(from + i));
            out[i] = (float)(p->init_std * mx8i_inverse_normal(low + u * width));
        }
    }
}

static enum mx8_status init_param(struct mx8_model *m, const struct mx8_param *p, uint64_t seed, float *values) {
    const struct mx8_exec *x = &m->ctx->exec;
    for (int64_t from = 0; from < p->count; from += CHUNK) {
        int64_t n = p->count - from < CHUNK ? p->count - from : CHUNK;
#pragma omp parallel for num_threads(x->threads) schedule(static)
        for (int64_t i = 0; i < n; i += PIECE)
            fill_values(p, seed, from + i, n - i < PIECE ? n - i : PIECE, values + i);
        MX8_TRY(x->k->upload(x, m->masters + p->at + from, values, (size_t)n * sizeof *values));
    }
    return MX8_OK;
}

enum mx8_status mx8i_init_weights(struct mx8_model *m, uint64_t seed) {
    float *values = mx8i_allocate(CHUNK * sizeof *values, "initial weights");
    if (!values) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = MX8_OK;
    for (int64_t i = 0; i < m->params.count && status == MX8_OK; i++) {
        status = init_param(m, &m->params.param[i], seed, values);
    }
    mx8i_release(values);
    MX8_TRY(status);
    const struct mx8_exec *x = &m->ctx->exec;
    MX8_TRY(x->k->fill(x, m->buffers, 0, m->params.buffer_elements * sizeof *m->buffers));
    return mx8i_refresh_weights(m, 0);
}
