// Rotary position embedding, interleaved pairs: (x0, x1) becomes (x0 c - x1 s, x0 s + x1 c) in f32, rounded once.
// Products are rounded before they are added, as on the CPU and in PyTorch, so that all agree to the bit. The table's
// (cos, sin) pairs lie as the elements do. 4 bytes an element of bf16; the table stays in the caches.
#include "model.cuh"

template <int N> static __device__ __forceinline__ void rotate(pack<N> &v, const pack<N> &angle, int inverse) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        const float a = v.v[i], b = v.v[i + 1], c = angle.v[i], s = inverse ? -angle.v[i + 1] : angle.v[i + 1];
        v.v[i] = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
        v.v[i + 1] = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
    }
}

template <class T, int N> static __global__ void rotate_rows(struct mx8_rope_job j) {
    const int64_t items = j.H * j.d / N;
    for (int64_t t = blockIdx.x; t < j.T; t += gridDim.x) {
        const T *x = (const T *)j.x + t * j.x_ls;
        T *y = (T *)j.y + t * j.y_ls;
        const float *table = j.table + t % j.S * j.d;
        for (int64_t i = threadIdx.x; i < items; i += blockDim.x) {
            const float *angle = table + (unsigned)(i * N) % (unsigned)j.d;
            if constexpr (N == WIDE) {
                pack<N> v = load<N>(x + i * N);
                rotate(v, load<N>(angle), j.inverse);
                store(y + i * N, v);
            } else { // a pair, wherever it lies
                pack<2> v = {load<1>(x + i * N).v[0], load<1>(x + i * N + 1).v[0]}, a = {angle[0], angle[1]};
                rotate(v, a, j.inverse);
                store(y + i * N, pack<1>{v.v[0]});
                store(y + i * N + 1, pack<1>{v.v[1]});
            }
        }
    }
}

enum mx8_status cuda_rope(const struct mx8_exec *x, const struct mx8_rope_job *j) {
    if (j->T == 0 || j->H * j->d == 0) return MX8_OK;
    const bool wide = j->d % WIDE == 0 && j->x_ls % WIDE == 0 && j->y_ls % WIDE == 0 && is_aligned(j->x) &&
                      is_aligned(j->y) && is_aligned(j->table);
    const int threads = row_threads(j->H * j->d / (wide ? WIDE : 2));
    BY_TYPE(j->dtype, T, {
        if (wide)
            rotate_rows<T, WIDE><<<row_blocks(j->T), threads, 0, stream_of(x)>>>(*j);
        else
            rotate_rows<T, 2><<<row_blocks(j->T), threads, 0, stream_of(x)>>>(*j);
    });
    CUDA_LAUNCHED("rope");
}
