/* Reading files whole or as maps; folders and lists of files. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"

static enum mx8_status fail_io(const char *path, const char *what) {
    return MX8_FAIL(MX8_IO_ERROR, "%s: cannot %s: %s", path, what, strerror(errno));
}

static enum mx8_status open_file(const char *path, int *fd, struct stat *info) {
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return fail_io(path, "open");
    if (fstat(*fd, info) == 0 && !S_ISDIR(info->st_mode)) return MX8_OK;
    enum mx8_status status = S_ISDIR(info->st_mode) ? MX8_FAIL(MX8_IO_ERROR, "%s: is a folder, expected a file", path)
                                                    : fail_io(path, "stat");
    close(*fd);
    return status;
}

enum mx8_status mx8i_map_file(const char *path, struct mx8_map *out) {
    struct stat info = {0};
    int fd;
    *out = (struct mx8_map){0};
    MX8_TRY(open_file(path, &fd, &info));
    enum mx8_status status = MX8_OK;
    if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = fail_io(path, "map");
        else
            *out = (struct mx8_map){data, (size_t)info.st_size};
    }
    close(fd);
    return status;
}

void mx8i_unmap_file(struct mx8_map *map) {
    if (map->data) munmap((void *)map->data, map->size);
    *map = (struct mx8_map){0};
}

/* Reads to the end: the size that stat tells is only a first guess (pipes and /proc say 0). */
static enum mx8_status read_to_end(int fd, const char *path, size_t max_size, size_t guess, char **data, size_t *size) {
    size_t capacity = (guess < max_size ? guess : max_size) + 2, used = 0;
    char *text = mx8i_allocate(capacity, path);
    enum mx8_status status = text ? MX8_OK : MX8_OUT_OF_MEMORY;
    while (status == MX8_OK) {
        ssize_t got = read(fd, text + used, capacity - 1 - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = fail_io(path, "read");
        if (got <= 0) break;
        used += (size_t)got;
        if (used > max_size) {
            status = MX8_FAIL(MX8_FORMAT_ERROR, "%s: larger than %zu bytes, expected at most that", path, max_size);
        } else if (used == capacity - 1) {
            char *larger = mx8i_reallocate(text, capacity * 2, path);
            if (!larger)
                status = MX8_OUT_OF_MEMORY;
            else
                text = larger, capacity *= 2;
        }
    }
    if (status != MX8_OK) {
        mx8i_release(text);
        return status;
    }
    text[used] = 0;
    *data = text;
    *size = used;
    return MX8_OK;
}

enum mx8_status mx8i_read_file(const char *path, size_t max_size, char **data, size_t *size) {
    struct stat info = {0};
    int fd;
    *data = NULL;
    *size = 0;
    MX8_TRY(open_file(path, &fd, &info));
    enum mx8_status status = read_to_end(fd, path, max_size, (size_t)info.st_size, data, size);
    close(fd);
    return status;
}

int mx8i_is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int mx8i_is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

enum mx8_status mx8i_make_folders(const char *path) {
    char *copy = mx8i_copy_text(path);
    if (!copy) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = MX8_OK;
    size_t length = strlen(copy);
    for (size_t i = 1; i <= length && status == MX8_OK; i++) {
        if (i < length && copy[i] != '/') continue;
        char kept = copy[i];
        copy[i] = 0;
        int failed = mkdir(copy, 0777) != 0, reason = errno;
        if (failed && !mx8i_is_folder(copy)) {
            errno = reason;
            status = reason == EEXIST ? MX8_FAIL(MX8_IO_ERROR, "%s: is a file or device, expected a folder", copy)
                                      : fail_io(copy, "make the folder");
        }
        copy[i] = kept;
    }
    mx8i_release(copy);
    return status;
}

struct list {
    char **files;
    int64_t count, capacity;
    const char *suffix;
};

/* Takes over path. */
static enum mx8_status add_file(struct list *list, char *path) {
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity ? 2 * list->capacity : 64;
        char **larger = mx8i_reallocate(list->files, (size_t)capacity * sizeof *larger, "a list of files");
        if (!larger) {
            mx8i_release(path);
            return MX8_OUT_OF_MEMORY;
        }
        list->files = larger;
        list->capacity = capacity;
    }
    list->files[list->count++] = path;
    return MX8_OK;
}

static int ends_with(const char *text, const char *suffix) {
    size_t length = strlen(text), tail = suffix ? strlen(suffix) : 0;
    return tail == 0 || (length >= tail && memcmp(text + length - tail, suffix, tail) == 0);
}

static enum mx8_status list_folder(struct list *list, const char *folder);

/* Takes over path. lstat first: a link to a folder may lead back up and is passed over. A file that vanished between
 * the listing and the look is not there. */
static enum mx8_status list_one(struct list *list, char *path) {
    struct stat info;
    enum mx8_status status = MX8_OK;
    if (lstat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode))
            status = list_folder(list, path);
        else if (mx8i_is_file(path) && ends_with(path, list->suffix))
            return add_file(list, path);
    }
    mx8i_release(path);
    return status;
}

static enum mx8_status list_folder(struct list *list, const char *folder) {
    DIR *stream = opendir(folder);
    if (!stream) return fail_io(folder, "list");
    const char *joint = ends_with(folder, "/") ? "" : "/";
    enum mx8_status status = MX8_OK;
    while (status == MX8_OK) {
        errno = 0;
        const struct dirent *item = readdir(stream);
        if (!item) {
            if (errno) status = fail_io(folder, "list");
            break;
        }
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        char *path = mx8i_format_text("%s%s%s", folder, joint, item->d_name);
        status = path ? list_one(list, path) : MX8_OUT_OF_MEMORY;
    }
    closedir(stream);
    return status;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum mx8_status mx8i_list_files(const char *path, const char *suffix, char ***files, int64_t *count) {
    struct list list = {.suffix = suffix};
    enum mx8_status status;
    *files = NULL;
    *count = 0;
    if (mx8i_is_folder(path)) {
        status = list_folder(&list, path);
    } else if (mx8i_is_file(path)) { /* asked for by name: taken whatever its suffix */
        char *copy = mx8i_copy_text(path);
        status = copy ? add_file(&list, copy) : MX8_OUT_OF_MEMORY;
    } else {
        errno = ENOENT;
        status = fail_io(path, "list");
    }
    if (status != MX8_OK) {
        mx8i_release_list(list.files, list.count);
        return status;
    }
    if (list.count > 1) qsort(list.files, (size_t)list.count, sizeof *list.files, compare_names);
    *files = list.files;
    *count = list.count;
    return MX8_OK;
}

void mx8i_release_list(char **files, int64_t count) {
    for (int64_t i = 0; i < count; i++) mx8i_release(files[i]);
    mx8i_release(files);
}
