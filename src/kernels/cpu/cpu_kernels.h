/* What the files of the CPU backend share: the three tables, and the kernels that move bytes and need no vectors, which
 * are compiled once and stand in every table. */
#ifndef MX8_KERNELS_CPU_CPU_KERNELS_H
#define MX8_KERNELS_CPU_CPU_KERNELS_H

#include "kernels/kernels.h"

extern const struct mx8_kernels mx8i_kernels_scalar, mx8i_kernels_avx2, mx8i_kernels_avx512;

/* memory.c */
enum mx8_status mx8i_cpu_allocate(const struct mx8_exec *x, size_t bytes, void **out);
void mx8i_cpu_release(const struct mx8_exec *x, void *p);
int64_t mx8i_cpu_get_free_memory(const struct mx8_exec *x);
enum mx8_status mx8i_cpu_copy(const struct mx8_exec *x, void *dst, const void *src, size_t bytes);
enum mx8_status mx8i_cpu_copy_lines(const struct mx8_exec *x, void *dst, size_t dst_stride, const void *src,
                                    size_t src_stride, int64_t lines, size_t bytes);
enum mx8_status mx8i_cpu_fill(const struct mx8_exec *x, void *dst, int32_t byte, size_t bytes);
enum mx8_status mx8i_cpu_synchronize(const struct mx8_exec *x);

/* timer.c */
enum mx8_status mx8i_cpu_mark(const struct mx8_exec *x, void **timer, int64_t index);
enum mx8_status mx8i_cpu_read_marks(const struct mx8_exec *x, void *timer, int64_t count, double *seconds);
void mx8i_cpu_release_timer(const struct mx8_exec *x, void *timer);

/* gaps.c */
enum mx8_status mx8i_cpu_count_wide_blocks(const struct mx8_exec *x, const struct mx8_quant_job *j, int64_t *count);

/* normal.c */
enum mx8_status mx8i_cpu_fill_normal(const struct mx8_exec *x, const struct mx8_normal_job *j);

/* layout.c */
enum mx8_status mx8i_cpu_block_scales(const struct mx8_exec *x, const struct mx8_layout_job *j);
enum mx8_status mx8i_cpu_unblock_scales(const struct mx8_exec *x, const struct mx8_layout_job *j);
enum mx8_status mx8i_cpu_pad_groups(const struct mx8_exec *x, const struct mx8_pad_job *j);
enum mx8_status mx8i_cpu_unpad_groups(const struct mx8_exec *x, const struct mx8_pad_job *j);

#endif
