/* Devices beyond the CPU, and what an operator may need there before a context says which one it runs on. */
#ifndef MX8_OPS_DEVICE_H
#define MX8_OPS_DEVICE_H

#include "mx8/context.h"
#include "kernels/kernels.h"

/* Fills exec (kernels, ordinal, backend) and the texts of a context for a CUDA device; UNSUPPORTED without one. */
enum mx8_status mx8i_open_cuda(const struct mx8_context_options *options, struct mx8_context *ctx);

/* Releases what open_cuda gave a context. */
void mx8i_close_cuda(struct mx8_context *ctx);
/* The table of an opened CUDA device; NULL before one was opened. */
const struct mx8_kernels *mx8i_get_cuda_table(void);

/* Workspace that serves every backend, on the CPU with as many threads as there are cores: infer knows no context. */
size_t mx8i_bound_attention(const struct mx8_attention_job *j, int32_t backward);
size_t mx8i_bound_embedding(const struct mx8_embedding_job *j);

#endif
