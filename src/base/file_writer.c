/* Atomic writes. A reader sees the old file or the whole new one, also after a crash: the bytes are on disk before the
 * rename, and the rename is on disk before commit returns. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/folder.h"
#include "base/memory.h"

enum { BUFFER_SIZE = 1 << 20 };

/* path == NULL marks a writer that is not open. */
static void close_writer(struct mx8_writer *w) {
    if (w->fd >= 0) close(w->fd);
    mx8i_release(w->buffer);
    mx8i_release(w->tmp_path);
    mx8i_release(w->path);
    *w = (struct mx8_writer){.fd = -1};
}

void mx8i_abandon_writer(struct mx8_writer *w) {
    if (!w->path) return;
    if (w->fd >= 0 && w->tmp_path) unlink(w->tmp_path);
    close_writer(w);
}

static enum mx8_status fail_and_abandon(struct mx8_writer *w, const char *what) {
    enum mx8_status status = MX8_FAIL(MX8_IO_ERROR, "%s: cannot %s: %s", w->path, what, strerror(errno));
    mx8i_abandon_writer(w);
    return status;
}

enum mx8_status mx8i_open_writer(const char *path, struct mx8_writer *w) {
    *w = (struct mx8_writer){.fd = -1};
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) /* renaming over /dev/null would replace the device */
        return MX8_FAIL(MX8_IO_ERROR, "%s: is a folder or device, expected a file or nothing", path);
    w->path = mx8i_copy_text(path);
    if (!w->path) return MX8_OUT_OF_MEMORY;
    w->tmp_path = mx8i_format_text("%s.tmp-%ld", path, (long)getpid());
    w->buffer = w->tmp_path ? mx8i_allocate(BUFFER_SIZE, "a write buffer") : NULL;
    if (!w->buffer) {
        mx8i_abandon_writer(w);
        return MX8_OUT_OF_MEMORY;
    }
    w->fd = open(w->tmp_path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    return w->fd < 0 ? fail_and_abandon(w, "create it") : MX8_OK;
}

static int write_all(int fd, const char *data, size_t size) {
    while (size > 0) {
        ssize_t done = write(fd, data, size);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        data += done;
        size -= (size_t)done;
    }
    return 0;
}

static enum mx8_status flush(struct mx8_writer *w) {
    size_t size = w->buffered;
    w->buffered = 0;
    return write_all(w->fd, w->buffer, size) ? fail_and_abandon(w, "write") : MX8_OK;
}

enum mx8_status mx8i_write(struct mx8_writer *w, const void *data, size_t size) {
    if (!w->path) return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_write: the writer is closed, expected an open one");
    if (size == 0) return MX8_OK;
    if (size > BUFFER_SIZE - w->buffered) MX8_TRY(flush(w));
    if (size >= BUFFER_SIZE) {
        if (write_all(w->fd, data, size)) return fail_and_abandon(w, "write");
    } else {
        memcpy((char *)w->buffer + w->buffered, data, size);
        w->buffered += size;
    }
    w->written += size;
    return MX8_OK;
}

enum mx8_status mx8i_commit_writer(struct mx8_writer *w) {
    if (!w->path)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_commit_writer: the writer is closed, expected an open one");
    MX8_TRY(flush(w));
    if (fsync(w->fd)) return fail_and_abandon(w, "write it to disk");
    if (rename(w->tmp_path, w->path)) return fail_and_abandon(w, "rename the finished file over it");
    enum mx8_status status = mx8i_sync_parent(w->path); /* makes the rename itself durable */
    if (status != MX8_OK) mx8i_fail_prefix(status, "%s: written, but its name may not last", w->path);
    close_writer(w);
    return status;
}

enum mx8_status mx8i_write_file(const char *path, const void *data, size_t size) {
    struct mx8_writer w;
    MX8_TRY(mx8i_open_writer(path, &w));
    MX8_TRY(mx8i_write(&w, data, size)); /* abandons where it fails */
    return mx8i_commit_writer(&w);
}

enum mx8_status mx8i_write_text(const char *path, const char *text) {
    struct mx8_writer w;
    MX8_TRY(mx8i_open_writer(path, &w));
    MX8_TRY(mx8i_write(&w, text, strlen(text)));
    MX8_TRY(mx8i_write(&w, "\n", 1));
    return mx8i_commit_writer(&w);
}
