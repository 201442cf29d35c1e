/* Parts of mx8i_resolve_job, one a file, and the marks in the option table's help that they act on. */
#ifndef MX8_TRAIN_RESOLVE_H
#define MX8_TRAIN_RESOLVE_H

#include "train/job.h"

#define MX8_MARK_ONLY "[default only] " /* another value is an error */
#define MX8_MARK_IDLE "[no effect] "    /* any value will do */

/* Flavor, architecture overrides, batch and sequence length, activation checkpointing. */
enum mx8_status mx8i_resolve_model(const struct mx8_options *o, struct mx8_job *job);
/* The architecture's fields that were set as options, on top of *config; checks the result. */
enum mx8_status mx8i_override_config(const struct mx8_options *o, struct mx8_model_config *config);
/* Converters and the mx section -> job->recipe. */
enum mx8_status mx8i_resolve_recipe(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes);
/* The data to train on and to validate with; after mx8i_resolve_model. */
enum mx8_status mx8i_resolve_data(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes);
/* The debug section's experiments -> job->debug. */
enum mx8_status mx8i_resolve_debug(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes);
/* A LIST option as comma separated text without blanks. */
enum mx8_status mx8i_join_list(const struct mx8_options *o, const char *key, char *text, size_t size);
/* The checkpoint section -> job->checkpoint. */
enum mx8_status mx8i_resolve_checkpoint(
    const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes);
/* torchtitan's split of `steps` into warmup, stable and decay. ratio NaN: everything after the warmup decays. A warmup
 * longer than the job is clamped, with a note. */
struct mx8_schedule mx8i_make_schedule(double lr, int64_t steps, int64_t warmup, double ratio, enum mx8_decay type,
    double min_lr_factor, const struct mx8_log *notes);

#endif
