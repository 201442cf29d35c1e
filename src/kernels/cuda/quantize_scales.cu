// Where a scale is shared by 256 elements, eight e8m0 bytes of a line are equal. The quantizers leave one byte for each of
// them, [group][line], and these kernels write the eight where they belong: whole sectors instead of eight bytes here and
// there. 0.06 bytes an element and orientation; `quantize both` gains a sixth.
#include "quantize_fused.cuh"

namespace fused {
namespace {
// One orientation: byte (group g of matrix b, line l) stands at from[(b * groups + g) * pitch + l] for columns, whose groups
// lie apart, or at from[g * pitch + b * lines + l] for rows.
struct Spread {
    const uint8_t *from; int64_t pitch, batch_step, group_step;
    uint8_t *to; int64_t to_batch, to_line, to_block;
    int lines, blocks, filled; // blocks from `filled` on are zero
    const int *ends; int n_ends, padding; // groups of rows, or NULL. Lines: those behind the last end have no bytes. Blocks: they follow the groups
};

enum { LINES = 128, GROUPS = 32 };

// Blocks of a line side by side: through shared memory, UNIT bytes a store.
template <class UNIT> __global__ __launch_bounds__(256) void spread_along(const __grid_constant__ Spread s) {
    __shared__ __align__(4) uint8_t tile[GROUPS][LINES + 4];
    const int line0 = blockIdx.x * LINES, group0 = blockIdx.y * GROUPS, groups = divide_up(s.blocks, 8);
    const uint8_t *from = s.from + blockIdx.z * s.batch_step + group0 * s.group_step + line0;
    const int lines = s.ends ? min(s.lines, s.ends[s.n_ends - 1]) : s.lines; // what is behind them, another kernel clears
    for (int i = threadIdx.x; i < GROUPS * LINES; i += 256) {
        const int g = i / LINES, l = i % LINES;
        tile[g][l] = group0 + g < groups && line0 + l < lines ? from[g * s.group_step + l] : 0;
    }
    __syncthreads();
    constexpr int SIZE = sizeof(UNIT), UNITS = GROUPS * 8 / SIZE;
    for (int i = threadIdx.x; i < LINES * UNITS; i += 256) {
        const int l = i / UNITS, block = i % UNITS * SIZE, b = group0 * 8 + block;
        if (line0 + l >= lines || b >= s.blocks) continue;
        uint64_t v = tile[block / 8][l] * 0x0101010101010101ull;
        if (b + SIZE > s.filled) v = b >= s.filled ? 0 : v & ((1ull << 8 * (s.filled - b)) - 1);
        uint8_t *to = s.to + blockIdx.z * s.to_batch + (line0 + l) * s.to_line + b;
        if (b + SIZE <= s.blocks) { *(UNIT *)to = (UNIT)v; continue; }
        for (int k = 0; b + k < s.blocks; k++) to[k] = (uint8_t)(v >> 8 * k);
    }
}

// Row of bytes in which block b of the padded groups stands; -1: a block without rows.
__device__ __forceinline__ int find_band(const Spread &s, int b) {
    int start = 0, block = 0, band = 0;
    for (int g = 0; g < s.n_ends; g++) {
        const int rows = s.ends[g] - start, blocks = round_up(rows, s.padding) / 32;
        if (b < block + blocks) return b - block < divide_up(rows, 32) ? band + (b - block) / 8 : -1;
        start += rows;
        block += blocks;
        band += divide_up(rows, 256);
    }
    return -1;
}

enum { BLOCKS = 256, PITCH = BLOCKS + 4 };
__device__ __forceinline__ uint4 transpose(uint4 v) { // of 4 x 4 bytes
    const uint32_t a = __byte_perm(v.x, v.y, 0x5140), b = __byte_perm(v.z, v.w, 0x5140), c = __byte_perm(v.x, v.y, 0x7362), d = __byte_perm(v.z, v.w, 0x7362);
    return make_uint4(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632));
}

// As spread_along, where blocks follow groups of rows: a block says in which row of bytes it stands. WORDS of 4 bytes a store, or
// single bytes.
template <int WORDS> __global__ __launch_bounds__(256) void spread_groups(const __grid_constant__ Spread s) {
    __shared__ int bands[BLOCKS];
    __shared__ __align__(16) uint8_t tile[LINES * PITCH];
    const int line0 = blockIdx.x * LINES, block0 = blockIdx.y * BLOCKS;
    bands[threadIdx.x] = find_band(s, block0 + threadIdx.x);
    __syncthreads();
    for (int i = threadIdx.x; i < LINES / 4 * (BLOCKS / 4); i += 256) {
        const int l = i % (LINES / 4) * 4, b = i / (LINES / 4) * 4;
        uint32_t v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) // pitches are multiples of 16, lines of 8
            v[k] = bands[b + k] >= 0 && line0 + l < s.lines ? *(const uint32_t *)(s.from + bands[b + k] * s.group_step + line0 + l) : 0;
        const uint4 lines = transpose(make_uint4(v[0], v[1], v[2], v[3]));
        uint32_t *const to = (uint32_t *)(tile + l * PITCH + b);
        to[0] = lines.x; to[PITCH / 4] = lines.y; to[PITCH / 2] = lines.z; to[PITCH / 4 * 3] = lines.w;
    }
    __syncthreads();
    constexpr int SIZE = WORDS ? 4 * WORDS : 4;
    for (int i = threadIdx.x; i < LINES * (BLOCKS / SIZE); i += 256) {
        const int l = i / (BLOCKS / SIZE), b = i % (BLOCKS / SIZE) * SIZE, left = s.blocks - block0 - b;
        if (line0 + l >= s.lines || left <= 0) continue;
        const uint32_t *const v = (const uint32_t *)(tile + l * PITCH + b);
        uint8_t *const to = s.to + (line0 + l) * s.to_line + block0 + b;
        if (WORDS == 2 && left >= 8) *(uint2 *)to = make_uint2(v[0], v[1]);
        else if (WORDS == 1 && left >= 4) *(uint32_t *)to = v[0];
        else for (int k = 0; k < SIZE && k < left; k++) to[k] = (uint8_t)(v[k / 4] >> k % 4 * 8);
    }
}

// Lines of a block side by side: rows of bytes, each eight times.
__global__ __launch_bounds__(256) void spread_across(const __grid_constant__ Spread s) {
    const int b = blockIdx.y, l = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (l >= s.lines) return;
    const uint32_t v = b < s.filled ? *(const uint32_t *)(s.from + blockIdx.z * s.batch_step + (b / 8) * s.group_step + l) : 0; // pitches are multiples of 16
    uint8_t *to = s.to + blockIdx.z * s.to_batch + b * s.to_block + l;
    if (l + 4 <= s.lines && (uintptr_t)to % 4 == 0) { *(uint32_t *)to = v; return; }
    for (int k = 0; k < 4 && l + k < s.lines; k++) to[k] = (uint8_t)(v >> 8 * k);
}

enum mx8_status spread(const struct mx8_exec *x, const Spread &s, int batch) {
    if (s.lines == 0 || s.blocks == 0) return MX8_OK;
    if (s.to_block == 1) {
        const dim3 grid((s.lines + LINES - 1) / LINES, (s.blocks + GROUPS * 8 - 1) / (GROUPS * 8), batch);
        const uint64_t at = (uint64_t)(uintptr_t)s.to | (uint64_t)s.to_line | (batch > 1 ? (uint64_t)s.to_batch : 0);
        if (at % 8 == 0) spread_along<uint64_t><<<grid, 256, 0, stream_of(x)>>>(s);
        else if (at % 2 == 0) spread_along<uint16_t><<<grid, 256, 0, stream_of(x)>>>(s);
        else spread_along<uint8_t><<<grid, 256, 0, stream_of(x)>>>(s);
    } else {
        const dim3 grid((s.lines + 1023) / 1024, s.blocks, batch);
        spread_across<<<grid, 256, 0, stream_of(x)>>>(s);
    }
    CUDA_LAUNCHED("quantize");
}

enum mx8_status spread_by_groups(const struct mx8_exec *x, const Spread &s) {
    if (s.lines == 0 || s.blocks == 0) return MX8_OK;
    const dim3 grid((s.lines + LINES - 1) / LINES, (s.blocks + BLOCKS - 1) / BLOCKS);
    const uint64_t at = (uint64_t)(uintptr_t)s.to | (uint64_t)s.to_line;
    if (at % 8 == 0) spread_groups<2><<<grid, 256, 0, stream_of(x)>>>(s);
    else if (at % 4 == 0) spread_groups<1><<<grid, 256, 0, stream_of(x)>>>(s);
    else spread_groups<0><<<grid, 256, 0, stream_of(x)>>>(s);
    CUDA_LAUNCHED("quantize");
}

int64_t round_16(int64_t n) { return (n + 15) / 16 * 16; }
} // namespace

Job gather_scales(Scratch *scratch, const Job &p) {
    Job g = p;
    const int64_t across = (p.cols + 255) / 256, down = (p.rows + 255) / 256 * (int64_t)p.batch + p.n_groups;
    const int64_t row_pitch = round_16((int64_t)p.rows * p.batch), col_pitch = round_16(p.cols);
    const bool small = p.batch <= 65535 && p.padded_rows / 32 <= 65535 && across <= 65535; // grid dimensions
    if (p.row_codes && small && p.rs_block == 1 && row_pitch * across <= scratch->left) {
        g.row_bytes = scratch->at; g.row_pitch = row_pitch;
        scratch->at += row_pitch * across; scratch->left -= row_pitch * across;
    }
    const bool adjacent = p.cs_block == 1 || (p.cs_col == 1 && p.n_groups == 0);
    if (p.col_codes && small && adjacent && col_pitch * down <= scratch->left) {
        g.col_bytes = scratch->at; g.col_pitch = col_pitch;
        scratch->at += col_pitch * down; scratch->left -= col_pitch * down;
    }
    return g;
}

enum mx8_status spread_scales(const struct mx8_exec *x, const Job &p) {
    if (p.row_bytes) {
        const int blocks = divide_up(p.cols, 32);
        const Spread s = {p.row_bytes, p.row_pitch, p.rows, p.row_pitch, p.row_scales, p.rs_batch, p.rs_row, 1, p.rows, blocks, blocks,
                          p.n_groups > 0 ? p.offsets : NULL, p.n_groups, p.padding};
        const enum mx8_status status = spread(x, s, p.batch);
        if (status != MX8_OK) return status;
    }
    if (!p.col_bytes) return MX8_OK;
    const int64_t bands = divide_up(p.rows, 256);
    const Spread s = {p.col_bytes, p.col_pitch, bands * p.col_pitch, p.col_pitch, p.col_scales, p.cs_batch, p.cs_col, p.cs_block,
                      p.cols, divide_up(p.padded_rows, 32), divide_up(p.rows, 32), p.n_groups > 0 ? p.offsets : NULL, p.n_groups, p.padding};
    return p.n_groups > 0 ? spread_by_groups(x, s) : spread(x, s, p.batch);
}
} // namespace fused
