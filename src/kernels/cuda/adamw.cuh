// AdamW's arithmetic, for the kernel that only updates (optimizer.cu) and the one that quantizes too
// (adamw_quantize.cu): each product and sum is rounded by itself, in PyTorch's order, and gives the CPU's bits.
#pragma once
#include <math.h>
#include "formats/stochastic.h"
#include "model.cuh"

struct adamw_constants {
    float decay, step, root2, rest1, rest2;
};

inline struct adamw_constants make_adamw_constants(const struct mx8_adamw_job *j) {
    return {1.0f - j->lr * j->weight_decay, j->lr / j->bias1, sqrtf(j->bias2), 1.0f - j->beta1, 1.0f - j->beta2};
}

// What stands in memory takes the place of the job's values.
__device__ __forceinline__ void read_adamw_state(struct mx8_adamw_job &j, struct adamw_constants &c) {
    if (!j.state) return;
    c.decay = __fsub_rn(1.0f, __fmul_rn(j.state->lr, j.weight_decay));
    c.step = __fdiv_rn(j.state->lr, j.state->bias1);
    c.root2 = __fsqrt_rn(j.state->bias2);
    j.rounding = j.state->rounding;
}

// What storing moments as S leaves of m and v; bits: of mx8i_make_rounding_bits.
__device__ __forceinline__ void round_moments(float &, float &, uint32_t, const float *) {}
__device__ __forceinline__ void round_moments(float &m, float &v, uint32_t bits, const bf16 *) {
    m = __uint_as_float((uint32_t)mx8i_round_bf16_randomly(__float_as_uint(m), bits & 0xFFFFu) << 16);
    v = __uint_as_float((uint32_t)mx8i_round_bf16_randomly(__float_as_uint(v), bits >> 16) << 16);
}

// Element number `at` of the job, whose gradient is already read.
template <class S>
__device__ __forceinline__ void update_element(const struct mx8_adamw_job &j, const struct adamw_constants &c,
    float grad_scale, int64_t at, float grad, float &p, float &m, float &v) {
    const float g = __fmul_rn(grad, grad_scale);
    m = __fadd_rn(__fmul_rn(j.beta1, m), __fmul_rn(c.rest1, g));
    v = __fadd_rn(__fmul_rn(j.beta2, v), __fmul_rn(__fmul_rn(c.rest2, g), g));
    const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), c.root2), j.eps);
    p = __fsub_rn(__fmul_rn(p, c.decay), __fdiv_rn(__fmul_rn(c.step, m), denominator));
    round_moments(m, v, mx8i_make_rounding_bits(j.rounding, j.first + (uint64_t)at), (const S *)nullptr);
}
