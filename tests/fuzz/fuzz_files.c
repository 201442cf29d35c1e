/* Files of FUZZ_FOLDER live in memory: the linker sends what the code under test asks of the system to the functions
 * below (--wrap, tests/CMakeLists.txt), and they pass on what is not about these files. An input costs no system call,
 * and a map is a block of exactly the file's size, so that the address sanitizer sees a read behind it. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fuzz.h"

enum { MOST_FILES = 4, MOST_HANDLES = 8, FIRST_FD = 1 << 20 };

static struct file {
    char path[64];
    const void *data;
    size_t size;
    int opened;
} files[MOST_FILES];
static int n_files;

static struct handle {
    struct file *file; /* NULL: free */
    size_t at;
} handles[MOST_HANDLES];
static void *maps[MOST_HANDLES];

const char *fuzz_file(const char *name, const void *data, size_t size) {
    ALWAYS(n_files < MOST_FILES);
    struct file *file = &files[n_files++];
    snprintf(file->path, sizeof file->path, FUZZ_FOLDER "/%s", name);
    file->data = data;
    file->size = size;
    file->opened = 0;
    return file->path;
}

void fuzz_forget_files(void) {
    for (int i = 0; i < MOST_HANDLES; i++) ALWAYS(!handles[i].file && !maps[i]); /* all that was opened is closed */
    ALWAYS(n_files == 0 || files[0].opened); /* or a question to the system is missing below, and nothing is tested */
    n_files = 0;
}

/* ---- what the system would have done ---- */

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
int __real_access(const char *path, int mode);
int __real_stat(const char *path, struct stat *info);
int __real_lstat(const char *path, struct stat *info);
int __real_fstat(int fd, struct stat *info);
ssize_t __real_read(int fd, void *out, size_t size);
ssize_t __real_pread(int fd, void *out, size_t size, off_t offset);
void *__real_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *address, size_t size);

int __wrap_open(const char *path, int flags, ...);
int __wrap_close(int fd);
int __wrap_access(const char *path, int mode);
int __wrap_stat(const char *path, struct stat *info);
int __wrap_lstat(const char *path, struct stat *info);
int __wrap_fstat(int fd, struct stat *info);
ssize_t __wrap_read(int fd, void *out, size_t size);
ssize_t __wrap_pread(int fd, void *out, size_t size, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *address, size_t size);

static int fail(int reason) {
    errno = reason;
    return -1;
}

static int is_ours(const char *path) {
    size_t length = strlen(FUZZ_FOLDER);
    return !strncmp(path, FUZZ_FOLDER, length) && (path[length] == '/' || !path[length]);
}

static struct file *find_file(const char *path) {
    for (int i = 0; i < n_files; i++)
        if (!strcmp(files[i].path, path)) return &files[i];
    return NULL;
}

static struct handle *find_handle(int fd) {
    if (fd < FIRST_FD) return NULL;
    ALWAYS(fd < FIRST_FD + MOST_HANDLES && handles[fd - FIRST_FD].file);
    return &handles[fd - FIRST_FD];
}

int __wrap_open(const char *path, int flags, ...) {
    if (!is_ours(path)) {
        va_list arguments;
        va_start(arguments, flags);
        int mode = flags & O_CREAT ? va_arg(arguments, int) : 0;
        va_end(arguments);
        return __real_open(path, flags, mode);
    }
    struct file *file = find_file(path);
    if (!file) return fail(ENOENT);
    if ((flags & O_ACCMODE) != O_RDONLY) return fail(EROFS);
    for (int i = 0; i < MOST_HANDLES; i++) {
        if (handles[i].file) continue;
        handles[i] = (struct handle){.file = file};
        file->opened = 1;
        return FIRST_FD + i;
    }
    return fail(EMFILE);
}

int __wrap_close(int fd) {
    struct handle *handle = find_handle(fd);
    if (!handle) return __real_close(fd);
    handle->file = NULL;
    return 0;
}

static int fill_stat(struct stat *info, mode_t mode, size_t size) {
    *info = (struct stat){.st_mode = mode, .st_size = (off_t)size, .st_nlink = 1};
    return 0;
}

static int stat_path(const char *path, struct stat *info) {
    const struct file *file = find_file(path);
    if (file) return fill_stat(info, S_IFREG | 0444, file->size);
    return path[strlen(FUZZ_FOLDER)] ? fail(ENOENT) : fill_stat(info, S_IFDIR | 0555, 0);
}

int __wrap_access(const char *path, int mode) {
    struct stat info;
    if (!is_ours(path)) return __real_access(path, mode);
    return stat_path(path, &info) == 0 && mode & W_OK ? fail(EROFS) : stat_path(path, &info);
}

int __wrap_stat(const char *path, struct stat *info) {
    return is_ours(path) ? stat_path(path, info) : __real_stat(path, info);
}

int __wrap_lstat(const char *path, struct stat *info) {
    return is_ours(path) ? stat_path(path, info) : __real_lstat(path, info);
}

int __wrap_fstat(int fd, struct stat *info) {
    const struct handle *handle = find_handle(fd);
    return handle ? fill_stat(info, S_IFREG | 0444, handle->file->size) : __real_fstat(fd, info);
}

static ssize_t copy_from(const struct file *file, size_t at, void *out, size_t size) {
    if (at >= file->size) return 0;
    size_t n = size < file->size - at ? size : file->size - at;
    memcpy(out, (const char *)file->data + at, n);
    return (ssize_t)n;
}

ssize_t __wrap_read(int fd, void *out, size_t size) {
    struct handle *handle = find_handle(fd);
    if (!handle) return __real_read(fd, out, size);
    ssize_t n = copy_from(handle->file, handle->at, out, size);
    handle->at += (size_t)n;
    return n;
}

ssize_t __wrap_pread(int fd, void *out, size_t size, off_t offset) {
    const struct handle *handle = find_handle(fd);
    if (!handle) return __real_pread(fd, out, size, offset);
    return offset < 0 ? fail(EINVAL) : copy_from(handle->file, (size_t)offset, out, size);
}

void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    const struct handle *handle = find_handle(fd);
    if (!handle) return __real_mmap(address, size, protection, flags, fd, offset);
    ALWAYS(size > 0 && size <= handle->file->size && offset == 0 && protection == PROT_READ);
    for (int i = 0; i < MOST_HANDLES; i++)
        if (!maps[i]) {
            maps[i] = malloc(size);
            ALWAYS(maps[i]);
            return memcpy(maps[i], handle->file->data, size);
        }
    fail(ENOMEM);
    return MAP_FAILED;
}

int __wrap_munmap(void *address, size_t size) {
    for (int i = 0; i < MOST_HANDLES; i++)
        if (maps[i] == address && address) {
            free(address);
            maps[i] = NULL;
            return 0;
        }
    return __real_munmap(address, size);
}
