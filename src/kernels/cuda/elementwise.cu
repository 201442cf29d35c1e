// Elementwise kernels: add, cast, scale, clamp, and the search for values that are not finite. Memory is the limit: two reads
// and a write, one of each, one in place, one read. The wide kernel takes all whole packs of an aligned array, a second
// launch of the scalar one the up to seven elements behind them (or everything, when the array is not aligned).
#include "model.cuh"

enum { THREADS = 256 };

// Packs of N at `first`: thread i of the grid takes pack i, i + threads of the grid, ...
#define FOR_EACH_PACK(i, packs)                                                                                        \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (packs); i += (int64_t)gridDim.x * blockDim.x)

static int64_t wide_length(int64_t n, bool aligned) {
    return aligned ? n / WIDE * WIDE : 0;
}

// Launches kernel<..., WIDE> over [0, whole) and kernel<..., 1> over [whole, n); the kernels take (first, packs, ...).
#define LAUNCH(kernel, x, n, whole, ...)                                                                               \
    do {                                                                                                               \
        const int64_t whole_ = (whole);                                                                                \
        if (whole_ > 0) {                                                                                              \
            constexpr int N = WIDE;                                                                                    \
            kernel<<<blocks_for(whole_ / N, THREADS), THREADS, 0, stream_of(x)>>>(0, whole_ / N, __VA_ARGS__);         \
        }                                                                                                              \
        if (whole_ < (n)) {                                                                                            \
            constexpr int N = 1;                                                                                       \
            kernel<<<blocks_for((n)-whole_, THREADS), THREADS, 0, stream_of(x)>>>(whole_, (n)-whole_, __VA_ARGS__);    \
        }                                                                                                              \
    } while (0)

template <class T, int N> static __global__ void add_packs(int64_t first, int64_t packs, T *y, const T *a, const T *b) {
    FOR_EACH_PACK(i, packs) {
        const int64_t at = first + i * N;
        pack<N> v = load<N>(a + at);
        const pack<N> w = load<N>(b + at);
#pragma unroll
        for (int e = 0; e < N; e++) v.v[e] += w.v[e];
        store(y + at, v);
    }
}

enum mx8_status cuda_add(const struct mx8_exec *x, void *y, const void *a, const void *b, int32_t dtype, int64_t n) {
    const int64_t whole = wide_length(n, is_aligned(y) && is_aligned(a) && is_aligned(b));
    BY_TYPE(dtype, T, LAUNCH((add_packs<T, N>), x, n, whole, (T *)y, (const T *)a, (const T *)b));
    CUDA_LAUNCHED("add");
}

template <class Y, class A, int N> static __global__ void cast_packs(int64_t first, int64_t packs, Y *y, const A *a) {
    FOR_EACH_PACK(i, packs) store(y + first + i * N, load<N>(a + first + i * N));
}

enum mx8_status cuda_cast(
    const struct mx8_exec *x, void *y, int32_t y_dtype, const void *a, int32_t a_dtype, int64_t n) {
    if (n == 0) return MX8_OK;
    const int64_t whole = wide_length(n, is_aligned(y) && is_aligned(a));
    if (y_dtype == a_dtype)
        CUDA_TRY(
            cudaMemcpyAsync(y, a, (size_t)n * (y_dtype == MX8_BF16 ? 2 : 4), cudaMemcpyDeviceToDevice, stream_of(x)),
            "cast");
    else if (y_dtype == MX8_BF16)
        LAUNCH((cast_packs<bf16, float, N>), x, n, whole, (bf16 *)y, (const float *)a);
    else
        LAUNCH((cast_packs<float, bf16, N>), x, n, whole, (float *)y, (const bf16 *)a);
    CUDA_LAUNCHED("cast");
}

template <int N>
static __global__ void scale_packs(int64_t first, int64_t packs, float *y, const float *factor, float value) {
    const float by = factor ? *factor : value;
    FOR_EACH_PACK(i, packs) {
        pack<N> v = load<N>(y + first + i * N);
#pragma unroll
        for (int e = 0; e < N; e++) v.v[e] *= by;
        store(y + first + i * N, v);
    }
}

enum mx8_status cuda_scale(const struct mx8_exec *x, float *y, const float *factor, float value, int64_t n) {
    LAUNCH((scale_packs<N>), x, n, wide_length(n, is_aligned(y)), y, factor, value);
    CUDA_LAUNCHED("scale");
}

// Whoever finds one writes the same 1.
template <class T, int N>
static __global__ void find_not_finite(int64_t first, int64_t packs, int32_t *flag, const T *a) {
    bool found = false;
    FOR_EACH_PACK(i, packs) {
        const pack<N> v = load<N>(a + first + i * N);
#pragma unroll
        for (int e = 0; e < N; e++) found |= (__float_as_uint(v.v[e]) & 0x7F800000u) == 0x7F800000u;
    }
    if (found) *flag = 1;
}

enum mx8_status cuda_check_finite(const struct mx8_exec *x, int32_t *flag, const void *a, int32_t dtype, int64_t n) {
    BY_TYPE(dtype, T, LAUNCH((find_not_finite<T, N>), x, n, wide_length(n, is_aligned(a)), flag, (const T *)a));
    CUDA_LAUNCHED("check_finite");
}

// NaN compares false and stays.
template <class T, int N>
static __global__ void clamp_packs(int64_t first, int64_t packs, T *y, const T *x, float limit) {
    FOR_EACH_PACK(i, packs) {
        const int64_t at = first + i * N;
        pack<N> v = load<N>(x + at);
#pragma unroll
        for (int e = 0; e < N; e++) v.v[e] = v.v[e] > limit ? limit : v.v[e] < -limit ? -limit : v.v[e];
        store(y + at, v);
    }
}

enum mx8_status cuda_clamp(const struct mx8_exec *x, const struct mx8_clamp_job *j) {
    const int64_t whole = wide_length(j->n, is_aligned(j->y) && is_aligned(j->x));
    BY_TYPE(j->dtype, T, LAUNCH((clamp_packs<T, N>), x, j->n, whole, (T *)j->y, (const T *)j->x, j->limit));
    CUDA_LAUNCHED("clamp");
}

template <class T, int N>
static __global__ void clamp_backward_packs(int64_t first, int64_t packs, T *dx, const T *dy, const T *x, float limit) {
    FOR_EACH_PACK(i, packs) {
        const int64_t at = first + i * N;
        pack<N> d = load<N>(dy + at);
        const pack<N> v = load<N>(x + at);
#pragma unroll
        for (int e = 0; e < N; e++)
            if (v.v[e] > limit || v.v[e] < -limit) d.v[e] = 0;
        store(dx + at, d);
    }
}

enum mx8_status cuda_clamp_backward(const struct mx8_exec *x, const struct mx8_clamp_job *j) {
    const int64_t whole = wide_length(j->n, is_aligned(j->dx) && is_aligned(j->dy) && is_aligned(j->x));
    BY_TYPE(j->dtype, T,
        LAUNCH((clamp_backward_packs<T, N>), x, j->n, whole, (T *)j->dx, (const T *)j->dy, (const T *)j->x, j->limit));
    CUDA_LAUNCHED("clamp_backward");
}
