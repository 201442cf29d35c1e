/* The presets: torchtitan's flavors of September 2025, the two configurations of the MXFP8 benchmark that this project
 * answers (seed-a, seed-b), and the demo. */
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

const char *mx8i_list_presets(void) {
    return "debugmodel, seed-a, seed-b, 17bx16e, 17bx128e, demo, debugmodel_irope, 17bx16e_irope, 17bx128e_irope";
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
    return MX8_FAIL(
        MX8_INVALID_ARGUMENT, "model.flavor: there is no preset \"%s\"; presets are %s", name, mx8i_list_presets());
}
