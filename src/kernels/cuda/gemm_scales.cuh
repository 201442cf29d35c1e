// e8m0 scale bytes of a product's operands -> fp32 scales where the Hopper GEMM's TMA finds them: one row of lines per KQ
// elements of k, lines contiguous. The bytes lie with k contiguous (a line every K / 32 bytes), where a K-block's scales would be
// 256 separate sectors of which a byte each is used; loading them inside the GEMM held back its pipeline (1030 TFLOP/s).
//
//   out[s][position(r)] = 2^(bytes[line r][s * KQ / 32] - 127)
//
// Moves lines * steps * (1 + 4) bytes. A group of A's rows begins at a multiple of four floats, as a TMA box must.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

namespace sm90 {
enum { MAX_GROUPS = 256 };

// Where the scales of group g's rows begin, when the group begins at row `begin`. No two groups overlap.
__host__ __device__ __forceinline__ int64_t first_scale(int64_t begin, int g) { return (begin + 3) / 4 * 4 + 4 * (int64_t)g; }
__device__ __forceinline__ int first_scale(int begin, int g) { return (begin + 3) / 4 * 4 + 4 * g; }

struct ScaleSide {
    const uint8_t *bytes; int64_t ls, ks, gs; // strides by line, by step, by group
    float *out; int64_t pitch, group_pitch;   // floats between steps, between groups
    int64_t lines; int tile, groups, steps;   // lines of a group that have a scale each; rows of the operand a line stands for
    const int *ends; int n_ends;              // row groups (A): where a row's scale goes; NULL: position = line
};

__device__ __forceinline__ float scale_of(uint32_t byte) { // 2^(byte-127); 255 is NaN, 0 the subnormal 2^-127
    return __uint_as_float(byte == 255 ? 0x7FC00000u : byte == 0 ? 0x00400000u : byte << 23);
}

// A thread has one line and every gridDim.y-th chunk of 8 steps: the bytes of a chunk are neighbours.
static __global__ __launch_bounds__(128) void expand_scales(const __grid_constant__ ScaleSide a, const __grid_constant__ ScaleSide b, unsigned a_blocks) {
    __shared__ int ends[MAX_GROUPS];
    const bool is_a = blockIdx.x < a_blocks;
    const ScaleSide &s = is_a ? a : b;
    if (s.ends) {
        for (int i = threadIdx.x; i < s.n_ends; i += 128) ends[i] = s.ends[i];
        __syncthreads();
    }
    const int64_t at = (int64_t)(blockIdx.x - (is_a ? 0 : a_blocks)) * 128 + threadIdx.x;
    if (at >= s.lines * s.groups) return;
    const int64_t g = at / s.lines, line = at % s.lines;
    int64_t position = g * s.group_pitch + line;
    if (s.ends) {
        int low = 0, high = s.n_ends; // the first group that ends behind the line
        while (low < high) {
            const int middle = (low + high) / 2;
            if (ends[middle] > line) high = middle; else low = middle + 1;
        }
        if (low == s.n_ends) return; // rows behind the groups are nobody's
        const int begin = low ? ends[low - 1] : 0;
        position = line - begin + first_scale(begin, low);
    }
    const uint8_t *in = s.bytes + g * s.gs + line * s.tile * s.ls;
    for (int chunk = blockIdx.y * 8; chunk < s.steps; chunk += gridDim.y * 8) {
        uint32_t v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = chunk + i < s.steps ? __ldg(in + (chunk + i) * s.ks) : 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (chunk + i < s.steps) s.out[(chunk + i) * s.pitch + position] = scale_of(v[i]);
    }
}

static inline cudaError_t launch_scales(cudaStream_t stream, const ScaleSide &a, const ScaleSide &b) {
    const unsigned blocks_a = (unsigned)((a.lines * a.groups + 127) / 128), blocks_b = (unsigned)((b.lines * b.groups + 127) / 128);
    const unsigned chunks = (unsigned)((a.steps + 7) / 8);
    expand_scales<<<dim3(blocks_a + blocks_b, chunks < 64 ? chunks : 64), 128, 0, stream>>>(a, b, blocks_a);
    return cudaGetLastError();
}
} // namespace sm90
