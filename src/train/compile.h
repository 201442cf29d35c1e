/* compile.enable on CUDA: forward and backward as one graph of the device (the model records it), the update as another.
 * Between the two the host decides about a step that is not finite. */
#ifndef MX8_TRAIN_COMPILE_H
#define MX8_TRAIN_COMPILE_H

#include "train/job.h"

struct mx8_run;

struct mx8_compiled { int32_t on, warm; void *update; };

/* Before anything runs on the context: graphs need a stream of its own. */
enum mx8_status mx8i_begin_compiling(const struct mx8_job *job, struct mx8_context *ctx, struct mx8_compiled *out);
/* AdamW and everything that follows from the weights. */
enum mx8_status mx8i_run_update(struct mx8_run *r, double lr);
void mx8i_end_compiling(struct mx8_compiled *c, struct mx8_context *ctx);

#endif
