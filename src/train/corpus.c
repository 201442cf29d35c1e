#include "train/corpus.h"
#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/corpus_stream.h"
#include "train/sha256.h"

#define CHUNK ((size_t)1 << 20) /* read at once from a compressed file */

struct corpus_file {
    char *path;
    int64_t size;
    int32_t format;
};

struct mx8_corpus {
    struct corpus_file *file;
    int64_t count, capacity, current, bytes, finished_bytes;
    char hash[65];
    struct mx8_stream stream; /* of the current file, when `open` */
    int32_t open;
    int64_t line;
    /* What has been read of it: the map itself, or a buffer in which text [at, size) is still to come. */
    const uint8_t *window;
    uint8_t *buffer;
    size_t at, size, capacity_of_buffer;
    int32_t at_end; /* the window reaches the end of the file */
};

static int ends_with(const char *text, size_t length, const char *suffix) {
    size_t n = strlen(suffix);
    return length >= n && !memcmp(text + length - n, suffix, n);
}

static enum mx8_corpus_format guess_format(const char *path) {
    static const char *const packed[] = {".gz", ".zst", ".zstd"}, *const json[] = {".jsonl", ".ndjson", ".json"};
    size_t length = strlen(path);
    for (int i = 0; i < 3; i++) {
        if (!ends_with(path, length, packed[i])) continue;
        length -= strlen(packed[i]);
        break;
    }
    for (int i = 0; i < 3; i++)
        if (ends_with(path, length, json[i])) return MX8_CORPUS_JSONL;
    return MX8_CORPUS_TEXT;
}

static enum mx8_status add_file(
    struct mx8_corpus *c, const char *path, enum mx8_corpus_format format, struct mx8_sha256 *hash) {
    struct stat info;
    if (stat(path, &info) != 0) return MX8_FAIL(MX8_IO_ERROR, "%s: cannot stat: %s", path, strerror(errno));
    if (c->count == c->capacity) {
        int64_t capacity = c->capacity ? 2 * c->capacity : 64;
        struct corpus_file *larger =
            mx8i_reallocate(c->file, (size_t)capacity * sizeof *larger, "the files of a corpus");
        if (!larger) return MX8_OUT_OF_MEMORY;
        c->file = larger;
        c->capacity = capacity;
    }
    struct corpus_file *f = &c->file[c->count];
    *f = (struct corpus_file){.path = mx8i_copy_text(path), .size = info.st_size};
    if (!f->path) return MX8_OUT_OF_MEMORY;
    f->format = format == MX8_CORPUS_AUTO ? guess_format(path) : format;
    c->count++;
    c->bytes += f->size;
    int64_t facts[] = {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
    mx8i_add_sha256(hash, path, strlen(path) + 1);
    mx8i_add_sha256(hash, facts, sizeof facts);
    return MX8_OK;
}

static enum mx8_status add_path(
    struct mx8_corpus *c, const char *path, enum mx8_corpus_format format, struct mx8_sha256 *hash) {
    char **files;
    int64_t count;
    MX8_TRY(mx8i_list_files(path, NULL, &files, &count));
    enum mx8_status status = MX8_OK;
    if (count == 0) status = MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: an empty folder, expected text", path);
    for (int64_t i = 0; i < count && status == MX8_OK; i++) status = add_file(c, files[i], format, hash);
    mx8i_release_list(files, count);
    return status;
}

enum mx8_status mx8i_open_corpus(
    const char *const *paths, int64_t n_paths, enum mx8_corpus_format format, struct mx8_corpus **out) {
    struct mx8_sha256 hash;
    *out = NULL;
    struct mx8_corpus *c = mx8i_allocate(sizeof *c, "a corpus");
    if (!c) return MX8_OUT_OF_MEMORY;
    mx8i_begin_sha256(&hash);
    for (int64_t i = 0; i < n_paths; i++) {
        enum mx8_status status = add_path(c, paths[i], format, &hash);
        if (status == MX8_OK) continue;
        mx8i_close_corpus(c);
        return status;
    }
    mx8i_end_sha256(&hash, c->hash);
    *out = c;
    return MX8_OK;
}

void mx8i_close_corpus(struct mx8_corpus *c) {
    if (!c) return;
    mx8i_close_stream(&c->stream);
    for (int64_t i = 0; i < c->count; i++) mx8i_release(c->file[i].path);
    mx8i_release(c->file);
    mx8i_release(c->buffer);
    mx8i_release(c);
}

int64_t mx8i_count_corpus_files(const struct mx8_corpus *c) {
    return c->count;
}

int64_t mx8i_count_corpus_bytes(const struct mx8_corpus *c) {
    return c->bytes;
}

int64_t mx8i_count_corpus_read(const struct mx8_corpus *c) {
    if (!c->open) return c->finished_bytes;
    return c->finished_bytes + (int64_t)(c->stream.compression == MX8_PLAIN ? c->at : c->stream.used);
}

const char *mx8i_get_corpus_hash(const struct mx8_corpus *c) {
    return c->hash;
}

static enum mx8_status open_current(struct mx8_corpus *c) {
    MX8_TRY(mx8i_open_stream(c->file[c->current].path, &c->stream));
    c->open = 1;
    c->line = 0;
    c->at = c->size = 0;
    c->at_end = c->stream.compression == MX8_PLAIN;
    c->window = c->buffer;
    if (c->at_end) {
        c->window = c->stream.map.data;
        c->size = c->stream.map.size;
    }
    return MX8_OK;
}

static void close_current(struct mx8_corpus *c) {
    mx8i_close_stream(&c->stream);
    c->finished_bytes += c->file[c->current].size;
    c->open = 0;
    c->current++;
}

/* Appends a chunk of a compressed file to the window, after dropping what lies before `at`. */
static enum mx8_status refill(struct mx8_corpus *c) {
    if (c->at > 0) memmove(c->buffer, c->buffer + c->at, c->size - c->at);
    c->size -= c->at;
    c->at = 0;
    if (c->size + CHUNK > c->capacity_of_buffer) {
        size_t capacity = 2 * c->capacity_of_buffer > c->size + CHUNK ? 2 * c->capacity_of_buffer : c->size + CHUNK;
        uint8_t *larger = mx8i_reallocate(c->buffer, capacity, c->file[c->current].path);
        if (!larger) return MX8_OUT_OF_MEMORY;
        c->buffer = larger;
        c->capacity_of_buffer = capacity;
    }
    size_t got;
    MX8_TRY(mx8i_read_stream(&c->stream, c->buffer + c->size, CHUNK, &got));
    c->window = c->buffer;
    c->size += got;
    c->at_end = got == 0;
    return MX8_OK;
}

static enum mx8_status read_whole(struct mx8_corpus *c, struct mx8_record *out, int *found) {
    while (!c->at_end) MX8_TRY(refill(c));
    *found = c->at < c->size;
    *out = (struct mx8_record){.data = c->window + c->at, .size = c->size - c->at, .path = c->file[c->current].path};
    c->at = c->size;
    return MX8_OK;
}

/* The next line without its end; *found is 0 when the file is over. */
static enum mx8_status read_line(struct mx8_corpus *c, struct mx8_record *out, int *found) {
    const uint8_t *end = NULL;
    size_t searched = 0;
    for (;;) {
        if (c->size - c->at > searched) end = memchr(c->window + c->at + searched, '\n', c->size - c->at - searched);
        if (end || c->at_end) break;
        searched = c->size - c->at;
        MX8_TRY(refill(c));
    }
    *found = c->at < c->size;
    if (!*found) return MX8_OK;
    const uint8_t *start = c->window + c->at;
    size_t length = end ? (size_t)(end - start) : c->size - c->at;
    c->at += length + (end != NULL);
    c->line++;
    if (length > 0 && start[length - 1] == '\r') length--;
    *out = (struct mx8_record){.data = start, .size = length, .path = c->file[c->current].path, .line = c->line};
    out->is_json = c->file[c->current].format == MX8_CORPUS_JSONL;
    return MX8_OK;
}

enum mx8_status mx8i_next_record(struct mx8_corpus *c, struct mx8_record *out, int *found) {
    *found = 0;
    while (c->current < c->count) {
        if (!c->open) MX8_TRY(open_current(c));
        MX8_TRY(c->file[c->current].format == MX8_CORPUS_TEXT ? read_whole(c, out, found) : read_line(c, out, found));
        if (!*found)
            close_current(c);
        else if (out->size > 0)
            return MX8_OK;
    }
    return MX8_OK;
}

enum mx8_status mx8i_read_json_field(const struct mx8_record *r, const char *field, char **text, size_t *size) {
    json_error_t error;
    *text = NULL;
    json_t *root = json_loadb((const char *)r->data, r->size, JSON_ALLOW_NUL, &error);
    if (!root)
        return MX8_FAIL(
            MX8_FORMAT_ERROR, "%s: line %lld, byte %d: %s", r->path, (long long)r->line, error.position, error.text);
    const json_t *value = json_object_get(root, field);
    enum mx8_status status = MX8_OK;
    if (!json_is_string(value)) {
        status =
            MX8_FAIL(MX8_FORMAT_ERROR, "%s: line %lld: no text in a field \"%s\"", r->path, (long long)r->line, field);
    } else {
        *size = json_string_length(value);
        *text = mx8i_allocate(*size + 1, "a document");
        if (*text)
            memcpy(*text, json_string_value(value), *size);
        else
            status = MX8_OUT_OF_MEMORY;
    }
    json_decref(root);
    return status;
}
