/* What a job that resumes may change. Resolved values come first: what counts is the model that an option led to, not
 * how it was asked for. Every other option is compared as text. One table of rules judges both; what no rule names does
 * not change results. */
#include "train/facts.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/parallel.h"

enum verdict { QUIET, WARN, STOP, STOP_DATA /* unless the data start anew */ };

/* The first rule that a key begins with holds. */
static const struct {
    const char *prefix;
    enum verdict verdict;
} rules[] = {
    {"model.flavor", QUIET},
    {"model.hf_assets_path", QUIET},
    {"model.tokenizer_path", QUIET},
    {"model.print_after_conversion", QUIET},
    {"model.depth_init", QUIET}, /* of initial weights */
    {"model.converters", WARN},
    {"model.", STOP},
    {"moe.load_balance_coeff", WARN},
    {"moe.", STOP},
    {"optimizer.implementation", QUIET},
    {"optimizer.", WARN},
    {"lr_scheduler.", WARN},
    {"mx.", WARN},
    {"quantize.", WARN},
    {"training.seq_len", STOP_DATA},
    {"training.global_batch_size", STOP_DATA},
    {"training.seed", STOP_DATA},
    {"training.shuffle", STOP_DATA},
    {"training.eos_id", STOP_DATA},
    {"training.dataset", QUIET}, /* also _path and _bytes: the hash of what they give is compared */
    {"training.prefetch", QUIET},
    {"training.gc", QUIET},
    {"training.deterministic", QUIET},
    {"training.", WARN},
    {"job.device", WARN},
    {"debug.force_load_balance", WARN},
    {"debug.mx_control", WARN},
};

static enum verdict find_rule(const char *key) {
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (!strncmp(key, rules[i].prefix, strlen(rules[i].prefix))) return rules[i].verdict;
    return QUIET;
}

/* ---- what a job is ---- */

static enum mx8_status add_number(struct mx8_facts *f, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return mx8i_add_fact(f, key, text);
}

static enum mx8_status add_field(
    struct mx8_facts *f, const struct mx8_config_field *field, const struct mx8_model_config *c) {
    const char *at = (const char *)c + field->at, *choice = field->choices;
    char text[40];
    int32_t number;
    double real;
    int64_t wide;
    switch (field->type) {
    case MX8_FIELD_INT64:
        memcpy(&wide, at, sizeof wide);
        return add_number(f, field->key, wide);
    case MX8_FIELD_TEXT:
        return mx8i_add_fact(f, field->key, at);
    case MX8_FIELD_DOUBLE:
        memcpy(&real, at, sizeof real);
        snprintf(text, sizeof text, "%.17g", real);
        return mx8i_add_fact(f, field->key, text);
    case MX8_FIELD_BOOL:
        memcpy(&number, at, sizeof number);
        return mx8i_add_fact(f, field->key, number ? "true" : "false");
    case MX8_FIELD_CHOICE:
        break;
    }
    memcpy(&number, at, sizeof number);
    while (number-- > 0) choice += strcspn(choice, "|") + 1;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(choice, "|"), choice);
    return mx8i_add_fact(f, field->key, text);
}

static const char data_key[] = "data", hash_key[] = "data.sha256";

static enum mx8_status add_facts(const struct mx8_run *r, struct mx8_facts *f) {
    const struct mx8_job *job = r->job;
    for (int32_t i = 0; i < mx8i_config_field_count; i++) MX8_TRY(add_field(f, &mx8i_config_fields[i], &job->config));
    MX8_TRY(mx8i_add_fact(f, "debug.force_load_balance", job->config.force_balance ? "true" : "false"));
    MX8_TRY(add_number(f, "training.seq_len", job->model.seq_len));
    MX8_TRY(add_number(f, "training.local_batch_size", job->local_batch_size));
    MX8_TRY(
        add_number(f, "training.global_batch_size", job->local_batch_size * job->accumulation * mx8i_count_ranks(job)));
    MX8_TRY(add_number(f, "training.steps", job->steps));
    MX8_TRY(mx8i_add_fact(f, data_key, mx8i_describe_data(r->data)));
    MX8_TRY(mx8i_add_fact(f, hash_key, mx8i_get_data_hash(r->data)));
    return mx8i_add_fact(f, "recipe", job->recipe.name);
}

enum mx8_status mx8i_describe_job(const struct mx8_run *r, struct mx8_facts *job, struct mx8_facts *options) {
    const struct mx8_options *o = r->job->options;
    MX8_TRY(add_facts(r, job));
    for (int32_t i = 0; i < o->count; i++)
        MX8_TRY(mx8i_add_fact(options, o->table[i].key, mx8i_get_text(o, o->table[i].key)));
    char *config = mx8i_format_config(&r->job->config);
    enum mx8_status status = config ? mx8i_add_fact(job, MX8_CONFIG_KEY, config) : MX8_OUT_OF_MEMORY;
    mx8i_release(config);
    return status;
}

/* ---- two of them ---- */

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

/* Equal hashes mean equal samples at equal positions, wherever the files lie. */
static void compare_data(struct disagreement *d, const struct mx8_run *r, const struct mx8_facts *before) {
    const char *hash = mx8i_get_fact(before, hash_key), *was = mx8i_get_fact(before, data_key);
    if (!hash || !strcmp(hash, mx8i_get_data_hash(r->data))) return;
    char then[200], now[200];
    snprintf(then, sizeof then, "%.120s (SHA-256 %.12s)", was ? was : "", hash);
    snprintf(now, sizeof now, "%.120s (SHA-256 %.12s)", mx8i_describe_data(r->data), mx8i_get_data_hash(r->data));
    judge(d, STOP_DATA, "training.dataset_path", then, now);
}

/* What the options led to, then the options that led to nothing of that kind. */
static void compare_values(
    struct disagreement *d, const struct mx8_manifest *m, const struct mx8_facts *now, const struct mx8_options *o) {
    for (int64_t i = 0; i < now->count; i++) {
        const struct mx8_fact *f = &now->fact[i];
        const char *before = mx8i_get_fact(&m->job, f->key);
        if (before) judge(d, find_rule(f->key), f->key, before, f->value);
    }
    for (int32_t i = 0; i < o->count; i++) {
        const char *key = o->table[i].key, *before = mx8i_get_fact(&m->options, key);
        if (before && !mx8i_get_fact(now, key)) judge(d, find_rule(key), key, before, mx8i_get_text(o, key));
    }
}

enum mx8_status mx8i_compare_job(const struct mx8_run *r, const struct mx8_manifest *m, const char *where) {
    struct disagreement d = {.starts_data = r->job->checkpoint.exclude & MX8_EXCLUDE_DATALOADER, .log = &r->watch->log};
    struct mx8_facts now = {0};
    enum mx8_status status = add_facts(r, &now);
    if (status == MX8_OK) compare_values(&d, m, &now, r->job->options);
    mx8i_free_facts(&now);
    MX8_TRY(status);
    if (!d.text[0]) compare_data(&d, r, &m->job); /* last: a seed or a length that differs says it better */
    if (!d.text[0]) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT,
        "%s was saved by another job: %s; give the values it was saved with, or start a new run from its weights with "
        "checkpoint.initial_load_path",
        where, d.text);
}
