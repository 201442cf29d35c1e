/* Inside the trainer: a job while it runs, shared by the files that open it (run.c), train it (loop.c) and sum it up
 * (summary.c). */
#ifndef MX8_TRAIN_RUN_H
#define MX8_TRAIN_RUN_H

#include "train/checkpoint_store.h"
#include "train/compile.h"
#include "train/loop.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/prefetch.h"
#include "train/profile.h"
#include "train/saver.h"
#include "train/validate.h"

struct mx8_run {
    const struct mx8_job *job;
    struct mx8_context *ctx;
    const struct mx8_watch *watch;
    struct mx8_data *data;
    struct mx8_model *model;
    struct mx8_optimizer optimizer;
    struct mx8_metrics metrics;
    struct mx8_flat flat;
    struct mx8_step_profile profile;
    struct mx8_compiled compiled;
    /* where it stands: steps done, samples of the data read, steps that the learning rate has taken */
    int64_t step, position, schedule_step;
    int64_t started_at;                /* the step it was loaded at; 0: a new run */
    int32_t resumed;                   /* from its own folder of checkpoints */
    int32_t branched;                  /* from one that is not the newest: later results are given up */
    int32_t complete;                  /* every step was done before: nothing is loaded, nothing runs */
    struct mx8_straggler { int32_t rank, events, steps; double seconds, median; } straggler;
    int64_t saved_step; /* several processes: the last one saved */
    int32_t stopping; /* some rank was asked to stop */
    struct mx8_prefetch *batches;      /* opened by the first batch, at `position` */
    struct mx8_validator *validator;   /* NULL: the job does not validate */
    double data_seconds, step_seconds; /* waiting for data; all steps so far */
    int64_t memory, capacity;          /* bytes held; bytes that were free before */
    double peak_flops;                 /* what mfu is counted against; 0: unknown */
    double *losses, *speeds;           /* losses: of the steps that were not skipped; speeds: of all run here */
    int64_t n_losses, n_speeds;
    double first_loss;                 /* of step 1 */
    double started, line_time; /* when training started; when the last step line was logged */
    int64_t line_tokens;       /* tokens since then */
    char *checkpoint_folder;   /* NULL: no checkpoints are asked for */
    struct mx8_store store;
    struct mx8_saver *saver;
    int32_t loss_is_finite; /* of the last step */
};

/* ---- run.c ---- */
/* Plans, reads, allocates and fills everything up to the first step. What it took is given back by close, whether it
 * succeeded or not. */
enum mx8_status mx8i_open_run(struct mx8_run *r);
void mx8i_close_run(struct mx8_run *r);

/* ---- run_data.c ---- */
enum mx8_status mx8i_open_run_data(struct mx8_run *r);
void mx8i_close_run_data(struct mx8_run *r);
/* The next microbatch, counting the time that it is waited for. The first one is that of r->position; whoever moves the
 * position later closes r->batches. */
enum mx8_status mx8i_next_run_batch(struct mx8_run *r, struct mx8_step *s, struct mx8_batch *out);
/* Validates after a step that calls for it. Its time is neither the step's nor that of the line that is logged next. */
enum mx8_status mx8i_validate_run(struct mx8_run *r, struct mx8_step *s);
/* Logs the validation, if there was one, and adds the step to what the summary says of data. */
void mx8i_finish_step_data(struct mx8_run *r, const struct mx8_step *s, struct mx8_summary *out);

/* ---- summary.c ---- */
/* Fills what the steps themselves have not; reorders the speeds. */
void mx8i_summarize_run(struct mx8_run *r, struct mx8_summary *out);

#endif
