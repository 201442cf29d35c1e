// SwiGLU: h = gate * sigmoid(gate) * up, in f32, rounded once.
// Backward, with s = sigmoid(gate): dup = dh * gate * s, dgate = dh * up * s * (1 + gate * (1 - s)).
// One block a row; 6 bytes an element of bf16 forward, 10 backward. bf16 uses the fast exponential and reciprocal: with
// the exact ones the arithmetic, not memory, would be the limit.
#include "model.cuh"

template <class T, int N> static __global__ void swiglu_rows(struct mx8_swiglu_job j) {
    for (int64_t r = blockIdx.x; r < j.M; r += gridDim.x) {
        const T *gate = (const T *)j.gate + r * j.gate_ls, *up = (const T *)j.up + r * j.up_ls;
        T *h = (T *)j.h + r * j.h_ls;
        for (int64_t i = threadIdx.x * N; i < j.F; i += (int64_t)blockDim.x * N) {
            const pack<N> g = load<N>(gate + i);
            pack<N> u = load<N>(up + i);
#pragma unroll
            for (int e = 0; e < N; e++) u.v[e] = swiglu_for(g.v[e], u.v[e], gate);
            store(h + i, u);
        }
    }
}

template <class T, int N> static __global__ void swiglu_backward_rows(struct mx8_swiglu_job j) {
    for (int64_t r = blockIdx.x; r < j.M; r += gridDim.x) {
        const T *gate = (const T *)j.gate + r * j.gate_ls, *up = (const T *)j.up + r * j.up_ls,
                *dh = (const T *)j.dh + r * j.dh_ls;
        T *dgate = (T *)j.dgate + r * j.dgate_ls, *dup = (T *)j.dup + r * j.dup_ls;
        for (int64_t i = threadIdx.x * N; i < j.F; i += (int64_t)blockDim.x * N) {
            pack<N> g = load<N>(gate + i), u = load<N>(up + i);
            const pack<N> d = load<N>(dh + i);
#pragma unroll
            for (int e = 0; e < N; e++)
                mx8::swiglu_gradients(d.v[e], g.v[e], u.v[e], sigmoid_for(g.v[e], gate), &g.v[e], &u.v[e]);
            store(dgate + i, g);
            store(dup + i, u);
        }
    }
}

enum mx8_status cuda_swiglu(const struct mx8_exec *x, const struct mx8_swiglu_job *j) {
    if (j->M == 0 || j->F == 0) return MX8_OK;
    const bool wide = (j->F | j->gate_ls | j->up_ls | j->h_ls) % WIDE == 0 && is_aligned(j->gate) &&
                      is_aligned(j->up) && is_aligned(j->h);
    BY_TYPE(j->dtype, T,
        BY_WIDTH(wide, N, swiglu_rows<T, N><<<row_blocks(j->M), row_threads(j->F / N), 0, stream_of(x)>>>(*j)));
    CUDA_LAUNCHED("swiglu");
}

enum mx8_status cuda_swiglu_backward(const struct mx8_exec *x, const struct mx8_swiglu_job *j) {
    if (j->M == 0 || j->F == 0) return MX8_OK;
    const bool wide = (j->F | j->gate_ls | j->up_ls | j->dh_ls | j->dgate_ls | j->dup_ls) % WIDE == 0 &&
                      is_aligned(j->gate) && is_aligned(j->up) && is_aligned(j->dh) && is_aligned(j->dgate) &&
                      is_aligned(j->dup);
    BY_TYPE(j->dtype, T,
        BY_WIDTH(
            wide, N, swiglu_backward_rows<T, N><<<row_blocks(j->M), row_threads(j->F / N), 0, stream_of(x)>>>(*j)));
    CUDA_LAUNCHED("swiglu_backward");
}
