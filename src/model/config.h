/* The architecture: torchtitan's Llama4 of September 2025 (its names, its defaults), and the presets. */
#ifndef MX8_MODEL_CONFIG_H
#define MX8_MODEL_CONFIG_H

#include <stdint.h>
#include "mx8/ops.h"

struct mx8_model_config {
    char flavor[32];                 /* preset this started from, for printing */
    int64_t dim, n_layers, n_heads, n_kv_heads, vocab_size, multiple_of;
    double ffn_dim_multiplier;       /* 0: none */
    double norm_eps, rope_theta;
    int32_t depth_init;              /* 1: output projections scaled by layer, 0: by n_layers */
    int32_t attn_mask;               /* enum mx8_mask: causal or document (torchtitan's block_causal) */
    int64_t every_n_layers_nope;     /* iRoPE: 0 off, else > 1: layers with id % n == 0 use no RoPE and the full mask */
    int64_t fixed_attn_block_size;   /* iRoPE: chunk of the other layers */
    int64_t interleave_moe_layer_step; /* layer is MoE iff (id + 1) % step == 0 */
    int32_t auto_scale_hidden_dim;
    /* MoE */
    int64_t num_experts, num_shared_experts, top_k;
    int32_t score_func, route_norm, score_before_experts;
    double route_scale, load_balance_coeff; /* coeff NaN: none (no expert bias) */
    int32_t force_balance;           /* benchmarks: token t goes to experts round robin */
};

/* "debugmodel", "seed-a", "seed-b", "17bx16e", "17bx128e", "demo", "debugmodel_irope", "17bx16e_irope", "17bx128e_irope".
 * INVALID_ARGUMENT lists the names. seq_len and local_batch_size (may be NULL) are the preset's training shape. */
enum mx8_status mx8i_find_preset(const char *name, struct mx8_model_config *out, int64_t *seq_len, int64_t *local_batch_size);
const char *mx8i_list_presets(void); /* "debugmodel, seed-a, ..." */
/* n_heads divides dim, n_kv_heads divides n_heads, head dim even, top_k <= num_experts, sizes positive, ... */
enum mx8_status mx8i_check_config(const struct mx8_model_config *c);

int mx8i_is_moe_layer(const struct mx8_model_config *c, int64_t layer);
int64_t mx8i_get_dense_hidden(const struct mx8_model_config *c);  /* SwiGLU width of dense layers */
int64_t mx8i_get_expert_hidden(const struct mx8_model_config *c); /* of one routed expert */

/* torchtitan's counts: dense includes the embedding, sparse is router + shared + routed experts, active counts top_k of
 * the routed. flops_per_token = 6 (dense - embedding + active sparse) + 12 L H hd S. */
struct mx8_model_counts { int64_t total, dense, sparse, active; double flops_per_token; };
struct mx8_model_counts mx8i_count_model(const struct mx8_model_config *c, int64_t seq_len);

#endif
