#include "train/shard_writer.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "train/sha256.h"

enum { HEADER_WORDS = 256, PIECE = 4096, MAX_MANIFEST = 1 << 28 };
#define NAME_FORMAT "tokens_%06lld.bin"
#define MANIFEST    "manifest.json"

struct mx8_shard_writer {
    char *folder;
    int32_t width, complete;
    int64_t shard_tokens;
    json_t *made_from, *shards;
    struct mx8_writer file; /* of the shard at hand, when `writing` */
    int32_t writing;
    struct mx8_shard_counts done, here;
};

static char *join_path(const struct mx8_shard_writer *w, const char *name) {
    return mx8i_format_text("%s/%s", w->folder, name);
}

static void add_counts(struct mx8_shard_counts *sum, const struct mx8_shard_counts *more) {
    sum->tokens += more->tokens;
    sum->documents += more->documents;
    sum->records += more->records;
    sum->text_bytes += more->text_bytes;
    sum->replaced += more->replaced;
}

static struct mx8_shard_counts read_counts(const json_t *shard) {
    return (struct mx8_shard_counts){.tokens = json_integer_value(json_object_get(shard, "tokens")),
        .documents = json_integer_value(json_object_get(shard, "documents")),
        .records = json_integer_value(json_object_get(shard, "records")),
        .text_bytes = json_integer_value(json_object_get(shard, "text_bytes")),
        .replaced = json_integer_value(json_object_get(shard, "replaced_sequences"))};
}

static int set_counts(json_t *object, const struct mx8_shard_counts *c) {
    return json_object_set_new(object, "tokens", json_integer(c->tokens)) ||
           json_object_set_new(object, "documents", json_integer(c->documents)) ||
           json_object_set_new(object, "records", json_integer(c->records)) ||
           json_object_set_new(object, "text_bytes", json_integer(c->text_bytes)) ||
           json_object_set_new(object, "replaced_sequences", json_integer(c->replaced));
}

static enum mx8_status write_manifest(struct mx8_shard_writer *w, int complete) {
    json_t *root = json_pack("{s:s, s:i, s:b, s:s, s:O}", "format", "mx8 token shards", "version", 1, "complete",
        complete, "dtype", w->width == 2 ? "uint16" : "uint32", "made_from", w->made_from);
    int failed = !root || set_counts(root, &w->done) || json_object_set(root, "shards", w->shards);
    char *text = failed ? NULL : json_dumps(root, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    char *path = join_path(w, MANIFEST);
    enum mx8_status status = MX8_OUT_OF_MEMORY;
    if (text && path) status = mx8i_write_text(path, text);
    free(text);
    mx8i_release(path);
    json_decref(root);
    if (status == MX8_OK) w->complete = complete;
    return status;
}

/* Whether a shard is still what the manifest says of it. */
static int matches(const struct mx8_shard_writer *w, const json_t *shard, int64_t index) {
    char expected[64], hash[65];
    const char *name = json_string_value(json_object_get(shard, "file"));
    const char *recorded = json_string_value(json_object_get(shard, "sha256"));
    snprintf(expected, sizeof expected, NAME_FORMAT, (long long)index);
    if (!name || !recorded || strcmp(name, expected) != 0) return 0;
    char *path = join_path(w, name);
    int same = path && mx8i_is_file(path) && mx8i_hash_file(path, hash) == MX8_OK && !strcmp(hash, recorded);
    mx8i_release(path);
    return same;
}

static enum mx8_status keep_shards(struct mx8_shard_writer *w, const char *path, const json_t *manifest) {
    const json_t *shards = json_object_get(manifest, "shards");
    if (!json_is_array(shards) || !json_is_object(json_object_get(manifest, "made_from")))
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: is no manifest of token shards; remove it or use another folder", path);
    const char *key;
    json_t *value, *old = json_object_get(manifest, "made_from");
    json_object_foreach(w->made_from, key, value) {
        if (json_equal(value, json_object_get(old, key))) continue;
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s: the shards there were made with another \"%s\"; use another folder, or --overwrite", path, key);
    }
    size_t index, kept = 0;
    json_array_foreach(shards, index, value) {
        if (!matches(w, value, (int64_t)index)) break;
        if (json_array_append(w->shards, value)) return MX8_OUT_OF_MEMORY;
        struct mx8_shard_counts counts = read_counts(value);
        add_counts(&w->done, &counts);
        kept++;
    }
    w->complete = kept == json_array_size(shards) && json_is_true(json_object_get(manifest, "complete"));
    return MX8_OK;
}

/* *found: there is a manifest. */
static enum mx8_status read_manifest(struct mx8_shard_writer *w, int overwrite, int *found) {
    char *path = join_path(w, MANIFEST), *text = NULL;
    size_t size;
    json_error_t error;
    if (!path) return MX8_OUT_OF_MEMORY;
    *found = mx8i_is_file(path);
    enum mx8_status status = MX8_OK;
    if (*found && !overwrite) {
        status = mx8i_read_file(path, MAX_MANIFEST, &text, &size);
        json_t *manifest = status == MX8_OK ? json_loadb(text, size, 0, &error) : NULL;
        if (manifest)
            status = keep_shards(w, path, manifest);
        else if (status == MX8_OK)
            status = MX8_FAIL(MX8_FORMAT_ERROR, "%s: line %d: %s", path, error.line, error.text);
        json_decref(manifest);
        mx8i_release(text);
    }
    mx8i_release(path);
    return status;
}

/* Shards that are not kept would be read as data: those of our own names go, others are not ours to remove. */
static enum mx8_status clear_folder(const struct mx8_shard_writer *w, int ours) {
    char **files;
    int64_t count, kept = (int64_t)json_array_size(w->shards);
    size_t prefix = strlen(w->folder) + 1;
    MX8_TRY(mx8i_list_files(w->folder, NULL, &files, &count));
    enum mx8_status status = MX8_OK;
    for (int64_t i = 0; i < count && status == MX8_OK; i++) {
        const char *name = files[i] + prefix, *dot = strrchr(name, '.');
        long long index = -1;
        int length = 0, named = sscanf(name, NAME_FORMAT "%n", &index, &length) == 1 && length > 0;
        if (named && index < kept && name[length] == 0) continue;
        if (named && ours) {
            if (unlink(files[i])) status = MX8_FAIL(MX8_IO_ERROR, "%s: cannot remove: %s", files[i], strerror(errno));
        } else if (dot && !strcmp(dot, ".bin")) {
            status = MX8_FAIL(MX8_INVALID_ARGUMENT,
                "%s: a .bin file without a manifest that lists it; shards need a folder of their own", files[i]);
        }
    }
    mx8i_release_list(files, count);
    return status;
}

static enum mx8_status fill_writer(struct mx8_shard_writer *w, const struct mx8_shard_options *o) {
    int found;
    size_t length = strlen(o->folder);
    while (length > 1 && o->folder[length - 1] == '/') length--;
    w->folder = mx8i_format_text("%.*s", (int)length, o->folder);
    w->made_from = json_deep_copy(o->made_from);
    w->shards = json_array();
    if (!w->folder || !w->made_from || !w->shards) return MX8_OUT_OF_MEMORY;
    MX8_TRY(mx8i_make_folders(w->folder));
    MX8_TRY(read_manifest(w, o->overwrite, &found));
    MX8_TRY(clear_folder(w, found || o->overwrite));
    return w->complete ? MX8_OK : write_manifest(w, 0); /* from now on the folder is known as ours */
}

enum mx8_status mx8i_open_shard_writer(const struct mx8_shard_options *options, struct mx8_shard_writer **out) {
    *out = NULL;
    if ((options->width != 2 && options->width != 4) || options->shard_tokens < 1)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_open_shard_writer: %d bytes a token, %lld tokens a shard",
            options->width, (long long)options->shard_tokens);
    struct mx8_shard_writer *w = mx8i_allocate(sizeof *w, "a shard writer");
    if (!w) return MX8_OUT_OF_MEMORY;
    w->width = options->width;
    w->shard_tokens = options->shard_tokens < INT32_MAX ? options->shard_tokens : INT32_MAX;
    enum mx8_status status = fill_writer(w, options);
    if (status != MX8_OK) {
        mx8i_close_shard_writer(w);
        return status;
    }
    *out = w;
    return MX8_OK;
}

void mx8i_close_shard_writer(struct mx8_shard_writer *w) {
    if (!w) return;
    if (w->writing) mx8i_abandon_writer(&w->file);
    json_decref(w->made_from);
    json_decref(w->shards);
    mx8i_release(w->folder);
    mx8i_release(w);
}

static enum mx8_status begin_shard(struct mx8_shard_writer *w) {
    static const int32_t zeros[HEADER_WORDS];
    char name[64];
    snprintf(name, sizeof name, NAME_FORMAT, (long long)json_array_size(w->shards));
    char *path = join_path(w, name);
    if (!path) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_open_writer(path, &w->file);
    mx8i_release(path);
    MX8_TRY(status);
    w->writing = 1;
    return mx8i_write(&w->file, zeros, sizeof zeros);
}

/* The header's place was written first; its bytes are still in the buffer, or on disk. */
static enum mx8_status write_header(struct mx8_shard_writer *w) {
    int32_t header[HEADER_WORDS] = {20240801, 7, (int32_t)w->here.tokens};
    if (w->width == 2) {
        header[0] = 20240520;
        header[1] = 1;
    }
    if (w->file.buffered == w->file.written) {
        memcpy(w->file.buffer, header, sizeof header);
        return MX8_OK;
    }
    if (pwrite(w->file.fd, header, sizeof header, 0) == (ssize_t)sizeof header) return MX8_OK;
    return MX8_FAIL(MX8_IO_ERROR, "%s: cannot write: %s", w->file.path, strerror(errno));
}

static enum mx8_status list_shard(struct mx8_shard_writer *w, const char *name, const char *hash) {
    int64_t bytes = HEADER_WORDS * (int64_t)sizeof(int32_t) + w->here.tokens * w->width;
    json_t *shard = json_pack("{s:s, s:I, s:s}", "file", name, "bytes", (json_int_t)bytes, "sha256", hash);
    if (!shard || set_counts(shard, &w->here) || json_array_append(w->shards, shard)) {
        json_decref(shard);
        return MX8_OUT_OF_MEMORY;
    }
    json_decref(shard);
    add_counts(&w->done, &w->here);
    w->here = (struct mx8_shard_counts){0};
    return MX8_OK;
}

/* The hash is of what the file system gives back. */
static enum mx8_status end_shard(struct mx8_shard_writer *w) {
    char name[64], hash[65];
    MX8_TRY(write_header(w));
    w->writing = 0;
    MX8_TRY(mx8i_commit_writer(&w->file));
    snprintf(name, sizeof name, NAME_FORMAT, (long long)json_array_size(w->shards));
    char *path = join_path(w, name);
    enum mx8_status status = path ? mx8i_hash_file(path, hash) : MX8_OUT_OF_MEMORY;
    mx8i_release(path);
    MX8_TRY(status);
    MX8_TRY(list_shard(w, name, hash));
    return write_manifest(w, 0);
}

static enum mx8_status write_tokens(struct mx8_shard_writer *w, const int32_t *tokens, int64_t count) {
    if (w->width == 4) return mx8i_write(&w->file, tokens, (size_t)count * 4);
    uint16_t narrow[PIECE];
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        for (int64_t i = 0; i < n; i++) narrow[i] = (uint16_t)tokens[at + i];
        MX8_TRY(mx8i_write(&w->file, narrow, (size_t)n * 2));
    }
    return MX8_OK;
}

enum mx8_status mx8i_append_document(
    struct mx8_shard_writer *w, const int32_t *tokens, int64_t count, const struct mx8_shard_counts *counts) {
    if (count > INT32_MAX)
        return MX8_FAIL(MX8_UNSUPPORTED, "%s: a document of %lld tokens, a shard holds at most %d", w->folder,
            (long long)count, INT32_MAX);
    if (w->here.tokens > INT32_MAX - count) MX8_TRY(end_shard(w));
    add_counts(&w->here, counts);
    if (count == 0) return MX8_OK;
    if (!w->writing) MX8_TRY(begin_shard(w));
    MX8_TRY(write_tokens(w, tokens, count));
    w->here.tokens += count;
    w->here.documents++;
    return w->here.tokens >= w->shard_tokens ? end_shard(w) : MX8_OK;
}

enum mx8_status mx8i_finish_shards(struct mx8_shard_writer *w) {
    if (w->writing) MX8_TRY(end_shard(w));
    return write_manifest(w, 1);
}

int64_t mx8i_count_shards(const struct mx8_shard_writer *w) {
    return (int64_t)json_array_size(w->shards);
}

int mx8i_is_complete(const struct mx8_shard_writer *w) {
    return w->complete;
}

struct mx8_shard_counts mx8i_sum_shards(const struct mx8_shard_writer *w) {
    struct mx8_shard_counts sum = w->done;
    add_counts(&sum, &w->here);
    return sum;
}
