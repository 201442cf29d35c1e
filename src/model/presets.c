/* The presets: torchtitan's flavors of September 2025, the two configurations of the MXFP8 benchmark that this project
 * answers (seed-a, seed-b), the demo, and open models in their published shapes. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "model/config.h"
#include "base/error.h"

/* What differs from preset to preset; everything else is torchtitan's default (fill_defaults). */
struct preset {
    const char *name;
    int64_t dim, n_layers, n_heads, n_kv_heads, vocab_size, multiple_of;
    double ffn_dim_multiplier;
    int64_t interleave, num_experts, nope, chunk;
    int64_t seq_len, local_batch_size;
};

// clang-format off
static const struct preset presets[] = {
    /* name             dim   L   H   KV  V       mult  ffn   step E    nope chunk  S     batch */
    {"debugmodel",      256,  6,  16, 16, 2000,   256,  0,    2,   8,   0,   8192,  2048, 8},
    {"seed-a",          5120, 2,  40, 8,  202048, 2048, 1.2,  1,   2,   0,   8192,  8192, 8},
    {"seed-b",          5120, 8,  40, 8,  202048, 2048, 1.2,  1,   8,   0,   8192,  2048, 8},
    {"17bx16e",         5120, 48, 40, 8,  202048, 2048, 1.2,  1,   16,  0,   8192,  8192, 1},
    {"17bx128e",        5120, 48, 40, 8,  202048, 2048, 1.2,  2,   128, 0,   8192,  8192, 1},
    /* bytes 0 to 255, begin 256, end 257, padded to a multiple of 32; one expert is 256 wide */
    {"demo",            256,  4,  8,  4,  288,    32,   0.75, 1,   4,   0,   8192,  256,  8},
    {"debugmodel_irope", 256, 6,  16, 16, 2000,   256,  0,    2,   8,   4,   256,   2048, 8},
    {"17bx16e_irope",   5120, 48, 40, 8,  202048, 2048, 1.2,  1,   16,  4,   8192,  8192, 1},
    {"17bx128e_irope",  5120, 48, 40, 8,  202048, 2048, 1.2,  2,   128, 4,   8192,  8192, 1},
};
// clang-format on
enum { PRESET_COUNT = sizeof presets / sizeof presets[0] };

/* Open models in their published shapes, as their config.json files say them. Fields left out are 0: off. No expert
 * bias: their files have no place for one. */
#define OPEN_MODEL                                                                                                     \
    .multiple_of = 1, .depth_init = 1, .route_scale = 1, .rope_low_freq = 1, .rope_original_len = 8192,                \
    .attn_temperature_floor = 8192, .fixed_attn_block_size = 8192, .load_balance_coeff = (double)NAN
#define SOFTMAX .rope_high_freq = 4, .interleave_moe_layer_step = 1, .score_func = MX8_SCORE_SOFTMAX
#define LLAMA4                                                                                                         \
    .dim = 5120, .n_layers = 48, .n_heads = 40, .n_kv_heads = 8, .vocab_size = 202048, .norm_eps = 1e-5,               \
    .rope_theta = 500000, .head_dim = 128, .dense_hidden = 16384, .expert_hidden = 8192, .num_shared_experts = 1,      \
    .top_k = 1, .score_before_experts = 1, .every_n_layers_nope = 4, .nope_layer_offset = 1, .attn_temperature = 0.1
static const struct open_model {
    int64_t seq_len;
    struct mx8_model_config config;
} open_models[] = {
    {8192, {OPEN_MODEL, LLAMA4, .flavor = "llama4-scout", .num_experts = 16, .qk_norm = MX8_QK_NORM_L2,
               .rope_factor = 16, .rope_high_freq = 1, .interleave_moe_layer_step = 1}},
    {8192, {OPEN_MODEL, LLAMA4, .flavor = "llama4-maverick", .num_experts = 128, .rope_high_freq = 4,
               .interleave_moe_layer_step = 2}},
    {4096, {OPEN_MODEL, SOFTMAX, .flavor = "qwen3-30b-a3b", .dim = 2048, .n_layers = 48, .n_heads = 32, .n_kv_heads = 4,
               .head_dim = 128, .vocab_size = 151936, .dense_hidden = 6144, .expert_hidden = 768, .norm_eps = 1e-6,
               .rope_theta = 1e6, .qk_norm = MX8_QK_NORM_HEAD, .num_experts = 128, .top_k = 8, .route_norm = 1}},
    {4096, {OPEN_MODEL, SOFTMAX, .flavor = "olmoe-1b-7b", .dim = 2048, .n_layers = 16, .n_heads = 16, .n_kv_heads = 16,
               .vocab_size = 50304, .dense_hidden = 1024, .expert_hidden = 1024, .norm_eps = 1e-5, .rope_theta = 10000,
               .qk_norm = MX8_QK_NORM_PROJECTION, .num_experts = 64, .top_k = 8}},
    {4096, {OPEN_MODEL, SOFTMAX, .flavor = "mixtral-8x7b", .dim = 4096, .n_layers = 32, .n_heads = 32, .n_kv_heads = 8,
               .vocab_size = 32000, .dense_hidden = 14336, .expert_hidden = 14336, .norm_eps = 1e-5, .rope_theta = 1e6,
               .num_experts = 8, .top_k = 2, .route_norm = 1}},
};
enum { OPEN_COUNT = sizeof open_models / sizeof open_models[0] };

const char *mx8i_list_presets(void) {
    return "debugmodel, seed-a, seed-b, 17bx16e, 17bx128e, demo, debugmodel_irope, 17bx16e_irope, 17bx128e_irope, "
           "llama4-scout, llama4-maverick, qwen3-30b-a3b, olmoe-1b-7b, mixtral-8x7b";
}

static void fill_defaults(struct mx8_model_config *c) {
    c->norm_eps = 1e-5;
    c->rope_theta = 500000;
    c->depth_init = 1;
    c->auto_scale_hidden_dim = 1;
    c->num_shared_experts = 1;
    c->top_k = 1;
    c->score_func = MX8_SCORE_SIGMOID;
    c->score_before_experts = 1;
    c->route_scale = 1;
    c->load_balance_coeff = 1e-3;
    c->rope_low_freq = 1;
    c->rope_high_freq = 4;
    c->rope_original_len = 8192;
    c->attn_temperature_floor = 8192;
}

enum mx8_status mx8i_find_preset(
    const char *name, struct mx8_model_config *out, int64_t *seq_len, int64_t *local_batch_size) {
    for (int i = 0; i < PRESET_COUNT; i++) {
        const struct preset *p = &presets[i];
        if (strcmp(p->name, name) != 0) continue;
        *out = (struct mx8_model_config){.dim = p->dim,
            .n_layers = p->n_layers,
            .n_heads = p->n_heads,
            .n_kv_heads = p->n_kv_heads,
            .vocab_size = p->vocab_size,
            .multiple_of = p->multiple_of,
            .ffn_dim_multiplier = p->ffn_dim_multiplier,
            .interleave_moe_layer_step = p->interleave,
            .num_experts = p->num_experts,
            .every_n_layers_nope = p->nope,
            .fixed_attn_block_size = p->chunk,
            .attn_mask = p->nope ? MX8_MASK_DOCUMENT : MX8_MASK_CAUSAL};
        fill_defaults(out);
        snprintf(out->flavor, sizeof out->flavor, "%s", p->name);
        if (seq_len) *seq_len = p->seq_len;
        if (local_batch_size) *local_batch_size = p->local_batch_size;
        return MX8_OK;
    }
    for (int i = 0; i < OPEN_COUNT; i++) {
        if (strcmp(open_models[i].config.flavor, name) != 0) continue;
        *out = open_models[i].config;
        if (seq_len) *seq_len = open_models[i].seq_len;
        if (local_batch_size) *local_batch_size = 1;
        return MX8_OK;
    }
    return MX8_FAIL(
        MX8_INVALID_ARGUMENT, "model.flavor: there is no preset \"%s\"; presets are %s", name, mx8i_list_presets());
}
