/* config.json of the families: a table of keys each, a few keys that need thought, and nothing read over in silence
 * that would change what a model computes. Writing is checked by reading back: what a family cannot say is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "model/hf_private.h"

#define AT(field) offsetof(struct mx8_model_config, field)
#define NEEDED    ((double)NAN)
#define INT(key, field, otherwise)                                                                                     \
    { key, MX8_HF_INT, AT(field), otherwise, NULL }
#define REAL(key, field, otherwise)                                                                                    \
    { key, MX8_HF_REAL, AT(field), otherwise, NULL }
#define BOOL(key, field, otherwise)                                                                                    \
    { key, MX8_HF_BOOL, AT(field), otherwise, NULL }
#define FIXED(key, value)                                                                                              \
    { key, MX8_HF_FIXED, 0, 0, value }
#define SPECIAL(key)                                                                                                   \
    { key, MX8_HF_SPECIAL, 0, 0, NULL }
#define IDLE(key)                                                                                                      \
    { key, MX8_HF_IDLE, 0, 0, NULL }

#define EVERY_FAMILY                                                                                                   \
    INT("vocab_size", vocab_size, NEEDED), INT("hidden_size", dim, NEEDED),                                            \
        INT("num_hidden_layers", n_layers, NEEDED), INT("num_attention_heads", n_heads, NEEDED),                       \
        INT("num_key_value_heads", n_kv_heads, 0), INT("num_experts_per_tok", top_k, NEEDED),                          \
        FIXED("hidden_act", "\"silu\""), FIXED("tie_word_embeddings", "false"), FIXED("attention_bias", "false"),      \
        FIXED("attention_dropout", "0.0"), SPECIAL("rope_theta"), SPECIAL("rope_scaling"), SPECIAL("rope_parameters")

/* Beside every family's own keys: what the format, generation and losses that are not computed here keep there. */
static const struct mx8_hf_key common_keys[] = {SPECIAL("architectures"), SPECIAL("model_type"), SPECIAL("torch_dtype"),
    SPECIAL("dtype"), SPECIAL("transformers_version"), IDLE("bos_token_id"), IDLE("eos_token_id"), IDLE("pad_token_id"),
    IDLE("max_position_embeddings"), IDLE("initializer_range"), IDLE("use_cache"), IDLE("output_router_logits"),
    IDLE("router_aux_loss_coef"), IDLE("router_jitter_noise"), IDLE("max_window_layers"), IDLE("_name_or_path"),
    IDLE("attn_implementation"), IDLE("_attn_implementation_autoset"), IDLE("for_llm_compressor"),
    IDLE("cache_implementation"), FIXED("quantization_config", "null"), {.key = NULL}};

const struct mx8_hf_key mx8i_llama4_keys[] = {EVERY_FAMILY, INT("intermediate_size", expert_hidden, NEEDED),
    INT("intermediate_size_mlp", dense_hidden, 16384), INT("head_dim", head_dim, 128),
    REAL("rms_norm_eps", norm_eps, 1e-5), INT("num_local_experts", num_experts, NEEDED),
    SPECIAL("interleave_moe_layer_step"), SPECIAL("moe_layers"), SPECIAL("use_qk_norm"), SPECIAL("no_rope_layers"),
    SPECIAL("no_rope_layer_interval"), SPECIAL("attention_chunk_size"), SPECIAL("layer_types"),
    SPECIAL("attn_temperature_tuning"), SPECIAL("attn_scale"), SPECIAL("floor_scale"), {.key = NULL}};

const struct mx8_hf_key mx8i_qwen3_keys[] = {EVERY_FAMILY, INT("moe_intermediate_size", expert_hidden, NEEDED),
    INT("intermediate_size", dense_hidden, NEEDED), INT("head_dim", head_dim, 0), REAL("rms_norm_eps", norm_eps, 1e-6),
    INT("num_experts", num_experts, NEEDED), BOOL("norm_topk_prob", route_norm, 0),
    INT("decoder_sparse_step", interleave_moe_layer_step, 1), SPECIAL("mlp_only_layers"),
    FIXED("use_sliding_window", "false"), IDLE("sliding_window"), {.key = NULL}};

const struct mx8_hf_key mx8i_olmoe_keys[] = {EVERY_FAMILY, INT("intermediate_size", expert_hidden, NEEDED),
    REAL("rms_norm_eps", norm_eps, 1e-5), INT("num_experts", num_experts, NEEDED),
    BOOL("norm_topk_prob", route_norm, 0), REAL("clip_qkv", clip_qkv, 0), {.key = NULL}};

const struct mx8_hf_key mx8i_mixtral_keys[] = {EVERY_FAMILY, INT("intermediate_size", expert_hidden, NEEDED),
    INT("head_dim", head_dim, 0), REAL("rms_norm_eps", norm_eps, 1e-5), INT("num_local_experts", num_experts, NEEDED),
    FIXED("sliding_window", "null"), {.key = NULL}};

/* ---- RoPE: older files have rope_theta and rope_scaling, newer ones rope_parameters with both ---- */

static enum mx8_status need_number(const char *where, const json_t *object, const char *key, double *out) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: rope scaling has no number \"%s\"", where, key);
    *out = json_number_value(value);
    return MX8_OK;
}

enum mx8_status mx8i_read_hf_rope(const char *where, const json_t *object, double theta, struct mx8_model_config *c) {
    const json_t *both = json_object_get(object, "rope_parameters"), *scaling = json_object_get(object, "rope_scaling");
    const json_t *value = json_object_get(object, "rope_theta");
    if (!value) value = json_object_get(both, "rope_theta");
    if (!json_is_object(scaling)) scaling = both;
    c->rope_theta = json_is_number(value) ? json_number_value(value) : theta;
    const json_t *type = json_object_get(scaling, "rope_type");
    const char *name = json_string_value(type ? type : json_object_get(scaling, "type"));
    if (!json_is_object(scaling) || (name && !strcmp(name, "default"))) return MX8_OK;
    if (!name || strcmp(name, "llama3"))
        return MX8_FAIL(
            MX8_UNSUPPORTED, "%s: RoPE scaling of type \"%s\", expected default or llama3", where, name ? name : "?");
    double length = 0;
    MX8_TRY(need_number(where, scaling, "factor", &c->rope_factor));
    MX8_TRY(need_number(where, scaling, "low_freq_factor", &c->rope_low_freq));
    MX8_TRY(need_number(where, scaling, "high_freq_factor", &c->rope_high_freq));
    MX8_TRY(need_number(where, scaling, "original_max_position_embeddings", &length));
    c->rope_original_len = (int64_t)length;
    return MX8_OK;
}

int mx8i_write_hf_rope(json_t *object, const struct mx8_model_config *c) {
    int failed = json_object_set_new(object, "rope_theta", json_real(c->rope_theta));
    if (c->rope_factor == 0) return failed | json_object_set_new(object, "rope_scaling", json_null());
    return failed | json_object_set_new(object, "rope_scaling",
                        json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", c->rope_factor,
                            "low_freq_factor", c->rope_low_freq, "high_freq_factor", c->rope_high_freq,
                            "original_max_position_embeddings", (json_int_t)c->rope_original_len));
}

/* ---- families without lists of their own but one ---- */

enum mx8_status mx8i_read_qwen3(const char *where, const json_t *object, struct mx8_model_config *c) {
    const json_t *list = json_object_get(object, "mlp_only_layers");
    size_t used = 0, i;
    json_t *item;
    json_array_foreach(list, i, item) {
        used += (size_t)snprintf(c->dense_layers + used, sizeof c->dense_layers - used, used ? ",%lld" : "%lld",
            (long long)json_integer_value(item));
        if (!json_is_integer(item) || used >= sizeof c->dense_layers)
            return MX8_FAIL(MX8_UNSUPPORTED, "%s: \"mlp_only_layers\" is no list of layers, or too long a one", where);
    }
    return mx8i_read_hf_rope(where, object, 10000, c);
}

int mx8i_write_qwen3(json_t *object, const struct mx8_model_config *c) {
    json_t *list = json_array();
    int failed = json_object_set_new(object, "mlp_only_layers", list) | mx8i_write_hf_rope(object, c);
    for (const char *at = c->dense_layers; *at && !failed;) {
        char *end;
        failed = json_array_append_new(list, json_integer(strtoll(at, &end, 10)));
        at = *end ? end + 1 : end;
    }
    return failed;
}

enum mx8_status mx8i_read_olmoe(const char *where, const json_t *object, struct mx8_model_config *c) {
    return mx8i_read_hf_rope(where, object, 10000, c);
}

int mx8i_write_olmoe(json_t *object, const struct mx8_model_config *c) {
    return mx8i_write_hf_rope(object, c);
}

enum mx8_status mx8i_read_mixtral(const char *where, const json_t *object, struct mx8_model_config *c) {
    return mx8i_read_hf_rope(where, object, 1e6, c);
}

int mx8i_write_mixtral(json_t *object, const struct mx8_model_config *c) {
    return mx8i_write_hf_rope(object, c);
}

/* ---- reading ---- */

static const struct mx8_hf_key *find_key(const struct mx8_hf_key *table, const char *key) {
    for (; table->key; table++) {
        if (!strcmp(table->key, key)) return table;
    }
    return NULL;
}

static enum mx8_status complain(
    enum mx8_status status, const char *where, const char *key, const json_t *value, const char *expected) {
    char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    status = MX8_FAIL(status, "%s: \"%s\" is %.80s, expected %s", where, key, shown ? shown : "?", expected);
    free(shown);
    return status;
}

/* Equal as numbers (0 and 0.0), or as JSON. null and false are one: absent. */
static int is_same(const json_t *value, const char *fixed) {
    json_t *want = json_loads(fixed, JSON_DECODE_ANY, NULL);
    int same = json_equal(value, want);
    if (json_is_number(value) && json_is_number(want)) same = json_number_value(value) == json_number_value(want);
    if (json_is_null(value) && (json_is_false(want) || json_is_number(want))) same = 1;
    json_decref(want);
    return same;
}

static enum mx8_status set_field(
    const char *where, const struct mx8_hf_key *k, const json_t *value, struct mx8_model_config *c) {
    void *field = (char *)c + k->at;
    const int absent = !value || json_is_null(value);
    if (absent && isnan(k->otherwise)) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: \"%s\" is missing", where, k->key);
    if (k->kind == MX8_HF_BOOL) {
        if (!absent && !json_is_boolean(value))
            return complain(MX8_FORMAT_ERROR, where, k->key, value, "true or false");
        *(int32_t *)field = absent ? k->otherwise != 0 : json_is_true(value);
    } else if (k->kind == MX8_HF_INT) {
        if (!absent && !json_is_integer(value))
            return complain(MX8_FORMAT_ERROR, where, k->key, value, "a whole number");
        *(int64_t *)field = absent ? (int64_t)k->otherwise : json_integer_value(value);
    } else {
        if (!absent && !json_is_number(value)) return complain(MX8_FORMAT_ERROR, where, k->key, value, "a number");
        *(double *)field = absent ? k->otherwise : json_number_value(value);
    }
    return MX8_OK;
}

/* Every key is known, and is nothing but what it must be; the idle ones are kept. */
static enum mx8_status check_keys(const char *where, json_t *object, const struct mx8_hf_family *f, json_t *idle) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        const struct mx8_hf_key *k = find_key(f->key, key);
        if (!k) k = find_key(common_keys, key);
        if (!k && (json_is_null(value) || json_is_false(value))) continue; /* a feature that is off */
        if (!k)
            return complain(MX8_UNSUPPORTED, where, key, value,
                "a key that mx8 knows; take it out if it does not change what the model computes");
        if (k->kind == MX8_HF_FIXED && !is_same(value, k->fixed))
            return complain(MX8_UNSUPPORTED, where, key, value, k->fixed);
        if (k->kind == MX8_HF_IDLE && json_object_set(idle, key, value)) return MX8_OUT_OF_MEMORY;
    }
    return MX8_OK;
}

static enum mx8_status read_keys(
    const char *where, json_t *object, const struct mx8_hf_family *f, struct mx8_hf_config *out) {
    json_t *idle = json_object();
    enum mx8_status status = idle ? check_keys(where, object, f, idle) : MX8_OUT_OF_MEMORY;
    out->config = f->base;
    snprintf(out->config.flavor, sizeof out->config.flavor, "%s", f->name);
    for (const struct mx8_hf_key *k = f->key; k->key && status == MX8_OK; k++) {
        if (k->kind <= MX8_HF_BOOL) status = set_field(where, k, json_object_get(object, k->key), &out->config);
    }
    if (out->config.n_kv_heads == 0) out->config.n_kv_heads = out->config.n_heads;
    if (!out->config.dense_hidden) out->config.dense_hidden = out->config.expert_hidden; /* no dense layers */
    if (status == MX8_OK && (out->config.n_layers < 1 || out->config.n_layers > 100000))
        status =
            MX8_FAIL(MX8_FORMAT_ERROR, "%s: \"num_hidden_layers\" is %lld", where, (long long)out->config.n_layers);
    if (status == MX8_OK) status = f->read(where, object, &out->config);
    if (status == MX8_OK) {
        status = mx8i_check_config(&out->config);
        if (status != MX8_OK) status = mx8i_fail_prefix(status, "%s", where);
    }
    char *text = status == MX8_OK ? json_dumps(idle, JSON_COMPACT) : NULL;
    out->idle = text ? mx8i_copy_text(text) : NULL;
    free(text);
    json_decref(idle);
    return status == MX8_OK && !out->idle ? MX8_OUT_OF_MEMORY : status;
}

static enum mx8_status read_object(const char *where, json_t *object, struct mx8_hf_config *out) {
    const json_t *names = json_object_get(object, "architectures");
    const char *name = json_string_value(json_is_array(names) ? json_array_get(names, 0) : NULL);
    out->prefix = "";
    /* Llama 4 as published: the text model inside one that sees images too, which are left out. */
    if (name && !strcmp(name, "Llama4ForConditionalGeneration") &&
        json_is_object(json_object_get(object, "text_config"))) {
        out->prefix = "language_model.";
        out->family = mx8i_find_hf_family("llama4");
        return read_keys(where, json_object_get(object, "text_config"), out->family, out);
    }
    out->family = name ? mx8i_find_hf_family(name) : NULL;
    if (!out->family)
        return MX8_FAIL(MX8_UNSUPPORTED,
            "%s: \"architectures\" is %s%s%s, expected one of Llama4ForCausalLM, Llama4ForConditionalGeneration, "
            "Qwen3MoeForCausalLM, OlmoeForCausalLM, MixtralForCausalLM",
            where, name ? "\"" : "", name ? name : "missing", name ? "\"" : "");
    return read_keys(where, object, out->family, out);
}

enum mx8_status mx8i_read_hf_config(const char *where, const char *text, struct mx8_hf_config *out) {
    json_error_t error;
    *out = (struct mx8_hf_config){.prefix = ""};
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) {
        json_decref(object);
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: no JSON object: %s (line %d)", where, error.text, error.line);
    }
    enum mx8_status status = read_object(where, object, out);
    json_decref(object);
    return status;
}

/* ---- writing ---- */

static json_t *make_field(const struct mx8_hf_key *k, const struct mx8_model_config *c) {
    const void *field = (const char *)c + k->at;
    if (k->kind == MX8_HF_BOOL) return json_boolean(*(const int32_t *)field);
    if (k->kind == MX8_HF_INT) return json_integer(*(const int64_t *)field);
    const double value = *(const double *)field;
    return value == 0 && k->otherwise == 0 ? json_null() : json_real(value); /* clip_qkv: off is null */
}

static json_t *make_object(
    const struct mx8_hf_family *f, const struct mx8_model_config *c, int32_t dtype, const char *idle) {
    json_t *object = json_object(), *kept = idle ? json_loads(idle, 0, NULL) : NULL;
    int failed = !object || json_object_set_new(object, "architectures", json_pack("[s]", f->architecture)) ||
                 json_object_set_new(object, "model_type", json_string(f->model_type)) ||
                 json_object_set_new(object, "torch_dtype", json_string(dtype == MX8_BF16 ? "bfloat16" : "float32"));
    for (const struct mx8_hf_key *k = f->key; k->key && !failed; k++) {
        if (k->kind == MX8_HF_FIXED)
            failed = json_object_set_new(object, k->key, json_loads(k->fixed, JSON_DECODE_ANY, NULL));
        if (k->kind <= MX8_HF_BOOL) failed = json_object_set_new(object, k->key, make_field(k, c));
    }
    if (!failed) failed = f->write(object, c) || (kept && json_object_update_missing(object, kept));
    json_decref(kept);
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

/* The configuration in one form of many: sizes written out, what follows from the layers' own answers set aside, and
 * what matters to training alone. */
static struct mx8_model_config make_plain(const struct mx8_model_config *c) {
    struct mx8_model_config p = *c;
    int64_t dense = 0, bare = 0;
    for (int64_t i = 0; i < c->n_layers; i++) {
        dense += !mx8i_is_moe_layer(c, i);
        bare += !mx8i_uses_rope(c, i);
    }
    p.head_dim = mx8i_get_head_dim(c);
    p.dense_hidden = dense ? mx8i_get_dense_hidden(c) : 0;
    p.expert_hidden = dense < c->n_layers ? mx8i_get_expert_hidden(c) : 0;
    if (!c->every_n_layers_nope) p.fixed_attn_block_size = 0;
    if (p.fixed_attn_block_size >= INT32_MAX) p.fixed_attn_block_size = 0;
    if (!bare) p.attn_temperature = 0;
    if (p.attn_temperature == 0) p.attn_temperature_floor = 0;
    if (p.rope_factor == 0) p.rope_low_freq = p.rope_high_freq = 0, p.rope_original_len = 0;
    if (p.qk_norm == MX8_QK_NORM_L2 && bare == c->n_layers) p.qk_norm = MX8_QK_NORM_NONE;
    p.multiple_of = p.interleave_moe_layer_step = p.every_n_layers_nope = p.nope_layer_offset = 0;
    p.ffn_dim_multiplier = p.load_balance_coeff = 0;
    p.depth_init = p.auto_scale_hidden_dim = p.attn_mask = 0;
    p.dense_layers[0] = 0;
    return p;
}

static int is_same_field(const struct mx8_config_field *f, const void *a, const void *b) {
    switch (f->type) {
    case MX8_FIELD_INT64:
        return *(const int64_t *)a == *(const int64_t *)b;
    case MX8_FIELD_DOUBLE:
        return *(const double *)a == *(const double *)b;
    case MX8_FIELD_TEXT:
        return !strcmp(a, b);
    case MX8_FIELD_BOOL:
    case MX8_FIELD_CHOICE:
        break;
    }
    return *(const int32_t *)a == *(const int32_t *)b;
}

static char *format_field(const struct mx8_config_field *f, const void *at) {
    if (f->type == MX8_FIELD_INT64) return mx8i_format_text("%lld", (long long)*(const int64_t *)at);
    if (f->type == MX8_FIELD_DOUBLE) return mx8i_format_text("%g", *(const double *)at);
    if (f->type == MX8_FIELD_TEXT) return mx8i_copy_text(at);
    if (f->type == MX8_FIELD_BOOL) return mx8i_copy_text(*(const int32_t *)at ? "true" : "false");
    const char *choice = f->choices;
    for (int32_t n = *(const int32_t *)at; n > 0; n--) choice += strcspn(choice, "|") + 1;
    return mx8i_format_text("%.*s", (int)strcspn(choice, "|"), choice);
}

static enum mx8_status report_field(const char *where, const struct mx8_config_field *f, const void *a, const void *b) {
    char *ours = format_field(f, a), *theirs = format_field(f, b);
    enum mx8_status status = MX8_FAIL(MX8_UNSUPPORTED, "%s: %s is %s for one and %s for the other", where, f->key,
        ours ? ours : "?", theirs ? theirs : "?");
    mx8i_release(ours);
    mx8i_release(theirs);
    return status;
}

enum mx8_status mx8i_compare_configs(
    const char *where, const struct mx8_model_config *a, const struct mx8_model_config *b) {
    const struct mx8_model_config x = make_plain(a), y = make_plain(b);
    for (int32_t i = 0; i < mx8i_config_field_count; i++) {
        const struct mx8_config_field *field = &mx8i_config_fields[i];
        const void *ours = (const char *)&x + field->at, *theirs = (const char *)&y + field->at;
        if (!is_same_field(field, ours, theirs)) return report_field(where, field, ours, theirs);
    }
    for (int64_t i = 0; i < a->n_layers; i++) {
        const int rope = mx8i_uses_rope(a, i) != mx8i_uses_rope(b, i);
        if (rope || mx8i_is_moe_layer(a, i) != mx8i_is_moe_layer(b, i))
            return MX8_FAIL(MX8_UNSUPPORTED, "%s: layer %lld is %s for one and not for the other", where, (long long)i,
                rope ? "without RoPE" : "dense");
    }
    return MX8_OK;
}

enum mx8_status mx8i_write_hf_config(
    const struct mx8_hf_family *f, const struct mx8_model_config *c, int32_t dtype, const char *idle, char **text) {
    *text = NULL;
    struct mx8_model_config plain = *c;
    plain.head_dim = mx8i_get_head_dim(c);
    plain.dense_hidden = mx8i_get_dense_hidden(c);
    plain.expert_hidden = mx8i_get_expert_hidden(c);
    json_t *object = make_object(f, &plain, dtype, idle);
    char *dumped = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
    json_decref(object);
    if (!dumped) return MX8_FAIL(MX8_OUT_OF_MEMORY, "config.json: no memory");
    struct mx8_hf_config back;
    enum mx8_status status = mx8i_read_hf_config("config.json", dumped, &back);
    if (status == MX8_OK) status = mx8i_compare_configs("this model and what config.json can say", c, &back.config);
    if (status != MX8_OK) status = mx8i_fail_prefix(status, "%s", f->architecture);
    mx8i_release(back.idle);
    if (status == MX8_OK && !(*text = mx8i_copy_text(dumped))) status = MX8_OUT_OF_MEMORY;
    free(dumped);
    return status;
}

enum mx8_status mx8i_guess_hf_family(const struct mx8_model_config *c, const struct mx8_hf_family **out) {
    for (int32_t i = 0; mx8i_hf_families[i]; i++) {
        char *text;
        if (mx8i_write_hf_config(mx8i_hf_families[i], c, MX8_F32, NULL, &text) != MX8_OK) continue;
        mx8i_release(text);
        *out = mx8i_hf_families[i];
        return MX8_OK;
    }
    return MX8_FAIL(MX8_UNSUPPORTED,
        "none of %s can hold this architecture (mx8 convert --architecture NAME says what "
        "one of them lacks)",
        mx8i_list_hf_families());
}
