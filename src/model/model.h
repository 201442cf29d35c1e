/* A model: config + recipe + tensor table + arenas, and one training step's forward and backward through the operator
 * table. Nothing is allocated after mx8i_allocate_model. Device-agnostic: everything goes through the context's kernels. */
#ifndef MX8_MODEL_MODEL_H
#define MX8_MODEL_MODEL_H

#include "model/params.h"
#include "base/log.h"
#include "base/clock.h"
#include "kernels/kernels.h"
#include "dist/dist.h"

/* EVERY_N and FULL walk whole layers forward again. OPS keeps what products and attention made, and makes again what follows
 * from it by a norm, a permutation, SwiGLU or a quantizer: about a third less memory for about a hundredth of the time. */
enum mx8_checkpointing { MX8_AC_NONE, MX8_AC_FULL, MX8_AC_EVERY_N, MX8_AC_OPS };

/* MXFP8 made worse on purpose, to see that a study would notice: gradients in E5M2; or the backward pass from tensors
 * that were quantized along the other axis first (X and W along their rows, dY along its columns), as if codes had been
 * transposed. */
enum mx8_control { MX8_CONTROL_NONE, MX8_CONTROL_E5M2_GRADIENTS, MX8_CONTROL_REUSED_CODES };

struct mx8_model_options {
    int64_t batch, seq_len;         /* of one microbatch: T = batch * seq_len */
    int32_t ac_mode, ac_every;      /* enum mx8_checkpointing; EVERY_N recomputes layers with (id+1) % n == 0 */
    /* Rows of the head at a time. 0: the operator picks. -1: as many as find room in the gradients that the backward pass
     * writes later; only without accumulation. */
    int64_t loss_chunk_rows;
    int32_t training;               /* 0: forward only: no gradient, no optimizer memory */
    int32_t control;                /* enum mx8_control */
    int32_t count_gaps;             /* mx8i_take_wide_blocks has something to say */
    int32_t moment_dtype;           /* of AdamW's moments: MX8_F32, or MX8_BF16, which halves their memory */
    /* More than one process; all zero: one. */
    struct mx8_dist *dist;          /* its groups; outlives the model; may be imagined, to plan with */
    int32_t keep_gathered;          /* weights stay gathered between forward and backward: more memory, fewer bytes sent */
    int32_t no_overlap;             /* every transfer is waited for where it starts: to measure what overlap hides */
    int32_t gather_mxfp8;           /* converted weights are quantized by the rank that keeps them and travel as codes */
    int32_t dispatch_mxfp8;         /* tokens travel between expert parallel ranks as MXFP8 */
};

/* Bytes per purpose, known before anything is allocated. */
struct mx8_memory_plan {
    size_t masters, copies, codes, gradients, moments, saved, scratch, workspace, buffers, total;
    size_t gathered, reduced; /* several processes: weights of whole layers; gradients of whole layers and arriving pieces */
};

/* Bytes that this rank sends to others: for a microbatch, and once a step. Tokens: as when all experts get as many. */
struct mx8_traffic_plan { int64_t gathered, reduced, dispatched, summed; };

/* This rank's part of a tensor: elements [first, first + count) of it lie at param.at of the flat arrays. */
struct mx8_part_of { int64_t first, count; };

struct mx8_model; /* model/internal.h */

/* Table, checks and memory plan; allocates only host tables. */
enum mx8_status mx8i_plan_model(const struct mx8_model_config *c, const struct mx8_recipe *r,
                                const struct mx8_model_options *o, struct mx8_model **out);
/* From the second microbatch of its kind on, a training walk is recorded once as a graph of the device and launched as a
 * whole: the same kernels in the same order. Needs a stream of the context's own. Where recording fails, the log says why
 * and walks go on call by call. `log` must outlive the model. */
void mx8i_use_graphs(struct mx8_model *m, const struct mx8_log *log);
void mx8i_free_model(struct mx8_model *m); /* arenas too; accepts NULL */
const struct mx8_memory_plan *mx8i_get_memory_plan(const struct mx8_model *m, struct mx8_context *ctx); /* ctx: scratch size; may be NULL */
const struct mx8_param_table *mx8i_get_params(const struct mx8_model *m);
const struct mx8_model_config *mx8i_get_config(const struct mx8_model *m);
int64_t mx8i_get_sequence_length(const struct mx8_model *m); /* as planned */
struct mx8_part_of mx8i_get_part(const struct mx8_model *m, const struct mx8_param *p); /* one process: all of it */
const struct mx8_traffic_plan *mx8i_get_traffic_plan(const struct mx8_model *m);

/* Arenas on the context's device. OUT_OF_MEMORY says what was asked for, per purpose, and which options shrink it. */
enum mx8_status mx8i_allocate_model(struct mx8_model *m, struct mx8_context *ctx);
/* torchtitan's init rules; tensor n's numbers depend on (seed, name, index) alone. Also refreshes copies and codes. */
enum mx8_status mx8i_init_weights(struct mx8_model *m, uint64_t seed);
/* Masters -> bf16 copies and MXFP8 codes; `updated`: all but what mx8i_apply_adamw wrote. */
enum mx8_status mx8i_refresh_weights(struct mx8_model *m, int32_t updated);
/* AdamW of the converted weights that the stretches leave out, and their codes. The update's scalars count; its arrays and
 * places are the model's. */
enum mx8_status mx8i_update_converted(struct mx8_model *m, const struct mx8_adamw_job *update);

/* Flat device arrays of `elements` (this rank's parts): masters and gradients in f32, both moments in moment_dtype. bf16
 * copies of what the stretches say (NULL: of nothing). */
float *mx8i_get_masters(struct mx8_model *m);
float *mx8i_get_gradients(struct mx8_model *m);
void *mx8i_get_moment(struct mx8_model *m, int32_t which);
int32_t mx8i_get_moment_dtype(const struct mx8_model *m);
uint16_t *mx8i_get_copies(struct mx8_model *m);
float *mx8i_get_buffers(struct mx8_model *m);
/* What an update walks over: n elements from `at` of the flat arrays, whose first is number `place` of all tensors'
 * elements, whoever holds them. Gaps between tensors may be part of it, in all counts. copy_at: in the copies. Converted
 * weights whose codes are made with their update are no part of it. */
struct mx8_stretch { size_t at; int64_t n; uint64_t place; size_t copy_at; int32_t has_copy; };
const struct mx8_stretch *mx8i_get_stretches(const struct mx8_model *m, int64_t *count);
/* Memory whose contents mean nothing between two calls. */
void *mx8i_get_scratch(struct mx8_model *m, size_t *bytes);

/* One microbatch. tokens, targets: host int32 of T; docs: host int32 document ids of T, NULL unless the mask wants them.
 * loss_scale multiplies the summed token losses (1 / (tokens of the whole step)); gradients are added to what is there
 * when accumulate, else replace it. *loss += loss_scale * sum of token losses (read back at the end of the call).
 * Expert counts are added up until mx8i_update_expert_bias. */
enum mx8_status mx8i_forward_backward(struct mx8_model *m, const int32_t *tokens, const int32_t *targets, const int32_t *docs,
                                      float loss_scale, int32_t accumulate, double *loss);
/* Several processes: after the last microbatch of a step, sums the gradients over the replicas, and the expert counts
 * over all ranks. One process: nothing. */
enum mx8_status mx8i_sum_gradients(struct mx8_model *m);
enum mx8_status mx8i_sum_expert_load(struct mx8_model *m);
/* Forward only (validation): no gradients, no counts. logits (T,V) f32 host, may be NULL. */
enum mx8_status mx8i_forward(struct mx8_model *m, const int32_t *tokens, const int32_t *targets, const int32_t *docs,
                             float loss_scale, double *loss, float *logits);

/* One sequence of n tokens, at most seq_len, whatever batch was planned: logits of positions [from, n) as (n - from, V) f32
 * on the host, no loss. Costs what its length costs, not what was planned. */
enum mx8_status mx8i_compute_logits(struct mx8_model *m, const int32_t *tokens, int64_t n, int64_t from, float *logits);

/* Expert load of MoE layer i (0-based among MoE layers) since the last update: counts[E], host. */
int64_t mx8i_count_moe_layers(const struct mx8_model *m);
enum mx8_status mx8i_get_expert_load(struct mx8_model *m, int64_t moe_layer, int64_t *counts);
/* All of them, (MoE layers, E), in place: what a checkpoint saves and restores. */
int64_t *mx8i_get_expert_counts(struct mx8_model *m);
void mx8i_accept_expert_counts(struct mx8_model *m); /* after restoring: they are those of all ranks */
/* Once per optimizer step, after clipping, before AdamW: bias += d - mean(d), d = coeff * sign(mean(count) - count); then
 * counts = 0. Without load_balance_coeff only clears the counts. */
enum mx8_status mx8i_update_expert_bias(struct mx8_model *m);
/* Values that quantizers clipped since the last call (MXFP8 recipes); resets. */
enum mx8_status mx8i_take_saturated(struct mx8_model *m, int64_t *count);
/* With count_gaps: blocks of 32, of weights, activations and gradients, that lie more than 2^MX8_WIDE_GAP below the scale
 * they share; resets. What a fused quantizer makes as it reads (CUDA: the head's gradient) is not looked at. */
enum mx8_status mx8i_take_wide_blocks(struct mx8_model *m, int64_t *count);
/* Name of the first weight (or, with gradients != 0, gradient) that holds NaN or Inf; NULL when all are finite. */
enum mx8_status mx8i_find_not_finite(struct mx8_model *m, int32_t gradients, const char **name);

/* Experiments: embedding columns 0, every, 2 every, ... times factor; refreshes copies and codes. */
enum mx8_status mx8i_plant_outliers(struct mx8_model *m, int64_t every, double factor);
/* Experiments: while set (NULL: off), each backward writes FOLDER/LINEAR.safetensors with x, w, dy and, of experts, the
 * cumulative ends `offsets` of their rows, for linears whose input is kept in high precision (unconverted, or wgrad_hp)
 * and whose name contains one of `names` (comma separated; empty: all). count: files written. Not for captured steps. */
struct mx8_dump { const char *folder, *names; int64_t count; };
void mx8i_set_dump(struct mx8_model *m, struct mx8_dump *dump);

/* safetensors with torchtitan's names, f32 or bf16 (dtype). Loading names every missing, left-over and misshapen tensor
 * in one error; expert_bias buffers are loaded when present (absent: zero, said in the log) and always saved. */
enum mx8_status mx8i_load_weights(struct mx8_model *m, const char *path, const struct mx8_log *log);
enum mx8_status mx8i_save_weights(struct mx8_model *m, const char *path, int32_t dtype);
/* From a Hugging Face folder, or anything else that hf.h opens; the architectures must agree. */
struct mx8_weights;
enum mx8_status mx8i_load_opened_weights(struct mx8_model *m, const struct mx8_weights *w, const struct mx8_log *log);
enum mx8_status mx8i_load_open_weights(struct mx8_model *m, const char *path, const struct mx8_log *log);

#endif
