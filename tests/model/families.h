/* Tiny models of the open families, each with every option of its own in use. */
#ifndef MX8_TESTS_FAMILIES_H
#define MX8_TESTS_FAMILIES_H

#include "model_helpers.h"

static inline struct mx8_model_config make_base(void) {
    struct mx8_model_config c = make_tiny_config();
    c.dim = 32;
    c.n_layers = 2;
    c.head_dim = 16; /* 64 wide attention on 32 wide layers */
    c.vocab_size = 64;
    c.expert_hidden = 24;
    c.dense_hidden = 40;
    c.load_balance_coeff = (double)NAN;
    c.norm_eps = 1e-2; /* large enough that a norm without it would be seen */
    return c;
}

static inline struct mx8_model_config make_llama4(void) {
    struct mx8_model_config c = make_base();
    c.n_layers = 3;
    c.qk_norm = MX8_QK_NORM_L2;
    c.every_n_layers_nope = 2;
    c.nope_layer_offset = 1;
    c.fixed_attn_block_size = 8;
    c.attn_temperature = 0.7;
    c.attn_temperature_floor = 4;
    c.rope_factor = 4;
    c.rope_original_len = 16;
    c.interleave_moe_layer_step = 2;
    return c;
}

static inline struct mx8_model_config make_qwen3(void) {
    struct mx8_model_config c = make_base();
    c.n_layers = 3;
    c.qk_norm = MX8_QK_NORM_HEAD;
    c.score_func = MX8_SCORE_SOFTMAX;
    c.score_before_experts = 0;
    c.num_shared_experts = 0;
    c.top_k = 2;
    c.route_norm = 1;
    snprintf(c.dense_layers, sizeof c.dense_layers, "1");
    return c;
}

static inline struct mx8_model_config make_olmoe(void) {
    struct mx8_model_config c = make_qwen3();
    c.head_dim = 0;
    c.dense_layers[0] = 0;
    c.qk_norm = MX8_QK_NORM_PROJECTION;
    c.clip_qkv = 1.2;
    c.route_norm = 0;
    return c;
}

static inline struct mx8_model_config make_clamped(void) { /* clamped without a norm */
    struct mx8_model_config c = make_qwen3();
    c.qk_norm = MX8_QK_NORM_NONE;
    c.clip_qkv = 0.8;
    c.dense_layers[0] = 0;
    return c;
}

static struct mx8_model_config (*const families[])(void) = {make_llama4, make_qwen3, make_olmoe, make_clamped};
static const char *const family_names[] = {"llama4", "qwen3", "olmoe", "clamped"};
enum { FAMILIES = 4 };

#endif
