/* The tensor table: every weight's name, shape, initial distribution, recipe, and place in the arenas. One table drives
 * initialisation, the optimizer, checkpoints, the memory plan, the conversion printout and (later) sharding. */
#ifndef MX8_MODEL_PARAMS_H
#define MX8_MODEL_PARAMS_H

#include "model/config.h"

enum mx8_param_kind { MX8_PARAM_EMBEDDING, MX8_PARAM_NORM, MX8_PARAM_LINEAR, MX8_PARAM_ROUTER, MX8_PARAM_EXPERT, MX8_PARAM_HEAD };

struct mx8_param {
    char name[96];            /* torchtitan's FQN: "layers.0.moe.experts.w1", "layers.0.attention.wq.weight", ... */
    enum mx8_param_kind kind;
    int32_t ndim, layer;      /* layer -1: outside the blocks */
    int64_t shape[3], count;
    double init_std;          /* 0 with kind NORM: ones */
    double init_cut;          /* truncated at +-cut (absolute); 0: not truncated */
    int32_t mxfp8;            /* converted by the recipe */
    int32_t shard_axis;
    double flops_share;       /* of flops_per_token */
    size_t at;                /* element offset in the flat arrays (masters, gradients, moments, bf16 copies) */
    size_t row_codes, row_scales, col_codes, col_scales; /* byte offsets in the code arena when mxfp8 (SIZE_MAX: none) */
};

/* Persistent tensors that are not trained: "layers.N.moe.expert_bias" (E) f32. */
struct mx8_buffer { char name[96]; int32_t layer; int64_t count; size_t at; };

struct mx8_param_table {
    struct mx8_param *param; int64_t count;
    struct mx8_buffer *buffer; int64_t buffer_count;
    size_t elements;          /* length of the flat arrays; tensors start at multiples of 64 elements, gaps stay zero */
    size_t code_bytes, buffer_elements;
};

/* How the weights are computed with. */
struct mx8_recipe {
    char name[32];            /* "f32", "bf16", "mxfp8", "mxfp8_dense", "mxfp8_moe" for printing */
    int32_t dtype;            /* MX8_F32 or MX8_BF16: activations and weight copies */
    int32_t convert_linear, convert_experts;
    char filter_fqns[512];    /* comma separated substrings: linears whose name contains one stay unconverted */
    char linear_fqns[512];    /* "" or substrings: only linears whose name contains one are converted (later spelling) */
    char expert_fqns[512];    /* substrings that the expert tensors' names must contain one of */
    int32_t scale_rule, scale_group, tile_rows, col_tile_rows, weight_scale_group, weight_tile_rows;
    int32_t alignment; /* of expert groups among column codes; 0: 32 */
    int32_t format, wgrad_hp, exact;
};

enum mx8_status mx8i_build_params(const struct mx8_model_config *c, int64_t seq_len, struct mx8_param_table *out);
void mx8i_free_params(struct mx8_param_table *t);
const struct mx8_param *mx8i_find_param(const struct mx8_param_table *t, const char *name);
/* Whether the tensor's name, without ".weight", contains one of the comma separated entries. */
int mx8i_param_matches(const struct mx8_param *p, const char *list);
/* Sets mxfp8 and the code offsets. Errors name the tensor or the filter entry: an entry that matches nothing, a recipe
 * that converts nothing, a shape whose contraction axes are no multiples of 32. */
enum mx8_status mx8i_apply_recipe(struct mx8_param_table *t, const struct mx8_recipe *r);

#endif
