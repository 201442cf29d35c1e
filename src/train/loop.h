/* The training loop: data -> model -> gradients -> clip -> bias update -> AdamW -> metrics. Reads top to bottom. */
#ifndef MX8_TRAIN_LOOP_H
#define MX8_TRAIN_LOOP_H

#include "train/job.h"
#include "train/data.h"

/* What one step measured. */
struct mx8_step {
    int64_t step, tokens;            /* tokens: seen since the start */
    double loss, grad_norm, lr, seconds, data_seconds, tokens_per_second;
    int64_t saturated, memory;       /* memory: bytes held by the job */
    int64_t wide_blocks;             /* with metrics.enable_scale_gaps */
    int32_t skipped;                 /* a NaN step that on_nan=skip left out */
    int32_t validated;               /* after this step; what follows is set then */
    double validation_loss, validation_seconds; /* not part of seconds */
    int64_t validation_tokens;
};
struct mx8_summary {
    double median_tps, final_loss, first_loss; /* median over steps but the first; final: mean of the last 5 % of steps (>= 1) */
    int64_t peak_memory, steps, tokens;              /* steps, tokens: since step 1, whichever process ran them */
    int64_t resumed_at, saved_step;                  /* 0: a new run; -1: no checkpoint holds the last step */
    double seconds;
    int32_t interrupted, complete;                   /* complete: nothing was left to do */
    double data_share;                               /* of the steps' time: waiting for data */
    double validation_loss; int64_t validation_step; /* the last one; step 0: none */
};
/* Called by the loop; every field may be NULL. `should_stop` is asked before each step (signals live in cli). */
struct mx8_watch {
    void *user;
    struct mx8_log log;                                         /* torchtitan's log lines, without prefix or colour */
    void (*on_step)(void *user, const struct mx8_job *job, const struct mx8_step *s, int64_t steps);
    int (*should_stop)(void *user);
};

/* Runs the whole job: opens data, plans and allocates the model, trains, writes metrics.jsonl (every step, full precision)
 * and, when asked, checkpoints, and resumes from them. The context is the caller's. */
enum mx8_status mx8i_run_job(const struct mx8_job *job, struct mx8_context *ctx, const struct mx8_watch *watch,
                             struct mx8_summary *out);
/* The memory plan as text lines (one purpose a line, total last): --dry-run. */
enum mx8_status mx8i_describe_plan(const struct mx8_job *job, struct mx8_context *ctx, const struct mx8_log *out);
/* The table of tensors, converted or not and why, with shapes and FLOP share; `full`: every tensor, else totals by class. */
void mx8i_describe_conversion(const struct mx8_model *m, int32_t full, const struct mx8_log *out);

#endif
