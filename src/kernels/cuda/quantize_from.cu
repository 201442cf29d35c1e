// Quantizers of values that are made while they pass through: both orientations, scale groups of 256. The bits are those of
// the kernel that stores the values in bf16, followed by the quantizer.
#include "quantize_256.cuh"
#pragma nv_diag_suppress 177 // before sm_90 nobody calls what the kernels call

namespace fused {
namespace {
// The gradient of the logits, as loss.cu stores it.
struct Softmax {
    static constexpr bool makes = true;
    typedef uint4 Line;
    const struct mx8_row_softmax *rows;
    __device__ __forceinline__ Line line(int row) const { return __ldg((const uint4 *)(rows + row)); }
    __device__ __forceinline__ static uint32_t two(uint32_t l, float max, float factor) {
        uint32_t r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(mx8::fast_exp(high(l) - max) * factor), "f"(mx8::fast_exp(low(l) - max) * factor));
        return r;
    }
    // `hit` into element `at` of eight.
    __device__ __forceinline__ static void put(uint4 *v, int at, uint32_t hit) {
        const uint32_t keep = at & 1 ? 0x0000FFFFu : 0xFFFF0000u, bits = at & 1 ? hit << 16 : hit;
        if (at / 2 == 0) v->x = (v->x & keep) | bits;
        if (at / 2 == 1) v->y = (v->y & keep) | bits;
        if (at / 2 == 2) v->z = (v->z & keep) | bits;
        if (at / 2 == 3) v->w = (v->w & keep) | bits;
    }
    __device__ __forceinline__ uint4 eight(uint4 l, const Line &line, int, int col) const {
        const float max = __uint_as_float(line.x), factor = __uint_as_float(line.y);
        const int target = (int)line.w, at = target - col;
        uint4 v = make_uint4(two(l.x, max, factor), two(l.y, max, factor), two(l.z, max, factor), two(l.w, max, factor));
        if (target < 0) return make_uint4(0, 0, 0, 0);
        if (at >= 0 && at < 8) put(&v, at, __bfloat16_as_ushort(__float2bfloat16_rn(__uint_as_float(line.z))));
        return v;
    }
};
static_assert(sizeof(struct mx8_row_softmax) == 16, "read as one piece");
} // namespace
} // namespace fused

enum mx8_status cuda_quantize_from(const struct mx8_exec *x, const struct mx8_quant_source *s, const struct mx8_quant_job *j) {
    using namespace fused;
    struct mx8_quant_job with_source = *j;
    with_source.src = s->a;
    with_source.src_stride[1] = s->a_ls;
    with_source.src_stride[2] = 1;
    if (backend_of(x)->capability != 90 || s->kind != MX8_FROM_SOFTMAX || !takes(&with_source)) return MX8_UNSUPPORTED;
    const Job p = make_job(&with_source);
    CUtensorMap map;
    if (!p.row_codes || !p.col_codes || p.batch != 1 || p.n_groups || p.group != 256 || !map_source(x, p, &map)) return MX8_UNSUPPORTED;
    const Softmax source = {s->rows};
    return counts(p) ? launch_256<true, true, true>(x, p, map, source) : launch_256<true, true, false>(x, p, map, source);
}
