/* A checkpoint's files, checked and mapped, and ranges of tensors out of them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/complaints.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/checkpoint.h"
#include "train/sha256.h"

enum { CHUNK = 1 << 18, MAX_MANIFEST = 1 << 30 }; /* elements converted at a time; bytes of a manifest */

enum mx8_status mx8i_read_checkpoint_head(const char *folder, struct mx8_manifest *out) {
    char *path = mx8i_format_text("%s/" MX8_MANIFEST_NAME, folder), *text;
    size_t size;
    *out = (struct mx8_manifest){0};
    if (!path) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_read_file(path, MAX_MANIFEST, &text, &size);
    if (status == MX8_OK) {
        status = mx8i_parse_manifest(text, size, path, out);
        if (status == MX8_OK) status = mx8i_check_coverage(out, path);
        if (status != MX8_OK) mx8i_free_manifest(out);
        mx8i_release(text);
    }
    mx8i_release(path);
    return status;
}

/* ---- files ---- */

static enum mx8_status check_file(const char *path, const struct mx8_stored_file *f, int verify) {
    struct stat info;
    char sha256[65];
    if (stat(path, &info) != 0)
        return MX8_FAIL(errno == ENOENT ? MX8_FORMAT_ERROR : MX8_IO_ERROR, "%s: %s", path,
            errno == ENOENT ? "is missing" : strerror(errno));
    if (info.st_size != f->size)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: holds %lld bytes, the manifest says %lld", path, (long long)info.st_size,
            (long long)f->size);
    if (!verify) return MX8_OK;
    MX8_TRY(mx8i_hash_file(path, sha256));
    if (!strcmp(sha256, f->sha256)) return MX8_OK;
    return MX8_FAIL(MX8_FORMAT_ERROR, "%s: was changed since it was saved: its SHA-256 sum is %s, the manifest says %s",
        path, sha256, f->sha256);
}

static int is_safetensors(const char *name) {
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name), tail = sizeof suffix - 1;
    return length > tail && !strcmp(name + length - tail, suffix);
}

static enum mx8_status open_file(struct mx8_checkpoint *c, int64_t i, int verify) {
    const struct mx8_stored_file *f = &c->manifest.file[i];
    char *path = mx8i_format_text("%s/%s", c->folder, f->name);
    if (!path) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = check_file(path, f, verify);
    if (status == MX8_OK && is_safetensors(f->name)) status = mx8i_open_safetensors(path, &c->shard[i]);
    mx8i_release(path);
    return status;
}

/* The piece's place in its file, under the name that the writer gives it. */
static enum mx8_status find_piece(struct mx8_checkpoint *c, int64_t i) {
    const struct mx8_stored_piece *p = &c->manifest.piece[i];
    const struct mx8_stored_tensor *t = &c->manifest.tensor[p->tensor];
    char *name = p->count == t->count ? mx8i_copy_text(t->name)
                                      : mx8i_format_text("%s[%lld:%lld]", t->name, (long long)p->start,
                                            (long long)p->start + (long long)p->count);
    if (!name) return MX8_OUT_OF_MEMORY;
    const struct mx8_st_entry *e = mx8i_find_tensor(&c->shard[p->file], name);
    mx8i_release(name);
    if (!e || e->dtype != t->dtype || e->size != (size_t)p->count * mx8_get_dtype_size(t->dtype))
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s/%s: %s tensor %s [%lld:%lld] as the manifest says", c->folder,
            c->manifest.file[p->file].name, e ? "does not hold" : "has no", t->name, (long long)p->start,
            (long long)p->start + (long long)p->count);
    c->entry[i] = e;
    return MX8_OK;
}

static enum mx8_status open_files(struct mx8_checkpoint *c, int verify) {
    const struct mx8_manifest *m = &c->manifest;
    c->shard = mx8i_allocate((size_t)m->n_files * sizeof *c->shard, "files of a checkpoint");
    c->entry = mx8i_allocate((size_t)m->n_pieces * sizeof *c->entry, "pieces of a checkpoint");
    if (!c->shard || !c->entry) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < m->n_files; i++) MX8_TRY(open_file(c, i, verify));
    for (int64_t i = 0; i < m->n_pieces; i++) MX8_TRY(find_piece(c, i));
    return MX8_OK;
}

enum mx8_status mx8i_open_checkpoint(const char *folder, int32_t verify, struct mx8_checkpoint *out) {
    *out = (struct mx8_checkpoint){.folder = mx8i_copy_text(folder)};
    enum mx8_status status = out->folder ? mx8i_read_checkpoint_head(folder, &out->manifest) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = open_files(out, verify);
    if (status != MX8_OK) mx8i_close_checkpoint(out);
    return status;
}

void mx8i_close_checkpoint(struct mx8_checkpoint *c) {
    for (int64_t i = 0; c->shard && i < c->manifest.n_files; i++) mx8i_close_safetensors(&c->shard[i]);
    mx8i_release(c->shard);
    mx8i_release(c->entry);
    mx8i_free_manifest(&c->manifest);
    mx8i_release(c->folder);
    *c = (struct mx8_checkpoint){0};
}

/* ---- ranges ---- */

static enum mx8_status put(const struct mx8_exec *x, uint8_t *out, const void *from, size_t bytes) {
    if (x) return x->k->upload(x, out, from, bytes);
    memcpy(out, from, bytes);
    return MX8_OK;
}

static void widen(void *out, const uint8_t *from, int64_t n) {
    float *values = out;
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, from + (size_t)i * sizeof bits, sizeof bits);
        values[i] = mx8_decode_bf16(bits);
    }
}

static void round_values(void *out, const uint8_t *from, int64_t n) {
    uint16_t *bits = out;
    for (int64_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, from + (size_t)i * sizeof value, sizeof value);
        bits[i] = mx8_encode_bf16(value);
    }
}

/* Values of `width` bytes become ones of `out_width`, a chunk at a time: out may lie on a device. */
static enum mx8_status put_converted(const struct mx8_exec *x, uint8_t *out, size_t out_width, const uint8_t *from,
    size_t width, int64_t n, void (*convert)(void *out, const uint8_t *from, int64_t n)) {
    void *chunk = mx8i_allocate(CHUNK * out_width, "reading a checkpoint");
    enum mx8_status status = chunk ? MX8_OK : MX8_OUT_OF_MEMORY;
    for (int64_t at = 0; at < n && status == MX8_OK; at += CHUNK) {
        int64_t part = n - at < CHUNK ? n - at : CHUNK;
        convert(chunk, from + (size_t)at * width, part);
        status = put(x, out + (size_t)at * out_width, chunk, (size_t)part * out_width);
    }
    mx8i_release(chunk);
    return status;
}

/* The first of the tensor's pieces that ends behind `start`: pieces are sorted. */
static int64_t find_first(const struct mx8_manifest *m, int64_t tensor, int64_t start) {
    int64_t low = 0, high = m->n_pieces;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const struct mx8_stored_piece *p = &m->piece[middle];
        if (p->tensor < tensor || (p->tensor == tensor && p->start + p->count <= start))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

enum mx8_status mx8i_read_range(const struct mx8_checkpoint *c, int64_t tensor, int64_t start, int64_t count,
    int32_t dtype, const struct mx8_exec *x, void *out) {
    const struct mx8_manifest *m = &c->manifest;
    const struct mx8_stored_tensor *t = &m->tensor[tensor];
    const size_t width = mx8_get_dtype_size(t->dtype), out_width = mx8_get_dtype_size(dtype);
    const int widens = t->dtype == MX8_BF16 && dtype == MX8_F32, rounds = t->dtype == MX8_F32 && dtype == MX8_BF16;
    if (start < 0 || count < 0 || count > t->count - start || (dtype != t->dtype && !widens && !rounds))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: tensor %s: elements %lld to %lld as %s, it has %lld of %s",
            c->folder, t->name, (long long)start, (long long)(start + count), mx8_get_dtype_name(dtype),
            (long long)t->count, mx8_get_dtype_name(t->dtype));
    const int64_t end = start + count;
    for (int64_t i = find_first(m, tensor, start); start < end; i++) {
        const struct mx8_stored_piece *p = &m->piece[i];
        int64_t n = (p->start + p->count < end ? p->start + p->count : end) - start;
        const uint8_t *from = (const uint8_t *)c->entry[i]->data + (size_t)(start - p->start) * width;
        MX8_TRY(dtype == t->dtype ? put(x, out, from, (size_t)n * width)
                                  : put_converted(x, out, out_width, from, width, n, widens ? widen : round_values));
        out = (uint8_t *)out + (size_t)n * out_width;
        start += n;
    }
    return MX8_OK;
}

/* ---- a whole state ---- */

static int holds_tensor(const struct mx8_state *s, const char *name) {
    for (int64_t i = 0; i < s->n_tensors; i++)
        if (!strcmp(s->tensor[i].name, name)) return 1;
    return 0;
}

static void check_tensor(const struct mx8_manifest *m, const struct mx8_state_tensor *t, struct mx8_complaints *bad) {
    char got[64], want[64];
    int64_t index = mx8i_find_stored_tensor(m, t->name);
    if (index < 0) {
        mx8i_complain(bad, "%s is missing", t->name);
        return;
    }
    const struct mx8_stored_tensor *stored = &m->tensor[index];
    if (stored->ndim != t->ndim || memcmp(stored->shape, t->shape, (size_t)t->ndim * sizeof t->shape[0]))
        mx8i_complain(bad, "%s has shape %s, expected %s", t->name, mx8i_format_shape(got, stored->ndim, stored->shape),
            mx8i_format_shape(want, t->ndim, t->shape));
    else if (stored->dtype != t->dtype && !(stored->dtype == MX8_BF16 && t->dtype == MX8_F32) &&
             !(stored->dtype == MX8_F32 && t->dtype == MX8_BF16 && t->may_round))
        mx8i_complain(
            bad, "%s is %s, expected %s", t->name, mx8_get_dtype_name(stored->dtype), mx8_get_dtype_name(t->dtype));
}

enum mx8_status mx8i_load_pieces(
    const struct mx8_checkpoint *c, const struct mx8_state *s, int32_t exact, const struct mx8_exec *x) {
    const struct mx8_manifest *m = &c->manifest;
    struct mx8_complaints bad = {.count = 0};
    for (int64_t i = 0; i < s->n_tensors; i++) check_tensor(m, &s->tensor[i], &bad);
    for (int64_t i = 0; exact && i < m->n_tensors; i++)
        if (!holds_tensor(s, m->tensor[i].name)) mx8i_complain(&bad, "%s is left over", m->tensor[i].name);
    if (bad.count)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s does not fit this job, %lld differences: %s", c->folder,
            (long long)bad.count, bad.text);
    for (int64_t i = 0; i < s->n_pieces; i++) {
        const struct mx8_piece *p = &s->piece[i];
        const struct mx8_state_tensor *t = &s->tensor[p->tensor];
        MX8_TRY(mx8i_read_range(
            c, mx8i_find_stored_tensor(m, t->name), p->start, p->count, t->dtype, p->on_host ? NULL : x, p->data));
    }
    return MX8_OK;
}
