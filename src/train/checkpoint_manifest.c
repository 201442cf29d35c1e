/* The manifest in memory: lists that grow, the merge of several processes' parts, and the check that pieces make whole
 * tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/checkpoint.h"

/* Room for one more element at the end of a list, which doubles when it is full. */
static void *grow(void *list, int64_t count, size_t size, const char *what) {
    if (count && (count & (count - 1))) return list;
    return mx8i_reallocate(list, (size_t)(count ? 2 * count : 1) * size, what);
}

enum mx8_status mx8i_add_fact(struct mx8_facts *f, const char *key, const char *value) {
    struct mx8_fact *larger = grow(f->fact, f->count, sizeof *larger, "facts of a job");
    if (!larger) return MX8_OUT_OF_MEMORY;
    f->fact = larger;
    f->fact[f->count] = (struct mx8_fact){mx8i_copy_text(key), mx8i_copy_text(value)};
    f->count++;
    return f->fact[f->count - 1].key && f->fact[f->count - 1].value ? MX8_OK : MX8_OUT_OF_MEMORY;
}

const char *mx8i_get_fact(const struct mx8_facts *f, const char *key) {
    for (int64_t i = 0; i < f->count; i++)
        if (!strcmp(f->fact[i].key, key)) return f->fact[i].value;
    return NULL;
}

void mx8i_free_facts(struct mx8_facts *f) {
    for (int64_t i = 0; i < f->count; i++) {
        mx8i_release(f->fact[i].key);
        mx8i_release(f->fact[i].value);
    }
    mx8i_release(f->fact);
    *f = (struct mx8_facts){0};
}

enum mx8_status mx8i_add_stored_file(struct mx8_manifest *m, const char *name, int64_t size, const char *sha256) {
    struct mx8_stored_file *larger = grow(m->file, m->n_files, sizeof *larger, "files of a checkpoint");
    if (!larger) return MX8_OUT_OF_MEMORY;
    m->file = larger;
    struct mx8_stored_file *file = &m->file[m->n_files++];
    *file = (struct mx8_stored_file){.name = mx8i_copy_text(name), .size = size};
    snprintf(file->sha256, sizeof file->sha256, "%s", sha256);
    return file->name ? MX8_OK : MX8_OUT_OF_MEMORY;
}

int64_t mx8i_find_stored_tensor(const struct mx8_manifest *m, const char *name) {
    for (int64_t i = 0; i < m->n_tensors; i++)
        if (!strcmp(m->tensor[i].name, name)) return i;
    return -1;
}

static int is_same_kind(const struct mx8_stored_tensor *a, const struct mx8_stored_tensor *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]);
}

enum mx8_status mx8i_add_stored_tensor(struct mx8_manifest *m, const struct mx8_stored_tensor *t, int64_t *index) {
    *index = mx8i_find_stored_tensor(m, t->name);
    if (*index >= 0 && is_same_kind(&m->tensor[*index], t)) return MX8_OK;
    if (*index >= 0)
        return MX8_FAIL(MX8_FORMAT_ERROR, "tensor %s is given twice, with different types or shapes", t->name);
    struct mx8_stored_tensor *larger = grow(m->tensor, m->n_tensors, sizeof *larger, "tensors of a checkpoint");
    if (!larger) return MX8_OUT_OF_MEMORY;
    m->tensor = larger;
    *index = m->n_tensors++;
    m->tensor[*index] = *t;
    m->tensor[*index].name = mx8i_copy_text(t->name);
    return m->tensor[*index].name ? MX8_OK : MX8_OUT_OF_MEMORY;
}

enum mx8_status mx8i_add_stored_piece(struct mx8_manifest *m, const struct mx8_stored_piece *p) {
    struct mx8_stored_piece *larger = grow(m->piece, m->n_pieces, sizeof *larger, "pieces of a checkpoint");
    if (!larger) return MX8_OUT_OF_MEMORY;
    m->piece = larger;
    m->piece[m->n_pieces++] = *p;
    return MX8_OK;
}

/* Processes list the same tensors in the same order, more or less: look there first. */
static enum mx8_status merge_tensor(
    struct mx8_manifest *into, const struct mx8_manifest *from, int64_t i, int64_t *out) {
    const struct mx8_stored_tensor *t = &from->tensor[i];
    *out = i;
    if (i < into->n_tensors && !strcmp(into->tensor[i].name, t->name) && is_same_kind(&into->tensor[i], t))
        return MX8_OK;
    return mx8i_add_stored_tensor(into, t, out);
}

enum mx8_status mx8i_merge_manifest(struct mx8_manifest *into, const struct mx8_manifest *from) {
    int64_t first_file = into->n_files;
    for (int64_t i = 0; i < from->n_files; i++)
        MX8_TRY(mx8i_add_stored_file(into, from->file[i].name, from->file[i].size, from->file[i].sha256));
    for (int64_t i = 0; i < from->n_pieces; i++) {
        struct mx8_stored_piece p = from->piece[i];
        MX8_TRY(merge_tensor(into, from, p.tensor, &p.tensor));
        p.file += first_file;
        MX8_TRY(mx8i_add_stored_piece(into, &p));
    }
    return MX8_OK;
}

static int compare_pieces(const void *a, const void *b) {
    const struct mx8_stored_piece *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    return x->start < y->start ? -1 : x->start > y->start;
}

void mx8i_sort_pieces(struct mx8_manifest *m) {
    if (m->n_pieces) qsort(m->piece, (size_t)m->n_pieces, sizeof *m->piece, compare_pieces);
}

enum mx8_status mx8i_check_coverage(struct mx8_manifest *m, const char *where) {
    mx8i_sort_pieces(m);
    int64_t at = 0;
    for (int64_t i = 0; i < m->n_tensors; i++) {
        const struct mx8_stored_tensor *t = &m->tensor[i];
        int64_t end = 0;
        for (; at < m->n_pieces && m->piece[at].tensor == i; at++) {
            if (m->piece[at].start != end)
                return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor %s: a piece starts at element %lld, expected %lld", where,
                    t->name, (long long)m->piece[at].start, (long long)end);
            end += m->piece[at].count;
        }
        if (end != t->count)
            return MX8_FAIL(MX8_FORMAT_ERROR, "%s: tensor %s: pieces hold %lld elements, expected %lld", where, t->name,
                (long long)end, (long long)t->count);
    }
    return MX8_OK;
}

void mx8i_free_manifest(struct mx8_manifest *m) {
    for (int64_t i = 0; i < m->n_files; i++) mx8i_release(m->file[i].name);
    for (int64_t i = 0; i < m->n_tensors; i++) mx8i_release(m->tensor[i].name);
    mx8i_release(m->file);
    mx8i_release(m->tensor);
    mx8i_release(m->piece);
    mx8i_free_facts(&m->job);
    mx8i_free_facts(&m->options);
    *m = (struct mx8_manifest){0};
}
