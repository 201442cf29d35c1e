/* What the utilization of a step (mfu) is counted against: floating-point operations a second of the device at its best. */
#ifndef MX8_TRAIN_PEAK_H
#define MX8_TRAIN_PEAK_H

#include "kernels/kernels.h"

/* A GPU: the data sheet's dense bf16 rate, as torchtitan counts it whatever the recipe; 0 when the name is in no table.
 * The CPU: what its own matrix product of `dtype` (F32 or BF16) reaches here and now, which takes some milliseconds. */
enum mx8_status mx8i_find_peak(struct mx8_context *ctx, int32_t dtype, double *flops);

/* The table alone: a GPU's name as the driver gives it, such as "NVIDIA H200". 0: unknown. */
double mx8i_find_gpu_peak(const char *name);

#endif
