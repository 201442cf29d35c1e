#include "train/peak.h"
#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

enum { EDGE = 256 };                        /* of the product that is timed: in cache, as a ceiling has to be */
static const double measure_seconds = 0.06; /* the best call of as many as fit, two at least */

/* The first row whose name is part of the device's: GH200 stands before H200. */
static const struct {
    const char *name;
    double flops; /* dense bf16 */
} gpus[] = {
    {"GB200", 2500e12},
    {"B200", 2250e12},
    {"GH200", 989e12},
    {"H200 NVL", 835e12},
    {"H200", 989e12},
    {"H100 NVL", 835e12},
    {"H100 PCIe", 756e12},
    {"H100", 989e12},
    {"A100", 312e12},
    {"L40S", 362e12},
    {"L40", 181e12},
};

double mx8i_find_gpu_peak(const char *name) {
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
        if (strstr(name, gpus[i].name)) return gpus[i].flops;
    return 0;
}

static enum mx8_status measure_product(const struct mx8_exec *x, struct mx8_gemm_job *j, double *flops) {
    const double work = 2.0 * EDGE * EDGE * EDGE, start = mx8i_get_seconds();
    double best = HUGE_VAL, now = start;
    for (int calls = 0; calls < 2 || now - start < measure_seconds; calls++) {
        const double before = now;
        MX8_TRY(x->k->gemm(x, j));
        now = mx8i_get_seconds();
        best = fmin(best, now - before);
    }
    *flops = best > 0 ? work / best : 0;
    return MX8_OK;
}

static enum mx8_status measure_host(const struct mx8_exec *x, int32_t dtype, double *flops) {
    const size_t bytes = (size_t)EDGE * EDGE * mx8_get_dtype_size(dtype);
    uint8_t *memory = mx8i_allocate(3 * bytes, "measuring the peak of products"); /* zeros */
    if (!memory) return MX8_OUT_OF_MEMORY;
    struct mx8_gemm_job j = {.mode = MX8_GEMM_DENSE, .M = EDGE, .N = EDGE, .K = EDGE, .c_dtype = dtype, .c_ls = EDGE};
    j.a = (struct mx8_matrix){.data = memory, .dtype = dtype, .ls = EDGE, .ks = 1};
    j.b = (struct mx8_matrix){.data = memory + bytes, .dtype = dtype, .ls = EDGE, .ks = 1};
    j.c = memory + 2 * bytes;
    enum mx8_status status = measure_product(x, &j, flops);
    mx8i_release(memory);
    return status;
}

enum mx8_status mx8i_find_peak(struct mx8_context *ctx, int32_t dtype, double *flops) {
    *flops = 0;
    if (ctx->exec.ordinal < 0) return measure_host(&ctx->exec, dtype, flops);
    *flops = mx8i_find_gpu_peak(ctx->backend_reason); /* begins with the device's name */
    return MX8_OK;
}
