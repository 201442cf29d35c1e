/* Allocation with a message, a hook that makes it fail, and linear layouts. */
#include "base/memory.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

/* The test hook. Allocations may come from any thread. */
static _Atomic int64_t asked;   /* since the hook was last set */
static _Atomic int64_t fail_at; /* the allocation that fails; 0: none */
static _Atomic int fail_later;  /* all after it, too */

static int is_refused(void) {
    int64_t n = atomic_fetch_add(&asked, 1) + 1, at = atomic_load(&fail_at);
    return at != 0 && (n == at || (n > at && atomic_load(&fail_later)));
}

void mx8i_fail_allocation(int64_t n, int forever) {
    atomic_store(&asked, 0);
    atomic_store(&fail_later, forever);
    atomic_store(&fail_at, n);
}

int64_t mx8i_count_allocations(void) {
    return atomic_load(&asked);
}

static void *report(void *pointer, size_t size, const char *what) {
    if (!pointer) MX8_FAIL(MX8_OUT_OF_MEMORY, "out of memory: %zu bytes for %s", size, what);
    return pointer;
}

void *mx8i_allocate(size_t size, const char *what) {
    return report(is_refused() ? NULL : calloc(1, size ? size : 1), size, what);
}

void *mx8i_reallocate(void *pointer, size_t size, const char *what) {
    return report(is_refused() ? NULL : realloc(pointer, size ? size : 1), size, what);
}

/* Large blocks ask the system for large pages: matrices are read along columns too, and a small page for every row or
 * column is more than the processor keeps track of. Only whole large pages are asked for, so that no memory is held
 * beyond the block. */
static const size_t large_page = (size_t)2 << 20, least_large = (size_t)4 << 20;

static void advise_large(void *pointer, size_t size) {
#ifdef MADV_HUGEPAGE
    if (pointer && size >= least_large) (void)madvise(pointer, size / large_page * large_page, MADV_HUGEPAGE);
#else
    (void)pointer, (void)size;
#endif
}

void *mx8i_allocate_aligned(size_t size, size_t alignment, const char *what) {
    void *pointer = NULL;
    if (size >= least_large && alignment < large_page) alignment = large_page;
    /* Asked for as much, AddressSanitizer's posix_memalign ends the program. */
    if (size > PTRDIFF_MAX || is_refused() || posix_memalign(&pointer, alignment, size ? size : 1) != 0) pointer = NULL;
    advise_large(pointer, size);
    return report(pointer, size, what);
}

void mx8i_release(void *pointer) {
    free(pointer);
}

char *mx8i_copy_text(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = mx8i_allocate(size, "a text");
    return copy ? memcpy(copy, text, size) : NULL;
}

char *mx8i_format_text(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) return NULL;
    char *text = mx8i_allocate((size_t)length + 1, "a text");
    if (!text) return NULL;
    va_start(arguments, format);
    vsnprintf(text, (size_t)length + 1, format, arguments);
    va_end(arguments);
    return text;
}

/* A sum that overflows sticks at SIZE_MAX, which no allocation grants: the caller sees OUT_OF_MEMORY, not a small
 * block. */
size_t mx8i_reserve(struct mx8_plan *plan, size_t bytes) {
    size_t gap = -plan->size & 255, room = SIZE_MAX - plan->size;
    if (gap > room || bytes > room - gap) return plan->size = SIZE_MAX;
    size_t offset = plan->size + gap;
    plan->size = offset + bytes;
    return offset;
}
