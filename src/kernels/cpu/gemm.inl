/* Matrix products: C (M,N) = A (M,K) B (N,K)^T, dense or grouped, any operand of F32, BF16 or MXFP8 with any strides.
 *
 * Blocked after Goto and van de Geijn (ACM TOMS 34, 2008). C is cut into blocks of at most MX8_GEMM_M x MX8_GEMM_N, K
 * into steps of at most MX8_GEMM_K. In a step the threads together pack the block's lines of A and B as f32 panels
 * (gemm_pack.inl), meet, and each multiplies its share of the MR x NR tiles of C. A tile's sum over the step stays in
 * registers; what a panel of B costs to load from memory is shared by all rows of A that pass it while it is in L1.
 * Packed panels alternate between two buffers, so one meeting per step is enough: a thread that is done may pack the
 * next step while the others still multiply this one.
 *
 * Every element of C is summed over k in order, split at the same places whatever the thread count, so that bits do not
 * depend on it. With a bf16 C and several steps the sums wait in f32 scratch and are rounded once.
 *
 * Work 2MNK flops; packing moves (M+N)K elements per block of C, C moves twice per step.
 * 2026-12-01, AMD EPYC (Zen 3), AVX2, 2 hardware threads, bench/run_cpu --only product: bf16 reaches 0.63 to 0.73 of
 * multiply-adds on registers from 1024^3 to 4096^3, 0.95 to 1.04 of OpenBLAS in fp32 with one thread and with two.
 * Xeon (AVX-512), 16 hardware threads, before that day's changes: bf16 and MXFP8 2048^3 1000 and 1030 GFLOP/s, one
 * thread 80 to 155 as the neighbours allow. */
#include <omp.h>

#if defined(MX8_ISA_AVX512)
enum { MR = 14, NR_VECTORS = 2, UNROLL = 4 }; /* 28 of 32 registers hold the tile */
#elif defined(MX8_ISA_AVX2)
enum { MR = 6, NR_VECTORS = 2, UNROLL = 4 }; /* 12 of 16 */
#else
enum { MR = 4, NR_VECTORS = 1, UNROLL = 1 };
#endif
enum { NR = NR_VECTORS * MX8_VF };
#include "kernels/cpu/gemm_pack.inl"

/* Rows of A that stay in L2 while B streams by: at most as many panels in one row band. */
enum { BAND_PANELS = 288 / MR };
enum { MX8_GEMM_K = 256, MX8_GEMM_M = 4 * BAND_PANELS * MR, MX8_GEMM_N = 2048 };
enum { PARTIAL_LD = MX8_GEMM_N + 16 }; /* not a power of two: rows of a tile must not meet in one cache set */

enum { PACKED_A = MX8_GEMM_M * MX8_GEMM_K, PACKED_B = MX8_GEMM_N * MX8_GEMM_K, PACKED = PACKED_A + PACKED_B };
enum { PARTIAL = MX8_GEMM_M * PARTIAL_LD };

/* What one thread of the team knows: who it is, and the shared scratch. A thread alone packs into one buffer only. */
struct team {
    int thread, threads;
    float *packed[2], *partial;
    int64_t step; /* steps done so far, the same number in every thread */
};

/* One dense product; a grouped job is a list of them. */
struct product {
    struct operand a, b;
    int64_t M, N, K;
    void *c;
};

/* Where a tile's sums go: to = round(sum + from + bias + old). All pointers but `bias` are at the block's first
 * element; from, old and bias may be NULL. from may be to. */
struct output {
    void *to;
    const float *from;
    const void *old, *bias;
    int64_t to_ld, from_ld, rows, cols;
    int32_t to_dtype, bias_dtype;
};

static size_t gemm_scratch_bytes(void) { return ((size_t)2 * PACKED + PARTIAL) * sizeof(float); }

MX8_INLINE int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

/* Size of equal pieces, multiples of `unit`, that cover n in as few as `most` allows. */
MX8_INLINE int64_t piece_size(int64_t n, int64_t most, int64_t unit) {
    int64_t pieces = n > 0 ? divide_up(n, most) : 1;
    return divide_up(divide_up(n, pieces), unit) * unit;
}

MX8_INLINE vf finish_vector(vf sum, const struct output *o, int64_t row, int64_t col, int n) {
    if (o->from) sum = vf_add(sum, vf_load_part_as(o->from, row * o->from_ld + col, MX8_F32, n));
    if (o->bias) sum = vf_add(sum, vf_load_part_as(o->bias, col, o->bias_dtype, n));
    if (o->old) sum = vf_add(sum, vf_load_part_as(o->old, row * o->to_ld + col, o->to_dtype, n));
    return sum;
}

/* A tile at the block's edge, or one to which more than `from` is added. */
static void finish_tile(const float *sums, const struct output *o, int64_t row, int64_t col) {
    int64_t rows = o->rows - row < MR ? o->rows - row : MR;
    for (int64_t i = 0; i < rows; i++, sums += NR) {
        int64_t at = (row + i) * o->to_ld + col;
        for (int v = 0; v < NR && col + v < o->cols; v += MX8_VF) {
            int n = vf_lanes(col + v, o->cols);
            vf sum = finish_vector(vf_load(sums + v), o, row + i, col + v, n);
            vf_store_part_as(o->to, at + v, o->to_dtype, sum, n);
        }
    }
}

/* Most tiles are whole and have at most `from`: their sums go from registers to C. */
MX8_INLINE void finish_whole_tile(vf sums[MR][NR_VECTORS], const struct output *o, int64_t row, int64_t col) {
#pragma GCC unroll 14
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int v = 0; v < NR_VECTORS; v++) {
            int64_t at = col + v * MX8_VF;
            vf sum = sums[i][v];
            if (o->from) sum = vf_add(sum, vf_load(o->from + (row + i) * o->from_ld + at));
            vf_store_as(o->to, (row + i) * o->to_ld + at, o->to_dtype, sum);
        }
}

/* Asks for the lines of C that a tile adds to or writes: they come from L3 or memory while its sums are made. */
MX8_INLINE void prefetch_whole_tile(const struct output *o, int64_t row, int64_t col) {
    int64_t size = (int64_t)dtype_size(o->to_dtype);
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < NR; v += 16) {
            __builtin_prefetch((const char *)o->to + ((row + i) * o->to_ld + col + v) * size, 1);
            if (o->from && o->from != o->to) __builtin_prefetch(o->from + (row + i) * o->from_ld + col + v);
        }
}

/* C tile at (row, col) = A panel * B panel over kc steps. The accumulators are an array that the compiler keeps in
 * registers once the loops over it are unrolled. The steps are unrolled because a hardware thread whose sibling is busy
 * is short of instructions a cycle, not of multiply-adds: of 23 a step 12 are those, of 20.75 in fours. */
static void multiply_panels(int64_t kc, const float *restrict a, const float *restrict b, const struct output *o,
    int64_t row, int64_t col) {
    int whole = o->rows - row >= MR && o->cols - col >= NR && !o->bias && !o->old;
    vf c[MR][NR_VECTORS];
    if (whole) prefetch_whole_tile(o, row, col);
#pragma GCC unroll 14
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int v = 0; v < NR_VECTORS; v++) c[i][v] = vf_set(0.0f);

#pragma GCC unroll UNROLL
    for (int64_t k = 0; k < kc; k++, a += MR, b += NR) {
        vf line[NR_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < NR_VECTORS; v++) line[v] = vf_load(b + v * MX8_VF);
#pragma GCC unroll 14
        for (int i = 0; i < MR; i++) {
            vf left = vf_set(a[i]);
#pragma GCC unroll 2
            for (int v = 0; v < NR_VECTORS; v++) c[i][v] = vf_fma(left, line[v], c[i][v]);
        }
    }
    if (whole) {
        finish_whole_tile(c, o, row, col);
        return;
    }
    float sums[MR * NR] __attribute__((aligned(64)));
#pragma GCC unroll 14
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int v = 0; v < NR_VECTORS; v++) vf_store(sums + i * NR + v * MX8_VF, c[i][v]);
    finish_tile(sums, o, row, col);
}

/* The i-th of n equal pieces of a B panel: each tile of a band asks for one of the panel that the band meets next. */
MX8_INLINE void prefetch_piece(const float *panel, int64_t kc, int64_t i, int64_t n) {
    const float *end = panel + kc * NR * (i + 1) / n;
    for (const float *p = panel + kc * NR * i / n; p < end; p += 16) __builtin_prefetch(p);
}

/* This thread's share of a block's tiles: an equal range of the order band of rows, column, row, in which a band of A
 * stays in L2 and a panel of B in L1. */
static void multiply_block(const struct team *t, const float *a, const float *b, int64_t kc, const struct output *o) {
    int64_t rows = divide_up(o->rows, MR), cols = divide_up(o->cols, NR), tiles = rows * cols;
    int64_t most = piece_size(rows, BAND_PANELS, 1), band_tiles = most * cols;
    int64_t end = tiles * (t->thread + 1) / t->threads;
    for (int64_t i = tiles * t->thread / t->threads; i < end; i++) {
        int64_t band = i / band_tiles, first = band * most, height = rows - first < most ? rows - first : most;
        int64_t at = i % band_tiles % height, row = first + at, col = i % band_tiles / height;
        if (height > 1) prefetch_piece(b + (col + 1) % cols * NR * kc, kc, at, height);
        multiply_panels(kc, a + row * MR * kc, b + col * NR * kc, o, row * MR, col * NR);
    }
}

/* This thread's share of a step's packing. Panels of B are wider than those of A: shares are equal in lines. */
static void pack_block(const struct team *t, const struct product *p, int64_t m, int64_t rows, int64_t n, int64_t cols,
    int64_t k, int64_t kc, float *a, float *b) {
    int64_t left = divide_up(rows, MR), right = divide_up(cols, NR), lines = left * MR + right * NR, at = 0;
    int64_t begin = lines * t->thread / t->threads, end = lines * (t->thread + 1) / t->threads;
    for (int64_t i = 0; i < left; i++, at += MR)
        if (at >= begin && at < end) pack_panel(a + i * MR * kc, MR, &p->a, m + i * MR, k, kc);
    for (int64_t i = 0; i < right; i++, at += NR)
        if (at >= begin && at < end) pack_panel(b + i * NR * kc, NR, &p->b, n + i * NR, k, kc);
}

static const void *element(const void *p, int64_t i, int32_t dtype) {
    return (const char *)p + i * (int64_t)dtype_size(dtype);
}

/* Output of one step on the block at (m, n): sums gather in C itself where that is f32, else in scratch to the end. */
static struct output describe_output(const struct mx8_gemm_job *j, const struct product *p, const struct team *t,
    int64_t m, int64_t n, int first, int last) {
    void *c = (char *)p->c + (m * j->c_ls + n) * (int64_t)dtype_size(j->c_dtype);
    struct output o = {.to = c, .to_ld = j->c_ls, .to_dtype = j->c_dtype};
    if (j->c_dtype == MX8_F32) {
        o.from = first && !j->accumulate ? NULL : c;
        o.from_ld = j->c_ls;
    } else {
        o.from = first ? NULL : t->partial;
        o.from_ld = PARTIAL_LD;
        if (last) {
            o.old = j->accumulate ? c : NULL;
        } else {
            o.to = t->partial;
            o.to_ld = PARTIAL_LD;
            o.to_dtype = MX8_F32;
        }
    }
    if (last && j->bias) o.bias = element(j->bias, n, j->bias_dtype);
    o.bias_dtype = j->bias_dtype;
    return o;
}

/* All steps of one product. K = 0 is one empty step, so that C becomes the bias or zero. */
static void run_product(struct team *t, const struct mx8_gemm_job *j, const struct product *p) {
    int64_t M = piece_size(p->M, MX8_GEMM_M, MR), N = piece_size(p->N, MX8_GEMM_N, NR);
    int64_t K = piece_size(p->K, MX8_GEMM_K, MX8_BLOCK);
    for (int64_t n = 0; n < p->N; n += N) {
        for (int64_t m = 0; m < p->M; m += M) {
            int64_t rows = p->M - m < M ? p->M - m : M, cols = p->N - n < N ? p->N - n : N, k = 0;
            do {
                int64_t kc = p->K - k < K ? p->K - k : K;
                float *a = t->packed[t->threads > 1 ? t->step++ & 1 : 0], *b = a + PACKED_A;
                struct output o = describe_output(j, p, t, m, n, k == 0, k + kc == p->K);
                o.rows = rows;
                o.cols = cols;
                pack_block(t, p, m, rows, n, cols, k, kc, a, b);
#pragma omp barrier
                multiply_block(t, a, b, kc, &o);
                k += kc;
            } while (k < p->K);
        }
    }
}

static struct operand resolve_operand(
    const struct mx8_matrix *m, int64_t group, int64_t line, int64_t k, int64_t lines) {
    return (struct operand){
        .data = element(m->data, group * m->gs + line * m->ls + k * m->ks, m->dtype),
        .scales = m->scales ? m->scales + group * m->sgs + line * m->sls + k / MX8_BLOCK * m->sks : NULL,
        .dtype = m->dtype,
        .lines = lines,
        .ls = m->ls,
        .ks = m->ks,
        .sls = m->sls,
        .sks = m->sks,
    };
}

/* The product of group g, whose rows or range of k are [start, end). */
static struct product resolve_group(const struct mx8_gemm_job *j, int32_t g, int64_t start, int64_t end) {
    int by_rows = j->mode == MX8_GEMM_M_GROUPS;
    int64_t c = by_rows ? start * j->c_ls : g * j->c_gs;
    int moves = by_rows && j->K > 0; /* operands without elements may have any strides */
    return (struct product){
        .a = resolve_operand(&j->a, 0, moves ? start : 0, by_rows ? 0 : start, by_rows ? end - start : j->M),
        .b = resolve_operand(&j->b, moves ? g : 0, 0, by_rows ? 0 : start, j->N),
        .M = by_rows ? end - start : j->M,
        .N = j->N,
        .K = by_rows ? j->K : end - start,
        .c = (char *)j->c + c * (int64_t)dtype_size(j->c_dtype),
    };
}

static void clear_rows_past(const struct team *t, const struct mx8_gemm_job *j, int64_t end) {
    size_t size = dtype_size(j->c_dtype);
    int64_t rows = j->M - end, first = end + rows * t->thread / t->threads;
    int64_t last = end + rows * (t->thread + 1) / t->threads;
    for (int64_t r = first; r < last; r++) memset((char *)j->c + r * j->c_ls * (int64_t)size, 0, (size_t)j->N * size);
}

static void run_job(struct team *t, const struct mx8_gemm_job *j) {
    if (j->mode == MX8_GEMM_DENSE) {
        struct product p = {.a = resolve_operand(&j->a, 0, 0, 0, j->M), .b = resolve_operand(&j->b, 0, 0, 0, j->N),
            .M = j->M, .N = j->N, .K = j->K, .c = j->c};
        run_product(t, j, &p);
        return;
    }
    int64_t start = 0;
    for (int32_t g = 0; g < j->G; g++) {
        int64_t end = j->offsets[g];
        struct product p = resolve_group(j, g, start, end);
        if (p.K > 0 || !j->accumulate || j->bias) run_product(t, j, &p);
        start = end;
    }
    if (j->mode == MX8_GEMM_M_GROUPS && !j->accumulate) clear_rows_past(t, j, start);
}

/* Below this many multiplications waking the other threads takes longer than they would save. */
#define MX8_GEMM_SERIAL 100000.0

static enum mx8_status gemm(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    if (j->M == 0 || j->N == 0) return MX8_OK;
    int parallel = (double)j->M * (double)j->N * (double)j->K > MX8_GEMM_SERIAL;
#pragma omp parallel num_threads(x->threads) if (parallel)
    {
        float *scratch = x->scratch;
        struct team t = {.thread = omp_get_thread_num(), .threads = omp_get_num_threads(),
            .packed = {scratch, scratch + PACKED}, .partial = scratch + (size_t)2 * PACKED};
        run_job(&t, j);
    }
    return MX8_OK;
}
