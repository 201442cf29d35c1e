/* A context: one device, its kernels, and the scratch memory they share. */
#ifndef MX8_CONTEXT_H
#define MX8_CONTEXT_H

#include "mx8/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mx8_context; /* opaque */

/* Zero means the default in every field; `size` is sizeof of the caller's struct (0 is read as today's size). */
struct mx8_context_options {
    uint32_t size;
    int32_t device;       /* 0: CPU; 1: CUDA */
    int32_t ordinal;      /* which CUDA device */
    int32_t threads;      /* CPU threads; 0: OMP_NUM_THREADS, else the cores this process may run on */
    void *stream;         /* CUDA stream to start with; NULL is the default stream */
    const char *isa;      /* "scalar", "avx2", "avx512"; NULL: environment MX8_ISA, else the best the CPU has */
    void *(*allocate)(void *user, size_t size, size_t alignment); /* NULL: the C library */
    void (*release)(void *user, void *pointer);
    void *user;
};

/* Makes a context. All scratch memory is allocated here; operators allocate nothing. Errors: INVALID_ARGUMENT (an ISA
 * that the CPU lacks is named with what it has), OUT_OF_MEMORY, UNSUPPORTED (no such device in this build or machine).
 * A context may be used by one thread at a time; different contexts are independent. */
MX8_API enum mx8_status mx8_create_context(const struct mx8_context_options *options, struct mx8_context **out);
/* Accepts NULL. Waits for work on the context's stream. */
MX8_API void mx8_destroy_context(struct mx8_context *ctx);

/* CUDA: later calls run on `stream` (a cudaStream_t). Ignored on the CPU. */
MX8_API enum mx8_status mx8_set_stream(struct mx8_context *ctx, void *stream);
/* CUDA: waits for the stream. CPU: returns at once. */
MX8_API enum mx8_status mx8_synchronize_context(struct mx8_context *ctx);

/* Name of the kernels in use ("cpu-avx2") and why they were chosen, one line. Borrowed for the context's life. */
MX8_API const char *mx8_get_backend_name(const struct mx8_context *ctx);
MX8_API const char *mx8_get_backend_reason(const struct mx8_context *ctx);
MX8_API int32_t mx8_get_thread_count(const struct mx8_context *ctx);

/* How many MXFP8 products operators have asked for in this context, and how many of them ran on FP8 tensor cores; the
 * others took the exact path, as all do on a CPU. For finding out why a job is slow. */
MX8_API void mx8_count_products(const struct mx8_context *ctx, int64_t *all, int64_t *fast);

#ifdef __cplusplus
}
#endif
#endif
