/* Initial weights: each value from its own counter, so the partition means nothing. */
#include "base/normal.h"
#include "kernels/cpu/cpu_kernels.h"

enum mx8_status mx8i_cpu_fill_normal(const struct mx8_exec *x, const struct mx8_normal_job *j) {
    const double std = j->std, low = j->low, width = j->width;
#pragma omp parallel for num_threads(x->threads) schedule(static)
    for (int64_t i = 0; i < j->n; i++)
        j->out[i] = mx8i_make_weight(j->seed, j->stream, j->first + (uint64_t)i, std, low, width);
    return MX8_OK;
}
