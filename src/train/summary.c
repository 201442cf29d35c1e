/* What a finished run comes down to. */
#include <math.h>
#include <stdlib.h>
#include "base/error.h"
#include "train/parallel.h"
#include "train/report_data.h"
#include "train/run.h"

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The first step carries what happens once (page faults, cold caches): it counts only when it is alone. */
static double get_median_speed(struct mx8_run *r) {
    int64_t from = r->n_speeds > 1, n = r->n_speeds - from;
    if (n < 1) return 0;
    double *speeds = r->speeds + from;
    qsort(speeds, (size_t)n, sizeof *speeds, compare_doubles);
    return n % 2 ? speeds[n / 2] : (speeds[n / 2 - 1] + speeds[n / 2]) / 2;
}

/* The mean over the last 5 % of the steps that were not skipped, at least one. */
static double get_final_loss(const struct mx8_run *r) {
    int64_t n = r->n_losses / 20 > 1 ? r->n_losses / 20 : 1;
    if (r->n_losses == 0) return (double)NAN;
    double sum = 0;
    for (int64_t i = r->n_losses - n; i < r->n_losses; i++) sum += r->losses[i];
    return sum / (double)n;
}

/* A run that was complete before loads nothing: what it came to stands in its metrics. */
static void recall_run(struct mx8_run *r, struct mx8_summary *out) {
    struct mx8_report_run past;
    if (!mx8i_is_first_rank(r->job)) return;
    if (mx8i_read_run(r->job->dump_folder, &past) != MX8_OK) {
        mx8i_log(&r->watch->log, "warning: what this run came to is not known: %s", mx8_get_last_error());
        return;
    }
    out->final_loss = past.final_loss;
    out->median_tps = past.median_speed;
    out->first_loss = past.n > 0 && past.step[0] == 1 ? past.loss[0] : (double)NAN;
    out->tokens = (int64_t)past.last_tokens;
    out->seconds = past.seconds;
    out->data_share = isfinite(past.data_share) ? past.data_share : 0;
    if (past.n_validations) {
        out->validation_loss = past.final_validation;
        out->validation_step = (int64_t)past.validation_step[past.n_validations - 1];
    }
    mx8i_release_run(&past);
}

void mx8i_summarize_run(struct mx8_run *r, struct mx8_summary *out) {
    out->final_loss = get_final_loss(r);
    out->median_tps = get_median_speed(r);
    out->first_loss = r->first_loss;
    out->steps = r->step;
    out->tokens = r->position * r->job->model.seq_len;
    out->resumed_at = r->resumed ? r->started_at : 0;
    out->complete = r->complete;
    out->peak_memory = r->memory;
    out->seconds = r->started > 0 ? mx8i_get_seconds() - r->started : 0;
    if (r->complete) recall_run(r, out);
}
