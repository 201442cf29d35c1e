/* What the benchmarks of the CUDA kernels begin with: the kernel table of libmx8_cuda.so, opened by name, a clock, and
 * the end of the program where something fails. A program says its own name first: static const char program[]. */
#ifndef MX8_BENCH_CUDA_OPEN_H
#define MX8_BENCH_CUDA_OPEN_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/cuda/backend.h"

static struct mx8_exec exec;

static enum mx8_status report_failure(enum mx8_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return status;
}

static void require(enum mx8_status status, const char *what) {
    if (status == MX8_OK) return;
    fprintf(stderr, "%s: %s failed with status %d\n", program, what, (int)status);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *reserve(size_t bytes) {
    void *p;
    require(exec.k->allocate(&exec, bytes, &p), "allocate");
    return p;
}

/* Device 0 of the library, with its scratch, as `exec`; says what the device is. The backend is exec.backend, which
 * `close` takes. */
static void open_library(const char *path, void (**close)(void *)) {
    static const struct mx8_cuda_host host = {report_failure};
    void *backend, *library = dlopen(path, RTLD_NOW), *symbol = library ? dlsym(library, "mx8_open_cuda") : NULL;
    mx8_open_cuda_function open;
    struct mx8_cuda_info info = {0};
    if (!symbol) {
        fprintf(stderr, "%s: %s\n", program, dlerror());
        exit(1);
    }
    memcpy(&open, &symbol, sizeof open);
    require(open(&host, 0, &exec.k, &backend, &info, close), "mx8_open_cuda");
    exec.threads = 1;
    exec.backend = backend;
    exec.scratch_bytes = exec.k->scratch_size(1);
    exec.scratch = reserve(exec.scratch_bytes);
    printf("%s\n", info.reason);
}

#endif
