/* Folders: listing, removing, renaming, locking. */
#include "test.h"
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/folder.h"

static char root[] = "/tmp/mx8-folder-XXXXXX";

static int make_root(void **state) {
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    return mx8i_remove_tree(root) != MX8_OK;
}

static const char *in_root(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void touch(const char *path) {
    FILE *file = fopen(path, "w");
    assert_true(file && fputs("x", file) >= 0 && fclose(file) == 0);
}

static void test_list(void **state) {
    (void)state;
    char **names;
    int64_t count;
    assert_ok(mx8i_make_folders(in_root("list/b")));
    assert_ok(mx8i_list_folder(in_root("list/b"), &names, &count));
    assert_int_equal(count, 0);
    mx8i_release_list(names, count);
    for (int i = 0; i < 70; i++) { /* more than one block of names */
        char name[32];
        snprintf(name, sizeof name, "list/f%02d", i);
        touch(in_root(name));
    }
    touch(in_root("list/.hidden"));
    assert_ok(mx8i_list_folder(in_root("list"), &names, &count));
    assert_int_equal(count, 72);
    assert_string_equal(names[0], ".hidden");
    assert_string_equal(names[1], "b");
    assert_string_equal(names[71], "f69");
    mx8i_release_list(names, count);
    assert_status(mx8i_list_folder(in_root("nowhere"), &names, &count), MX8_IO_ERROR);
    assert_message("nowhere");
}

static void test_remove_and_rename(void **state) {
    (void)state;
    assert_ok(mx8i_make_folders(in_root("tree/a/b")));
    touch(in_root("tree/a/b/c"));
    touch(in_root("kept"));
    assert_int_equal(symlink(in_root("kept"), in_root("tree/link")), 0);
    assert_int_equal(symlink(root, in_root("tree/up")), 0);
    assert_ok(mx8i_rename(in_root("tree"), in_root("other")));
    assert_false(mx8i_is_folder(in_root("tree")));
    assert_status(mx8i_rename(in_root("tree"), in_root("third")), MX8_IO_ERROR);
    assert_message("third");
    assert_ok(mx8i_remove_tree(in_root("other")));
    assert_false(mx8i_is_folder(in_root("other")));
    assert_true(mx8i_is_file(in_root("kept"))); /* links are not followed */
    assert_ok(mx8i_remove_tree(in_root("other")));
    assert_ok(mx8i_remove_tree(in_root("kept")));
    assert_false(mx8i_is_file(in_root("kept")));
}

static void test_sync(void **state) {
    (void)state;
    touch(in_root("file"));
    assert_ok(mx8i_sync_file(in_root("file")));
    assert_ok(mx8i_sync_folder(root));
    assert_ok(mx8i_sync_parent(in_root("file")));
    assert_ok(mx8i_sync_parent("name-without-a-folder"));
    assert_status(mx8i_sync_file(in_root("none")), MX8_IO_ERROR);
    assert_status(mx8i_sync_folder(in_root("file")), MX8_IO_ERROR);
    assert_true(mx8i_get_free_space(root) > 0);
    assert_int_equal(mx8i_get_free_space(in_root("none")), -1);
}

/* Another process is kept out until the first lets go, or is killed. */
static void test_lock(void **state) {
    (void)state;
    int fd, second, ready[2];
    assert_ok(mx8i_lock_file(in_root("lock"), &fd));
    assert_true(fd >= 0);
    assert_ok(mx8i_lock_file(in_root("lock"), &second));
    assert_int_equal(second, -1);
    mx8i_unlock_file(fd);
    mx8i_unlock_file(-1);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        char word = mx8i_lock_file(in_root("lock"), &fd) == MX8_OK && fd >= 0;
        if (write(ready[1], &word, 1) == 1) pause();
        _exit(1);
    }
    char word = 0;
    assert_true(read(ready[0], &word, 1) == 1 && word);
    assert_ok(mx8i_lock_file(in_root("lock"), &second));
    assert_int_equal(second, -1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_ok(mx8i_lock_file(in_root("lock"), &fd));
    assert_true(fd >= 0);
    mx8i_unlock_file(fd);
    close(ready[0]);
    close(ready[1]);
    assert_status(mx8i_lock_file(in_root("none/lock"), &fd), MX8_IO_ERROR);
}

static void test_check(void **state) {
    (void)state;
    assert_ok(mx8i_make_folders(in_root("check")));
    touch(in_root("check/file"));
    assert_ok(mx8i_check_folder(in_root("check"), "it"));
    assert_ok(mx8i_check_folder(in_root("check/a/b"), "it"));
    assert_ok(mx8i_check_folder("nowhere/yet", "it"));
    assert_false(mx8i_is_folder(in_root("check/a"))); /* nothing is made */
    static const char *const files[] = {"check/file", "check/file/a/b"};
    for (int i = 0; i < 2; i++) {
        assert_status(mx8i_check_folder(in_root(files[i]), "it"), MX8_IO_ERROR);
        assert_message("check/file is a file, expected a folder");
    }
    if (geteuid() == 0) return; /* root may write everywhere */
    assert_int_equal(chmod(in_root("check"), 0555), 0);
    assert_status(mx8i_check_folder(in_root("check/a"), "it"), MX8_IO_ERROR);
    assert_message("cannot write to");
    assert_int_equal(chmod(in_root("check"), 0755), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_remove_and_rename),
        cmocka_unit_test(test_sync),
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
