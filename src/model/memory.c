/* Allocation of what the plan says, all of it at once, and its release. */
#include <math.h>
#include <string.h>
#include "model/internal.h"
#include "base/error.h"
#include "base/memory.h"

static size_t count_table(const struct mx8_model *m) {
    return (size_t)(m->options.seq_len * mx8i_get_head_dim(&m->config));
}

size_t mx8i_lay_out_io(const struct mx8_model *m, uint8_t *base, struct mx8_io *io) {
    const struct mx8_model_config *c = &m->config;
    const size_t word = sizeof(int32_t), ids = (size_t)m->T * word;
    const size_t slots = c->force_balance && m->moe_layers ? (size_t)(m->T * c->top_k) * word : 0;
    const struct {
        void *place;
        size_t bytes;
    } parts[] = {
        {&io->tokens, ids},
        {&io->targets, ids},
        {&io->docs, ids},
        {&io->rope_table, count_table(m) * sizeof(float)},
        {&io->temperature_table, c->attn_temperature > 0 ? count_table(m) * sizeof(float) : 0},
        {&io->ones, c->qk_norm == MX8_QK_NORM_L2 ? (size_t)mx8i_get_head_dim(c) * sizeof(float) : 0},
        {&io->readback, m->readback_size},
        {&io->saturated, 2 * sizeof(int64_t)},
        {&io->flags, (size_t)m->params.count * word},
        {&io->group_ends, mx8i_is_spread(m) ? (size_t)(m->options.dist->grid.expert * c->num_experts) * word : 0},
        {&io->forced_slots, slots},
        {&io->forced_order, slots},
        {&io->forced_positions, slots},
        {&io->forced_indices, slots},
        {&io->forced_offsets, slots ? (size_t)c->num_experts * word : 0},
    };
    struct mx8_plan plan = {0};
    *io = (struct mx8_io){0};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t at = mx8i_reserve(&plan, parts[i].bytes);
        void *start = base ? base + at : NULL;
        memcpy(parts[i].place, &start, sizeof start); /* a pointer of whatever type */
    }
    return plan.size;
}

/* The frequency of pair i, theta^(-2i/d), in torchtitan's own single precision steps; then Llama 3's stretching: waves
 * longer than original_len / low are slowed by the factor, those shorter than original_len / high are left alone, and
 * between the two the slowing is mixed in. */
static float get_frequency(const struct mx8_model_config *c, int64_t i) {
    const int64_t d = mx8i_get_head_dim(c);
    const float frequency = 1.0f / (float)pow(c->rope_theta, (double)((float)(2 * i) / (float)d));
    if (c->rope_factor == 0) return frequency;
    const double turns = (double)c->rope_original_len * (double)frequency / (2 * 3.14159265358979323846);
    if (turns > c->rope_high_freq) return frequency;
    if (turns < c->rope_low_freq) return (float)((double)frequency / c->rope_factor);
    const double range = c->rope_high_freq - c->rope_low_freq;
    const double kept = range > 0 ? (turns - c->rope_low_freq) / range : 1;
    return (float)((1 - kept) * (double)frequency / c->rope_factor + kept * (double)frequency);
}

static void fill_rope_table(const struct mx8_model *m, float *table) {
    const int64_t d = mx8i_get_head_dim(&m->config);
    for (int64_t i = 0; i < d / 2; i++) {
        const float frequency = get_frequency(&m->config, i);
        for (int64_t s = 0; s < m->options.seq_len; s++) {
            const float angle = (float)s * frequency;
            table[(s * (d / 2) + i) * 2] = (float)cos((double)angle);
            table[(s * (d / 2) + i) * 2 + 1] = (float)sin((double)angle);
        }
    }
}

static void fill_temperature_table(const struct mx8_model *m, float *table) {
    const struct mx8_model_config *c = &m->config;
    const int64_t d = mx8i_get_head_dim(c);
    for (int64_t s = 0; s < m->options.seq_len; s++) {
        const int64_t floors = (s + 1) / c->attn_temperature_floor; /* whole ones */
        const double octave = log1p((double)floors);
        for (int64_t i = 0; i < d; i++) table[s * d + i] = i % 2 ? 0 : (float)(octave * c->attn_temperature + 1);
    }
}

static enum mx8_status upload_tables(struct mx8_model *m) {
    const size_t bytes = count_table(m) * sizeof(float);
    const struct mx8_exec *x = &m->ctx->exec;
    float *table = mx8i_allocate(bytes, "RoPE table");
    if (!table) return MX8_OUT_OF_MEMORY;
    fill_rope_table(m, table);
    enum mx8_status status = x->k->upload(x, m->io.rope_table, table, bytes);
    if (status == MX8_OK && m->config.attn_temperature > 0) {
        fill_temperature_table(m, table);
        status = x->k->upload(x, m->io.temperature_table, table, bytes);
    }
    if (status == MX8_OK && m->config.qk_norm == MX8_QK_NORM_L2) {
        const int64_t d = mx8i_get_head_dim(&m->config); /* no more than the table's first position */
        for (int64_t i = 0; i < d; i++) table[i] = 1;
        status = x->k->upload(x, m->io.ones, table, (size_t)d * sizeof *table);
    }
    mx8i_release(table);
    return status;
}

/* force_balance: slot s = t * top_k + j goes to expert s % E, whatever the scores say. */
static enum mx8_status upload_forced_routing(struct mx8_model *m) {
    const int64_t E = m->config.num_experts, k = m->config.top_k, slots = m->T * k;
    const struct mx8_exec *x = &m->ctx->exec;
    int32_t *host = mx8i_allocate((size_t)(4 * slots + E) * sizeof *host, "forced routing");
    if (!host) return MX8_OUT_OF_MEMORY;
    int32_t *index = host, *slot = host + slots, *order = slot + slots, *position = order + slots;
    int32_t *offset = position + slots, row = 0;
    for (int64_t e = 0; e < E; e++) {
        for (int64_t s = e; s < slots; s += E) {
            index[s] = (int32_t)e;
            slot[s] = (int32_t)(s / k * E + e);
            order[row] = (int32_t)s;
            position[s] = row++;
        }
        offset[e] = row;
    }
    const size_t bytes = (size_t)slots * sizeof *host;
    const struct {
        void *device;
        const void *from;
        size_t bytes;
    } parts[] = {{m->io.forced_indices, index, bytes}, {m->io.forced_slots, slot, bytes},
        {m->io.forced_order, order, bytes}, {m->io.forced_positions, position, bytes},
        {m->io.forced_offsets, offset, (size_t)E * sizeof *host}};
    enum mx8_status status = MX8_OK;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == MX8_OK; i++) {
        status = x->k->upload(x, parts[i].device, parts[i].from, parts[i].bytes);
    }
    mx8i_release(host);
    return status;
}

/* Linux promises more than it has and kills the process later, and a device that is full says so at the last of many
 * allocations: ask first. */
static enum mx8_status check_memory(const struct mx8_model *m, const struct mx8_exec *x) {
    const struct mx8_memory_plan *p = &m->plan[0];
    const int64_t available = x->k->get_free_memory(x);
    if (available <= 0 || p->total <= (size_t)available) return MX8_OK;
    const double GiB = 1 << 30;
    return MX8_FAIL(MX8_OUT_OF_MEMORY,
        "the model needs %.2f GiB and %.2f GiB are free: masters %.2f, copies %.2f, MXFP8 codes %.2f, gradients %.2f, "
        "moments %.2f, activations %.2f, scratch %.2f, workspace %.2f; smaller with training.local_batch_size, "
        "training.seq_len, activation_checkpoint.mode=full, or optimizer.state_dtype=bfloat16",
        (double)p->total / GiB, (double)available / GiB, (double)p->masters / GiB, (double)p->copies / GiB,
        (double)p->codes / GiB, (double)p->gradients / GiB, (double)p->moments / GiB, (double)p->saved / GiB,
        (double)p->scratch / GiB, (double)p->workspace / GiB);
}

static enum mx8_status allocate_host(struct mx8_model *m) {
    m->host_readback = mx8i_allocate(m->readback_size, "loss and expert load");
    m->host_bias = mx8i_allocate(m->params.buffer_elements * sizeof *m->host_bias, "expert bias");
    m->load = mx8i_allocate((size_t)(m->moe_layers * m->config.num_experts) * sizeof *m->load, "expert load");
    if (!m->host_readback || !m->host_bias || !m->load) return MX8_OUT_OF_MEMORY;
    if (!m->parallel) return MX8_OK;
    const size_t ranks = (size_t)m->options.dist->grid.shard + 1;
    m->known_load = mx8i_allocate((size_t)(m->moe_layers * m->config.num_experts) * sizeof *m->load, "expert load");
    m->local_ends = mx8i_allocate((size_t)m->config.num_experts * sizeof *m->local_ends, "expert load");
    m->cut_bytes = mx8i_allocate(ranks * sizeof *m->cut_bytes, "shards");
    return m->known_load && m->local_ends && m->cut_bytes ? MX8_OK : MX8_OUT_OF_MEMORY;
}

/* One allocation per purpose; what training starts from zero, and the gaps between tensors, are cleared. */
static enum mx8_status allocate_device(struct mx8_model *m, uint8_t **io) {
    const struct mx8_memory_plan *p = &m->plan[0];
    const struct mx8_exec *x = &m->ctx->exec;
    const struct {
        const char *purpose;
        void *place;
        size_t bytes;
        int32_t clear;
    } parts[] = {
        {"master weights", &m->masters, p->masters, 1},
        {"bf16 weights", &m->copies, p->copies, 1},
        {"MXFP8 codes", &m->codes, p->codes, 0},
        {"gradients", &m->gradients, p->gradients, 1},
        {"AdamW moments", &m->moments, p->moments, 1},
        {"gathered weights", &m->gathered, p->gathered, 1},
        {"gradients of whole layers", &m->reduced, m->options.training ? m->gradient_elements * sizeof(float) : 0, 0},
        {"arriving gradients", &m->receive, m->options.training ? m->receive_bytes : 0, 0},
        {"activations", &m->saved.base, p->saved, 0},
        {"scratch", &m->scratch.base, p->scratch, 0},
        {"expert bias", &m->buffers, m->params.buffer_elements * sizeof(float), 1},
        {"batch and tables", io, m->io_size, 1},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (!parts[i].bytes) continue;
        void *memory = NULL;
        enum mx8_status status = x->k->allocate(x, parts[i].bytes, &memory);
        if (status != MX8_OK) {
            return mx8i_fail_prefix(status, "%.2f GiB for %s, of %.2f GiB in all", (double)parts[i].bytes / (1 << 30),
                parts[i].purpose, (double)p->total / (1 << 30));
        }
        memcpy(parts[i].place, &memory, sizeof memory); /* a pointer of whatever type */
        if (parts[i].clear) MX8_TRY(x->k->fill(x, memory, 0, parts[i].bytes));
    }
    return MX8_OK;
}

static void release_memory(struct mx8_model *m) {
    if (m->ctx) {
        const struct mx8_exec *x = &m->ctx->exec;
        mx8i_release_graphs(m);
        if (m->ctx->saturated == m->io.saturated) m->ctx->saturated = NULL, m->ctx->counts_gaps = 0;
        void *parts[] = {m->masters, m->copies, m->codes, m->gradients, m->moments, m->saved.base, m->scratch.base,
            m->gathered, m->reduced, m->receive, m->buffers, m->io.tokens /* first of its block */};
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            if (parts[i]) x->k->release(x, parts[i]);
        }
    }
    mx8i_release(m->host_readback);
    mx8i_release(m->host_bias);
    mx8i_release(m->load);
    mx8i_release(m->known_load);
    mx8i_release(m->local_ends);
    mx8i_release(m->cut_bytes);
}

enum mx8_status mx8i_allocate_model(struct mx8_model *m, struct mx8_context *ctx) {
    if (m->ctx) return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_allocate_model: the model has its memory already");
    MX8_TRY(check_memory(m, &ctx->exec));
    m->ctx = ctx;
    MX8_TRY(allocate_host(m));
    uint8_t *io = NULL;
    enum mx8_status status = allocate_device(m, &io);
    if (io) mx8i_lay_out_io(m, io, &m->io); /* before failing: the block is released through it */
    MX8_TRY(status);
    mx8i_place_units(m);
    ctx->saturated = m->io.saturated;
    ctx->counts_gaps = m->options.count_gaps;
    MX8_TRY(upload_tables(m));
    return m->io.forced_slots && m->config.force_balance && m->moe_layers ? upload_forced_routing(m) : MX8_OK;
}

void mx8i_free_model(struct mx8_model *m) {
    if (!m) return;
    release_memory(m);
    mx8i_free_params(&m->params);
    mx8i_free_shards(m);
    mx8i_release(m->layer);
    mx8i_release(m->plan);
    mx8i_release(m);
}
