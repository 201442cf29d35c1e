// Initial weights: one counter a value, the arithmetic of base/normal.h in double. Compiled without fused multiply-adds
// (CMakeLists.txt), so that the bits are the host's.
#include "backend.h"
#include "base/normal.h"

static __global__ void fill_values(struct mx8_normal_job j) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < j.n; i += step)
        j.out[i] = mx8i_make_weight(j.seed, j.stream, j.first + (uint64_t)i, j.std, j.low, j.width);
}

enum mx8_status cuda_fill_normal(const struct mx8_exec *x, const struct mx8_normal_job *j) {
    if (j->n == 0) return MX8_OK;
    fill_values<<<blocks_for(j->n, 256, 132 * 64), 256, 0, stream_of(x)>>>(*j);
    CUDA_LAUNCHED("fill normal");
}
