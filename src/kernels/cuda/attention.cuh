// What attention's forward and backward share on the tensor cores: tiles in shared memory, fragments, masks, launching.
//
// A tile is ROWS x HD of bf16, one head of consecutive positions, rows at and past the sequence's end and columns past
// d zero. Its 16-byte chunks are swizzled (chunk ^ row % 8), so that the eight rows of a fragment lie in different
// banks, and because a row fills HD * 2 bytes, stepping along a row is an exclusive or with a constant. mma.m16n8k16: a
// (16 x 16) row-major, b (16 x 8) by columns, c: lane holds rows lane/4 and +8, columns 2(lane%4) and +1.
#pragma once
#include "model.cuh"

namespace attention {

enum { RANGE = 64 }; // positions of one entry of the document ranges
constexpr float LOG2E = 1.44269504088896f;

// ---- instructions ----

__device__ __forceinline__ void copy16(uint32_t to, const void *from, bool live) { // zero unless live
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(live ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy4(uint32_t to, const void *from, bool live) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(live ? 4 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// This thread's copies have landed; after the barrier everyone's have, and everyone is done with what was read before.
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { // c += a b
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float power2(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// ---- tiles and fragments ----

template <int HD> __device__ __forceinline__ uint32_t chunk_at(uint32_t tile, int row, int chunk) {
    return tile + row * (HD * 2) + ((chunk ^ (row & 7)) << 4);
}

// Copies a tile; `head` is its first row, of which `rows` exist.
template <int HD, int ROWS, int THREADS>
__device__ __forceinline__ void copy_tile(uint32_t tile, const bf16 *head, int64_t ls, int rows, int d) {
    constexpr int CHUNKS = HD / 8, STEP = THREADS / CHUNKS, TURNS = ROWS / STEP;
    static_assert(THREADS % CHUNKS == 0 && ROWS % STEP == 0, "every thread copies the same number of chunks");
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const bool inside = chunk * 8 < d;
    const bf16 *from = head + (inside ? row * ls + chunk * 8 : 0);
#pragma unroll
    for (int turn = 0; turn < TURNS;
         turn++, from += STEP * ls) { // a running address: fewer registers than TURNS of them
        const bool live = inside && row + turn * STEP < rows;
        copy16(chunk_at<HD>(tile, row + turn * STEP, chunk), live ? from : head, live);
    }
}

// Where this lane's part of a fragment starts in a tile: a (16 rows x 16), two b side by side whose columns are the
// tile's rows (16 rows x 16), two b side by side whose columns are the tile's columns (transposed, 16 rows x 16).
template <int HD> __device__ __forceinline__ uint32_t lane_of_a(uint32_t tile) {
    const int lane = threadIdx.x & 31;
    return chunk_at<HD>(tile, lane & 15, lane >> 4);
}
template <int HD> __device__ __forceinline__ uint32_t lane_of_b(uint32_t tile) {
    const int lane = threadIdx.x & 31;
    return chunk_at<HD>(tile, (lane >> 4) * 8 + (lane & 7), lane >> 3 & 1);
}
template <int HD> __device__ __forceinline__ uint32_t lane_of_transposed(uint32_t tile) {
    return lane_of_a<HD>(tile);
}
// `row` (a multiple of 8) rows down and `step` times 16 columns along from there.
template <int HD> __device__ __forceinline__ uint32_t moved(uint32_t lane_address, int row, int step) {
    return (lane_address ^ (step << 5)) + row * (HD * 2);
}

// Two neighbouring results, 16 x 16, as the a operand of the next product.
__device__ __forceinline__ void as_operand(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = bf16_pair(left[0], left[1]);
    a[1] = bf16_pair(left[2], left[3]);
    a[2] = bf16_pair(right[0], right[1]);
    a[3] = bf16_pair(right[2], right[3]);
}

// ---- masks ----

// One sequence: documents of its positions (or NULL), and the (least, largest) document of every RANGE of them.
struct mask {
    const int32_t *doc;
    const int2 *ranges;
    int S, chunk;
};

__device__ __forceinline__ struct mask mask_of(
    const struct mx8_attention_job &j, const int2 *ranges, int64_t sequence) {
    struct mask m = {NULL, NULL, (int)j.S, j.chunk > 0 && j.chunk < j.S ? (int)j.chunk : 0};
    if (j.doc) {
        m.doc = j.doc + sequence * j.S;
        m.ranges = ranges + sequence * ((j.S + RANGE - 1) / RANGE);
    }
    return m;
}
__device__ __forceinline__ int doc_at(const struct mask &m, int at) {
    return m.doc ? m.doc[min(at, m.S - 1)] : 0;
}
__device__ __forceinline__ int first_key(const struct mask &m, int query) {
    return m.chunk ? query / m.chunk * m.chunk : 0;
}

// The range of `n` positions from `first` on, which is a multiple of RANGE or lies with all of them in one.
__device__ __forceinline__ int2 range_at(const struct mask &m, int first, int n) {
    if (!m.doc) return make_int2(0, 0);
    int2 r = m.ranges[first / RANGE];
    for (int at = first + RANGE; at < first + n && at < m.S; at += RANGE) {
        const int2 more = m.ranges[at / RANGE];
        r = make_int2(min(r.x, more.x), max(r.y, more.y));
    }
    return r;
}
// The first tile of `n` positions from `at` on whose documents meet those of `with`; `end` or more when there is none.
__device__ __forceinline__ int next_tile(const struct mask &m, int at, int end, int n, int2 with) {
    for (; m.doc && at < end; at += n) {
        const int2 r = range_at(m, at, n);
        if (r.x <= with.y && r.y >= with.x) break;
    }
    return at;
}
// Whether documents or chunks hide anything between the keys of a tile and queries up to last_query.
__device__ __forceinline__ bool hides(const struct mask &m, int key, int last_query, int2 keys, int2 queries) {
    return key < first_key(m, last_query) || keys.x != keys.y || queries.x != queries.y || keys.x != queries.x;
}

// ---- launching ----

inline int64_t range_count(const struct mx8_attention_job *j) {
    return j->S > 0 ? j->T / j->S * ceil_div(j->S, RANGE) : 0;
}
inline size_t delta_bytes(const struct mx8_attention_job *j) {
    return ((size_t)(j->T * j->H) * sizeof(float) + 63) / 64 * 64;
}

inline bool rows_fit(const void *p, int64_t ls) {
    return is_aligned(p) && ls % 8 == 0;
}
// The tensor-core kernels take bf16 heads of whole 16-byte chunks; their running maximum needs a positive scale.
inline bool is_fast(const struct mx8_attention_job *j) {
    return j->dtype == MX8_BF16 && j->d % 8 == 0 && j->d <= 256 && j->scale > 0 && j->S < (1 << 30) &&
           rows_fit(j->q, j->q_ls) && rows_fit(j->k, j->k_ls) && rows_fit(j->v, j->v_ls) && rows_fit(j->o, j->o_ls);
}
enum mx8_status make_ranges(
    const struct mx8_exec *x, const struct mx8_attention_job *j, int2 *ranges); // nothing without doc

// attention_simt.cu: any dtype, stride and d up to 256
enum mx8_status simt_forward(const struct mx8_exec *x, const struct mx8_attention_job *j);
enum mx8_status simt_backward(const struct mx8_exec *x, const struct mx8_attention_job *j, const float *delta);

} // namespace attention
