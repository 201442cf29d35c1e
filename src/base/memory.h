/* Allocation with a status. Every heap allocation below cli goes through mx8i_allocate, so that tests can make the
 * N-th one fail (mx8i_fail_allocation). */
#ifndef MX8_BASE_MEMORY_H
#define MX8_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include "mx8/status.h"

/* Zeroed memory; NULL after recording OUT_OF_MEMORY with the size and `what`. Free with mx8i_release. size 0 gives a
 * unique pointer. */
void *mx8i_allocate(size_t size, const char *what);
/* realloc; the old block stays valid when it fails. New bytes are not zeroed. */
void *mx8i_reallocate(void *pointer, size_t size, const char *what);
/* Aligned, not zeroed, free with mx8i_release too. alignment is a power of two >= 16. */
void *mx8i_allocate_aligned(size_t size, size_t alignment, const char *what);
void mx8i_release(void *pointer);
char *mx8i_copy_text(const char *text);              /* NULL when out of memory */
char *mx8i_format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Test hook: the n-th allocation from now on fails (1 is the next), and all after it when `forever`; 0 turns it off.
 * mx8i_count_allocations: how many were asked for since the last call of this hook. */
void mx8i_fail_allocation(int64_t n, int forever);
int64_t mx8i_count_allocations(void);

/* A linear layout: reserve() hands out 256-byte aligned offsets of one future allocation. */
struct mx8_plan { size_t size; };
size_t mx8i_reserve(struct mx8_plan *plan, size_t bytes);

#endif
