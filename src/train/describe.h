/* Bytes of a job, for the plan that --dry-run prints and for the loop that holds them. */
#ifndef MX8_TRAIN_DESCRIBE_H
#define MX8_TRAIN_DESCRIBE_H

#include "train/loop.h"
#include "train/prefetch.h"

/* How a job reads its microbatches, from sample 0 on. */
struct mx8_prefetch_options mx8i_get_prefetch_options(const struct mx8_job *job);
/* Host arrays of tokens, targets, and document ids when the mask wants them: the microbatch at hand, the one read ahead,
 * and validation's. */
size_t mx8i_count_batch_bytes(const struct mx8_job *job);
/* Host memory for the copy that is written in the background; 0 unless checkpoint.async_mode asks for it. */
size_t mx8i_count_snapshot_plan(const struct mx8_job *job, const struct mx8_memory_plan *plan);
/* Everything a job holds: the model's plan, the context's scratch in it, the microbatch, the optimizer's scalars, and on
 * the CPU, where all memory is one, the copy of the state. */
int64_t mx8i_count_job_bytes(const struct mx8_job *job, const struct mx8_memory_plan *plan);

#endif
