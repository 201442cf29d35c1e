/* What happens to names in folders. Bytes of files are file.c's and file_writer.c's. */
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

static enum mx8_status fail_io(const char *path, const char *what) {
    return MX8_FAIL(MX8_IO_ERROR, "%s: cannot %s: %s", path, what, strerror(errno));
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum mx8_status add_name(char ***names, int64_t *count, const char *name) {
    if (*count % 32 == 0) {
        char **larger = mx8i_reallocate(*names, (size_t)(*count + 32) * sizeof *larger, "a list of names");
        if (!larger) return MX8_OUT_OF_MEMORY;
        *names = larger;
    }
    (*names)[*count] = mx8i_copy_text(name);
    return (*names)[*count] ? (++*count, MX8_OK) : MX8_OUT_OF_MEMORY;
}

enum mx8_status mx8i_list_folder(const char *path, char ***names, int64_t *count) {
    *names = NULL;
    *count = 0;
    DIR *stream = opendir(path);
    if (!stream) return fail_io(path, "list the folder");
    enum mx8_status status = MX8_OK;
    while (status == MX8_OK) {
        errno = 0;
        const struct dirent *item = readdir(stream);
        if (!item) {
            if (errno) status = fail_io(path, "list the folder");
            break;
        }
        if (!strcmp(item->d_name, ".") || !strcmp(item->d_name, "..")) continue;
        status = add_name(names, count, item->d_name);
    }
    closedir(stream);
    if (status != MX8_OK) {
        mx8i_release_list(*names, *count);
        *names = NULL;
        *count = 0;
        return status;
    }
    if (*count > 1) qsort(*names, (size_t)*count, sizeof **names, compare_names);
    return MX8_OK;
}

/* Some file systems cannot sync a folder and say EINVAL: what they can do is done. */
static enum mx8_status sync_path(const char *path, int flags) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (fd < 0) return fail_io(path, "open it to sync it");
    int failed = fsync(fd) != 0 && errno != EINVAL, reason = errno;
    close(fd);
    errno = reason;
    return failed ? fail_io(path, "sync it to disk") : MX8_OK;
}

enum mx8_status mx8i_sync_folder(const char *path) {
    return sync_path(path, O_DIRECTORY);
}

enum mx8_status mx8i_sync_file(const char *path) {
    return sync_path(path, 0);
}

/* The folder that path stands in. */
static char *get_parent(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return mx8i_copy_text(".");
    return slash == path ? mx8i_copy_text("/") : mx8i_format_text("%.*s", (int)(slash - path), path);
}

enum mx8_status mx8i_sync_parent(const char *path) {
    char *parent = get_parent(path);
    enum mx8_status status = parent ? mx8i_sync_folder(parent) : MX8_OUT_OF_MEMORY;
    mx8i_release(parent);
    return status;
}

enum mx8_status mx8i_rename(const char *from, const char *to) {
    if (rename(from, to) != 0)
        return MX8_FAIL(MX8_IO_ERROR, "%s: cannot rename it to %s: %s", from, to, strerror(errno));
    return mx8i_sync_parent(to);
}

enum mx8_status mx8i_remove_tree(const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0) return errno == ENOENT ? MX8_OK : fail_io(path, "look at it");
    if (!S_ISDIR(info.st_mode)) return unlink(path) == 0 || errno == ENOENT ? MX8_OK : fail_io(path, "remove it");
    char **names;
    int64_t count;
    MX8_TRY(mx8i_list_folder(path, &names, &count));
    enum mx8_status status = MX8_OK;
    for (int64_t i = 0; i < count && status == MX8_OK; i++) {
        char *below = mx8i_format_text("%s/%s", path, names[i]);
        status = below ? mx8i_remove_tree(below) : MX8_OUT_OF_MEMORY;
        mx8i_release(below);
    }
    mx8i_release_list(names, count);
    if (status == MX8_OK && rmdir(path) != 0 && errno != ENOENT) status = fail_io(path, "remove the folder");
    return status;
}

enum mx8_status mx8i_lock_file(const char *path, int *fd) {
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd < 0) return fail_io(path, "write");
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return MX8_OK;
    close(*fd);
    *fd = -1;
    return MX8_OK;
}

void mx8i_unlock_file(int fd) {
    if (fd >= 0) close(fd); /* the lock goes with the last descriptor */
}

enum mx8_status mx8i_check_folder(const char *path, const char *what) {
    struct stat info;
    int missing = 1;
    char *at = mx8i_copy_text(path);
    while (at && (missing = stat(at, &info)) && (errno == ENOENT || errno == ENOTDIR)) { /* a part that will be made */
        char *parent = get_parent(at);
        mx8i_release(at);
        at = parent;
    }
    if (!at) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = MX8_OK;
    if (!missing && !S_ISDIR(info.st_mode))
        status = MX8_FAIL(MX8_IO_ERROR, "%s is %s: %s is a file, expected a folder", what, path, at);
    else if (access(at, W_OK | X_OK) != 0)
        status = MX8_FAIL(MX8_IO_ERROR, "%s is %s: cannot write to %s: %s", what, path, at, strerror(errno));
    mx8i_release(at);
    return status;
}

int64_t mx8i_get_free_space(const char *path) {
    struct statvfs info;
    return statvfs(path, &info) == 0 ? (int64_t)info.f_bavail * (int64_t)info.f_frsize : -1;
}
