/* The model's face: getters, one microbatch with its uploads and its one read-back, and checks of the numbers. */
#include <string.h>
#include "model/internal.h"
#include "base/error.h"

const struct mx8_param_table *mx8i_get_params(const struct mx8_model *m) {
    return &m->params;
}
const struct mx8_model_config *mx8i_get_config(const struct mx8_model *m) {
    return &m->config;
}
float *mx8i_get_masters(struct mx8_model *m) {
    return m->masters;
}
float *mx8i_get_gradients(struct mx8_model *m) {
    return m->gradients;
}
uint16_t *mx8i_get_copies(struct mx8_model *m) {
    return m->copies;
}
float *mx8i_get_buffers(struct mx8_model *m) {
    return m->buffers;
}

void *mx8i_get_scratch(struct mx8_model *m, size_t *bytes) {
    *bytes = m->scratch.base ? m->plan->scratch : 0;
    return m->scratch.base;
}

void *mx8i_get_moment(struct mx8_model *m, int32_t which) {
    const size_t bytes = m->params.elements * mx8_get_dtype_size(m->options.moment_dtype);
    return m->moments ? m->moments + (which ? bytes : 0) : NULL;
}

int32_t mx8i_get_moment_dtype(const struct mx8_model *m) {
    return m->options.moment_dtype;
}

const struct mx8_stretch *mx8i_get_stretches(const struct mx8_model *m, int64_t *count) {
    *count = m->stretches;
    return m->stretch;
}

static enum mx8_status check_ids(const struct mx8_model *m, const char *what, const int32_t *ids, int32_t least) {
    for (int64_t t = 0; t < m->T; t++) {
        if (ids[t] >= least && ids[t] < m->config.vocab_size) continue;
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s %d at position %lld of the batch, expected less than the vocabulary's %lld", what, (int)ids[t],
            (long long)t, (long long)m->config.vocab_size);
    }
    return MX8_OK;
}

static enum mx8_status upload_batch(
    struct mx8_model *m, const int32_t *tokens, const int32_t *targets, const int32_t *docs) {
    if (!m->ctx) return MX8_FAIL(MX8_INVALID_ARGUMENT, "the model has no memory yet: mx8i_allocate_model comes first");
    if (m->config.attn_mask == MX8_MASK_DOCUMENT && !docs) {
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "the document mask needs document ids, expected %lld of them", (long long)m->T);
    }
    MX8_TRY(check_ids(m, "token", tokens, 0));
    MX8_TRY(check_ids(m, "target", targets, INT32_MIN)); /* negative: no loss at this position */
    const struct mx8_exec *x = &m->ctx->exec;
    const size_t bytes = (size_t)m->T * sizeof(int32_t);
    MX8_TRY(x->k->upload(x, m->io.tokens, tokens, bytes));
    MX8_TRY(x->k->upload(x, m->io.targets, targets, bytes));
    return docs ? x->k->upload(x, m->io.docs, docs, bytes) : MX8_OK;
}

/* The step's only look at the device: the loss and every MoE layer's group ends, side by side. */
static enum mx8_status read_back(struct mx8_model *m, double *loss, int32_t count_tokens) {
    const struct mx8_exec *x = &m->ctx->exec;
    MX8_TRY(mx8i_settle(m));
    MX8_TRY(x->k->download(x, m->host_readback, m->io.readback, m->readback_size));
    double value;
    memcpy(&value, m->host_readback, sizeof value);
    *loss += value;
    const int64_t E = m->config.num_experts;
    for (int64_t i = 0; count_tokens && i < m->moe_layers * E; i++) {
        int32_t end, start = 0;
        const uint8_t *at = m->host_readback + sizeof value + (size_t)i * sizeof end;
        memcpy(&end, at, sizeof end);
        if (i % E) memcpy(&start, at - sizeof end, sizeof start);
        m->load[i] += end - start;
    }
    return MX8_OK;
}

enum mx8_status mx8i_forward_backward(struct mx8_model *m, const int32_t *tokens, const int32_t *targets,
    const int32_t *docs, float loss_scale, int32_t accumulate, double *loss) {
    if (!m->options.training) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_forward_backward: the model was planned without training");
    }
    mx8i_begin_pass(m, "batch", -1);
    MX8_TRY(upload_batch(m, tokens, targets, docs));
    m->accumulate = accumulate && !m->parallel; /* several processes add up what they have reduced */
    m->adding = accumulate;
    m->loss_scale = loss_scale;
    MX8_TRY(mx8i_run_training_walk(m));
    return read_back(m, loss, 1);
}

enum mx8_status mx8i_forward(struct mx8_model *m, const int32_t *tokens, const int32_t *targets, const int32_t *docs,
    float loss_scale, double *loss, float *logits) {
    MX8_TRY(upload_batch(m, tokens, targets, docs));
    m->loss_scale = loss_scale;
    int64_t *saturated = m->ctx->saturated; /* the count is of training steps */
    m->ctx->saturated = NULL;
    enum mx8_status status = mx8i_walk_validation(m, logits);
    m->ctx->saturated = saturated;
    MX8_TRY(status);
    return read_back(m, loss, 0);
}

enum mx8_status mx8i_take_saturated(struct mx8_model *m, int64_t *count) {
    const struct mx8_exec *x = &m->ctx->exec;
    MX8_TRY(x->k->download(x, count, m->io.saturated, sizeof *count));
    return x->k->fill(x, m->io.saturated, 0, sizeof *count);
}

enum mx8_status mx8i_take_wide_blocks(struct mx8_model *m, int64_t *count) {
    const struct mx8_exec *x = &m->ctx->exec;
    MX8_TRY(x->k->download(x, count, m->io.saturated + 1, sizeof *count));
    return x->k->fill(x, m->io.saturated + 1, 0, sizeof *count);
}

enum mx8_status mx8i_find_not_finite(struct mx8_model *m, int32_t gradients, const char **name) {
    const struct mx8_exec *x = &m->ctx->exec;
    const float *values = gradients ? m->gradients : m->masters;
    *name = NULL;
    if (gradients && !m->options.training) return MX8_OK;
    MX8_TRY(x->k->fill(x, m->io.flags, 0, (size_t)m->params.count * sizeof(int32_t)));
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        const int64_t count = mx8i_get_part(m, p).count;
        if (count) MX8_TRY(x->k->check_finite(x, m->io.flags + i, values + p->at, MX8_F32, count));
    }
    int64_t first = 0;
    for (; first < m->params.count; first++) {
        int32_t flag;
        MX8_TRY(x->k->download(x, &flag, m->io.flags + first, sizeof flag));
        if (flag) break;
    }
    if (m->parallel) MX8_TRY(mx8i_find_least(&m->options.dist->host, &first));
    if (first < m->params.count) *name = m->params.param[first].name;
    return MX8_OK;
}
