/* The CUDA backend as a test sees it: opened by path, skipped by name where there is none, and device buffers whose
 * surroundings are checked.
 *
 * Buffers come from one arena, each between two guards of CUDA_GUARD bytes; fetch_buffer fails the test when a kernel
 * wrote outside. rewind_buffers gives all of them back, at the start of a case. */
#ifndef MX8_CUDA_TEST_H
#define MX8_CUDA_TEST_H

#include "test.h"
#include <dlfcn.h>
#include "base/error.h"
#include "kernels/cuda/backend.h"

#define CUDA_GUARD       1024
#define CUDA_POISON      0xFF /* NaN in every float format, NaN as a scale, -1 as an index */
#define CUDA_ARENA_BYTES ((size_t)1 << 30)
#define COUNT(array)     ((int)(sizeof(array) / sizeof(array)[0]))

static struct {
    void *library, *backend;
    void (*close)(void *backend);
    struct mx8_cuda_info info;
    struct mx8_exec exec; /* exec.k is NULL when the tests cannot run; `why` says so */
    uint8_t *arena;
    size_t used;
    char why[256];
} cuda;

static inline enum mx8_status open_backend(void) {
    static const struct mx8_cuda_host host = {mx8i_fail};
    const char *path = getenv("MX8_CUDA_LIBRARY");
    cuda.library = dlopen(path ? path : "libmx8_cuda.so", RTLD_NOW | RTLD_LOCAL);
    if (!cuda.library) return MX8_FAIL(MX8_UNSUPPORTED, "%s", dlerror());
    mx8_open_cuda_function open;
    void *symbol = dlsym(cuda.library, "mx8_open_cuda");
    if (!symbol) return MX8_FAIL(MX8_UNSUPPORTED, "%s", dlerror());
    memcpy(&open, &symbol, sizeof open); /* ISO C has no cast from an object pointer to a function pointer */
    MX8_TRY(open(&host, 0, &cuda.exec.k, &cuda.backend, &cuda.info, &cuda.close));
    cuda.exec.threads = 1;
    cuda.exec.backend = cuda.backend;
    cuda.exec.scratch_bytes = cuda.exec.k->scratch_size(1);
    MX8_TRY(cuda.exec.k->allocate(&cuda.exec, cuda.exec.scratch_bytes, &cuda.exec.scratch));
    void *arena;
    MX8_TRY(cuda.exec.k->allocate(&cuda.exec, CUDA_ARENA_BYTES, &arena));
    cuda.arena = arena;
    return MX8_OK;
}

/* Group setup. A machine without a GPU is no failure. */
static inline int open_cuda(void **state) {
    (void)state;
    if (open_backend() == MX8_OK) return 0;
    snprintf(cuda.why, sizeof cuda.why, "%s", mx8_get_last_error());
    cuda.exec.k = NULL;
    return 0;
}

static inline int close_cuda(void **state) {
    (void)state;
    if (!cuda.exec.k) return 0;
    cuda.exec.k->release(&cuda.exec, cuda.arena);
    cuda.exec.k->release(&cuda.exec, cuda.exec.scratch);
    cuda.close(cuda.backend);
    return 0; /* the library stays open: unloading one that holds a CUDA context gains nothing */
}

/* Test setup: begins with an empty arena, or skips. */
static inline int begin_cuda_test(void **state) {
    (void)state;
    cuda.used = 0;
    return 0;
}

#define NEEDS_CUDA()                                                                                                   \
    do {                                                                                                               \
        if (!cuda.exec.k) {                                                                                            \
            print_message("skipped, no CUDA: %s\n", cuda.why);                                                         \
            skip();                                                                                                    \
        }                                                                                                              \
    } while (0)

/* MX8_TEST_STRIDE=N: only every N-th case of the long tables runs, for tools that make a kernel a hundred times slower. */
static inline int is_left_out(void) {
    static long count;
    const char *text = getenv("MX8_TEST_STRIDE");
    const long stride = text ? strtol(text, NULL, 10) : 1;
    return stride > 1 && count++ % stride != 0;
}

static inline void rewind_buffers(void) {
    cuda.used = 0;
}

/* `size` bytes of value `byte`, at an address that is `shift` past a multiple of 1024. */
static inline void *make_shifted_buffer(size_t size, int byte, size_t shift) {
    size_t whole = (size + shift + CUDA_GUARD - 1) / CUDA_GUARD * CUDA_GUARD + 2 * (size_t)CUDA_GUARD;
    if (cuda.used + whole > CUDA_ARENA_BYTES) fail_msg("the device arena is too small for %zu bytes more", size);
    uint8_t *start = cuda.arena + cuda.used;
    cuda.used += whole;
    assert_ok(cuda.exec.k->fill(&cuda.exec, start, CUDA_POISON, whole));
    uint8_t *buffer = start + CUDA_GUARD + shift;
    if (size > 0 && byte != CUDA_POISON) assert_ok(cuda.exec.k->fill(&cuda.exec, buffer, byte, size));
    return buffer;
}

static inline void *make_buffer(size_t size, int byte) {
    return make_shifted_buffer(size, byte, 0);
}

/* A device copy of host bytes; NULL stays NULL. */
static inline void *copy_to_device(const void *host, size_t size) {
    if (!host) return NULL;
    void *buffer = make_buffer(size, CUDA_POISON);
    if (size > 0) assert_ok(cuda.exec.k->upload(&cuda.exec, buffer, host, size));
    return buffer;
}

/* Host copy of a buffer, to be freed; fails when a byte of a guard changed. */
static inline void *fetch_buffer(const void *buffer, size_t size, const char *what) {
    const uint8_t *start = (const uint8_t *)buffer - CUDA_GUARD;
    uint8_t *host = malloc(size + 2 * CUDA_GUARD);
    assert_non_null(host);
    assert_ok(cuda.exec.k->download(&cuda.exec, host, start, size + 2 * CUDA_GUARD));
    for (size_t i = 0; i < CUDA_GUARD; i++) {
        if (host[i] != CUDA_POISON) fail_msg("%s: written %zu bytes before its start", what, CUDA_GUARD - i);
        if (host[CUDA_GUARD + size + i] != CUDA_POISON) fail_msg("%s: written %zu bytes past its end", what, i + 1);
    }
    memmove(host, host + CUDA_GUARD, size);
    return host;
}

static inline void expect_same_bytes(
    const char *what, const char *which, const void *got, const void *want, size_t size) {
    const uint8_t *a = got, *b = want;
    if (size == 0 || memcmp(a, b, size) == 0) return;
    size_t first = 0, wrong = 0;
    while (a[first] == b[first]) first++;
    for (size_t i = 0; i < size; i++) wrong += a[i] != b[i];
    fail_msg("%s: %s: 0x%02X at byte %zu, expected 0x%02X (%zu of %zu bytes differ)", what, which, a[first], first,
        b[first], wrong, size);
}

/* Compares a device buffer with host bytes. */
static inline void expect_buffer(
    const char *what, const char *which, const void *buffer, const void *want, size_t size) {
    void *got = fetch_buffer(buffer, size, which);
    expect_same_bytes(what, which, got, want, size);
    free(got);
}

static inline void *make_host(size_t size, int byte) {
    void *bytes = malloc(size > 0 ? size : 1);
    assert_non_null(bytes);
    memset(bytes, byte, size);
    return bytes;
}

/* Numerical Recipes' generator: tests need numbers that differ, not good ones. */
static inline uint32_t draw(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

#define cuda_unit_test(test) cmocka_unit_test_setup(test, begin_cuda_test)

#endif
