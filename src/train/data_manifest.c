/* What `mx8 tokenize` wrote beside its shards: which tokenizer made the ids, and which shards there are. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/source.h"

#define MAX_MANIFEST ((size_t)1 << 28)

static enum mx8_status check_shard(const char *path, const char *folder, const json_t *entry) {
    struct stat state = {0};
    const char *name = json_string_value(json_object_get(entry, "file"));
    if (!name) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: a shard without \"file\"", path);
    long long bytes = (long long)json_integer_value(json_object_get(entry, "bytes"));
    char *shard = mx8i_format_text("%s/%s", folder, name);
    if (!shard) return MX8_OUT_OF_MEMORY;
    int missing = stat(shard, &state) != 0;
    mx8i_release(shard);
    if (missing) return MX8_FAIL(MX8_IO_ERROR, "%s lists %s, which is not there", path, name);
    if (state.st_size != bytes)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s lists %s with %lld bytes, the file has %lld", path, name, bytes,
            (long long)state.st_size);
    return MX8_OK;
}

static enum mx8_status read_ids(const char *path, const json_t *root, struct mx8_ids *out) {
    const json_t *tokenizer = json_object_get(json_object_get(root, "made_from"), "tokenizer");
    const json_t *vocabulary = json_object_get(tokenizer, "vocabulary"), *eos = json_object_get(tokenizer, "eos");
    const char *hash = json_string_value(json_object_get(tokenizer, "sha256"));
    if (!hash || !json_is_integer(vocabulary) || !json_is_integer(eos))
        return MX8_FAIL(MX8_FORMAT_ERROR,
            "%s: made_from.tokenizer lacks one of sha256, vocabulary and eos, or it has another type", path);
    snprintf(out->tokenizer, sizeof out->tokenizer, "%s", hash);
    out->vocabulary = json_integer_value(vocabulary);
    out->document_end = json_integer_value(eos);
    out->incomplete = !json_is_true(json_object_get(root, "complete"));
    if (out->document_end < 0 || out->document_end >= out->vocabulary)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: eos is %lld, expected 0 to %lld", path, (long long)out->document_end,
            (long long)out->vocabulary - 1);
    return MX8_OK;
}

/* Another program's manifest.json is none of ours. */
static int is_ours(const json_t *root) {
    const char *format = json_string_value(json_object_get(root, "format"));
    return format && !strcmp(format, "mx8 token shards");
}

static enum mx8_status read_root(
    const char *path, const char *folder, const char *only, const json_t *root, struct mx8_ids *out) {
    size_t index;
    const json_t *entry;
    MX8_TRY(read_ids(path, root, out));
    json_array_foreach(json_object_get(root, "shards"), index, entry) {
        const char *name = json_string_value(json_object_get(entry, "file"));
        if (!only || (name && !strcmp(name, only))) MX8_TRY(check_shard(path, folder, entry));
    }
    return MX8_OK;
}

enum mx8_status mx8i_read_manifest(const char *folder, const char *only, int *found, struct mx8_ids *out) {
    char *path = mx8i_format_text("%s/manifest.json", folder), *text = NULL;
    size_t size;
    json_error_t error;
    *found = 0;
    *out = (struct mx8_ids){.document_end = -1};
    if (!path) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = MX8_OK;
    if (mx8i_is_file(path)) status = mx8i_read_file(path, MAX_MANIFEST, &text, &size);
    if (status == MX8_OK && text) {
        json_t *root = json_loadb(text, size, 0, &error);
        if (!root)
            status = MX8_FAIL(MX8_FORMAT_ERROR, "%s: line %d: %s", path, error.line, error.text);
        else if (is_ours(root))
            status = read_root(path, folder, only, root, out);
        *found = status == MX8_OK && root && is_ours(root);
        json_decref(root);
    }
    mx8i_release(text);
    mx8i_release(path);
    return status;
}
