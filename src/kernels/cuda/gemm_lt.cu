// Dense products of bf16 or f32 operands through cuBLASLt. C (M,N) row-major is C^T (N,M) in its column-major eyes.
#include "backend.h"

namespace {
struct Key { int64_t m, n, k, lda, ldb, ldc; int flags; };
struct Plan { Key key; cublasLtMatmulAlgo_t algo; bool used; };
enum { PLANS = 512 };
// Heuristics cost tens of microseconds: remembered per shape. One thread uses a context at a time; contexts share this
// through the thread they run on.
thread_local Plan plans[PLANS];

bool same(const Key &a, const Key &b) {
    return a.m == b.m && a.n == b.n && a.k == b.k && a.lda == b.lda && a.ldb == b.ldb && a.ldc == b.ldc && a.flags == b.flags;
}
Plan *find_plan(const Key &k) {
    uint64_t h = (uint64_t)k.flags;
    const int64_t parts[6] = {k.m, k.n, k.k, k.lda, k.ldb, k.ldc};
    for (int i = 0; i < 6; i++) h = (h ^ (uint64_t)parts[i]) * 0x9E3779B97F4A7C15ull;
    for (int i = 0; i < 16; i++) {
        Plan *p = &plans[(h >> 40) + i & (PLANS - 1)];
        if (!p->used || same(p->key, k)) return p;
    }
    Plan *p = &plans[(h >> 40) & (PLANS - 1)];
    p->used = false;
    return p;
}
cudaDataType_t type_of(int dtype) { return dtype == MX8_BF16 ? CUDA_R_16BF : CUDA_R_32F; }

struct Descriptors {
    cublasLtMatmulDesc_t op = NULL;
    cublasLtMatrixLayout_t a = NULL, b = NULL, c = NULL;
    ~Descriptors() {
        if (c) cublasLtMatrixLayoutDestroy(c);
        if (b) cublasLtMatrixLayoutDestroy(b);
        if (a) cublasLtMatrixLayoutDestroy(a);
        if (op) cublasLtMatmulDescDestroy(op);
    }
};

bool describe(Descriptors *d, const struct mx8_gemm_job *j) {
    const bool at = j->b.ks == 1, bt = j->a.ks == 1; // cuBLASLt's A is our B
    const cublasOperation_t ta = at ? CUBLAS_OP_T : CUBLAS_OP_N, tb = bt ? CUBLAS_OP_N : CUBLAS_OP_T;
    bool ok = cublasLtMatmulDescCreate(&d->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cublasLtMatmulDescSetAttribute(d->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cublasLtMatmulDescSetAttribute(d->op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb) == CUBLAS_STATUS_SUCCESS;
    if (ok && j->bias) {
        const cublasLtEpilogue_t e = CUBLASLT_EPILOGUE_BIAS;
        const cudaDataType_t t = type_of(j->bias_dtype);
        ok = cublasLtMatmulDescSetAttribute(d->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e) == CUBLAS_STATUS_SUCCESS &&
             cublasLtMatmulDescSetAttribute(d->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &j->bias, sizeof j->bias) == CUBLAS_STATUS_SUCCESS &&
             cublasLtMatmulDescSetAttribute(d->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &t, sizeof t) == CUBLAS_STATUS_SUCCESS;
    }
    const cudaDataType_t in = type_of(j->a.dtype);
    ok = ok && cublasLtMatrixLayoutCreate(&d->a, in, at ? j->K : j->N, at ? j->N : j->K, at ? j->b.ls : j->b.ks) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cublasLtMatrixLayoutCreate(&d->b, in, bt ? j->K : j->M, bt ? j->M : j->K, bt ? j->a.ls : j->a.ks) == CUBLAS_STATUS_SUCCESS;
    return ok && cublasLtMatrixLayoutCreate(&d->c, type_of(j->c_dtype), j->N, j->M, j->c_ls) == CUBLAS_STATUS_SUCCESS;
}

bool choose(const cuda_backend *b, size_t bytes, const Descriptors &d, Plan *p) {
    cublasLtMatmulPreference_t pref;
    if (cublasLtMatmulPreferenceCreate(&pref) != CUBLAS_STATUS_SUCCESS) return false;
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    // No split-K by atomics: the same inputs give the same bits.
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    cublasLtMatmulHeuristicResult_t r;
    int n = 0;
    const cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(b->lt, d.op, d.a, d.b, d.c, d.c, pref, 1, &r, &n);
    cublasLtMatmulPreferenceDestroy(pref);
    if (s != CUBLAS_STATUS_SUCCESS || n == 0) return false;
    p->algo = r.algo;
    return true;
}
} // namespace

enum mx8_status cuda_gemm_lt(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    const cuda_backend *b = backend_of(x);
    if (j->a.dtype != j->b.dtype || (j->a.dtype != MX8_BF16 && j->a.dtype != MX8_F32)) return MX8_UNSUPPORTED;
    if (j->a.dtype == MX8_F32 && j->c_dtype != MX8_F32) return MX8_UNSUPPORTED;
    if (j->accumulate && j->c_dtype == MX8_BF16) return MX8_UNSUPPORTED; // it rounds the product before it adds
    if ((j->a.ks != 1 && j->a.ls != 1) || (j->b.ks != 1 && j->b.ls != 1) || j->c_ls < j->N) return MX8_UNSUPPORTED;
    if (j->bias && j->bias_dtype != j->c_dtype && j->bias_dtype != MX8_F32) return MX8_UNSUPPORTED;
    // Views that are no matrices for cuBLASLt (overlapping or broadcast rows).
    if ((j->a.ks == 1 ? j->a.ls < j->K : j->a.ks < j->M) || (j->b.ks == 1 ? j->b.ls < j->K : j->b.ks < j->N)) return MX8_UNSUPPORTED;
    Descriptors d;
    if (!describe(&d, j)) return MX8_UNSUPPORTED;
    Key key = {j->M, j->N, j->K, j->a.ks == 1 ? j->a.ls : -j->a.ks, j->b.ks == 1 ? j->b.ls : -j->b.ks, j->c_ls,
               j->a.dtype | j->c_dtype << 4 | (j->bias ? 1 + j->bias_dtype : 0) << 8 |
                   (((uintptr_t)j->a.data | (uintptr_t)j->b.data | (uintptr_t)j->c) % 16 ? 1 : 0) << 12};
    Plan *p = find_plan(key);
    if (!p->used) {
        if (!choose(b, x->scratch_bytes, d, p)) return MX8_UNSUPPORTED;
        p->key = key;
        p->used = true;
    }
    const float alpha = 1.f, beta = j->accumulate ? 1.f : 0.f;
    const cublasStatus_t s = cublasLtMatmul(b->lt, d.op, &alpha, j->b.data, d.a, j->a.data, d.b, &beta, j->c, d.c, j->c, d.c, &p->algo,
                                            x->scratch, x->scratch_bytes, stream_of(x));
    if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE) return MX8_UNSUPPORTED;
    if (s != CUBLAS_STATUS_SUCCESS)
        return CUDA_FAIL(MX8_LIBRARY_ERROR, "gemm: cuBLASLt gave status %d for %lld x %lld x %lld", (int)s, (long long)j->M, (long long)j->N, (long long)j->K);
    return MX8_OK;
}
