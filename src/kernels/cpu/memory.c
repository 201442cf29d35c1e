/* Device memory of a device that is the host. Copies are shared out to the threads once they are long enough to be
 * bound by one core's bandwidth rather than by the time it takes to wake the others. */
#include <string.h>
#include "base/clock.h"
#include "base/memory.h"
#include "kernels/cpu/cpu_kernels.h"

#define MX8_COPY_PIECE ((size_t)1 << 20) /* bytes */

enum mx8_status mx8i_cpu_allocate(const struct mx8_exec *x, size_t bytes, void **out) {
    (void)x;
    *out = mx8i_allocate_aligned(bytes, 4096, "kernel memory");
    return *out ? MX8_OK : MX8_OUT_OF_MEMORY;
}

void mx8i_cpu_release(const struct mx8_exec *x, void *p) {
    (void)x;
    mx8i_release(p);
}

int64_t mx8i_cpu_get_free_memory(const struct mx8_exec *x) {
    (void)x;
    return mx8i_get_available_memory();
}

static size_t piece_bytes(size_t start, size_t bytes) {
    return bytes - start < MX8_COPY_PIECE ? bytes - start : MX8_COPY_PIECE;
}

enum mx8_status mx8i_cpu_copy(const struct mx8_exec *x, void *dst, const void *src, size_t bytes) {
    size_t pieces = (bytes + MX8_COPY_PIECE - 1) / MX8_COPY_PIECE;
#pragma omp parallel for num_threads(x->threads) schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        size_t start = i * MX8_COPY_PIECE;
        memcpy((char *)dst + start, (const char *)src + start, piece_bytes(start, bytes));
    }
    return MX8_OK;
}

enum mx8_status mx8i_cpu_copy_lines(const struct mx8_exec *x, void *dst, size_t dst_stride, const void *src,
    size_t src_stride, int64_t lines, size_t bytes) {
#pragma omp parallel for num_threads(x->threads) schedule(static) if ((size_t)lines * bytes > MX8_COPY_PIECE)
    for (int64_t i = 0; i < lines; i++) {
        memcpy((char *)dst + (size_t)i * dst_stride, (const char *)src + (size_t)i * src_stride, bytes);
    }
    return MX8_OK;
}

enum mx8_status mx8i_cpu_fill(const struct mx8_exec *x, void *dst, int32_t byte, size_t bytes) {
    size_t pieces = (bytes + MX8_COPY_PIECE - 1) / MX8_COPY_PIECE;
#pragma omp parallel for num_threads(x->threads) schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        size_t start = i * MX8_COPY_PIECE;
        memset((char *)dst + start, byte, piece_bytes(start, bytes));
    }
    return MX8_OK;
}

enum mx8_status mx8i_cpu_synchronize(const struct mx8_exec *x) {
    (void)x;
    return MX8_OK;
}
