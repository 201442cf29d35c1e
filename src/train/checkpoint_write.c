/* Pieces to safetensors files. Which element goes to which file is planned first, so that a file's header can be
 * written before its data, and data streams from where it lies. */
#include <jansson.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "model/config.h"
#include "train/checkpoint.h"
#include "train/sha256.h"

enum { CHUNK = 4 << 20 }; /* bytes that are fetched or converted at a time */

/* A part of a piece that goes to one file. */
struct part {
    const struct mx8_piece *piece;
    int64_t start, count, file; /* start: of the tensor's elements */
};

struct plan {
    struct part *part;
    int64_t n, capacity, files;
    size_t used; /* bytes of the last file so far */
};

struct writing {
    const char *folder;
    int32_t rank;
    const struct mx8_state *s;
    const struct mx8_exec *x;
    struct mx8_manifest *m;
    int32_t for_others; /* the files of weights, named and whole as other tools expect them */
    uint8_t *chunk;     /* CHUNK bytes fetched, then CHUNK bytes converted */
};

static enum mx8_status add_part(struct plan *plan, const struct part *part) {
    if (plan->n == plan->capacity) {
        int64_t capacity = plan->capacity ? 2 * plan->capacity : 64;
        struct part *larger = mx8i_reallocate(plan->part, (size_t)capacity * sizeof *larger, "parts of a checkpoint");
        if (!larger) return MX8_OUT_OF_MEMORY;
        plan->part = larger;
        plan->capacity = capacity;
    }
    plan->part[plan->n++] = *part;
    return MX8_OK;
}

static size_t get_stored_width(const struct mx8_state *s, const struct mx8_piece *piece) {
    return mx8_get_dtype_size(s->tensor[piece->tensor].stored);
}

/* split: a piece may span files. */
static enum mx8_status plan_piece(
    struct plan *plan, const struct mx8_state *s, const struct mx8_piece *piece, size_t max_bytes, int split) {
    size_t width = get_stored_width(s, piece);
    int64_t done = 0;
    if (piece->count == 0 && s->tensor[piece->tensor].count > 0) return MX8_OK; /* a process without a share */
    do {
        size_t bytes = (size_t)(piece->count - done) * width;
        if (plan->files == 0 ||
            (plan->used > 0 && (plan->used >= max_bytes || (!split && bytes > max_bytes - plan->used)))) {
            plan->files++;
            plan->used = 0;
        }
        size_t room = plan->used < max_bytes ? max_bytes - plan->used : 0;
        int64_t n = piece->count - done, fits = (int64_t)(room / width);
        if (split && n > fits) n = fits > 0 ? fits : 1;
        struct part part = {piece, piece->start + done, n, plan->files - 1};
        MX8_TRY(add_part(plan, &part));
        plan->used += (size_t)n * width;
        done += n;
    } while (done < piece->count);
    return MX8_OK;
}

/* "model-00001-of-00003.safetensors": other tools know these names. */
static char *make_file_name(const struct writing *w, int64_t file, int64_t files) {
    if (!w->for_others) return mx8i_format_text("state-%04d-%04lld.safetensors", (int)w->rank, (long long)file);
    if (files == 1) return mx8i_copy_text("model.safetensors");
    return mx8i_format_text("model-%05lld-of-%05lld.safetensors", (long long)file + 1, (long long)files);
}

static int is_whole(const struct mx8_state *s, const struct part *part) {
    return part->count == s->tensor[part->piece->tensor].count;
}

/* A part of a tensor stands in its file as "name[start:end]", flat. */
static enum mx8_status describe_part(const struct mx8_state *s, const struct part *part, struct mx8_st_entry *e) {
    const struct mx8_state_tensor *t = &s->tensor[part->piece->tensor];
    *e = (struct mx8_st_entry){.dtype = t->stored, .ndim = 1, .shape = {part->count}};
    if (is_whole(s, part)) {
        e->ndim = t->ndim;
        memcpy(e->shape, t->shape, sizeof t->shape);
        e->name = mx8i_copy_text(t->name);
    } else {
        e->name = mx8i_format_text(
            "%s[%lld:%lld]", t->name, (long long)part->start, (long long)part->start + (long long)part->count);
    }
    return e->name ? MX8_OK : MX8_OUT_OF_MEMORY;
}

/* Bytes of the part, chunk by chunk: straight from host memory, through the first half of the chunk from a device, and
 * rounded to bf16 in the second half when that is what is stored. */
static enum mx8_status write_part(struct writing *w, struct mx8_st_writer *file, const struct part *part) {
    const struct mx8_state_tensor *t = &w->s->tensor[part->piece->tensor];
    const size_t width = mx8_get_dtype_size(t->dtype);
    const int direct = part->piece->on_host || !w->x || w->x->ordinal < 0;
    const uint8_t *from = (const uint8_t *)part->piece->data + (size_t)(part->start - part->piece->start) * width;
    for (size_t at = 0, size = (size_t)part->count * width; at < size;) {
        const size_t n = size - at < CHUNK ? size - at : CHUNK;
        const uint8_t *source = from + at;
        if (!direct) {
            MX8_TRY(w->x->k->download(w->x, w->chunk, source, n));
            source = w->chunk;
        }
        size_t bytes = n;
        if (t->stored != t->dtype) {
            uint16_t *rounded = (uint16_t *)(void *)(w->chunk + CHUNK);
            bytes = n / sizeof(float) * sizeof *rounded;
            for (size_t i = 0; i < n / sizeof(float); i++) {
                float value;
                memcpy(&value, source + i * sizeof value, sizeof value);
                rounded[i] = mx8_encode_bf16(value);
            }
            source = w->chunk + CHUNK;
        }
        MX8_TRY(mx8i_write_tensor(file, source, bytes));
        at += n;
    }
    return MX8_OK;
}

static enum mx8_status write_parts(
    struct writing *w, const char *path, const struct part *part, int64_t n, struct mx8_st_entry *entry) {
    const char *config = w->for_others ? mx8i_get_fact(&w->m->job, MX8_CONFIG_KEY) : NULL;
    const char *const metadata[] = {"format", "pt", "writer", "mx8", config ? MX8_CONFIG_KEY : NULL, config, NULL};
    struct mx8_st_writer file;
    for (int64_t i = 0; i < n; i++) MX8_TRY(describe_part(w->s, &part[i], &entry[i]));
    MX8_TRY(mx8i_begin_safetensors(path, entry, n, metadata, &file));
    enum mx8_status status = MX8_OK;
    for (int64_t i = 0; i < n && status == MX8_OK; i++) status = write_part(w, &file, &part[i]);
    if (status == MX8_OK) return mx8i_commit_safetensors(&file);
    mx8i_abandon_safetensors(&file);
    return status;
}

static enum mx8_status note_parts(
    struct writing *w, const char *name, int64_t size, const char *sha256, const struct part *part, int64_t n) {
    MX8_TRY(mx8i_add_stored_file(w->m, name, size, sha256));
    for (int64_t i = 0; i < n; i++) {
        const struct mx8_state_tensor *t = &w->s->tensor[part[i].piece->tensor];
        struct mx8_stored_tensor stored = {.name = t->name, .dtype = t->stored, .ndim = t->ndim, .count = t->count};
        struct mx8_stored_piece piece = {.file = w->m->n_files - 1, .start = part[i].start, .count = part[i].count};
        memcpy(stored.shape, t->shape, sizeof t->shape);
        MX8_TRY(mx8i_add_stored_tensor(w->m, &stored, &piece.tensor));
        MX8_TRY(mx8i_add_stored_piece(w->m, &piece));
    }
    return MX8_OK;
}

/* The sum is that of the file as it reads back, not of what was meant to be written. */
static enum mx8_status hash_file(const char *path, int64_t *size, char hex[65]) {
    struct mx8_map map;
    MX8_TRY(mx8i_map_file(path, &map));
    *size = (int64_t)map.size;
    mx8i_unmap_file(&map);
    return mx8i_hash_file(path, hex);
}

static enum mx8_status write_file(struct writing *w, int64_t file, int64_t files, const struct part *part, int64_t n) {
    char *name = make_file_name(w, file, files), *path = name ? mx8i_format_text("%s/%s", w->folder, name) : NULL;
    struct mx8_st_entry *entry = mx8i_allocate((size_t)n * sizeof *entry, "a file's tensors");
    enum mx8_status status = path && entry ? write_parts(w, path, part, n, entry) : MX8_OUT_OF_MEMORY;
    char sha256[65];
    int64_t size = 0;
    if (status == MX8_OK) status = hash_file(path, &size, sha256);
    if (status == MX8_OK) status = note_parts(w, name, size, sha256, part, n);
    for (int64_t i = 0; entry && i < n; i++) mx8i_release(entry[i].name);
    mx8i_release(entry);
    mx8i_release(path);
    mx8i_release(name);
    return status;
}

static enum mx8_status write_text(const char *folder, const char *name, const char *text) {
    char *path = mx8i_format_text("%s/%s", folder, name);
    enum mx8_status status = path ? mx8i_write_file(path, text, strlen(text)) : MX8_OUT_OF_MEMORY;
    mx8i_release(path);
    return status;
}

/* Which tensor is in which of several files, for other tools. first: the first of those files. */
static enum mx8_status write_index(const char *folder, struct mx8_manifest *m, int64_t first) {
    json_t *map = json_object();
    json_int_t total = 0;
    for (int64_t i = 0; i < m->n_pieces; i++) {
        const struct mx8_stored_tensor *t = &m->tensor[m->piece[i].tensor];
        if (m->piece[i].file < first) continue;
        json_object_set_new(map, t->name, json_string(m->file[m->piece[i].file].name));
        total += (json_int_t)(t->count * (int64_t)mx8_get_dtype_size(t->dtype));
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", total, "weight_map", map);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!text) return MX8_FAIL(MX8_OUT_OF_MEMORY, "%s: out of memory for the index of weights", folder);
    static const char name[] = "model.safetensors.index.json";
    enum mx8_status status = write_text(folder, name, text);
    free(text); /* jansson's, from the C library */
    char *path = status == MX8_OK ? mx8i_format_text("%s/%s", folder, name) : NULL, sha256[65];
    int64_t size = 0;
    if (status == MX8_OK) status = path ? hash_file(path, &size, sha256) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = mx8i_add_stored_file(m, name, size, sha256);
    mx8i_release(path);
    return status;
}

static enum mx8_status write_plan(struct writing *w, const struct plan *plan) {
    int64_t first = w->m->n_files;
    for (int64_t at = 0, n; at < plan->n; at += n) {
        int64_t file = plan->part[at].file;
        for (n = 1; at + n < plan->n && plan->part[at + n].file == file;) n++;
        MX8_TRY(write_file(w, file, plan->files, plan->part + at, n));
    }
    return w->for_others && plan->files > 1 ? write_index(w->folder, w->m, first) : MX8_OK;
}

/* The pieces of weights, or all others; of many processes all of them are others. */
static enum mx8_status write_group(struct writing *w, int weights, size_t max_bytes) {
    struct plan plan = {0};
    enum mx8_status status = MX8_OK;
    w->for_others = weights;
    for (int64_t i = 0; i < w->s->n_pieces && status == MX8_OK; i++) {
        const struct mx8_piece *piece = &w->s->piece[i];
        int is_weight = w->m->ranks == 1 && w->s->tensor[piece->tensor].is_weight;
        /* other tools know no parts of tensors */
        if (is_weight == weights) status = plan_piece(&plan, w->s, piece, max_bytes, !weights);
    }
    if (status == MX8_OK) status = write_plan(w, &plan);
    mx8i_release(plan.part);
    return status;
}

enum mx8_status mx8i_write_pieces(const char *folder, int32_t rank, const struct mx8_state *s, size_t max_bytes,
    const struct mx8_exec *x, struct mx8_manifest *m) {
    struct writing w = {.folder = folder, .rank = rank, .s = s, .x = x, .m = m};
    w.chunk = mx8i_allocate(2 * CHUNK, "writing a checkpoint");
    enum mx8_status status = w.chunk ? write_group(&w, 1, max_bytes) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = write_group(&w, 0, max_bytes);
    mx8i_sort_pieces(m);
    mx8i_release(w.chunk);
    return status;
}

enum mx8_status mx8i_write_manifest(const char *folder, struct mx8_manifest *m) {
    char *text;
    MX8_TRY(mx8i_check_coverage(m, folder));
    MX8_TRY(mx8i_print_manifest(m, &text));
    enum mx8_status status = write_text(folder, MX8_MANIFEST_NAME, text);
    mx8i_release(text);
    return status;
}
