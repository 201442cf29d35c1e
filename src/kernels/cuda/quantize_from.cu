// Quantizers of values that are made while they pass through. The codes are those of the kernel that stores the values in
// bf16 (swiglu.cu, permute.cu, loss.cu), followed by the quantizer. Bytes per element: what the source reads (2; SwiGLU and floats 4)
// and 1.03 an orientation; the stored way adds 2 written and 2 read.
//
// Columns, with or without rows, are quantize_256's: scale groups of 256. Rows alone need no tile: a warp makes four rows of
// 256 columns, in groups of 32, 128 or 256.
#include "quantize_256.cuh"
#pragma nv_diag_suppress 177 // before sm_90 nobody calls what the kernels call

namespace fused {
namespace {
__device__ __forceinline__ uint32_t pair_of(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// The gradient of the logits.
struct Softmax {
    static constexpr bool makes = true, pairs = false;
    typedef Ring<Softmax> Loader;
    typedef uint4 Line;
    const struct mx8_row_softmax *rows;
    __device__ __forceinline__ Line line(int row) const { return __ldg((const uint4 *)(rows + row)); }
    __device__ __forceinline__ static uint32_t two(uint32_t l, float max, float factor) {
        return pair_of(mx8::fast_exp(low(l) - max) * factor, mx8::fast_exp(high(l) - max) * factor);
    }
    // `hit` into element `at` of eight.
    __device__ __forceinline__ static void put(uint4 *v, int at, uint32_t hit) {
        const uint32_t keep = at & 1 ? 0x0000FFFFu : 0xFFFF0000u, bits = at & 1 ? hit << 16 : hit;
        if (at / 2 == 0) v->x = (v->x & keep) | bits;
        if (at / 2 == 1) v->y = (v->y & keep) | bits;
        if (at / 2 == 2) v->z = (v->z & keep) | bits;
        if (at / 2 == 3) v->w = (v->w & keep) | bits;
    }
    __device__ __forceinline__ uint4 eight(uint4 l, uint4, const Line &line, int col) const {
        const float max = __uint_as_float(line.x), factor = __uint_as_float(line.y);
        const int target = (int)line.w, at = target - col;
        uint4 v = make_uint4(two(l.x, max, factor), two(l.y, max, factor), two(l.z, max, factor), two(l.w, max, factor));
        if (target < 0) return make_uint4(0, 0, 0, 0);
        if (at >= 0 && at < 8) put(&v, at, __bfloat16_as_ushort(__float2bfloat16_rn(__uint_as_float(line.z))));
        return v;
    }
};
static_assert(sizeof(struct mx8_row_softmax) == 16, "read as one piece");

// The experts' hidden rows.
struct Swiglu {
    static constexpr bool makes = true, pairs = true;
    typedef Pair<Swiglu> Loader;
    struct Line {};
    const __nv_bfloat16 *up; int64_t up_row;
    __device__ Line line(int) const { return {}; }
    __device__ __forceinline__ static uint32_t two(uint32_t g, uint32_t u) {
        return pair_of(mx8::fast_swiglu(low(g), low(u)), mx8::fast_swiglu(high(g), high(u)));
    }
    __device__ __forceinline__ uint4 eight(uint4 g, uint4 u, const Line &, int) const {
        return make_uint4(two(g.x, u.x), two(g.y, u.y), two(g.z, u.z), two(g.w, u.w));
    }
    __device__ __forceinline__ uint4 fetch(const Job &p, int, int row, int col) const {
        return eight(__ldcs((const uint4 *)(p.src + row * p.src_row + col)), __ldcs((const uint4 *)(up + row * up_row + col)), {}, col);
    }
};

// Tokens in the experts' order, as they are or times their scores.
template <bool SCORED> struct Permute {
    static constexpr bool makes = SCORED, pairs = false;
    typedef Gather<Permute> Loader;
    typedef float Line;
    const int32_t *order; const float *weights; int k;
    __device__ __forceinline__ int row(int p) const { return order[p] / k; }
    __device__ __forceinline__ Line line(int p) const { return SCORED ? weights[order[p]] : 1.0f; }
    __device__ __forceinline__ static uint32_t two(uint32_t x, float w) { return pair_of(low(x) * w, high(x) * w); }
    __device__ __forceinline__ uint4 eight(uint4 x, uint4, const Line &w, int) const {
        return SCORED ? make_uint4(two(x.x, w), two(x.y, w), two(x.z, w), two(x.w, w)) : x;
    }
    __device__ __forceinline__ uint4 fetch(const Job &p, int, int at, int col) const {
        const int slot = order[at];
        return eight(__ldg((const uint4 *)(p.src + slot / k * p.src_row + col)), {}, SCORED ? weights[slot] : 1.0f, col);
    }
};

// f32, rounded: optimizers' master weights.
struct Floats {
    static constexpr bool makes = true, pairs = false;
    typedef Direct<Floats> Loader;
    struct Line {};
    struct Eight { float4 a, b; };
    const float *values; int64_t batch, line;
    __device__ __forceinline__ void read(Eight *e, int b, int row, int col) const {
        const float4 *from = (const float4 *)(values + b * batch + row * line + col);
        e->a = __ldcs(from);
        e->b = __ldcs(from + 1);
    }
    __device__ __forceinline__ static uint4 eight(const Eight &e) {
        return make_uint4(pair_of(e.a.x, e.a.y), pair_of(e.a.z, e.a.w), pair_of(e.b.x, e.b.y), pair_of(e.b.z, e.b.w));
    }
    __device__ __forceinline__ uint4 fetch(const Job &, int b, int row, int col) const {
        Eight e;
        read(&e, b, row, col);
        return eight(e);
    }
};

template <class SOURCE>
enum mx8_status choose_from(const struct mx8_exec *x, const Job &p, const CUtensorMap &map, const CUtensorMap &second, const SOURCE &source) {
    if (p.col_codes || p.row_tile > 1) return fits_256(p) ? choose_256(x, p, map, second, source) : MX8_UNSUPPORTED;
    return run_rows(x, p, source);
}

enum mx8_status quantize_softmax(const struct mx8_exec *x, const struct mx8_quant_source *s, const Job &p) {
    CUtensorMap map;
    if (!p.row_codes || !p.col_codes || p.n_groups || !fits_256(p) || !map_matrix(x, p, p.src, p.src_row, &map)) return MX8_UNSUPPORTED;
    const Softmax source = {s->rows};
    Scratch scratch = all_scratch(x);
    const Job gathered = gather_scales(&scratch, p);
    const enum mx8_status status = counts(p) ? launch_256<true, true, true>(x, gathered, map, map, source) : launch_256<true, true, false>(x, gathered, map, map, source);
    return status == MX8_OK ? spread_scales(x, gathered) : status;
}

enum mx8_status quantize_swiglu(const struct mx8_exec *x, const struct mx8_quant_source *s, const Job &p) {
    CUtensorMap gate, up;
    if (((uintptr_t)s->b | (uintptr_t)(s->b_ls * 2)) % 16) return MX8_UNSUPPORTED;
    if (!map_matrix(x, p, p.src, p.src_row, &gate) || !map_matrix(x, p, s->b, s->b_ls, &up)) return MX8_UNSUPPORTED;
    return choose_from(x, p, gate, up, Swiglu{(const __nv_bfloat16 *)s->b, s->b_ls});
}

enum mx8_status quantize_floats(const struct mx8_exec *x, const struct mx8_quant_source *s, const Job &p) {
    const CUtensorMap none = {};
    if (((uintptr_t)s->a | (uintptr_t)(s->a_ls * 4) | (uintptr_t)(s->a_bs * 4)) % 16) return MX8_UNSUPPORTED;
    return choose_from(x, p, none, none, Floats{(const float *)s->a, s->a_bs, s->a_ls});
}

enum mx8_status quantize_permute(const struct mx8_exec *x, const struct mx8_quant_source *s, const Job &p) {
    const CUtensorMap none = {};
    return s->weights ? choose_from(x, p, none, none, Permute<true>{s->order, s->weights, s->k})
                      : choose_from(x, p, none, none, Permute<false>{s->order, nullptr, s->k});
}
} // namespace
} // namespace fused

enum mx8_status cuda_quantize_from(const struct mx8_exec *x, const struct mx8_quant_source *s, const struct mx8_quant_job *j) {
    struct mx8_quant_job with_source = *j;
    with_source.src = s->a;
    with_source.src_stride[0] = s->a_bs;
    with_source.src_stride[1] = s->a_ls;
    with_source.src_stride[2] = 1;
    if (backend_of(x)->capability != 90 || (j->batch != 1 && s->kind != MX8_FROM_FLOATS) || (!j->row_codes && !j->col_codes) || !fused::takes(&with_source)) return MX8_UNSUPPORTED;
    const fused::Job p = fused::make_job(&with_source);
    const enum mx8_status status = s->kind == MX8_FROM_SOFTMAX  ? fused::quantize_softmax(x, s, p)
                                   : s->kind == MX8_FROM_SWIGLU ? fused::quantize_swiglu(x, s, p)
                                   : s->kind == MX8_FROM_FLOATS ? fused::quantize_floats(x, s, p)
                                                                : fused::quantize_permute(x, s, p);
    return status == MX8_OK && p.n_groups > 0 ? fused::finish(x, p) : status;
}
