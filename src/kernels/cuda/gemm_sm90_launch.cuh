// The Hopper GEMM's launch: tensor maps, prepared scales, one cluster an SM pair. For the files that instantiate it.
#pragma once
#include "backend.h"
#include "gemm_sm90.cuh"

namespace {
bool encode(const cuda_backend *b, CUtensorMap *map, CUtensorMapDataType type, void *data, int rank, const uint64_t *dims,
            const uint64_t *strides, const uint32_t *box, CUtensorMapSwizzle swizzle) {
    const cuuint32_t ones[3] = {1, 1, 1};
    cuuint64_t d[3], s[2];
    cuuint32_t x[3];
    for (int i = 0; i < rank; i++) { d[i] = dims[i]; x[i] = box[i]; }
    for (int i = 0; i + 1 < rank; i++) s[i] = strides[i];
    return b->encode_map(map, type, (cuuint32_t)rank, data, d, s, x, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

struct Maps { CUtensorMap a, b; };

// Fills the context's scratch with the operands' scales as fp32 and describes them. UNSUPPORTED when it is too small: a product
// of more than SCRATCH_BYTES / 4 * KQ elements an operand.
template <class C> enum mx8_status prepare(const struct mx8_exec *x, const struct mx8_gemm_job *j, int G, Maps *maps, sm90::Args *p) {
    using namespace sm90;
    const bool grouped_m = C::KIND == M_GROUPS;
    const int64_t steps = (j->K + C::KQ - 1) / C::KQ;
    ScaleSide a = {}, b = {};
    a.bytes = j->a.scales; a.ls = j->a.sls; a.ks = j->a.sks * (C::KQ / 32);
    a.lines = j->M; a.tile = 1; a.groups = 1; a.pitch = first_scale(j->M, grouped_m ? G : 1) + 4;
    a.ends = grouped_m && G > 1 ? j->offsets : NULL; a.n_ends = G;
    b.bytes = j->b.scales; b.ls = j->b.sls; b.ks = j->b.sks * (C::KQ / 32); b.gs = j->b.sgs;
    b.lines = (j->N + C::NB - 1) / C::NB; b.tile = C::NB; b.groups = grouped_m ? G : 1;
    p->sb_lines = (int)((b.lines + 3) / 4 * 4); // a box begins at a multiple of 16 bytes
    b.group_pitch = p->sb_lines;
    b.pitch = (int64_t)p->sb_lines * b.groups;
    const int64_t count_a = (a.pitch * steps + 31) / 32 * 32;
    if ((uint64_t)(count_a + b.pitch * steps) * 4 > x->scratch_bytes) return MX8_UNSUPPORTED;
    a.out = (float *)x->scratch;
    b.out = a.out + count_a;
    a.steps = b.steps = (int)steps;
    const cudaError_t e = launch_scales(stream_of(x), a, b);
    if (e != cudaSuccess) return CUDA_FAIL(MX8_CUDA_ERROR, "cuda gemm scales: %s", cudaGetErrorString(e));
    const uint64_t da[2] = {(uint64_t)a.pitch, (uint64_t)steps}, pa[1] = {(uint64_t)a.pitch * 4};
    const uint64_t db[2] = {(uint64_t)b.pitch, (uint64_t)steps}, pb[1] = {(uint64_t)b.pitch * 4};
    const uint32_t ba[2] = {BM, 1}, bb[2] = {(uint32_t)C::B_SCALES, 1};
    const cuda_backend *back = backend_of(x);
    return encode(back, &maps->a, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, a.out, 2, da, pa, ba, CU_TENSOR_MAP_SWIZZLE_NONE) &&
                   encode(back, &maps->b, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, b.out, 2, db, pb, bb, CU_TENSOR_MAP_SWIZZLE_NONE)
               ? MX8_OK
               : MX8_UNSUPPORTED;
}

template <class C> enum mx8_status launch(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    using namespace sm90;
    const cuda_backend *b = backend_of(x);
    const bool grouped_m = C::KIND == M_GROUPS;
    const int G = j->mode == MX8_GEMM_DENSE ? 1 : j->G;
    const uint64_t es = C::MX ? 1 : 2, os = C::OUT == BF16 ? 2 : 4;
    const CUtensorMapDataType in = C::MX ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const CUtensorMapDataType out = C::OUT == BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    CUtensorMap ta, few, tb, td;
    // (inner, outer) of a map: (k, lines) or (lines, k); an expert's matrix follows the one before it.
    const uint64_t K = (uint64_t)j->K, M = (uint64_t)j->M, N = (uint64_t)j->N, tall = grouped_m ? (uint64_t)G : 1;
    const uint64_t da[2] = {C::TA ? M : K, C::TA ? K : M}, pa[1] = {(uint64_t)(C::TA ? j->a.ks : j->a.ls) * es};
    const uint64_t db[2] = {C::TB ? N : K, (C::TB ? K : N) * tall}, pb[1] = {(uint64_t)(C::TB ? j->b.ks : j->b.ls) * es};
    const uint64_t dd[3] = {(uint64_t)j->N, (uint64_t)j->M, (uint64_t)(grouped_m ? 1 : G)};
    const uint64_t pd[2] = {(uint64_t)j->c_ls * os, (uint64_t)(grouped_m || G == 1 ? (int64_t)j->M * j->c_ls : j->c_gs) * os};
    const uint32_t ba[2] = {C::TA ? 64u : (uint32_t)C::KB, C::TA ? (uint32_t)C::KB : BM / CLUSTER};
    const uint32_t bb[2] = {C::TB ? 64u : (uint32_t)C::KB, C::TB ? (uint32_t)C::KB : BN}, bd[3] = {(uint32_t)(64 / os), 64, 1};
    const uint32_t bf[2] = {ba[0], C::TA ? ba[1] : FEW};
    if (!encode(b, &ta, in, (void *)j->a.data, 2, da, pa, ba, CU_TENSOR_MAP_SWIZZLE_128B) ||
        !encode(b, &few, in, (void *)j->a.data, 2, da, pa, bf, CU_TENSOR_MAP_SWIZZLE_128B) ||
        !encode(b, &tb, in, (void *)j->b.data, 2, db, pb, bb, CU_TENSOR_MAP_SWIZZLE_128B) ||
        !encode(b, &td, out, j->c, 3, dd, pd, bd, CU_TENSOR_MAP_SWIZZLE_64B))
        return MX8_UNSUPPORTED;
    Args p = {};
    Maps scales = {ta, tb}; // bf16 has none: any valid map will do
    if (C::MX) {
        const enum mx8_status prepared = prepare<C>(x, j, G, &scales, &p);
        if (prepared != MX8_OK) return prepared;
    }
    p.M = (int)j->M; p.N = (int)j->N; p.K = (int)j->K; p.G = G;
    p.ends = j->mode == MX8_GEMM_DENSE ? NULL : j->offsets;
    p.c = j->c; p.c_ls = j->c_ls; p.c_gs = j->c_gs;
    p.raster = 8;
    p.bias = j->bias; p.bias_bf16 = j->bias_dtype == MX8_BF16;
    cudaLaunchConfig_t lc = {};
    lc.gridDim = dim3((unsigned)(b->sm_count / CLUSTER * CLUSTER));
    lc.blockDim = dim3(384);
    lc.dynamicSmemBytes = C::SMEM;
    lc.stream = stream_of(x);
    cudaLaunchAttribute at[1];
    at[0].id = cudaLaunchAttributeClusterDimension;
    at[0].val.clusterDim.x = CLUSTER; at[0].val.clusterDim.y = 1; at[0].val.clusterDim.z = 1;
    lc.attrs = at;
    lc.numAttrs = 1;
    static int grid = 0; // CTAs that fit at once: the same for every device of this kind
    if (!grid) {
        CUDA_TRY(cudaFuncSetAttribute(gemm<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SMEM), "gemm");
        int clusters = 0;
        CUDA_TRY(cudaOccupancyMaxActiveClusters(&clusters, gemm<C>, &lc), "gemm");
        grid = clusters * CLUSTER;
    }
    lc.gridDim = dim3((unsigned)grid);
    CUDA_TRY(cudaLaunchKernelEx(&lc, gemm<C>, ta, few, tb, scales.a, scales.b, td, p), "gemm");
    return MX8_OK;
}
} // namespace
