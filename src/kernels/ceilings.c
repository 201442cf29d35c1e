/* What the device reaches: the ceilings that a profile compares with. Products and copies run back to back for a while,
 * as they do in training, on whatever the memory holds. */
#include "base/error.h"
#include "kernels/profile.h"

enum { LARGEST_ON_DEVICE = 8192, LARGEST_ON_HOST = 1024, SMALLEST = 256 };
static const double least_seconds = 0.25;
static const size_t largest_copy = (size_t)1 << 30;

struct probe {
    const struct mx8_exec *x;
    struct mx8_gemm_job product; /* M 0: a copy of `bytes` */
    uint8_t *memory;
    size_t bytes;
};

static enum mx8_status run_probe(const struct probe *p) {
    if (p->product.M) return p->x->k->gemm(p->x, &p->product);
    return p->x->k->copy(p->x, p->memory + p->bytes, p->memory, p->bytes);
}

/* Seconds of one call, over as many as fill the least time. */
static enum mx8_status time_probe(const struct probe *p, double *seconds) {
    const struct mx8_kernels *k = p->x->k;
    void *timer = NULL;
    double times[2] = {0};
    enum mx8_status status = run_probe(p);
    for (int64_t calls = 1; status == MX8_OK; calls *= 4) {
        status = k->mark(p->x, &timer, 0);
        for (int64_t i = 0; i < calls && status == MX8_OK; i++) status = run_probe(p);
        if (status == MX8_OK) status = k->mark(p->x, &timer, 1);
        if (status == MX8_OK) status = k->read_marks(p->x, timer, 2, times);
        *seconds = times[1] / (double)calls;
        if (times[1] >= least_seconds) break;
    }
    k->release_timer(p->x, timer);
    return status;
}

/* C = A B^T with the operands and the result one after the other; 0 bytes needed means that it does not fit. */
static struct mx8_gemm_job make_product(uint8_t *memory, size_t bytes, int64_t edge, int32_t dtype) {
    const size_t each = (size_t)(edge * edge) * mx8_get_dtype_size(dtype), scales = (size_t)(edge * edge / 32);
    const int32_t c_dtype = dtype == MX8_F32 ? MX8_F32 : MX8_BF16;
    const size_t result = (size_t)(edge * edge) * mx8_get_dtype_size(c_dtype);
    struct mx8_gemm_job j = {.mode = MX8_GEMM_DENSE, .N = edge, .K = edge, .c_dtype = c_dtype, .c_ls = edge};
    if (2 * (each + scales) + result > bytes) return j;
    j.M = edge;
    j.a = (struct mx8_matrix){.data = memory, .dtype = dtype, .ls = edge, .ks = 1};
    j.b = (struct mx8_matrix){.data = memory + each, .dtype = dtype, .ls = edge, .ks = 1};
    j.c = memory + 2 * each;
    if (dtype == MX8_F8_E4M3) { /* the geometry of the tensor cores, where there are some */
        j.a.scales = memory + 2 * each + result;
        j.b.scales = memory + 2 * each + result + scales;
        j.a.sls = j.b.sls = edge / 32;
        j.a.sks = j.b.sks = 1;
        j.a.scale_group = j.b.scale_group = 256;
        j.a.tile = 1;
        j.b.tile = 32;
    }
    return j;
}

static enum mx8_status measure_product(
    const struct probe *base, int64_t edge, int32_t dtype, struct mx8_ceilings *out, enum mx8_profile_unit unit) {
    struct probe p = *base;
    double seconds = 0;
    p.product = make_product(p.memory, p.bytes, edge, dtype);
    if (!p.product.M) return MX8_OK;
    if (p.product.a.scales) /* 1 everywhere */
        MX8_TRY(p.x->k->fill(p.x, (void *)(uintptr_t)p.product.a.scales, 127, 2 * (size_t)(edge * edge / 32)));
    MX8_TRY(time_probe(&p, &seconds));
    if (seconds > 0) out->rate[unit] = 2 * (double)edge * (double)edge * (double)edge / seconds;
    return MX8_OK;
}

enum mx8_status mx8i_measure_ceilings(
    const struct mx8_exec *x, void *memory, size_t bytes, uint32_t units, struct mx8_ceilings *out) {
    static const int32_t dtypes[MX8_PROFILE_UNITS] = {
        [MX8_PROFILE_F32] = MX8_F32, [MX8_PROFILE_BF16] = MX8_BF16, [MX8_PROFILE_MXFP8] = MX8_F8_E4M3};
    struct probe p = {.x = x, .memory = memory, .bytes = bytes};
    *out = (struct mx8_ceilings){0};
    int64_t edge = x->ordinal < 0 ? LARGEST_ON_HOST : LARGEST_ON_DEVICE;
    while (edge > SMALLEST && !make_product(memory, bytes, edge, MX8_BF16).M) edge /= 2;
    out->product = edge;
    for (int u = MX8_PROFILE_F32; u < MX8_PROFILE_UNITS; u++) {
        if (units >> u & 1) MX8_TRY(measure_product(&p, edge, dtypes[u], out, (enum mx8_profile_unit)u));
    }
    p.bytes = (bytes / 2 < largest_copy ? bytes / 2 : largest_copy) / 4096 * 4096;
    double seconds = 0;
    if (!(units >> MX8_PROFILE_MEMORY & 1) || !p.bytes) return MX8_OK;
    MX8_TRY(time_probe(&p, &seconds));
    if (seconds > 0) out->rate[MX8_PROFILE_MEMORY] = 2 * (double)p.bytes / seconds;
    return MX8_OK;
}
