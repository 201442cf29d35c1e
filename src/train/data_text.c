/* Text as a token stream: every byte is its own token, every file a document between BOS and EOS, files in the byte
 * order of their paths, so that the same files give the same stream on every machine. Files are opened once, at start.
 */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/stream.h"

/* Maps are a limited resource of the kernel (65,530 by default); a source tree has more files than that. */
#define MAP_FROM ((size_t)1 << 20)

static const struct mx8_text_file *find_file(const struct mx8_text *t, int64_t at) {
    int64_t low = 0, high = t->count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (t->file[middle].start <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return &t->file[low];
}

static enum mx8_status read_text(const struct mx8_data *d, int64_t at, int64_t n, int32_t *out) {
    for (const struct mx8_text_file *f = find_file(&d->text, at); n > 0; f++) {
        int64_t length = f->size + 2;
        for (int64_t i = at - f->start; i < length && n > 0; i++, n--, at++)
            *out++ = i == 0 ? MX8_BOS : i == length - 1 ? MX8_EOS : f->bytes[i - 1];
    }
    return MX8_OK;
}

/* At most `limit` bytes of the file at path become the next document; an empty file is none. */
static enum mx8_status add_file(struct mx8_data *d, const char *path, int64_t limit) {
    struct mx8_text_file *f = &d->text.file[d->text.count];
    struct mx8_map map;
    MX8_TRY(mx8i_map_file(path, &map));
    if (map.size == 0) return MX8_OK;
    size_t size = map.size < (size_t)limit ? map.size : (size_t)limit;
    *f = (struct mx8_text_file){.bytes = map.data, .size = (int64_t)size, .start = d->total, .map = map};
    if (size < MAP_FROM) {
        uint8_t *copy = mx8i_allocate(size, path);
        if (copy) memcpy(copy, map.data, size);
        mx8i_unmap_file(&map);
        if (!copy) return MX8_OUT_OF_MEMORY;
        f->bytes = copy;
        f->map = (struct mx8_map){0};
    }
    d->total += f->size + 2;
    d->text.count++;
    return MX8_OK;
}

static enum mx8_status add_files(struct mx8_data *d, char **paths, int64_t count, int64_t max_bytes) {
    int64_t left = max_bytes > 0 ? max_bytes : INT64_MAX;
    d->text.file = mx8i_allocate((size_t)count * sizeof *d->text.file, "the table of text files");
    if (!d->text.file) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < count && left > 0; i++) {
        int64_t before = d->text.count;
        MX8_TRY(add_file(d, paths[i], left));
        if (d->text.count > before) left -= d->text.file[before].size;
    }
    if (d->text.count == 0)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: no text, %lld empty files", d->path, (long long)count);
    return MX8_OK;
}

enum mx8_status mx8i_open_text(struct mx8_data *d, int64_t max_bytes) {
    if (d->vocab_size <= MX8_EOS)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s: bytes of text with document marks need model.vocab_size >= %d, it is %lld", d->path, MX8_EOS + 1,
            (long long)d->vocab_size);
    char **paths;
    int64_t count;
    MX8_TRY(mx8i_list_files(d->path, NULL, &paths, &count));
    enum mx8_status status = add_files(d, paths, count, max_bytes);
    mx8i_release_list(paths, count);
    if (status != MX8_OK) return status;

    double bytes = (double)(d->total - 2 * d->text.count);
    const char *unit = bytes < 1e6 ? "kB" : "MB";
    d->description = mx8i_format_text("%lld %s, %.1f %s of text under %s", (long long)d->text.count,
        d->text.count == 1 ? "file" : "files", bytes / (bytes < 1e6 ? 1e3 : 1e6), unit, d->path);
    d->read = read_text;
    return MX8_OK;
}

void mx8i_close_text(struct mx8_text *t) {
    for (int64_t i = 0; i < t->count; i++) {
        if (t->file[i].map.data)
            mx8i_unmap_file(&t->file[i].map);
        else
            mx8i_release((void *)(uintptr_t)t->file[i].bytes); /* the copy that add_file made */
    }
    mx8i_release(t->file);
}
