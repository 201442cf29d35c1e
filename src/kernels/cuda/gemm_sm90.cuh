// Hopper GEMM for aligned MXFP8 (and bf16) operands: C = A B^T, one template for dense, M-grouped and K-grouped.
//
//   C(m,n) = sum over K-blocks kb of sa(m,kb) * sb(n,kb) * sum over k in kb of a(m,k) b(n,k)
//
// wgmma multiplies e4m3 at twice the bf16 rate but knows no scales, and keeps only 13 fraction bits of its fp32
// accumulator. So a tensor's scale bytes are forced equal over 256 consecutive k (a valid MXFP8 tensor still): 256
// products run inside the tensor core, then sum += acc * (sa * sb), one FMA per element, "promotes" them to full fp32.
// A has one scale per row (tokens, gradients), B one per row (S1) or per 32 rows (S32: weights, X^T).
//
// CTA: 2 math warpgroups and a producer warpgroup of which one thread issues TMA. Scales arrive the same way: a kernel ahead
// of this one (gemm_scales.cuh) turns the e8m0 bytes into fp32 rows of lines, a thousandth of the time. Tile 256 x 128 in two waves of 2 x m64n128; K-block 128 bytes; 4 stages. Two CTAs of a cluster take
// neighbouring N tiles of one M tile; each loads half of A and multicasts it. Persistent: tiles are walked in super-rows
// so that A and B tiles are re-read from L2. A finished wave waits in its own registers and is stored while the next
// tile's first wgmma batch runs.
//
//   stage s:  TMA -> A[256 x 128 B] B[128 x 128 B] --full[s]--> wgmma x 4 a wave --empty[s]--> TMA
//             TMA -> scale ring[s + KS slots]     --full[s]--> promotion
//
// Groups: M groups begin at any row; a tile that ends inside 256 rows stores with predicates instead of TMA, and a warpgroup
// multiplies none of its 64 rows that are all past the end; tiles of up to 128 rows load only 64 or 128 of them (boxes of FEW). MXFP8 K groups
// begin at multiples of the K-block (the quantizer pads them with zero codes); bf16 ones begin anywhere. Offsets are read on the device.
//
// Sustained on one H200 (700 W), 65,536 x 8192 x 5120, 8 experts, 2026-12-01, bench/cuda_kernels.c --sustain 0.5 --quick: forward
// 1260, dgrad 1268, wgrad 1220 TFLOP/s (fp32) and 1273 (bf16). The power cap is what is left. docs/kernels-howto.md has the tries.
// Lost in a prototype: warpgroups in turn, a cluster of 4, promotion every 128 with one scale per B row (half the speed), 24/240
// registers (spills).
#pragma once
#include <cuda_bf16.h>
#include "gemm_scales.cuh"
#include "ptx.cuh"

namespace sm90 {
enum { BM = 256, BN = 128, STAGES = 4, WAVES = 2, CLUSTER = 2, FEW = 32 };
enum Kind { M_GROUPS, K_GROUPS };
enum Scales { S1, S32, NONE };  // rows of B that share a scale; NONE: bf16 operands
enum Output { BF16, F32, F32_ADD };

struct Args {
    int M, N, K, G;         // M rows of A; N rows of B in a group; K elements
    const int *ends;        // [G] cumulative, on the device; NULL: one group
    int sb_lines;           // fp32 scales of one group of B (see gemm_scales.cuh)
    void *c; int64_t c_ls, c_gs;
    int raster;             // M tiles per super-row
    const void *bias;       // [N], bf16 or fp32; of configurations that have one
    int bias_bf16;
};

// TA, TB (bf16 only): the operand's lines are contiguous instead of its k, as in input and weight gradients.
template <Kind KIND_, Scales SC_, Output OUT_, bool TA_ = false, bool TB_ = false, bool BIAS_ = false> struct Config {
    static constexpr bool TA = TA_, TB = TB_, BIAS = BIAS_;
    static constexpr Kind KIND = KIND_;
    static constexpr Scales SC = SC_;
    static constexpr Output OUT = OUT_;
    static constexpr bool MX = SC != NONE;
    static constexpr int KB = MX ? 128 : 64;    // elements of a K-block: 128 bytes
    static constexpr int KS = 2;                // K-blocks per promotion
    static constexpr int NB = SC == S32 ? 32 : 1, B_SCALES = BN / NB;
    static constexpr int KQ = KIND == M_GROUPS ? KB * KS : KB; // k of one prepared scale; K groups begin at any K-block
    static constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128;
    static constexpr int RING = STAGES + KS;    // slots; a slot may still be read after its stage is released
    static constexpr int SLOT = (BM * 4 + B_SCALES * 4 + 127) / 128 * 128;
    static constexpr int PIECES = SC == S1 ? 2 : 3, PIECE = 64 * 64;   // staging of the output: 64 rows x 64 bytes
    static constexpr int O_B = STAGES * A_BYTES, O_D = O_B + STAGES * B_BYTES, O_RING = O_D + 2 * PIECES * PIECE,
                         O_BAR = O_RING + (MX ? RING * SLOT : 0), O_PRE = O_BAR + 16 * STAGES, O_PEND = O_PRE + 4 * (2 * MAX_GROUPS + 2),
                         SMEM = O_PEND + 4 * 8;
    static_assert(SMEM <= 232448, "shared memory of an SM");
};

// Walks the tiles of one cluster; every role runs the same walk.
template <class C> struct Walk {
    const Args &p; const int *tiles; int u, step, g, n_pairs, total; uint32_t rank;
    int m0, n0, k0, kend, nk, rows;  // current tile: row of A, column in the group, range of k, K-blocks, valid rows
    int scale_row;                   // m0 among the prepared scales of A
    __device__ Walk(const Args &a, const int *pre) : p(a), tiles(pre), g(0) {
        rank = ptx::cta_rank();
        step = gridDim.x / CLUSTER;
        u = blockIdx.x / CLUSTER - step;
        n_pairs = ((a.N + BN - 1) / BN + CLUSTER - 1) / CLUSTER;
        total = C::KIND == K_GROUPS ? (a.M + BM - 1) / BM * n_pairs * a.G : pre[a.G];
    }
    __device__ bool next() {
        u += step;
        if (u >= total) return false;
        int v = u, mt = (p.M + BM - 1) / BM, mbase = 0, mend = p.M;
        if (C::KIND == M_GROUPS) {
            while (v >= tiles[g + 1]) g++;
            v -= tiles[g];
            mbase = g ? tiles[MAX_GROUPS + g] : 0;
            mend = tiles[MAX_GROUPS + 1 + g];
            mt = (mend - mbase + BM - 1) / BM;
            k0 = 0;
            kend = p.K;
        } else {
            g = v / (mt * n_pairs);
            v -= g * mt * n_pairs;
            k0 = g ? tiles[MAX_GROUPS + g] : 0;
            kend = tiles[MAX_GROUPS + 1 + g];
        }
        nk = (kend - k0 + C::KB - 1) / C::KB;
        // Super-rows of nearly equal height <= raster (a one-tile remainder would re-read all of B); M tiles run fastest.
        const int ns = (mt + p.raster - 1) / p.raster, h = mt / ns, extra = mt % ns, big = extra * (h + 1) * n_pairs;
        int mr, rem, rc;
        if (v < big) { rc = h + 1; const int i = v / (rc * n_pairs); mr = i * rc; rem = v - i * rc * n_pairs; }
        else { rc = h; v -= big; const int i = v / (rc * n_pairs); mr = extra * (h + 1) + i * rc; rem = v - i * rc * n_pairs; }
        m0 = mbase + (mr + rem % rc) * BM;
        scale_row = m0 - mbase + first_scale(mbase, C::KIND == M_GROUPS ? g : 0);
        n0 = ((rem / rc) * CLUSTER + (int)rank) * BN;
        rows = min((int)BM, mend - m0);
        return true;
    }
};

// What a math warpgroup carries through the K loop.
struct Ring { int stage, phase, slot; };

// One promotion step: COUNT K-blocks of wgmma a wave, then sum += acc * scale. FIRST: first step of a tile; flush(w) stores
// what the previous tile left in sum[w] while the tensor cores run, then the promotion overwrites it.
template <class C, int COUNT, bool FIRST, class Flush>
__device__ __forceinline__ void promote(Flush flush, float (&sum)[WAVES][BN / 2], float (&acc)[BN / 2], Ring &r, int waves, uint32_t da,
                                        uint32_t db, uint32_t bar, uint32_t row_scales, uint32_t col_scales, int lane) {
    const uint32_t at = r.slot * C::SLOT;
    int st1 = r.stage + 1, ph1 = r.phase;
    if (st1 == STAGES) { st1 = 0; ph1 ^= 1; }
#pragma unroll
    for (int w = 0; w < WAVES; w++)
        if (w < waves) {
            if (w == 0) ptx::mbar_wait(bar + 8 * r.stage, r.phase);
            ptx::pin(acc);
            ptx::wgmma_fence();
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                const int s = c ? st1 : r.stage;
                if (c && w == 0) ptx::mbar_wait(bar + 8 * st1, ph1);
                if (c) ptx::wgmma_fence();
                const uint32_t a = da + ((s * C::A_BYTES + w * 128 * 128) >> 4), b = db + ((s * C::B_BYTES) >> 4);
#pragma unroll
                for (int k = 0; k < 4; k++) ptx::wgmma_e4m3(acc, ptx::descriptor(a + 2 * k), ptx::descriptor(b + 2 * k), c | k);
            }
            ptx::wgmma_commit();
            if (FIRST) flush(w);
            const float a0 = ptx::lds(row_scales + at + w * 512), a1 = ptx::lds(row_scales + at + w * 512 + 32);
            float p0[4] = {}, p1[4] = {};
            if (C::SC == S32) {
#pragma unroll
                for (int i = 0; i < 4; i++) { const float b = ptx::lds(col_scales + at + 4 * i); p0[i] = a0 * b; p1[i] = a1 * b; }
            }
            ptx::wgmma_wait<0>();
            ptx::pin(acc);
            if (w == waves - 1 && lane < CLUSTER) {
                ptx::mbar_arrive_cta(bar + 8 * (STAGES + r.stage), lane);
                if (COUNT == 2) ptx::mbar_arrive_cta(bar + 8 * (STAGES + st1), lane);
            }
            auto add = [&](float &d, float x, float f) { d = FIRST ? x * f : d + x * f; };
#pragma unroll
            for (int j = 0; j < BN / 8; j++) {
                float2 b = make_float2(1.f, 1.f);
                if (C::SC == S1) b = ptx::lds2(col_scales + at + j * 32);
                const float x0 = C::SC == S32 ? p0[j / 4] : a0, x1 = C::SC == S32 ? p1[j / 4] : a1;
                add(sum[w][4 * j], acc[4 * j], x0 * b.x);
                add(sum[w][4 * j + 1], acc[4 * j + 1], x0 * b.y);
                add(sum[w][4 * j + 2], acc[4 * j + 2], x1 * b.x);
                add(sum[w][4 * j + 3], acc[4 * j + 3], x1 * b.y);
            }
        }
    r.stage = COUNT == 2 ? st1 + 1 : st1;
    r.phase = ph1;
    if (COUNT == 2 && r.stage == STAGES) { r.stage = 0; r.phase ^= 1; }
    r.slot += COUNT;
    if (r.slot >= C::RING) r.slot -= C::RING;
}

// A K-block that this warpgroup has no rows for.
template <class C> __device__ __forceinline__ void pass(Ring &r, uint32_t bar, int lane) {
    ptx::mbar_wait(bar + 8 * r.stage, r.phase);
    if (lane < CLUSTER) ptx::mbar_arrive_cta(bar + 8 * (STAGES + r.stage), lane);
    if (++r.stage == STAGES) { r.stage = 0; r.phase ^= 1; }
    if (++r.slot == C::RING) r.slot = 0;
}

// Writes one finished 64 x BN wave of a warpgroup in pieces of 64 bytes a row, staged in shared memory: through TMA when all
// 64 rows are the tile's own, by predicated copies when the group ends inside (TMA would overwrite the next group's rows).
template <class C> struct Store {
    const CUtensorMap *map; const Args &p; uint32_t staging; int piece, wg, wid, lane;
    static constexpr int W = C::OUT == BF16 ? 32 : 16; // columns of a piece
    __device__ __forceinline__ void operator()(float (&v)[BN / 2], int n0, int row, int rows, int g) {
        const bool whole = C::KIND == K_GROUPS || rows >= 64;
        const int q = lane % 4;
#pragma unroll
        for (int c = 0; c < BN / W; c++) {
            if constexpr (C::BIAS) {
#pragma unroll
                for (int j = 0; j < W / 8; j++) add_bias(&v[(c * W / 8 + j) * 4], n0 + c * W + j * 8 + q * 2);
            }
            const uint32_t buf = staging + (wg * C::PIECES + piece) * C::PIECE;
            if (wid % 4 == 0 && lane == 0) ptx::tma_wait_read<C::PIECES - 1>();
            ptx::bar_sync(2 + wg, 128);
            if (C::OUT == BF16) {
                const int sr = (wid % 4) * 16 + (lane & 15);
#pragma unroll
                for (int j = 0; j < W / 8; j += 2) {
                    const int ch = j + (lane >> 4), sw = ch ^ ((sr >> 1) & 3), b = (c * W / 8 + j) * 4;
                    ptx::stmatrix4(buf + sr * 64 + sw * 16, ptx::pack_bf16(v[b], v[b + 1]), ptx::pack_bf16(v[b + 2], v[b + 3]),
                                   ptx::pack_bf16(v[b + 4], v[b + 5]), ptx::pack_bf16(v[b + 6], v[b + 7]));
                }
            } else {
                const int sr = (wid % 4) * 16 + lane / 4;
#pragma unroll
                for (int j = 0; j < W / 8; j++) {
                    const int ch = j * 2 + q / 2, sw = ch ^ ((sr >> 1) & 3), b = (c * W / 8 + j) * 4;
                    const uint32_t at = buf + sr * 64 + sw * 16 + (q & 1) * 8; // row + 8 has the same swizzle
                    ptx::sts2(at, v[b], v[b + 1]);
                    ptx::sts2(at + 8 * 64, v[b + 2], v[b + 3]);
                }
            }
            ptx::fence_async();
            ptx::bar_sync(2 + wg, 128);
            if (!whole) copy_rows(buf, n0 + c * W, row, rows);
            else if (wid % 4 == 0 && lane == 0) {
                if (C::OUT == F32_ADD) ptx::tma_add(map, buf, n0 + c * W, row, g);
                else ptx::tma_store(map, buf, n0 + c * W, row, g);
                ptx::tma_commit();
            }
            if (++piece == C::PIECES) piece = 0;
        }
    }
    // To columns n and n + 1 of two rows, in fp32 before the output is rounded, as the CPU does. N is even.
    __device__ __forceinline__ void add_bias(float *v, int n) const {
        if (n >= p.N) return;
        float x, y;
        if (p.bias_bf16) {
            x = __bfloat162float(((const __nv_bfloat16 *)p.bias)[n]);
            y = __bfloat162float(((const __nv_bfloat16 *)p.bias)[n + 1]);
        } else {
            x = ((const float *)p.bias)[n];
            y = ((const float *)p.bias)[n + 1];
        }
        v[0] += x;
        v[1] += y;
        v[2] += x;
        v[3] += y;
    }
    // Two threads a row. The buffer is written again only PIECES barriers later, so no barrier is needed after the reads.
    __device__ __forceinline__ void copy_rows(uint32_t buf, int n0, int row, int rows) const {
        const int t = (wid % 4) * 32 + lane, r = t / 2;
        if (r >= rows) return;
        constexpr int E = C::OUT == BF16 ? 2 : 4;
        char *out = (char *)p.c + ((int64_t)(row + r) * p.c_ls + n0) * E;
#pragma unroll 1
        for (int i = 0; i < 32 / E; i++) {
            const int n = (t & 1) * 32 / E + i, byte = n * E;
            if (n0 + n >= p.N) return;
            const uint32_t at = buf + r * 64 + ((byte / 16) ^ ((r >> 1) & 3)) * 16 + byte % 16;
            if (C::OUT == BF16) {
                uint16_t h;
                asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h) : "r"(at));
                ((uint16_t *)out)[n] = h;
            } else if (C::OUT == F32) ((float *)out)[n] = ptx::lds(at);
            else ((float *)out)[n] += ptx::lds(at);
        }
    }
};

// The K-block that ends a K group holds the next group's first rows too: they become zero before they are multiplied.
// Rows of k are 128 bytes in every 8 KB piece of 64 lines. All 256 math threads; the tensor cores see it after the fence.
template <class C> __device__ __forceinline__ void clear_tail(uint32_t a, uint32_t b, int valid, int thread) {
    const int per_row = (BM + BN) / 64 * 8; // 16-byte pieces of one k
    for (int i = thread; i < (C::KB - valid) * per_row; i += 256) {
        const int k = valid + i / per_row, piece = i % per_row / 8, chunk = i % 8;
        const uint32_t tile = piece < BM / 64 ? a + piece * 8192 : b + (piece - BM / 64) * 8192;
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(tile + k * 128 + chunk * 16), "r"(0) : "memory");
    }
    ptx::fence_async();
    ptx::bar_sync(4, 256);
}

// bf16 operands need no promotion: one K-block a step, straight into sum. flush has run before.
template <class C, int W>
__device__ __forceinline__ void accumulate(float (&sum)[WAVES][BN / 2], Ring &r, bool first, int valid, uint32_t sm, int wg, int thread, int lane) {
    const uint32_t a0 = sm + r.stage * C::A_BYTES, b0 = sm + C::O_B + r.stage * C::B_BYTES, bar = sm + C::O_BAR;
    ptx::mbar_wait(bar + 8 * r.stage, r.phase);
    if (C::KIND == K_GROUPS && valid < C::KB) clear_tail<C>(a0, b0, valid, thread);
#pragma unroll
    for (int w = 0; w < W; w++) ptx::pin(sum[w]);
    ptx::wgmma_fence();
    // 16 k further: 32 bytes along a row, or 16 rows of 128 bytes. Contiguous lines: 8 KB from 64 lines to the next 64.
    constexpr uint32_t STEP_A = C::TA ? 128 : 2, STEP_B = C::TB ? 128 : 2, LINES = (8192 >> 4) << 16, ROWS = 1 << 16;
    const uint32_t a = ((a0 + wg * 8192) & 0x3FFFF) >> 4 | (C::TA ? LINES : ROWS), b = (b0 & 0x3FFFF) >> 4 | (C::TB ? LINES : ROWS);
#pragma unroll
    for (int w = 0; w < W; w++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            ptx::wgmma_bf16<C::TA, C::TB>(sum[w], ptx::descriptor(a + w * (16384 >> 4) + STEP_A * k), ptx::descriptor(b + STEP_B * k), !first || k);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int w = 0; w < W; w++) ptx::pin(sum[w]);
    if (lane < CLUSTER) ptx::mbar_arrive_cta(bar + 8 * (STAGES + r.stage), lane);
    if (++r.stage == STAGES) { r.stage = 0; r.phase ^= 1; }
}

// Rows of A that a tile loads.
template <class C> __device__ __forceinline__ int height_of(const Walk<C> &t) {
    return C::TA || C::KIND == K_GROUPS || t.rows > BM / 2 ? (int)BM : t.rows > BM / 4 ? BM / 2 : BM / 4;
}

// One K-block of A and B. An operand with contiguous k comes as rows of 128 bytes; one with contiguous lines as pieces of 64
// lines (128 bytes) by 64 k, 8 KB each. Either way 64 lines take 8 KB, swizzled in atoms of 8 rows.
template <class C>
__device__ __forceinline__ void load(const CUtensorMap *ta, const CUtensorMap *few, const CUtensorMap *tb, const Args &p, const Walk<C> &t, uint32_t full,
                                     uint32_t a, uint32_t b, int k) {
    const uint16_t all = (1 << CLUSTER) - 1;
    const int height = height_of<C>(t), row = t.rank * (height / CLUSTER);
    if (!C::TA && height == BM) ptx::tma_load_multicast(ta, full, a + row * 128, k, t.m0 + row, all);
    else if (!C::TA)
        for (int i = 0; i < height / CLUSTER; i += FEW) ptx::tma_load_multicast(few, full, a + (row + i) * 128, k, t.m0 + row + i, all);
    else
        for (int i = 0; i < BM / CLUSTER; i += 64) ptx::tma_load_multicast(ta, full, a + (row + i) * 128, t.m0 + row + i, k, all);
    if (!C::TB) ptx::tma_load(tb, full, b, k, (C::KIND == M_GROUPS ? t.g * p.N : 0) + t.n0);
    else
        for (int i = 0; i < BN; i += 64) ptx::tma_load(tb, full, b + i * 128, t.n0 + i, (C::KIND == M_GROUPS ? t.g * p.K : 0) + k);
}

template <class C>
__device__ __forceinline__ void produce(const CUtensorMap *ta, const CUtensorMap *few, const CUtensorMap *tb, const CUtensorMap *tsa, const CUtensorMap *tsb,
                                        const Args &p, const int *pre, uint32_t sm) {
    ptx::tma_prefetch(ta);
    ptx::tma_prefetch(tb);
    if (C::MX) { ptx::tma_prefetch(tsa); ptx::tma_prefetch(tsb); }
    int st = 0, ph = 1, slot = 0;
    Walk<C> t(p, pre);
    while (t.next())
        for (int kb = 0; kb < t.nk; kb++) {
            ptx::mbar_wait(sm + C::O_BAR + 8 * (STAGES + st), ph);
            const uint32_t full = sm + C::O_BAR + 8 * st, ring = sm + C::O_RING + slot * C::SLOT;
            const bool scales = C::MX && kb % C::KS == 0;
            ptx::mbar_expect(full, height_of<C>(t) * 128 + C::B_BYTES + (scales ? (BM + C::B_SCALES) * 4 : 0));
            load<C>(ta, few, tb, p, t, full, sm + st * C::A_BYTES, sm + C::O_B + st * C::B_BYTES, t.k0 + kb * C::KB);
            if (scales) {
                const int at = (t.k0 + kb * C::KB) / C::KQ;
                ptx::tma_load(tsa, full, ring, t.scale_row, at);
                ptx::tma_load(tsb, full, ring + BM * 4, (C::KIND == M_GROUPS ? t.g * p.sb_lines : 0) + t.n0 / C::NB, at);
            }
            if (++st == STAGES) { st = 0; ph ^= 1; }
            if (++slot == C::RING) slot = 0;
        }
}

template <class C> __device__ __forceinline__ void consume(const CUtensorMap *td, const Args &p, const int *pre, uint32_t sm, int *pending, int wid, int lane) {
    const int wg = wid / 4, q = lane % 4, r0 = wg * 64 + (wid % 4) * 16 + lane / 4;
    float sum[WAVES][BN / 2], acc[BN / 2];
    Ring ring = {0, 0, 0};
    const uint32_t da = ptx::descriptor_low(sm + wg * 64 * 128), db = ptx::descriptor_low(sm + C::O_B), bar = sm + C::O_BAR;
    const uint32_t row_scales = sm + C::O_RING + r0 * 4, col_scales = sm + C::O_RING + BM * 4 + (C::SC == S1 ? q * 8 : 0);
    Store<C> store = {td, p, sm + C::O_D, 0, wg, wid, lane};
    int *pend = pending + wg * 4; // n0, row, rows and group of the tile whose waves are not stored yet
    int left = 0;                 // how many waves of it
    auto flush = [&](int w) { if (w < left) store(sum[w], pend[0], pend[1] + w * 128 + wg * 64, pend[2] - w * 128 - wg * 64, pend[3]); };
    Walk<C> t(p, pre);
    while (t.next()) {
        const int waves = C::KIND == K_GROUPS ? (int)WAVES : min((int)WAVES, (t.rows - wg * 64 + 127) / 128);
        if (waves < 2 && left == 2) { flush(1); left = 1; }
        if (C::KIND == M_GROUPS && waves == 0) {
            flush(0);
            for (int kb = 0; kb < t.nk; kb++) pass<C>(ring, bar, lane);
        } else if (C::KIND == K_GROUPS && t.nk == 0) { // an empty contraction: zeros
#pragma unroll
            for (int w = 0; w < WAVES; w++) {
                flush(w);
#pragma unroll
                for (int i = 0; i < BN / 2; i++) sum[w][i] = 0.f;
            }
        } else if (!C::MX) {
#pragma unroll
            for (int w = 0; w < WAVES; w++) flush(w);
            const int length = t.kend - t.k0;
            if (waves == 2) for (int kb = 0; kb < t.nk; kb++) accumulate<C, 2>(sum, ring, kb == 0, length - kb * C::KB, sm, wg, threadIdx.x, lane);
            else for (int kb = 0; kb < t.nk; kb++) accumulate<C, 1>(sum, ring, kb == 0, length - kb * C::KB, sm, wg, threadIdx.x, lane);
        } else {
            // Compile-time steps of two and one K-blocks: with run-time branches ptxas serialises the wgmmas.
            if (t.nk == 1) promote<C, 1, true>(flush, sum, acc, ring, waves, da, db, bar, row_scales, col_scales, lane);
            else promote<C, 2, true>(flush, sum, acc, ring, waves, da, db, bar, row_scales, col_scales, lane);
            int kb = 2;
            for (; kb + 2 <= t.nk; kb += 2) promote<C, 2, false>(flush, sum, acc, ring, waves, da, db, bar, row_scales, col_scales, lane);
            if (kb < t.nk) promote<C, 1, false>(flush, sum, acc, ring, waves, da, db, bar, row_scales, col_scales, lane);
        }
        left = waves;
        ptx::bar_sync(2 + wg, 128); // every warp has read the previous tile's place
        if (wid % 4 == 0 && lane == 0) { pend[0] = t.n0; pend[1] = t.m0; pend[2] = C::KIND == K_GROUPS ? (int)BM : t.rows; pend[3] = C::KIND == K_GROUPS ? t.g : 0; }
        ptx::bar_sync(2 + wg, 128);
    }
#pragma unroll
    for (int w = 0; w < WAVES; w++) flush(w);
    if (wid % 4 == 0 && lane == 0) ptx::tma_wait<0>();
}

template <class C>
__global__ __launch_bounds__(384, 1) void gemm(const __grid_constant__ CUtensorMap ta, const __grid_constant__ CUtensorMap few, const __grid_constant__ CUtensorMap tb,
                                               const __grid_constant__ CUtensorMap tsa, const __grid_constant__ CUtensorMap tsb,
                                               const __grid_constant__ CUtensorMap td, const __grid_constant__ Args p) {
    extern __shared__ __align__(1024) uint8_t base[];
    const uint32_t sm = ptx::smem(base);
    const int wid = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    int *pre = (int *)(base + C::O_PRE);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            ptx::mbar_init(sm + C::O_BAR + 8 * s, 1);                       // full: the producer, then TMA's bytes
            ptx::mbar_init(sm + C::O_BAR + 8 * (STAGES + s), 8 * CLUSTER);  // empty: every math warp of the cluster
        }
        ptx::mbar_init_fence();
    }
    if (threadIdx.x == 32) { // tiles before each group, from the offsets on the device
        const int np = ((p.N + BN - 1) / BN + CLUSTER - 1) / CLUSTER;
        int tiles = 0, begin = 0;
        for (int g = 0; g < p.G; g++) {
            const int end = p.ends ? p.ends[g] : C::KIND == M_GROUPS ? p.M : p.K;
            pre[g] = tiles;
            pre[MAX_GROUPS + 1 + g] = end;
            tiles += (end - begin + BM - 1) / BM * np;
            begin = end;
        }
        pre[p.G] = tiles;
    }
    ptx::cluster_sync();
    if (wid >= 8) {
        ptx::registers_down<40>();
        if (wid == 8 && lane == 0) produce<C>(&ta, &few, &tb, &tsa, &tsb, p, pre, sm);
    } else {
        ptx::registers_up<232>();
        consume<C>(&td, p, pre, sm, (int *)(base + C::O_PEND), wid, lane);
    }
    ptx::cluster_sync(); // a CTA may not leave while its peer multicasts into it
}
} // namespace sm90
