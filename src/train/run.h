/* Inside the trainer: a job while it runs, shared by the files that open it (run.c), train it (loop.c) and sum it up
 * (summary.c). */
#ifndef MX8_TRAIN_RUN_H
#define MX8_TRAIN_RUN_H

#include "train/loop.h"
#include "train/metrics.h"
#include "train/optimizer.h"

struct mx8_run {
    const struct mx8_job *job;
    struct mx8_context *ctx;
    const struct mx8_watch *watch;
    struct mx8_data *data;
    struct mx8_model *model;
    struct mx8_optimizer optimizer;
    struct mx8_metrics metrics;
    struct mx8_flat flat;
    int64_t position; /* of the data: samples that the steps so far have read */
    int32_t *tokens, *targets, *docs; /* one microbatch; docs NULL unless the mask wants them */
    int64_t memory, capacity;         /* bytes held; bytes that were free before */
    double *losses, *speeds;          /* losses: of the steps that were not skipped; speeds: of all */
    int64_t n_losses;
    double started, line_time; /* when training started; when the last step line was logged */
    int64_t line_tokens;       /* tokens since then */
};

/* ---- run.c ---- */
/* Plans, reads, allocates and fills everything up to the first step. What it took is given back by close, whether it
 * succeeded or not. */
enum mx8_status mx8i_open_run(struct mx8_run *r);
void mx8i_close_run(struct mx8_run *r);

/* ---- summary.c ---- */
/* Fills what the steps themselves have not; reorders the speeds. */
void mx8i_summarize_run(struct mx8_run *r, struct mx8_summary *out);

#endif
