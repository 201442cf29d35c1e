// The exact path: any strides, bf16 or MXFP8 operands of any scale geometry, on every GPU since sm_80. Each operand is
// turned into bf16 on its way to shared memory (an e4m3 code times a power of two is a bf16 number, so this is exact)
// and multiplied by mma.sync m16n8k16 with fp32 accumulation: equal to a native MX product up to summation order.
//
// Tile 128 x 128 x 32, 8 warps of 64 x 32, operands two tiles deep in shared memory and one ahead in registers. A row of 32
// bf16 is padded to 80 bytes, so that ldmatrix meets no bank conflict.
#include "backend.h"
#include "convert.cuh"
#include "ptx.cuh"

namespace {
enum { BM = 128, BN = 128, BK = 32, PITCH = 80, TILE = BM * PITCH, THREADS = 256 };
enum Load { BF16_K, F8_K, ANY }; // how a tile is read: 16-byte rows along k, or element by element

struct Side {
    const void *data; int64_t ls, ks, gs; int dtype; const uint8_t *scales; int64_t sls, sks, sgs; Load load;
};
struct Args {
    Side a, b; int64_t M, N, K; int G, mode; const int *ends;
    void *c; int c_bf16, accumulate; int64_t c_ls, c_gs; const void *bias; int bias_bf16;
};

__device__ __forceinline__ float element(const Side &s, int64_t g, int64_t l, int64_t k) {
    const int64_t at = g * s.gs + l * s.ls + k * s.ks;
    if (s.dtype == MX8_BF16) return __bfloat162float(((const __nv_bfloat16 *)s.data)[at]);
    const float v = mx8::decode_f8(((const uint8_t *)s.data)[at], s.dtype == MX8_F8_E5M2);
    return v * mx8::decode_e8m0(s.scales[g * s.sgs + l * s.sls + k / 32 * s.sks]);
}

// Thread t fetches 16 consecutive k of line t/2: elements (l0 + t/2, k0 + 16 (t&1) ..). Out of range is zero.
__device__ __forceinline__ void fetch(const Side &s, uint32_t (&v)[8], int64_t g, int64_t l0, int64_t lines, int64_t k0, int64_t kend, int t) {
    const int64_t l = l0 + t / 2, k = k0 + 16 * (t & 1);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = 0;
    if (l >= lines || k >= kend) return;
    if (s.load == BF16_K && k + 16 <= kend) {
        const uint4 *p = (const uint4 *)((const __nv_bfloat16 *)s.data + g * s.gs + l * s.ls + k);
        const uint4 x = __ldg(p), y = __ldg(p + 1);
        v[0] = x.x; v[1] = x.y; v[2] = x.z; v[3] = x.w; v[4] = y.x; v[5] = y.y; v[6] = y.z; v[7] = y.w;
        return;
    }
    if (s.load == F8_K && k + 16 <= kend) {
        const uint4 x = __ldg((const uint4 *)((const uint8_t *)s.data + g * s.gs + l * s.ls + k));
        const float f = mx8::decode_e8m0(__ldg(s.scales + g * s.sgs + l * s.sls + k / 32 * s.sks));
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t pair = w[i / 2] >> 16 * (i & 1);
            v[i] = ptx::pack_bf16(mx8::decode_f8((uint8_t)pair, s.dtype == MX8_F8_E5M2) * f, mx8::decode_f8((uint8_t)(pair >> 8), s.dtype == MX8_F8_E5M2) * f);
        }
        return;
    }
    for (int i = 0; i < 16 && k + i < kend; i++) {
        const uint32_t h = __bfloat16_as_ushort(__float2bfloat16(element(s, g, l, k + i)));
        // Unrolled selects would cost more than this rare path: address the register array by compile-time cases.
#pragma unroll
        for (int q = 0; q < 8; q++)
            if (q == i / 2) v[q] |= h << 16 * (i & 1);
    }
}
__device__ __forceinline__ void put(uint8_t *tile, const uint32_t (&v)[8], int t) {
    uint4 *p = (uint4 *)(tile + t / 2 * PITCH + 32 * (t & 1));
    p[0] = make_uint4(v[0], v[1], v[2], v[3]);
    p[1] = make_uint4(v[4], v[5], v[6], v[7]);
}
__device__ __forceinline__ void ldmatrix4(uint32_t addr, uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Which group and rows a tile row belongs to. False: no such tile. The walk over ends is short beside a tile's work.
__device__ bool place(const Args &p, int tile, int64_t *g, int64_t *m0, int64_t *mend, int64_t *k0, int64_t *kend) {
    *g = 0; *k0 = 0; *kend = p.K; *m0 = (int64_t)tile * BM; *mend = p.M;
    if (p.mode == MX8_GEMM_M_GROUPS) {
        int64_t begin = 0, before = 0;
        for (int i = 0; i < p.G; i++) {
            const int64_t end = p.ends[i], tiles = (end - begin + BM - 1) / BM;
            if (tile < before + tiles) { *g = i; *m0 = begin + (tile - before) * BM; *mend = end; return true; }
            before += tiles;
            begin = end;
        }
        return false;
    }
    if (p.mode == MX8_GEMM_K_GROUPS) {
        *g = blockIdx.z;
        *k0 = *g ? p.ends[*g - 1] : 0;
        *kend = p.ends[*g];
    }
    return *m0 < p.M;
}

__device__ __forceinline__ void finish(const Args &p, float v, int64_t g, int64_t m, int64_t n) {
    const int64_t at = (p.mode == MX8_GEMM_K_GROUPS ? g * p.c_gs : 0) + m * p.c_ls + n;
    if (p.bias) v += p.bias_bf16 ? __bfloat162float(((const __nv_bfloat16 *)p.bias)[n]) : ((const float *)p.bias)[n];
    if (p.c_bf16) {
        __nv_bfloat16 *c = (__nv_bfloat16 *)p.c + at;
        *c = __float2bfloat16(p.accumulate ? v + __bfloat162float(*c) : v);
    } else {
        float *c = (float *)p.c + at;
        *c = p.accumulate ? v + *c : v;
    }
}

__global__ __launch_bounds__(THREADS, 2) void gemm(const __grid_constant__ Args p) {
    __shared__ __align__(16) uint8_t sa[2][TILE], sb[2][TILE];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32, wm = warp / 4 * 64, wn = warp % 4 * 32;
    int64_t g, m0, mend, k0, kend;
    if (!place(p, blockIdx.y, &g, &m0, &mend, &k0, &kend)) return;
    const int64_t n0 = (int64_t)blockIdx.x * BN;
    const int64_t ga = 0, gb = p.mode == MX8_GEMM_M_GROUPS ? g : 0;
    float acc[4][4][4] = {};
    uint32_t va[8], vb[8];
    fetch(p.a, va, ga, m0, mend, k0, kend, t);
    fetch(p.b, vb, gb, n0, p.N, k0, kend, t);
    put(sa[0], va, t);
    put(sb[0], vb, t);
    __syncthreads();
    for (int64_t k = k0, s = 0; k < kend; k += BK, s ^= 1) {
        const bool more = k + BK < kend;
        if (more) {
            fetch(p.a, va, ga, m0, mend, k + BK, kend, t);
            fetch(p.b, vb, gb, n0, p.N, k + BK, kend, t);
        }
#pragma unroll
        for (int kk = 0; kk < 2; kk++) {
            uint32_t a[4][4], b[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) ldmatrix4(ptx::smem(sa[s] + (wm + i * 16 + lane % 16) * PITCH + kk * 32 + lane / 16 * 16), a[i]);
#pragma unroll
            for (int i = 0; i < 2; i++)
                ldmatrix4(ptx::smem(sb[s] + (wn + i * 16 + lane % 8 + lane / 16 * 8) * PITCH + kk * 32 + lane / 8 % 2 * 16), b[i]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int n = 0; n < 4; n++) mma(acc[i][n], a[i], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
        if (more) {
            put(sa[s ^ 1], va, t);
            put(sb[s ^ 1], vb, t);
        }
        __syncthreads();
    }
    if (p.mode == MX8_GEMM_K_GROUPS && kend <= k0 && p.accumulate) return;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t m = m0 + wm + i * 16 + lane / 4 + e / 2 * 8, col = n0 + wn + n * 8 + lane % 4 * 2 + e % 2;
                if (m < mend && col < p.N) finish(p, acc[i][n][e], g, m, col);
            }
}

Side make_side(const struct mx8_matrix *m) {
    Side s = {m->data, m->ls, m->ks, m->gs, m->dtype, m->scales, m->sls, m->sks, m->sgs, ANY};
    const int es = m->dtype == MX8_BF16 ? 2 : 1;
    if (m->ks == 1 && (((uintptr_t)m->data | (uint64_t)(m->ls * es) | (uint64_t)(m->gs * es)) & 15) == 0) s.load = es == 2 ? BF16_K : F8_K;
    return s;
}
bool takes(int dtype) { return dtype == MX8_BF16 || dtype == MX8_F8_E4M3 || dtype == MX8_F8_E5M2; }
} // namespace

enum mx8_status cuda_gemm_mma(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    if (!takes(j->a.dtype) || !takes(j->b.dtype)) return MX8_UNSUPPORTED;
    Args p = {};
    p.a = make_side(&j->a); p.b = make_side(&j->b);
    // 16-wide fetches must not straddle a group's start (K groups of bf16 begin anywhere).
    if (j->mode == MX8_GEMM_K_GROUPS) {
        if (p.a.load == BF16_K) p.a.load = ANY;
        if (p.b.load == BF16_K) p.b.load = ANY;
    }
    p.M = j->M; p.N = j->N; p.K = j->K; p.G = j->G; p.mode = j->mode; p.ends = j->offsets;
    p.c = j->c; p.c_bf16 = j->c_dtype == MX8_BF16; p.accumulate = j->accumulate; p.c_ls = j->c_ls; p.c_gs = j->c_gs;
    p.bias = j->bias; p.bias_bf16 = j->bias_dtype == MX8_BF16;
    const int64_t tiles = (j->M + BM - 1) / BM + (j->mode == MX8_GEMM_M_GROUPS ? j->G : 0);
    if (tiles > 65535 || (j->mode == MX8_GEMM_K_GROUPS && j->G > 65535))
        return CUDA_FAIL(MX8_UNSUPPORTED, "gemm: M is %lld with %d groups, expected at most 65535 tiles of 128 rows", (long long)j->M, j->G);
    const dim3 grid((unsigned)((j->N + BN - 1) / BN), (unsigned)tiles, (unsigned)(j->mode == MX8_GEMM_K_GROUPS ? j->G : 1));
    gemm<<<grid, THREADS, 0, stream_of(x)>>>(p);
    CUDA_LAUNCHED("gemm");
}
