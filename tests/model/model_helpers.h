/* What the model tests share: tiny configurations, recipes, batches, and a model that is planned, allocated and freed in
 * one line each. */
#ifndef MX8_TESTS_MODEL_HELPERS_H
#define MX8_TESTS_MODEL_HELPERS_H

#include <math.h>
#include "test.h"
#include "model/model.h"
#include "base/rng.h"

/* Two MoE layers of four experts with a shared one, and room for every variation that a test makes. */
static inline struct mx8_model_config make_tiny_config(void) {
    struct mx8_model_config c;
    assert_ok(mx8i_find_preset("demo", &c, NULL, NULL));
    c.dim = 64;
    c.n_layers = 2;
    c.n_heads = 4;
    c.n_kv_heads = 2;
    c.vocab_size = 96;
    c.ffn_dim_multiplier = 0;
    return c;
}

static inline struct mx8_recipe make_recipe(const char *name) {
    struct mx8_recipe r = {.dtype = strcmp(name, "f32") ? MX8_BF16 : MX8_F32, .expert_fqns = "experts",
        .filter_fqns = "output,router.gate,wk,wv"};
    snprintf(r.name, sizeof r.name, "%s", name);
    r.convert_linear = !strcmp(name, "mxfp8_dense") || !strcmp(name, "mxfp8_moe");
    r.convert_experts = !strcmp(name, "mxfp8_moe");
    return r;
}

static inline struct mx8_context *make_context(int32_t threads) {
    struct mx8_context *ctx = NULL;
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = threads}, &ctx));
    return ctx;
}

struct subject { struct mx8_context *ctx; struct mx8_model *m; int64_t T; };

static inline struct subject make_subject(const struct mx8_model_config *c, const char *recipe,
    struct mx8_model_options o, int32_t threads) {
    struct subject s = {.ctx = make_context(threads), .T = o.batch * o.seq_len};
    struct mx8_recipe r = make_recipe(recipe);
    o.training = 1;
    assert_ok(mx8i_plan_model(c, &r, &o, &s.m));
    assert_ok(mx8i_allocate_model(s.m, s.ctx));
    assert_ok(mx8i_init_weights(s.m, 7));
    return s;
}

static inline void free_subject(struct subject *s) {
    mx8i_free_model(s->m);
    mx8_destroy_context(s->ctx);
}

/* Tokens and targets of one batch, 2 T of them; the caller frees. */
static inline int32_t *make_tokens(int64_t T, int64_t vocab, uint64_t seed) {
    int32_t *ids = calloc((size_t)(2 * T), sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < 2 * T; i++) {
        ids[i] = (int32_t)((double)vocab * mx8i_random_uniform(seed, 1, (uint64_t)i));
    }
    return ids;
}

/* One microbatch from the tokens above; the mean loss. */
static inline double run_step(struct subject *s, const int32_t *ids, const int32_t *docs) {
    double loss = 0;
    assert_ok(mx8i_forward_backward(s->m, ids, ids + s->T, docs, 1.0f / (float)s->T, 0, &loss));
    return loss;
}

static inline const float *find_gradient(struct mx8_model *m, const char *name, int64_t *count) {
    const struct mx8_param *p = mx8i_find_param(mx8i_get_params(m), name);
    if (!p) fail_msg("no tensor %s", name);
    if (count) *count = p->count;
    return mx8i_get_gradients(m) + p->at;
}

/* Same loss bits and gradient bits. */
static inline void assert_same_gradients(struct mx8_model *a, struct mx8_model *b) {
    const struct mx8_param_table *t = mx8i_get_params(a);
    for (int64_t i = 0; i < t->count; i++) {
        const struct mx8_param *p = &t->param[i];
        const float *x = mx8i_get_gradients(a) + p->at, *y = mx8i_get_gradients(b) + p->at;
        if (memcmp(x, y, (size_t)p->count * sizeof *x)) fail_msg("gradients of %s differ", p->name);
    }
}

static inline double get_sqnr(const float *got, const float *want, int64_t n) {
    double signal = 0, noise = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        signal += (double)want[i] * (double)want[i];
        noise += d * d;
    }
    return noise > 0 ? 10 * log10(signal / noise) : HUGE_VAL;
}

#endif
