/* The tensor table: which weights a configuration has, what they are called and how they start. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "model/params.h"
#include "base/error.h"
#include "base/memory.h"

enum { ALIGNMENT = 64 }; /* elements: tensors start on 128 bytes in bf16, 256 in f32 */

/* torchtitan cuts its truncated normals at +-2, an absolute value a hundred standard deviations away. */
static const double plain_std = 0.02, plain_cut = 2;

/* What the builder carries: the table, and how the next tensors of a layer start. */
struct builder {
    struct mx8_param_table *table;
    const struct mx8_model_config *config;
    int32_t layer;
    double depth_std; /* of the projections back into the residual stream, the up projections and the router */
};

static __attribute__((format(printf, 5, 6))) struct mx8_param *add_param(struct builder *b, enum mx8_param_kind kind,
    double std, const int64_t shape[3] /* 0 ends it early */, const char *name, ...) {
    struct mx8_param *p = &b->table->param[b->table->count++];
    *p = (struct mx8_param){.kind = kind, .layer = b->layer, .count = 1, .init_std = std, .init_cut = plain_cut};
    p->row_codes = p->row_scales = p->col_codes = p->col_scales = SIZE_MAX;
    while (p->ndim < 3 && shape[p->ndim] > 0) {
        p->shape[p->ndim] = shape[p->ndim];
        p->count *= shape[p->ndim++];
    }
    p->at = b->table->elements;
    b->table->elements += (size_t)(p->count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    va_list args;
    va_start(args, name);
    vsnprintf(p->name, sizeof p->name, name, args);
    va_end(args);
    return p;
}

static void add_norm(struct builder *b, const char *name, int64_t size) {
    const int64_t shape[3] = {size};
    struct mx8_param *p = add_param(b, MX8_PARAM_NORM, 0, shape, "%s", name);
    if (b->layer >= 0) snprintf(p->name, sizeof p->name, "layers.%d.%s", (int)b->layer, name);
}

static void add_matrix(
    struct builder *b, enum mx8_param_kind kind, double std, const char *name, int64_t N, int64_t K) {
    const int64_t shape[3] = {N, K};
    add_param(b, kind, std, shape, "layers.%d.%s.weight", (int)b->layer, name);
}

static void add_attention(struct builder *b) {
    const struct mx8_model_config *c = b->config;
    int64_t head = mx8i_get_head_dim(c), q = head * c->n_heads, kv = head * c->n_kv_heads;
    add_matrix(b, MX8_PARAM_LINEAR, plain_std, "attention.wq", q, c->dim);
    add_matrix(b, MX8_PARAM_LINEAR, plain_std, "attention.wk", kv, c->dim);
    add_matrix(b, MX8_PARAM_LINEAR, plain_std, "attention.wv", kv, c->dim);
    add_matrix(b, MX8_PARAM_LINEAR, b->depth_std, "attention.wo", c->dim, q);
    if (c->qk_norm != MX8_QK_NORM_HEAD && c->qk_norm != MX8_QK_NORM_PROJECTION) return;
    add_norm(b, "attention.q_norm.weight", c->qk_norm == MX8_QK_NORM_HEAD ? head : q);
    add_norm(b, "attention.k_norm.weight", c->qk_norm == MX8_QK_NORM_HEAD ? head : kv);
}

/* SwiGLU: w1 is the gate, w3 the up, w2 the down projection. torchtitan scales w3 with depth too. */
static void add_feed_forward(struct builder *b, const char *w1, const char *w2, const char *w3, int64_t F) {
    int64_t D = b->config->dim;
    add_matrix(b, MX8_PARAM_LINEAR, plain_std, w1, F, D);
    add_matrix(b, MX8_PARAM_LINEAR, b->depth_std, w2, D, F);
    add_matrix(b, MX8_PARAM_LINEAR, b->depth_std, w3, F, D);
}

static void add_buffer(struct builder *b) {
    struct mx8_param_table *t = b->table;
    struct mx8_buffer *buffer = &t->buffer[t->buffer_count++];
    *buffer = (struct mx8_buffer){.layer = b->layer, .count = b->config->num_experts, .at = t->buffer_elements};
    snprintf(buffer->name, sizeof buffer->name, "layers.%d.moe.expert_bias", (int)b->layer);
    t->buffer_elements += (size_t)(buffer->count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void add_moe(struct builder *b) {
    const struct mx8_model_config *c = b->config;
    int64_t E = c->num_experts, D = c->dim, F = mx8i_get_expert_hidden(c);
    const int64_t up[3] = {E, F, D}, down[3] = {E, D, F};
    add_matrix(b, MX8_PARAM_ROUTER, b->depth_std, "moe.router.gate", E, D);
    add_param(b, MX8_PARAM_EXPERT, plain_std, up, "layers.%d.moe.experts.w1", (int)b->layer);
    add_param(b, MX8_PARAM_EXPERT, b->depth_std, down, "layers.%d.moe.experts.w2", (int)b->layer);
    add_param(b, MX8_PARAM_EXPERT, b->depth_std, up, "layers.%d.moe.experts.w3", (int)b->layer);
    if (c->num_shared_experts) {
        add_feed_forward(
            b, "moe.shared_experts.w1", "moe.shared_experts.w2", "moe.shared_experts.w3", F * c->num_shared_experts);
    }
    if (!isnan(c->load_balance_coeff)) add_buffer(b);
}

static void add_layer(struct builder *b, int32_t layer) {
    const struct mx8_model_config *c = b->config;
    b->layer = layer;
    b->depth_std = plain_std / sqrt(2.0 * (double)(c->depth_init ? layer + 1 : c->n_layers));
    add_norm(b, "attention_norm.weight", c->dim);
    add_attention(b);
    add_norm(b, "ffn_norm.weight", c->dim);
    if (mx8i_is_moe_layer(c, layer)) {
        add_moe(b);
    } else {
        add_feed_forward(b, "feed_forward.w1", "feed_forward.w2", "feed_forward.w3", mx8i_get_dense_hidden(c));
    }
}

static void add_outside_blocks(struct builder *b, enum mx8_param_kind kind, const char *name, double std, double cut) {
    const int64_t shape[3] = {b->config->vocab_size, b->config->dim};
    b->layer = -1;
    add_param(b, kind, std, shape, "%s", name)->init_cut = cut;
}

/* 6 FLOPs per weight that a token meets; the embedding is a lookup, and a token meets top_k of the experts. */
static void share_flops(struct mx8_param_table *t, const struct mx8_model_config *c, int64_t seq_len) {
    double all = mx8i_count_model(c, seq_len).flops_per_token;
    for (int64_t i = 0; i < t->count; i++) {
        struct mx8_param *p = &t->param[i];
        double met = p->kind == MX8_PARAM_EMBEDDING ? 0 : 1;
        if (p->kind == MX8_PARAM_EXPERT) met = (double)c->top_k / (double)c->num_experts;
        p->flops_share = 6.0 * met * (double)p->count / all;
    }
}

enum mx8_status mx8i_build_params(const struct mx8_model_config *c, int64_t seq_len, struct mx8_param_table *out) {
    *out = (struct mx8_param_table){0};
    MX8_TRY(mx8i_check_config(c));
    enum { MOST_PER_LAYER = 15 };
    size_t most = 3 + MOST_PER_LAYER * (size_t)c->n_layers;
    out->param = mx8i_allocate(most * sizeof *out->param, "tensor table");
    out->buffer = out->param ? mx8i_allocate((size_t)c->n_layers * sizeof *out->buffer, "tensor table") : NULL;
    if (!out->buffer) {
        mx8i_free_params(out);
        return MX8_OUT_OF_MEMORY;
    }
    struct builder b = {.table = out, .config = c};
    add_outside_blocks(&b, MX8_PARAM_EMBEDDING, "tok_embeddings.weight", 1, 0);
    for (int32_t layer = 0; layer < c->n_layers; layer++) add_layer(&b, layer);
    b.layer = -1;
    add_norm(&b, "norm.weight", c->dim);
    double head_std = 1 / sqrt((double)c->dim);
    add_outside_blocks(&b, MX8_PARAM_HEAD, "output.weight", head_std, 3 * head_std);
    share_flops(out, c, seq_len);
    return MX8_OK;
}

void mx8i_free_params(struct mx8_param_table *t) {
    mx8i_release(t->param);
    mx8i_release(t->buffer);
    *t = (struct mx8_param_table){0};
}

const struct mx8_param *mx8i_find_param(const struct mx8_param_table *t, const char *name) {
    for (int64_t i = 0; i < t->count; i++) {
        if (!strcmp(t->param[i].name, name)) return &t->param[i];
    }
    return NULL;
}
