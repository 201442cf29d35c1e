/* Reading tensors through their layouts. Every matrix of ours, of one expert, is a view of some file: a start, a step
 * from row to row and one from column to column, and for RoPE by halves another order of the rows. Blocks of it are
 * gathered in either orientation; the same dtype is the same bits. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "mx8/formats.h"
#include "model/hf_private.h"

enum { TILE = 64 };

struct view {
    const uint8_t *data, *scales; /* scales: of codes, one for MX8_BLOCK columns; NULL: plain values */
    int64_t row_step, column_step, rows, columns, head /* HALVES: rows of a head; 0: our own order */;
    int32_t dtype;
};

void mx8i_format_weights_name(
    const struct mx8_weights *s, const struct mx8_hf_rule *rule, int64_t layer, int64_t expert, char name[128]) {
    const int used = snprintf(name, 128, "%s", s->prefix);
    char rest[128];
    mx8i_format_hf_name(rule, layer, expert, rest);
    snprintf(name + used, (size_t)(128 - used), "%.*s", 127 - used, rest);
}

static enum mx8_status find_view(
    const struct mx8_weights *s, const struct mx8_param *p, int64_t expert, struct view *v) {
    int64_t layer, at = 0;
    char name[128];
    const struct mx8_hf_rule *rule = s->family ? mx8i_find_hf_rule(s->family, p->name, &layer) : NULL;
    const enum mx8_hf_layout layout = rule ? rule->layout : MX8_HF_SAME;
    const int each = rule && strchr(rule->theirs, '#');
    const int64_t N = p->ndim == 1 ? p->shape[0] : p->shape[p->ndim - 2], K = p->ndim == 1 ? 1 : p->shape[p->ndim - 1];
    snprintf(name, sizeof name, "%s", p->name);
    if (rule) mx8i_format_weights_name(s, rule, layer, expert, name);
    const struct mx8_st_entry *e = mx8i_find_weights_entry(s, name);
    if (!e) return MX8_FAIL(MX8_INTERNAL, "%s: %s is not there, though it was when the file was opened", s->path, name);
    *v = (struct view){.rows = N, .columns = K, .row_step = K, .column_step = 1, .dtype = e->dtype};
    if (layout == MX8_HF_HALVES) v->head = mx8i_get_head_dim(&s->config);
    if (layout >= MX8_HF_TRANSPOSED) {
        const int64_t width = layout == MX8_HF_TRANSPOSED ? N : 2 * N;
        v->row_step = 1;
        v->column_step = width;
        at = expert * K * width + (layout == MX8_HF_UP ? N : 0);
    } else if (!each) {
        at = expert * N * K;
    }
    v->data = (const uint8_t *)e->data + (size_t)at * mx8_get_dtype_size(e->dtype);
    if (e->dtype != MX8_F8_E4M3 && e->dtype != MX8_F8_E5M2) return MX8_OK;
    snprintf(name, sizeof name, "%s.scale", p->name);
    v->scales =
        (const uint8_t *)mx8i_find_weights_entry(s, name)->data + expert * N * ((K + MX8_BLOCK - 1) / MX8_BLOCK);
    return MX8_OK;
}

/* Our row n of a head of d lies there in their order: even rows first, odd ones behind them; and the way back. */
static int64_t halve(int64_t n, int64_t d) {
    return n / d * d + n % 2 * (d / 2) + n % d / 2;
}
static int64_t unhalve(int64_t r, int64_t d) {
    const int64_t i = r % d;
    return r / d * d + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);
}

static float get_code(const struct view *v, int64_t row, int64_t column) {
    const int64_t blocks = (v->columns + MX8_BLOCK - 1) / MX8_BLOCK;
    const uint8_t code = v->data[row * v->row_step + column * v->column_step];
    const float value = v->dtype == MX8_F8_E4M3 ? mx8_decode_e4m3(code) : mx8_decode_e5m2(code);
    return value * mx8_decode_e8m0(v->scales[row * blocks + column / MX8_BLOCK]);
}

/* One element as the bits of dtype. Files promise no alignment: every access is a copy. */
static uint32_t get_bits(const struct view *v, int64_t row, int64_t column, int32_t dtype) {
    const int64_t at = row * v->row_step + column * v->column_step;
    uint32_t wide = 0;
    uint16_t narrow = 0;
    float value;
    if (v->scales) {
        value = get_code(v, row, column);
    } else if (v->dtype == MX8_BF16) {
        memcpy(&narrow, v->data + 2 * at, sizeof narrow);
        if (dtype == MX8_BF16) return narrow;
        value = mx8_decode_bf16(narrow);
    } else {
        memcpy(&wide, v->data + 4 * at, sizeof wide);
        if (dtype == MX8_F32) return wide;
        memcpy(&value, &wide, sizeof value);
    }
    if (dtype == MX8_BF16) return mx8_encode_bf16(value);
    memcpy(&wide, &value, sizeof wide);
    return wide;
}

static void put_bits(void *out, int64_t at, int32_t dtype, uint32_t bits) {
    if (dtype == MX8_BF16)
        ((uint16_t *)out)[at] = (uint16_t)bits;
    else
        ((uint32_t *)out)[at] = bits;
}

/* Tiles keep both sides in the first cache when one of them is read across. */
static void gather(const struct view *v, const struct mx8_window *w, int32_t dtype, void *out, int64_t ls) {
    for (int64_t r0 = w->r0; r0 < w->r1; r0 += TILE) {
        for (int64_t c0 = w->c0; c0 < w->c1; c0 += TILE) {
            const int64_t r1 = r0 + TILE < w->r1 ? r0 + TILE : w->r1, c1 = c0 + TILE < w->c1 ? c0 + TILE : w->c1;
            for (int64_t r = r0; r < r1; r++) {
                for (int64_t c = c0; c < c1; c++) {
                    int64_t row = w->transposed ? c : r;
                    const int64_t column = w->transposed ? r : c;
                    if (v->head) row = halve(row, v->head);
                    put_bits(out, (r - w->r0) * ls + c - w->c0, dtype, get_bits(v, row, column, dtype));
                }
            }
        }
    }
}

/* The common case: rows as they are, of the dtype that is wanted. */
static void copy_rows(const struct view *v, const struct mx8_window *w, int64_t head, void *out, int64_t ls) {
    const size_t size = mx8_get_dtype_size(v->dtype);
    for (int64_t r = w->r0; r < w->r1; r++) {
        int64_t row = w->halves ? unhalve(r, head) : r;
        if (v->head) row = halve(row, v->head);
        memcpy((uint8_t *)out + (size_t)((r - w->r0) * ls) * size, v->data + (size_t)(row * v->row_step + w->c0) * size,
            (size_t)(w->c1 - w->c0) * size);
    }
}

/* Out of a reader: row by row of ours, or of the transpose, a column at a time into its place. */
static enum mx8_status read_through(const struct mx8_weights *s, const struct mx8_param *p, const struct mx8_window *w,
    int32_t dtype, void *out, int64_t ls) {
    const struct mx8_weights_reader *r = &s->reader;
    const int64_t N = p->ndim == 1 ? p->shape[0] : p->shape[p->ndim - 2], K = p->ndim == 1 ? 1 : p->shape[p->ndim - 1];
    const int64_t head = mx8i_get_head_dim(&s->config), first = w->expert * N * K;
    const size_t size = mx8_get_dtype_size(dtype);
    if (!w->transposed) {
        for (int64_t i = w->r0; i < w->r1; i++) {
            const int64_t row = w->halves ? unhalve(i, head) : i;
            MX8_TRY(r->read(r->user, p->name, first + row * K + w->c0, w->c1 - w->c0, dtype,
                (uint8_t *)out + (size_t)((i - w->r0) * ls) * size));
        }
        return MX8_OK;
    }
    uint32_t part[1024];
    for (int64_t r0 = w->r0; r0 < w->r1; r0 += 1024) {
        const int64_t n = w->r1 - r0 < 1024 ? w->r1 - r0 : 1024;
        for (int64_t c = w->c0; c < w->c1; c++) {
            MX8_TRY(r->read(r->user, p->name, first + c * K + r0, n, dtype, part));
            for (int64_t i = 0; i < n; i++)
                memcpy((uint8_t *)out + (size_t)((r0 - w->r0 + i) * ls + c - w->c0) * size,
                    (const uint8_t *)part + (size_t)i * size, size);
        }
    }
    return MX8_OK;
}

enum mx8_status mx8i_read_window(const struct mx8_weights *s, const struct mx8_param *p, const struct mx8_window *w,
    int32_t dtype, void *out, int64_t ls) {
    struct view v;
    if (s->reader.read) return read_through(s, p, w, dtype, out, ls);
    MX8_TRY(find_view(s, p, w->expert, &v));
    const int64_t head = mx8i_get_head_dim(&s->config);
    if (!w->transposed && !v.scales && v.dtype == dtype && v.column_step == 1) {
        copy_rows(&v, w, head, out, ls);
        return MX8_OK;
    }
    if (!w->halves) {
        gather(&v, w, dtype, out, ls);
        return MX8_OK;
    }
    for (int64_t r = w->r0; r < w->r1; r++) { /* halves: a row at a time, where it comes from */
        struct mx8_window one = *w;
        one.r0 = unhalve(r, head);
        one.r1 = one.r0 + 1;
        gather(&v, &one, dtype, (uint8_t *)out + (size_t)((r - w->r0) * ls) * mx8_get_dtype_size(dtype), ls);
    }
    return MX8_OK;
}

/* A flat range is whole rows but for the ends; a block of rows is read at once, so that tiles are tiles. */
enum mx8_status mx8i_read_weights(
    const struct mx8_weights *s, const struct mx8_param *p, int64_t from, int64_t n, int32_t dtype, void *out) {
    const int64_t N = p->ndim == 1 ? p->shape[0] : p->shape[p->ndim - 2], K = p->ndim == 1 ? 1 : p->shape[p->ndim - 1];
    if (from < 0 || n < 0 || from > p->count - n)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: elements %lld to %lld of %s, which has %lld", s->path,
            (long long)from, (long long)(from + n), p->name, (long long)p->count);
    if (s->reader.read) return s->reader.read(s->reader.user, p->name, from, n, dtype, out);
    while (n > 0) {
        struct mx8_window w = {.expert = from / (N * K), .c0 = from % K};
        w.r0 = from / K % N;
        w.r1 = w.r0 + 1;
        w.c1 = w.c0 + n < K ? w.c0 + n : K;
        if (w.c0 == 0 && n >= K) w.r1 = w.r0 + n / K < N ? w.r0 + n / K : N;
        const int64_t done = (w.r1 - w.r0 - 1) * K + w.c1 - w.c0;
        MX8_TRY(mx8i_read_window(s, p, &w, dtype, out, w.c1 - w.c0));
        out = (uint8_t *)out + (size_t)done * mx8_get_dtype_size(dtype);
        from += done;
        n -= done;
    }
    return MX8_OK;
}

enum mx8_status mx8i_read_weights_bias(
    const struct mx8_weights *s, const struct mx8_buffer *b, float *out, int32_t *found) {
    if (s->reader.read) {
        memset(out, 0, (size_t)b->count * sizeof *out);
        *found = s->reader.has(s->reader.user, b->name);
        return *found ? s->reader.read(s->reader.user, b->name, 0, b->count, MX8_F32, out) : MX8_OK;
    }
    const struct mx8_st_entry *e = s->family ? NULL : mx8i_find_weights_entry(s, b->name);
    *found = e != NULL;
    memset(out, 0, (size_t)b->count * sizeof *out);
    if (!e) return MX8_OK;
    const struct view v = {.data = e->data, .rows = 1, .columns = b->count, .column_step = 1, .dtype = e->dtype};
    const struct mx8_window w = {.r1 = 1, .c1 = b->count};
    gather(&v, &w, MX8_F32, out, b->count);
    return MX8_OK;
}
