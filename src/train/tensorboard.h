/* What TensorBoard shows of a job: torchtitan's tags, at the steps that are logged. */
#ifndef MX8_TRAIN_TENSORBOARD_H
#define MX8_TRAIN_TENSORBOARD_H

#include "train/events.h"
#include "train/loop.h"

struct mx8_board {
    struct mx8_events events;
    const struct mx8_job *job;
    double flops_per_token, peak_flops; /* peak 0: unknown, no mfu */
    double seconds, data_seconds; /* of the steps since the last event */
    int64_t tokens, steps;
};

/* A file in job->dump_folder/job->tensorboard_folder/YYYYMMDD-HHMM. A run that goes on after `step` steps adds a file to
 * the newest folder there, and takes later steps back that stand in it. */
enum mx8_status mx8i_open_board(const struct mx8_job *job, int64_t step, double peak_flops, struct mx8_board *out);
/* Every step; writes those that are logged. capacity: bytes that the device had free, 0 unknown. */
enum mx8_status mx8i_write_board(struct mx8_board *b, const struct mx8_step *s, int64_t capacity);
void mx8i_close_board(struct mx8_board *b);

#endif
