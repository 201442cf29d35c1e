/* Expert parallelism. Each rank routes its own tokens, as with one process; then the rows of an expert travel to the
 * rank that holds it, through the experts, and back. Rows leave sorted by expert, so that what goes to a rank is
 * contiguous; they arrive sorted by expert and, within one, by rank of origin: each (origin, expert) is a message of
 * its own that is received where its rows belong, so nothing is sorted twice.
 *
 * How many rows arrive is known only when everyone's counts are. Memory is planned for the most there can be; a step
 * then takes what it needs. The host reads the counts, once a layer. */
#include <string.h>
#include "model/internal.h"
#include "base/error.h"

static struct mx8_comm *get_group(const struct mx8_model *m) {
    return &m->options.dist->group[MX8_GROUP_EXPERT];
}

int32_t mx8i_is_spread(const struct mx8_model *m) {
    return m->parallel && m->options.dist->grid.expert > 1;
}

int64_t mx8i_count_expert_rows(const struct mx8_model *m, const struct mx8_layer *l) {
    const int64_t own = m->T * m->config.top_k;
    if (!mx8i_is_spread(m)) return own;
    if (!m->planning) return l->dispatch.rows;
    /* every token of the group, to as many of the experts here as it may choose */
    const int64_t choices = m->config.top_k < m->experts_here ? m->config.top_k : m->experts_here;
    return m->options.dist->grid.expert * m->T * choices;
}

/* Rows of origin `rank` for expert e: their number, and where they begin there. */
static int64_t count_rows(
    const struct mx8_model *m, const struct mx8_layer *l, int32_t rank, int64_t e, int64_t *start) {
    const int32_t *ends = l->dispatch.ends + rank * m->config.num_experts;
    *start = e ? ends[e - 1] : 0;
    return ends[e] - *start;
}

enum mx8_status mx8i_plan_dispatch(struct mx8_model *m, struct mx8_layer *l) {
    const int64_t E = m->config.num_experts, here = m->experts_here;
    const struct mx8_routing *routing = &l->a.routing;
    if (!mx8i_is_spread(m)) return MX8_OK;
    if (m->planning) {
        m->traffic.dispatched += E * (int64_t)sizeof(int32_t) * (get_group(m)->size - 1);
        return MX8_OK;
    }
    const struct mx8_exec *x = &m->ctx->exec;
    struct mx8_comm *c = get_group(m);
    const size_t bytes = (size_t)E * sizeof(int32_t);
    int32_t ticket = 0, *own = m->io.group_ends + c->rank * E;
    MX8_TRY(x->k->copy(x, own, routing->offsets.data, bytes));
    for (int32_t r = 0; r <= c->size; r++) m->cut_bytes[r] = (size_t)r * bytes;
    MX8_TRY(c->t->start_gather(c, m->io.group_ends, m->cut_bytes, &ticket));
    MX8_TRY(c->t->wait(c, &ticket));
    MX8_TRY(mx8i_settle(m));
    MX8_TRY(x->k->download(x, l->dispatch.ends, m->io.group_ends, bytes * (size_t)c->size));

    int64_t rows = 0, start;
    for (int64_t e = 0; e < here; e++) {
        for (int32_t r = 0; r < c->size; r++) rows += count_rows(m, l, r, c->rank * here + e, &start);
        m->local_ends[e] = (int32_t)rows;
    }
    l->dispatch.rows = rows;
    return x->k->upload(x, routing->groups.data, m->local_ends, (size_t)here * sizeof *m->local_ends);
}

/* The messages of one layer, for rows of `width` bytes: from `rows` here to `there`, or back. */
static int32_t list_parts(
    const struct mx8_model *m, const struct mx8_layer *l, uint8_t *there, uint8_t *rows, size_t width, int32_t back) {
    const struct mx8_comm *c = get_group(m);
    const int64_t here = m->experts_here;
    int32_t n = 0;
    for (int32_t peer = 0; peer < c->size; peer++) { /* what this rank routed to the peer's experts */
        for (int64_t e = 0; e < here; e++) {
            int64_t start, count = count_rows(m, l, c->rank, peer * here + e, &start);
            uint8_t *at = rows + (size_t)start * width;
            const size_t bytes = (size_t)count * width;
            m->parts[n++] = back ? (struct mx8_part){.peer = peer, .receive = at, .receive_bytes = bytes}
                                 : (struct mx8_part){.peer = peer, .send = at, .send_bytes = bytes};
        }
    }
    size_t at = 0;
    const int32_t own = c->rank * (int32_t)here;
    for (int64_t e = 0; e < here; e++) { /* what the peers routed to the experts here */
        for (int32_t peer = 0; peer < c->size; peer++) {
            int64_t start, count = count_rows(m, l, peer, c->rank * here + e, &start);
            const size_t bytes = (size_t)count * width;
            struct mx8_part *p = &m->parts[own + e];
            if (peer != c->rank) {
                p = &m->parts[n++];
                *p = (struct mx8_part){.peer = peer};
            }
            if (back) {
                p->send = there + at;
                p->send_bytes = bytes;
            } else {
                p->receive = there + at;
                p->receive_bytes = bytes;
            }
            at += bytes;
        }
    }
    return n;
}

static enum mx8_status exchange(
    struct mx8_model *m, const struct mx8_layer *l, struct mx8_tensor there, struct mx8_tensor rows, int32_t back) {
    struct mx8_comm *c = get_group(m);
    const size_t width = (size_t)rows.shape[1] * mx8_get_dtype_size(rows.dtype);
    int32_t ticket = 0;
    if (m->planning) { /* even routing: 1/n of the rows stay */
        m->traffic.dispatched += (int64_t)width * (m->T * m->config.top_k / c->size * (c->size - 1));
        return MX8_OK;
    }
    const int32_t n = list_parts(m, l, there.data, rows.data, width, back);
    MX8_TRY(c->t->start_exchange(c, m->parts, n, &ticket));
    return c->t->wait(c, &ticket);
}

/* As MXFP8: quantized here, exchanged as codes and scales, and widened again there. */
static enum mx8_status exchange_codes(
    struct mx8_model *m, const struct mx8_layer *l, struct mx8_tensor to, struct mx8_tensor from, int32_t back) {
    const size_t mark = m->scratch.used;
    const int64_t D = from.shape[1];
    struct mx8_tensor codes[2], scales[2]; /* here, there */
    for (int32_t i = 0; i < 2; i++) {
        const int64_t rows = i ? to.shape[0] : from.shape[0];
        codes[i] = mx8i_take_rows(&m->scratch, MX8_F8_E4M3, rows, D);
        scales[i] = mx8i_take_rows(&m->scratch, MX8_F8_E8M0, rows, D / MX8_BLOCK);
    }
    struct mx8_op_call quantize = {.in = {from},
        .n_in = 1,
        .out = {codes[0], scales[0]},
        .n_out = 2,
        .options = {.scale_rule = m->recipe.scale_rule}};
    MX8_TRY(mx8i_call(m, MX8_OP_QUANTIZE_ROWS, 0, &quantize));
    MX8_TRY(exchange(m, l, codes[!back], codes[back], back));
    MX8_TRY(exchange(m, l, scales[!back], scales[back], back));
    struct mx8_op_call widen = {
        .in = {codes[1], scales[1]}, .n_in = 2, .out = {to}, .n_out = 1, .options = {.out_dtype = 1 + to.dtype}};
    MX8_TRY(mx8i_call(m, MX8_OP_DEQUANTIZE, 0, &widen));
    m->scratch.used = mark;
    return MX8_OK;
}

enum mx8_status mx8i_dispatch_rows(
    struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor there, struct mx8_tensor rows) {
    if (!mx8i_is_spread(m)) return MX8_OK;
    return m->options.dispatch_mxfp8 ? exchange_codes(m, l, there, rows, 0) : exchange(m, l, there, rows, 0);
}

enum mx8_status mx8i_return_rows(
    struct mx8_model *m, struct mx8_layer *l, struct mx8_tensor rows, struct mx8_tensor there) {
    if (!mx8i_is_spread(m)) return MX8_OK;
    return m->options.dispatch_mxfp8 ? exchange_codes(m, l, rows, there, 1) : exchange(m, l, there, rows, 1);
}
