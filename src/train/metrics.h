/* metrics.jsonl (every step at full precision, one line each, on disk before the next step starts) and run.json. */
#ifndef MX8_TRAIN_METRICS_H
#define MX8_TRAIN_METRICS_H

#include <stdio.h>
#include "train/tensorboard.h"

struct mx8_metrics {
    FILE *file;
    char *path;
    struct mx8_model *model;
    int64_t layers, experts; /* of the expert load */
    int64_t *load;           /* (layers, experts) tokens since the last bias update */
    int64_t capacity;        /* bytes that were free before the job, 0 unknown; this and the next for TensorBoard */
    double peak_flops;       /* of the device, 0 unknown */
    int32_t count_gaps;      /* wide_blocks stands in each line */
    struct mx8_board board;  /* no file: not asked for */
};

/* What came before in the same folder. */
struct mx8_history {
    int64_t step;     /* the run goes on after this one; 0: a new run */
    int32_t branched; /* later steps were results that are given up, not steps that are done again: a copy is kept */
};

/* Creates job->dump_folder. Files of an earlier run there are moved aside to metrics-N.jsonl and run-N.json. A run that
 * goes on keeps its lines up to history->step and drops what was written after: no step is there twice. */
enum mx8_status mx8i_open_metrics(const struct mx8_job *job, const struct mx8_context *ctx, struct mx8_model *model,
    const struct mx8_history *history, const struct mx8_log *log, struct mx8_metrics *out);
/* The step's expert load, from the model: call before the bias update clears it. */
enum mx8_status mx8i_read_expert_load(struct mx8_metrics *m);
enum mx8_status mx8i_write_metrics(struct mx8_metrics *m, const struct mx8_step *s);
void mx8i_close_metrics(struct mx8_metrics *m);

#endif
