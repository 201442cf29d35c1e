/* Inside the model floor. A training step is written once (step.c and the layer files) and walked twice: while `planning`
 * its tensors have shapes but no memory and every operator call is only inferred, which measures the arenas; the same
 * walk with memory behind it computes. So the memory plan cannot differ from what the step uses.
 *
 * Memory of a step is two stacks. `saved` grows through forward and shrinks through backward; `scratch` holds what lives
 * inside one layer's pass, and above it the workspace of the operator that runs. A checkpointed layer leaves its input and its routing in `saved` and is walked forward again
 * just before its backward. */
#ifndef MX8_MODEL_INTERNAL_H
#define MX8_MODEL_INTERNAL_H

#include "model/model.h"
#include "kernels/profile.h"
#include "ops/rows.h"

struct mx8_stack { uint8_t *base; size_t used, peak; };

/* A tensor in the forms its consumers read: as it is, and MXFP8 codes along its rows and along its columns (stored
 * transposed). Absent forms are zeroed. `ends`: padded group ends of grouped column codes. */
struct mx8_forms { struct mx8_tensor hp, row, row_scale, col, col_scale, ends; };

/* Which forms the weights that multiply a tensor ask for. */
struct mx8_need { int32_t hp, row, col; };

struct mx8_ffn { const struct mx8_param *w1, *w2, *w3; };
struct mx8_ffn_saved { struct mx8_tensor gate, up; struct mx8_forms hidden; };

/* groups: ends of the experts' rows on this rank; with expert parallelism not those that it routed (offsets). */
struct mx8_routing { struct mx8_tensor scores, indices, weights, order, positions, offsets, groups; };

/* What a layer's backward reads. x: layer input; h: x + attention. */
struct mx8_activations {
    struct mx8_tensor x, rstd_attention, q, k, v, lse, h, rstd_ffn, expert_out;
    struct mx8_tensor raw_q, raw_k, raw_v, rstd_q, rstd_k; /* before norm and clamp; absent where there is neither */
    struct mx8_forms n1, o, n2, rows;
    struct mx8_ffn_saved dense, experts;
    struct mx8_routing routing;
    size_t mark; /* of the saved stack, before this layer's own part */
};

/* Expert parallelism, per MoE layer: tokens of every expert on every rank of the group, and the rows received here. */
struct mx8_dispatch { int32_t *ends; int64_t rows; };

struct mx8_layer {
    const struct mx8_param *attention_norm, *wq, *wk, *wv, *wo, *ffn_norm, *gate;
    const struct mx8_param *q_norm, *k_norm; /* NULL: none, or a norm without weight */
    struct mx8_ffn dense;   /* of a dense layer, or the shared experts (w1 NULL: none) */
    struct mx8_ffn experts;
    const struct mx8_buffer *bias; /* NULL: none */
    int64_t moe;            /* index among the MoE layers; -1: dense layer */
    int64_t chunk;          /* attention chunk, 0: none */
    int32_t uses_rope, checkpointed;
    struct mx8_activations a;
    struct mx8_dispatch dispatch; /* expert parallelism only */
};

/* ---- who holds what (shard.c) ---- */
/* One tensor: where it lies among its unit's gathered tensors, and which part of it this rank keeps. */
struct mx8_shard {
    int32_t unit;
    int64_t shape[3];      /* as gathered: with expert parallelism only this rank's experts */
    size_t place;          /* of its first element among the elements of all tensors, as one process has them */
    size_t full_at;        /* element offset in the unit's arrays */
    size_t values_at;      /* the same among the gathered values, which converted tensors are not part of where codes travel */
    struct mx8_part_of part;
};
/* The part of a unit that one group of ranks shares, cut into one contiguous range a rank. */
struct mx8_segment {
    int32_t group;         /* enum mx8_group */
    size_t at, size;       /* in the unit */
    size_t local_at;       /* of this rank's range in the flat arrays */
    size_t *cut;           /* ranks + 1, from the segment's start */
    int32_t gather, reduce; /* tickets */
    int32_t coded;          /* codes travel, of what is converted: gather.c */
    size_t values_at;       /* in the unit's gathered values */
    size_t message_at;      /* of what is on its way, in m->messages */
};
/* Which codes of a converted weight a pass reads: those along its rows forward, those along its columns backward. */
enum mx8_code_forms { MX8_ROW_CODES = 1, MX8_COL_CODES = 2, MX8_ALL_CODES = 3 };
/* What is gathered and reduced together: the embedding, each layer, final norm and head. One process has one unit, which
 * is always there: its arrays are the model's own. */
struct mx8_unit {
    struct mx8_segment segment[2]; /* dense, experts (size 0: none) */
    size_t elements, code_bytes, value_elements;
    int64_t first, end;            /* its tensors in the table */
    int32_t slot, forms;           /* forms: enum mx8_code_forms that were gathered */
    enum mx8_unit_state { MX8_UNIT_ABSENT, MX8_UNIT_COMING, MX8_UNIT_HERE } state;
    uint8_t *values, *codes; /* gathered: bf16 or f32, and what is quantized from it */
    float *gradients;
};
struct mx8_slot { size_t values_at, codes_at, gradients_at; size_t value_elements, code_bytes; int32_t unit; /* in it; -1 */ };

/* Device memory outside the stacks, in one allocation ("io" of the plan). */
struct mx8_io {
    int32_t *tokens, *targets, *docs;  /* T each */
    float *rope_table;                 /* (S, d/2, 2) */
    float *temperature_table;          /* the same, without turning: what scales the queries of layers without RoPE */
    float *ones;                       /* weight of a norm that has none */
    uint8_t *readback;                 /* loss (f64), then (moe layers, E) int32 offsets: one download per microbatch */
    int64_t *saturated;                /* [1]: wide blocks */
    int32_t *flags;                    /* one per tensor of the table */
    int32_t *group_ends;               /* (expert parallel ranks, E): everyone's offsets of the layer at hand */
    int32_t *forced_slots, *forced_order, *forced_positions, *forced_indices, *forced_offsets; /* force_balance */
};

struct mx8_model {
    struct mx8_model_config config;
    struct mx8_recipe recipe;
    struct mx8_model_options options;
    struct mx8_param_table params;
    struct mx8_layer *layer;
    const struct mx8_param *embedding, *norm, *head;
    int64_t T, moe_layers, logit_rows;
    int64_t weight_piece;     /* elements that are rounded to bf16 at a time, to be quantized */
    int64_t head_rows;        /* of a chunk of the head in training, 0: the operator picks */
    size_t head_bytes;        /* of gradients that lend the head its workspace, 0: none */
    size_t io_size, readback_size;
    struct mx8_memory_plan *plan; /* [0] the model's own memory, [1] with the context's scratch */

    struct mx8_context *ctx; /* NULL until allocated */
    float *masters, *gradients, *buffers; /* of this rank's parts */
    uint8_t *moments;
    uint16_t *copies;
    uint8_t *codes;
    struct mx8_io io;
    struct mx8_recording { void *graph; int32_t warm; float loss_scale; } recording[2]; /* without and with accumulation */
    const struct mx8_log *graph_log; /* NULL: no graphs */
    struct mx8_stack saved, scratch;

    /* several processes (units.c) */
    int32_t parallel;          /* more than one process */
    int32_t experts_here;      /* routed experts of a layer whose weights are gathered on this rank */
    struct mx8_shard *shard;   /* one a tensor */
    struct mx8_stretch *stretch;
    int64_t stretches;
    struct mx8_unit *unit;
    struct mx8_slot *slot;
    size_t *cuts;              /* of all segments */
    int32_t units, slots, reducing /* unit whose gradients are on their way, -1 */, adding;
    int32_t direction /* enum mx8_direction */, arriving /* unit in `messages`, -1 */;
    size_t value_bytes, message_bytes, gradient_elements, receive_bytes;
    uint8_t *gathered, *receive, *messages /* every rank's values and codes of one unit: behind `gathered` */;
    float *reduced;
    struct mx8_traffic_plan traffic;
    struct mx8_part *parts;    /* of an exchange of tokens */
    int32_t *dispatch_ends;    /* memory of all layers' dispatch.ends */
    int32_t *local_ends;
    size_t *cut_bytes;         /* cuts of a gather, in bytes */
    int64_t *known_load;       /* what of `load` every rank has agreed on */

    /* host side */
    uint8_t *host_readback;
    float *host_bias;      /* the buffers, while the bias is updated */
    int64_t *load;         /* (moe layers, E) tokens since the last bias update */

    /* of the walk in progress */
    int32_t planning, keep /* this layer's activations outlive its forward */, accumulate;
    size_t lent_bytes;        /* of the gradients: the workspace of the call that runs; 0: the scratch stack's */
    float loss_scale;
    int64_t logits_from;                  /* validation: the first position whose logits are asked for */
    int32_t logits_only;                  /* and no loss */
    struct mx8_profile_label label; /* what a profile calls the part of the walk that runs */
    struct mx8_tensor stream_h, stream_f; /* between layers: out = h + f; h lives here unless kept */
    struct mx8_tensor last_h;             /* the h of the layer before */
    struct mx8_dump *dump;                /* NULL: none */
};

static const struct mx8_tensor MX8_ABSENT = {0};

/* ---- walk.c: the vocabulary of the layer files ---- */
struct mx8_tensor mx8i_take(struct mx8_stack *s, int32_t dtype, int32_t ndim, const int64_t *shape);
struct mx8_tensor mx8i_take_rows(struct mx8_stack *s, int32_t dtype, int64_t rows, int64_t cols);
/* Names the part of the walk that comes next, for a profile. layer -1: outside the layers. */
void mx8i_begin_pass(struct mx8_model *m, const char *pass, int64_t layer);
/* Infers (planning) or runs a row of the operator table with the scratch stack's free part as workspace. */
enum mx8_status mx8i_call(struct mx8_model *m, enum mx8_row row, int32_t backward, struct mx8_op_call *call);
struct mx8_op_options mx8i_make_options(const struct mx8_model *m, const struct mx8_param *p);
struct mx8_forms mx8i_view_weight(const struct mx8_model *m, const struct mx8_param *p);
struct mx8_tensor mx8i_view_gradient(const struct mx8_model *m, const struct mx8_param *p);
/* Forms that `count` consumers ask for. keep: for a backward to come, as a weight gradient's operand too. */
struct mx8_need mx8i_find_need(const struct mx8_model *m, int32_t keep, int32_t count, const struct mx8_param *const *p);
/* Where an activation of rows x cols goes: saved when its hp form is needed later, else scratch. */
struct mx8_tensor mx8i_take_hp(struct mx8_model *m, struct mx8_need need, int64_t rows, int64_t cols);
/* Codes of f->hp as needed: rows into scratch, columns into `cols`. offsets absent or (G): groups of rows. */
enum mx8_status mx8i_quantize_forms(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need,
    struct mx8_tensor offsets, struct mx8_stack *cols, int32_t is_gradient);
/* An operator whose output is quantized, and the one that makes the codes at once; the latter takes offsets behind `in`. */
struct mx8_maker { enum mx8_row stores, codes; struct mx8_tensor in[4]; int32_t n_in; };
/* f as the maker's output and quantize_forms give it. f->hp has memory; unless need.hp, what it holds afterwards is
 * undefined. */
enum mx8_status mx8i_make_forms(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need,
    const struct mx8_maker *maker, struct mx8_tensor offsets, struct mx8_stack *cols);
/* Codes of swiglu's gradients, both at once: d[0] of dgate, d[1] of dup. Forms of d that are there say where codes go, the
 * others come from scratch; `up` was taken right behind `gate`, and what both hold is undefined afterwards. */
enum mx8_status mx8i_make_gradient_forms(struct mx8_model *m, struct mx8_forms d[2], struct mx8_tensor dhidden,
    struct mx8_tensor gate, struct mx8_tensor up, struct mx8_tensor offsets);
/* Drops the forms that were in scratch. */
void mx8i_forget_forms(struct mx8_forms *f, struct mx8_need need);

/* ---- remake.c: MX8_AC_OPS, activations that backward makes again. Each does nothing in the other modes ---- */
/* Whether this layer's forward leaves the operands of its weight gradients to its backward. */
int32_t mx8i_keeps_forms(const struct mx8_model *m);
/* What backward needs of an operand of `count` linears. */
struct mx8_need mx8i_find_backward_need(const struct mx8_model *m, int32_t count, const struct mx8_param *const *p);
/* Memory for f->hp: `spare`, when it has the same shape and only codes outlast the making of them. */
struct mx8_tensor mx8i_take_remade(struct mx8_model *m, struct mx8_need need, struct mx8_tensor spare);
/* Codes of f->hp into scratch; clipped values were counted the first time. */
enum mx8_status mx8i_remake_codes(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need, struct mx8_tensor offsets);
/* The same of what `maker` makes, whose memory is f->hp. */
enum mx8_status mx8i_remake_forms(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need,
    const struct mx8_maker *maker, struct mx8_tensor offsets);
/* A norm's output and its codes, from the norm's saved input. */
enum mx8_status mx8i_remake_norm(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need, struct mx8_tensor x,
    struct mx8_tensor rstd, const struct mx8_param *p);
enum mx8_status mx8i_run_linear(struct mx8_model *m, struct mx8_tensor y, const struct mx8_forms *x,
    const struct mx8_param *p, struct mx8_tensor offsets);
/* dx, and p's gradient. Quantizes dy itself (into scratch, released before it returns). */
enum mx8_status mx8i_run_linear_backward(struct mx8_model *m, struct mx8_tensor dx, struct mx8_tensor dy,
    const struct mx8_forms *x, const struct mx8_param *p, struct mx8_tensor offsets);
/* The same of a dy whose codes, as far as p asks for them, were made before. d->hp has memory, which is read if they were not. */
enum mx8_status mx8i_multiply_backward(struct mx8_model *m, struct mx8_tensor dx, const struct mx8_forms *d,
    const struct mx8_forms *x, const struct mx8_param *p, struct mx8_tensor offsets);
enum mx8_status mx8i_run_add(struct mx8_model *m, struct mx8_tensor y, struct mx8_tensor a, struct mx8_tensor b);
/* y = norm(x (+ add)); sum (absent without add) receives x + add. */
enum mx8_status mx8i_run_norm(struct mx8_model *m, struct mx8_tensor y, struct mx8_tensor rstd, struct mx8_tensor sum,
    struct mx8_tensor x, struct mx8_tensor add, const struct mx8_param *p);
/* The norm into f->hp, and its codes as needed: rows into scratch, columns saved. */
enum mx8_status mx8i_make_norm(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need, struct mx8_tensor rstd,
    struct mx8_tensor sum, struct mx8_tensor x, struct mx8_tensor add, const struct mx8_param *p);
/* dx = d(norm)/dx dy + dres, and p's gradient. dx may be dres. */
enum mx8_status mx8i_run_norm_backward(struct mx8_model *m, struct mx8_tensor dx, struct mx8_tensor dy,
    struct mx8_tensor x, struct mx8_tensor rstd, struct mx8_tensor dres, const struct mx8_param *p);

/* ---- layer_heads.c: a->q, a->k or a->v from a->n1: projection, norm, clamp, RoPE ---- */
enum mx8_head_kind { MX8_QUERIES, MX8_KEYS, MX8_VALUES };
enum mx8_status mx8i_heads_forward(struct mx8_model *m, struct mx8_layer *l, enum mx8_head_kind kind);
/* *d: gradient of a->q, a->k or a->v on entry, of its projection's output on return (other memory of the scratch stack
 * where there is a norm). */
enum mx8_status mx8i_heads_backward(
    struct mx8_model *m, const struct mx8_layer *l, enum mx8_head_kind kind, struct mx8_tensor *d);

/* ---- the parts of a layer ---- */
enum mx8_status mx8i_attention_forward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor out);
enum mx8_status mx8i_attention_backward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor dx,
    struct mx8_tensor dout);
/* out absent: only what backward needs (recomputation). offsets absent: dense. */
enum mx8_status mx8i_ffn_forward(struct mx8_model *m, const struct mx8_ffn *w, struct mx8_ffn_saved *s,
    struct mx8_tensor out, const struct mx8_forms *in, struct mx8_tensor offsets);
enum mx8_status mx8i_ffn_backward(struct mx8_model *m, const struct mx8_ffn *w, const struct mx8_ffn_saved *s,
    struct mx8_tensor dx, struct mx8_tensor dout, const struct mx8_forms *in, struct mx8_tensor offsets);
/* Which forms the layer's second half reads its normalised input in. */
struct mx8_need mx8i_find_moe_need(const struct mx8_model *m, const struct mx8_layer *l, int32_t keep);
struct mx8_routing mx8i_take_routing(struct mx8_model *m, const struct mx8_layer *l);
enum mx8_status mx8i_moe_forward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor out, int32_t recompute);
enum mx8_status mx8i_moe_backward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor dx, struct mx8_tensor dout);
enum mx8_status mx8i_layer_forward(struct mx8_model *m, struct mx8_layer *l, int32_t recompute);
enum mx8_status mx8i_layer_backward(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor d);

/* The optimizer leaves bf16 copies: in one process, of what is read as bf16. Several gather masters, rounded on the way. */
static inline int32_t mx8i_keeps_copies(const struct mx8_model *m) {
    return !m->parallel && m->recipe.dtype == MX8_BF16;
}
/* Nobody has the weight in the recipe's dtype: its codes are made from the masters, rounded in between. */
int32_t mx8i_is_codes_only(const struct mx8_model *m, const struct mx8_param *p);

/* ---- shard.c: places in the flat arrays and in the units, from the grid ---- */
enum mx8_status mx8i_plan_shards(struct mx8_model *m);
void mx8i_free_shards(struct mx8_model *m);
static inline const struct mx8_shard *mx8i_get_shard(const struct mx8_model *m, const struct mx8_param *p) {
    return &m->shard[p - m->params.param];
}

/* ---- gather.c: weights that travel as MXFP8 codes ---- */
/* Room for the messages of all ranks, whatever is asked for of the unit. */
size_t mx8i_count_messages(const struct mx8_model *m, int32_t unit);
/* Quantizes this rank's part of the segment and sends it. Planning: counts. */
enum mx8_status mx8i_send_codes(struct mx8_model *m, int32_t unit, int32_t experts);
/* What has come to its places: as if the whole weights had been quantized here. */
enum mx8_status mx8i_place_codes(struct mx8_model *m, int32_t unit, int32_t experts);

/* ---- units.c: weights come before they are used, gradients go when they are complete. With one process all of these
 * return at once. ---- */
enum { MX8_NO_UNIT = -1 };
enum mx8_direction { MX8_VALIDATING, MX8_GOING_FORWARD, MX8_GOING_BACKWARD }; /* of a walk: which codes it reads */
int32_t mx8i_get_embedding_unit(const struct mx8_model *m);
int32_t mx8i_get_layer_unit(const struct mx8_model *m, int64_t layer); /* NO_UNIT outside the layers */
int32_t mx8i_get_head_unit(const struct mx8_model *m);
/* The unit's weights are there when this returns; `next` starts to come. */
enum mx8_status mx8i_use_unit(struct mx8_model *m, int32_t unit, int32_t next);
/* Its memory may be used for another unit. */
void mx8i_drop_unit(struct mx8_model *m, int32_t unit);
/* Before the first gradient of the unit is written, and after the last. */
enum mx8_status mx8i_begin_gradients(struct mx8_model *m, int32_t unit);
enum mx8_status mx8i_end_gradients(struct mx8_model *m, int32_t unit);
enum mx8_status mx8i_finish_gradients(struct mx8_model *m); /* all that are on their way */
void mx8i_forget_units(struct mx8_model *m);                /* the weights have changed */
enum mx8_status mx8i_settle(struct mx8_model *m);           /* before the host waits for the device */
void mx8i_poll(struct mx8_model *m);                        /* lets transfers get on */
/* After allocation: where the units' arrays are. */
void mx8i_place_units(struct mx8_model *m);

/* ---- dispatch.c: expert parallelism ---- */
int32_t mx8i_is_spread(const struct mx8_model *m); /* experts lie on several ranks */
/* Rows that this rank's experts get, or while planning the most there can be; without expert parallelism, T top_k. */
int64_t mx8i_count_expert_rows(const struct mx8_model *m, const struct mx8_layer *l);
/* Tells all ranks of the group where the tokens go. Fills routing.groups. */
enum mx8_status mx8i_plan_dispatch(struct mx8_model *m, struct mx8_layer *l);
/* rows (T top_k, sorted by expert) to the ranks of their experts, and back. */
enum mx8_status mx8i_dispatch_rows(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor there, struct mx8_tensor rows);
enum mx8_status mx8i_return_rows(struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor rows, struct mx8_tensor there);

/* ---- memory.c ---- */
/* Places of the io block from its start; base NULL: none. Returns its size. */
size_t mx8i_lay_out_io(const struct mx8_model *m, uint8_t *base, struct mx8_io *io);

/* ---- graph.c ---- */
/* walk_training, or the launch of its recording. */
enum mx8_status mx8i_run_training_walk(struct mx8_model *m);
void mx8i_release_graphs(struct mx8_model *m);

/* ---- step.c ---- */
enum mx8_status mx8i_walk_training(struct mx8_model *m);
/* Before any walk: how many rows a chunk of the head has, and where its workspace lies. */
enum mx8_status mx8i_choose_head_chunk(struct mx8_model *m);
enum mx8_status mx8i_walk_validation(struct mx8_model *m, float *logits /* host, may be NULL */);
/* ---- debug.c ---- */
int32_t mx8i_choose_format(const struct mx8_model *m, int32_t is_gradient);
/* With MX8_CONTROL_REUSED_CODES *t becomes its values after row codes (a gradient's: after column codes), in scratch. */
enum mx8_status mx8i_round_for_control(
    struct mx8_model *m, struct mx8_tensor *t, const struct mx8_op_options *quantizer, int32_t is_gradient);
/* Whether something wants the values that codes are made of: a dump, or that control. */
int32_t mx8i_looks_at_values(const struct mx8_model *m);
enum mx8_status mx8i_dump_linear(struct mx8_model *m, const struct mx8_param *p, struct mx8_tensor x,
    struct mx8_tensor dy, struct mx8_tensor offsets);
struct mx8_op_options mx8i_make_weight_quantizer(const struct mx8_model *m); /* weights.c */
/* ---- weights.c ---- */
/* n masters from `at` as the recipe's dtype. */
enum mx8_status mx8i_round_masters(struct mx8_model *m, void *to, size_t at, size_t n);
/* Quantizes every converted weight of the unit. */
enum mx8_status mx8i_walk_weights(struct mx8_model *m, int32_t unit);
/* ---- update.c ---- */
/* Whether the weight's update makes its codes, too. Not with several processes, which make them when a unit is gathered,
 * nor where something else looks at the rounded values: a negative control, the count of wide blocks. */
int32_t mx8i_updates_codes(const struct mx8_model *m, const struct mx8_param *p);

#endif
