/* From the option table to the architecture: the flavor's preset, then whatever was set on top of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "model/hf.h"
#include "train/resolve.h"

/* What the option says becomes the field; a word such as "none" becomes the field's `none`. */
static enum mx8_status apply_override(
    const struct mx8_options *o, const struct mx8_config_field *f, struct mx8_model_config *config) {
    void *field = (char *)config + f->at;
    switch (f->type) {
    case MX8_FIELD_INT64: {
        int64_t value = mx8i_get_int(o, f->key);
        *(int64_t *)field = value == INT64_MIN ? (int64_t)f->none : value;
        break;
    }
    case MX8_FIELD_BOOL:
        *(int32_t *)field = mx8i_get_bool(o, f->key);
        break;
    case MX8_FIELD_DOUBLE: {
        double value = mx8i_get_float(o, f->key);
        *(double *)field = isnan(value) ? f->none : value;
        break;
    }
    case MX8_FIELD_CHOICE: /* the option table has let only choices through */
        *(int32_t *)field = mx8i_find_choice(f->choices, mx8i_get_text(o, f->key));
        break;
    case MX8_FIELD_TEXT:
        return mx8i_join_list(o, f->key, field, f->size);
    }
    return MX8_OK;
}

enum mx8_status mx8i_override_config(const struct mx8_options *o, struct mx8_model_config *config) {
    for (int32_t i = 0; i < mx8i_config_field_count; i++)
        if (mx8i_is_set(o, mx8i_config_fields[i].key)) MX8_TRY(apply_override(o, &mx8i_config_fields[i], config));
    if (mx8i_is_set(o, "model.n_kv_heads") && config->n_kv_heads == 0) config->n_kv_heads = config->n_heads;
    return mx8i_check_config(config);
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
    if (!strcmp(option, "op")) {
        model->ac_mode = MX8_AC_OPS;
        return MX8_OK;
    }
    char *end;
    long every = strtol(option, &end, 10);
    if (end == option || *end || every < 1 || every > INT32_MAX)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "activation_checkpoint.selective_ac_option is \"%s\", expected a number >= 1 "
            "(every n-th block is recomputed) or op",
            option);
    model->ac_mode = MX8_AC_EVERY_N;
    model->ac_every = (int32_t)every;
    return MX8_OK;
}

/* The flavor; or the architecture of the Hugging Face folder that training starts from. */
static enum mx8_status find_start(
    const struct mx8_options *o, struct mx8_model_config *config, int64_t *seq_len, int64_t *batch) {
    const char *path = mx8i_get_text(o, "checkpoint.initial_load_path");
    if (mx8i_is_set(o, "model.flavor") || !mx8i_get_bool(o, "checkpoint.initial_load_in_hf") || !path[0])
        return mx8i_find_preset(mx8i_get_text(o, "model.flavor"), config, seq_len, batch);
    *seq_len = 2048;
    *batch = 1;
    return mx8i_read_weights_config(path, config);
}

enum mx8_status mx8i_resolve_model(const struct mx8_options *o, struct mx8_job *job) {
    struct mx8_model_config *config = &job->config;
    int64_t seq_len, batch;
    MX8_TRY(find_start(o, config, &seq_len, &batch));
    config->force_balance = mx8i_get_bool(o, "debug.force_load_balance");
    MX8_TRY(mx8i_override_config(o, config));

    if (mx8i_is_set(o, "training.seq_len")) seq_len = mx8i_get_int(o, "training.seq_len");
    if (mx8i_is_set(o, "training.local_batch_size")) batch = mx8i_get_int(o, "training.local_batch_size");
    if (seq_len > INT32_MAX / batch) /* also keeps every later product of tokens far from overflow */
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "training.local_batch_size %lld x training.seq_len %lld: expected fewer than "
            "2^31 tokens in a forward pass; use training.global_batch_size to accumulate",
            (long long)batch, (long long)seq_len);
    job->local_batch_size = batch;
    job->model.batch = batch;
    job->model.seq_len = seq_len;
    job->model.training = 1;
    return resolve_checkpointing(o, &job->model);
}
