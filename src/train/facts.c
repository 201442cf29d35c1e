/* Two tables decide what a job that resumes may change. Facts are resolved values: what counts is the model that an
 * option led to, not how it was asked for. Rules are about the text of every other option, by the beginning of its key;
 * an option that no rule names does not change results. */
#include "train/facts.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "train/parallel.h"

enum type { INT64, INT32, DOUBLE, TEXT };
enum verdict { QUIET, WARN, STOP, STOP_DATA /* unless the data start anew */ };

#define AT(field) offsetof(struct mx8_job, field)

static const struct {
    const char *key; /* of the option that sets it */
    enum type type;
    size_t at; /* in struct mx8_job */
    enum verdict verdict;
} facts[] = {
    {"model.dim", INT64, AT(config.dim), STOP},
    {"model.n_layers", INT64, AT(config.n_layers), STOP},
    {"model.n_heads", INT64, AT(config.n_heads), STOP},
    {"model.n_kv_heads", INT64, AT(config.n_kv_heads), STOP},
    {"model.head_dim", INT64, AT(config.head_dim), STOP},
    {"model.vocab_size", INT64, AT(config.vocab_size), STOP},
    {"model.multiple_of", INT64, AT(config.multiple_of), STOP},
    {"model.ffn_dim_multiplier", DOUBLE, AT(config.ffn_dim_multiplier), STOP},
    {"model.hidden_dim", INT64, AT(config.dense_hidden), STOP},
    {"model.norm_eps", DOUBLE, AT(config.norm_eps), STOP},
    {"model.rope_theta", DOUBLE, AT(config.rope_theta), STOP},
    {"model.rope_scaling_factor", DOUBLE, AT(config.rope_factor), STOP},
    {"model.rope_low_freq_factor", DOUBLE, AT(config.rope_low_freq), STOP},
    {"model.rope_high_freq_factor", DOUBLE, AT(config.rope_high_freq), STOP},
    {"model.rope_original_len", INT64, AT(config.rope_original_len), STOP},
    {"model.qk_norm", INT32, AT(config.qk_norm), STOP},
    {"model.clip_qkv", DOUBLE, AT(config.clip_qkv), STOP},
    {"model.attn_mask_type", INT32, AT(config.attn_mask), STOP},
    {"model.every_n_layers_nope", INT64, AT(config.every_n_layers_nope), STOP},
    {"model.nope_layer_offset", INT64, AT(config.nope_layer_offset), STOP},
    {"model.fixed_attn_block_size", INT64, AT(config.fixed_attn_block_size), STOP},
    {"model.attn_temperature_scale", DOUBLE, AT(config.attn_temperature), STOP},
    {"model.attn_temperature_floor", INT64, AT(config.attn_temperature_floor), STOP},
    {"model.interleave_moe_layer_step", INT64, AT(config.interleave_moe_layer_step), STOP},
    {"model.dense_layers", TEXT, AT(config.dense_layers), STOP},
    {"moe.num_experts", INT64, AT(config.num_experts), STOP},
    {"moe.num_shared_experts", INT64, AT(config.num_shared_experts), STOP},
    {"moe.hidden_dim", INT64, AT(config.expert_hidden), STOP},
    {"moe.top_k", INT64, AT(config.top_k), STOP},
    {"moe.score_func", INT32, AT(config.score_func), STOP},
    {"moe.route_norm", INT32, AT(config.route_norm), STOP},
    {"moe.route_scale", DOUBLE, AT(config.route_scale), STOP},
    {"moe.score_before_experts", INT32, AT(config.score_before_experts), STOP},
    {"moe.auto_scale_hidden_dim", INT32, AT(config.auto_scale_hidden_dim), STOP},
    {"moe.load_balance_coeff", DOUBLE, AT(config.load_balance_coeff), WARN},
    {"model.depth_init", INT32, AT(config.depth_init), QUIET}, /* of initial weights */
    {"debug.force_load_balance", INT32, AT(config.force_balance), WARN},
    {"training.seq_len", INT64, AT(model.seq_len), STOP_DATA},
    {"training.local_batch_size", INT64, AT(local_batch_size), WARN},
    {"training.steps", INT64, AT(steps), WARN},
};
#define N_FACTS (sizeof facts / sizeof facts[0])

/* The first rule that a key begins with holds. */
static const struct {
    const char *prefix;
    enum verdict verdict;
} rules[] = {
    {"model.flavor", QUIET},
    {"model.hf_assets_path", QUIET},
    {"model.tokenizer_path", QUIET},
    {"model.print_after_conversion", QUIET},
    {"model.converters", WARN},
    {"model.", STOP},
    {"moe.", STOP},
    {"optimizer.implementation", QUIET},
    {"optimizer.", WARN},
    {"lr_scheduler.", WARN},
    {"mx.", WARN},
    {"quantize.", WARN},
    {"activation_checkpoint.", QUIET},
    {"training.seed", STOP_DATA},
    {"training.shuffle", STOP_DATA},
    {"training.eos_id", STOP_DATA},
    {"training.dataset", QUIET}, /* also _path and _bytes: the hash of what they give is compared */
    {"training.prefetch", QUIET},
    {"training.global_batch_size", QUIET}, /* the resolved one is compared */
    {"training.gc", QUIET},
    {"training.deterministic", QUIET},
    {"training.", WARN},
    {"job.device", WARN},
    {"debug.mx_control", WARN},
};

/* Resolved values that are no plain field. */
static int64_t get_batch(const struct mx8_job *job) {
    return job->local_batch_size * job->accumulation * mx8i_count_ranks(job);
}

static void print_fact(const struct mx8_job *job, size_t i, char text[128]) {
    const char *at = (const char *)job + facts[i].at;
    int64_t wide;
    int32_t narrow;
    double number;
    switch (facts[i].type) {
    case INT64:
        memcpy(&wide, at, sizeof wide);
        snprintf(text, 128, "%lld", (long long)wide);
        break;
    case INT32:
        memcpy(&narrow, at, sizeof narrow);
        snprintf(text, 128, "%d", (int)narrow);
        break;
    case DOUBLE:
        memcpy(&number, at, sizeof number);
        snprintf(text, 128, "%.17g", number);
        break;
    case TEXT:
        snprintf(text, 128, "%s", at);
        break;
    }
}

static const char batch_key[] = "training.global_batch_size", data_key[] = "data", hash_key[] = "data.sha256";

enum mx8_status mx8i_describe_job(const struct mx8_run *r, struct mx8_facts *job, struct mx8_facts *options) {
    char text[128];
    for (size_t i = 0; i < N_FACTS; i++) {
        print_fact(r->job, i, text);
        MX8_TRY(mx8i_add_fact(job, facts[i].key, text));
    }
    snprintf(text, sizeof text, "%lld", (long long)get_batch(r->job));
    MX8_TRY(mx8i_add_fact(job, batch_key, text));
    MX8_TRY(mx8i_add_fact(job, data_key, mx8i_describe_data(r->data)));
    MX8_TRY(mx8i_add_fact(job, hash_key, mx8i_get_data_hash(r->data)));
    MX8_TRY(mx8i_add_fact(job, "recipe", r->job->recipe.name));
    const struct mx8_options *o = r->job->options;
    for (int32_t i = 0; i < o->count; i++)
        MX8_TRY(mx8i_add_fact(options, o->table[i].key, mx8i_get_text(o, o->table[i].key)));
    return MX8_OK;
}

/* What stops a job from resuming, word by word. */
struct disagreement {
    char text[700];
    int32_t starts_data; /* anew: position 0 means the same whatever the data */
    const struct mx8_log *log;
};

static void judge(struct disagreement *d, enum verdict verdict, const char *key, const char *before, const char *now) {
    if (verdict == QUIET || !strcmp(before, now)) return;
    if (verdict == WARN || (verdict == STOP_DATA && d->starts_data)) {
        mx8i_log(d->log, "warning: %s was \"%s\" when the checkpoint was saved and is \"%s\" now", key, before, now);
        return;
    }
    size_t used = strlen(d->text);
    snprintf(
        d->text + used, sizeof d->text - used, "%s%s was \"%s\" and is \"%s\" now", used ? "; " : "", key, before, now);
}

static int is_fact(const char *key) {
    for (size_t i = 0; i < N_FACTS; i++)
        if (!strcmp(facts[i].key, key)) return 1;
    return 0;
}

static enum verdict find_rule(const char *key) {
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (!strncmp(key, rules[i].prefix, strlen(rules[i].prefix))) return rules[i].verdict;
    return QUIET;
}

/* Equal hashes mean equal samples at equal positions, wherever the files lie. */
static void compare_data(struct disagreement *d, const struct mx8_run *r, const struct mx8_facts *before) {
    const char *hash = mx8i_get_fact(before, hash_key), *was = mx8i_get_fact(before, data_key);
    if (!hash || !strcmp(hash, mx8i_get_data_hash(r->data))) return;
    char then[200], now[200];
    snprintf(then, sizeof then, "%.120s (SHA-256 %.12s)", was ? was : "", hash);
    snprintf(now, sizeof now, "%.120s (SHA-256 %.12s)", mx8i_describe_data(r->data), mx8i_get_data_hash(r->data));
    judge(d, STOP_DATA, "training.dataset_path", then, now);
}

static void compare_facts(struct disagreement *d, const struct mx8_run *r, const struct mx8_facts *before) {
    char now[128];
    for (size_t i = 0; i < N_FACTS; i++) {
        const char *value = mx8i_get_fact(before, facts[i].key);
        print_fact(r->job, i, now);
        if (value) judge(d, facts[i].verdict, facts[i].key, value, now);
    }
    const char *batch = mx8i_get_fact(before, batch_key);
    snprintf(now, sizeof now, "%lld", (long long)get_batch(r->job));
    if (batch) judge(d, STOP_DATA, batch_key, batch, now);
}

enum mx8_status mx8i_compare_job(const struct mx8_run *r, const struct mx8_manifest *m, const char *where) {
    struct disagreement d = {.starts_data = r->job->checkpoint.exclude & MX8_EXCLUDE_DATALOADER, .log = &r->watch->log};
    const struct mx8_options *o = r->job->options;
    compare_facts(&d, r, &m->job);
    for (int32_t i = 0; i < o->count; i++) {
        const char *key = o->table[i].key, *before = mx8i_get_fact(&m->options, key);
        if (before && !is_fact(key)) judge(&d, find_rule(key), key, before, mx8i_get_text(o, key));
    }
    if (!d.text[0]) compare_data(&d, r, &m->job); /* last: a seed or a length that differs says it better */
    if (!d.text[0]) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT,
        "%s was saved by another job: %s; give the values it was saved with, or start a new run from its weights with "
        "checkpoint.initial_load_path",
        where, d.text);
}
