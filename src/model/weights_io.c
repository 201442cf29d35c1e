/* Weights from and to safetensors, under torchtitan's names. Loading checks every tensor before it copies one, and
 * names all that is wrong in one error. */
#include <stdio.h>
#include <string.h>
#include "model/internal.h"
#include "base/complaints.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/safetensors.h"

enum { CHUNK = 1 << 16 }; /* values converted on the host at a time */

static void check_entry(
    struct mx8_complaints *c, const struct mx8_st_entry *e, const char *name, int32_t ndim, const int64_t *shape) {
    char got[64], want[64];
    if (!e) {
        mx8i_complain(c, "%s is missing", name);
        return;
    }
    mx8i_format_shape(got, e->ndim, e->shape);
    mx8i_format_shape(want, ndim, shape);
    if (strcmp(got, want)) mx8i_complain(c, "%s has shape %s, expected %s", name, got, want);
    if (e->dtype != MX8_F32 && e->dtype != MX8_BF16) {
        mx8i_complain(c, "%s is %s, expected f32 or bf16", name, mx8_get_dtype_name(e->dtype));
    }
}

/* Counters and tables that torchtitan keeps beside the weights and that follow from the configuration. */
static int is_ignored(const char *name) {
    return strstr(name, "tokens_per_expert") || strstr(name, "freqs_cis");
}

static int is_buffer(const struct mx8_model *m, const char *name) {
    for (int64_t i = 0; i < m->params.buffer_count; i++) {
        if (!strcmp(m->params.buffer[i].name, name)) return 1;
    }
    return 0;
}

static enum mx8_status check_file(const struct mx8_model *m, const char *path, const struct mx8_safetensors *st) {
    struct mx8_complaints c = {0};
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        check_entry(&c, mx8i_find_tensor(st, p->name), p->name, p->ndim, p->shape);
    }
    for (int64_t i = 0; i < m->params.buffer_count; i++) {
        const struct mx8_buffer *b = &m->params.buffer[i];
        const struct mx8_st_entry *e = mx8i_find_tensor(st, b->name);
        if (e) check_entry(&c, e, b->name, 1, &b->count);
    }
    for (int64_t i = 0; i < st->count; i++) {
        const char *name = st->entry[i].name;
        if (is_ignored(name) || is_buffer(m, name) || mx8i_find_param(&m->params, name)) continue;
        mx8i_complain(&c, "%s is left over", name);
    }
    if (!c.count) return MX8_OK;
    return MX8_FAIL(
        MX8_FORMAT_ERROR, "%s does not fit the model, %lld differences: %s", path, (long long)c.count, c.text);
}

/* Elements [first, first + count) of an entry to f32 on the device, a chunk at a time. */
static enum mx8_status load_values(
    struct mx8_model *m, float *device, const struct mx8_st_entry *e, int64_t first, int64_t count, float *chunk) {
    const struct mx8_exec *x = &m->ctx->exec;
    const size_t width = mx8_get_dtype_size(e->dtype);
    for (int64_t from = 0; from < count; from += CHUNK) {
        const int64_t n = count - from < CHUNK ? count - from : CHUNK;
        const uint8_t *source = (const uint8_t *)e->data + (size_t)(first + from) * width; /* may lie at any address */
        for (int64_t i = 0; i < n; i++) {
            uint16_t bits;
            if (e->dtype == MX8_F32) {
                memcpy(&chunk[i], source + (size_t)i * width, width);
            } else {
                memcpy(&bits, source + (size_t)i * width, width);
                chunk[i] = mx8_decode_bf16(bits);
            }
        }
        MX8_TRY(x->k->upload(x, device + from, chunk, (size_t)n * sizeof *chunk));
    }
    return MX8_OK;
}

static enum mx8_status load_file(
    struct mx8_model *m, const struct mx8_safetensors *st, const char *path, const struct mx8_log *log, float *chunk) {
    const struct mx8_exec *x = &m->ctx->exec;
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        const struct mx8_part_of part = mx8i_get_part(m, p);
        MX8_TRY(load_values(m, m->masters + p->at, mx8i_find_tensor(st, p->name), part.first, part.count, chunk));
    }
    MX8_TRY(x->k->fill(x, m->buffers, 0, m->params.buffer_elements * sizeof *m->buffers));
    for (int64_t i = 0; i < m->params.buffer_count; i++) {
        const struct mx8_buffer *b = &m->params.buffer[i];
        const struct mx8_st_entry *e = mx8i_find_tensor(st, b->name);
        if (e)
            MX8_TRY(load_values(m, m->buffers + b->at, e, 0, b->count, chunk));
        else if (log)
            mx8i_log(log, "%s holds no %s: it starts at zero", path, b->name);
    }
    return mx8i_refresh_weights(m, 0);
}

enum mx8_status mx8i_load_weights(struct mx8_model *m, const char *path, const struct mx8_log *log) {
    struct mx8_safetensors st;
    MX8_TRY(mx8i_open_safetensors(path, &st));
    enum mx8_status status = check_file(m, path, &st);
    float *chunk = status == MX8_OK ? mx8i_allocate(CHUNK * sizeof *chunk, "loading weights") : NULL;
    if (chunk)
        status = load_file(m, &st, path, log, chunk);
    else if (status == MX8_OK)
        status = MX8_OUT_OF_MEMORY;
    mx8i_release(chunk);
    mx8i_close_safetensors(&st);
    return status;
}

static enum mx8_status save_values(
    struct mx8_model *m, struct mx8_st_writer *w, const float *device, int64_t count, int32_t dtype, float *chunk) {
    const struct mx8_exec *x = &m->ctx->exec;
    for (int64_t from = 0; from < count; from += CHUNK) {
        const int64_t n = count - from < CHUNK ? count - from : CHUNK;
        MX8_TRY(x->k->download(x, chunk, device + from, (size_t)n * sizeof *chunk));
        if (dtype == MX8_F32) {
            MX8_TRY(mx8i_write_tensor(w, chunk, (size_t)n * sizeof *chunk));
            continue;
        }
        uint16_t *bits = (uint16_t *)(chunk + CHUNK);
        for (int64_t i = 0; i < n; i++) bits[i] = mx8_encode_bf16(chunk[i]);
        MX8_TRY(mx8i_write_tensor(w, bits, (size_t)n * sizeof *bits));
    }
    return MX8_OK;
}

/* The file's table: weights in `dtype`, buffers always in f32, because routing follows their last bit. */
static void describe_file(const struct mx8_model *m, int32_t dtype, struct mx8_st_entry *entry) {
    for (int64_t i = 0; i < m->params.count; i++) {
        struct mx8_param *p = &m->params.param[i];
        entry[i] = (struct mx8_st_entry){
            .name = p->name, .dtype = dtype, .ndim = p->ndim, .size = (size_t)p->count * mx8_get_dtype_size(dtype)};
        memcpy(entry[i].shape, p->shape, sizeof p->shape);
    }
    for (int64_t i = 0; i < m->params.buffer_count; i++) {
        struct mx8_buffer *b = &m->params.buffer[i];
        entry[m->params.count + i] = (struct mx8_st_entry){.name = b->name,
            .dtype = MX8_F32,
            .ndim = 1,
            .shape = {b->count},
            .size = (size_t)b->count * sizeof(float)};
    }
}

static enum mx8_status save_file(
    struct mx8_model *m, const char *path, int32_t dtype, struct mx8_st_entry *entry, float *chunk) {
    struct mx8_st_writer w;
    const char *const metadata[] = {"format", "pt", "writer", "mx8", NULL};
    describe_file(m, dtype, entry);
    MX8_TRY(mx8i_begin_safetensors(path, entry, m->params.count + m->params.buffer_count, metadata, &w));
    enum mx8_status status = MX8_OK;
    for (int64_t i = 0; i < m->params.count && status == MX8_OK; i++) {
        const struct mx8_param *p = &m->params.param[i];
        status = save_values(m, &w, m->masters + p->at, p->count, dtype, chunk);
    }
    for (int64_t i = 0; i < m->params.buffer_count && status == MX8_OK; i++) {
        const struct mx8_buffer *b = &m->params.buffer[i];
        status = save_values(m, &w, m->buffers + b->at, b->count, MX8_F32, chunk);
    }
    if (status == MX8_OK) return mx8i_commit_safetensors(&w);
    mx8i_abandon_safetensors(&w);
    return status;
}

enum mx8_status mx8i_save_weights(struct mx8_model *m, const char *path, int32_t dtype) {
    if (dtype != MX8_F32 && dtype != MX8_BF16) {
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: weights as %s, expected f32 or bf16", path, mx8_get_dtype_name(dtype));
    }
    struct mx8_st_entry *entry =
        mx8i_allocate((size_t)(m->params.count + m->params.buffer_count) * sizeof *entry, "saving weights");
    float *chunk = mx8i_allocate(2 * CHUNK * sizeof *chunk, "saving weights");
    enum mx8_status status = entry && chunk ? save_file(m, path, dtype, entry, chunk) : MX8_OUT_OF_MEMORY;
    mx8i_release(chunk);
    mx8i_release(entry);
    return status;
}
