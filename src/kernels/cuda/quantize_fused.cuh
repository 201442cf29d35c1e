// What the fast quantizers share: their job, packed bf16 maxima, conversion of four values at once, tiles of ragged groups.
#pragma once
#include "backend.h"
#include "ptx.cuh"
#include "scale.cuh"

namespace fused {
// A quantizer's job with what the fast kernels rely on taken for granted: e4m3, bf16 rows of 16-byte pieces, codes
// contiguous along their blocks. Strides in bytes of the outputs, elements of the source.
struct Job {
    const __nv_bfloat16 *src; int64_t src_batch, src_row;
    int rows, cols, batch;
    const int *offsets; int n_groups, padding, padded_rows; int32_t *padded_ends;
    uint8_t *row_codes, *row_scales, *col_codes, *col_scales;
    int64_t rc_batch, rc_row, rs_batch, rs_row, rs_block, cc_batch, cc_col, cs_batch, cs_col, cs_block;
    int rule, group, row_tile, col_tile;
    unsigned long long *saturated;
    uint8_t *row_bytes, *col_bytes; int64_t row_pitch, col_pitch; // see gather_scales; NULL: scales go where they belong
};

// A tile of the matrix. Rows count from the group's start, so a tile is short where the group ends.
struct Tile {
    int batch, row, rows, col; // source row and column of its corner; how many rows are the group's
    int at, room;              // where its first row lies in the column orientation, and rows that are its to write from there
    int band;                  // number of its row of tiles, over all groups or matrices
};

__host__ __device__ __forceinline__ int divide_up(int n, int by) { return (n + by - 1) / by; }
__device__ __forceinline__ int round_up(int n, int by) { return divide_up(n, by) * by; }

// The larger magnitudes of two pairs of bf16; NaN wins.
__device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
// The same for values with signs. What it leaves in the sign bits means nothing: `magnitudes` clears them at the end.
__device__ __forceinline__ uint32_t max2_abs(uint32_t a, uint32_t b) {
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#endif
    return r;
}
__device__ __forceinline__ uint32_t max8_abs(uint4 v) { return max2_abs(max2_abs(v.x, v.y), max2_abs(v.z, v.w)); } // of even, of odd columns
__device__ __forceinline__ uint32_t magnitudes(uint32_t two) { return two & 0x7FFF7FFF; }
__device__ __forceinline__ uint32_t swap2(uint32_t a) { return __byte_perm(a, 0, 0x1032); }
__device__ __forceinline__ uint32_t lows(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); } // a's low half, b's low half
__device__ __forceinline__ uint32_t highs(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }
template <int FROM, int TO> __device__ __forceinline__ uint32_t max_lanes(uint32_t m) { // over lanes that differ in bits FROM .. TO/2
#pragma unroll
    for (int o = FROM; o < TO; o <<= 1) m = max2(m, __shfl_xor_sync(~0u, m, o));
    return m;
}

__device__ __forceinline__ float low(uint32_t two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high(uint32_t two) { return __uint_as_float(two & 0xFFFF0000u); }
__device__ __forceinline__ uint32_t encode4(float a, float b, float c, float d) { // a in the lowest byte
    return mx8::encode_e4m3x2(a, b) | mx8::encode_e4m3x2(c, d) << 16;
}

// The inverse of a scale as bf16, which holds every one of them. A product of two bf16 with such a factor is exact, or so
// small that its code is a zero with its sign: one multiplication for two values.
__device__ __forceinline__ uint32_t factor_of(uint32_t byte) { return __float_as_uint(mx8::inverse_scale(byte)) >> 16; }
__device__ __forceinline__ uint32_t times2(uint32_t two, uint32_t factors) {
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(two), "r"(factors));
#endif
    return r;
}

// Scaled values to codes. A group with byte 255 has a NaN factor, and NaN becomes 0x7F. COUNT: clipped values are counted.
template <bool COUNT> struct Encoder {
    unsigned clipped = 0;
    __device__ __forceinline__ uint32_t four(float a, float b, float c, float d) {
        if (COUNT) clipped += (fabsf(a) > 464.f) + (fabsf(b) > 464.f) + (fabsf(c) > 464.f) + (fabsf(d) > 464.f);
        return encode4(a, b, c, d);
    }
    // Eight of a row, all with the factor that stands in both halves of f.
    __device__ __forceinline__ uint2 eight(uint4 v, uint32_t f) {
        const uint32_t a = times2(v.x, f), b = times2(v.y, f), c = times2(v.z, f), d = times2(v.w, f);
        return make_uint2(four(low(a), high(a), low(b), high(b)), four(low(c), high(c), low(d), high(d)));
    }
    // Four of each of two columns: *low_column and *high_column, whose factors are f's halves.
    __device__ __forceinline__ void two_columns(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t f, uint32_t *low_column, uint32_t *high_column) {
        a = times2(a, f), b = times2(b, f), c = times2(c, f), d = times2(d, f);
        *low_column = four(low(a), low(b), low(c), low(d));
        *high_column = four(high(a), high(b), high(c), high(d));
    }
    __device__ __forceinline__ void report(unsigned long long *to) const {
        if (!COUNT) return;
        const unsigned all = __reduce_add_sync(~0u, clipped);
        if (all && threadIdx.x % 32 == 0) atomicAdd(to, (unsigned long long)all);
    }
};

__device__ __forceinline__ uint32_t byte_of(uint32_t bf16, int rule) { return mx8::scale_byte(bf16 << 16, rule, false); }

// N scale bytes (4 or 8) of one line: the first `filled` are `bytes`, those up to `room` zero.
template <int N> __device__ __forceinline__ void store_scales(uint8_t *to, int64_t step, uint64_t bytes, int filled, int room) {
    if (filled < N) bytes &= (1ull << 8 * filled) - 1;
    if (step == 1 && room >= N && (uintptr_t)to % N == 0) {
        if (N == 8) *(uint64_t *)to = bytes;
        else *(uint32_t *)to = (uint32_t)bytes;
        return;
    }
#pragma unroll 1 // rare, or a few hundred bytes of a tile: short code matters more
    for (int i = 0; i < N && i < room; i++) to[i * step] = (uint8_t)(bytes >> 8 * i);
}

// The first n bytes of a word of four.
__device__ __forceinline__ uint32_t keep_bytes(uint32_t word, int n) { return n >= 4 ? word : n <= 0 ? 0 : word & ((1u << 8 * n) - 1); }

// Codes and scales of a warp's four rows of 256 columns, eight columns from `col` to a lane; the first `rows` exist.
template <int GROUP, bool COUNT>
__device__ __forceinline__ void encode_rows(const Job &p, const uint4 *v, int row, int rows, int col, int batch, Encoder<COUNT> *encoder) {
    uint32_t m[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t a = max8_abs(v[2 * i]), b = max8_abs(v[2 * i + 1]);
        m[i] = max_lanes<1, GROUP / 8>(magnitudes(max2_abs(lows(a, b), highs(a, b))));
    }
    uint8_t *to = p.row_codes + batch * p.rc_batch + row * p.rc_row + col;
    uint8_t *scales = p.row_scales + batch * p.rs_batch + row * p.rs_row + (col / 32) * p.rs_block;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = byte_of(i & 1 ? m[i / 2] >> 16 : m[i / 2] & 0xFFFF, p.rule), f = factor_of(byte);
        const uint2 codes = encoder->eight(v[i], lows(f, f));
        if (i >= rows) continue;
        __stcs((uint2 *)(to + i * p.rc_row), codes);
        if (threadIdx.x % 4 == 0) scales[i * p.rs_row] = (uint8_t)byte;
    }
}

// RCEIL and CEIL put a bf16 amax at or below 448: nothing can be clipped.
inline bool counts(const Job &p) { return p.saturated && p.rule != MX8_SCALE_RCEIL && p.rule != MX8_SCALE_CEIL; }

// Row codes alone: a warp makes four rows of 256 columns, eight to a lane. A source fetches eight neighbours of a row.
template <class SOURCE, int GROUP, bool COUNT> __global__ __launch_bounds__(256) void quantize_rows(const __grid_constant__ Job p, const __grid_constant__ SOURCE source) {
#if __CUDA_ARCH__ >= 900
    const int lane = threadIdx.x % 32, across = divide_up(p.cols, 256), unit = blockIdx.x * 8 + threadIdx.x / 32, b = blockIdx.y;
    const int row = unit / across * 4, col = unit % across * 256 + lane * 8;
    const int used = p.n_groups > 0 ? p.offsets[p.n_groups - 1] : p.rows; // rows behind the last group become zero
    const int rows = col < p.cols ? min(4, p.rows - row) : 0;
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = i < rows && row + i < used ? source.fetch(p, b, row + i, col) : make_uint4(0, 0, 0, 0);
    Encoder<COUNT> encoder;
    encode_rows<GROUP>(p, v, row, rows, col, b, &encoder);
    encoder.report(p.saturated);
#endif
}

template <class SOURCE, int GROUP> enum mx8_status launch_rows(const struct mx8_exec *x, const Job &p, const SOURCE &source) {
    const int64_t units = (int64_t)(p.rows + 3) / 4 * ((p.cols + 255) / 256);
    if (units > INT32_MAX) return MX8_UNSUPPORTED;
    const dim3 grid((unsigned)((units + 7) / 8), (unsigned)p.batch);
    if (counts(p)) quantize_rows<SOURCE, GROUP, true><<<grid, 256, 0, stream_of(x)>>>(p, source);
    else quantize_rows<SOURCE, GROUP, false><<<grid, 256, 0, stream_of(x)>>>(p, source);
    CUDA_LAUNCHED("quantize");
}
// UNSUPPORTED for other groups.
template <class SOURCE> enum mx8_status run_rows(const struct mx8_exec *x, const Job &p, const SOURCE &source) {
    if (p.group == 32) return launch_rows<SOURCE, 32>(x, p, source);
    if (p.group == 128) return launch_rows<SOURCE, 128>(x, p, source);
    return p.group == 256 ? launch_rows<SOURCE, 256>(x, p, source) : MX8_UNSUPPORTED;
}

// Both orientations by tiles of 256 x 256 (quantize_256.cu).
enum mx8_status run_256(const struct mx8_exec *x, const Job &p);

// Scale groups of 256 (quantize_scales.cu): the job with memory for one byte a line and group, [group][line], where there is
// room in what is left of the context's scratch; and what puts eight of each where they belong.
struct Scratch { uint8_t *at; int64_t left; };
inline Scratch all_scratch(const struct mx8_exec *x) { return {(uint8_t *)x->scratch, (int64_t)x->scratch_bytes}; }
Job gather_scales(Scratch *scratch, const Job &p);
enum mx8_status spread_scales(const struct mx8_exec *x, const Job &p);

// What all fast kernels rely on, and the job as they take it (quantize_fused.cu).
bool takes(const struct mx8_quant_job *j);
Job make_job(const struct mx8_quant_job *j);
// With groups: what lies behind the last one, and the padded ends.
enum mx8_status finish(const struct mx8_exec *x, const Job &p);
} // namespace fused
