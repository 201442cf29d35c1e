// Sums down columns: bias gradients, and the weight gradients of norms whose rows are too long for registers.
// Two stages, so that the order never depends on the card: a block adds the rows of one slab for 32 packs of columns,
// eight rows at a time, and writes a row of partial sums; then each column's partial sums are added in order in double.
// Reads 2 bytes (bf16) an element once; partial sums are 1/256 of that.
#include "model.cuh"

enum { SLAB_ROWS = 256, MAX_SLABS = 256, LANES = 8 };

template <class T, int N> static __global__ void sum_slab(struct column_sum s, float *partial, int64_t slab_rows) {
    __shared__ float parts[LANES][32 * N];
    const int64_t limit = s.last_end && *s.last_end < s.rows ? *s.last_end : s.rows;
    const int64_t first = blockIdx.y * slab_rows, end = first + slab_rows < limit ? first + slab_rows : limit;
    const int64_t block_col = (int64_t)blockIdx.x * 32 * N, c = block_col + threadIdx.x * N;
    pack<N> sum = {};
    if (c < s.cols) {
        const T *a = (const T *)s.a + c, *b = (const T *)s.b + c;
#pragma unroll 4
        for (int64_t r = first + threadIdx.y; r < end; r += LANES) {
            pack<N> v = load<N>(a + r * s.ls);
            if (s.b) {
                const pack<N> w = load<N>(b + r * s.ls);
                const float f = s.factor[r];
#pragma unroll
                for (int i = 0; i < N; i++) sum.v[i] = fmaf(v.v[i], w.v[i] * f, sum.v[i]);
            } else {
#pragma unroll
                for (int i = 0; i < N; i++) sum.v[i] += v.v[i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) parts[threadIdx.y][threadIdx.x * N + i] = sum.v[i];
    __syncthreads();
    const int at = threadIdx.y * 32 + threadIdx.x;
    if (at >= 32 * N || block_col + at >= s.cols) return;
    float total = 0;
    for (int y = 0; y < LANES; y++) total += parts[y][at];
    partial[blockIdx.y * s.cols + block_col + at] = total;
}

enum { PARTIAL_LANES = 16 };
static __global__ void add_partials(float *out, int accumulate, const float *partial, int64_t rows, int64_t cols) {
    __shared__ double parts[PARTIAL_LANES][32];
    const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    double sum = 0;
    if (c < cols) {
#pragma unroll 4
        for (int64_t r = threadIdx.y; r < rows; r += PARTIAL_LANES) sum += partial[r * cols + c];
    }
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || c >= cols) return;
    for (int y = 1; y < PARTIAL_LANES; y++) sum += parts[y][threadIdx.x];
    out[c] = accumulate ? out[c] + (float)sum : (float)sum;
}

enum mx8_status cuda_add_partials(
    const struct mx8_exec *x, float *out, int accumulate, const float *partial, int64_t rows, int64_t cols) {
    add_partials<<<blocks_for(cols, 32, 0x7FFFFFFF), dim3(32, PARTIAL_LANES), 0, stream_of(x)>>>(
        out, accumulate, partial, rows, cols);
    CUDA_LAUNCHED("column sums");
}

enum mx8_status cuda_sum_columns(const struct mx8_exec *x, const struct column_sum *s) {
    if (s->cols == 0) return MX8_OK;
    const int64_t wanted = s->rows > SLAB_ROWS ? ceil_div(s->rows, SLAB_ROWS) : 1;
    const int64_t slabs = partial_rows(x, wanted < MAX_SLABS ? wanted : MAX_SLABS, s->cols);
    if (slabs < 1)
        return CUDA_FAIL(MX8_UNSUPPORTED, "cuda colsum: N is %lld, expected at most %lld", (long long)s->cols,
            (long long)(x->scratch_bytes / sizeof(float)));
    float *partial = (float *)x->scratch;
    const bool wide = s->cols % WIDE == 0 && s->ls % WIDE == 0 && is_aligned(s->a) && is_aligned(s->b);
    const int64_t slab_rows = ceil_div(s->rows, slabs);
    BY_TYPE(s->dtype, T, BY_WIDTH(wide, N, {
        const dim3 grid(blocks_for(s->cols, 32 * N, 0x7FFFFFFF), (unsigned)slabs);
        sum_slab<T, N><<<grid, dim3(32, LANES), 0, stream_of(x)>>>(*s, partial, slab_rows);
    }));
    CUDA_TRY(cudaGetLastError(), "column sums");
    return cuda_add_partials(x, s->out, s->accumulate, partial, slabs, s->cols);
}

enum mx8_status cuda_colsum(const struct mx8_exec *x, const struct mx8_colsum_job *j) {
    struct column_sum s = {};
    s.out = j->out;
    s.accumulate = j->accumulate;
    s.a = j->x;
    s.dtype = j->dtype;
    s.rows = j->M;
    s.cols = j->N;
    s.ls = j->ls;
    s.last_end = j->n_groups > 0 ? j->offsets + j->n_groups - 1 : NULL;
    return cuda_sum_columns(x, &s);
}
