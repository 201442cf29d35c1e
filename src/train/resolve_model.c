/* From the option table to the architecture: the flavor's preset, then whatever was set on top of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "train/resolve.h"

/* The overrides: a word such as "none" becomes `none`. Fields are int64_t, int32_t or double. */
enum field_type { FIELD_INT64, FIELD_INT32, FIELD_DOUBLE };
struct override {
    const char *key;
    size_t at;
    enum field_type type;
    double none;
};

#define FIELD(name, type, none) offsetof(struct mx8_model_config, name), type, none
static const struct override overrides[] = {
    {"model.dim", FIELD(dim, FIELD_INT64, 0)},
    {"model.n_layers", FIELD(n_layers, FIELD_INT64, 0)},
    {"model.n_heads", FIELD(n_heads, FIELD_INT64, 0)},
    {"model.n_kv_heads", FIELD(n_kv_heads, FIELD_INT64, 0)},
    {"model.vocab_size", FIELD(vocab_size, FIELD_INT64, 0)},
    {"model.multiple_of", FIELD(multiple_of, FIELD_INT64, 0)},
    {"model.ffn_dim_multiplier", FIELD(ffn_dim_multiplier, FIELD_DOUBLE, 0)},
    {"model.norm_eps", FIELD(norm_eps, FIELD_DOUBLE, 0)},
    {"model.rope_theta", FIELD(rope_theta, FIELD_DOUBLE, 0)},
    {"model.depth_init", FIELD(depth_init, FIELD_INT32, 0)},
    {"model.every_n_layers_nope", FIELD(every_n_layers_nope, FIELD_INT64, 0)},
    {"model.fixed_attn_block_size", FIELD(fixed_attn_block_size, FIELD_INT64, 0)},
    {"model.interleave_moe_layer_step", FIELD(interleave_moe_layer_step, FIELD_INT64, 0)},
    {"moe.num_experts", FIELD(num_experts, FIELD_INT64, 0)},
    {"moe.num_shared_experts", FIELD(num_shared_experts, FIELD_INT64, 0)},
    {"moe.top_k", FIELD(top_k, FIELD_INT64, 0)},
    {"moe.route_norm", FIELD(route_norm, FIELD_INT32, 0)},
    {"moe.route_scale", FIELD(route_scale, FIELD_DOUBLE, 0)},
    {"moe.score_before_experts", FIELD(score_before_experts, FIELD_INT32, 0)},
    {"moe.load_balance_coeff", FIELD(load_balance_coeff, FIELD_DOUBLE, NAN)},
    {"moe.auto_scale_hidden_dim", FIELD(auto_scale_hidden_dim, FIELD_INT32, 0)},
};

static void apply_override(const struct mx8_options *o, const struct override *v, struct mx8_model_config *config) {
    void *field = (char *)config + v->at;
    if (v->type == FIELD_DOUBLE) {
        double value = mx8i_get_float(o, v->key);
        *(double *)field = isnan(value) ? v->none : value;
    } else if (v->type == FIELD_INT32) {
        *(int32_t *)field = mx8i_get_bool(o, v->key);
    } else {
        int64_t value = mx8i_get_int(o, v->key);
        *(int64_t *)field = value == INT64_MIN ? (int64_t)v->none : value;
    }
}

static enum mx8_status resolve_checkpointing(const struct mx8_options *o, struct mx8_model_options *model) {
    const char *mode = mx8i_get_text(o, "activation_checkpoint.mode");
    if (!strcmp(mode, "none")) {
        model->ac_mode = MX8_AC_NONE;
        return MX8_OK;
    }
    if (!strcmp(mode, "full")) {
        model->ac_mode = MX8_AC_FULL;
        return MX8_OK;
    }
    const char *option = mx8i_get_text(o, "activation_checkpoint.selective_ac_option");
    if (!strcmp(option, "op"))
        return MX8_FAIL(MX8_UNSUPPORTED,
            "activation_checkpoint.selective_ac_option is op: mx8 recomputes whole blocks; "
            "give a number n for every n-th block, or activation_checkpoint.mode none or full");
    char *end;
    long every = strtol(option, &end, 10);
    if (end == option || *end || every < 1 || every > INT32_MAX)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "activation_checkpoint.selective_ac_option is \"%s\", expected a number >= 1 "
            "(every n-th block is recomputed)",
            option);
    model->ac_mode = MX8_AC_EVERY_N;
    model->ac_every = (int32_t)every;
    return MX8_OK;
}

enum mx8_status mx8i_resolve_model(const struct mx8_options *o, struct mx8_job *job) {
    struct mx8_model_config *config = &job->config;
    int64_t seq_len, batch;
    MX8_TRY(mx8i_find_preset(mx8i_get_text(o, "model.flavor"), config, &seq_len, &batch));
    for (size_t i = 0; i < sizeof overrides / sizeof overrides[0]; i++)
        if (mx8i_is_set(o, overrides[i].key)) apply_override(o, &overrides[i], config);
    if (mx8i_is_set(o, "model.n_kv_heads") && config->n_kv_heads == 0) config->n_kv_heads = config->n_heads;
    if (mx8i_is_set(o, "model.attn_mask_type"))
        config->attn_mask =
            strcmp(mx8i_get_text(o, "model.attn_mask_type"), "causal") ? MX8_MASK_DOCUMENT : MX8_MASK_CAUSAL;
    if (mx8i_is_set(o, "moe.score_func"))
        config->score_func =
            strcmp(mx8i_get_text(o, "moe.score_func"), "softmax") ? MX8_SCORE_SIGMOID : MX8_SCORE_SOFTMAX;
    config->force_balance = mx8i_get_bool(o, "debug.force_load_balance");
    MX8_TRY(mx8i_check_config(config));

    if (mx8i_is_set(o, "training.seq_len")) seq_len = mx8i_get_int(o, "training.seq_len");
    if (mx8i_is_set(o, "training.local_batch_size")) batch = mx8i_get_int(o, "training.local_batch_size");
    if (seq_len > INT32_MAX / batch) /* also keeps every later product of tokens far from overflow */
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "training.local_batch_size %lld x training.seq_len %lld: expected fewer than "
            "2^31 tokens in a forward pass; use training.global_batch_size to accumulate",
            (long long)batch, (long long)seq_len);
    job->local_batch_size = batch;
    job->model = (struct mx8_model_options){.batch = batch, .seq_len = seq_len, .training = 1};
    return resolve_checkpointing(o, &job->model);
}
