// The Hopper GEMM with a bias: instances of their own, so that the others do not pay for it. The bias joins the finished
// fp32 sum before it is rounded, as on the CPU.
#include "gemm_sm90_launch.cuh"

namespace {
template <sm90::Scales SC> enum mx8_status choose_output(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    using namespace sm90;
    return j->c_dtype == MX8_BF16 ? launch<Config<M_GROUPS, SC, BF16, false, false, true>>(x, j)
                                  : launch<Config<M_GROUPS, SC, F32, false, false, true>>(x, j);
}
} // namespace

enum mx8_status cuda_gemm_bias_sm90(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    using namespace sm90;
    if (j->a.dtype == MX8_BF16) return choose_output<NONE>(x, j);
    return j->b.tile >= 32 ? choose_output<S32>(x, j) : choose_output<S1>(x, j);
}
