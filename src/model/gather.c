/* Weights that travel as MXFP8 codes. A rank quantizes its own part of a converted tensor and sends the codes that the
 * pass reads: 1.03 bytes a weight in one orientation instead of 2. Cuts divide no block, scale group or tile in either
 * orientation (shard.c), so what arrives is, put together, what quantizing the whole weight gives, bit for bit.
 *
 * A rank's message holds its part of each tensor of the segment, one after the other: values of what is not converted;
 * of what is, row codes and their scales, then column codes and theirs, of one expert after the other. Column codes are
 * stored transposed, so that a part of them is a piece of every line: messages arrive beside the weights and are copied
 * to their places. One unit is on its way at a time, and there is one such place. */
#include "model/internal.h"
#include "base/error.h"

enum { PIECE_ALIGNMENT = 128 }; /* bytes: pieces begin where every kernel can write */

struct message {
    struct mx8_model *m;
    struct mx8_unit *u;
    int32_t forms;
    uint8_t *base; /* NULL: nothing is there but its length */
    size_t used;
};

/* Elements [first, first + count) of a tensor as it is gathered. */
struct part {
    const struct mx8_param *p;
    const struct mx8_shard *s;
    int64_t first, count;
};

/* The rows of a part that lie in one expert, or in the matrix. */
struct block {
    int64_t expert, row, rows;
};

typedef enum mx8_status (*part_function)(struct message *g, const struct part *t);

static uint8_t *take(struct message *g, int64_t bytes) {
    uint8_t *piece = g->base ? g->base + g->used : NULL;
    g->used += ((size_t)bytes + PIECE_ALIGNMENT - 1) / PIECE_ALIGNMENT * PIECE_ALIGNMENT;
    return piece;
}

static int64_t count_columns(const struct part *t) {
    return t->p->shape[t->p->ndim - 1];
}

/* The block that begins at element `from` of the tensor; returns where the next one does. */
static int64_t find_block(const struct part *t, int64_t from, struct block *b) {
    const int64_t N = t->p->shape[t->p->ndim - 2], K = count_columns(t), end = t->first + t->count;
    const int64_t row = from / K;
    *b = (struct block){.expert = row / N, .row = row % N};
    const int64_t last = (b->expert + 1) * N * K;
    b->rows = ((end < last ? end : last) - from) / K;
    return from + b->rows * K;
}

static size_t get_width(const struct mx8_model *m) {
    return mx8_get_dtype_size(m->recipe.dtype);
}

/* What `rank` has of the segment, tensor by tensor. */
static enum mx8_status walk_message(struct message *g, int32_t experts, int32_t rank, part_function run) {
    const struct mx8_segment *s = &g->u->segment[experts];
    const size_t begin = s->at + s->cut[rank], end = s->at + s->cut[rank + 1];
    for (int64_t i = g->u->first; i < g->u->end; i++) {
        const struct mx8_param *p = &g->m->params.param[i];
        const struct mx8_shard *h = &g->m->shard[i];
        if ((p->kind == MX8_PARAM_EXPERT) != experts) continue;
        const size_t last = h->full_at + (size_t)(h->shape[0] * (p->count / p->shape[0]));
        const size_t from = begin > h->full_at ? begin : h->full_at, to = end < last ? end : last;
        if (from >= to) continue;
        const struct part t = {p, h, (int64_t)(from - h->full_at), (int64_t)(to - from)};
        MX8_TRY(run(g, &t));
    }
    return MX8_OK;
}

/* ---- its length ---- */

static enum mx8_status measure_part(struct message *g, const struct part *t) {
    const int64_t K = count_columns(t);
    if (!t->p->mxfp8) {
        take(g, t->count * (int64_t)get_width(g->m));
        return MX8_OK;
    }
    if (g->forms & MX8_ROW_CODES) take(g, t->count), take(g, t->count / MX8_BLOCK);
    struct block b;
    for (int64_t at = t->first; g->forms & MX8_COL_CODES && at < t->first + t->count;) {
        at = find_block(t, at, &b);
        take(g, b.rows * K);
        take(g, b.rows * K / MX8_BLOCK);
    }
    return MX8_OK;
}

static size_t measure(const struct mx8_model *m, int32_t unit, int32_t experts, int32_t rank, int32_t forms) {
    struct message g = {.m = (struct mx8_model *)m, .u = &m->unit[unit], .forms = forms};
    (void)walk_message(&g, experts, rank, measure_part); /* cannot fail */
    return g.used;
}

size_t mx8i_count_messages(const struct mx8_model *m, int32_t unit) {
    size_t bytes = 0;
    for (int32_t k = 0; k < 2; k++) {
        const struct mx8_segment *s = &m->unit[unit].segment[k];
        for (int32_t r = 0; s->coded && r < m->options.dist->group[s->group].size; r++) {
            bytes += measure(m, unit, k, r, m->options.training ? MX8_ALL_CODES : MX8_ROW_CODES);
        }
    }
    return bytes;
}

/* ---- there ---- */

/* Codes of a (rows, K) matrix: row orientation, column orientation, or both from one read. */
static enum mx8_status quantize_matrix(struct message *g, struct mx8_tensor w, int32_t forms, int32_t codes) {
    const int64_t rows = w.shape[0], K = w.shape[1];
    struct mx8_op_call call = {.in = {w}, .n_in = 1, .options = mx8i_make_weight_quantizer(g->m)};
    if (forms & MX8_ROW_CODES) {
        uint8_t *at = take(g, rows * K), *scales = take(g, rows * K / MX8_BLOCK);
        call.out[call.n_out++] = mx8_make_tensor(at, codes, 2, (const int64_t[]){rows, K});
        call.out[call.n_out++] = mx8_make_tensor(scales, MX8_F8_E8M0, 2, (const int64_t[]){rows, K / MX8_BLOCK});
    }
    if (forms & MX8_COL_CODES) {
        uint8_t *at = take(g, rows * K), *scales = take(g, rows * K / MX8_BLOCK);
        call.out[call.n_out++] = mx8_make_tensor(at, codes, 2, (const int64_t[]){K, rows});
        call.out[call.n_out++] = mx8_make_tensor(scales, MX8_F8_E8M0, 2, (const int64_t[]){K, rows / MX8_BLOCK});
    }
    const enum mx8_row row = forms == MX8_ALL_CODES   ? MX8_OP_QUANTIZE_BOTH
                             : forms == MX8_ROW_CODES ? MX8_OP_QUANTIZE_ROWS
                                                      : MX8_OP_QUANTIZE_COLS;
    return mx8i_call(g->m, row, 0, &call);
}

/* Column codes of the rows of one expert, whose scales lie the other way round. */
static enum mx8_status quantize_expert_columns(struct message *g, void *data, int64_t rows, int64_t K, int32_t codes) {
    const int64_t shape[3] = {1, rows, K}, scales[3] = {1, rows / MX8_BLOCK, K};
    struct mx8_op_call call = {.in = {mx8_make_tensor(data, g->m->recipe.dtype, 3, shape)},
        .n_in = 1,
        .n_out = 2,
        .options = mx8i_make_weight_quantizer(g->m)};
    call.out[0] = mx8_make_tensor(take(g, rows * K), codes, 3, shape);
    call.out[0].stride[1] = 1;
    call.out[0].stride[2] = rows;
    call.out[1] = mx8_make_tensor(take(g, rows * K / MX8_BLOCK), MX8_F8_E8M0, 3, scales);
    return mx8i_call(g->m, MX8_OP_QUANTIZE_3D, 0, &call);
}

static enum mx8_status quantize_part(struct message *g, const struct part *t, struct mx8_tensor w) {
    struct mx8_model *m = g->m;
    const int32_t codes = m->recipe.format ? m->recipe.format : MX8_F8_E4M3;
    const struct mx8_op_options options = mx8i_make_weight_quantizer(m);
    MX8_TRY(mx8i_round_for_control(m, &w, &options, 0));
    if (t->p->ndim == 2) return quantize_matrix(g, w, g->forms, codes);
    if (g->forms & MX8_ROW_CODES) MX8_TRY(quantize_matrix(g, w, MX8_ROW_CODES, codes));
    const int64_t K = count_columns(t);
    struct block b;
    for (int64_t at = t->first; g->forms & MX8_COL_CODES && at < t->first + t->count;) {
        uint8_t *data = w.data ? (uint8_t *)w.data + (size_t)(at - t->first) * get_width(m) : NULL;
        at = find_block(t, at, &b);
        MX8_TRY(quantize_expert_columns(g, data, b.rows, K, codes));
    }
    return MX8_OK;
}

static enum mx8_status pack_part(struct message *g, const struct part *t) {
    struct mx8_model *m = g->m;
    const size_t width = get_width(m), mark = m->scratch.used;
    if (!t->p->mxfp8) {
        uint8_t *to = take(g, t->count * (int64_t)width);
        return mx8i_round_masters(m, to, t->p->at, (size_t)t->count);
    }
    struct mx8_tensor w = mx8i_take_rows(&m->scratch, m->recipe.dtype, t->count / count_columns(t), count_columns(t));
    enum mx8_status status = mx8i_round_masters(m, w.data, t->p->at, (size_t)t->count);
    if (status == MX8_OK) status = quantize_part(g, t, w);
    m->scratch.used = mark;
    return status;
}

enum mx8_status mx8i_send_codes(struct mx8_model *m, int32_t unit, int32_t experts) {
    struct mx8_unit *u = &m->unit[unit];
    struct mx8_segment *s = &u->segment[experts];
    struct mx8_comm *c = &m->options.dist->group[s->group];
    if (m->arriving != MX8_NO_UNIT && m->arriving != unit) {
        return MX8_FAIL(MX8_INTERNAL, "unit %d is sent while unit %d arrives", (int)unit, (int)m->arriving);
    }
    m->arriving = unit;
    struct message g = {.m = m, .u = u, .forms = u->forms};
    if (!m->planning) {
        const struct mx8_segment *dense = &u->segment[0];
        s->message_at = 0;
        for (int32_t r = 0; experts && dense->coded && r < m->options.dist->group[dense->group].size; r++) {
            s->message_at += measure(m, unit, 0, r, u->forms);
        }
        m->cut_bytes[0] = 0;
        for (int32_t r = 0; r < c->size; r++) {
            m->cut_bytes[r + 1] = m->cut_bytes[r] + measure(m, unit, experts, r, u->forms);
        }
        g.base = m->messages + s->message_at + m->cut_bytes[c->rank];
    }
    const struct mx8_profile_label label = m->label;
    mx8i_begin_pass(m, "weights", -1);
    MX8_TRY(walk_message(&g, experts, c->rank, pack_part));
    mx8i_begin_pass(m, label.pass, label.layer);
    if (m->planning) {
        m->traffic.gathered += (int64_t)g.used * (c->size - 1);
        return MX8_OK;
    }
    return c->size > 1 ? c->t->start_gather(c, m->messages + s->message_at, m->cut_bytes, &s->gather) : MX8_OK;
}

/* ---- here ---- */

static enum mx8_status place_columns(struct message *g, const struct part *t, const struct block *b) {
    const struct mx8_exec *x = &g->m->ctx->exec;
    const int64_t N = t->p->shape[t->p->ndim - 2], K = count_columns(t), blocks = b->rows / MX8_BLOCK;
    const uint8_t *codes = take(g, b->rows * K), *scales = take(g, blocks * K);
    uint8_t *to = g->u->codes + t->p->col_codes + b->expert * N * K + b->row;
    MX8_TRY(x->k->copy_lines(x, to, (size_t)N, codes, (size_t)b->rows, K, (size_t)b->rows));
    to = g->u->codes + t->p->col_scales;
    if (t->p->ndim == 3) {
        to += (b->expert * N + b->row) / MX8_BLOCK * K;
        return x->k->copy(x, to, scales, (size_t)(blocks * K));
    }
    to += b->row / MX8_BLOCK;
    return x->k->copy_lines(x, to, (size_t)(N / MX8_BLOCK), scales, (size_t)blocks, K, (size_t)blocks);
}

static enum mx8_status place_part(struct message *g, const struct part *t) {
    struct mx8_model *m = g->m;
    const struct mx8_exec *x = &m->ctx->exec;
    const size_t width = get_width(m), first = (size_t)t->first, count = (size_t)t->count;
    if (!t->p->mxfp8) {
        return x->k->copy(
            x, g->u->values + (t->s->values_at + first) * width, take(g, t->count * (int64_t)width), count * width);
    }
    if (g->forms & MX8_ROW_CODES) {
        MX8_TRY(x->k->copy(x, g->u->codes + t->p->row_codes + first, take(g, t->count), count));
        MX8_TRY(x->k->copy(
            x, g->u->codes + t->p->row_scales + first / MX8_BLOCK, take(g, t->count / MX8_BLOCK), count / MX8_BLOCK));
    }
    struct block b;
    for (int64_t at = t->first; g->forms & MX8_COL_CODES && at < t->first + t->count;) {
        at = find_block(t, at, &b);
        MX8_TRY(place_columns(g, t, &b));
    }
    return MX8_OK;
}

enum mx8_status mx8i_place_codes(struct mx8_model *m, int32_t unit, int32_t experts) {
    struct mx8_unit *u = &m->unit[unit];
    const struct mx8_segment *s = &u->segment[experts];
    struct message g = {.m = m, .u = u, .forms = u->forms, .base = m->messages + s->message_at};
    for (int32_t r = 0; r < m->options.dist->group[s->group].size; r++) {
        MX8_TRY(walk_message(&g, experts, r, place_part)); /* messages lie one after the other */
    }
    return MX8_OK;
}
