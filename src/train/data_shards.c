/* Token shards as llm.c writes them: a header of 256 int32 {magic, version, token count, 0 ...}, then the tokens.
 *     magic 20240520, version 1: uint16 tokens         magic 20240801, version 7: uint32 tokens
 * A file without either magic is bare: uint16 tokens from its first byte, uint32 when its name ends in ".u32.bin".
 * Shards of a folder are read in the byte order of their paths. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/stream.h"

#define HEADER_BYTES 1024
#define FIRST_LOOK   65536 /* tokens of a shard that are checked at start; the others when they are read */

static const struct { int32_t magic, version, width; } headers[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static int has_suffix(const char *text, const char *suffix) {
    size_t length = strlen(text), suffix_length = strlen(suffix);
    return length >= suffix_length && !strcmp(text + length - suffix_length, suffix);
}

static int32_t load_int32(const uint8_t *bytes) {
    int32_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

int64_t mx8i_load_token(const struct mx8_shard *s, int64_t index) {
    if (s->width == 4) {
        uint32_t token;
        memcpy(&token, s->tokens + 4 * index, sizeof token);
        return token;
    }
    uint16_t token;
    memcpy(&token, s->tokens + 2 * index, sizeof token);
    return token;
}

static enum mx8_status check_token(const struct mx8_data *d, const struct mx8_shard *s, int64_t index) {
    int64_t token = mx8i_load_token(s, index);
    if (token < d->vocab_size) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: token %lld is %lld, expected less than model.vocab_size %lld", s->path,
        (long long)index, (long long)token, (long long)d->vocab_size);
}

static enum mx8_status read_shards(const struct mx8_data *d, int64_t at, int64_t n, int32_t *out) {
    const struct mx8_shard *s = d->shards.shard;
    while (at >= s->start + s->count) s++;
    for (; n > 0; s++)
        for (int64_t i = at - s->start; i < s->count && n > 0; i++, n--, at++) {
            MX8_TRY(check_token(d, s, i));
            *out++ = (int32_t)mx8i_load_token(s, i);
        }
    return MX8_OK;
}

/* Sets tokens, width and count from the header, or from the name and the size of a bare file. */
static enum mx8_status read_header(struct mx8_shard *s) {
    const uint8_t *bytes = s->map.data;
    size_t size = s->map.size;
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        if (size < sizeof(int32_t) || load_int32(bytes) != headers[i].magic) continue;
        if (size < HEADER_BYTES)
            return MX8_FAIL(MX8_FORMAT_ERROR, "%s: the header is cut: %zu bytes, expected at least %d", s->path, size,
                HEADER_BYTES);
        int32_t version = load_int32(bytes + 4), count = load_int32(bytes + 8);
        if (version != headers[i].version)
            return MX8_FAIL(MX8_FORMAT_ERROR, "%s: magic %d with version %d, expected version %d", s->path,
                headers[i].magic, version, headers[i].version);
        if (count < 0 || (uint64_t)size != HEADER_BYTES + (uint64_t)count * (uint64_t)headers[i].width)
            return MX8_FAIL(MX8_FORMAT_ERROR,
                "%s: the header says %d tokens of %d bytes, the file holds %zu bytes of them", s->path, count,
                headers[i].width, size - HEADER_BYTES);
        s->tokens = bytes + HEADER_BYTES;
        s->width = headers[i].width;
        s->count = count;
        return MX8_OK;
    }
    s->tokens = bytes;
    s->width = has_suffix(s->path, ".u32.bin") ? 4 : 2;
    s->count = (int64_t)(size / (size_t)s->width);
    if (size % (size_t)s->width)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: no llm.c header, and %zu bytes are no whole number of %d-byte tokens",
            s->path, size, s->width);
    return MX8_OK;
}

enum mx8_status mx8i_open_shard(const char *path, struct mx8_shard *s) {
    *s = (struct mx8_shard){.path = mx8i_copy_text(path)};
    if (!s->path) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_map_file(path, &s->map);
    if (status == MX8_OK) status = read_header(s);
    if (status != MX8_OK) mx8i_close_shard(s);
    return status;
}

void mx8i_close_shard(struct mx8_shard *s) {
    mx8i_unmap_file(&s->map);
    mx8i_release(s->path);
    *s = (struct mx8_shard){0};
}

static enum mx8_status add_shard(struct mx8_data *d, const char *path) {
    struct mx8_shard *s = &d->shards.shard[d->shards.count];
    MX8_TRY(mx8i_open_shard(path, s));
    d->shards.count++; /* closed from here on */
    s->start = d->total;
    d->total += s->count;
    for (int64_t i = 0; i < s->count && i < FIRST_LOOK; i++) MX8_TRY(check_token(d, s, i));
    return MX8_OK;
}

static enum mx8_status add_shards(struct mx8_data *d, char **paths, int64_t count) {
    d->shards.shard = mx8i_allocate((size_t)count * sizeof *d->shards.shard, "the table of token shards");
    if (!d->shards.shard) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < count; i++) MX8_TRY(add_shard(d, paths[i]));
    if (d->total == 0) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: no tokens in %lld shards", d->path, (long long)count);
    return MX8_OK;
}

enum mx8_status mx8i_open_shards(struct mx8_data *d) {
    char **paths;
    int64_t count;
    MX8_TRY(mx8i_list_files(d->path, mx8i_is_folder(d->path) ? ".bin" : NULL, &paths, &count));
    enum mx8_status status = add_shards(d, paths, count);
    mx8i_release_list(paths, count);
    if (status != MX8_OK) return status;
    d->description = mx8i_format_text("%lld token %s, %.2f M tokens under %s", (long long)d->shards.count,
        d->shards.count == 1 ? "shard" : "shards", (double)d->total / 1e6, d->path);
    d->read = read_shards;
    return MX8_OK;
}

void mx8i_close_shards(struct mx8_shards *s) {
    for (int64_t i = 0; i < s->count; i++) mx8i_close_shard(&s->shard[i]);
    mx8i_release(s->shard);
}

int mx8i_looks_like_shards(const char *path) {
    if (!mx8i_is_folder(path)) return has_suffix(path, ".bin");
    char **paths;
    int64_t count;
    if (mx8i_list_files(path, ".bin", &paths, &count) != MX8_OK) return 0;
    mx8i_release_list(paths, count);
    return count > 0;
}
