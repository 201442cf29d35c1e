/* Whole reads, maps, atomic writes that fail half way, folders and listings. */
#include "scratch.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

static int count_files(void) {
    char **files;
    int64_t count;
    assert_ok(mx8i_list_files(scratch_folder, NULL, &files, &count));
    mx8i_release_list(files, count);
    return (int)count;
}

static void test_read_and_map(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097};
    char bytes[4097];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 7);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const char *path = scratch_write("read", bytes, sizes[i]);
        char *data;
        size_t size;
        assert_ok(mx8i_read_file(path, sizes[i], &data, &size));
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(data, bytes, size);
        assert_int_equal(data[size], 0);
        mx8i_release(data);
        if (sizes[i] > 0) {
            assert_status(mx8i_read_file(path, sizes[i] - 1, &data, &size), MX8_FORMAT_ERROR);
            assert_message(path);
            assert_null(data);
        }
        struct mx8_map map;
        assert_ok(mx8i_map_file(path, &map));
        assert_int_equal(map.size, sizes[i]);
        assert_int_equal(map.data == NULL, sizes[i] == 0);
        if (map.data) assert_memory_equal(map.data, bytes, map.size);
        mx8i_unmap_file(&map);
        assert_null(map.data);
    }
    char *data;
    size_t size; /* a file whose size stat does not know */
    assert_ok(mx8i_read_file("/proc/self/status", 1 << 20, &data, &size));
    assert_true(size > 100 && strstr(data, "VmRSS"));
    mx8i_release(data);
}

static void test_read_errors(void **state) {
    (void)state;
    char *data;
    size_t size;
    struct mx8_map map;
    assert_status(mx8i_read_file(scratch_path("absent"), 10, &data, &size), MX8_IO_ERROR);
    assert_message("absent");
    assert_message("No such file");
    assert_status(mx8i_map_file(scratch_path("absent"), &map), MX8_IO_ERROR);
    assert_status(mx8i_read_file(scratch_folder, 10, &data, &size), MX8_IO_ERROR);
    assert_message("is a folder");
    assert_status(mx8i_map_file(scratch_folder, &map), MX8_IO_ERROR);
    const char *path = scratch_write("memory", "abc", 3);
    mx8i_fail_allocation(1, 1);
    assert_status(mx8i_read_file(path, 10, &data, &size), MX8_OUT_OF_MEMORY);
    mx8i_fail_allocation(0, 0);
}

static void test_write_is_atomic(void **state) {
    (void)state;
    const char *path = scratch_write("target", "old", 3);
    int files = count_files();
    struct mx8_writer w;
    assert_ok(mx8i_open_writer(path, &w));
    assert_ok(mx8i_write(&w, "new ", 4));
    assert_ok(mx8i_write(&w, NULL, 0));
    assert_ok(mx8i_write(&w, "text", 4));
    assert_int_equal(w.written, 8);
    scratch_expect(path, "old", 3);
    assert_int_equal(count_files(), files + 1);
    assert_ok(mx8i_commit_writer(&w));
    scratch_expect(path, "new text", 8);
    assert_int_equal(count_files(), files);
    mx8i_abandon_writer(&w); /* after commit it does nothing */
    assert_status(mx8i_write(&w, "x", 1), MX8_INVALID_ARGUMENT);
    assert_status(mx8i_commit_writer(&w), MX8_INVALID_ARGUMENT);

    assert_ok(mx8i_open_writer(path, &w));
    assert_ok(mx8i_write(&w, "lost", 4));
    mx8i_abandon_writer(&w);
    mx8i_abandon_writer(&w);
    scratch_expect(path, "new text", 8);
    assert_int_equal(count_files(), files);
}

static void test_write_sizes(void **state) {
    (void)state; /* around the writer's buffer of 1 MiB, in one piece and in three */
    static const size_t sizes[] = {0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20};
    char *bytes = malloc(3 << 20);
    for (size_t i = 0; i < 3 << 20; i++) bytes[i] = (char)(i * 31 >> 3);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t pieces = 1; pieces <= 3; pieces += 2) {
            const char *path = scratch_path("sizes");
            struct mx8_writer w;
            assert_ok(mx8i_open_writer(path, &w));
            for (size_t p = 0, from = 0; p < pieces; p++) {
                size_t to = sizes[i] * (p + 1) / pieces;
                assert_ok(mx8i_write(&w, bytes + from, to - from));
                from = to;
            }
            assert_ok(mx8i_commit_writer(&w));
            scratch_expect(path, bytes, sizes[i]);
            assert_ok(mx8i_write_file(path, bytes + 1, sizes[i] / 2));
            scratch_expect(path, bytes + 1, sizes[i] / 2);
        }
    free(bytes);
    assert_ok(mx8i_write_text(scratch_path("sizes"), "a text"));
    scratch_expect(scratch_path("sizes"), "a text\n", 7);
}

static void test_write_errors(void **state) {
    (void)state;
    struct mx8_writer w;
    assert_status(mx8i_open_writer(scratch_path("no/such/folder"), &w), MX8_IO_ERROR);
    assert_message("no/such/folder");
    assert_status(mx8i_open_writer("/dev/null", &w), MX8_IO_ERROR);
    assert_status(mx8i_open_writer(scratch_folder, &w), MX8_IO_ERROR);
    assert_status(mx8i_write_file(scratch_path("no/such/folder"), "", 0), MX8_IO_ERROR);
    assert_status(mx8i_write_text(scratch_path("no/such/folder"), ""), MX8_IO_ERROR);
    mx8i_abandon_writer(&w);
    for (int n = 1; n <= 3; n++) {
        mx8i_fail_allocation(n, 0);
        enum mx8_status status = mx8i_open_writer(scratch_path("memory2"), &w);
        mx8i_fail_allocation(0, 0);
        assert_int_equal(status, MX8_OUT_OF_MEMORY);
    }
    assert_false(mx8i_is_file(scratch_path("memory2")));
}

/* A full disk, played by a limit on file sizes: the message names file and reason, the old file stays, no rest. */
static void test_full_disk(void **state) {
    (void)state;
    const char *path = scratch_write("full", "old", 3);
    int files = count_files();
    char *bytes = calloc(1, 3 << 20);
    struct rlimit before, small = {1 << 20, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    struct mx8_writer direct, late;
    assert_ok(mx8i_open_writer(path, &direct));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum mx8_status written = mx8i_write(&direct, bytes, 3 << 20);
    assert_message(path);
    assert_message("File too large");
    enum mx8_status whole = mx8i_write_file(path, bytes, 3 << 20);
    enum mx8_status opened = mx8i_open_writer(path, &late);
    enum mx8_status first = mx8i_write(&late, bytes, 1 << 20);
    enum mx8_status second = mx8i_write(&late, bytes, 10);
    enum mx8_status committed = mx8i_commit_writer(&late);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    assert_true(written == MX8_IO_ERROR && whole == MX8_IO_ERROR);
    assert_true(opened == MX8_OK && first == MX8_OK && second == MX8_OK);
    assert_int_equal(committed, MX8_IO_ERROR); /* the buffered rest fails at commit */
    assert_status(mx8i_commit_writer(&direct), MX8_INVALID_ARGUMENT);
    scratch_expect(path, "old", 3);
    assert_int_equal(count_files(), files);
    free(bytes);
}

static void test_folders_and_lists(void **state) {
    (void)state;
    assert_ok(mx8i_make_folders(scratch_path("tree/b//c/")));
    assert_ok(mx8i_make_folders(scratch_path("tree/b")));
    assert_true(mx8i_is_folder(scratch_path("tree/b/c")));
    scratch_write("tree/b/c/2.bin", "", 0);
    scratch_write("tree/b/1.bin", "", 0);
    scratch_write("tree/a.bin", "", 0);
    scratch_write("tree/B.bin", "", 0);
    scratch_write("tree/readme", "", 0);
    assert_int_equal(symlink("..", scratch_path("tree/b/up")), 0);          /* to a folder: passed over */
    assert_int_equal(symlink("../a.bin", scratch_path("tree/b/z.bin")), 0); /* to a file: followed */
    assert_int_equal(symlink("nowhere", scratch_path("tree/b/x.bin")), 0);
    static const char *const expected[] = {
        "tree/B.bin", "tree/a.bin", "tree/b/1.bin", "tree/b/c/2.bin", "tree/b/z.bin"};
    char **files;
    int64_t count;
    assert_ok(mx8i_list_files(scratch_path("tree"), ".bin", &files, &count));
    assert_int_equal(count, 5);
    for (int i = 0; i < 5; i++) assert_string_equal(files[i], scratch_path(expected[i]));
    mx8i_release_list(files, count);
    assert_ok(mx8i_list_files(scratch_path("tree"), NULL, &files, &count));
    assert_int_equal(count, 6);
    mx8i_release_list(files, count);
    assert_ok(mx8i_list_files(scratch_path("tree/readme"), ".bin", &files, &count)); /* named itself: taken */
    assert_int_equal(count, 1);
    mx8i_release_list(files, count);
    assert_ok(mx8i_list_files(scratch_path("tree/b/c"), ".none", &files, &count));
    assert_int_equal(count, 0);
    mx8i_release_list(files, count);
    assert_status(mx8i_list_files(scratch_path("absent"), NULL, &files, &count), MX8_IO_ERROR);
    assert_status(mx8i_make_folders(scratch_path("tree/readme/x")), MX8_IO_ERROR);
    assert_message("tree/readme");
    assert_true(mx8i_is_file(scratch_path("tree/readme")) && !mx8i_is_file(scratch_path("tree")));
    for (int n = 1; n <= 12; n++) {
        mx8i_fail_allocation(n, 0);
        enum mx8_status status = mx8i_list_files(scratch_path("tree"), NULL, &files, &count);
        int asked = (int)mx8i_count_allocations();
        mx8i_fail_allocation(0, 0);
        assert_int_equal(status, asked < n ? MX8_OK : MX8_OUT_OF_MEMORY);
        if (status == MX8_OK) mx8i_release_list(files, count);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_and_map),
        cmocka_unit_test(test_read_errors),
        cmocka_unit_test(test_write_is_atomic),
        cmocka_unit_test(test_write_sizes),
        cmocka_unit_test(test_write_errors),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_folders_and_lists),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
