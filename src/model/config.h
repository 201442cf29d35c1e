/* The architecture: torchtitan's Llama4 of September 2025 (its names, its defaults), and the presets. */
#ifndef MX8_MODEL_CONFIG_H
#define MX8_MODEL_CONFIG_H

#include <stddef.h>
#include <stdint.h>
#include "mx8/ops.h"

/* What queries and keys are normalised by. L2: each head by its own root mean square, in layers with RoPE (Llama 4). HEAD:
 * RMSNorm of each head with one weight vector (Qwen3). PROJECTION: RMSNorm over all heads at once (OLMoE). */
enum mx8_qk_norm { MX8_QK_NORM_NONE, MX8_QK_NORM_L2, MX8_QK_NORM_HEAD, MX8_QK_NORM_PROJECTION };

struct mx8_model_config {
    char flavor[32];                 /* preset this started from, for printing */
    int64_t dim, n_layers, n_heads, n_kv_heads, vocab_size, multiple_of;
    double ffn_dim_multiplier;       /* 0: none */
    double norm_eps, rope_theta;
    int64_t head_dim;                /* 0: dim / n_heads */
    int64_t dense_hidden;            /* SwiGLU width of dense layers; 0: from dim, ffn_dim_multiplier and multiple_of */
    int32_t qk_norm;                 /* enum mx8_qk_norm, before RoPE */
    double clip_qkv;                 /* queries, keys and values are clamped to +-this before RoPE; 0: not */
    double rope_factor;              /* Llama 3's stretching of slow RoPE frequencies by this factor; 0: off */
    double rope_low_freq, rope_high_freq; /* its wavelength limits, as fractions of rope_original_len */
    int64_t rope_original_len;
    int32_t depth_init;              /* 1: output projections scaled by layer, 0: by n_layers */
    int32_t attn_mask;               /* enum mx8_mask: causal or document (torchtitan's block_causal) */
    int64_t every_n_layers_nope;     /* iRoPE: 0 off, else > 1: layers with (id + offset) % n == 0 use no RoPE and the full
                                      * mask; torchtitan's offset is 0, Llama 4's weights want 1 */
    int64_t nope_layer_offset;
    int64_t fixed_attn_block_size;   /* iRoPE: chunk of the other layers */
    double attn_temperature;         /* layers without RoPE: queries at position p are multiplied by 1 + this * log(1 +
                                      * floor((p + 1) / attn_temperature_floor)); 0: off */
    int64_t attn_temperature_floor;
    int64_t interleave_moe_layer_step; /* layer is MoE iff (id + 1) % step == 0 and not among dense_layers */
    char dense_layers[128];          /* comma separated ids */
    int32_t auto_scale_hidden_dim;
    /* MoE */
    int64_t num_experts, num_shared_experts, top_k;
    int64_t expert_hidden;           /* width of one routed expert; 0: from dim, as dense_hidden */
    int32_t score_func, route_norm, score_before_experts;
    double route_scale, load_balance_coeff; /* coeff NaN: none (no expert bias) */
    int32_t force_balance;           /* benchmarks: token t goes to experts round robin */
};

/* torchtitan's flavors, the demo, and the published shapes of open models: mx8i_list_presets. INVALID_ARGUMENT lists the names. seq_len and local_batch_size (may be NULL) are the preset's training shape. */
enum mx8_status mx8i_find_preset(const char *name, struct mx8_model_config *out, int64_t *seq_len, int64_t *local_batch_size);
const char *mx8i_list_presets(void); /* "debugmodel, seed-a, ..." */
/* n_heads divides dim, n_kv_heads divides n_heads, head dim even, top_k <= num_experts, sizes positive, ... */
enum mx8_status mx8i_check_config(const struct mx8_model_config *c);

int mx8i_uses_rope(const struct mx8_model_config *c, int64_t layer);
int64_t mx8i_get_head_dim(const struct mx8_model_config *c);
int mx8i_is_moe_layer(const struct mx8_model_config *c, int64_t layer);
int64_t mx8i_get_dense_hidden(const struct mx8_model_config *c);  /* SwiGLU width of dense layers */
int64_t mx8i_get_expert_hidden(const struct mx8_model_config *c); /* of one routed expert */

/* torchtitan's counts: dense includes the embedding, sparse is router + shared + routed experts, active counts top_k of
 * the routed. flops_per_token = 6 (dense - embedding + active sparse) + 12 L H hd S. */
struct mx8_model_counts { int64_t total, dense, sparse, active; double flops_per_token; };
struct mx8_model_counts mx8i_count_model(const struct mx8_model_config *c, int64_t seq_len);

/* Every field that describes an architecture, under the name of its option: what the option table overrides, and what a
 * file of weights says about itself. */
enum mx8_field_type { MX8_FIELD_INT64, MX8_FIELD_BOOL, MX8_FIELD_DOUBLE, MX8_FIELD_CHOICE, MX8_FIELD_TEXT };
struct mx8_config_field {
    const char *key;
    size_t at;
    enum mx8_field_type type;
    double none;                     /* what a word such as "none" stands for */
    const char *choices;             /* CHOICE: "causal|block_causal", in the order of the enum's values */
    size_t size;                     /* TEXT: of the array */
};
extern const struct mx8_config_field mx8i_config_fields[];
extern const int32_t mx8i_config_field_count;
/* Number of `name` among choices, -1 when it is none of them. */
int32_t mx8i_find_choice(const char *choices, const char *name);
#define MX8_CONFIG_KEY "mx8.config" /* of a safetensors file's metadata: the text below */
/* One JSON object {"model.dim": 256, ...}; release with mx8i_release; NULL when out of memory. Reading starts from all
 * zero, fails on an unknown key or a value of another type, and checks the result. `where` begins the messages. */
char *mx8i_format_config(const struct mx8_model_config *c);
enum mx8_status mx8i_parse_config(const char *where, const char *text, struct mx8_model_config *out);

#endif
