#include "train/data_file.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"

static void close_file(struct mx8_data_files *f, int64_t index) {
    struct mx8_data_file *file = &f->file[index];
    if (file->fd < 0) return;
    close(file->fd);
    file->fd = -1;
    for (int64_t i = 0; i < f->n_open; i++)
        if (f->open[i] == index) f->open[i--] = f->open[--f->n_open];
}

static void make_room(struct mx8_data_files *f) {
    int64_t oldest = f->open[0];
    if (f->n_open < MX8_OPEN_FILES) return;
    for (int64_t i = 1; i < f->n_open; i++)
        if (f->file[f->open[i]].used < f->file[oldest].used) oldest = f->open[i];
    close_file(f, oldest);
}

static enum mx8_status open_file(struct mx8_data_files *f, int64_t index, struct stat *state) {
    struct mx8_data_file *file = &f->file[index];
    if (file->fd < 0) {
        make_room(f);
        file->fd = open(file->path, O_RDONLY | O_CLOEXEC);
        if (file->fd < 0) return MX8_FAIL(MX8_IO_ERROR, "%s: cannot open: %s", file->path, strerror(errno));
        f->open[f->n_open++] = index;
    }
    file->used = ++f->clock;
    if (fstat(file->fd, state) != 0) return MX8_FAIL(MX8_IO_ERROR, "%s: cannot stat: %s", file->path, strerror(errno));
    if (S_ISDIR(state->st_mode)) return MX8_FAIL(MX8_IO_ERROR, "%s: is a folder, expected a file", file->path);
    return MX8_OK;
}

enum mx8_status mx8i_add_data_file(struct mx8_data_files *f, const char *path, int64_t *index) {
    struct stat state = {0};
    if (f->count == f->capacity) {
        int64_t capacity = f->capacity ? 2 * f->capacity : 16;
        struct mx8_data_file *larger = mx8i_reallocate(f->file, (size_t)capacity * sizeof *larger, "a table of files");
        if (!larger) return MX8_OUT_OF_MEMORY;
        f->file = larger;
        f->capacity = capacity;
    }
    *index = f->count;
    f->file[*index] = (struct mx8_data_file){.path = mx8i_copy_text(path), .fd = -1};
    if (!f->file[*index].path) return MX8_OUT_OF_MEMORY;
    f->count++;
    enum mx8_status status = open_file(f, *index, &state);
    if (status != MX8_OK) {
        mx8i_drop_data_file(f);
        return status;
    }
    f->file[*index].size = state.st_size;
    f->file[*index].modified = state.st_mtim;
    return MX8_OK;
}

void mx8i_drop_data_file(struct mx8_data_files *f) {
    close_file(f, f->count - 1);
    mx8i_release(f->file[--f->count].path);
}

static enum mx8_status check_state(const struct mx8_data_file *file, const struct stat *state) {
    if (state->st_size != file->size)
        return MX8_FAIL(MX8_IO_ERROR, "%s: the file had %lld bytes when the run began, and has %lld now", file->path,
            (long long)file->size, (long long)state->st_size);
    if (state->st_mtim.tv_sec != file->modified.tv_sec || state->st_mtim.tv_nsec != file->modified.tv_nsec)
        return MX8_FAIL(MX8_IO_ERROR, "%s: the file has been written to since the run began", file->path);
    return MX8_OK;
}

enum mx8_status mx8i_read_data_file(struct mx8_data_files *f, int64_t index, int64_t offset, void *out, size_t size) {
    struct mx8_data_file *file = &f->file[index];
    struct stat state = {0};
    MX8_TRY(open_file(f, index, &state));
    MX8_TRY(check_state(file, &state));
    for (size_t done = 0; done < size;) {
        ssize_t got = pread(file->fd, (char *)out + done, size - done, (off_t)offset + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return MX8_FAIL(MX8_IO_ERROR, "%s: cannot read at byte %lld: %s", file->path,
                (long long)offset + (long long)done, strerror(errno));
        if (got == 0)
            return MX8_FAIL(MX8_IO_ERROR, "%s: the file ends at byte %lld, it had %lld when the run began", file->path,
                (long long)offset + (long long)done, (long long)file->size);
        done += (size_t)got;
    }
    return MX8_OK;
}

void mx8i_close_data_files(struct mx8_data_files *f) {
    while (f->count > 0) mx8i_drop_data_file(f);
    mx8i_release(f->file);
    *f = (struct mx8_data_files){0};
}
