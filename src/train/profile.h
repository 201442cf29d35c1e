/* profiling.enable: where a step's time goes, as a table for the log and profile.json in the dump folder. */
#ifndef MX8_TRAIN_PROFILE_H
#define MX8_TRAIN_PROFILE_H

#include "kernels/profile.h"
#include "train/loop.h"

/* Steps timed so far. The first step is left out, when there is more than one: it carries what happens once. */
struct mx8_step_profile {
    struct mx8_profile *profile; /* NULL: not asked for */
    int64_t steps;
    double seconds;
};

enum mx8_status mx8i_open_step_profile(const struct mx8_job *job, struct mx8_context *ctx, struct mx8_step_profile *out);
/* After a step, once the device is idle. */
enum mx8_status mx8i_add_step_profile(
    struct mx8_step_profile *p, const struct mx8_job *job, struct mx8_context *ctx, const struct mx8_step *s);
/* Calls since the last step are no part of any. */
enum mx8_status mx8i_forget_calls(struct mx8_step_profile *p, struct mx8_context *ctx);
/* Measures the ceilings in the model's scratch memory, logs the table and writes the file. */
enum mx8_status mx8i_report_step_profile(struct mx8_step_profile *p, const struct mx8_job *job,
    struct mx8_context *ctx, struct mx8_model *model, const struct mx8_log *log);
void mx8i_close_step_profile(struct mx8_step_profile *p, struct mx8_context *ctx); /* before the model goes */

#endif
