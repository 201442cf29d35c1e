/* The parity fixtures (tests/data/make_parity.py says what they hold): configuration, start weights, tokens, and what
 * PyTorch made of them. */
#ifndef MX8_TESTS_MODEL_PARITY_H
#define MX8_TESTS_MODEL_PARITY_H

#include <jansson.h>
#include "model/model_helpers.h"
#include "base/safetensors.h"

enum { STEPS = 20 };

struct fixture {
    json_t *meta;
    struct mx8_safetensors tensors;
    struct mx8_model_config config;
    struct mx8_model_options options;
    char start[256];
};

static inline json_t *get(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    if (!value) fail_msg("the fixture has no \"%s\"", key);
    return value;
}

static inline int64_t get_int(const json_t *object, const char *key, int64_t otherwise) {
    const json_t *value = json_object_get(object, key);
    if (json_is_boolean(value)) return json_is_true(value);
    return value ? json_integer_value(value) : otherwise;
}

static inline struct mx8_model_config read_config(const json_t *meta) {
    const json_t *c = get(meta, "config"), *moe = get(meta, "moe");
    struct mx8_model_config out = make_tiny_config();
    out.dim = get_int(c, "dim", 0);
    out.n_layers = get_int(c, "n_layers", 0);
    out.n_heads = get_int(c, "n_heads", 0);
    out.n_kv_heads = get_int(c, "n_kv_heads", 0);
    out.vocab_size = get_int(c, "vocab_size", 0);
    out.multiple_of = get_int(c, "multiple_of", 0);
    out.rope_theta = json_number_value(get(c, "rope_theta"));
    out.interleave_moe_layer_step = get_int(c, "interleave_moe_layer_step", 0);
    out.num_experts = get_int(moe, "num_experts", 0);
    out.num_shared_experts = get_int(moe, "num_shared_experts", 1);
    out.top_k = get_int(moe, "top_k", 1);
    out.score_before_experts = (int32_t)get_int(moe, "score_before_experts", 1);
    out.route_norm = (int32_t)get_int(moe, "route_norm", 0);
    const json_t *func = json_object_get(moe, "score_func"), *scale = json_object_get(moe, "route_scale");
    if (func && !strcmp(json_string_value(func), "softmax")) out.score_func = MX8_SCORE_SOFTMAX;
    if (scale) out.route_scale = json_number_value(scale);
    if (json_is_null(json_object_get(moe, "load_balance_coeff"))) out.load_balance_coeff = (double)NAN;
    return out;
}

static inline struct fixture open_fixture(const char *name) {
    struct fixture f;
    char path[256];
    json_error_t error;
    snprintf(path, sizeof path, "%s/parity_%s.json", MX8_TEST_DATA, name);
    f.meta = json_load_file(path, 0, &error);
    if (!f.meta) fail_msg("%s: %s", path, error.text);
    snprintf(path, sizeof path, "%s/parity_%s.safetensors", MX8_TEST_DATA, name);
    assert_ok(mx8i_open_safetensors(path, &f.tensors));
    snprintf(f.start, sizeof f.start, "%s/parity_%s_start.safetensors", MX8_TEST_DATA, name);
    f.config = read_config(f.meta);
    f.options = (struct mx8_model_options){
        .batch = get_int(f.meta, "batch", 0), .seq_len = get_int(f.meta, "seq_len", 0), .training = 1};
    assert_int_equal(get_int(f.meta, "steps", 0), STEPS);
    return f;
}

static inline void close_fixture(struct fixture *f) {
    json_decref(f->meta);
    mx8i_close_safetensors(&f->tensors);
}

/* tokens (steps, batch, seq + 1) to inputs and targets of one step. */
static inline void cut_batch(const struct fixture *f, int64_t step, int32_t *ids) {
    const int64_t B = f->options.batch, S = f->options.seq_len;
    const struct mx8_st_entry *e = mx8i_find_tensor(&f->tensors, "tokens");
    const char *at = (const char *)e->data + (size_t)(step * B * (S + 1)) * sizeof *ids;
    for (int64_t b = 0; b < B; b++) {
        memcpy(ids + b * S, at + (size_t)(b * (S + 1)) * sizeof *ids, (size_t)S * sizeof *ids);
        memcpy(ids + (B + b) * S, at + (size_t)(b * (S + 1) + 1) * sizeof *ids, (size_t)S * sizeof *ids);
    }
}

#endif
