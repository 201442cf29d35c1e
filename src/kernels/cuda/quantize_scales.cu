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
    const int *end; // NULL, or where groups of rows end: lines from there on have no bytes and are left alone
};

enum { LINES = 128, GROUPS = 32 };

// Blocks of a line side by side: through shared memory, UNIT bytes a store.
template <class UNIT> __global__ __launch_bounds__(256) void spread_along(const __grid_constant__ Spread s) {
    __shared__ __align__(4) uint8_t tile[GROUPS][LINES + 4];
    const int line0 = blockIdx.x * LINES, group0 = blockIdx.y * GROUPS, groups = divide_up(s.blocks, 8);
    const int lines = s.end ? min(s.lines, *s.end) : s.lines;
    const uint8_t *from = s.from + blockIdx.z * s.batch_step + group0 * s.group_step + line0;
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

int64_t round_16(int64_t n) { return (n + 15) / 16 * 16; }
} // namespace

// Columns of groups of rows are left out: where a group ends in the padded order only the device knows.
Job gather_scales(const struct mx8_exec *x, const Job &p) {
    Job g = p;
    const int64_t across = (p.cols + 255) / 256, down = (p.rows + 255) / 256 * (int64_t)p.batch;
    const int64_t row_pitch = round_16((int64_t)p.rows * p.batch), col_pitch = round_16(p.cols);
    uint8_t *scratch = (uint8_t *)x->scratch;
    int64_t left = (int64_t)x->scratch_bytes;
    const bool small = p.batch <= 65535 && p.padded_rows / 32 <= 65535 && across <= 65535; // grid dimensions
    if (p.row_codes && small && p.rs_block == 1 && row_pitch * across <= left) {
        g.row_bytes = scratch; g.row_pitch = row_pitch;
        scratch += row_pitch * across; left -= row_pitch * across;
    }
    if (p.col_codes && small && p.n_groups == 0 && (p.cs_block == 1 || p.cs_col == 1) && col_pitch * down <= left) {
        g.col_bytes = scratch; g.col_pitch = col_pitch;
    }
    return g;
}

enum mx8_status spread_scales(const struct mx8_exec *x, const Job &p) {
    if (p.row_bytes) {
        const int blocks = divide_up(p.cols, 32);
        const Spread s = {p.row_bytes, p.row_pitch, p.rows, p.row_pitch, p.row_scales, p.rs_batch, p.rs_row, 1, p.rows, blocks, blocks,
                          p.n_groups > 0 ? p.offsets + p.n_groups - 1 : NULL};
        const enum mx8_status status = spread(x, s, p.batch);
        if (status != MX8_OK) return status;
    }
    if (!p.col_bytes) return MX8_OK;
    const int64_t bands = divide_up(p.rows, 256);
    const Spread s = {p.col_bytes, p.col_pitch, bands * p.col_pitch, p.col_pitch, p.col_scales, p.cs_batch, p.cs_col, p.cs_block,
                      p.cols, divide_up(p.padded_rows, 32), divide_up(p.rows, 32), NULL};
    return spread(x, s, p.batch);
}
} // namespace fused
