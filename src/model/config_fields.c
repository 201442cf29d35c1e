/* The architecture as a table of named fields, and as the JSON text that files of weights carry. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/config.h"
#include "base/error.h"
#include "base/memory.h"

#define AT(name) offsetof(struct mx8_model_config, name)
#define INT(key, name)                                                                                                 \
    { key, AT(name), MX8_FIELD_INT64, 0, NULL, 0 }
#define BOOL(key, name)                                                                                                \
    { key, AT(name), MX8_FIELD_BOOL, 0, NULL, 0 }
#define DOUBLE(key, name, none)                                                                                        \
    { key, AT(name), MX8_FIELD_DOUBLE, none, NULL, 0 }
#define CHOICE(key, name, choices)                                                                                     \
    { key, AT(name), MX8_FIELD_CHOICE, 0, choices, 0 }

const struct mx8_config_field mx8i_config_fields[] = {
    INT("model.dim", dim),
    INT("model.n_layers", n_layers),
    INT("model.n_heads", n_heads),
    INT("model.n_kv_heads", n_kv_heads),
    INT("model.head_dim", head_dim),
    INT("model.vocab_size", vocab_size),
    INT("model.multiple_of", multiple_of),
    DOUBLE("model.ffn_dim_multiplier", ffn_dim_multiplier, 0),
    INT("model.hidden_dim", dense_hidden),
    DOUBLE("model.norm_eps", norm_eps, 0),
    DOUBLE("model.rope_theta", rope_theta, 0),
    DOUBLE("model.rope_scaling_factor", rope_factor, 0),
    DOUBLE("model.rope_low_freq_factor", rope_low_freq, 0),
    DOUBLE("model.rope_high_freq_factor", rope_high_freq, 0),
    INT("model.rope_original_len", rope_original_len),
    CHOICE("model.qk_norm", qk_norm, "none|l2|head|projection"),
    DOUBLE("model.clip_qkv", clip_qkv, 0),
    BOOL("model.depth_init", depth_init),
    CHOICE("model.attn_mask_type", attn_mask, "causal|block_causal"),
    INT("model.every_n_layers_nope", every_n_layers_nope),
    INT("model.nope_layer_offset", nope_layer_offset),
    INT("model.fixed_attn_block_size", fixed_attn_block_size),
    DOUBLE("model.attn_temperature_scale", attn_temperature, 0),
    INT("model.attn_temperature_floor", attn_temperature_floor),
    INT("model.interleave_moe_layer_step", interleave_moe_layer_step),
    {"model.dense_layers", AT(dense_layers), MX8_FIELD_TEXT, 0, NULL,
        sizeof((struct mx8_model_config *)0)->dense_layers},
    INT("moe.num_experts", num_experts),
    INT("moe.num_shared_experts", num_shared_experts),
    INT("moe.top_k", top_k),
    INT("moe.hidden_dim", expert_hidden),
    CHOICE("moe.score_func", score_func, "sigmoid|softmax"),
    BOOL("moe.route_norm", route_norm),
    DOUBLE("moe.route_scale", route_scale, 0),
    BOOL("moe.score_before_experts", score_before_experts),
    DOUBLE("moe.load_balance_coeff", load_balance_coeff, (double)NAN),
    BOOL("moe.auto_scale_hidden_dim", auto_scale_hidden_dim),
};
const int32_t mx8i_config_field_count = (int32_t)(sizeof mx8i_config_fields / sizeof mx8i_config_fields[0]);

int32_t mx8i_find_choice(const char *choices, const char *name) {
    size_t length = strlen(name);
    int32_t number = 0;
    for (const char *at = choices;; number++) {
        size_t n = strcspn(at, "|");
        if (n == length && !memcmp(at, name, n)) return number;
        if (!at[n]) return -1;
        at += n + 1;
    }
}

static json_t *make_choice(const char *choices, int32_t number) {
    while (number-- > 0) choices += strcspn(choices, "|") + 1;
    return json_stringn(choices, strcspn(choices, "|"));
}

static json_t *make_value(const struct mx8_model_config *c, const struct mx8_config_field *f) {
    const void *at = (const char *)c + f->at;
    switch (f->type) {
    case MX8_FIELD_INT64:
        return json_integer(*(const int64_t *)at);
    case MX8_FIELD_BOOL:
        return json_boolean(*(const int32_t *)at);
    case MX8_FIELD_CHOICE:
        return make_choice(f->choices, *(const int32_t *)at);
    case MX8_FIELD_TEXT:
        return json_string(at);
    case MX8_FIELD_DOUBLE:
        break;
    }
    double value = *(const double *)at;
    return isnan(value) ? json_null() : json_real(value); /* JSON has no NaN, which means "none" here */
}

char *mx8i_format_config(const struct mx8_model_config *c) {
    json_t *object = json_object();
    int failed = !object || json_object_set_new(object, "model.flavor", json_string(c->flavor));
    for (int32_t i = 0; i < mx8i_config_field_count && !failed; i++) {
        failed = json_object_set_new(object, mx8i_config_fields[i].key, make_value(c, &mx8i_config_fields[i]));
    }
    char *dumped = failed ? NULL : json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17));
    char *text = dumped ? mx8i_copy_text(dumped) : NULL;
    free(dumped);
    json_decref(object);
    return text;
}

static enum mx8_status set_value(
    const char *where, const struct mx8_config_field *f, const json_t *value, struct mx8_model_config *c) {
    void *at = (char *)c + f->at;
    const char *text = json_string_value(value);
    if (f->type == MX8_FIELD_INT64 && json_is_integer(value)) {
        *(int64_t *)at = json_integer_value(value);
    } else if (f->type == MX8_FIELD_BOOL && json_is_boolean(value)) {
        *(int32_t *)at = json_is_true(value);
    } else if (f->type == MX8_FIELD_DOUBLE && (json_is_number(value) || json_is_null(value))) {
        *(double *)at = json_is_null(value) ? f->none : json_number_value(value);
    } else if (f->type == MX8_FIELD_CHOICE && text && mx8i_find_choice(f->choices, text) >= 0) {
        *(int32_t *)at = mx8i_find_choice(f->choices, text);
    } else if (f->type == MX8_FIELD_TEXT && text && strlen(text) < f->size) {
        memcpy(at, text, strlen(text) + 1);
    } else {
        char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        enum mx8_status status =
            MX8_FAIL(MX8_FORMAT_ERROR, "%s: \"%s\" is %.60s, expected %s", where, f->key, shown ? shown : "?",
                f->choices                  ? f->choices
                : f->type == MX8_FIELD_TEXT ? "a short text"
                                            : "a number");
        free(shown);
        return status;
    }
    return MX8_OK;
}

static enum mx8_status set_values(const char *where, json_t *object, struct mx8_model_config *out) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        int32_t i = 0;
        if (!strcmp(key, "model.flavor") && json_is_string(value)) {
            snprintf(out->flavor, sizeof out->flavor, "%s", json_string_value(value));
            continue;
        }
        while (i < mx8i_config_field_count && strcmp(mx8i_config_fields[i].key, key)) i++;
        if (i == mx8i_config_field_count)
            return MX8_FAIL(
                MX8_UNSUPPORTED, "%s: the architecture has \"%s\", which this mx8 does not know", where, key);
        MX8_TRY(set_value(where, &mx8i_config_fields[i], value, out));
    }
    enum mx8_status status = mx8i_check_config(out);
    return status == MX8_OK ? status : mx8i_fail_prefix(status, "%s", where);
}

enum mx8_status mx8i_parse_config(const char *where, const char *text, struct mx8_model_config *out) {
    json_error_t error;
    *out = (struct mx8_model_config){0};
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) {
        json_decref(object);
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: the architecture is no JSON object: %s", where, error.text);
    }
    enum mx8_status status = set_values(where, object, out);
    json_decref(object);
    return status;
}
