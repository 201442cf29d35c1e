/* Fully sharded data parallelism, unit by unit: weights are gathered ahead of their use and dropped after it, gradients
 * are reduced behind the backward pass. While planning, the same calls count bytes instead of sending them. */
#include "model/internal.h"
#include "base/error.h"

int32_t mx8i_get_embedding_unit(const struct mx8_model *m) {
    (void)m;
    return 0;
}

int32_t mx8i_get_layer_unit(const struct mx8_model *m, int64_t layer) {
    if (!m->parallel || layer < 0 || layer >= m->config.n_layers) return MX8_NO_UNIT;
    return 1 + (int32_t)layer;
}

int32_t mx8i_get_head_unit(const struct mx8_model *m) {
    return m->units - 1;
}

static struct mx8_comm *get_group(const struct mx8_model *m, const struct mx8_segment *s) {
    return &m->options.dist->group[s->group];
}

void mx8i_place_units(struct mx8_model *m) {
    if (m->gathered) m->messages = m->gathered + m->value_bytes;
    for (int32_t i = 0; i < m->units; i++) {
        struct mx8_unit *u = &m->unit[i];
        const struct mx8_slot *s = &m->slot[u->slot];
        if (m->parallel) {
            u->values = m->gathered ? m->gathered + s->values_at : NULL;
            u->codes = m->codes ? m->codes + s->codes_at : NULL;
        } else {
            u->values = m->copies ? (uint8_t *)m->copies : (uint8_t *)m->masters;
            u->codes = m->codes;
            u->gradients = m->gradients;
        }
    }
}

void mx8i_poll(struct mx8_model *m) {
    struct mx8_comm *c = &m->options.dist->group[MX8_GROUP_WORLD];
    if (c->t) c->t->poll(c);
}

enum mx8_status mx8i_settle(struct mx8_model *m) {
    struct mx8_comm *c = m->parallel ? &m->options.dist->group[MX8_GROUP_WORLD] : NULL;
    return c && c->t ? c->t->settle(c) : MX8_OK;
}

/* ---- weights ---- */

/* The own range into its place, and the others' on their way. */
static enum mx8_status gather_segment(struct mx8_model *m, struct mx8_unit *u, struct mx8_segment *s) {
    struct mx8_comm *c = get_group(m, s);
    const size_t width = mx8_get_dtype_size(m->recipe.dtype);
    const size_t from = s->cut[c->rank], bytes = (s->cut[c->rank + 1] - from) * width;
    if (m->planning) {
        m->traffic.gathered += (int64_t)bytes * (c->size - 1);
        return MX8_OK;
    }
    uint8_t *place = u->values + s->values_at * width;
    if (bytes) MX8_TRY(mx8i_round_masters(m, place + from * width, s->local_at, bytes / width));
    if (c->size == 1) return MX8_OK;
    size_t *cut = m->cut_bytes;
    for (int32_t r = 0; r <= c->size; r++) cut[r] = s->cut[r] * width;
    return c->t->start_gather(c, place, cut, &s->gather);
}

/* Which codes of the unit are read before it is dropped. */
static int32_t find_forms(const struct mx8_model *m, int32_t unit) {
    if (!m->options.training || (m->direction == MX8_VALIDATING && !m->options.keep_gathered)) return MX8_ROW_CODES;
    const int64_t layer = unit - 1;
    /* backward follows at once */
    if (m->options.keep_gathered || layer >= m->config.n_layers - 1) return MX8_ALL_CODES;
    if (m->direction == MX8_GOING_FORWARD) return MX8_ROW_CODES;
    return layer >= 0 && m->layer[layer].checkpointed ? MX8_ALL_CODES : MX8_COL_CODES;
}

static enum mx8_status start_gather(struct mx8_model *m, int32_t unit) {
    struct mx8_unit *u = &m->unit[unit];
    struct mx8_slot *slot = &m->slot[u->slot];
    if (u->state != MX8_UNIT_ABSENT) return MX8_OK;
    if (slot->unit != MX8_NO_UNIT) {
        return MX8_FAIL(MX8_INTERNAL, "unit %d is needed where unit %d still is", (int)unit, (int)slot->unit);
    }
    slot->unit = unit;
    u->state = MX8_UNIT_COMING;
    u->forms = find_forms(m, unit);
    for (int32_t k = 0; k < 2; k++) {
        MX8_TRY(u->segment[k].coded ? mx8i_send_codes(m, unit, k) : gather_segment(m, u, &u->segment[k]));
    }
    return MX8_OK;
}

static enum mx8_status finish_gather(struct mx8_model *m, int32_t unit) {
    struct mx8_unit *u = &m->unit[unit];
    if (u->state == MX8_UNIT_HERE) return MX8_OK;
    for (int32_t k = 0; k < 2 && !m->planning; k++) {
        struct mx8_segment *s = &u->segment[k];
        if (s->gather) MX8_TRY(get_group(m, s)->t->wait(get_group(m, s), &s->gather));
        if (s->coded) MX8_TRY(mx8i_place_codes(m, unit, k));
    }
    if (m->arriving == unit) m->arriving = MX8_NO_UNIT;
    u->state = MX8_UNIT_HERE;
    return m->options.gather_mxfp8 ? MX8_OK : mx8i_walk_weights(m, unit);
}

enum mx8_status mx8i_use_unit(struct mx8_model *m, int32_t unit, int32_t next) {
    if (!m->parallel) return MX8_OK;
    MX8_TRY(start_gather(m, unit));
    MX8_TRY(finish_gather(m, unit));
    return next == MX8_NO_UNIT || m->options.no_overlap ? MX8_OK : start_gather(m, next);
}

static void empty_unit(struct mx8_model *m, int32_t unit) {
    struct mx8_unit *u = &m->unit[unit];
    if (m->slot[u->slot].unit == unit) m->slot[u->slot].unit = MX8_NO_UNIT;
    if (m->arriving == unit) m->arriving = MX8_NO_UNIT;
    u->state = MX8_UNIT_ABSENT;
}

void mx8i_drop_unit(struct mx8_model *m, int32_t unit) {
    if (m->parallel && !m->options.keep_gathered) empty_unit(m, unit);
}

void mx8i_forget_units(struct mx8_model *m) {
    for (int32_t i = 0; i < m->units && m->parallel; i++) empty_unit(m, i);
}

/* ---- gradients ---- */

/* Arrays whose gaps between tensors hold what another unit left there: a gap must not reach the gradient norm. */
static enum mx8_status clear_gaps(struct mx8_model *m, int32_t unit) {
    const struct mx8_exec *x = &m->ctx->exec;
    struct mx8_unit *u = &m->unit[unit];
    size_t end = 0;
    for (int32_t experts = 0; experts < 2; experts++) { /* in the order of their places */
        for (int64_t i = 0; i < m->params.count; i++) {
            const struct mx8_shard *s = &m->shard[i];
            const struct mx8_param *p = &m->params.param[i];
            if (s->unit != unit || (p->kind == MX8_PARAM_EXPERT) != experts) continue;
            if (s->full_at > end) {
                MX8_TRY(x->k->fill(x, u->gradients + end, 0, (s->full_at - end) * sizeof *u->gradients));
            }
            end = s->full_at + (size_t)s->shape[0] * (size_t)(p->count / p->shape[0]);
        }
    }
    if (end == u->elements) return MX8_OK;
    return x->k->fill(x, u->gradients + end, 0, (u->elements - end) * sizeof *u->gradients);
}

enum mx8_status mx8i_begin_gradients(struct mx8_model *m, int32_t unit) {
    if (!m->parallel || m->planning) return MX8_OK;
    struct mx8_unit *u = &m->unit[unit];
    const int32_t turn = unit == 0 || unit == m->units - 1 ? 2 : unit & 1;
    /* the place is free: its last user was reduced before the reduction that may still be on its way */
    if (m->reducing != MX8_NO_UNIT && m->unit[m->reducing].gradients == m->reduced + m->slot[turn].gradients_at) {
        MX8_TRY(mx8i_finish_gradients(m));
    }
    u->gradients = m->reduced + m->slot[turn].gradients_at;
    return clear_gaps(m, unit);
}

enum mx8_status mx8i_finish_gradients(struct mx8_model *m) {
    if (m->reducing == MX8_NO_UNIT) return MX8_OK;
    struct mx8_unit *u = &m->unit[m->reducing];
    for (int32_t k = 0; k < 2; k++) {
        struct mx8_segment *s = &u->segment[k];
        if (s->reduce) MX8_TRY(get_group(m, s)->t->wait(get_group(m, s), &s->reduce));
    }
    m->reducing = MX8_NO_UNIT;
    return MX8_OK;
}

enum mx8_status mx8i_end_gradients(struct mx8_model *m, int32_t unit) {
    if (!m->parallel) return MX8_OK;
    struct mx8_unit *u = &m->unit[unit];
    uint8_t *scratch = m->receive;
    if (!m->planning) MX8_TRY(mx8i_finish_gradients(m));
    for (int32_t k = 0; k < 2; k++) {
        struct mx8_segment *s = &u->segment[k];
        struct mx8_comm *c = get_group(m, s);
        const size_t own = s->cut[c->rank + 1] - s->cut[c->rank];
        if (m->planning) {
            m->traffic.reduced += (int64_t)((s->size - own) * sizeof(float));
            continue;
        }
        MX8_TRY(c->t->start_reduce(
            c, m->gradients + s->local_at, u->gradients + s->at, s->cut, m->adding, scratch, &s->reduce));
        scratch += mx8i_count_reduce_scratch(c, s->cut);
    }
    if (m->planning) return MX8_OK;
    m->reducing = unit;
    return m->options.no_overlap ? mx8i_finish_gradients(m) : MX8_OK;
}

enum mx8_status mx8i_sum_gradients(struct mx8_model *m) {
    if (!m->parallel) return MX8_OK;
    MX8_TRY(mx8i_finish_gradients(m));
    MX8_TRY(mx8i_sum_floats(
        &m->options.dist->group[MX8_GROUP_REPLICATE], m->gradients, m->params.elements, m->receive, m->receive_bytes));
    return mx8i_settle(m);
}
