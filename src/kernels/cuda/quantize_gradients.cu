// SwiGLU's backward and both orientations of both its gradients, in scale groups of 256: dgate and dup are made of dh, gate
// and up (swiglu.cu), rounded to bf16 and quantized, and never stored. Bytes an element: 6 read and 4.12 written, where the
// kernel that stores them and two quantizers move 18.1.
//
// Two tiles of 256 x 256 values do not fit an SM, so a cluster of two CTAs makes them: each holds 256 rows x 128 columns of
// both, in the places of gate and up. The groups of its columns are its own; a group of a row is in both CTAs. They tell
// each other the scale byte of their half, and the larger byte is the whole group's: a scale never falls when the largest
// value grows, and 255 (NaN, Inf) is the largest. The bytes travel by st.async, which an mbarrier of the other CTA counts; a
// cluster barrier would wait for every code that is still on its way to memory.
//
// Six 128 x 128 pieces of 32 KB: gate's, up's and dh's upper and lower half. dh's slots are free after pass A, the others as
// pass B is through with what stands there; each gets the next tile's piece at once.
#include "quantize_256.cuh"
#pragma nv_diag_suppress 177 // before sm_90 nobody calls what the kernel calls

namespace fused {
namespace {
enum { GATE, UP, DH, OPERANDS }; // operand o's half s lies in slot 2o + s; dgate in gate's place, dup in up's
enum { ROWS = 256, HALF = 128, HEARD = ROWS * 2 };
enum { SMEM_GRADIENTS = SLOTS * PIECE + 2 * BUFFER + ROWS * 4 + HALF * 4 + 2 * HEARD + 8 * (SLOTS + 2) };
static_assert(SMEM_GRADIENTS <= 227 * 1024, "shared memory of an SM");
#define FOR4 _Pragma("unroll") for (int i = 0; i < 4; i++)

struct Maps { CUtensorMap of[OPERANDS]; };
struct Jobs { Job of[2]; }; // of dgate, of dup

// What the threads of a CTA share. row: maxima, then factors, of dgate in the low half and dup in the high one. col_factor:
// 64 pairs of dgate's columns, then dup's. heard: two bytes a row from the other CTA, of this tile and of the one before.
struct Board {
    uint8_t *slots, *buffers; uint32_t *row, *col_factor; uint8_t *heard; uint32_t bars, heard_bars;
    __device__ uint32_t *warp_max() const { return (uint32_t *)buffers; } // [16][128] as col_factor; until the first buffer is needed
};

// Fills the slots: one thread calls. Tiles are the cluster's, pieces this CTA's.
struct Feeder {
    const Maps &maps; uint32_t slots, bars; Walk walk; Tile next; unsigned unit, step; int rank; bool more;
    __device__ Feeder(const Maps &m, const Job &p, uint32_t s, uint32_t b, unsigned first, unsigned clusters, int r)
        : maps(m), slots(s), bars(b), walk(p), unit(first), step(clusters), rank(r) { seek(); }
    __device__ __forceinline__ void seek() {
        more = walk.seek(unit, &next);
        next.col += rank * HALF;
        unit += step;
    }
    __device__ __forceinline__ void load(int slot) {
        if (more) load_piece(&maps.of[slot / 2], bars + 8 * slot, slots + slot * PIECE, next, slot % 2, walk.p.rows);
    }
};

__device__ __forceinline__ uint32_t address_in(uint32_t own, int cta) {
    uint32_t r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(own), "r"(cta));
    return r;
}
__device__ __forceinline__ void send(uint32_t to, uint32_t bar, uint32_t v) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(v), "r"(bar) : "memory");
}

__device__ __forceinline__ void make_two(uint32_t dh, uint32_t *gate, uint32_t *up) {
    const float g0 = low(*gate), g1 = high(*gate), u0 = low(*up), u1 = high(*up);
    float a0, a1, b0, b1;
    mx8::swiglu_gradients(low(dh), g0, u0, mx8::fast_sigmoid(g0), &a0, &b0);
    mx8::swiglu_gradients(high(dh), g1, u1, mx8::fast_sigmoid(g1), &a1, &b1);
    *gate = ptx::pack_bf16(a0, a1);
    *up = ptx::pack_bf16(b0, b1);
}
// gate becomes dgate, up dup.
__device__ __forceinline__ void make_eight(uint4 dh, uint4 *gate, uint4 *up) {
    make_two(dh.x, &gate->x, &up->x);
    make_two(dh.y, &gate->y, &up->y);
    make_two(dh.z, &gate->z, &up->z);
    make_two(dh.w, &gate->w, &up->w);
}
__device__ __forceinline__ void max_columns(uint32_t *c, uint4 v) {
    c[0] = max2_abs(c[0], v.x); c[1] = max2_abs(c[1], v.y); c[2] = max2_abs(c[2], v.z); c[3] = max2_abs(c[3], v.w);
}

// The maximum over 16 lanes of each of four words: word `lane % 4` comes out, in five exchanges instead of sixteen.
__device__ __forceinline__ uint32_t max_four(const uint32_t *m, int lane) {
    const bool odd = lane & 1, second = lane & 2;
    const uint32_t a = max2(odd ? m[1] : m[0], __shfl_xor_sync(~0u, odd ? m[0] : m[1], 1));
    const uint32_t b = max2(odd ? m[3] : m[2], __shfl_xor_sync(~0u, odd ? m[2] : m[3], 1));
    const uint32_t r = max2(second ? b : a, __shfl_xor_sync(~0u, second ? a : b, 2));
    return max_lanes<4, 16>(r);
}

// Pass A: the gradients in place, maxima of rows to board.row, of columns of each warp to warp_max. `tile` has this CTA's columns.
// Thread t holds columns 8 (t%16) .. of rows 4 (t/16) .. of a piece.
template <bool FULL> __device__ __forceinline__ void make_gradients(const Job &p, const Board &board, const Tile &tile, int parity) {
    const int t = threadIdx.x, cx = t % 16, ry = t / 16, lane = t % 32;
    uint32_t cm[2][4] = {}; // [gradient][pair of columns]
#pragma unroll 1 // twice the code would not run faster
    for (int s = 0; s < 2; s++) {
        uint8_t *const at = board.slots + s * PIECE + ry * 4 * 256 + cx * 16;
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) ptx::mbar_wait(board.bars + 8 * (2 * o + s), parity);
        uint32_t m[4];
        FOR4 {
            uint4 *const gate = (uint4 *)(at + 2 * GATE * PIECE) + i * 16, *const up = (uint4 *)(at + 2 * UP * PIECE) + i * 16;
            uint4 a = make_uint4(0, 0, 0, 0), b = a;
            if (FULL || (s * 128 + ry * 4 + i < tile.rows && tile.col + cx * 8 < p.cols)) {
                a = *gate;
                b = *up;
                make_eight(((const uint4 *)(at + 2 * DH * PIECE))[i * 16], &a, &b);
            }
            *gate = a;
            *up = b;
            max_columns(cm[0], a);
            max_columns(cm[1], b);
            const uint32_t x = max8_abs(a), y = max8_abs(b);
            m[i] = magnitudes(max2_abs(lows(x, y), highs(x, y)));
        }
        const uint32_t row = max_four(m, lane);
        if (cx < 4) board.row[s * 128 + ry * 4 + cx] = row;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t &m = cm[i / 4][i % 4];
        m = magnitudes(m);
        m = max2(m, __shfl_xor_sync(~0u, m, 16));
    }
    uint32_t *const to = board.warp_max() + t / 32 * 128 + cx * 4;
    if (lane < 16) { *(uint4 *)to = *(uint4 *)cm[0]; *(uint4 *)(to + 64) = *(uint4 *)cm[1]; }
}

// Row `t - 256`: this half's scale bytes go to the other CTA, the larger of both halves' become factors here. CTA 0 stores dgate's
// bytes, CTA 1 dup's. Whole warps call.
__device__ __forceinline__ void agree_on_rows(const Jobs &jobs, const Board &board, const Tile &tile, unsigned n, int rank) {
    const int r = threadIdx.x - 256, buffer = n & 1;
    const uint32_t bar = board.heard_bars + 8 * buffer, heard = ptx::smem(board.heard) + buffer * HEARD;
    const Job &p = jobs.of[rank];
    uint32_t m = board.row[r];
    if (p.row_tile == 32) m = max_lanes<1, 32>(m);
    const uint32_t own = byte_of(m & 0xFFFF, p.rule) | byte_of(m >> 16, p.rule) << 8, two = own | __shfl_down_sync(~0u, own, 1) << 16;
    if (r % 2 == 0) send(address_in(heard + r * 2, rank ^ 1), address_in(bar, rank ^ 1), two);
    if (r == 0) ptx::mbar_expect(bar, HEARD);
    ptx::mbar_wait(bar, n / 2 & 1);
    const uint32_t other = *(const uint16_t *)(board.heard + buffer * HEARD + r * 2);
    const uint32_t b0 = max(own & 255, other & 255), b1 = max(own >> 8, other >> 8);
    board.row[r] = lows(factor_of(b0), factor_of(b1));
    if (r < tile.rows) store_row_scale(p, tile, r, rank ? b1 : b0);
}

// The n-th tile of the cluster; `tile` has the cluster's columns, `mine` this CTA's.
template <bool COUNT, bool FULL>
__device__ __forceinline__ void quantize_pair(const Jobs &jobs, const Board &board, const Tile &tile, const Tile &mine, unsigned n, int rank,
                                              Feeder *feeder, Encoder<COUNT> *encoder) {
    const int t = threadIdx.x;
    make_gradients<FULL>(jobs.of[0], board, mine, n & 1);
    ptx::fence_async(); // what this wrote comes before the bytes that TMA puts in its place
    __syncthreads();
    if (t == 0) {
        feeder->load(2 * DH);
        feeder->load(2 * DH + 1);
    }
    if (t >= 256) agree_on_rows(jobs, board, tile, n, rank);
    else if (t < 128) // 64 pairs of dgate's columns, 64 of dup's
        board.col_factor[t] = scale_columns(jobs.of[t / 64], mine, board.warp_max() + t, mine.col + t % 64 * 2);
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < 2; s++) { // upper and lower half of dgate and of dup
        const uint4 f = *(const uint4 *)&board.row[s * 128 + t / 16 * 4];
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const Job &p = jobs.of[which];
            const int slot = 2 * (which ? UP : GATE) + s;
            uint8_t *const buffer = board.buffers + which * BUFFER;
            const uint4 rows = which ? make_uint4(highs(f.x, f.x), highs(f.y, f.y), highs(f.z, f.z), highs(f.w, f.w))
                                     : make_uint4(lows(f.x, f.x), lows(f.y, f.y), lows(f.z, f.z), lows(f.w, f.w));
            uint8_t *const row_to = p.row_codes + (mine.row + t / 16 * 4) * p.rc_row + mine.col + t % 16 * 8;
            uint8_t *const col_to = p.col_codes + (mine.col + t / 8) * p.cc_col + mine.at + t % 8 * 16;
            const uint8_t *x = board.slots + slot * PIECE;
            convert_piece<true, true, COUNT, FULL>(p, rows, board.col_factor + which * 64, mine, x, buffer, s * 128, 0, row_to, encoder);
            __syncthreads();
            if (t == 0) feeder->load(slot);
            store_columns<FULL>(p, mine, buffer, s * 128, 0, col_to);
        }
    }
    if (t == 0) feeder->seek();
}

template <bool COUNT>
__global__ __launch_bounds__(512, 1) void quantize_gradients(const __grid_constant__ Maps maps, const __grid_constant__ Jobs jobs) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) uint8_t memory[];
    Board board = {memory, memory + SLOTS * PIECE, (uint32_t *)(memory + SLOTS * PIECE + 2 * BUFFER), nullptr, nullptr, 0, 0};
    board.col_factor = board.row + ROWS;
    board.heard = (uint8_t *)(board.col_factor + HALF);
    board.bars = ptx::smem(board.heard + 2 * HEARD);
    board.heard_bars = board.bars + 8 * SLOTS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS + 2; i++) ptx::mbar_init(board.bars + 8 * i, 1);
        ptx::mbar_init_fence();
        ptx::fence_async();
    }
    ptx::cluster_sync(); // the other CTA's barriers are there
    const int rank = ptx::cta_rank();
    const unsigned first = blockIdx.x / 2, clusters = gridDim.x / 2;
    const Job &p = jobs.of[0];
    Feeder feeder(maps, p, ptx::smem(board.slots), board.bars, first, clusters, rank);
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) feeder.load(i / 3 + i % 3 * 2); // upper halves first
        feeder.seek();
    }
    Walk walk(p);
    Tile tile;
    Encoder<COUNT> encoder;
    unsigned n = 0;
    for (unsigned unit = first; walk.seek(unit, &tile); unit += clusters, n++) {
        Tile mine = tile;
        mine.col += rank * HALF;
        if (tile.rows == ROWS && mine.col + HALF <= p.cols && tile.room >= ROWS)
            quantize_pair<COUNT, true>(jobs, board, tile, mine, n, rank, &feeder, &encoder);
        else
            quantize_pair<COUNT, false>(jobs, board, tile, mine, n, rank, &feeder, &encoder);
    }
    encoder.report(p.saturated); // nobody leaves early: a CTA has heard all that the other one sends
#endif
}
#undef FOR4

template <bool COUNT> enum mx8_status launch(const struct mx8_exec *x, const Maps &maps, const Jobs &jobs) {
    const Job &p = jobs.of[0];
    cudaLaunchAttribute cluster[1];
    cluster[0].id = cudaLaunchAttributeClusterDimension;
    cluster[0].val.clusterDim.x = 2; cluster[0].val.clusterDim.y = cluster[0].val.clusterDim.z = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)(backend_of(x)->sm_count / 2 * 2));
    c.blockDim = dim3(512);
    c.dynamicSmemBytes = SMEM_GRADIENTS;
    c.stream = stream_of(x);
    c.attrs = cluster;
    c.numAttrs = 1;
    static int most = 0; // clusters that fit at once: the same for every device of this kind
    if (!most) {
        CUDA_TRY(cudaFuncSetAttribute(quantize_gradients<COUNT>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_GRADIENTS), "quantize");
        int fit = 0;
        CUDA_TRY(cudaOccupancyMaxActiveClusters(&fit, quantize_gradients<COUNT>, &c), "quantize");
        if (fit < 1) return MX8_UNSUPPORTED;
        most = fit;
    }
    const int64_t tiles = ((int64_t)(p.rows + 255) / 256 + p.n_groups) * ((p.cols + 255) / 256);
    c.gridDim = dim3((unsigned)(2 * (tiles < most ? tiles : most)));
    CUDA_TRY(cudaLaunchKernelEx(&c, quantize_gradients<COUNT>, maps, jobs), "quantize");
    return MX8_OK;
}

bool agree(const struct mx8_quant_job *a, const struct mx8_quant_job *b) {
    return a->rows == b->rows && a->cols == b->cols && a->src_dtype == b->src_dtype && a->batch == b->batch && a->rule == b->rule &&
           a->format == b->format && a->group == b->group && a->tile == b->tile && a->col_tile == b->col_tile && a->padding == b->padding &&
           a->offsets == b->offsets && a->n_groups == b->n_groups && a->padded_rows == b->padded_rows && a->saturated == b->saturated;
}

// The job as if it read this operand. False: not for these kernels.
bool take(const struct mx8_quant_job *j, const void *src, int64_t row_stride, Job *out) {
    struct mx8_quant_job k = *j;
    k.src = src;
    k.src_stride[1] = row_stride;
    k.src_stride[2] = 1;
    if (!takes(&k)) return false;
    *out = make_job(&k);
    return true;
}
} // namespace
} // namespace fused

enum mx8_status cuda_quantize_swiglu_backward(const struct mx8_exec *x, const struct mx8_swiglu_job *s, const struct mx8_quant_job *dgate,
                                              const struct mx8_quant_job *dup) {
    using namespace fused;
    if (backend_of(x)->capability != 90 || s->dtype != MX8_BF16 || dgate->batch != 1 || !agree(dgate, dup)) return MX8_UNSUPPORTED;
    if (!dgate->row_codes || !dgate->col_codes || !dup->row_codes || !dup->col_codes) return MX8_UNSUPPORTED;
    Jobs jobs;
    Job dh;
    Maps maps;
    if (!take(dgate, s->gate, s->gate_ls, &jobs.of[0]) || !take(dup, s->up, s->up_ls, &jobs.of[1]) || !take(dgate, s->dh, s->dh_ls, &dh)) return MX8_UNSUPPORTED;
    if (!fits_256(dh) || !map_matrix(x, dh, s->gate, s->gate_ls, &maps.of[GATE]) || !map_matrix(x, dh, s->up, s->up_ls, &maps.of[UP]) ||
        !map_matrix(x, dh, s->dh, s->dh_ls, &maps.of[DH]))
        return MX8_UNSUPPORTED;
    Scratch scratch = all_scratch(x);
    for (Job &p : jobs.of) p = gather_scales(&scratch, p);
    enum mx8_status status = counts(dh) ? launch<true>(x, maps, jobs) : launch<false>(x, maps, jobs);
    for (int i = 0; i < 2 && status == MX8_OK; i++) {
        status = spread_scales(x, jobs.of[i]);
        if (status == MX8_OK && dh.n_groups > 0) status = finish(x, jobs.of[i]);
    }
    return status;
}
