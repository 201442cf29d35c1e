/* Memory that ends at a page nobody may touch: a read or write behind a buffer ends the test at once, on every build.
 * What lies before the buffer in its pages is poison (0xFF: NaN as f32, bf16 and scale byte), checked when it is given
 * back. Under AddressSanitizer it is plain malloc, whose red zones see more. */
#ifndef MX8_TESTS_GUARD_H
#define MX8_TESTS_GUARD_H

#include <sys/mman.h>
#include <unistd.h>
#include "test.h"

/* Buffers with an alignment of their own have up to alignment - 1 bytes behind them; 1 leaves none. */
static inline void *guard_allocate(size_t size, size_t alignment) {
#ifdef __SANITIZE_ADDRESS__
    void *data = NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    assert_int_equal(posix_memalign(&data, alignment, size ? size : 1), 0);
    return data;
#else
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + alignment - 1) / alignment * alignment;
    size_t bytes = (room + sizeof(size_t) + page - 1) / page * page; /* the length stands in front */
    char *start = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(start != MAP_FAILED);
    assert_int_equal(mprotect(start + bytes, page, PROT_NONE), 0);
    memset(start, 0xFF, bytes);
    memcpy(start, &bytes, sizeof bytes);
    return start + bytes - room;
#endif
}

/* size: as it was asked for. */
static inline void guard_release(void *data, size_t size, size_t alignment) {
#ifdef __SANITIZE_ADDRESS__
    (void)size, (void)alignment;
    free(data);
#else
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + alignment - 1) / alignment * alignment, bytes;
    size_t expected = (room + sizeof(size_t) + page - 1) / page * page;
    char *end = (char *)data + room, *start = end - expected;
    memcpy(&bytes, start, sizeof bytes);
    assert_int_equal(bytes, expected);
    for (const char *p = start + sizeof bytes; p < (char *)data; p++)
        if ((unsigned char)*p != 0xFF) fail_msg("byte %td before a buffer was written", (char *)data - p);
    for (const char *p = (char *)data + size; p < end; p++)
        if ((unsigned char)*p != 0xFF) fail_msg("byte %td behind a buffer was written", p - (char *)data);
    munmap(start, bytes + page);
#endif
}

#endif
