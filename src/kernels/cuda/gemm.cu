// The matrix product of the table: chooses a path and defines what lies outside every group.
#include "backend.h"
#include "convert.cuh"

namespace {
// Rows at and past the last end are zero; one block a row, blocks before it return at once.
__global__ void zero_tail(char *c, int64_t row_bytes, int64_t used_bytes, int64_t M, const int *ends, int G) {
    const int64_t first = G > 0 ? ends[G - 1] : 0;
    for (int64_t r = first + blockIdx.x; r < M; r += gridDim.x)
        for (int64_t i = threadIdx.x * 2; i < used_bytes; i += blockDim.x * 2) *(uint16_t *)(c + r * row_bytes + i) = 0;
}
// An empty contraction: C = bias (or C when accumulating).
template <class T> __global__ void fill_bias(T *c, int64_t M, int64_t N, int64_t ls, int64_t gs, const void *bias, int bias_bf16) {
    T *out = c + blockIdx.y * gs;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < M * N; i += step) {
        const int64_t m = i / N, n = i % N;
        const float b = !bias ? 0.f : bias_bf16 ? __bfloat162float(((const __nv_bfloat16 *)bias)[n]) : ((const float *)bias)[n];
        out[m * ls + n] = mx8::from_float<T>(b);
    }
}

enum mx8_status empty_contraction(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    if (j->accumulate) return MX8_OK;
    const dim3 grid(blocks_for(j->M * j->N, 256, 4096), (unsigned)(j->mode == MX8_GEMM_K_GROUPS ? (j->G > 0 ? j->G : 1) : 1));
    if (j->c_dtype == MX8_BF16)
        fill_bias<<<grid, 256, 0, stream_of(x)>>>((__nv_bfloat16 *)j->c, j->M, j->N, j->c_ls, j->c_gs, j->bias, j->bias_dtype == MX8_BF16);
    else fill_bias<<<grid, 256, 0, stream_of(x)>>>((float *)j->c, j->M, j->N, j->c_ls, j->c_gs, j->bias, j->bias_dtype == MX8_BF16);
    CUDA_LAUNCHED("gemm");
}
} // namespace

enum mx8_status cuda_gemm(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    if (j->M == 0 || j->N == 0 || (j->mode == MX8_GEMM_K_GROUPS && j->G == 0)) return MX8_OK;
    enum mx8_status s = MX8_UNSUPPORTED;
    if (j->K == 0) s = empty_contraction(x, j);
    // Dense bf16 is cuBLASLt's; everything MXFP8 with coarse scales and grouped bf16 is ours on sm_90.
    if (s == MX8_UNSUPPORTED && j->mode == MX8_GEMM_DENSE) s = cuda_gemm_lt(x, j);
    if (s == MX8_UNSUPPORTED) {
        s = cuda_gemm_sm90(x, j);
        if (s == MX8_OK && j->a.dtype == MX8_F8_E4M3 && x->fast_products) ++*x->fast_products;
    }
    if (s == MX8_UNSUPPORTED) s = cuda_gemm_mma(x, j);
    if (s == MX8_UNSUPPORTED) s = cuda_gemm_simt(x, j);
    if (s != MX8_OK || j->mode != MX8_GEMM_M_GROUPS || j->accumulate) return s;
    const int64_t es = j->c_dtype == MX8_BF16 ? 2 : 4;
    zero_tail<<<blocks_for(j->M, 1, 264), 256, 0, stream_of(x)>>>((char *)j->c, j->c_ls * es, j->N * es, j->M, j->offsets, j->G);
    CUDA_LAUNCHED("gemm");
}
