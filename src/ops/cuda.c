/* The CUDA backend: a shared object that is looked for when a context asks for it, so that one program runs with and
 * without a GPU. Looked for at $MX8_CUDA_LIBRARY, beside this library or program, and where the loader looks. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/backend.h"
#include "ops/device.h"

static const char library_name[] = "libmx8_cuda.so";
static const struct mx8_kernels
    *opened_table;                           /* the table of the last device opened: all of a build's bound the same */
static void (*close_backend)(void *backend); /* the library's, the same for every device */

const struct mx8_kernels *mx8i_get_cuda_table(void) {
    return opened_table;
}

/* Folder of the object this code is in, with a slash; "" when unknown. */
static void find_own_folder(char *folder, size_t size) {
    Dl_info info;
    folder[0] = 0;
    if (!dladdr((const void *)library_name, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    size_t length = slash ? (size_t)(slash - info.dli_fname) + 1 : 0;
    if (length == 0 || length >= size) return;
    memcpy(folder, info.dli_fname, length);
    folder[length] = 0;
}

static void *open_library(char *why, size_t why_size) {
    char path[1024], folder[900];
    const char *named = getenv("MX8_CUDA_LIBRARY");
    find_own_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s%s", folder, library_name);
    const char *places[] = {named && named[0] ? named : path, library_name};
    for (int i = 0; i < (named && named[0] ? 1 : 2); i++) {
        void *library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
        const char *message = dlerror();
        if (i == 0 || strstr(why, "No such file")) snprintf(why, why_size, "%s", message ? message : "dlopen failed");
    }
    return NULL;
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
    void *library = open_library(why, sizeof why); /* stays open: kernels may be running when a context goes */
    if (!library)
        return MX8_FAIL(
            MX8_UNSUPPORTED, "mx8_create_context: device is 1 (CUDA), but the CUDA backend does not load: %s", why);
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
