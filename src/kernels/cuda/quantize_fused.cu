// Fast quantizers of bf16 to e4m3: both orientations from one read. The same bits as quantize.cu, which takes every job
// that these do not. Since sm_90: earlier GPUs convert to e4m3 in software and have no TMA.
//
//   quantize_256   scale groups of 256 in either or both orientations, tiles of 1 or 32 lines
//   quantize_128   scale groups of 32 or 128, column codes with or without row codes
//   quantize_rows  row codes alone, scale groups of 32, 128 or 256
//
// Bytes: 2 read and 1.03 written per element and orientation. Prototype of quantize_256 (H200, 65,536 x 5120, both
// orientations): 3.63 TB/s, where a copy reaches 4.15. Lost: clusters that exchange maxima (3.12), four CTAs of
// quantize_128 on an SM (spills), column halves side by side instead of one below the other.
#include "backend.h"
#include "quantize_fused.cuh"

namespace fused {
namespace {
// ---- groups of 256: a persistent CTA walks tiles of 256 x 256 ----

// Six 128 x 128 pieces of the source wait in shared memory, filled by TMA ahead of use. Pass A reads a tile's four pieces
// for the maxima, pass B again to convert them. Transposed codes go through two 16 KB buffers, so that 128 bytes of a
// column leave together. Rows of a piece that belong to the next group are zeroed in pass A.
enum { SLOTS = 6, PIECE = 128 * 128 * 2, BUFFER = 128 * 128, SMEM_256 = SLOTS * PIECE + 2 * BUFFER + 2 * 256 * 4 + 8 * SLOTS };

// Tiles in order: groups (or matrices of the batch), rows of tiles, columns fastest. `seek` only moves forward.
struct Walk {
    const Job &p; int g, start, end, at, padded; unsigned first, next; int across;
    __device__ explicit Walk(const Job &j) : p(j), g(-1), start(0), end(0), at(0), padded(0), first(0), next(0), across(divide_up(j.cols, 256)) {}
    __device__ bool seek(unsigned unit, Tile *t) {
        const int n = p.n_groups > 0 ? p.n_groups : p.batch;
        while (unit >= next) {
            if (g + 1 >= n) return false;
            g++;
            start = p.n_groups > 0 ? end : 0;
            at = p.n_groups > 0 ? padded : 0;
            end = p.n_groups > 0 ? p.offsets[g] : p.rows;
            padded = p.n_groups > 0 ? at + round_up(end - start, p.padding) : p.padded_rows;
            first = next;
            next += divide_up(end - start, 256) * across;
        }
        const int down = (unit - first) / across * 256;
        t->batch = p.n_groups > 0 ? 0 : g;
        t->row = start + down;
        t->rows = min(256, end - t->row);
        t->col = (unit - first) % across * 256;
        t->at = at + down;
        t->room = min(padded, p.padded_rows) - t->at;
        return true;
    }
};

__device__ __forceinline__ void load_piece(const CUtensorMap *m, uint32_t bar, uint32_t dst, int x, int y, int z) {
    ptx::mbar_expect(bar, PIECE);
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(m), "r"(bar), "r"(x), "r"(y), "r"(z) : "memory");
}

// The first thread keeps the slots filled. Piece s of a tile is column half s/2, row half s%2.
struct Loader {
    Walk walk; Tile tile; unsigned unit, loaded; bool more;
    __device__ explicit Loader(const Job &p) : walk(p), unit(blockIdx.x), loaded(0) { more = walk.seek(unit, &tile); }
};
[[maybe_unused]] __device__ __forceinline__ void load_next(Loader *l, const CUtensorMap *map, uint32_t slots, uint32_t bars) {
    if (!l->more) return;
    const int s = l->loaded % 4, slot = l->loaded % SLOTS, y = s % 2 * 128;
    // A piece without rows of the group starts outside the matrix: zeros, and nothing is read.
    load_piece(map, bars + 8 * slot, slots + slot * PIECE, l->tile.col + s / 2 * 128, y < l->tile.rows ? l->tile.row + y : l->walk.p.rows, l->tile.batch);
    if (++l->loaded % 4 == 0) l->more = l->walk.seek(l->unit += gridDim.x, &l->tile);
}

// 16 bytes of a column, or what has room of them.
__device__ __forceinline__ void store_piece(uint8_t *to, uint4 v, int room) {
    if (room >= 16) { __stcs((uint4 *)to, v); return; }
#pragma unroll 1 // rare: short code matters more
    for (int i = 0; i < room; i++) to[i] = (uint8_t)((i < 4 ? v.x : i < 8 ? v.y : i < 12 ? v.z : v.w) >> 8 * (i % 4));
}

// What quantize_256 reads: a stored matrix by TMA, or values that its threads make, eight of a row at a time.
#pragma nv_diag_suppress 177 // before sm_90 nobody calls them
struct Stored {
    static constexpr bool stored = true;
    __device__ uint4 eight(int, int) const { return make_uint4(0, 0, 0, 0); }
};

// The gradient of the logits, as loss.cu stores it.
struct Softmax {
    static constexpr bool stored = false;
    const __nv_bfloat16 *logits; int64_t ls; const struct mx8_row_softmax *rows;
    __device__ __forceinline__ uint32_t two(uint32_t l, float max, float factor) const {
        uint32_t r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(__expf(high(l) - max) * factor), "f"(__expf(low(l) - max) * factor));
        return r;
    }
    __device__ __forceinline__ uint4 eight(int row, int col) const {
        const uint4 l = __ldcs((const uint4 *)(logits + row * ls + col)), r = *(const uint4 *)(rows + row);
        const float max = __uint_as_float(r.x), factor = __uint_as_float(r.y);
        const int target = (int)r.w, at = target - col;
        if (target < 0) return make_uint4(0, 0, 0, 0);
        uint4 v = make_uint4(two(l.x, max, factor), two(l.y, max, factor), two(l.z, max, factor), two(l.w, max, factor));
        if (at >= 0 && at < 8) {
            const uint32_t hit = __bfloat16_as_ushort(__float2bfloat16_rn(__uint_as_float(r.z)));
            uint32_t &word = at < 2 ? v.x : at < 4 ? v.y : at < 6 ? v.z : v.w;
            word = at & 1 ? (word & 0xFFFFu) | hit << 16 : (word & 0xFFFF0000u) | hit;
        }
        return v;
    }
};
static_assert(sizeof(struct mx8_row_softmax) == 16, "read as one piece");
#pragma nv_diag_default 177

template <class SOURCE, bool ROW, bool COL, bool COUNT>
__global__ __launch_bounds__(512, 1) void quantize_256(const __grid_constant__ CUtensorMap map, const __grid_constant__ Job p,
                                                       const __grid_constant__ SOURCE source) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) uint8_t sm[];
    uint8_t *const buffers = sm + SLOTS * PIECE;
    uint32_t(*const warp_max)[128] = (uint32_t(*)[128])buffers; // pairs of columns; until the first buffer is needed
    float *const row_factor = (float *)(buffers + 2 * BUFFER), *const col_factor = row_factor + 256;
    uint32_t *const row_max = (uint32_t *)row_factor; // until it is the factor
    const uint32_t bars = ptx::smem(col_factor + 256), slots = ptx::smem(sm);
    const int t = threadIdx.x, cx = t % 16, ry = t / 16, lane = t % 32, warp = t / 32; // columns 8 cx .., rows 4 ry .. of a piece
    if (SOURCE::stored && t == 0) {
        for (int i = 0; i < SLOTS; i++) ptx::mbar_init(bars + 8 * i, 1);
        ptx::mbar_init_fence();
        ptx::fence_async();
    }
    __syncthreads();
    Loader loader(p);
    if (SOURCE::stored && t == 0) for (int i = 0; i < SLOTS; i++) load_next(&loader, &map, slots, bars);
    Walk walk(p);
    Tile tile;
    Encoder<COUNT> encoder;
    unsigned n = 0; // pieces so far
    for (unsigned unit = blockIdx.x; walk.seek(unit, &tile); unit += gridDim.x, n += 4) {
        const bool ragged = tile.rows < 256;
        uint32_t cm[2][4] = {}, rm[2][2] = {}; // maxima of [column half][pair of columns] and [row half][pair of rows]
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const int slot = SOURCE::stored ? (n + s) % SLOTS : s, down = s % 2, across = s / 2;
            if (SOURCE::stored) ptx::mbar_wait(bars + 8 * slot, (n + s) / SLOTS & 1);
            uint4 *const x = (uint4 *)(sm + slot * PIECE + ry * 4 * 256 + cx * 16);
            if (!SOURCE::stored) { // what the last tile left here was read before its last barrier
                const int row = down * 128 + ry * 4, col = tile.col + across * 128 + cx * 8;
                uint4 made[4];
#pragma unroll
                for (int i = 0; i < 4; i++) made[i] = row + i < tile.rows && col < p.cols ? source.eight(tile.row + row + i, col) : make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int i = 0; i < 4; i++) x[i * 16] = made[i];
            }
            uint32_t m[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (SOURCE::stored && ragged && down * 128 + ry * 4 + i >= tile.rows) x[i * 16] = make_uint4(0, 0, 0, 0);
                const uint4 v = magnitudes(x[i * 16]);
                if (COL) {
                    uint32_t *c = cm[across];
                    c[0] = max2(c[0], v.x); c[1] = max2(c[1], v.y); c[2] = max2(c[2], v.z); c[3] = max2(c[3], v.w);
                }
                if (ROW) m[i] = max8(v);
            }
            if (ROW) {
                rm[down][0] = max2(rm[down][0], m[0] | m[1] << 16);
                rm[down][1] = max2(rm[down][1], m[2] | m[3] << 16);
            }
        }
        if (ROW) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t a = max_lanes<1, 16>(rm[h][0]), b = max_lanes<1, 16>(rm[h][1]);
                if (cx == 0) *(uint4 *)&row_max[h * 128 + ry * 4] = make_uint4(a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16);
            }
        }
        if (COL) {
#pragma unroll
            for (int i = 0; i < 8; i++) cm[i / 4][i % 4] = max2(cm[i / 4][i % 4], __shfl_xor_sync(~0u, cm[i / 4][i % 4], 16));
            if (lane < 16) { *(uint4 *)&warp_max[warp][cx * 4] = *(uint4 *)cm[0]; *(uint4 *)&warp_max[warp][64 + cx * 4] = *(uint4 *)cm[1]; }
        }
        __syncthreads();
        if (COL && t < 128) { // columns 2t and 2t + 1
            uint32_t m = warp_max[0][t];
#pragma unroll
            for (int i = 1; i < 16; i++) m = max2(m, warp_max[i][t]);
            if (p.col_tile == 32) m = max_lanes<1, 16>(max2(m, swap2(m)));
            const uint32_t b0 = byte_of(m & 0xFFFF, p.rule), b1 = byte_of(m >> 16, p.rule);
            *(float2 *)&col_factor[2 * t] = make_float2(mx8::inverse_scale(b0), mx8::inverse_scale(b1));
            uint8_t *to = p.col_scales + tile.batch * p.cs_batch + (tile.col + 2 * t) * p.cs_col + (tile.at / 32) * p.cs_block;
            const int filled = divide_up(tile.rows, 32), room = min(8, divide_up(tile.room, 32));
            if (tile.col + 2 * t < p.cols) { // an even number of columns
                store_scales<8>(to, p.cs_block, b0 * 0x0101010101010101ull, filled, room);
                store_scales<8>(to + p.cs_col, p.cs_block, b1 * 0x0101010101010101ull, filled, room);
            }
        }
        if (ROW && t >= 256) { // row t - 256
            const int r = t - 256;
            uint32_t m = row_max[r];
            if (p.row_tile == 32) m = __reduce_max_sync(~0u, m);
            const uint32_t b = byte_of(m, p.rule);
            row_factor[r] = mx8::inverse_scale(b);
            const int blocks = min(8, divide_up(p.cols - tile.col, 32));
            uint8_t *to = p.row_scales + tile.batch * p.rs_batch + (tile.row + r) * p.rs_row + (tile.col / 32) * p.rs_block;
            if (r < tile.rows) store_scales<8>(to, p.rs_block, b * 0x0101010101010101ull, blocks, blocks);
        }
        __syncthreads();
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const int slot = SOURCE::stored ? (n + s) % SLOTS : s, down = s % 2 * 128, col = tile.col + s / 2 * 128;
            const uint8_t *x = sm + slot * PIECE;
            uint8_t *const buffer = buffers + (s & 1) * BUFFER;
            if (ROW) {
                const float4 f4 = *(const float4 *)&row_factor[down + ry * 4];
                const float f[4] = {f4.x, f4.y, f4.z, f4.w};
                uint8_t *to = p.row_codes + tile.batch * p.rc_batch + (tile.row + down + ry * 4) * p.rc_row + col + cx * 8;
                const int rows = col + cx * 8 < p.cols ? tile.rows - down - ry * 4 : 0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint2 codes = encoder.eight(*(const uint4 *)(x + (ry * 4 + i) * 256 + cx * 16), f[i]);
                    if (i < rows) __stcs((uint2 *)(to + i * p.rc_row), codes);
                }
            }
            if (COL) {
                const int cp = t % 64, rb = t / 64; // columns 2cp, 2cp + 1 of 16 rows
                const float2 f = *(const float2 *)&col_factor[s / 2 * 128 + cp * 2];
                Encoder<COUNT && !ROW> column;
                uint32_t a[4], b[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint32_t y[4];
#pragma unroll
                    for (int k = 0; k < 4; k++) y[k] = *(const uint32_t *)(x + (rb * 16 + i * 4 + k) * 256 + cp * 4);
                    a[i] = column.four(low(y[0]) * f.x, low(y[1]) * f.x, low(y[2]) * f.x, low(y[3]) * f.x);
                    b[i] = column.four(high(y[0]) * f.y, high(y[1]) * f.y, high(y[2]) * f.y, high(y[3]) * f.y);
                }
                if (ragged) { // padding is zero in a group of NaN too
                    const int rows = tile.rows - down - rb * 16;
#pragma unroll
                    for (int i = 0; i < 4; i++) { a[i] = keep_bytes(a[i], rows - 4 * i); b[i] = keep_bytes(b[i], rows - 4 * i); }
                }
                encoder.clipped += column.clipped;
                const int chunk = (rb ^ (cp & 7)) * 16; // swizzled by column pair
                *(uint4 *)(buffer + cp * 256 + chunk) = make_uint4(a[0], a[1], a[2], a[3]);
                *(uint4 *)(buffer + cp * 256 + 128 + chunk) = make_uint4(b[0], b[1], b[2], b[3]);
            }
            if (SOURCE::stored && ragged) ptx::fence_async(); // zeros written in pass A come before TMA's next bytes
            __syncthreads();
            if (SOURCE::stored && t == 0) load_next(&loader, &map, slots, bars);
            if (COL) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int id = i * 512 + t, c = id / 8, q = id % 8, room = tile.room - down - q * 16;
                    uint8_t *to = p.col_codes + tile.batch * p.cc_batch + (col + c) * p.cc_col + tile.at + down + q * 16;
                    if (col + c < p.cols) store_piece(to, *(const uint4 *)(buffer + c * 128 + (q ^ (c / 2 & 7)) * 16), room);
                }
            }
        }
    }
    encoder.report(p.saturated);
#endif
}

// ---- groups of 32 and 128: a CTA makes one tile of 128 x 128, kept in registers ----

// Row tile `index` of the groups; every warp searches 32 groups at a time.
[[maybe_unused]] __device__ bool find_tile(const Job &p, int index, Tile *t) {
    const int lane = threadIdx.x % 32;
    int start = 0, before = 0, padded = 0, end = p.rows, room = p.padded_rows;
    for (int g = 0; g < p.n_groups; g += 32) {
        const int last = p.offsets[min(g + lane, p.n_groups - 1)], up = __shfl_up_sync(~0u, last, 1), first = lane ? up : start;
        const int n = divide_up(last - first, 128), size = round_up(last - first, p.padding);
        int tiles = n, sizes = size;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const int a = __shfl_up_sync(~0u, tiles, o), b = __shfl_up_sync(~0u, sizes, o);
            if (lane >= o) { tiles += a; sizes += b; }
        }
        const unsigned found = __ballot_sync(~0u, index < before + tiles);
        const int from = found ? __ffs(found) - 1 : 31;
        end = __shfl_sync(~0u, last, from);
        if (found) {
            start = __shfl_sync(~0u, first, from);
            before += __shfl_sync(~0u, tiles - n, from);
            padded += __shfl_sync(~0u, sizes - size, from);
            room = min(p.padded_rows, padded + __shfl_sync(~0u, size, from));
            break;
        }
        start = end;
        before += __shfl_sync(~0u, tiles, 31);
        padded += __shfl_sync(~0u, sizes, 31);
        if (g + 32 >= p.n_groups) return false;
    }
    const int down = (index - before) * 128;
    *t = {(int)blockIdx.y, start + down, min(128, end - start - down), 0, padded + down, room - padded - down};
    return t->rows > 0;
}

// Thread t holds columns 8 (t%16) .. of rows 8 (t/16) ..; a warp holds 16 rows of all columns.
template <int GROUP, bool ROW, bool COUNT> __global__ __launch_bounds__(256, 3) void quantize_128(const __grid_constant__ Job p) {
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(16) uint2 transposed[128 * 16];         // [column][8 rows], the second index ^= column / 8
    __shared__ __align__(16) uint32_t warp_max[8][64];           // pairs of columns
    __shared__ __align__(16) float col_factor[128 / GROUP][128]; // [group][column]
    __shared__ __align__(16) float row_factor[128 / GROUP][128]; // [group][row]; first the maxima, as bits
    __shared__ __align__(4) uint8_t bytes[256][4];               // scales of [column][block], and of [128 + row][block]
    const int t = threadIdx.x, cx = t % 16, ry = t / 16, lane = t % 32, across = divide_up(p.cols, 128);
    Tile tile;
    if (!find_tile(p, blockIdx.x / across, &tile)) return;
    tile.col = blockIdx.x % across * 128;
    const int col = tile.col + cx * 8, rows = col < p.cols ? tile.rows - ry * 8 : 0; // rows of this thread that exist
    uint4 v[8];
    const __nv_bfloat16 *src = p.src + tile.batch * p.src_batch + (int64_t)(tile.row + ry * 8) * p.src_row + col;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = i < rows ? __ldcs((const uint4 *)(src + i * p.src_row)) : make_uint4(0, 0, 0, 0);

    uint32_t cm[4] = {}, rm[4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint4 a = magnitudes(v[i]);
        cm[0] = max2(cm[0], a.x); cm[1] = max2(cm[1], a.y); cm[2] = max2(cm[2], a.z); cm[3] = max2(cm[3], a.w);
        if (ROW) rm[i / 2] = i & 1 ? rm[i / 2] | max8(a) << 16 : max8(a);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) cm[i] = max2(cm[i], __shfl_xor_sync(~0u, cm[i], 16));
    if (lane < 16) *(uint4 *)&warp_max[t / 32][cx * 4] = make_uint4(cm[0], cm[1], cm[2], cm[3]);
    if (ROW) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            rm[i] = max_lanes<1, GROUP / 8>(rm[i]);
            const uint2 both = make_uint2(rm[i] & 0xFFFF, rm[i] >> 16);
            if (cx % (GROUP / 8) == 0) *(uint2 *)&row_factor[cx / (GROUP / 8)][ry * 8 + 2 * i] = both;
        }
    }
    __syncthreads();

    for (int i = t; ROW && i < 128 * (128 / GROUP); i += 256) {
        const int g = i / 128, r = i % 128;
        uint32_t m = __float_as_uint(row_factor[g][r]);
        if (p.row_tile == 32) m = __reduce_max_sync(~0u, m);
        const uint32_t b = byte_of(m, p.rule);
        row_factor[g][r] = mx8::inverse_scale(b);
#pragma unroll
        for (int k = 0; k < GROUP / 32; k++) bytes[128 + r][g * GROUP / 32 + k] = (uint8_t)b;
    }
    if (t < 64 * (128 / GROUP)) {
        constexpr int WARPS = GROUP / 16;
        const int g = t / 64, pair = t % 64;
        uint32_t m = warp_max[g * WARPS][pair];
#pragma unroll
        for (int i = 1; i < WARPS; i++) m = max2(m, warp_max[g * WARPS + i][pair]);
        if (p.col_tile == 32) m = max_lanes<1, 16>(max2(m, swap2(m)));
        const uint32_t b0 = byte_of(m & 0xFFFF, p.rule), b1 = byte_of(m >> 16, p.rule);
        *(float2 *)&col_factor[g][2 * pair] = make_float2(mx8::inverse_scale(b0), mx8::inverse_scale(b1));
#pragma unroll
        for (int i = 0; i < GROUP / 32; i++) {
            bytes[2 * pair][g * GROUP / 32 + i] = (uint8_t)b0;
            bytes[2 * pair + 1][g * GROUP / 32 + i] = (uint8_t)b1;
        }
    }
    __syncthreads();
    Encoder<COUNT> encoder;
    if (ROW) {
        const float *f = &row_factor[cx * 8 / GROUP][ry * 8];
        uint8_t *to = p.row_codes + tile.batch * p.rc_batch + (tile.row + ry * 8) * p.rc_row + col;
#pragma unroll
        for (int i = 0; i < 8; i++, to += p.rc_row) {
            const uint2 codes = encoder.eight(v[i], f[i]);
            if (i < rows) __stcs((uint2 *)to, codes);
        }
    }
    const float4 f0 = *(const float4 *)&col_factor[ry * 8 / GROUP][cx * 8], f1 = *(const float4 *)&col_factor[ry * 8 / GROUP][cx * 8 + 4];
    const float f[8] = {f0.x, f0.y, f0.z, f0.w, f1.x, f1.y, f1.z, f1.w};
    Encoder<COUNT && !ROW> column;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t two = j / 2 == 0 ? v[i].x : j / 2 == 1 ? v[i].y : j / 2 == 2 ? v[i].z : v[i].w;
            x[i] = (j & 1 ? high(two) : low(two)) * f[j];
        }
        uint2 codes = make_uint2(column.four(x[0], x[1], x[2], x[3]), column.four(x[4], x[5], x[6], x[7]));
        if (tile.rows < 128) codes = make_uint2(keep_bytes(codes.x, tile.rows - ry * 8), keep_bytes(codes.y, tile.rows - ry * 8 - 4)); // in a group of NaN too
        transposed[(cx * 8 + j) * 16 + (ry ^ cx)] = codes;
    }
    encoder.clipped += column.clipped;
    const uint32_t four = *(const uint32_t *)bytes[t];
    if (t < 128 && tile.col + t < p.cols) {
        uint8_t *to = p.col_scales + tile.batch * p.cs_batch + (tile.col + t) * p.cs_col + (tile.at / 32) * p.cs_block;
        store_scales<4>(to, p.cs_block, four, divide_up(tile.rows, 32), min(4, divide_up(tile.room, 32)));
    }
    if (ROW && t >= 128 && t - 128 < tile.rows) {
        const int blocks = min(4, divide_up(p.cols - tile.col, 32));
        uint8_t *to = p.row_scales + tile.batch * p.rs_batch + (tile.row + t - 128) * p.rs_row + (tile.col / 32) * p.rs_block;
        store_scales<4>(to, p.rs_block, four, blocks, blocks);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = i * 16 + ry, room = tile.room - cx * 8;
        uint8_t *to = p.col_codes + tile.batch * p.cc_batch + (tile.col + c) * p.cc_col + tile.at + cx * 8;
        const uint2 codes = transposed[c * 16 + (cx ^ (c / 8))];
        if (tile.col + c >= p.cols) continue;
        if (room >= 8) { __stcs((uint2 *)to, codes); continue; }
#pragma unroll 1 // rare, as in store_piece
        for (int k = 0; k < room; k++) to[k] = (uint8_t)((k < 4 ? codes.x : codes.y) >> 8 * (k % 4));
    }
    encoder.report(p.saturated);
#endif
}

// ---- row codes alone: a warp makes four rows of 256 columns, eight to a lane ----

template <int GROUP, bool COUNT> __global__ __launch_bounds__(256) void quantize_rows(const __grid_constant__ Job p) {
#if __CUDA_ARCH__ >= 900
    const int lane = threadIdx.x % 32, across = divide_up(p.cols, 256), unit = blockIdx.x * 8 + threadIdx.x / 32, b = blockIdx.y;
    const int row = unit / across * 4, col = unit % across * 256 + lane * 8;
    const int used = p.n_groups > 0 ? p.offsets[p.n_groups - 1] : p.rows; // rows behind the last group become zero
    const int rows = col < p.cols ? min(4, p.rows - row) : 0;
    const __nv_bfloat16 *src = p.src + b * p.src_batch + row * p.src_row + col;
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = i < rows && row + i < used ? __ldcs((const uint4 *)(src + i * p.src_row)) : make_uint4(0, 0, 0, 0);
    uint32_t m[2];
#pragma unroll
    for (int i = 0; i < 2; i++) m[i] = max_lanes<1, GROUP / 8>(max8(magnitudes(v[2 * i])) | max8(magnitudes(v[2 * i + 1])) << 16);
    uint8_t *to = p.row_codes + b * p.rc_batch + row * p.rc_row + col;
    uint8_t *scales = p.row_scales + b * p.rs_batch + row * p.rs_row + (col / 32) * p.rs_block;
    Encoder<COUNT> encoder;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = byte_of(i & 1 ? m[i / 2] >> 16 : m[i / 2] & 0xFFFF, p.rule);
        const uint2 codes = encoder.eight(v[i], mx8::inverse_scale(byte));
        if (i >= rows) continue;
        __stcs((uint2 *)(to + i * p.rc_row), codes);
        if (lane % 4 == 0) scales[i * p.rs_row] = (uint8_t)byte;
    }
    encoder.report(p.saturated);
#endif
}

// ---- behind the groups ----

// Rows past the last group (row orientation), positions past the last group's padding (column orientation), and the padded
// ends. What lies between groups is the tiles' own. Every block sums the groups up, 32 at a time.
__global__ void finish_groups(const __grid_constant__ Job p) {
    __shared__ int ends[2];
    if (threadIdx.x < 32) {
        int start = 0, padded = 0;
        for (int g = 0; g < p.n_groups; g += 32) {
            const int lane = threadIdx.x, last = p.offsets[min(g + lane, p.n_groups - 1)], up = __shfl_up_sync(~0u, last, 1);
            int sizes = round_up(last - (lane ? up : start), p.padding);
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                const int a = __shfl_up_sync(~0u, sizes, o);
                if (lane >= o) sizes += a;
            }
            if (p.padded_ends && blockIdx.x == 0 && g + lane < p.n_groups) p.padded_ends[g + lane] = padded + sizes;
            start = __shfl_sync(~0u, last, 31);
            padded += __shfl_sync(~0u, sizes, 31);
        }
        if (threadIdx.x == 0) { ends[0] = start; ends[1] = padded; }
    }
    __syncthreads();
    const int64_t thread = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    if (p.row_codes) {
        const int64_t pieces = p.cols / 8, blocks = divide_up(p.cols, 32), rows = p.rows - ends[0];
        for (int64_t i = thread; i < rows * pieces; i += step) *(uint2 *)(p.row_codes + (ends[0] + i / pieces) * p.rc_row + i % pieces * 8) = make_uint2(0, 0);
        for (int64_t i = thread; i < rows * blocks; i += step) p.row_scales[(ends[0] + i / blocks) * p.rs_row + i % blocks * p.rs_block] = 0;
    }
    if (p.col_codes && ends[1] < p.padded_rows) {
        const int64_t pieces = divide_up(p.padded_rows - ends[1], 16), blocks = divide_up(p.padded_rows - ends[1], 32);
        for (int64_t i = thread; i < p.cols * pieces; i += step) {
            const int at = ends[1] + (int)(i % pieces) * 16;
            store_piece(p.col_codes + i / pieces * p.cc_col + at, make_uint4(0, 0, 0, 0), p.padded_rows - at);
        }
        for (int64_t i = thread; i < p.cols * blocks; i += step) p.col_scales[i / blocks * p.cs_col + (ends[1] / 32 + i % blocks) * p.cs_block] = 0;
    }
}

// ---- which job goes where ----

bool fits(const void *p, int64_t row_bytes, int64_t batch_bytes, int64_t unit) {
    return ((uint64_t)(uintptr_t)p | (uint64_t)row_bytes | (uint64_t)batch_bytes) % (uint64_t)unit == 0;
}

// What all kernels of this file rely on.
bool takes(const struct mx8_quant_job *j) {
    const int64_t limit = INT32_MAX - 65536, padding = j->padding > 0 ? j->padding : 32;
    const int64_t bs = j->batch > 1 ? 1 : 0; // strides between matrices mean nothing when there is one
    if (j->src_dtype != MX8_BF16 || j->format != MX8_F8_E4M3 || j->rows <= 0 || j->cols <= 0 || j->cols % 8 || 256 % padding) return false;
    if (j->rows > limit || j->cols > limit || j->padded_rows > limit || (j->n_groups > 0 && j->batch != 1)) return false;
    if (j->src_stride[2] != 1 || j->src_stride[1] < j->cols || !fits(j->src, j->src_stride[1] * 2, bs * j->src_stride[0] * 2, 16)) return false;
    if (j->row_codes && (j->row_code_stride[2] != 1 || !fits(j->row_codes, j->row_code_stride[1], bs * j->row_code_stride[0], 8))) return false;
    return !j->col_codes || (j->col_code_stride[1] == 1 && fits(j->col_codes, j->col_code_stride[2], bs * j->col_code_stride[0], 16));
}

Job make_job(const struct mx8_quant_job *j) {
    Job p = {};
    p.src = (const __nv_bfloat16 *)j->src; p.src_batch = j->src_stride[0]; p.src_row = j->src_stride[1];
    p.rows = (int)j->rows; p.cols = (int)j->cols; p.batch = (int)j->batch;
    p.offsets = j->offsets; p.n_groups = j->n_groups; p.padding = j->padding > 0 ? j->padding : 32; p.padded_ends = j->padded_ends;
    p.padded_rows = (int)(j->n_groups == 0 && j->padded_rows < j->rows ? j->rows : j->padded_rows);
    p.row_codes = j->row_codes; p.rc_batch = j->row_code_stride[0]; p.rc_row = j->row_code_stride[1];
    p.row_scales = j->row_scales; p.rs_batch = j->row_scale_stride[0]; p.rs_row = j->row_scale_stride[1]; p.rs_block = j->row_scale_stride[2];
    p.col_codes = j->col_codes; p.cc_batch = j->col_code_stride[0]; p.cc_col = j->col_code_stride[2];
    p.col_scales = j->col_scales; p.cs_batch = j->col_scale_stride[0]; p.cs_block = j->col_scale_stride[1]; p.cs_col = j->col_scale_stride[2];
    p.rule = j->rule; p.group = j->group > 32 ? j->group : 32;
    p.row_tile = j->tile > 1 ? j->tile : 1; p.col_tile = j->col_tile > 0 ? j->col_tile : p.row_tile;
    p.saturated = (unsigned long long *)j->saturated;
    return p;
}

// RCEIL and CEIL put a bf16 amax at or below 448: nothing can be clipped.
bool counts(const Job &p) { return p.saturated && p.rule != MX8_SCALE_RCEIL && p.rule != MX8_SCALE_CEIL; }

template <bool ROW, bool COL, bool COUNT, class SOURCE = Stored>
enum mx8_status launch_256(const struct mx8_exec *x, const Job &p, const CUtensorMap &map, const SOURCE &source = SOURCE()) {
    const int64_t down = (p.rows + 255) / 256 * (int64_t)p.batch + p.n_groups, tiles = down * ((p.cols + 255) / 256);
    CUDA_TRY(cudaFuncSetAttribute(quantize_256<SOURCE, ROW, COL, COUNT>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_256), "quantize");
    const int64_t most = backend_of(x)->sm_count;
    quantize_256<SOURCE, ROW, COL, COUNT><<<(unsigned)(tiles < most ? tiles : most), 512, SMEM_256, stream_of(x)>>>(map, p, source);
    CUDA_LAUNCHED("quantize");
}

enum mx8_status run_256(const struct mx8_exec *x, const Job &p) {
    const cuda_backend *b = backend_of(x);
    if (!b->encode_map) return MX8_UNSUPPORTED;
    if ((p.row_codes && p.row_tile > 32) || (p.col_codes && p.col_tile > 32)) return MX8_UNSUPPORTED;
    const cuuint64_t dims[3] = {(cuuint64_t)p.cols, (cuuint64_t)p.rows, (cuuint64_t)p.batch};
    const cuuint64_t pitch = (cuuint64_t)p.src_row * 2, strides[2] = {pitch, p.batch > 1 ? (cuuint64_t)p.src_batch * 2 : pitch * dims[1]};
    const cuuint32_t box[3] = {128, 128, 1}, ones[3] = {1, 1, 1};
    CUtensorMap map;
    if (b->encode_map(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)p.src, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                      CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return MX8_UNSUPPORTED;
    if (!p.col_codes) return counts(p) ? launch_256<true, false, true>(x, p, map) : launch_256<true, false, false>(x, p, map);
    if (!p.row_codes) return counts(p) ? launch_256<false, true, true>(x, p, map) : launch_256<false, true, false>(x, p, map);
    return counts(p) ? launch_256<true, true, true>(x, p, map) : launch_256<true, true, false>(x, p, map);
}

template <int GROUP> enum mx8_status run_128(const struct mx8_exec *x, const Job &p) {
    if ((p.row_codes && p.row_tile > 32) || p.col_tile > 32 || 128 % p.padding) return MX8_UNSUPPORTED;
    const int64_t tiles = ((int64_t)(p.rows + 127) / 128 + p.n_groups) * ((p.cols + 127) / 128);
    if (tiles > INT32_MAX) return MX8_UNSUPPORTED;
    const dim3 grid((unsigned)tiles, (unsigned)p.batch);
    if (p.row_codes && counts(p)) quantize_128<GROUP, true, true><<<grid, 256, 0, stream_of(x)>>>(p);
    else if (p.row_codes) quantize_128<GROUP, true, false><<<grid, 256, 0, stream_of(x)>>>(p);
    else if (counts(p)) quantize_128<GROUP, false, true><<<grid, 256, 0, stream_of(x)>>>(p);
    else quantize_128<GROUP, false, false><<<grid, 256, 0, stream_of(x)>>>(p);
    CUDA_LAUNCHED("quantize");
}

template <int GROUP> enum mx8_status run_rows(const struct mx8_exec *x, const Job &p) {
    const int64_t units = (int64_t)(p.rows + 3) / 4 * ((p.cols + 255) / 256);
    if (units > INT32_MAX) return MX8_UNSUPPORTED;
    const dim3 grid((unsigned)((units + 7) / 8), (unsigned)p.batch);
    if (counts(p)) quantize_rows<GROUP, true><<<grid, 256, 0, stream_of(x)>>>(p);
    else quantize_rows<GROUP, false><<<grid, 256, 0, stream_of(x)>>>(p);
    CUDA_LAUNCHED("quantize");
}

enum mx8_status choose(const struct mx8_exec *x, const Job &p) {
    if (!p.col_codes && p.row_tile == 1)
        return p.group == 32 ? run_rows<32>(x, p) : p.group == 128 ? run_rows<128>(x, p) : p.group == 256 ? run_rows<256>(x, p) : MX8_UNSUPPORTED;
    if (p.group == 256) return run_256(x, p);
    if (!p.col_codes) return MX8_UNSUPPORTED;
    return p.group == 32 ? run_128<32>(x, p) : p.group == 128 ? run_128<128>(x, p) : MX8_UNSUPPORTED;
}
} // namespace
} // namespace fused

enum mx8_status cuda_quantize_fused(const struct mx8_exec *x, const struct mx8_quant_job *j) {
    if (backend_of(x)->capability != 90 || !fused::takes(j) || (!j->row_codes && !j->col_codes)) return MX8_UNSUPPORTED;
    const fused::Job p = fused::make_job(j);
    const enum mx8_status s = fused::choose(x, p);
    if (s != MX8_OK || p.n_groups == 0) return s;
    fused::finish_groups<<<132, 256, 0, stream_of(x)>>>(p);
    CUDA_LAUNCHED("quantize");
}

// Both orientations of what a source makes, scale groups of 256.
enum mx8_status cuda_quantize_from(const struct mx8_exec *x, const struct mx8_quant_source *s, const struct mx8_quant_job *j) {
    struct mx8_quant_job with_source = *j;
    with_source.src = s->a;
    with_source.src_stride[1] = s->a_ls;
    with_source.src_stride[2] = 1;
    if (backend_of(x)->capability != 90 || s->kind != MX8_FROM_SOFTMAX || !fused::takes(&with_source)) return MX8_UNSUPPORTED;
    const fused::Job p = fused::make_job(&with_source);
    if (!p.row_codes || !p.col_codes || p.batch != 1 || p.n_groups || p.group != 256 || p.row_tile > 32 || p.col_tile > 32) return MX8_UNSUPPORTED;
    const fused::Softmax source = {p.src, p.src_row, s->rows};
    const CUtensorMap none = {};
    return fused::counts(p) ? fused::launch_256<true, true, true>(x, p, none, source) : fused::launch_256<true, true, false>(x, p, none, source);
}
