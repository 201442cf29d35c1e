// Attention without tensor cores, for f32 and for heads whose size or strides the fast kernels do not take: correct and
// deterministic, not fast. One warp a row and head, the lanes share the head's columns. Same formulas as the fast
// kernels.
#include <math.h>
#include "attention.cuh"

using namespace attention;

enum { WARPS = 4, THREADS = WARPS * 32, COLUMNS = 8, MAX_D = 32 * COLUMNS };

struct columns {
    float v[COLUMNS];
}; // lane i holds columns i, i + 32, ...

template <class T> static __device__ __forceinline__ struct columns read(const T *head, int64_t d) {
    struct columns r;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const int at = c * 32 + (threadIdx.x & 31);
        r.v[c] = at < d ? load<1>(head + at).v[0] : 0.0f;
    }
    return r;
}

template <class T>
static __device__ __forceinline__ void write(T *head, int64_t d, const struct columns &a, float factor) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const int at = c * 32 + (threadIdx.x & 31);
        if (at < d) store(head + at, pack<1>{a.v[c] * factor});
    }
}

static __device__ __forceinline__ float dot(const struct columns &a, const struct columns &b) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) sum = fmaf(a.v[c], b.v[c], sum);
    return warp_sum(sum);
}

static __device__ __forceinline__ void add(struct columns &sum, const struct columns &a, float factor) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) sum.v[c] = fmaf(a.v[c], factor, sum.v[c]);
}

static __device__ __forceinline__ bool sees(
    const struct mx8_attention_job &j, int64_t start, int64_t query, int64_t key) {
    return key <= query && (j.chunk <= 0 || query / j.chunk == key / j.chunk) &&
           (!j.doc || j.doc[start + query] == j.doc[start + key]);
}

// The warp's row and head among `heads` of them; false past the last.
struct place {
    int64_t t, h, start, at;
};
static __device__ __forceinline__ bool find_place(const struct mx8_attention_job &j, int64_t heads, struct place &p) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    p.t = i / heads;
    p.h = i % heads;
    p.at = p.t % j.S;
    p.start = p.t - p.at;
    return i < j.T * heads;
}

template <class T> static __global__ void attend_row(struct mx8_attention_job j) {
    struct place p;
    if (!find_place(j, j.H, p)) return;
    const int64_t kv = p.h / (j.H / j.KV);
    const struct columns q = read((const T *)j.q + p.t * j.q_ls + p.h * j.d, j.d);
    struct columns o = {};
    float max = -INFINITY, sum = 0;
    for (int64_t key = 0; key <= p.at; key++) {
        if (!sees(j, p.start, p.at, key)) continue;
        const float s = dot(q, read((const T *)j.k + (p.start + key) * j.k_ls + kv * j.d, j.d)) * j.scale;
        if (s > max) {
            const float rescale = expf(max - s);
            sum *= rescale;
            for (int c = 0; c < COLUMNS; c++) o.v[c] *= rescale;
            max = s;
        }
        const float e = expf(s - max);
        sum += e;
        add(o, read((const T *)j.v + (p.start + key) * j.v_ls + kv * j.d, j.d), e);
    }
    write((T *)j.o + p.t * j.o_ls + p.h * j.d, j.d, o, 1.0f / sum);
    if ((threadIdx.x & 31) == 0) j.lse[p.t * j.H + p.h] = max + logf(sum);
}

template <class T> static __global__ void attend_row_backward(struct mx8_attention_job j, const float *delta) {
    struct place p;
    if (!find_place(j, j.H, p)) return;
    const int64_t kv = p.h / (j.H / j.KV);
    const struct columns q = read((const T *)j.q + p.t * j.q_ls + p.h * j.d, j.d),
                         g = read((const T *)j.dout + p.t * j.do_ls + p.h * j.d, j.d);
    const float lse = j.lse[p.t * j.H + p.h], row_term = delta[p.t * j.H + p.h];
    struct columns dq = {};
    for (int64_t key = 0; key <= p.at; key++) {
        if (!sees(j, p.start, p.at, key)) continue;
        const struct columns k = read((const T *)j.k + (p.start + key) * j.k_ls + kv * j.d, j.d);
        const float prob = expf(dot(q, k) * j.scale - lse);
        const float dp = dot(g, read((const T *)j.v + (p.start + key) * j.v_ls + kv * j.d, j.d));
        add(dq, k, prob * (dp - row_term));
    }
    write((T *)j.dq + p.t * j.dq_ls + p.h * j.d, j.d, dq, j.scale);
}

template <class T> static __global__ void attend_key_backward(struct mx8_attention_job j, const float *delta) {
    struct place p;
    if (!find_place(j, j.KV, p)) return;
    const int64_t group = j.H / j.KV;
    const struct columns k = read((const T *)j.k + p.t * j.k_ls + p.h * j.d, j.d),
                         v = read((const T *)j.v + p.t * j.v_ls + p.h * j.d, j.d);
    struct columns dk = {}, dv = {};
    for (int64_t h = p.h * group; h < (p.h + 1) * group; h++) {
        for (int64_t query = p.at; query < j.S; query++) {
            if (!sees(j, p.start, query, p.at)) continue;
            const int64_t t = p.start + query;
            const struct columns q = read((const T *)j.q + t * j.q_ls + h * j.d, j.d),
                                 g = read((const T *)j.dout + t * j.do_ls + h * j.d, j.d);
            const float prob = expf(dot(q, k) * j.scale - j.lse[t * j.H + h]);
            add(dv, g, prob);
            add(dk, q, prob * (dot(g, v) - delta[t * j.H + h]));
        }
    }
    write((T *)j.dk + p.t * j.dk_ls + p.h * j.d, j.d, dk, j.scale);
    write((T *)j.dv + p.t * j.dv_ls + p.h * j.d, j.d, dv, 1.0f);
}

static enum mx8_status check_width(const struct mx8_attention_job *j) {
    return j->d <= MAX_D ? MX8_OK
                         : CUDA_FAIL(MX8_UNSUPPORTED, "cuda attention: head dim is %lld, expected at most %d",
                               (long long)j->d, (int)MAX_D);
}

enum mx8_status attention::simt_forward(const struct mx8_exec *x, const struct mx8_attention_job *j) {
    const enum mx8_status status = check_width(j);
    if (status != MX8_OK) return status;
    BY_TYPE(j->dtype, T, attend_row<T><<<blocks_for(j->T * j->H, WARPS, 0x7FFFFFFF), THREADS, 0, stream_of(x)>>>(*j));
    CUDA_LAUNCHED("attention");
}

enum mx8_status attention::simt_backward(
    const struct mx8_exec *x, const struct mx8_attention_job *j, const float *delta) {
    const enum mx8_status status = check_width(j);
    if (status != MX8_OK) return status;
    BY_TYPE(j->dtype, T, {
        attend_key_backward<T><<<blocks_for(j->T * j->KV, WARPS, 0x7FFFFFFF), THREADS, 0, stream_of(x)>>>(*j, delta);
        attend_row_backward<T><<<blocks_for(j->T * j->H, WARPS, 0x7FFFFFFF), THREADS, 0, stream_of(x)>>>(*j, delta);
    });
    CUDA_LAUNCHED("attention_backward");
}
