/* Writing safetensors: the header is made from the descriptions first, so tensors can stream behind it. */
#include "base/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/safetensors_dtypes.h"

enum { DATA_ALIGNMENT = 64 };

static enum mx8_status check_entry(const char *path, const struct mx8_st_entry *entry, size_t *size) {
    if (!mx8i_get_st_dtype_name(entry->dtype))
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: tensor \"%s\": %d is no dtype", path, entry->name, (int)entry->dtype);
    if (entry->ndim < 0 || entry->ndim > MX8_ST_MAX_DIMS)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: tensor \"%s\": ndim is %d, expected 0 to %d", path, entry->name,
            (int)entry->ndim, MX8_ST_MAX_DIMS);
    if (mx8i_compute_st_size(entry->dtype, entry->ndim, entry->shape, size))
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: tensor \"%s\": its shape is negative or overflows", path, entry->name);
    if (strcmp(entry->name, "__metadata__") == 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: the tensor name \"__metadata__\" is reserved", path);
    return MX8_OK;
}

/* Takes over value. jansson refuses a key or text that is not UTF-8, and a value that could not be made. */
static enum mx8_status put(const char *path, json_t *object, const char *key, json_t *value) {
    if (json_object_get(object, key)) {
        json_decref(value);
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: the name \"%s\" is given twice", path, key);
    }
    if (json_object_set_new(object, key, value))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: \"%s\" or its value is no UTF-8 (or memory ran out)", path, key);
    return MX8_OK;
}

static enum mx8_status put_metadata(const char *path, json_t *root, const char *const *metadata) {
    json_t *table = json_object();
    MX8_TRY(put(path, root, "__metadata__", table));
    for (; metadata[0]; metadata += 2) MX8_TRY(put(path, table, metadata[0], json_string(metadata[1])));
    return MX8_OK;
}

static enum mx8_status put_entries(const char *path, json_t *root, const struct mx8_st_entry *entries, int64_t count,
    const char *const *metadata, size_t *sizes) {
    if (metadata && metadata[0]) MX8_TRY(put_metadata(path, root, metadata));
    size_t offset = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct mx8_st_entry *entry = &entries[i];
        MX8_TRY(check_entry(path, entry, &sizes[i]));
        if (sizes[i] > INT64_MAX - offset)
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: the tensors together overflow 64 bits", path);
        json_t *shape = json_array();
        for (int32_t d = 0; d < entry->ndim; d++) json_array_append_new(shape, json_integer(entry->shape[d]));
        json_int_t begin = (json_int_t)offset, end = begin + (json_int_t)sizes[i];
        MX8_TRY(put(path, root, entry->name,
            json_pack("{s:s, s:o, s:[I, I]}", "dtype", mx8i_get_st_dtype_name(entry->dtype), "shape", shape,
                "data_offsets", begin, end)));
        offset += sizes[i];
    }
    return MX8_OK;
}

/* The length, the JSON, and spaces up to where the data may start. */
static enum mx8_status write_header(const char *path, const json_t *root, struct mx8_writer *file) {
    static const char spaces[DATA_ALIGNMENT + 1] = "                                                                ";
    char *text = json_dumps(root, JSON_COMPACT);
    if (!text) return MX8_FAIL(MX8_OUT_OF_MEMORY, "%s: out of memory for its header", path);
    size_t length = strlen(text), padding = -(8 + length) & (DATA_ALIGNMENT - 1), total = length + padding;
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)((uint64_t)total >> (8 * i));
    enum mx8_status status = MX8_OK;
    if (total > MX8_ST_MAX_HEADER)
        status = MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: header of %zu bytes, expected at most %zu", path, total, MX8_ST_MAX_HEADER);
    if (status == MX8_OK) status = mx8i_open_writer(path, file);
    if (status == MX8_OK) status = mx8i_write(file, prefix, sizeof prefix);
    if (status == MX8_OK) status = mx8i_write(file, text, length);
    if (status == MX8_OK) status = mx8i_write(file, spaces, padding);
    free(text); /* jansson's, from the C library */
    return status;
}

static void skip_full(struct mx8_st_writer *w) {
    while (w->next < w->count && w->done == w->size[w->next]) {
        w->next++;
        w->done = 0;
    }
}

enum mx8_status mx8i_begin_safetensors(const char *path, const struct mx8_st_entry *entries, int64_t count,
    const char *const *metadata, struct mx8_st_writer *w) {
    *w = (struct mx8_st_writer){.count = count};
    w->size = mx8i_allocate((size_t)count * sizeof *w->size, "a list of tensors");
    if (!w->size) return MX8_OUT_OF_MEMORY;
    json_t *root = json_object();
    enum mx8_status status = put_entries(path, root, entries, count, metadata, w->size);
    if (status == MX8_OK) status = write_header(path, root, &w->file);
    json_decref(root);
    if (status != MX8_OK) mx8i_abandon_safetensors(w);
    skip_full(w);
    return status;
}

enum mx8_status mx8i_write_tensor(struct mx8_st_writer *w, const void *data, size_t size) {
    size_t room = w->next < w->count ? w->size[w->next] - w->done : 0;
    if (size > room)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "mx8i_write_tensor: %zu bytes for tensor %lld of %lld, expected at most %zu", size, (long long)w->next,
            (long long)w->count, room);
    MX8_TRY(mx8i_write(&w->file, data, size));
    w->done += size;
    skip_full(w);
    return MX8_OK;
}

enum mx8_status mx8i_commit_safetensors(struct mx8_st_writer *w) {
    enum mx8_status status = MX8_OK;
    if (w->next < w->count)
        status = MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_commit_safetensors: tensor %lld of %lld is not complete",
            (long long)w->next, (long long)w->count);
    else
        status = mx8i_commit_writer(&w->file);
    mx8i_abandon_safetensors(w);
    return status;
}

void mx8i_abandon_safetensors(struct mx8_st_writer *w) {
    mx8i_abandon_writer(&w->file);
    mx8i_release(w->size);
    *w = (struct mx8_st_writer){0};
}
