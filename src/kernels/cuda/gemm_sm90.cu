// The Hopper GEMM's host side: which jobs it takes, and by which instance.
#include "gemm_sm90_launch.cuh"

namespace {
bool aligned16(const void *p, int64_t bytes) { return ((uintptr_t)p | (uint64_t)bytes) % 16 == 0; }

// One tall matrix of 16-byte aligned rows. MXFP8: k contiguous, scales equal over 256 elements along K. bf16: k contiguous,
// or lines contiguous (transposed). `depth`: lines of an expert, or its k when transposed.
bool takes_mx(const struct mx8_matrix *m, int64_t lines) {
    return m->dtype == MX8_F8_E4M3 && m->scale_group > 0 && m->scale_group % 256 == 0 && m->ks == 1 && aligned16(m->data, m->ls) &&
           (m->gs == 0 || m->gs == lines * m->ls);
}
bool takes_bf16(const struct mx8_matrix *m, int64_t lines, int64_t k, bool *transposed) {
    *transposed = m->ks != 1;
    if (m->dtype != MX8_BF16 || (m->ks != 1 && m->ls != 1) || !aligned16(m->data, (*transposed ? m->ks : m->ls) * 2)) return false;
    return m->gs == 0 || m->gs == (*transposed ? k * m->ks : lines * m->ls);
}

template <sm90::Kind KIND, sm90::Scales SC, bool TA = false, bool TB = false>
enum mx8_status choose_output(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    using namespace sm90;
    if (j->c_dtype == MX8_BF16) return j->accumulate ? MX8_UNSUPPORTED : launch<Config<KIND, SC, BF16, TA, TB>>(x, j);
    if (!j->accumulate) return launch<Config<KIND, SC, F32, TA, TB>>(x, j);
    return launch<Config<KIND, SC, F32_ADD, TA, TB>>(x, j);
}

// A dense weight gradient is a K-grouped product of one group: the same instance serves both.
bool is_k_kind(const struct mx8_gemm_job *j) { return j->mode == MX8_GEMM_K_GROUPS || (j->mode == MX8_GEMM_DENSE && j->c_dtype == MX8_F32); }

// Whether the context's scratch holds a dense product's prepared scales (see prepare).
bool scales_fit(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    using namespace sm90;
    const int64_t kq = is_k_kind(j) ? Config<K_GROUPS, S32, F32>::KQ : Config<M_GROUPS, S32, F32>::KQ;
    const int64_t nb = j->b.tile >= 32 ? Config<M_GROUPS, S32, F32>::NB : Config<M_GROUPS, S1, F32>::NB;
    const int64_t lines = first_scale(j->M, 1) + 4 + ((j->N + nb - 1) / nb + 3) / 4 * 4;
    return (uint64_t)(lines * ((j->K + kq - 1) / kq) + 32) * 4 <= x->scratch_bytes;
}

// By two halves of C's rows, in whole tiles.
enum mx8_status split_rows(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    struct mx8_gemm_job first = *j, second = *j;
    first.M = (j->M / 2 + 255) / 256 * 256;
    second.M -= first.M;
    first.a.gs = second.a.gs = 0;
    second.a.data = (const uint8_t *)j->a.data + first.M * j->a.ls;
    second.a.scales += first.M * j->a.sls;
    second.c = (uint8_t *)j->c + first.M * j->c_ls * (j->c_dtype == MX8_BF16 ? 2 : 4);
    const enum mx8_status s = cuda_gemm_sm90(x, &first);
    return s == MX8_OK ? cuda_gemm_sm90(x, &second) : s;
}

// The three products of grouped bf16 linears: forward, input gradient, weight gradient.
enum mx8_status choose_bf16(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    using namespace sm90;
    bool ta, tb;
    const bool m_groups = j->mode == MX8_GEMM_M_GROUPS;
    if (!takes_bf16(&j->a, j->M, j->K, &ta) || !takes_bf16(&j->b, j->N, j->K, &tb)) return MX8_UNSUPPORTED;
    if (m_groups && !ta && !tb && j->bias) return cuda_gemm_bias_sm90(x, j);
    if (j->bias) return MX8_UNSUPPORTED;
    if (m_groups && !ta && !tb) return choose_output<M_GROUPS, NONE>(x, j);
    // The last K-block would reach into the next expert's weights.
    if (m_groups && !ta && tb && j->K % 64 == 0) return choose_output<M_GROUPS, NONE, false, true>(x, j);
    if (j->mode == MX8_GEMM_K_GROUPS && ta && tb) return choose_output<K_GROUPS, NONE, true, true>(x, j);
    return MX8_UNSUPPORTED;
}
} // namespace

enum mx8_status cuda_gemm_sm90(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    using namespace sm90;
    const cuda_backend *b = backend_of(x);
    const int64_t limit = INT32_MAX;
    const int es = j->c_dtype == MX8_BF16 ? 2 : 4;
    if (b->capability != 90 || !b->encode_map || j->exact || j->a.dtype != j->b.dtype) return MX8_UNSUPPORTED;
    if (j->G > MAX_GROUPS || j->M > limit || j->K > limit || j->N * (j->G > 0 ? j->G : 1) > limit) return MX8_UNSUPPORTED;
    if (!aligned16(j->c, j->c_ls * es) || (j->mode == MX8_GEMM_K_GROUPS && !aligned16(j->c, j->c_gs * es))) return MX8_UNSUPPORTED;
    if (j->N * es % 16 != 0) return MX8_UNSUPPORTED; // TMA stores whole 16-byte pieces: it would write past the line
    if (j->M == 0 || j->N == 0 || j->K == 0) return MX8_UNSUPPORTED; // zeroing is the generic path's
    if (j->bias && (j->accumulate || j->mode == MX8_GEMM_K_GROUPS)) return MX8_UNSUPPORTED;
    if (j->a.dtype == MX8_BF16) return choose_bf16(x, j);
    if (!takes_mx(&j->a, j->M) || !takes_mx(&j->b, j->N)) return MX8_UNSUPPORTED;
    if (j->mode == MX8_GEMM_DENSE && j->M > 512 && !scales_fit(x, j)) return split_rows(x, j);
    if (j->bias) return cuda_gemm_bias_sm90(x, j);
    // A K-block that reaches into the next group would multiply its codes: groups must be padded to whole K-blocks.
    if (j->mode == MX8_GEMM_K_GROUPS && (j->padding == 0 || j->padding % Config<K_GROUPS, S32, F32>::KB != 0)) return MX8_UNSUPPORTED;
    if (is_k_kind(j)) return j->b.tile >= 32 ? choose_output<K_GROUPS, S32>(x, j) : choose_output<K_GROUPS, S1>(x, j);
    return j->b.tile >= 32 ? choose_output<M_GROUPS, S32>(x, j) : choose_output<M_GROUPS, S1>(x, j);
}
