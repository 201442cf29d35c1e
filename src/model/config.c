/* Checks of a configuration, and the sizes and counts that follow from it. */
#include <math.h>
#include <stdlib.h>
#include "model/config.h"
#include "base/error.h"

/* Far above any model, far below what 64-bit products of two sizes could overflow at. */
#define LARGEST_SIZE (INT64_C(1) << 31)

static enum mx8_status check_sizes(const struct mx8_model_config *c) {
    const struct {
        const char *name;
        int64_t value, least;
    } sizes[] = {
        {"model.dim", c->dim, 1},
        {"model.n_layers", c->n_layers, 1},
        {"model.n_heads", c->n_heads, 1},
        {"model.n_kv_heads", c->n_kv_heads, 1},
        {"model.vocab_size", c->vocab_size, 1},
        {"model.multiple_of", c->multiple_of, 1},
        {"model.interleave_moe_layer_step", c->interleave_moe_layer_step, 1},
        {"model.every_n_layers_nope", c->every_n_layers_nope, 0},
        {"model.nope_layer_offset", c->nope_layer_offset, 0},
        {"model.head_dim", c->head_dim, 0},
        {"model.hidden_dim", c->dense_hidden, 0},
        {"moe.hidden_dim", c->expert_hidden, 0},
        {"moe.num_experts", c->num_experts, 1},
        {"moe.num_shared_experts", c->num_shared_experts, 0},
        {"moe.top_k", c->top_k, 1},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < sizes[i].least || sizes[i].value >= LARGEST_SIZE) {
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s is %lld, expected %lld to %lld", sizes[i].name,
                (long long)sizes[i].value, (long long)sizes[i].least, (long long)LARGEST_SIZE - 1);
        }
    }
    return MX8_OK;
}

static enum mx8_status check_heads(const struct mx8_model_config *c) {
    if (!c->head_dim && c->dim % c->n_heads) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "model.n_heads is %lld, expected a divisor of model.dim = %lld",
            (long long)c->n_heads, (long long)c->dim);
    }
    if (c->n_heads % c->n_kv_heads) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "model.n_kv_heads is %lld, expected a divisor of model.n_heads = %lld",
            (long long)c->n_kv_heads, (long long)c->n_heads);
    }
    if (mx8i_get_head_dim(c) % 2) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s is %lld, expected an even number (RoPE turns pairs)",
            c->head_dim ? "model.head_dim" : "model.dim / model.n_heads", (long long)mx8i_get_head_dim(c));
    }
    if (c->every_n_layers_nope == 1) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "model.every_n_layers_nope is 1, expected 0 (off) or more than 1");
    }
    if (c->every_n_layers_nope > 1 && c->fixed_attn_block_size < 1) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "model.fixed_attn_block_size is %lld, expected a positive number",
            (long long)c->fixed_attn_block_size);
    }
    return MX8_OK;
}

/* NaN fails every one of these. */
static enum mx8_status check_attention(const struct mx8_model_config *c) {
    if (c->qk_norm < MX8_QK_NORM_NONE || c->qk_norm > MX8_QK_NORM_PROJECTION) {
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "model.qk_norm is %d, expected none, l2, head or projection", (int)c->qk_norm);
    }
    if (!(c->clip_qkv >= 0) || isinf(c->clip_qkv)) {
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "model.clip_qkv is %g, expected 0 (off) or a positive number", c->clip_qkv);
    }
    if (!(c->attn_temperature >= 0) || isinf(c->attn_temperature) ||
        (c->attn_temperature > 0 && c->attn_temperature_floor < 1)) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "model.attn_temperature_scale is %g and model.attn_temperature_floor %lld, expected 0 (off) or a positive "
            "number, and at least 1",
            c->attn_temperature, (long long)c->attn_temperature_floor);
    }
    if (c->rope_factor == 0) return MX8_OK;
    if (!(c->rope_factor >= 1) || isinf(c->rope_factor) || !(c->rope_low_freq > 0) ||
        !(c->rope_high_freq >= c->rope_low_freq) || isinf(c->rope_high_freq) || c->rope_original_len < 1) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "model.rope_scaling_factor is %g, rope_low_freq_factor %g, rope_high_freq_factor %g, rope_original_len "
            "%lld, "
            "expected a factor of at least 1, 0 < low <= high, and a positive length",
            c->rope_factor, c->rope_low_freq, c->rope_high_freq, (long long)c->rope_original_len);
    }
    return MX8_OK;
}

static enum mx8_status check_dense_layers(const struct mx8_model_config *c) {
    for (const char *at = c->dense_layers; *at;) {
        char *end;
        long long id = strtoll(at, &end, 10);
        if (end == at || id < 0 || id >= c->n_layers || (*end && *end != ',') || (*end && !end[1])) {
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "model.dense_layers is \"%s\", expected layers from 0 to %lld",
                c->dense_layers, (long long)c->n_layers - 1);
        }
        at = *end ? end + 1 : end;
    }
    return MX8_OK;
}

static enum mx8_status check_moe(const struct mx8_model_config *c) {
    if (c->top_k > c->num_experts) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "moe.top_k is %lld, expected at most moe.num_experts = %lld",
            (long long)c->top_k, (long long)c->num_experts);
    }
    if (!(c->route_scale > 0) || isinf(c->route_scale)) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "moe.route_scale is %g, expected a positive number", c->route_scale);
    }
    if (isinf(c->load_balance_coeff) || c->load_balance_coeff < 0) {
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "moe.load_balance_coeff is %g, expected 0 or more, or none", c->load_balance_coeff);
    }
    if (c->force_balance && c->route_norm) {
        return MX8_FAIL(MX8_UNSUPPORTED, "moe.force_balance is on together with moe.route_norm, expected one of them: "
                                         "forced routing does not normalise its weights");
    }
    return MX8_OK;
}

enum mx8_status mx8i_check_config(const struct mx8_model_config *c) {
    MX8_TRY(check_sizes(c));
    MX8_TRY(check_heads(c));
    MX8_TRY(check_attention(c));
    MX8_TRY(check_dense_layers(c));
    MX8_TRY(check_moe(c));
    if (!(c->norm_eps > 0) || !(c->rope_theta > 0)) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "model.norm_eps is %g and model.rope_theta %g, expected positive numbers",
            c->norm_eps, c->rope_theta);
    }
    if (!(c->ffn_dim_multiplier >= 0) || mx8i_get_dense_hidden(c) < 1 || mx8i_get_expert_hidden(c) < 1) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "model.ffn_dim_multiplier is %g, which leaves no feed-forward width",
            c->ffn_dim_multiplier);
    }
    return MX8_OK;
}

int mx8i_is_moe_layer(const struct mx8_model_config *c, int64_t layer) {
    for (const char *at = c->dense_layers; *at;) { /* a list that check_dense_layers has let through */
        char *end;
        if (strtoll(at, &end, 10) == layer || end == at) return 0;
        at = *end ? end + 1 : end;
    }
    return (layer + 1) % c->interleave_moe_layer_step == 0;
}

int mx8i_uses_rope(const struct mx8_model_config *c, int64_t layer) {
    return !c->every_n_layers_nope || (layer + c->nope_layer_offset) % c->every_n_layers_nope != 0;
}

int64_t mx8i_get_head_dim(const struct mx8_model_config *c) {
    return c->head_dim ? c->head_dim : c->dim / c->n_heads;
}

/* torchtitan: int(2 * 4 dim / 3), then int(multiplier * that). Truncation at each step is part of the recipe. */
static int64_t get_base_hidden(const struct mx8_model_config *c) {
    int64_t hidden = 8 * c->dim / 3;
    return c->ffn_dim_multiplier > 0 ? (int64_t)(c->ffn_dim_multiplier * (double)hidden) : hidden;
}

static int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

int64_t mx8i_get_dense_hidden(const struct mx8_model_config *c) {
    return c->dense_hidden ? c->dense_hidden : round_up(get_base_hidden(c), c->multiple_of);
}

int64_t mx8i_get_expert_hidden(const struct mx8_model_config *c) {
    if (c->expert_hidden) return c->expert_hidden;
    int64_t hidden = get_base_hidden(c);
    if (c->auto_scale_hidden_dim) hidden /= c->top_k + c->num_shared_experts;
    return round_up(hidden, c->multiple_of);
}

struct mx8_model_counts mx8i_count_model(const struct mx8_model_config *c, int64_t seq_len) {
    int64_t D = c->dim, head = mx8i_get_head_dim(c), F = mx8i_get_expert_hidden(c);
    int64_t embedding = c->vocab_size * D;
    int64_t attention = 2 * D * head * (c->n_heads + c->n_kv_heads);
    if (c->qk_norm == MX8_QK_NORM_HEAD) attention += 2 * head;
    if (c->qk_norm == MX8_QK_NORM_PROJECTION) attention += head * (c->n_heads + c->n_kv_heads);
    int64_t expert = 3 * D * F, always = c->num_experts * D + c->num_shared_experts * expert; /* router and shared */
    struct mx8_model_counts n = {.dense = 2 * embedding + D};
    int64_t active_sparse = 0;
    for (int64_t layer = 0; layer < c->n_layers; layer++) {
        n.dense += attention + 2 * D;
        if (mx8i_is_moe_layer(c, layer)) {
            n.sparse += always + c->num_experts * expert;
            active_sparse += always + c->top_k * expert;
        } else {
            n.dense += 3 * D * mx8i_get_dense_hidden(c);
        }
    }
    n.total = n.dense + n.sparse;
    n.active = n.dense + active_sparse;
    n.flops_per_token =
        6.0 * (double)(n.active - embedding) + 12.0 * (double)(c->n_layers * c->n_heads * head) * (double)seq_len;
    return n;
}
