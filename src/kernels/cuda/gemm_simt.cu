// Products with f32 operands (the f32 recipe's experts, mixed dtypes): plain fp32 FMAs in a 64 x 64 tile. A reference on
// the device more than a fast path: dense f32 goes to cuBLASLt.
#include "backend.h"
#include "convert.cuh"

namespace {
enum { T = 64, BK = 16 };
struct Args { struct mx8_matrix a, b; int64_t M, N, K; int G, mode; const int *ends; void *c; int c_bf16, accumulate; int64_t c_ls, c_gs; const void *bias; int bias_bf16; };

__device__ float element(const struct mx8_matrix &s, int64_t g, int64_t l, int64_t k) {
    const int64_t at = g * s.gs + l * s.ls + k * s.ks;
    if (s.dtype == MX8_F32) return ((const float *)s.data)[at];
    if (s.dtype == MX8_BF16) return __bfloat162float(((const __nv_bfloat16 *)s.data)[at]);
    return mx8::decode_f8(((const uint8_t *)s.data)[at], s.dtype == MX8_F8_E5M2) * mx8::decode_e8m0(s.scales[g * s.sgs + l * s.sls + k / 32 * s.sks]);
}

__device__ void finish(const Args &p, float v, int64_t g, int64_t m, int64_t n) {
    const int64_t at = (p.mode == MX8_GEMM_K_GROUPS ? g * p.c_gs : 0) + m * p.c_ls + n;
    if (p.bias) v += p.bias_bf16 ? __bfloat162float(((const __nv_bfloat16 *)p.bias)[n]) : ((const float *)p.bias)[n];
    if (p.c_bf16) {
        __nv_bfloat16 *c = (__nv_bfloat16 *)p.c + at;
        *c = __float2bfloat16(p.accumulate ? v + __bfloat162float(*c) : v);
    } else ((float *)p.c)[at] = p.accumulate ? v + ((float *)p.c)[at] : v;
}

// One tile of one group's rows [m0, mend), contraction [k0, kend).
__device__ void tile(const Args &p, int64_t g, int64_t gb, int64_t m0, int64_t mend, int64_t n0, int64_t k0, int64_t kend) {
    __shared__ float sa[BK][T + 1], sb[BK][T + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float acc[4][4] = {};
    for (int64_t k = k0; k < kend; k += BK) {
        for (int i = threadIdx.x; i < T * BK; i += 256) {
            const int kk = i % BK, l = i / BK;
            sa[kk][l] = k + kk < kend && m0 + l < mend ? element(p.a, 0, m0 + l, k + kk) : 0.f;
            sb[kk][l] = k + kk < kend && n0 + l < p.N ? element(p.b, gb, n0 + l, k + kk) : 0.f;
        }
        __syncthreads();
        for (int kk = 0; kk < BK; kk++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int n = 0; n < 4; n++) acc[i][n] = fmaf(sa[kk][ty * 4 + i], sb[kk][tx * 4 + n], acc[i][n]);
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int n = 0; n < 4; n++) {
            const int64_t m = m0 + ty * 4 + i, col = n0 + tx * 4 + n;
            if (m < mend && col < p.N) finish(p, acc[i][n], g, m, col);
        }
}

__global__ __launch_bounds__(256) void gemm(const __grid_constant__ Args p) {
    const int64_t n0 = (int64_t)blockIdx.x * T;
    if (p.mode != MX8_GEMM_M_GROUPS) {
        const bool grouped = p.mode == MX8_GEMM_K_GROUPS;
        const int64_t g = grouped ? blockIdx.z : 0, k0 = grouped && g ? p.ends[g - 1] : 0, kend = grouped ? p.ends[g] : p.K;
        tile(p, g, 0, (int64_t)blockIdx.y * T, p.M, n0, k0, kend);
        return;
    }
    int64_t begin = 0, before = 0;
    for (int g = 0; g < p.G; g++) {
        const int64_t end = p.ends[g], tiles = (end - begin + T - 1) / T;
        if ((int64_t)blockIdx.y < before + tiles) { tile(p, g, g, begin + (blockIdx.y - before) * T, end, n0, 0, p.K); return; }
        before += tiles;
        begin = end;
    }
}
} // namespace

enum mx8_status cuda_gemm_simt(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    Args p = {j->a, j->b, j->M, j->N, j->K, j->G, (int)j->mode, j->offsets, j->c, j->c_dtype == MX8_BF16, j->accumulate, j->c_ls, j->c_gs, j->bias, j->bias_dtype == MX8_BF16};
    const int64_t tiles = (j->M + T - 1) / T + (j->mode == MX8_GEMM_M_GROUPS ? j->G : 0);
    if (tiles > 65535 || (j->mode == MX8_GEMM_K_GROUPS && j->G > 65535))
        return CUDA_FAIL(MX8_UNSUPPORTED, "gemm: M is %lld with %d groups, expected at most 65535 tiles of 64 rows", (long long)j->M, j->G);
    const dim3 grid((unsigned)((j->N + T - 1) / T), (unsigned)tiles, (unsigned)(j->mode == MX8_GEMM_K_GROUPS ? j->G : 1));
    gemm<<<grid, 256, 0, stream_of(x)>>>(p);
    CUDA_LAUNCHED("gemm");
}
