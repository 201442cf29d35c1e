// Scale groups of 256 in either or both orientations, tiles of 1 or 32 lines: one kernel for a stored matrix and for
// values that are made of one while they pass through (quantize_from.cu).
//
// A persistent CTA walks tiles of 256 x 256. Six 128 x 128 pieces of the source wait in shared memory, filled by TMA ahead
// of use. Pass A reads a tile's four pieces for the maxima (and puts what a source makes of them in their place), pass B
// reads them again to convert them. Transposed codes go through two 16 KB buffers, so that 128 bytes of a column leave
// together. A tile that is whole (FULL, nearly all) runs code without bounds; the rows of another that belong to the next
// group are zeroed in pass A.
//
// Bytes: 2 read and 1.03 written per element and orientation. Eight scale bytes of a line are a request to the second-level
// cache like 128 bytes of codes, a fifth of all: so the tiles write one byte a line side by side, and another kernel spreads
// them (quantize_scales.cu). Without any stores the passes take 0.18 ms where memory takes 0.33.
#pragma once
#include "quantize_fused.cuh"

namespace fused {
enum { SLOTS = 6, PIECE = 128 * 128 * 2, BUFFER = 128 * 128, SMEM_256 = SLOTS * PIECE + 2 * BUFFER + 256 * 4 + 128 * 4 + 8 * SLOTS };

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
        t->band = unit / across;
        return true;
    }
};

// What fills the slots; a `direct` one's threads bring the values in registers. Piece s of a tile is column half s/2, row half
// s%2; `slot` and `parity` say where the n-th tile's piece s comes and in which phase of the slot's barrier. The first `threads` threads call: `start` once, `begin` at each
// tile, `after_a` when pass A of piece s is over (where `early`), `freed` when pass B is.
__device__ __forceinline__ void load_piece(const CUtensorMap *m, uint32_t bar, uint32_t dst, const Tile &tile, int s, int rows) {
    const int y = s % 2 * 128; // a piece without rows of the group starts outside the matrix: zeros, and nothing is read
    ptx::mbar_expect(bar, PIECE);
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(m), "r"(bar), "r"(tile.col + s / 2 * 128), "r"(y < tile.rows ? tile.row + y : rows), "r"(tile.batch) : "memory");
}

// Six pieces in a ring.
template <class SOURCE> struct Ring {
    static constexpr int threads = 1, arrivals = 1;
    static constexpr bool early = false, direct = false;
    static __device__ int slot(unsigned tile, int s) { return (tile * 4 + s) % SLOTS; }
    static __device__ int parity(unsigned tile, int s) { return (tile * 4 + s) / SLOTS & 1; }
    const CUtensorMap *map; uint32_t slots, bars;
    Walk walk; Tile tile; unsigned unit, loaded; bool more;
    __device__ Ring(const Job &p, const CUtensorMap *a, const CUtensorMap *, const SOURCE &, uint32_t s, uint32_t b)
        : map(a), slots(s), bars(b), walk(p), unit(blockIdx.x), loaded(0) { more = walk.seek(unit, &tile); }
    __device__ __forceinline__ void freed(int) {
        if (!more) return;
        const int s = loaded % 4, slot = loaded % SLOTS;
        load_piece(map, bars + 8 * slot, slots + slot * PIECE, tile, s, walk.p.rows);
        if (++loaded % 4 == 0) more = walk.seek(unit += gridDim.x, &tile);
    }
    __device__ void start() { for (int i = 0; i < SLOTS; i++) freed(0); }
    __device__ void begin() {}
    __device__ void after_a(int) {}
};

// The same from rows in any order: every thread copies sixteen bytes of four rows. Their numbers are read a piece ahead of
// use. (TMA copies of single rows take 47 ns each, one after the other: a third of this speed.)
template <class SOURCE> struct Gather {
    static constexpr int threads = 512, arrivals = 512;
    static constexpr bool early = false, direct = false;
    static __device__ int slot(unsigned tile, int s) { return (tile * 4 + s) % SLOTS; }
    static __device__ int parity(unsigned tile, int s) { return (tile * 4 + s) / SLOTS & 1; }
    const SOURCE &source; uint32_t slots, bars;
    Walk walk; Tile tile; unsigned unit, loaded; bool more; int from[4];
    __device__ Gather(const Job &p, const CUtensorMap *, const CUtensorMap *, const SOURCE &o, uint32_t s, uint32_t b)
        : source(o), slots(s), bars(b), walk(p), unit(blockIdx.x), loaded(0) { more = walk.seek(unit, &tile); find_rows(); }
    __device__ __forceinline__ void find_rows() {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = loaded % 2 * 128 + threadIdx.x / 16 * 4 + i;
            from[i] = more && r < tile.rows ? source.row(tile.row + r) : -1;
        }
    }
    __device__ __forceinline__ void freed(int) {
        if (!more) return;
        const int slot = loaded % SLOTS, col = tile.col + loaded % 4 / 2 * 128 + threadIdx.x % 16 * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) { // 0 bytes read: zeros
            const bool there = from[i] >= 0 && col < walk.p.cols;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(slots + slot * PIECE + (threadIdx.x / 16 * 4 + i) * 256 + threadIdx.x % 16 * 16),
                         "l"(walk.p.src + (there ? from[i] * walk.p.src_row + col : 0)), "r"(there ? 16 : 0) : "memory");
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bars + 8 * slot) : "memory");
        if (++loaded % 4 == 0) more = walk.seek(unit += gridDim.x, &tile);
        find_rows();
    }
    __device__ void start() { for (int i = 0; i < SLOTS; i++) freed(0); }
    __device__ void begin() {}
    __device__ void after_a(int) {}
};

// Values that threads read for themselves, a piece ahead of use: in registers, because in f32 a tile does not fit the slots.
// SOURCE::Eight holds eight neighbours as they are stored; `read` brings them, `eight` makes them bf16.
template <class SOURCE> struct Direct {
    static constexpr int threads = 512, arrivals = 1;
    static constexpr bool early = false, direct = true;
    static __device__ int slot(unsigned, int s) { return s; }
    const SOURCE &source;
    Walk walk; Tile tile; unsigned unit; bool more; typename SOURCE::Eight ahead[4];
    __device__ Direct(const Job &p, const CUtensorMap *, const CUtensorMap *, const SOURCE &o, uint32_t, uint32_t) : source(o), walk(p), unit(blockIdx.x) {
        more = walk.seek(unit, &tile);
    }
    __device__ __forceinline__ void read(int s) {
        const int col = tile.col + s / 2 * 128 + threadIdx.x % 16 * 8, down = s % 2 * 128 + threadIdx.x / 16 * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (more && down + i < tile.rows && col < walk.p.cols) source.read(&ahead[i], tile.batch, tile.row + down + i, col);
            else ahead[i] = {};
        }
    }
    __device__ void start() { read(0); }
    __device__ void begin() {}
    // What was read ahead of piece s, zeros outside the matrix; then the next piece's reads begin.
    __device__ __forceinline__ void take(uint4 *values, int s) {
#pragma unroll
        for (int i = 0; i < 4; i++) values[i] = SOURCE::eight(ahead[i]);
        if (s == 3) more = walk.seek(unit += gridDim.x, &tile);
        read((s + 1) % 4);
    }
    __device__ void after_a(int) {}
    __device__ void freed(int) {}
};

// Two matrices: the first one's piece s in slot s, where the values will stand; the second one's in slots 4 and 5, free
// again after pass A.
template <class SOURCE> struct Pair {
    static constexpr int threads = 1, arrivals = 1;
    static constexpr bool early = true, direct = false;
    static __device__ int slot(unsigned, int s) { return s; }
    static __device__ int parity(unsigned tile, int) { return tile & 1; }
    static __device__ int second_slot(int s) { return 4 + s % 2; }
    static __device__ int second_parity(int s) { return s / 2; }
    const CUtensorMap *a, *b; uint32_t slots, bars;
    Walk walk; Tile tile, next; unsigned unit; bool more;
    __device__ Pair(const Job &p, const CUtensorMap *ma, const CUtensorMap *mb, const SOURCE &, uint32_t s, uint32_t r)
        : a(ma), b(mb), slots(s), bars(r), walk(p), unit(blockIdx.x) { more = walk.seek(unit, &next); }
    __device__ __forceinline__ void load(const CUtensorMap *m, int slot, const Tile &t, int s) {
        load_piece(m, bars + 8 * slot, slots + slot * PIECE, t, s, walk.p.rows);
    }
    __device__ void start() {
        for (int s = 0; more && s < 4; s++) {
            load(a, s, next, s);
            if (s < 2) load(b, second_slot(s), next, s);
        }
    }
    __device__ void begin() {
        tile = next;
        more = walk.seek(unit += gridDim.x, &next);
    }
    __device__ void after_a(int s) {
        if (s < 2) load(b, second_slot(s), tile, s + 2);
        else if (more) load(b, second_slot(s), next, s - 2);
    }
    __device__ void freed(int s) {
        if (more) load(a, s, next, s);
    }
};

// 16 bytes of a column, or what has room of them.
__device__ __forceinline__ void store_piece(uint8_t *to, uint4 v, int room) {
    if (room >= 16) { __stcs((uint4 *)to, v); return; }
#pragma unroll 1 // rare: short code matters more
    for (int i = 0; i < room; i++) to[i] = (uint8_t)((i < 4 ? v.x : i < 8 ? v.y : i < 12 ? v.z : v.w) >> 8 * (i % 4));
}

// What the threads of a tile share.
struct Shared {
    uint8_t *slots, *buffers;
    uint32_t *row_factor, *col_factor;                 // [256] the same in both halves, [128] of a pair of columns
    uint32_t bars;
    __device__ uint32_t *warp_max() const { return (uint32_t *)buffers; } // [16][128] pairs of columns; until the first buffer is needed
};

// A source says where its pieces come from (Loader), whether values are made of them (makes), of one matrix or of two (pairs),
// and makes eight neighbours of a row. Line: what it wants to know about a row. The matrix as it is stored:
struct Stored {
    static constexpr bool makes = false, pairs = false;
    typedef Ring<Stored> Loader;
    struct Line {};
    __device__ Line line(int) const { return {}; }
    __device__ uint4 eight(uint4 a, uint4, const Line &, int) const { return a; }
    __device__ __forceinline__ uint4 fetch(const Job &p, int b, int row, int col) const {
        return __ldcs((const uint4 *)(p.src + b * p.src_batch + row * p.src_row + col));
    }
};

// Thread t holds columns 8 (t%16) .. of rows 4 (t/16) .. of a piece.
#define FOR4 _Pragma("unroll") for (int i = 0; i < 4; i++)

// Pass A: maxima of rows to row_factor, of columns of each warp to warp_max. The n-th tile of this CTA.
template <class SOURCE, bool ROW, bool COL, bool FULL>
__device__ __forceinline__ void find_maxima(const Job &p, const SOURCE &source, const Shared &sm, const Tile &tile, unsigned n,
                                            typename SOURCE::Loader *loader) {
    typedef typename SOURCE::Loader Loader;
    const int t = threadIdx.x, cx = t % 16, ry = t / 16, lane = t % 32;
    uint32_t cm[2][4] = {}, rm[2][2] = {}; // of [column half][pair of columns] and [row half][pair of rows]
    typename SOURCE::Line lines[2][4];
    if constexpr (SOURCE::makes && !Loader::direct) {
#pragma unroll
        for (int down = 0; down < 2; down++)
            FOR4 if (FULL || down * 128 + ry * 4 + i < tile.rows) lines[down][i] = source.line(tile.row + down * 128 + ry * 4 + i);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const int down = s % 2, across = s / 2, slot = Loader::slot(n, s);
        uint4 taken[4];
        if constexpr (Loader::direct) loader->take(taken, s);
        else ptx::mbar_wait(sm.bars + 8 * slot, Loader::parity(n, s));
        const int at = ry * 4 * 256 + cx * 16;
        uint4 *const x = (uint4 *)(sm.slots + slot * PIECE + at);
        const uint4 *second = x;
        if constexpr (SOURCE::pairs) {
            ptx::mbar_wait(sm.bars + 8 * Loader::second_slot(s), Loader::second_parity(s));
            second = (const uint4 *)(sm.slots + Loader::second_slot(s) * PIECE + at);
        }
        uint32_t m[4];
        FOR4 {
            uint4 v;
            if constexpr (Loader::direct) {
                x[i * 16] = v = taken[i];
            } else {
                v = x[i * 16];
                if (!FULL && (down * 128 + ry * 4 + i >= tile.rows || tile.col + across * 128 + cx * 8 >= p.cols)) x[i * 16] = v = make_uint4(0, 0, 0, 0);
                else if (SOURCE::makes) x[i * 16] = v = source.eight(v, second[i * 16], lines[down][i], tile.col + across * 128 + cx * 8);
            }
            uint32_t *c = cm[across];
            if (COL) { c[0] = max2_abs(c[0], v.x); c[1] = max2_abs(c[1], v.y); c[2] = max2_abs(c[2], v.z); c[3] = max2_abs(c[3], v.w); }
            if (ROW) m[i] = max8_abs(v);
        }
        if (ROW) {
            rm[down][0] = max2_abs(rm[down][0], max2_abs(lows(m[0], m[1]), highs(m[0], m[1])));
            rm[down][1] = max2_abs(rm[down][1], max2_abs(lows(m[2], m[3]), highs(m[2], m[3])));
        }
        if (Loader::early) {
            __syncthreads();
            if (t < Loader::threads) loader->after_a(s);
        }
    }
    if (ROW) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t a = max_lanes<1, 16>(magnitudes(rm[h][0])), b = max_lanes<1, 16>(magnitudes(rm[h][1]));
            if (cx == 0) *(uint4 *)&sm.row_factor[h * 128 + ry * 4] = make_uint4(a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16);
        }
    }
    if (COL) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t &m = cm[i / 4][i % 4];
            m = magnitudes(m);
            m = max2(m, __shfl_xor_sync(~0u, m, 16));
        }
        uint32_t *to = sm.warp_max() + t / 32 * 128 + cx * 4;
        if (lane < 16) { *(uint4 *)to = *(uint4 *)cm[0]; *(uint4 *)(to + 64) = *(uint4 *)cm[1]; }
    }
}

// Scale bytes of a tile's columns `col` and `col + 1`, and of its row r.
__device__ __forceinline__ void store_column_scales(const Job &p, const Tile &tile, int col, uint32_t b0, uint32_t b1) {
    if (col >= p.cols) return; // an even number of columns
    if (p.col_bytes) {
        *(uint16_t *)(p.col_bytes + (int64_t)tile.band * p.col_pitch + col) = (uint16_t)(b0 | b1 << 8);
        return;
    }
    uint8_t *to = p.col_scales + tile.batch * p.cs_batch + col * p.cs_col + (tile.at / 32) * p.cs_block;
    const int filled = divide_up(tile.rows, 32), room = min(8, divide_up(tile.room, 32));
    store_scales<8>(to, p.cs_block, b0 * 0x0101010101010101ull, filled, room);
    store_scales<8>(to + p.cs_col, p.cs_block, b1 * 0x0101010101010101ull, filled, room);
}
__device__ __forceinline__ void store_row_scale(const Job &p, const Tile &tile, int r, uint32_t b) {
    if (p.row_bytes) {
        p.row_bytes[(int64_t)(tile.col / 256) * p.row_pitch + tile.batch * p.rows + tile.row + r] = (uint8_t)b;
        return;
    }
    const int blocks = min(8, divide_up(p.cols - tile.col, 32));
    uint8_t *to = p.row_scales + tile.batch * p.rs_batch + (tile.row + r) * p.rs_row + (tile.col / 32) * p.rs_block;
    store_scales<8>(to, p.rs_block, b * 0x0101010101010101ull, blocks, blocks);
}

// The pair of columns `col` and `col + 1`, of whose maxima each of 16 warps left one at from[128 i]: their factors; scale bytes
// go to memory. Half warps call whole: a tile of 32 columns is theirs.
__device__ __forceinline__ uint32_t scale_columns(const Job &p, const Tile &tile, const uint32_t *from, int col) {
    uint32_t m = from[0];
#pragma unroll
    for (int i = 1; i < 16; i++) m = max2(m, from[i * 128]);
    if (p.col_tile == 32) m = max_lanes<1, 16>(max2(m, swap2(m)));
    const uint32_t b0 = byte_of(m & 0xFFFF, p.rule), b1 = byte_of(m >> 16, p.rule);
    store_column_scales(p, tile, col, b0, b1);
    return lows(factor_of(b0), factor_of(b1));
}

// Between the passes: maxima become factors here and scale bytes in memory.
template <bool ROW, bool COL> __device__ __forceinline__ void make_scales(const Job &p, const Shared &sm, const Tile &tile) {
    const int t = threadIdx.x;
    if (COL && t < 128) sm.col_factor[t] = scale_columns(p, tile, sm.warp_max() + t, tile.col + 2 * t);
    if (ROW && t >= 256) { // row t - 256
        const int r = t - 256;
        uint32_t m = sm.row_factor[r];
        if (p.row_tile == 32) m = __reduce_max_sync(~0u, m);
        const uint32_t b = byte_of(m, p.rule), f = factor_of(b);
        sm.row_factor[r] = lows(f, f);
        if (r < tile.rows) store_row_scale(p, tile, r, b);
    }
}

// Pass B of one piece: row codes go out, column codes into `buffer`. f4: factors of this thread's rows, in both halves;
// col_factor: of the piece's pairs of columns.
template <bool ROW, bool COL, bool COUNT, bool FULL>
__device__ __forceinline__ void convert_piece(const Job &p, uint4 f4, const uint32_t *col_factor, const Tile &tile, const uint8_t *x, uint8_t *buffer,
                                              int down, int across, uint8_t *row_to, Encoder<COUNT> *encoder) {
    const int t = threadIdx.x, cx = t % 16, ry = t / 16;
    if (ROW) {
        const uint32_t f[4] = {f4.x, f4.y, f4.z, f4.w};
        uint8_t *to = row_to + down * p.rc_row + across;
        const int rows = FULL ? 4 : tile.col + across + cx * 8 < p.cols ? tile.rows - down - ry * 4 : 0;
        FOR4 {
            const uint2 codes = encoder->eight(*(const uint4 *)(x + (ry * 4 + i) * 256 + cx * 16), f[i]);
            if (FULL || i < rows) __stcs((uint2 *)to, codes);
            to += p.rc_row;
        }
    }
    if (COL) {
        const int cp = t % 64, rb = t / 64; // columns 2cp, 2cp + 1 of 16 rows
        const uint32_t f = col_factor[cp];
        Encoder<COUNT && !ROW> column;
        uint32_t a[4], b[4];
        FOR4 {
            const uint32_t *y = (const uint32_t *)(x + (rb * 16 + i * 4) * 256 + cp * 4);
            column.two_columns(y[0], y[64], y[128], y[192], f, &a[i], &b[i]);
        }
        if (!FULL) { // padding is zero in a group of NaN too
            const int rows = tile.rows - down - rb * 16;
            FOR4 { a[i] = keep_bytes(a[i], rows - 4 * i); b[i] = keep_bytes(b[i], rows - 4 * i); }
        }
        encoder->clipped += column.clipped;
        const int chunk = (rb ^ (cp & 7)) * 16; // swizzled by column pair
        *(uint4 *)(buffer + cp * 256 + chunk) = make_uint4(a[0], a[1], a[2], a[3]);
        *(uint4 *)(buffer + cp * 256 + 128 + chunk) = make_uint4(b[0], b[1], b[2], b[3]);
    }
}

// The column codes of a piece, 128 bytes of a column by eight threads.
template <bool FULL>
__device__ __forceinline__ void store_columns(const Job &p, const Tile &tile, const uint8_t *buffer, int down, int across, uint8_t *col_to) {
    const int t = threadIdx.x, q = t % 8;
    uint8_t *to = col_to + across * p.cc_col + down;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int c = i * 64 + t / 8;
        const uint4 codes = *(const uint4 *)(buffer + c * 128 + (q ^ (c / 2 & 7)) * 16);
        if (FULL) __stcs((uint4 *)to, codes);
        else if (tile.col + across + c < p.cols) store_piece(to, codes, tile.room - down - q * 16);
        to += 64 * p.cc_col;
    }
}

template <class SOURCE, bool ROW, bool COL, bool COUNT, bool FULL>
__device__ __forceinline__ void quantize_tile(const Job &p, const SOURCE &source, const Shared &sm, const Tile &tile, unsigned n,
                                              typename SOURCE::Loader *loader, Encoder<COUNT> *encoder) {
    typedef typename SOURCE::Loader Loader;
    const int t = threadIdx.x;
    if (t < Loader::threads) loader->begin();
    find_maxima<SOURCE, ROW, COL, FULL>(p, source, sm, tile, n, loader);
    __syncthreads();
    make_scales<ROW, COL>(p, sm, tile);
    __syncthreads();
    uint8_t *row_to = p.row_codes + tile.batch * p.rc_batch + (tile.row + t / 16 * 4) * p.rc_row + tile.col + t % 16 * 8;
    uint8_t *col_to = p.col_codes + tile.batch * p.cc_batch + (tile.col + t / 8) * p.cc_col + tile.at + t % 8 * 16;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const uint8_t *x = sm.slots + Loader::slot(n, s) * PIECE;
        uint8_t *const buffer = sm.buffers + (s & 1) * BUFFER;
        const uint4 rows = ROW ? *(const uint4 *)&sm.row_factor[s % 2 * 128 + t / 16 * 4] : make_uint4(0, 0, 0, 0);
        convert_piece<ROW, COL, COUNT, FULL>(p, rows, sm.col_factor + s / 2 * 64, tile, x, buffer, s % 2 * 128, s / 2 * 128, row_to, encoder);
        if (!Loader::direct && (SOURCE::makes || !FULL)) ptx::fence_async(); // what pass A wrote here comes before TMA's next bytes
        __syncthreads();
        if (t < Loader::threads) loader->freed(s);
        if (COL) store_columns<FULL>(p, tile, buffer, s % 2 * 128, s / 2 * 128, col_to);
    }
}

template <class SOURCE, bool ROW, bool COL, bool COUNT>
__global__ __launch_bounds__(512, 1) void quantize_256(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap second,
                                                       const __grid_constant__ Job p, const __grid_constant__ SOURCE source) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) uint8_t memory[];
    Shared sm = {memory, memory + SLOTS * PIECE, (uint32_t *)(memory + SLOTS * PIECE + 2 * BUFFER), nullptr, 0};
    sm.col_factor = sm.row_factor + 256;
    sm.bars = ptx::smem(sm.col_factor + 128);
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) ptx::mbar_init(sm.bars + 8 * i, SOURCE::Loader::arrivals);
        ptx::mbar_init_fence();
        ptx::fence_async();
    }
    __syncthreads();
    typedef typename SOURCE::Loader Loader;
    Loader loader(p, &map, &second, source, ptx::smem(sm.slots), sm.bars);
    if (threadIdx.x < Loader::threads) loader.start();
    Walk walk(p);
    Tile tile;
    Encoder<COUNT> encoder;
    unsigned n = 0;
    for (unsigned unit = blockIdx.x; walk.seek(unit, &tile); unit += gridDim.x, n++) {
        if (tile.rows == 256 && tile.col + 256 <= p.cols && (!COL || tile.room >= 256))
            quantize_tile<SOURCE, ROW, COL, COUNT, true>(p, source, sm, tile, n, &loader, &encoder);
        else
            quantize_tile<SOURCE, ROW, COL, COUNT, false>(p, source, sm, tile, n, &loader, &encoder);
    }
    encoder.report(p.saturated);
#endif
}
#undef FOR4

template <bool ROW, bool COL, bool COUNT, class SOURCE>
enum mx8_status launch_256(const struct mx8_exec *x, const Job &p, const CUtensorMap &map, const CUtensorMap &second, const SOURCE &source) {
    const int64_t down = (p.rows + 255) / 256 * (int64_t)p.batch + p.n_groups, tiles = down * ((p.cols + 255) / 256);
    CUDA_TRY(cudaFuncSetAttribute(quantize_256<SOURCE, ROW, COL, COUNT>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_256), "quantize");
    const int64_t most = backend_of(x)->sm_count;
    quantize_256<SOURCE, ROW, COL, COUNT><<<(unsigned)(tiles < most ? tiles : most), 512, SMEM_256, stream_of(x)>>>(map, second, p, source);
    CUDA_LAUNCHED("quantize");
}
template <class SOURCE>
enum mx8_status launch_256(const struct mx8_exec *x, const Job &p, const CUtensorMap &map, const CUtensorMap &second, const SOURCE &source) {
    if (!p.col_codes) return counts(p) ? launch_256<true, false, true>(x, p, map, second, source) : launch_256<true, false, false>(x, p, map, second, source);
    if (!p.row_codes) return counts(p) ? launch_256<false, true, true>(x, p, map, second, source) : launch_256<false, true, false>(x, p, map, second, source);
    return counts(p) ? launch_256<true, true, true>(x, p, map, second, source) : launch_256<true, true, false>(x, p, map, second, source);
}

template <class SOURCE>
enum mx8_status choose_256(const struct mx8_exec *x, const Job &p, const CUtensorMap &map, const CUtensorMap &second, const SOURCE &source) {
    Scratch scratch = all_scratch(x);
    const Job gathered = gather_scales(&scratch, p);
    const enum mx8_status s = launch_256(x, gathered, map, second, source);
    return s == MX8_OK ? spread_scales(x, gathered) : s;
}

// Tiles that these kernels make.
inline bool fits_256(const Job &p) { return p.group == 256 && !(p.row_codes && p.row_tile > 32) && !(p.col_codes && p.col_tile > 32); }

// A matrix of the job's shape for TMA, in pieces of 128 x 128. False where there is no TMA.
inline bool map_matrix(const struct mx8_exec *x, const Job &p, const void *data, int64_t row_stride, CUtensorMap *map) {
    const cuda_backend *b = backend_of(x);
    if (!b->encode_map) return false;
    const cuuint64_t dims[3] = {(cuuint64_t)p.cols, (cuuint64_t)p.rows, (cuuint64_t)p.batch};
    const cuuint64_t pitch = (cuuint64_t)row_stride * 2, strides[2] = {pitch, p.batch > 1 ? (cuuint64_t)p.src_batch * 2 : pitch * dims[1]};
    const cuuint32_t box[3] = {128, 128, 1}, ones[3] = {1, 1, 1};
    return b->encode_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)data, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
} // namespace fused
