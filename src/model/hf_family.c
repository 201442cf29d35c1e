/* The families of open weights: names and layouts. What a config.json says is read and written by hf_config.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/hf.h"
#include "model/hf_private.h"

#define OUTSIDE                                                                                                        \
    {"tok_embeddings.weight", "model.embed_tokens.weight", MX8_HF_SAME},                                               \
        {"norm.weight", "model.norm.weight", MX8_HF_SAME}, {                                                           \
        "output.weight", "lm_head.weight", MX8_HF_SAME                                                                 \
    }
#define NORMS                                                                                                          \
    {"attention_norm.weight", "input_layernorm.weight", MX8_HF_SAME}, {                                                \
        "ffn_norm.weight", "post_attention_layernorm.weight", MX8_HF_SAME                                              \
    }
#define ATTENTION(layout)                                                                                              \
    {"attention.wq.weight", "self_attn.q_proj.weight", layout},                                                        \
        {"attention.wk.weight", "self_attn.k_proj.weight", layout},                                                    \
        {"attention.wv.weight", "self_attn.v_proj.weight", MX8_HF_SAME}, {                                             \
        "attention.wo.weight", "self_attn.o_proj.weight", MX8_HF_SAME                                                  \
    }
#define QK_NORMS                                                                                                       \
    {"attention.q_norm.weight", "self_attn.q_norm.weight", MX8_HF_HALVES}, {                                           \
        "attention.k_norm.weight", "self_attn.k_norm.weight", MX8_HF_HALVES                                            \
    }
#define DENSE(theirs)                                                                                                  \
    {"feed_forward.w1.weight", theirs ".gate_proj.weight", MX8_HF_SAME},                                               \
        {"feed_forward.w2.weight", theirs ".down_proj.weight", MX8_HF_SAME}, {                                         \
        "feed_forward.w3.weight", theirs ".up_proj.weight", MX8_HF_SAME                                                \
    }

static const struct mx8_hf_rule llama4_rules[] = {OUTSIDE, NORMS, ATTENTION(MX8_HF_SAME), DENSE("feed_forward"),
    {"moe.router.gate.weight", "feed_forward.router.weight", MX8_HF_SAME},
    {"moe.experts.w1", "feed_forward.experts.gate_up_proj", MX8_HF_GATE},
    {"moe.experts.w3", "feed_forward.experts.gate_up_proj", MX8_HF_UP},
    {"moe.experts.w2", "feed_forward.experts.down_proj", MX8_HF_TRANSPOSED},
    {"moe.shared_experts.w1.weight", "feed_forward.shared_expert.gate_proj.weight", MX8_HF_SAME},
    {"moe.shared_experts.w2.weight", "feed_forward.shared_expert.down_proj.weight", MX8_HF_SAME},
    {"moe.shared_experts.w3.weight", "feed_forward.shared_expert.up_proj.weight", MX8_HF_SAME}};

/* Qwen3 and OLMoE name alike; they differ in what is computed. */
static const struct mx8_hf_rule qwen3_rules[] = {OUTSIDE, NORMS, ATTENTION(MX8_HF_HALVES), QK_NORMS, DENSE("mlp"),
    {"moe.router.gate.weight", "mlp.gate.weight", MX8_HF_SAME},
    {"moe.experts.w1", "mlp.experts.#.gate_proj.weight", MX8_HF_SAME},
    {"moe.experts.w2", "mlp.experts.#.down_proj.weight", MX8_HF_SAME},
    {"moe.experts.w3", "mlp.experts.#.up_proj.weight", MX8_HF_SAME}};

static const struct mx8_hf_rule mixtral_rules[] = {OUTSIDE, NORMS, ATTENTION(MX8_HF_HALVES),
    {"moe.router.gate.weight", "block_sparse_moe.gate.weight", MX8_HF_SAME},
    {"moe.experts.w1", "block_sparse_moe.experts.#.w1.weight", MX8_HF_SAME},
    {"moe.experts.w2", "block_sparse_moe.experts.#.w2.weight", MX8_HF_SAME},
    {"moe.experts.w3", "block_sparse_moe.experts.#.w3.weight", MX8_HF_SAME}};

#define TABLE(table) table, (int32_t)(sizeof table / sizeof table[0])
#define COMMON                                                                                                         \
    .multiple_of = 1, .depth_init = 1, .route_scale = 1, .rope_low_freq = 1, .rope_high_freq = 4,                      \
    .rope_original_len = 8192, .attn_temperature_floor = 8192, .fixed_attn_block_size = 8192,                          \
    .load_balance_coeff = (double)NAN
#define TOKEN_CHOICE COMMON, .score_func = MX8_SCORE_SOFTMAX

static const struct mx8_hf_family llama4 = {"llama4", "Llama4ForCausalLM", "llama4_text", TABLE(llama4_rules),
    mx8i_llama4_keys, {COMMON, .num_shared_experts = 1, .score_before_experts = 1}, mx8i_read_llama4,
    mx8i_write_llama4};
static const struct mx8_hf_family qwen3_moe = {"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3_moe", TABLE(qwen3_rules),
    mx8i_qwen3_keys, {TOKEN_CHOICE, .qk_norm = MX8_QK_NORM_HEAD}, mx8i_read_qwen3, mx8i_write_qwen3};
static const struct mx8_hf_family olmoe = {"olmoe", "OlmoeForCausalLM", "olmoe", TABLE(qwen3_rules), mx8i_olmoe_keys,
    {TOKEN_CHOICE, .qk_norm = MX8_QK_NORM_PROJECTION, .interleave_moe_layer_step = 1}, mx8i_read_olmoe,
    mx8i_write_olmoe};
static const struct mx8_hf_family mixtral = {"mixtral", "MixtralForCausalLM", "mixtral", TABLE(mixtral_rules),
    mx8i_mixtral_keys, {TOKEN_CHOICE, .route_norm = 1, .interleave_moe_layer_step = 1}, mx8i_read_mixtral,
    mx8i_write_mixtral};

const struct mx8_hf_family *const mx8i_hf_families[] = {&llama4, &qwen3_moe, &olmoe, &mixtral, NULL};

const char *mx8i_list_hf_families(void) {
    return "llama4, qwen3_moe, olmoe, mixtral";
}

const struct mx8_hf_family *mx8i_find_hf_family(const char *name) {
    for (int32_t i = 0; mx8i_hf_families[i]; i++) {
        const struct mx8_hf_family *f = mx8i_hf_families[i];
        if (!strcmp(f->name, name) || !strcmp(f->architecture, name)) return f;
    }
    return NULL;
}

const struct mx8_hf_rule *mx8i_find_hf_rule(const struct mx8_hf_family *f, const char *ours, int64_t *layer) {
    *layer = -1;
    if (!strncmp(ours, "layers.", 7)) {
        char *end;
        *layer = strtoll(ours + 7, &end, 10);
        ours = end + 1;
    }
    for (int32_t i = 0; i < f->n_rules; i++) {
        if (!strcmp(f->rule[i].ours, ours)) return &f->rule[i];
    }
    return NULL;
}

void mx8i_format_hf_name(const struct mx8_hf_rule *rule, int64_t layer, int64_t expert, char name[128]) {
    const char *mark = strchr(rule->theirs, '#');
    int used = layer < 0 ? 0 : snprintf(name, 128, "model.layers.%lld.", (long long)layer);
    if (mark)
        snprintf(name + used, (size_t)(128 - used), "%.*s%lld%s", (int)(mark - rule->theirs), rule->theirs,
            (long long)expert, mark + 1);
    else
        snprintf(name + used, (size_t)(128 - used), "%s", rule->theirs);
}
