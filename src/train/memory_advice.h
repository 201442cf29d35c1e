/* A job that does not fit: what it needs, what is there, and with which options it would. */
#ifndef MX8_TRAIN_MEMORY_ADVICE_H
#define MX8_TRAIN_MEMORY_ADVICE_H

#include "train/job.h"

/* OUT_OF_MEMORY, with advice, when the planned job needs more than `available` bytes of the context's memory (0:
 * unknown, always OK). */
enum mx8_status mx8i_check_memory(
    const struct mx8_job *job, struct mx8_context *ctx, struct mx8_model *m, int64_t available);
/* After an allocation that failed: adds advice to the message. Returns OUT_OF_MEMORY. */
enum mx8_status mx8i_advise_on_memory(const struct mx8_job *job, struct mx8_context *ctx, int64_t available);

#endif
