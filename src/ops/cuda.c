/* The CUDA backend: a shared object that is looked for when a context asks for it, so that one program runs with and
 * without a GPU. Looked for at $MX8_CUDA_LIBRARY, beside this library or program, and where the loader looks. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/library.h"
#include "kernels/cuda/backend.h"
#include "ops/device.h"

static const char library_name[] = "libmx8_cuda.so";
static const struct mx8_kernels
    *opened_table;                           /* the table of the last device opened: all of a build's bound the same */
static void (*close_backend)(void *backend); /* the library's, the same for every device */

const struct mx8_kernels *mx8i_get_cuda_table(void) {
    return opened_table;
}

static enum mx8_status allocate_scratch(struct mx8_context *ctx) {
    struct mx8_exec *x = &ctx->exec;
    x->scratch_bytes = x->k->scratch_size(x->threads);
    enum mx8_status status = x->k->allocate(x, x->scratch_bytes, &x->scratch);
    if (status == MX8_OK) return MX8_OK;
    close_backend(x->backend);
    return status;
}

void mx8i_close_cuda(struct mx8_context *ctx) {
    ctx->exec.k->release(&ctx->exec, ctx->exec.scratch);
    close_backend(ctx->exec.backend);
}

enum mx8_status mx8i_open_cuda(const struct mx8_context_options *options, struct mx8_context *ctx) {
    static const struct mx8_cuda_host host = {mx8i_fail};
    char why[512] = "";
    struct mx8_cuda_info info;
    void *library = mx8i_open_library(library_name, "MX8_CUDA_LIBRARY", 0, why,
        sizeof why); /* stays open: kernels may be running when a context goes */
    if (!library)
        return MX8_FAIL(MX8_UNSUPPORTED,
            "mx8_create_context: device is 1 (CUDA), but the CUDA backend does not load (-DMX8_CUDA=ON builds it): %s",
            why);
    mx8_open_cuda_function open;
    *(void **)&open = dlsym(library, "mx8_open_cuda");
    if (!open)
        return MX8_FAIL(MX8_LIBRARY_ERROR, "mx8_create_context: %s has no mx8_open_cuda: %s", library_name, dlerror());
    memset(&info, 0, sizeof info);
    struct mx8_exec *x = &ctx->exec;
    MX8_TRY(open(&host, options->ordinal, &x->k, &x->backend, &info, &close_backend));
    x->ordinal = options->ordinal;
    opened_table = x->k;
    snprintf(ctx->backend_name, sizeof ctx->backend_name, "%s", x->k->name);
    snprintf(ctx->backend_reason, sizeof ctx->backend_reason, "%s", info.reason);
    return allocate_scratch(ctx);
}
