/* Reading safetensors. The file is untrusted: nothing of it is used before everything is checked. */
#include "base/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/safetensors_dtypes.h"

/* The first row of a dtype is the one written. */
static const struct {
    const char *name;
    int32_t dtype;
} dtypes[] = {
    {"F32", MX8_F32},
    {"BF16", MX8_BF16},
    {"F8_E4M3", MX8_F8_E4M3},
    {"F8_E5M2", MX8_F8_E5M2},
    {"F8_E8M0", MX8_F8_E8M0},
    {"U8", MX8_U8},
    {"I32", MX8_I32},
    {"I64", MX8_I64},
    {"F64", MX8_F64},
    {"BOOL", MX8_U8},
};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

int32_t mx8i_find_st_dtype(const char *name) {
    for (int i = 0; i < DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) return dtypes[i].dtype;
    return -1;
}

const char *mx8i_get_st_dtype_name(int32_t dtype) {
    for (int i = 0; i < DTYPES; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return NULL;
}

int mx8i_compute_st_size(int32_t dtype, int32_t ndim, const int64_t *shape, size_t *size) {
    size_t bytes = mx8_get_dtype_size(dtype);
    int is_empty = 0;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0) return -1;
        if (shape[i] == 0)
            is_empty = 1; /* the other lengths must still be sane */
        else if (__builtin_mul_overflow(bytes, (size_t)shape[i], &bytes) || bytes > INT64_MAX)
            return -1;
    }
    *size = is_empty ? 0 : bytes;
    return 0;
}

static enum mx8_status read_shape(const json_t *json, const char *path, struct mx8_st_entry *entry) {
    if (!json_is_array(json) || json_array_size(json) > MX8_ST_MAX_DIMS)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor \"%s\": shape is no array of at most %d lengths", path,
            entry->name, MX8_ST_MAX_DIMS);
    entry->ndim = (int32_t)json_array_size(json);
    for (int32_t i = 0; i < entry->ndim; i++) {
        const json_t *length = json_array_get(json, (size_t)i);
        if (!json_is_integer(length) || json_integer_value(length) < 0)
            return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor \"%s\": length %d of its shape is no integer >= 0", path,
                entry->name, (int)i);
        entry->shape[i] = json_integer_value(length);
    }
    return MX8_OK;
}

/* data_offsets, relative to the end of the header: must span exactly what dtype and shape need, inside the file. */
static enum mx8_status read_range(
    const json_t *json, const char *path, struct mx8_st_entry *entry, const uint8_t *data, size_t data_size) {
    const json_t *begin_json = json_array_get(json, 0), *end_json = json_array_get(json, 1);
    if (json_array_size(json) != 2 || !json_is_integer(begin_json) || !json_is_integer(end_json))
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor \"%s\": data_offsets are no pair of integers", path, entry->name);
    int64_t begin = json_integer_value(begin_json), end = json_integer_value(end_json);
    if (begin < 0 || end < begin || (uint64_t)end > data_size)
        return MX8_FAIL(MX8_FORMAT_ERROR,
            "%s: tensor \"%s\": bytes %lld to %lld are not inside the file's %zu bytes of data", path, entry->name,
            (long long)begin, (long long)end, data_size);
    if (mx8i_compute_st_size(entry->dtype, entry->ndim, entry->shape, &entry->size))
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor \"%s\": its shape overflows 64 bits", path, entry->name);
    if (entry->size != (size_t)(end - begin))
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor \"%s\": holds %lld bytes, its shape and dtype need %zu", path,
            entry->name, (long long)(end - begin), entry->size);
    entry->data = data + begin;
    return MX8_OK;
}

static enum mx8_status read_entry(const char *name, const json_t *json, const char *path, const uint8_t *data,
    size_t data_size, struct mx8_st_entry *entry) {
    entry->name = mx8i_copy_text(name);
    if (!entry->name) return MX8_OUT_OF_MEMORY;
    const char *dtype = json_string_value(json_object_get(json, "dtype"));
    if (!dtype) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor \"%s\": has no dtype", path, name);
    entry->dtype = mx8i_find_st_dtype(dtype);
    if (entry->dtype < 0)
        return MX8_FAIL(
            MX8_FORMAT_ERROR, "%s: tensor \"%s\": dtype \"%s\" is not one that mx8 reads", path, name, dtype);
    MX8_TRY(read_shape(json_object_get(json, "shape"), path, entry));
    return read_range(json_object_get(json, "data_offsets"), path, entry, data, data_size);
}

static enum mx8_status read_metadata(json_t *json, const char *path, struct mx8_safetensors *st) {
    if (!json_is_object(json)) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: __metadata__ is no table of texts", path);
    size_t bytes = json_object_size(json) * sizeof(char *);
    st->meta_key = mx8i_allocate(bytes, "metadata");
    st->meta_value = mx8i_allocate(bytes, "metadata");
    if (!st->meta_key || !st->meta_value) return MX8_OUT_OF_MEMORY;
    const char *key;
    json_t *value;
    json_object_foreach(json, key, value) {
        if (!json_is_string(value)) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: __metadata__: \"%s\" is no text", path, key);
        int64_t i = st->meta_count++;
        st->meta_key[i] = mx8i_copy_text(key);
        st->meta_value[i] = mx8i_copy_text(json_string_value(value));
        if (!st->meta_key[i] || !st->meta_value[i]) return MX8_OUT_OF_MEMORY;
    }
    return MX8_OK;
}

static int compare_ranges(const void *a, const void *b) {
    const struct mx8_st_entry *x = *(const struct mx8_st_entry *const *)a, *y = *(const struct mx8_st_entry *const *)b;
    const uint8_t *begin_x = x->data, *begin_y = y->data;
    if (begin_x != begin_y) return begin_x < begin_y ? -1 : 1;
    return x->size < y->size ? -1 : x->size > y->size; /* an empty tensor stands before the one that starts there */
}

/* In order of offset every tensor starts where the one before ends, and the last ends the file. */
static enum mx8_status check_coverage(
    const struct mx8_safetensors *st, const char *path, const uint8_t *data, size_t data_size) {
    const struct mx8_st_entry **order = mx8i_allocate((size_t)st->count * sizeof *order, "a list of tensors");
    if (!order) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < st->count; i++) order[i] = &st->entry[i];
    qsort(order, (size_t)st->count, sizeof *order, compare_ranges);
    enum mx8_status status = MX8_OK;
    const uint8_t *end = data;
    for (int64_t i = 0; i < st->count && status == MX8_OK; i++) {
        const uint8_t *begin = order[i]->data;
        if (begin != end)
            status = MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor \"%s\": starts at byte %zu of the data, %s, expected %zu",
                path, order[i]->name, (size_t)(begin - data), begin < end ? "inside another tensor" : "after a hole",
                (size_t)(end - data));
        end = begin + order[i]->size;
    }
    if (status == MX8_OK && (size_t)(end - data) != data_size)
        status = MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensors end at byte %zu of the data, the file goes on to %zu", path,
            (size_t)(end - data), data_size);
    mx8i_release(order);
    return status;
}

static enum mx8_status read_entries(
    json_t *root, const char *path, const uint8_t *data, size_t data_size, struct mx8_safetensors *st) {
    st->entry = mx8i_allocate(json_object_size(root) * sizeof *st->entry, "a list of tensors");
    if (!st->entry) return MX8_OUT_OF_MEMORY;
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value) { /* jansson keeps the order of the text */
        if (strcmp(name, "__metadata__") == 0)
            MX8_TRY(read_metadata(value, path, st));
        else
            MX8_TRY(read_entry(name, value, path, data, data_size, &st->entry[st->count++]));
    }
    return check_coverage(st, path, data, data_size);
}

static enum mx8_status read_header(const char *path, struct mx8_safetensors *st) {
    const uint8_t *file = st->map.data;
    if (st->map.size < 8)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: %zu bytes, expected at least the 8 of a safetensors header length", path,
            st->map.size);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | file[i];
    if (length > st->map.size - 8 || length > MX8_ST_MAX_HEADER)
        return MX8_FAIL(MX8_FORMAT_ERROR,
            "%s: header of %llu bytes, expected at most %zu (is this a safetensors file?)", path,
            (unsigned long long)length, st->map.size - 8 < MX8_ST_MAX_HEADER ? st->map.size - 8 : MX8_ST_MAX_HEADER);
    if (length == 0 || file[8] != '{') return MX8_FAIL(MX8_FORMAT_ERROR, "%s: header does not begin with '{'", path);
    json_error_t error;
    json_t *root = json_loadb((const char *)file + 8, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return json_error_code(&error) == json_error_out_of_memory
                   ? MX8_FAIL(MX8_OUT_OF_MEMORY, "out of memory for the header")
                   : MX8_FAIL(MX8_FORMAT_ERROR, "%s: header, byte %d: %s", path, error.position, error.text);
    enum mx8_status status = read_entries(root, path, file + 8 + length, st->map.size - 8 - (size_t)length, st);
    json_decref(root);
    return status;
}

enum mx8_status mx8i_open_safetensors(const char *path, struct mx8_safetensors *out) {
    *out = (struct mx8_safetensors){0};
    MX8_TRY(mx8i_map_file(path, &out->map));
    enum mx8_status status = read_header(path, out);
    if (status == MX8_OUT_OF_MEMORY) mx8i_fail_prefix(status, "%s", path);
    if (status != MX8_OK) mx8i_close_safetensors(out);
    return status;
}

void mx8i_close_safetensors(struct mx8_safetensors *st) {
    for (int64_t i = 0; i < st->count; i++) mx8i_release(st->entry[i].name);
    for (int64_t i = 0; i < st->meta_count; i++) {
        mx8i_release(st->meta_key[i]);
        mx8i_release(st->meta_value[i]);
    }
    mx8i_release(st->entry);
    mx8i_release(st->meta_key);
    mx8i_release(st->meta_value);
    mx8i_unmap_file(&st->map);
    *st = (struct mx8_safetensors){0};
}

const struct mx8_st_entry *mx8i_find_tensor(const struct mx8_safetensors *st, const char *name) {
    for (int64_t i = 0; i < st->count; i++)
        if (strcmp(st->entry[i].name, name) == 0) return &st->entry[i];
    return NULL;
}
