/* One microbatch, from tokens to loss and gradients. */
#include "model/internal.h"
#include "base/error.h"

static void begin_walk(struct mx8_model *m) {
    m->saved.used = m->scratch.used = 0;
    m->stream_h = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, m->config.dim);
    m->stream_f = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, m->config.dim);
    m->last_h = MX8_ABSENT;
}

static enum mx8_status embed_tokens(struct mx8_model *m) {
    const int32_t unit = mx8i_get_embedding_unit(m);
    MX8_TRY(mx8i_use_unit(m, unit, mx8i_get_layer_unit(m, 0)));
    struct mx8_op_call call = {
        .in = {mx8_make_tensor(m->io.tokens, MX8_I32, 1, &m->T), mx8i_view_weight(m, m->embedding).hp},
        .n_in = 2,
        .out = {m->layer[0].a.x},
        .n_out = 1};
    MX8_TRY(mx8i_call(m, MX8_OP_EMBEDDING, 0, &call));
    mx8i_drop_unit(m, unit);
    return MX8_OK;
}

static enum mx8_status embed_backward(struct mx8_model *m, struct mx8_tensor d) {
    struct mx8_op_call call = {.in = {d, mx8_make_tensor(m->io.tokens, MX8_I32, 1, &m->T)},
        .n_in = 2,
        .out = {mx8i_view_gradient(m, m->embedding)},
        .n_out = 1,
        .options = {.accumulate = m->accumulate}};
    return mx8i_call(m, MX8_OP_EMBEDDING, 1, &call);
}

/* The head never keeps logits: forward, loss and gradient of a few rows at a time. dh absent: the loss alone. */
static struct mx8_op_call make_head_call(struct mx8_model *m, struct mx8_tensor h, struct mx8_tensor dh) {
    const int64_t one = 1;
    struct mx8_forms w = mx8i_view_weight(m, m->head);
    struct mx8_op_call call = {.in = {h, w.hp, mx8_make_tensor(m->io.targets, MX8_I32, 1, &m->T), w.row, w.row_scale},
        .n_in = 5,
        .out = {mx8_make_tensor(m->io.readback, MX8_F64, 1, &one)},
        .n_out = 1,
        .options = mx8i_make_options(m, m->head)};
    if (dh.ndim) {
        call.in[call.n_in++] = w.col;
        call.in[call.n_in++] = w.col_scale;
        call.out[call.n_out++] = dh;
        call.out[call.n_out++] = mx8i_view_gradient(m, m->head);
    }
    call.options.loss_scale = m->loss_scale;
    call.options.chunk_rows = (int32_t)(dh.ndim                          ? m->head_rows
                                        : m->options.loss_chunk_rows > 0 ? m->options.loss_chunk_rows
                                                                         : 0);
    return call;
}

/* Every chunk adds to the whole gradient of the head, which costs 8 V D bytes, so chunks should be large; the gradients
 * of all weights before the head in the table hold nothing yet when the head runs, and make a large workspace. */
enum mx8_status mx8i_choose_head_chunk(struct mx8_model *m) {
    enum { MOST = 16384, LEAST = 512, UNIT = 256 }; /* rows; UNIT is the longest block along them */
    m->head_rows = m->options.loss_chunk_rows;
    m->head_bytes = 0;
    if (m->parallel && m->head_rows < 0) m->head_rows = 0; /* gradients of whole layers take turns in little memory */
    if (m->head_rows >= 0 || !m->options.training) return MX8_OK;
    const struct mx8_tensor h = mx8_make_tensor(NULL, m->recipe.dtype, 2, (const int64_t[]){m->T, m->config.dim});
    /* The fewest chunks of equal size. */
    for (int64_t chunks = 1;; chunks++) {
        m->head_rows = ((m->T + chunks - 1) / chunks + UNIT - 1) / UNIT * UNIT;
        if (chunks > 1 && m->head_rows < LEAST) break;
        /* Libraries count a matrix' elements in ints. */
        if (m->head_rows > MOST || m->head_rows > INT32_MAX / m->config.vocab_size) continue;
        struct mx8_op_call call = make_head_call(m, h, h);
        MX8_TRY(mx8_infer_op(mx8_get_op(MX8_OP_LM_HEAD_LOSS), 1, &call));
        if (call.workspace_size > m->head->at * sizeof(float)) continue;
        m->head_bytes = m->head->at * sizeof(float);
        return MX8_OK;
    }
    m->head_rows = 0;
    return MX8_OK;
}

/* What lies between the tensors of the flat arrays counts in their sums: it stays zero. */
static enum mx8_status clear_gaps(struct mx8_model *m) {
    const struct mx8_exec *x = &m->ctx->exec;
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        const size_t end = p->at + (size_t)p->count, next = i + 1 < m->params.count ? p[1].at : m->params.elements;
        if (end < next) MX8_TRY(x->k->fill(x, m->gradients + end, 0, (next - end) * sizeof(float)));
    }
    return MX8_OK;
}

static enum mx8_status run_head(struct mx8_model *m, struct mx8_tensor h, struct mx8_tensor dh) {
    struct mx8_op_call call = make_head_call(m, h, dh);
    const int lends = dh.ndim && m->head_bytes;
    if (lends) {
        if (m->accumulate)
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_forward_backward: gradients are to be added to, but the model "
                                                  "was planned with loss_chunk_rows -1");
        m->lent_bytes = m->head_bytes;
    }
    enum mx8_status status = mx8i_call(m, MX8_OP_LM_HEAD_LOSS, dh.ndim > 0, &call);
    m->lent_bytes = 0;
    MX8_TRY(status);
    return lends && !m->planning ? clear_gaps(m) : MX8_OK;
}

static enum mx8_status run_final_norm(
    struct mx8_model *m, struct mx8_tensor *y, struct mx8_tensor *rstd, struct mx8_tensor *sum) {
    *y = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, m->config.dim);
    *sum = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, m->config.dim);
    *rstd = mx8i_take(&m->scratch, MX8_F32, 1, &m->T);
    return mx8i_run_norm(m, *y, *rstd, *sum, m->stream_f, m->last_h, m->norm);
}

static enum mx8_status forward_for_training(struct mx8_model *m) {
    for (int64_t i = 0; i < m->config.n_layers; i++) { /* live until their layer's backward, checkpointed or not */
        struct mx8_layer *l = &m->layer[i];
        l->a = (struct mx8_activations){.x = mx8i_take_rows(&m->saved, m->recipe.dtype, m->T, m->config.dim)};
        if (l->moe >= 0) l->a.routing = mx8i_take_routing(m, l);
    }
    mx8i_begin_pass(m, "embedding", -1);
    MX8_TRY(embed_tokens(m));
    const int64_t last = m->config.n_layers - 1;
    for (int64_t i = 0; i <= last; i++) {
        const int32_t unit = mx8i_get_layer_unit(m, i);
        m->keep = !m->layer[i].checkpointed;
        MX8_TRY(mx8i_use_unit(m, unit, i < last ? mx8i_get_layer_unit(m, i + 1) : mx8i_get_head_unit(m)));
        mx8i_begin_pass(m, "forward", i);
        MX8_TRY(mx8i_layer_forward(m, &m->layer[i], 0));
        if (i < last) mx8i_drop_unit(m, unit); /* the last layer's backward comes first */
    }
    return MX8_OK;
}

/* Clipped values were counted in the first forward; the same values must not count twice. */
static enum mx8_status recompute_layer(struct mx8_model *m, struct mx8_layer *l) {
    m->keep = 1;
    m->last_h = MX8_ABSENT;
    int64_t *saturated = m->ctx ? m->ctx->saturated : NULL;
    if (m->ctx) m->ctx->saturated = NULL;
    enum mx8_status status = mx8i_layer_forward(m, l, 1);
    if (m->ctx) m->ctx->saturated = saturated;
    return status;
}

enum mx8_status mx8i_walk_training(struct mx8_model *m) {
    begin_walk(m);
    m->direction = MX8_GOING_FORWARD;
    MX8_TRY(forward_for_training(m));

    m->direction = MX8_GOING_BACKWARD;
    struct mx8_tensor d = m->stream_f /* once the final norm has read it */, y, sum, rstd;
    const int32_t head = mx8i_get_head_unit(m), embedding = mx8i_get_embedding_unit(m);
    size_t mark = m->scratch.used;
    MX8_TRY(mx8i_use_unit(m, head, mx8i_get_layer_unit(m, m->config.n_layers - 2)));
    mx8i_begin_pass(m, "head", -1);
    MX8_TRY(mx8i_begin_gradients(m, head));
    MX8_TRY(run_final_norm(m, &y, &rstd, &sum));
    struct mx8_tensor dy = mx8i_take_rows(&m->scratch, m->recipe.dtype, m->T, m->config.dim);
    MX8_TRY(run_head(m, y, dy));
    MX8_TRY(mx8i_run_norm_backward(m, d, dy, sum, rstd, MX8_ABSENT, m->norm));
    m->scratch.used = mark;
    mx8i_drop_unit(m, head);
    MX8_TRY(mx8i_end_gradients(m, head));

    for (int64_t i = m->config.n_layers - 1; i >= 0; i--) {
        struct mx8_layer *l = &m->layer[i];
        const int32_t unit = mx8i_get_layer_unit(m, i);
        MX8_TRY(mx8i_use_unit(m, unit, mx8i_get_layer_unit(m, i - 1)));
        MX8_TRY(mx8i_begin_gradients(m, unit));
        mx8i_begin_pass(m, "recompute", i);
        if (l->checkpointed) MX8_TRY(recompute_layer(m, l));
        mx8i_begin_pass(m, "backward", i);
        MX8_TRY(mx8i_layer_backward(m, l, d));
        mx8i_drop_unit(m, unit);
        MX8_TRY(mx8i_end_gradients(m, unit));
    }
    mx8i_begin_pass(m, "embedding", -1);
    MX8_TRY(mx8i_begin_gradients(m, embedding));
    MX8_TRY(embed_backward(m, d));
    return mx8i_end_gradients(m, embedding);
}

/* Logits of rows [from, from + rows) to the host, as f32. */
static enum mx8_status download_logits(
    struct mx8_model *m, struct mx8_tensor h, int64_t from, int64_t rows, float *logits) {
    size_t mark = m->scratch.used;
    const int64_t V = m->config.vocab_size, D = m->config.dim;
    struct mx8_forms part = {.hp = mx8i_take_rows(&m->scratch, m->recipe.dtype, rows, D)};
    struct mx8_tensor y = mx8i_take_rows(&m->scratch, m->recipe.dtype, rows, V), wide = y;
    if (m->recipe.dtype != MX8_F32) wide = mx8i_take_rows(&m->scratch, MX8_F32, rows, V);
    m->scratch.used = mark;
    if (m->planning) return mx8i_run_linear(m, y, &part, m->head, MX8_ABSENT);

    const struct mx8_exec *x = &m->ctx->exec;
    part.hp.data = (uint8_t *)h.data + (size_t)(from * D) * mx8_get_dtype_size(m->recipe.dtype);
    MX8_TRY(mx8i_run_linear(m, y, &part, m->head, MX8_ABSENT));
    if (wide.data != y.data) MX8_TRY(x->k->cast(x, wide.data, MX8_F32, y.data, m->recipe.dtype, rows * V));
    return x->k->download(x, logits + (from - m->logits_from) * V, wide.data, (size_t)(rows * V) * sizeof(float));
}

enum mx8_status mx8i_walk_validation(struct mx8_model *m, float *logits) {
    begin_walk(m);
    m->direction = MX8_VALIDATING;
    struct mx8_tensor x = mx8i_take_rows(&m->saved, m->recipe.dtype, m->T, m->config.dim), y, sum, rstd;
    size_t mark = m->saved.used;
    m->keep = 0;
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        struct mx8_layer *l = &m->layer[i];
        l->a = (struct mx8_activations){.x = x};
        if (!i) MX8_TRY(embed_tokens(m));
        if (l->moe >= 0) l->a.routing = mx8i_take_routing(m, l);
        MX8_TRY(mx8i_use_unit(m, mx8i_get_layer_unit(m, i), mx8i_get_layer_unit(m, i + 1)));
        MX8_TRY(mx8i_layer_forward(m, l, 0));
        mx8i_drop_unit(m, mx8i_get_layer_unit(m, i));
        m->saved.used = mark;
    }
    MX8_TRY(mx8i_use_unit(m, mx8i_get_head_unit(m), MX8_NO_UNIT));
    MX8_TRY(run_final_norm(m, &y, &rstd, &sum));
    if (!m->logits_only) MX8_TRY(run_head(m, y, MX8_ABSENT));
    for (int64_t from = m->logits_from; from < m->T && (logits || m->planning); from += m->logit_rows) {
        int64_t rows = m->T - from < m->logit_rows ? m->T - from : m->logit_rows;
        MX8_TRY(download_logits(m, y, from, rows, logits));
    }
    mx8i_drop_unit(m, mx8i_get_head_unit(m));
    return MX8_OK;
}
