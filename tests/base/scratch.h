/* A folder for one test program: group setup and teardown for cmocka. The folder is $TMPDIR/mx8-test-XXXXXX. */
#ifndef MX8_TEST_SCRATCH_H
#define MX8_TEST_SCRATCH_H
#include <ftw.h>
#include <unistd.h>
#include "test.h"

static char scratch_folder[256];

static inline int scratch_make(void **state) {
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(scratch_folder, sizeof scratch_folder, "%s/mx8-test-XXXXXX", parent ? parent : "/tmp");
    return mkdtemp(scratch_folder) ? 0 : -1;
}

static inline int scratch_unlink(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info, (void)kind, (void)place;
    return remove(path);
}

static inline int scratch_remove(void **state) {
    (void)state;
    return nftw(scratch_folder, scratch_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

/* Path below the folder, valid until the fourth call after this one. */
static inline const char *scratch_path(const char *name) {
    static char paths[4][512];
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_folder, name);
    return path;
}

static inline const char *scratch_write(const char *name, const void *data, size_t size) {
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (size > 0) assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    return path;
}

static inline void scratch_expect(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *got = calloc(1, size + 1);
    assert_int_equal(fread(got, 1, size + 1, file), size);
    assert_memory_equal(got, data, size);
    free(got);
    fclose(file);
}
#endif
