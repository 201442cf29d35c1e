/* Who holds what. A unit's dense tensors lie side by side, and so do its experts; each of the two segments is cut into
 * one contiguous range a rank of the group that shares it (dist/split.c). The flat arrays of a rank (masters, moments,
 * gradients, copies) are its ranges one after the other, so the optimizer knows nothing of all this. */
#include <string.h>
#include "model/internal.h"
#include "base/error.h"
#include "base/memory.h"

enum { ALIGNMENT = 64, CODE_ALIGNMENT = 256, MOST_TENSORS = 16 /* of a segment */ };

static size_t align(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* Tensors that follow each other here, and among the copies, as they do among all tensors are one stretch. */
static void find_stretches(struct mx8_model *m, struct mx8_stretch *next) {
    const struct mx8_stretch *first = next;
    struct mx8_stretch *last = NULL;
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        const struct mx8_part_of part = m->shard[i].part;
        const uint64_t place = m->shard[i].place + (uint64_t)part.first;
        const size_t at = p->at;
        const int32_t has_copy = mx8i_keeps_copies(m) && !mx8i_is_codes_only(m, p);
        if (!part.count || mx8i_updates_codes(m, p)) continue;
        const size_t gap = last ? at - last->at - (size_t)last->n : 0; /* behind it: wraps to more than any gap */
        if (last && gap < ALIGNMENT && place - last->place == at - last->at && has_copy == last->has_copy) {
            last->n += (int64_t)gap + part.count;
        } else {
            last = next++;
            *last = (struct mx8_stretch){at, part.count, place, has_copy ? m->shard[i].values_at : 0, has_copy};
        }
    }
    m->stretches = next - first;
}

/* One process: one unit that holds everything where it lies anyway. Its values are the masters, or copies of those that
 * are read as bf16. */
static void plan_one_process(struct mx8_model *m) {
    struct mx8_unit *u = &m->unit[0];
    *u = (struct mx8_unit){.elements = m->params.elements, .forms = MX8_ALL_CODES, .state = MX8_UNIT_HERE};
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        m->shard[i] =
            (struct mx8_shard){.place = p->at, .full_at = p->at, .values_at = u->value_elements, .part = {0, p->count}};
        memcpy(m->shard[i].shape, p->shape, sizeof p->shape);
        if (!mx8i_is_codes_only(m, p)) u->value_elements += align((size_t)p->count, ALIGNMENT);
    }
}

/* Elements of a tensor that a cut must not divide: whole MX blocks in both orientations, whole tiles of weights. */
static size_t get_granule(const struct mx8_model *m, const struct mx8_param *p) {
    if (p->ndim == 1) return ALIGNMENT;
    int64_t tile = p->mxfp8 && m->recipe.weight_tile_rows > MX8_BLOCK ? m->recipe.weight_tile_rows : MX8_BLOCK;
    if (p->mxfp8 && m->options.gather_mxfp8 && tile < m->recipe.weight_scale_group) {
        /* what is quantized before it travels needs all blocks of a scale; experts' rows may be no multiple of them */
        const int64_t N = p->shape[p->ndim - 2];
        tile = p->ndim == 2 || N % m->recipe.weight_scale_group == 0 ? m->recipe.weight_scale_group : N;
    }
    return (size_t)(tile * p->shape[p->ndim - 1]);
}

static int32_t find_unit(const struct mx8_model *m, const struct mx8_param *p) {
    if (p->layer >= 0) return 1 + p->layer;
    return p->kind == MX8_PARAM_EMBEDDING ? 0 : m->units - 1;
}

static size_t reserve_codes(struct mx8_unit *u, int64_t bytes) {
    const size_t at = u->code_bytes;
    u->code_bytes += align((size_t)bytes, CODE_ALIGNMENT);
    return at;
}

static void place_codes(struct mx8_unit *u, struct mx8_param *p, int64_t count) {
    if (!p->mxfp8) return;
    p->row_codes = reserve_codes(u, count);
    p->row_scales = reserve_codes(u, count / MX8_BLOCK);
    p->col_codes = reserve_codes(u, count);
    p->col_scales = reserve_codes(u, count / MX8_BLOCK);
}

/* This rank's range of a tensor that lies at [s->full_at, + count) of a unit, of which the segment is a part. */
static void find_part(const struct mx8_segment *g, int32_t rank, int64_t held_from, int64_t count, struct mx8_param *p,
    struct mx8_shard *s) {
    const size_t begin = g->at + g->cut[rank], end = g->at + g->cut[rank + 1];
    const size_t from = s->full_at > begin ? s->full_at : begin;
    const size_t last = s->full_at + (size_t)count, to = last < end ? last : end;
    p->at = from < to ? g->local_at + (from - begin) : 0;
    s->part = (struct mx8_part_of){held_from, 0};
    if (from < to) s->part = (struct mx8_part_of){held_from + (int64_t)(from - s->full_at), (int64_t)(to - from)};
}

static int32_t has_converted(const struct mx8_model *m, int32_t unit, int32_t experts) {
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        if (p->mxfp8 && find_unit(m, p) == unit && (p->kind == MX8_PARAM_EXPERT) == experts) return 1;
    }
    return 0;
}

/* The dense tensors of a unit, or its experts: places, cuts, this rank's parts. */
static enum mx8_status plan_segment(struct mx8_model *m, int32_t unit, int32_t experts, size_t **cuts) {
    struct mx8_unit *u = &m->unit[unit];
    struct mx8_segment *g = &u->segment[experts];
    const struct mx8_comm *group = &m->options.dist->group[experts ? MX8_GROUP_EXPERT_SHARD : MX8_GROUP_SHARD];
    const int64_t owner = m->options.dist->group[MX8_GROUP_EXPERT].rank;
    struct mx8_run_of run[MOST_TENSORS];
    int64_t member[MOST_TENSORS], held[MOST_TENSORS], n = 0;
    *g = (struct mx8_segment){.group = experts ? MX8_GROUP_EXPERT_SHARD : MX8_GROUP_SHARD,
        .at = u->elements,
        .values_at = u->value_elements,
        .coded = m->options.gather_mxfp8 && has_converted(m, unit, experts)};
    for (int64_t i = 0; i < m->params.count; i++) {
        struct mx8_param *p = &m->params.param[i];
        if (find_unit(m, p) != unit || (p->kind == MX8_PARAM_EXPERT) != experts) continue;
        if (n == MOST_TENSORS) return MX8_FAIL(MX8_INTERNAL, "%s is tensor %d of its layer", p->name, MOST_TENSORS + 1);
        struct mx8_shard *s = &m->shard[i];
        *s = (struct mx8_shard){.unit = unit, .place = p->at, .full_at = u->elements, .values_at = u->value_elements};
        memcpy(s->shape, p->shape, sizeof p->shape);
        if (experts) s->shape[0] = m->experts_here;
        held[n] = experts ? p->count / p->shape[0] * m->experts_here : p->count;
        run[n] = (struct mx8_run_of){u->elements - g->at, (size_t)held[n], get_granule(m, p)};
        place_codes(u, p, held[n]);
        u->elements = align(u->elements + (size_t)held[n], ALIGNMENT);
        if (!g->coded || !p->mxfp8) u->value_elements = align(u->value_elements + (size_t)held[n], ALIGNMENT);
        if (!u->end || i < u->first) u->first = i;
        if (i >= u->end) u->end = i + 1;
        member[n++] = i;
    }
    g->size = u->elements - g->at;
    g->local_at = m->params.elements;
    g->cut = *cuts;
    *cuts += group->size + 1;
    mx8i_split(run, n, g->size, group->size, g->cut);
    for (int64_t k = 0; k < n; k++) {
        find_part(
            g, group->rank, experts ? owner * held[k] : 0, held[k], &m->params.param[member[k]], &m->shard[member[k]]);
    }
    m->params.elements += align(g->cut[group->rank + 1] - g->cut[group->rank], ALIGNMENT);
    return MX8_OK;
}

/* Two places take turns for the layers, one serves the embedding and the head; or everyone keeps its own. */
static void assign_slots(struct mx8_model *m) {
    for (int32_t i = 0; i < m->units; i++) {
        struct mx8_unit *u = &m->unit[i];
        u->slot = i == 0 || i == m->units - 1 ? 2 : i & 1;
        if (m->options.keep_gathered) u->slot = i;
        struct mx8_slot *s = &m->slot[u->slot];
        s->unit = MX8_NO_UNIT;
        if (s->value_elements < u->value_elements) s->value_elements = u->value_elements;
        if (s->code_bytes < u->code_bytes) s->code_bytes = u->code_bytes;
    }
    const size_t width = mx8_get_dtype_size(m->recipe.dtype);
    m->params.code_bytes = m->value_bytes = 0;
    for (int32_t i = 0; i < m->slots; i++) {
        struct mx8_slot *s = &m->slot[i];
        s->values_at = m->value_bytes;
        s->codes_at = m->params.code_bytes;
        m->value_bytes += align(s->value_elements * width, CODE_ALIGNMENT);
        m->params.code_bytes += align(s->code_bytes, CODE_ALIGNMENT);
    }
}

/* Gradients take turns in any case: they leave when their layer's backward is over. */
static void assign_gradients(struct mx8_model *m) {
    size_t most[3] = {0}, at = 0;
    for (int32_t i = 0; i < m->units; i++) {
        const struct mx8_unit *u = &m->unit[i];
        const int32_t turn = i == 0 || i == m->units - 1 ? 2 : i & 1;
        if (most[turn] < u->elements) most[turn] = u->elements;
        size_t arriving = 0;
        for (int32_t k = 0; k < 2; k++) {
            const struct mx8_segment *g = &u->segment[k];
            arriving += mx8i_count_reduce_scratch(&m->options.dist->group[g->group], g->cut);
        }
        if (m->receive_bytes < arriving) m->receive_bytes = arriving;
    }
    for (int32_t turn = 0; turn < 3; turn++) {
        m->slot[turn].gradients_at = at;
        at += align(most[turn], ALIGNMENT);
    }
    m->gradient_elements = at;
    /* the sum over the replicas goes through the same memory, in pieces that are worth a message */
    const size_t replicas = (size_t)m->options.dist->group[MX8_GROUP_REPLICATE].size;
    const size_t useful = (replicas - 1) * (((size_t)1 << 20) / replicas + 2) * sizeof(float);
    if (m->receive_bytes < useful) m->receive_bytes = useful;
}

static enum mx8_status plan_processes(struct mx8_model *m) {
    const struct mx8_dist *d = m->options.dist;
    size_t *cuts = m->cuts;
    m->params.elements = 0;
    for (int32_t unit = 0; unit < m->units; unit++) {
        for (int32_t experts = 0; experts < 2; experts++) MX8_TRY(plan_segment(m, unit, experts, &cuts));
    }
    assign_slots(m);
    for (int32_t unit = 0; unit < m->units; unit++) {
        const size_t bytes = mx8i_count_messages(m, unit);
        if (m->message_bytes < bytes) m->message_bytes = bytes;
    }
    assign_gradients(m);
    const size_t most_rows = m->moe_layers ? (size_t)(2 * m->config.num_experts) : 0;
    m->parts = mx8i_allocate(most_rows * sizeof *m->parts, "messages of tokens");
    m->dispatch_ends =
        mx8i_allocate((size_t)(m->moe_layers * d->grid.expert * m->config.num_experts) * sizeof *m->dispatch_ends,
            "tokens of experts");
    if (!m->parts || !m->dispatch_ends) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        struct mx8_layer *l = &m->layer[i];
        if (l->moe >= 0) l->dispatch.ends = m->dispatch_ends + l->moe * d->grid.expert * m->config.num_experts;
    }
    return MX8_OK;
}

enum mx8_status mx8i_plan_shards(struct mx8_model *m) {
    const struct mx8_dist *d = m->options.dist;
    m->parallel = d && d->grid.world > 1;
    m->reducing = m->arriving = MX8_NO_UNIT;
    m->units = m->parallel ? (int32_t)m->config.n_layers + 2 : 1;
    m->slots = m->parallel && m->units < 3 ? 3 : m->options.keep_gathered ? m->units : 3;
    const int64_t degree = m->parallel ? d->grid.expert : 1;
    if (m->moe_layers && m->config.num_experts % degree) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "parallelism.expert_parallel_degree is %lld, expected a divisor of moe.num_experts, which is %lld",
            (long long)degree, (long long)m->config.num_experts);
    }
    m->experts_here = (int32_t)(m->config.num_experts / degree);
    const size_t cuts = m->parallel ? (size_t)m->units * 2 * ((size_t)d->grid.shard + 1) : 1;
    m->shard = mx8i_allocate((size_t)m->params.count * sizeof *m->shard, "shards");
    m->unit = mx8i_allocate((size_t)m->units * sizeof *m->unit, "shards");
    m->slot = mx8i_allocate((size_t)m->slots * sizeof *m->slot, "shards");
    m->cuts = mx8i_allocate(cuts * sizeof *m->cuts, "shards");
    struct mx8_stretch *stretch = mx8i_allocate((size_t)m->params.count * sizeof *stretch, "shards");
    m->stretch = stretch;
    if (!m->shard || !m->unit || !m->slot || !m->cuts || !stretch) return MX8_OUT_OF_MEMORY;
    if (m->parallel)
        MX8_TRY(plan_processes(m));
    else
        plan_one_process(m);
    find_stretches(m, stretch);
    return MX8_OK;
}

void mx8i_free_shards(struct mx8_model *m) {
    mx8i_release(m->shard);
    mx8i_release(m->stretch);
    mx8i_release(m->unit);
    mx8i_release(m->slot);
    mx8i_release(m->cuts);
    mx8i_release(m->parts);
    mx8i_release(m->dispatch_ends);
}

struct mx8_part_of mx8i_get_part(const struct mx8_model *m, const struct mx8_param *p) {
    return mx8i_get_shard(m, p)->part;
}
