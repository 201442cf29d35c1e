// A stable counting sort, one digit a pass: router slots by expert (one pass), tokens by id (a few). The input is cut
// into tiles; histogram counts each tile's digits, scan turns the counts of each digit into places inside the digit,
// scatter ranks the items of its tile in their order and moves them. Integer atomics only count, so that nothing
// depends on who comes first. 12 bytes an item and pass or so; the histograms live in the context's scratch.
#include "model.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, LEAST_TILE = 2048, MAX_TILES = 4096 };

struct sort_grid {
    int32_t *counts; // (bins, tiles): of a digit in a tile; after scan, of that digit in the tiles before
    int32_t *totals; // (bins)
    int tiles;
    int64_t tile; // items, a multiple of THREADS
};

static __device__ __forceinline__ uint32_t key_of(const struct sort_pass &p, int64_t i) {
    const uint32_t key = (uint32_t)p.keys[i];
    return key < p.limit ? key : p.limit;
}
static __device__ __forceinline__ int digit_of(const struct sort_pass &p, uint32_t key) {
    return (int)((key >> p.shift) & p.mask);
}

// Sum of v over the threads before this one; *total is the sum of all. `parts` holds WARPS ints.
static __device__ int scan_block(int v, int *parts, int *total) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int sum = v;
    for (int step = 1; step < 32; step <<= 1) {
        const int below = __shfl_up_sync(0xFFFFFFFFu, sum, step);
        if (lane >= step) sum += below;
    }
    __syncthreads();
    if (lane == 31) parts[warp] = sum;
    __syncthreads();
    int before = 0;
    *total = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w == warp) before = *total;
        *total += parts[w];
    }
    return before + sum - v;
}

static __global__ void __launch_bounds__(THREADS) histogram(struct sort_pass p, struct sort_grid g) {
    extern __shared__ int32_t count[];
    for (int b = threadIdx.x; b < p.bins; b += THREADS) count[b] = 0;
    __syncthreads();
    const int64_t first = blockIdx.x * g.tile, end = first + g.tile < p.n ? first + g.tile : p.n;
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) atomicAdd(&count[digit_of(p, key_of(p, i))], 1);
    __syncthreads();
    for (int b = threadIdx.x; b < p.bins; b += THREADS) g.counts[(int64_t)b * g.tiles + blockIdx.x] = count[b];
}

// One block a digit: exclusive sums over the tiles, in place.
static __global__ void __launch_bounds__(THREADS) scan(struct sort_grid g) {
    __shared__ int parts[WARPS];
    int32_t *counts = g.counts + (int64_t)blockIdx.x * g.tiles;
    const int each = (g.tiles + THREADS - 1) / THREADS, first = threadIdx.x * each, end = min(first + each, g.tiles);
    int sum = 0, total;
    for (int i = first; i < end; i++) sum += counts[i];
    int before = scan_block(sum, parts, &total);
    for (int i = first; i < end; i++) {
        const int count = counts[i];
        counts[i] = before;
        before += count;
    }
    if (threadIdx.x == 0) g.totals[blockIdx.x] = total;
}

// place[w * bins + b]: where the next item with digit b of warp w goes. Each warp owns an eighth of the tile, in order.
static __global__ void __launch_bounds__(THREADS) scatter(struct sort_pass p, struct sort_grid g) {
    extern __shared__ int32_t place[];
    __shared__ int parts[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64_t each = g.tile / WARPS, first = blockIdx.x * g.tile + warp * each,
                  end = first + each < p.n ? first + each : p.n;
    int32_t *mine = place + warp * p.bins;
    for (int b = threadIdx.x; b < WARPS * p.bins; b += THREADS) place[b] = 0;
    __syncthreads();
    for (int64_t i = first + lane; i < end; i += 32) atomicAdd(&mine[digit_of(p, key_of(p, i))], 1);
    __syncthreads();
    const int bins_each = (p.bins + THREADS - 1) / THREADS, low = threadIdx.x * bins_each,
              high = min(low + bins_each, p.bins);
    int sum = 0, total;
    for (int b = low; b < high; b++) sum += g.totals[b];
    int start = scan_block(sum, parts, &total); // of digit `low` in the whole output
    for (int b = low; b < high; b++) {
        int next = start + g.counts[(int64_t)b * g.tiles + blockIdx.x];
        start += g.totals[b];
        if (p.ends && blockIdx.x == 0) p.ends[b] = start;
        for (int w = 0; w < WARPS; w++) {
            const int count = place[w * p.bins + b];
            place[w * p.bins + b] = next;
            next += count;
        }
    }
    __syncthreads();
    for (int64_t round = first; round < end; round += 32) {
        const int64_t i = round + lane;
        const bool live = i < end;
        const uint32_t key = live ? key_of(p, i) : 0;
        const int digit = live ? digit_of(p, key) : -1;
        const unsigned same = __match_any_sync(0xFFFFFFFFu, digit);
        const int rank = __popc(same & ((1u << lane) - 1));
        const int at = live ? mine[digit] + rank : 0;
        __syncwarp();
        if (live && rank == 0) mine[digit] += __popc(same);
        __syncwarp();
        if (!live) continue;
        if (p.out_keys) p.out_keys[at] = (int32_t)key;
        if (p.out_values) p.out_values[at] = p.values ? p.values[i] : (int32_t)i;
        if (p.positions) p.positions[i] = at;
    }
}

enum mx8_status cuda_sort_pass(const struct mx8_exec *x, const struct sort_pass *p) {
    if (p->bins > MAX_BINS)
        return CUDA_FAIL(MX8_UNSUPPORTED, "cuda sort: %d bins, expected at most %d", p->bins, (int)MAX_BINS);
    struct sort_grid g;
    const int64_t wanted = ceil_div(p->n, LEAST_TILE), tiles = wanted < 1 ? 1 : wanted < MAX_TILES ? wanted : MAX_TILES;
    g.tile = ceil_div(ceil_div(p->n, tiles), THREADS) * THREADS;
    g.tiles = p->n > 0 ? (int)ceil_div(p->n, g.tile) : 1;
    g.counts = (int32_t *)x->scratch;
    g.totals = g.counts + (int64_t)p->bins * g.tiles;
    const size_t row = p->bins * sizeof(int32_t);
    histogram<<<g.tiles, THREADS, row, stream_of(x)>>>(*p, g);
    scan<<<p->bins, THREADS, 0, stream_of(x)>>>(g);
    scatter<<<g.tiles, THREADS, WARPS * row, stream_of(x)>>>(*p, g);
    CUDA_LAUNCHED("sort");
}
