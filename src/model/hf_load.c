/* Open weights into a model's memory, a block at a time: of each tensor the part that this process keeps. */
#include "model/hf.h"
#include "model/internal.h"
#include "base/error.h"
#include "base/memory.h"

enum { BLOCK = 1 << 20 };

static enum mx8_status load_param(
    struct mx8_model *m, const struct mx8_weights *w, const struct mx8_param *p, float *block) {
    const struct mx8_exec *x = &m->ctx->exec;
    const struct mx8_part_of part = mx8i_get_part(m, p);
    for (int64_t from = 0; from < part.count; from += BLOCK) {
        const int64_t n = part.count - from < BLOCK ? part.count - from : BLOCK;
        MX8_TRY(mx8i_read_weights(w, p, part.first + from, n, MX8_F32, block));
        MX8_TRY(x->k->upload(x, m->masters + p->at + from, block, (size_t)n * sizeof *block));
    }
    return MX8_OK;
}

static enum mx8_status load_bias(struct mx8_model *m, const struct mx8_weights *w, const struct mx8_buffer *b,
    float *block, const struct mx8_log *log) {
    const struct mx8_exec *x = &m->ctx->exec;
    int32_t found;
    MX8_TRY(mx8i_read_weights_bias(w, b, block, &found));
    if (!found) mx8i_log(log, "%s holds no %s: it starts at zero", w->path, b->name);
    return x->k->upload(x, m->buffers + b->at, block, (size_t)b->count * sizeof *block);
}

static enum mx8_status load_all(struct mx8_model *m, const struct mx8_weights *w, const struct mx8_log *log) {
    float *block = mx8i_allocate((BLOCK + (size_t)m->config.num_experts) * sizeof *block, "loading weights");
    enum mx8_status status = block ? MX8_OK : MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < m->params.count && status == MX8_OK; i++)
        status = load_param(m, w, &m->params.param[i], block);
    for (int64_t i = 0; i < m->params.buffer_count && status == MX8_OK; i++)
        status = load_bias(m, w, &m->params.buffer[i], block, log);
    mx8i_release(block);
    return status == MX8_OK ? mx8i_refresh_weights(m, 0) : status;
}

enum mx8_status mx8i_load_opened_weights(struct mx8_model *m, const struct mx8_weights *w, const struct mx8_log *log) {
    static const struct mx8_log silent;
    if (!m->ctx) return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: the model has no memory yet", w->path);
    MX8_TRY(mx8i_compare_configs(w->path, &m->config, &w->config));
    return load_all(m, w, log ? log : &silent);
}

enum mx8_status mx8i_load_open_weights(struct mx8_model *m, const char *path, const struct mx8_log *log) {
    struct mx8_weights w;
    MX8_TRY(mx8i_open_weights(path, &m->config, &w));
    enum mx8_status status = mx8i_load_opened_weights(m, &w, log);
    mx8i_close_weights(&w);
    return status;
}
