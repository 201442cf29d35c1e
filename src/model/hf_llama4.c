/* The keys of Llama 4's config.json that are lists of layers: which have RoPE, which see chunks, which are MoE. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "model/hf_private.h"

/* Chunk of attention for layers that see everything: longer than any sequence. */
static const int64_t no_chunk = INT32_MAX;

static int64_t get_integer(const json_t *object, const char *key, int64_t otherwise) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? (int64_t)json_number_value(value) : otherwise;
}

/* A list with an item for every layer; NULL when the key is absent, null or empty. */
static enum mx8_status find_list(
    const char *where, const json_t *object, const char *key, int64_t n_layers, const json_t **out) {
    *out = json_object_get(object, key);
    if (!*out || json_is_null(*out) || (json_is_array(*out) && !json_array_size(*out))) {
        *out = NULL;
    } else if (!json_is_array(*out) || json_array_size(*out) != (size_t)n_layers) {
        return MX8_FAIL(
            MX8_FORMAT_ERROR, "%s: \"%s\" is no list of %lld items, one a layer", where, key, (long long)n_layers);
    }
    return MX8_OK;
}

static int reads_rope(const json_t *list, int64_t interval, int64_t layer) {
    if (list) return json_integer_value(json_array_get(list, (size_t)layer)) != 0;
    return interval < 1 || (layer + 1) % interval != 0;
}

/* The period and the phase of the layers without RoPE. */
static enum mx8_status read_rope_layers(const char *where, const json_t *object, struct mx8_model_config *c) {
    const json_t *list;
    const int64_t L = c->n_layers, interval = get_integer(object, "no_rope_layer_interval", 4);
    int64_t first = -1, second = -1;
    MX8_TRY(find_list(where, object, "no_rope_layers", L, &list));
    for (int64_t i = 0; i < L; i++) {
        if (reads_rope(list, interval, i)) continue;
        if (first < 0)
            first = i;
        else if (second < 0)
            second = i;
    }
    /* One period longer than the model: a single layer, or none at all. */
    c->every_n_layers_nope = second >= 0 ? second - first : L + 1;
    c->nope_layer_offset =
        first < 0 ? 1 : (c->every_n_layers_nope - first % c->every_n_layers_nope) % c->every_n_layers_nope;
    for (int64_t i = 0; i < L; i++) {
        if (c->every_n_layers_nope > 1 && mx8i_uses_rope(c, i) == reads_rope(list, interval, i)) continue;
        return MX8_FAIL(MX8_UNSUPPORTED,
            "%s: \"no_rope_layers\" leaves layer %lld out of a period of %lld from layer %lld on, expected every n-th "
            "layer "
            "without RoPE, n more than 1",
            where, (long long)i, (long long)c->every_n_layers_nope, (long long)first);
    }
    return MX8_OK;
}

static enum mx8_status read_chunks(const char *where, const json_t *object, struct mx8_model_config *c) {
    const json_t *list, *chunk = json_object_get(object, "attention_chunk_size");
    int64_t chunked = 0, full = 0;
    MX8_TRY(find_list(where, object, "layer_types", c->n_layers, &list));
    for (int64_t i = 0; i < c->n_layers; i++) {
        const char *type = list ? json_string_value(json_array_get(list, (size_t)i)) : NULL;
        const int rope = mx8i_uses_rope(c, i);
        if (!list) type = rope ? "chunked_attention" : "full_attention";
        const int in_chunks = type && !strcmp(type, "chunked_attention");
        if (!type || (!in_chunks && strcmp(type, "full_attention")) || (in_chunks && !rope))
            return MX8_FAIL(MX8_UNSUPPORTED,
                "%s: \"layer_types\" of layer %lld is \"%s\", expected full_attention, or chunked_attention of a layer "
                "with "
                "RoPE",
                where, (long long)i, type ? type : "?");
        if (rope) in_chunks ? chunked++ : full++;
    }
    if (chunked && full)
        return MX8_FAIL(MX8_UNSUPPORTED,
            "%s: \"layer_types\" has layers with RoPE of both kinds, expected chunked_attention for all or none",
            where);
    c->fixed_attn_block_size =
        full || json_is_null(chunk) ? no_chunk : get_integer(object, "attention_chunk_size", 8192);
    return MX8_OK;
}

static int lists_layer(const json_t *list, int64_t layer) {
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) {
        if (json_integer_value(item) == layer) return 1;
    }
    return 0;
}

static enum mx8_status read_moe_layers(const char *where, const json_t *object, struct mx8_model_config *c) {
    const json_t *list = json_object_get(object, "moe_layers");
    c->interleave_moe_layer_step = get_integer(object, "interleave_moe_layer_step", 1);
    if (!list || json_is_null(list)) return MX8_OK;
    if (!json_is_array(list)) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: \"moe_layers\" is no list", where);
    int64_t differ = c->interleave_moe_layer_step < 1;
    for (int64_t i = 0; i < c->n_layers && !differ; i++) differ = mx8i_is_moe_layer(c, i) != lists_layer(list, i);
    if (!differ) return MX8_OK;
    size_t used = 0;
    c->interleave_moe_layer_step = 1;
    for (int64_t i = 0; i < c->n_layers; i++) {
        if (lists_layer(list, i)) continue;
        used += (size_t)snprintf(
            c->dense_layers + used, sizeof c->dense_layers - used, used ? ",%lld" : "%lld", (long long)i);
        if (used >= sizeof c->dense_layers)
            return MX8_FAIL(MX8_UNSUPPORTED, "%s: \"moe_layers\" leaves out more layers than mx8 can list", where);
    }
    return MX8_OK;
}

static int is_true(const json_t *value, int otherwise) {
    if (json_is_boolean(value)) return json_is_true(value);
    return json_is_number(value) ? json_number_value(value) != 0 : value ? 0 : otherwise;
}

enum mx8_status mx8i_read_llama4(const char *where, const json_t *object, struct mx8_model_config *c) {
    const json_t *scale = json_object_get(object, "attn_scale");
    MX8_TRY(mx8i_read_hf_rope(where, object, 500000, c));
    MX8_TRY(read_rope_layers(where, object, c));
    MX8_TRY(read_chunks(where, object, c));
    MX8_TRY(read_moe_layers(where, object, c));
    c->qk_norm = is_true(json_object_get(object, "use_qk_norm"), 1) ? MX8_QK_NORM_L2 : MX8_QK_NORM_NONE;
    c->attn_temperature = json_is_number(scale) ? json_number_value(scale) : 0.1;
    if (!is_true(json_object_get(object, "attn_temperature_tuning"), 1)) c->attn_temperature = 0;
    c->attn_temperature_floor = get_integer(object, "floor_scale", 8192);
    return MX8_OK;
}

int mx8i_write_llama4(json_t *object, const struct mx8_model_config *c) {
    const int chunked = c->every_n_layers_nope && c->fixed_attn_block_size < no_chunk;
    json_t *rope = json_array(), *types = json_array(), *moe = json_array();
    int failed = json_object_set_new(object, "no_rope_layers", rope) |
                 json_object_set_new(object, "layer_types", types) | json_object_set_new(object, "moe_layers", moe);
    for (int64_t i = 0; i < c->n_layers && !failed; i++) {
        const int turns = mx8i_uses_rope(c, i);
        failed = json_array_append_new(rope, json_integer(turns)) |
                 json_array_append_new(types, json_string(chunked && turns ? "chunked_attention" : "full_attention"));
        if (mx8i_is_moe_layer(c, i)) failed |= json_array_append_new(moe, json_integer(i));
    }
    return failed | mx8i_write_hf_rope(object, c) |
           json_object_set_new(object, "interleave_moe_layer_step", json_integer(c->interleave_moe_layer_step)) |
           json_object_set_new(
               object, "attention_chunk_size", json_integer(chunked ? c->fixed_attn_block_size : 8192)) |
           json_object_set_new(object, "use_qk_norm", json_boolean(c->qk_norm == MX8_QK_NORM_L2)) |
           json_object_set_new(object, "attn_temperature_tuning", json_boolean(c->attn_temperature > 0)) |
           json_object_set_new(object, "attn_scale", json_real(c->attn_temperature > 0 ? c->attn_temperature : 0.1)) |
           json_object_set_new(object, "floor_scale", json_integer(c->attn_temperature_floor));
}
