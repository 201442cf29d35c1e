/* The manifest as JSON. "checksum" is the SHA-256 sum of the same object without it, printed compactly with sorted
 * keys: a manifest that was cut off or changed by a single bit is told from a good one. There are no fractions in it,
 * so that every JSON library prints the same text. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/safetensors_dtypes.h"
#include "train/checkpoint.h"
#include "train/sha256.h"

static const char format_name[] = "mx8 checkpoint";
static const char *const kinds[] = {[MX8_CHECKPOINT_FULL] = "full", [MX8_CHECKPOINT_MODEL] = "model"};

/* ---- printing ---- */

static json_t *print_facts(const struct mx8_facts *f) {
    json_t *object = json_object();
    for (int64_t i = 0; i < f->count; i++) {
        /* an option may hold any bytes: what is no UTF-8 is told by a mark, not by failing to save */
        json_t *value = json_string(f->fact[i].value);
        json_object_set_new(object, f->fact[i].key, value ? value : json_string("(not UTF-8)"));
    }
    return object;
}

static json_t *print_files(const struct mx8_manifest *m) {
    json_t *list = json_array();
    for (int64_t i = 0; i < m->n_files; i++) {
        const struct mx8_stored_file *f = &m->file[i];
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:s}", "name", f->name, "size", (json_int_t)f->size, "sha256", f->sha256));
    }
    return list;
}

/* The pieces are sorted by tensor: *at walks along. */
static json_t *print_tensor(const struct mx8_manifest *m, int64_t index, int64_t *at) {
    const struct mx8_stored_tensor *t = &m->tensor[index];
    json_t *shape = json_array(), *pieces = json_array();
    for (int32_t d = 0; d < t->ndim; d++) json_array_append_new(shape, json_integer(t->shape[d]));
    for (; *at < m->n_pieces && m->piece[*at].tensor == index; ++*at) {
        const struct mx8_stored_piece *p = &m->piece[*at];
        json_array_append_new(
            pieces, json_pack("[I, I, I]", (json_int_t)p->file, (json_int_t)p->start, (json_int_t)p->count));
    }
    return json_pack("{s:s, s:s, s:o, s:o}", "name", t->name, "dtype", mx8i_get_st_dtype_name(t->dtype), "shape", shape,
        "pieces", pieces);
}

static enum mx8_status compute_checksum(const json_t *root, char hex[65]) {
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text) return MX8_FAIL(MX8_OUT_OF_MEMORY, "out of memory for a checkpoint's manifest");
    struct mx8_sha256 h;
    mx8i_begin_sha256(&h);
    mx8i_add_sha256(&h, text, strlen(text));
    mx8i_end_sha256(&h, hex);
    free(text); /* jansson's, from the C library */
    return MX8_OK;
}

/* One line a fact, a file, a tensor: for people, and for `grep`. */
static void print_members(FILE *out, json_t *object, const char *indent) {
    const char *key;
    json_t *value;
    size_t left = json_object_size(object);
    json_object_foreach(object, key, value) {
        const char *end = --left ? ",\n" : "\n";
        fprintf(out, "%s\"%s\": ", indent, key); /* keys are names of options: nothing to escape */
        if (json_is_object(value)) {
            fprintf(out, "{\n");
            print_members(out, value, "  ");
            fprintf(out, "%s}%s", indent, end);
            continue;
        }
        if (!json_is_array(value)) {
            json_dumpf(value, out, JSON_ENCODE_ANY | JSON_COMPACT);
            fputs(end, out);
            continue;
        }
        fprintf(out, "[");
        for (size_t i = 0; i < json_array_size(value); i++) {
            fprintf(out, i ? ",\n  " : "\n  ");
            json_dumpf(json_array_get(value, i), out, 0);
        }
        fprintf(out, "\n%s]%s", indent, end);
    }
}

static char *print_lines(json_t *root) {
    char *buffer = NULL, *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&buffer, &size);
    if (!out) return NULL;
    fprintf(out, "{\n");
    print_members(out, root, " ");
    fprintf(out, "}\n");
    int failed = ferror(out);
    if (fclose(out) == 0 && !failed) text = mx8i_copy_text(buffer);
    free(buffer); /* the C library's */
    return text;
}

enum mx8_status mx8i_print_manifest(const struct mx8_manifest *m, char **text) {
    *text = NULL;
    json_t *tensors = json_array();
    for (int64_t i = 0, at = 0; i < m->n_tensors; i++) json_array_append_new(tensors, print_tensor(m, i, &at));
    const struct mx8_progress *p = &m->progress;
    json_t *root = json_pack("{s:s, s:i, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "format", format_name,
        "version", MX8_MANIFEST_VERSION, "mx8", mx8_get_version_text(), "kind", kinds[m->kind], "step",
        (json_int_t)p->step, "position", (json_int_t)p->position, "schedule_step", (json_int_t)p->schedule_step,
        "updates", (json_int_t)p->updates, "ranks", (json_int_t)m->ranks, "job", print_facts(&m->job), "options",
        print_facts(&m->options), "files", print_files(m), "tensors", tensors);
    if (!root) return MX8_FAIL(MX8_OUT_OF_MEMORY, "out of memory for a checkpoint's manifest");
    char hex[65];
    enum mx8_status status = compute_checksum(root, hex);
    if (status == MX8_OK) {
        json_object_set_new(root, "checksum", json_string(hex));
        *text = print_lines(root);
        if (!*text) status = MX8_FAIL(MX8_OUT_OF_MEMORY, "out of memory for a checkpoint's manifest");
    }
    json_decref(root);
    return status;
}

/* ---- parsing ---- */

static enum mx8_status get_integer(const json_t *object, const char *key, const char *where, int64_t *out) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: \"%s\" is no integer from 0 on", where, key);
    *out = json_integer_value(value);
    return MX8_OK;
}

static enum mx8_status get_text(const json_t *object, const char *key, const char *where, const char **out) {
    *out = json_string_value(json_object_get(object, key));
    return *out ? MX8_OK : MX8_FAIL(MX8_FORMAT_ERROR, "%s: \"%s\" is no text", where, key);
}

static enum mx8_status parse_facts(json_t *root, const char *key, const char *where, struct mx8_facts *out) {
    json_t *object = json_object_get(root, key), *value;
    const char *name;
    if (!json_is_object(object)) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: \"%s\" is no object", where, key);
    json_object_foreach(object, name, value) {
        if (!json_is_string(value)) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: %s.\"%s\" is no text", where, key, name);
        MX8_TRY(mx8i_add_fact(out, name, json_string_value(value)));
    }
    return MX8_OK;
}

/* A file's name is one in the checkpoint's own folder. */
static int is_plain_name(const char *name) {
    return name[0] && name[0] != '.' && !strchr(name, '/');
}

static enum mx8_status parse_file(const json_t *json, const char *where, struct mx8_manifest *m) {
    const char *name, *sha256;
    int64_t size;
    MX8_TRY(get_text(json, "name", where, &name));
    MX8_TRY(get_text(json, "sha256", where, &sha256));
    MX8_TRY(get_integer(json, "size", where, &size));
    if (!is_plain_name(name) || strlen(sha256) != 64)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: file \"%s\" with sum \"%s\", expected a plain name and 64 digits", where,
            name, sha256);
    return mx8i_add_stored_file(m, name, size, sha256);
}

static enum mx8_status parse_pieces(const json_t *list, const char *where, int64_t tensor, struct mx8_manifest *m) {
    int64_t total = m->tensor[tensor].count;
    const char *name = m->tensor[tensor].name;
    if (!json_is_array(list)) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor %s has no pieces", where, name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        struct mx8_stored_piece p = {.tensor = tensor,
            .file = json_integer_value(json_array_get(item, 0)),
            .start = json_integer_value(json_array_get(item, 1)),
            .count = json_integer_value(json_array_get(item, 2))};
        if (json_array_size(item) != 3 || p.file < 0 || p.file >= m->n_files || p.start < 0 || p.start > total ||
            p.count < 0 || p.count > total - p.start)
            return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor %s: piece %zu is not inside it or its file", where, name, i);
        MX8_TRY(mx8i_add_stored_piece(m, &p));
    }
    return MX8_OK;
}

static enum mx8_status parse_tensor(const json_t *json, const char *where, struct mx8_manifest *m) {
    struct mx8_stored_tensor t = {0};
    const char *name, *dtype;
    MX8_TRY(get_text(json, "name", where, &name));
    MX8_TRY(get_text(json, "dtype", where, &dtype));
    const json_t *shape = json_object_get(json, "shape");
    size_t ndim = json_array_size(shape), bytes;
    t.dtype = mx8i_find_st_dtype(dtype);
    if (t.dtype < 0 || !json_is_array(shape) || ndim > MX8_ST_MAX_DIMS)
        return MX8_FAIL(
            MX8_FORMAT_ERROR, "%s: tensor %s: dtype %s with %zu dimensions is not known", where, name, dtype, ndim);
    t.ndim = (int32_t)ndim;
    for (size_t d = 0; d < ndim; d++) t.shape[d] = json_integer_value(json_array_get(shape, d));
    if (mx8i_compute_st_size(t.dtype, t.ndim, t.shape, &bytes))
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor %s: a length is negative or the shape overflows", where, name);
    t.count = (int64_t)(bytes / mx8_get_dtype_size(t.dtype));
    if (mx8i_find_stored_tensor(m, name) >= 0)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor %s is listed twice", where, name);
    int64_t index;
    t.name = (char *)(uintptr_t)name; /* copied */
    MX8_TRY(mx8i_add_stored_tensor(m, &t, &index));
    return parse_pieces(json_object_get(json, "pieces"), where, index, m);
}

static enum mx8_status check_checksum(json_t *root, const char *where) {
    const char *found;
    char kept[65], hex[65];
    MX8_TRY(get_text(root, "checksum", where, &found));
    snprintf(kept, sizeof kept, "%s", found);
    json_object_del(root, "checksum");
    MX8_TRY(compute_checksum(root, hex));
    if (!strcmp(hex, kept)) return MX8_OK;
    return MX8_FAIL(MX8_FORMAT_ERROR, "%s: its checksum is %s, its contents give %s: it was changed", where, kept, hex);
}

static enum mx8_status parse_head(json_t *root, const char *where, struct mx8_manifest *m) {
    const char *format = json_string_value(json_object_get(root, "format")), *kind;
    int64_t version;
    if (!format || strcmp(format, format_name))
        return MX8_FAIL(
            MX8_FORMAT_ERROR, "%s: is no manifest of a checkpoint (\"format\" is not \"%s\")", where, format_name);
    MX8_TRY(get_integer(root, "version", where, &version));
    if (version != MX8_MANIFEST_VERSION)
        return MX8_FAIL(MX8_UNSUPPORTED, "%s: is of version %lld, this mx8 (%s) reads version %d", where,
            (long long)version, mx8_get_version_text(), MX8_MANIFEST_VERSION);
    MX8_TRY(check_checksum(root, where));
    MX8_TRY(get_text(root, "kind", where, &kind));
    m->kind = strcmp(kind, kinds[MX8_CHECKPOINT_MODEL]) ? MX8_CHECKPOINT_FULL : MX8_CHECKPOINT_MODEL;
    MX8_TRY(get_integer(root, "step", where, &m->progress.step));
    MX8_TRY(get_integer(root, "position", where, &m->progress.position));
    MX8_TRY(get_integer(root, "schedule_step", where, &m->progress.schedule_step));
    MX8_TRY(get_integer(root, "updates", where, &m->progress.updates));
    MX8_TRY(get_integer(root, "ranks", where, &m->ranks));
    MX8_TRY(parse_facts(root, "job", where, &m->job));
    return parse_facts(root, "options", where, &m->options);
}

static enum mx8_status parse_root(json_t *root, const char *where, struct mx8_manifest *m) {
    MX8_TRY(parse_head(root, where, m));
    const json_t *files = json_object_get(root, "files"), *tensors = json_object_get(root, "tensors");
    if (!json_is_array(files) || !json_is_array(tensors))
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: \"files\" or \"tensors\" is no list", where);
    for (size_t i = 0; i < json_array_size(files); i++) MX8_TRY(parse_file(json_array_get(files, i), where, m));
    for (size_t i = 0; i < json_array_size(tensors); i++) MX8_TRY(parse_tensor(json_array_get(tensors, i), where, m));
    mx8i_sort_pieces(m);
    return MX8_OK;
}

enum mx8_status mx8i_parse_manifest(const char *text, size_t size, const char *where, struct mx8_manifest *out) {
    json_error_t error;
    *out = (struct mx8_manifest){0};
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return json_error_code(&error) == json_error_out_of_memory
                   ? MX8_FAIL(MX8_OUT_OF_MEMORY, "%s: out of memory", where)
                   : MX8_FAIL(
                         MX8_FORMAT_ERROR, "%s: is cut off or changed: line %d: %s", where, error.line, error.text);
    enum mx8_status status = parse_root(root, where, out);
    json_decref(root);
    if (status != MX8_OK) mx8i_free_manifest(out);
    return status;
}
