/* Token shards as llm.c writes them: a header of 256 int32 {magic, version, token count, 0 ...}, then the tokens.
 *     magic 20240520, version 1: uint16 tokens         magic 20240801, version 7: uint32 tokens
 * A file without either magic is bare: uint16 tokens from its first byte, uint32 when its name ends in ".u32.bin".
 * Shards of a folder are read in the byte order of their paths. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/source.h"

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

/* How many tokens there are, where they lie and how wide they are, from the file's first bytes (HEADER_BYTES of them,
 * or all) and its size. */
static enum mx8_status read_header(const char *path, const uint8_t *bytes, int64_t size, struct mx8_data_part *out) {
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        if (size < (int64_t)sizeof(int32_t) || load_int32(bytes) != headers[i].magic) continue;
        if (size < HEADER_BYTES)
            return MX8_FAIL(MX8_FORMAT_ERROR, "%s: the header is cut: %lld bytes, expected at least %d", path,
                (long long)size, HEADER_BYTES);
        int32_t version = load_int32(bytes + 4), count = load_int32(bytes + 8);
        if (version != headers[i].version)
            return MX8_FAIL(MX8_FORMAT_ERROR, "%s: magic %d with version %d, expected version %d", path,
                headers[i].magic, version, headers[i].version);
        if (count < 0 || size != HEADER_BYTES + (int64_t)count * headers[i].width)
            return MX8_FAIL(MX8_FORMAT_ERROR,
                "%s: the header says %d tokens of %d bytes, the file holds %lld bytes of them", path, count,
                headers[i].width, (long long)size - HEADER_BYTES);
        out->count = count;
        out->offset = HEADER_BYTES;
        out->width = headers[i].width;
        return MX8_OK;
    }
    int32_t width = has_suffix(path, ".u32.bin") ? 4 : 2;
    out->count = size / width;
    out->offset = 0;
    out->width = width;
    if (size % width)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: no llm.c header, and %lld bytes are no whole number of %d-byte tokens",
            path, (long long)size, width);
    return MX8_OK;
}

/* ---- a shard by itself ---- */

enum mx8_status mx8i_open_shard(const char *path, struct mx8_shard *s) {
    struct mx8_data_part layout = {0};
    *s = (struct mx8_shard){.path = mx8i_copy_text(path)};
    if (!s->path) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_map_file(path, &s->map);
    if (status == MX8_OK) status = read_header(path, s->map.data, (int64_t)s->map.size, &layout);
    if (status != MX8_OK) {
        mx8i_close_shard(s);
        return status;
    }
    s->tokens = s->map.data ? s->map.data + layout.offset : NULL;
    s->count = layout.count;
    s->width = layout.width;
    return MX8_OK;
}

void mx8i_close_shard(struct mx8_shard *s) {
    mx8i_unmap_file(&s->map);
    mx8i_release(s->path);
    *s = (struct mx8_shard){0};
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

/* ---- many as a stream ---- */

/* Tokens [from, from + n) of one shard, each checked against the vocabulary. */
static enum mx8_status read_tokens(
    const struct mx8_source *s, const struct mx8_data_part *p, int64_t from, int64_t n, int32_t *out) {
    size_t bytes = (size_t)n * (size_t)p->width;
    MX8_TRY(mx8i_read_data_file(s->files, p->file, p->offset + from * p->width, (uint8_t *)(out + n) - bytes, bytes));
    mx8i_widen_tokens(out, n, p->width);
    for (int64_t i = 0; i < n; i++)
        if ((uint32_t)out[i] >= (uint64_t)s->vocab_size)
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: token %lld is %u, expected less than model.vocab_size %lld",
                s->files->file[p->file].path, (long long)(from + i), (unsigned)(uint32_t)out[i],
                (long long)s->vocab_size);
    return MX8_OK;
}

static enum mx8_status read_shards(const struct mx8_source *s, int64_t at, int64_t n, int32_t *out) {
    for (const struct mx8_data_part *p = mx8i_find_data_part(s, at); n > 0; p++) {
        int64_t left = p->start + p->count - at, some = left < n ? left : n;
        if (some == 0) continue; /* an empty shard */
        MX8_TRY(read_tokens(s, p, at - p->start, some, out));
        at += some;
        out += some;
        n -= some;
    }
    return MX8_OK;
}

/* The first tokens of a shard that no manifest vouches for; the others are checked when they are read. */
static enum mx8_status look_at_tokens(struct mx8_source *s, const struct mx8_data_part *p) {
    int32_t tokens[4096];
    int64_t end = p->count < FIRST_LOOK ? p->count : FIRST_LOOK;
    for (int64_t at = 0, n; at < end; at += n) {
        n = end - at < 4096 ? end - at : 4096;
        MX8_TRY(read_tokens(s, p, at, n, tokens));
    }
    return MX8_OK;
}

/* Length of the folder's part of a path: 3 for "a/b/c". */
static size_t get_folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) : 0;
}

enum mx8_status mx8i_read_shard_ids(const char *path, int alone, int *found, struct mx8_ids *out) {
    size_t length = get_folder_length(path);
    const char *name = path + length + (path[length] == '/');
    char *folder = length         ? mx8i_format_text("%.*s", (int)length, path)
                   : *path == '/' ? mx8i_copy_text("/")
                                  : mx8i_copy_text(".");
    if (!folder) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_read_manifest(folder, alone ? name : NULL, found, out);
    mx8i_release(folder);
    return status;
}

/* The manifest of each folder that shards come from; *known: that of this path's folder says what its ids are. */
static enum mx8_status add_manifest(struct mx8_source *s, const char *path, int *known) {
    struct mx8_ids ids;
    MX8_TRY(mx8i_read_shard_ids(path, !mx8i_is_folder(s->path), known, &ids));
    if (!*known) return MX8_OK;
    int length = (int)get_folder_length(path);
    if (ids.vocabulary > s->vocab_size)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%.*s/manifest.json: the shards' tokenizer has %lld ids, expected at most model.vocab_size %lld", length,
            path, (long long)ids.vocabulary, (long long)s->vocab_size);
    if (s->ids.tokenizer[0] &&
        (strcmp(ids.tokenizer, s->ids.tokenizer) != 0 || ids.document_end != s->ids.document_end))
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%.*s/manifest.json: the shards were made by another tokenizer than those of a folder before it", length,
            path);
    ids.incomplete |= s->ids.incomplete;
    s->ids = ids;
    return MX8_OK;
}

static int in_same_folder(const char *a, const char *b) {
    size_t length = get_folder_length(a);
    return length == get_folder_length(b) && !strncmp(a, b, length);
}

static enum mx8_status add_shard(struct mx8_source *s, const char *path, struct mx8_data_part *p) {
    uint8_t first[HEADER_BYTES];
    int64_t size = s->files->file[p->file].size, look = size < HEADER_BYTES ? size : HEADER_BYTES;
    if (!s->n_parts || !in_same_folder(path, s->files->file[s->part[s->n_parts - 1].file].path))
        MX8_TRY(add_manifest(s, path, &s->vouched));
    MX8_TRY(mx8i_read_data_file(s->files, p->file, 0, first, (size_t)look));
    MX8_TRY(read_header(path, first, size, p));
    if (!s->vouched) MX8_TRY(look_at_tokens(s, p));
    mx8i_append_data_part(s, p);
    return MX8_OK;
}

static enum mx8_status choose_document_end(struct mx8_source *s) {
    if (s->options->document_end >= 0) s->ids.document_end = s->options->document_end;
    if (s->ids.document_end < 0) s->ids.document_end = MX8_EOS;
    if (s->options->document_end < s->vocab_size) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: documents end with token %lld, expected less than model.vocab_size %lld",
        s->path, (long long)s->options->document_end, (long long)s->vocab_size);
}

enum mx8_status mx8i_open_shards(struct mx8_source *s) {
    int64_t count;
    MX8_TRY(mx8i_add_data_parts(s, mx8i_is_folder(s->path) ? ".bin" : NULL, add_shard, &count));
    if (s->total == 0) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: no tokens in %lld shards", s->path, (long long)count);
    MX8_TRY(choose_document_end(s));
    s->description = mx8i_format_text("%lld token %s, %.2f M tokens under %s, documents end with %lld%s",
        (long long)s->n_parts, s->n_parts == 1 ? "shard" : "shards", (double)s->total / 1e6, s->path,
        (long long)s->ids.document_end, s->ids.incomplete ? " (mx8 tokenize has not finished there)" : "");
    s->read = read_shards;
    return MX8_OK;
}

int mx8i_looks_like_shards(const char *path) {
    if (!mx8i_is_folder(path)) return has_suffix(path, ".bin");
    char **paths;
    int64_t count;
    if (mx8i_list_files(path, ".bin", &paths, &count) != MX8_OK) return 0;
    mx8i_release_list(paths, count);
    return count > 0;
}
