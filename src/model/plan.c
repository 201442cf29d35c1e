/* From a configuration to a model without memory: tensor table, layers, and the plan that a dry walk measures. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "model/internal.h"
#include "base/error.h"
#include "base/memory.h"

static enum mx8_status check_options(
    const struct mx8_model_config *c, const struct mx8_recipe *r, const struct mx8_model_options *o) {
    if (o->batch < 1 || o->seq_len < 1) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "training.local_batch_size is %lld and training.seq_len %lld, expected at least 1", (long long)o->batch,
            (long long)o->seq_len);
    }
    if (o->batch > INT32_MAX / c->top_k / o->seq_len) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "a microbatch of %lld x %lld tokens times top_k %lld, expected at most %d slots", (long long)o->batch,
            (long long)o->seq_len, (long long)c->top_k, INT32_MAX);
    }
    if (o->ac_mode == MX8_AC_EVERY_N && o->ac_every < 1) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "activation checkpointing of every %d-th layer, expected at least 1",
            (int)o->ac_every);
    }
    if (o->moment_dtype != MX8_F32 && o->moment_dtype != MX8_BF16) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "AdamW's moments in %s, expected f32 or bf16",
            mx8_get_dtype_name(o->moment_dtype));
    }
    if (o->loss_chunk_rows < -1 || o->loss_chunk_rows > INT32_MAX) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%lld loss chunk rows, expected -1 (as fit the gradients), 0 (picked) to %d",
            (long long)o->loss_chunk_rows, INT32_MAX);
    }
    if (o->gather_mxfp8 && !r->convert_linear && !r->convert_experts) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "parallelism.fsdp_gather_dtype is mxfp8, but recipe %s converts no weights to MXFP8: expected "
            "model.converters=mx, or bfloat16",
            r->name);
    }
    if (r->dtype != MX8_F32 && r->dtype != MX8_BF16) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "recipe %s computes in %s, expected f32 or bf16", r->name,
            mx8_get_dtype_name(r->dtype));
    }
    return MX8_OK;
}

static const struct mx8_param *find_weight(const struct mx8_model *m, int64_t layer, const char *name) {
    char full[sizeof m->params.param->name];
    snprintf(full, sizeof full, "layers.%lld.%s", (long long)layer, name);
    return mx8i_find_param(&m->params, full);
}

static void link_moe(struct mx8_model *m, struct mx8_layer *l, int64_t layer) {
    l->moe = m->moe_layers++;
    l->gate = find_weight(m, layer, "moe.router.gate.weight");
    l->experts.w1 = find_weight(m, layer, "moe.experts.w1");
    l->experts.w2 = find_weight(m, layer, "moe.experts.w2");
    l->experts.w3 = find_weight(m, layer, "moe.experts.w3");
    l->dense.w1 = find_weight(m, layer, "moe.shared_experts.w1.weight");
    l->dense.w2 = find_weight(m, layer, "moe.shared_experts.w2.weight");
    l->dense.w3 = find_weight(m, layer, "moe.shared_experts.w3.weight");
    for (int64_t i = 0; i < m->params.buffer_count; i++) {
        if (m->params.buffer[i].layer == layer) l->bias = &m->params.buffer[i];
    }
}

static void link_layer(struct mx8_model *m, int64_t layer) {
    const struct mx8_model_config *c = &m->config;
    struct mx8_layer *l = &m->layer[layer];
    l->attention_norm = find_weight(m, layer, "attention_norm.weight");
    l->wq = find_weight(m, layer, "attention.wq.weight");
    l->wk = find_weight(m, layer, "attention.wk.weight");
    l->wv = find_weight(m, layer, "attention.wv.weight");
    l->wo = find_weight(m, layer, "attention.wo.weight");
    l->q_norm = find_weight(m, layer, "attention.q_norm.weight");
    l->k_norm = find_weight(m, layer, "attention.k_norm.weight");
    l->ffn_norm = find_weight(m, layer, "ffn_norm.weight");
    l->moe = -1;
    if (mx8i_is_moe_layer(c, layer)) {
        link_moe(m, l, layer);
    } else {
        l->dense.w1 = find_weight(m, layer, "feed_forward.w1.weight");
        l->dense.w2 = find_weight(m, layer, "feed_forward.w2.weight");
        l->dense.w3 = find_weight(m, layer, "feed_forward.w3.weight");
    }
    /* iRoPE: every n-th layer has no positions and sees everything; the others see their chunk. */
    l->uses_rope = mx8i_uses_rope(c, layer);
    if (c->every_n_layers_nope && l->uses_rope && c->fixed_attn_block_size < m->options.seq_len) l->chunk = c->fixed_attn_block_size;
    /* The last layer's backward follows its forward at once: to walk it twice would save nothing. */
    l->checkpointed = layer + 1 < c->n_layers &&
                      (m->options.ac_mode == MX8_AC_FULL ||
                          (m->options.ac_mode == MX8_AC_EVERY_N && (layer + 1) % m->options.ac_every == 0));
}

static enum mx8_status build_layers(struct mx8_model *m) {
    MX8_TRY(mx8i_build_params(&m->config, m->options.seq_len, &m->params));
    MX8_TRY(mx8i_apply_recipe(&m->params, &m->recipe));
    m->layer = mx8i_allocate((size_t)m->config.n_layers * sizeof *m->layer, "layers");
    m->plan = mx8i_allocate(2 * sizeof *m->plan, "memory plan");
    if (!m->layer || !m->plan) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < m->config.n_layers; i++) link_layer(m, i);
    m->embedding = mx8i_find_param(&m->params, "tok_embeddings.weight");
    m->norm = mx8i_find_param(&m->params, "norm.weight");
    m->head = mx8i_find_param(&m->params, "output.weight");
    return mx8i_plan_shards(m);
}

/* Walks everything that the model will ever run, with tensors that have no memory. */
static enum mx8_status measure_walks(struct mx8_model *m) {
    m->planning = 1;
    enum mx8_status status = mx8i_choose_head_chunk(m);
    if (status == MX8_OK && !m->parallel) status = mx8i_walk_weights(m, 0);
    if (status == MX8_OK && m->options.training) status = mx8i_update_converted(m, &(struct mx8_adamw_job){0});
    if (status == MX8_OK && m->options.training) status = mx8i_walk_training(m);
    const struct mx8_traffic_plan traffic = m->traffic; /* of a microbatch of training */
    mx8i_forget_units(m);
    if (status == MX8_OK) status = mx8i_walk_validation(m, NULL);
    mx8i_forget_units(m);
    m->traffic = traffic;
    m->planning = 0;
    return status;
}

static void sum_plan(struct mx8_model *m) {
    const size_t n = m->params.elements;
    const int32_t training = m->options.training != 0;
    m->plan[0] = (struct mx8_memory_plan){.masters = n * sizeof(float),
        .copies = mx8i_keeps_copies(m) ? m->unit[0].value_elements * sizeof(uint16_t) : 0,
        .codes = m->params.code_bytes,
        .gradients = training ? n * sizeof(float) : 0,
        .moments = training ? 2 * n * mx8_get_dtype_size(m->options.moment_dtype) : 0,
        .saved = m->saved.peak,
        .scratch = m->scratch.peak,
        .buffers = m->params.buffer_elements * sizeof(float) + m->io_size,
        .gathered = m->value_bytes + m->message_bytes,
        .reduced = training ? m->gradient_elements * sizeof(float) + m->receive_bytes : 0};
    struct mx8_memory_plan *p = &m->plan[0];
    p->total = p->masters + p->copies + p->codes + p->gradients + p->moments + p->saved + p->scratch + p->workspace +
               p->buffers + p->gathered + p->reduced;
    if (!m->parallel) return;
    struct mx8_comm *replicas = &m->options.dist->group[MX8_GROUP_REPLICATE];
    m->traffic.summed = mx8i_count_sum_bytes(replicas, n, m->receive_bytes);
}

enum mx8_status mx8i_plan_model(const struct mx8_model_config *c, const struct mx8_recipe *r,
    const struct mx8_model_options *o, struct mx8_model **out) {
    *out = NULL;
    MX8_TRY(mx8i_check_config(c));
    MX8_TRY(check_options(c, r, o));
    struct mx8_model *m = mx8i_allocate(sizeof *m, "model");
    if (!m) return MX8_OUT_OF_MEMORY;
    m->config = *c;
    m->recipe = *r;
    m->options = *o;
    m->T = o->batch * o->seq_len;
    m->weight_piece = INT64_C(1) << 26;
    /* About 64 MiB of f32 logits at a time, and no more rows than there are. */
    m->logit_rows = (INT64_C(1) << 24) / c->vocab_size + 1;
    if (m->logit_rows > m->T) m->logit_rows = m->T;
    enum mx8_status status = build_layers(m);
    if (status == MX8_OK) status = measure_walks(m);
    if (status != MX8_OK) {
        mx8i_free_model(m);
        return status;
    }
    m->readback_size = sizeof(double) + (size_t)(m->moe_layers * c->num_experts) * sizeof(int32_t);
    struct mx8_io io;
    m->io_size = mx8i_lay_out_io(m, NULL, &io);
    sum_plan(m);
    *out = m;
    return MX8_OK;
}

const struct mx8_traffic_plan *mx8i_get_traffic_plan(const struct mx8_model *m) {
    return &m->traffic;
}

const struct mx8_memory_plan *mx8i_get_memory_plan(const struct mx8_model *m, struct mx8_context *ctx) {
    if (!ctx) return &m->plan[0];
    m->plan[1] = m->plan[0];
    m->plan[1].workspace += ctx->exec.scratch_bytes;
    m->plan[1].total += ctx->exec.scratch_bytes;
    return &m->plan[1];
}
