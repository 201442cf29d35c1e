/* Contexts: choosing kernels, and the scratch memory that they share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/error.h"
#include "base/memory.h"
#include "ops/device.h"

enum { SCRATCH_ALIGNMENT = 4096, MAX_THREADS = 4096 };

static void *allocate_plainly(void *user, size_t size, size_t alignment) {
    (void)user;
    return mx8i_allocate_aligned(size, alignment, "a context's scratch");
}

static void release_plainly(void *user, void *pointer) {
    (void)user;
    mx8i_release(pointer);
}

/* OMP_NUM_THREADS may be a list, one number per nesting level; the first counts. */
static int32_t find_threads(int32_t asked) {
    if (asked > 0) return asked;
    const char *text = getenv("OMP_NUM_THREADS");
    long number = text ? strtol(text, NULL, 10) : 0;
    if (number >= 1 && number <= MAX_THREADS) return (int32_t)number;
    int32_t cores = mx8i_get_cpu().cores;
    return cores > 1 ? cores : 1;
}

static enum mx8_status read_options(const struct mx8_context_options *options, struct mx8_context_options *out) {
    memset(out, 0, sizeof *out);
    if (!options) return MX8_OK;
    size_t size = options->size ? options->size : sizeof *out;
    if (size > sizeof *out)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "mx8_create_context: options.size is %zu, expected at most %zu; was the caller built for a newer version?",
            size, sizeof *out);
    memcpy(out, options, size);
    if (out->threads < 0 || out->threads > MAX_THREADS)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8_create_context: threads is %d, expected 0 to %d", (int)out->threads,
            MAX_THREADS);
    if (!out->allocate != !out->release)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8_create_context: %s is given without %s",
            out->allocate ? "allocate" : "release", out->allocate ? "release" : "allocate");
    if (out->device != 0 && out->device != 1)
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "mx8_create_context: device is %d, expected 0 (CPU) or 1 (CUDA)", (int)out->device);
    return MX8_OK;
}

static enum mx8_status open_cpu(const struct mx8_context_options *o, struct mx8_context *ctx) {
    ctx->exec.ordinal = -1;
    MX8_TRY(mx8i_find_cpu_kernels(o->isa, &ctx->exec.k, ctx->backend_reason, sizeof ctx->backend_reason));
    snprintf(ctx->backend_name, sizeof ctx->backend_name, "%s", ctx->exec.k->name);
    ctx->exec.scratch_bytes = ctx->exec.k->scratch_size(ctx->exec.threads);
    if (ctx->exec.scratch_bytes == 0) return MX8_OK;
    ctx->exec.scratch = ctx->allocate(ctx->user, ctx->exec.scratch_bytes, SCRATCH_ALIGNMENT);
    if (ctx->exec.scratch) return MX8_OK;
    return MX8_FAIL(MX8_OUT_OF_MEMORY, "mx8_create_context: out of memory: %zu bytes of scratch for %d threads",
        ctx->exec.scratch_bytes, (int)ctx->exec.threads);
}

enum mx8_status mx8_create_context(const struct mx8_context_options *options, struct mx8_context **out) {
    struct mx8_context_options o;
    if (!out) return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8_create_context: out is NULL");
    *out = NULL;
    MX8_TRY(read_options(options, &o));
    struct mx8_context *ctx = mx8i_allocate(sizeof *ctx, "a context");
    if (!ctx) return MX8_OUT_OF_MEMORY;
    ctx->allocate = o.allocate ? o.allocate : allocate_plainly;
    ctx->release = o.release ? o.release : release_plainly;
    ctx->user = o.user;
    ctx->exec.threads = find_threads(o.threads);
    ctx->exec.stream = o.stream;
    ctx->exec.fast_products = &ctx->fast_products;
    enum mx8_status status = o.device == 1 ? mx8i_open_cuda(&o, ctx) : open_cpu(&o, ctx);
    if (status != MX8_OK) {
        mx8i_release(ctx);
        return status;
    }
    *out = ctx;
    return MX8_OK;
}

void mx8_destroy_context(struct mx8_context *ctx) {
    if (!ctx) return;
    ctx->exec.k->synchronize(&ctx->exec);
    if (ctx->exec.ordinal >= 0)
        mx8i_close_cuda(ctx);
    else if (ctx->exec.scratch)
        ctx->release(ctx->user, ctx->exec.scratch);
    mx8i_release(ctx);
}

enum mx8_status mx8_set_stream(struct mx8_context *ctx, void *stream) {
    if (!ctx) return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8_set_stream: the context is NULL");
    ctx->exec.stream = stream;
    return MX8_OK;
}

enum mx8_status mx8_synchronize_context(struct mx8_context *ctx) {
    if (!ctx) return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8_synchronize_context: the context is NULL");
    return ctx->exec.k->synchronize(&ctx->exec);
}

const char *mx8_get_backend_name(const struct mx8_context *ctx) {
    return ctx->backend_name;
}
const char *mx8_get_backend_reason(const struct mx8_context *ctx) {
    return ctx->backend_reason;
}
int32_t mx8_get_thread_count(const struct mx8_context *ctx) {
    return ctx->exec.threads;
}
void mx8_count_products(const struct mx8_context *ctx, int64_t *all, int64_t *fast) {
    *all = ctx->products;
    *fast = ctx->fast_products;
}
