/* What a report knows about a run: every step of its metrics.jsonl, and the facts of its run.json. */
#ifndef MX8_TRAIN_REPORT_DATA_H
#define MX8_TRAIN_REPORT_DATA_H

#include <stdint.h>
#include "mx8/status.h"

struct mx8_run_fact {
    char *name, *value;
};

/* Counts that quantizers make, a number for every step. */
enum mx8_report_count { MX8_COUNT_SATURATED, MX8_COUNT_WIDE_BLOCKS, MX8_REPORT_COUNTS };

struct mx8_report_run {
    char name[128]; /* of the recipe, or the folder's last part */
    int64_t n;      /* steps; arrays below have n items, NaN where a line lacks the number */
    double *step, *loss, *speed, *memory, *count[MX8_REPORT_COUNTS];
    int64_t n_validations; /* steps that were validated after; the two arrays below have so many items */
    double *validation_step, *validation_loss;
    int64_t layers, experts;      /* MoE layers; 0: no expert load in the file */
    double *load;                 /* [n][layers][experts]: tokens routed, over the even share (1 is balanced) */
    struct mx8_run_fact fact[32]; /* run.json's top-level text and numbers, as text */
    int32_t n_facts;
    double median_speed, peak_memory, final_loss; /* speed without step 1; loss of the last 5 % */
    double total[MX8_REPORT_COUNTS];              /* NaN: no line has the count */
    double waited, seconds;                       /* for data; of all steps */
    double last_tokens;                           /* seen up to the last step */
    double data_share;                            /* of the steps' time: waiting for data; NaN: not in the file */
    double final_validation;                      /* the last validation's loss; NaN: none */
};

/* Errors begin with the path, and name the line. */
enum mx8_status mx8i_read_run(const char *folder, struct mx8_report_run *out);
void mx8i_release_run(struct mx8_report_run *r);
const char *mx8i_find_fact(const struct mx8_report_run *r, const char *name); /* NULL when absent */

/* Centred mean over `window` items: narrower at the start, cut off at the end. NaN items are left out. */
void mx8i_smooth(const double *in, int64_t n, int64_t window, double *out);

#endif
