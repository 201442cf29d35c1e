/* The loss on a validation set, measured while training and without an effect on it: the same samples each time, from
 * the set's start, forward only. */
#ifndef MX8_TRAIN_VALIDATE_H
#define MX8_TRAIN_VALIDATE_H

#include "train/data.h"
#include "train/job.h"

struct mx8_validator;
struct mx8_validation_result {
    double loss, seconds;
    int64_t tokens;   /* that the loss is the mean of */
    int32_t finished; /* 0: asked to stop, there is no loss */
};

/* *out is NULL when the job does not validate. */
enum mx8_status mx8i_open_validator(const struct mx8_job *job, struct mx8_validator **out);
void mx8i_close_validator(struct mx8_validator *v); /* accepts NULL */
const struct mx8_data *mx8i_get_validation_data(const struct mx8_validator *v);
int64_t mx8i_count_validation_samples(const struct mx8_validator *v); /* of one validation */
/* Bytes of the arrays that mx8i_open_validator allocates for a job. */
size_t mx8i_count_validation_bytes(const struct mx8_job *job);
/* After step 1, every multiple of validation.freq, and the job's last step. */
int mx8i_is_validation_step(const struct mx8_job *job, int64_t step);
/* should_stop (may be NULL) is asked between batches, with one process. */
enum mx8_status mx8i_validate_model(struct mx8_validator *v, struct mx8_model *m, int (*should_stop)(void *user),
    void *user, struct mx8_validation_result *out);

#endif
