/* Rows, marks and the timed table of a profile; the header says what for. */
#include "kernels/profile.h"
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "kernels/profile_costs.h"

/* A call that is not collected yet. */
struct span {
    int32_t row;
    double flops, bytes;
};

struct mx8_profile {
    const struct mx8_kernels *inner; /* the real table */
    struct mx8_kernels table;        /* the timed one */
    struct mx8_profile_label label;
    struct mx8_profile_row *row;
    int64_t rows, row_room;
    struct span *span; /* between marks 2 i and 2 i + 1 */
    double *times;
    int64_t spans, span_room;
    void *timer;
};

static int is_same_row(const struct mx8_profile_row *r, const struct mx8_profile_label *l, const struct cost *c) {
    return r->unit == c->unit && r->label.layer == l->layer && r->label.backward == l->backward &&
           !strcmp(r->kernel, c->kernel) && !strcmp(r->label.op, l->op) && !strcmp(r->label.detail, l->detail) &&
           !strcmp(r->label.pass, l->pass);
}

/* Room for one more of something, doubling. */
static enum mx8_status make_room(void **items, int64_t count, int64_t *room, size_t size) {
    if (count < *room) return MX8_OK;
    const int64_t wanted = *room ? 2 * *room : 256;
    void *more = mx8i_allocate((size_t)wanted * size, "profile");
    if (!more) return MX8_OUT_OF_MEMORY;
    if (count) memcpy(more, *items, (size_t)count * size);
    mx8i_release(*items);
    *items = more;
    *room = wanted;
    return MX8_OK;
}

static enum mx8_status find_row(struct mx8_profile *p, const struct cost *c, int32_t *out) {
    for (int64_t i = 0; i < p->rows; i++) {
        if (!is_same_row(&p->row[i], &p->label, c)) continue;
        *out = (int32_t)i;
        return MX8_OK;
    }
    MX8_TRY(make_room((void **)&p->row, p->rows, &p->row_room, sizeof *p->row));
    p->row[p->rows] = (struct mx8_profile_row){.label = p->label, .kernel = c->kernel, .unit = c->unit};
    *out = (int32_t)p->rows++;
    return MX8_OK;
}

static enum mx8_status begin(const struct mx8_exec *x, const struct cost *c) {
    struct mx8_profile *p = x->profile;
    int32_t row = 0;
    MX8_TRY(find_row(p, c, &row));
    int64_t room = p->span_room;
    MX8_TRY(make_room((void **)&p->span, p->spans, &p->span_room, sizeof *p->span));
    if (room != p->span_room) { /* twice as many marks */
        mx8i_release(p->times);
        p->times = mx8i_allocate((size_t)(2 * p->span_room) * sizeof *p->times, "profile");
        if (!p->times) return MX8_OUT_OF_MEMORY;
    }
    p->span[p->spans] = (struct span){row, c->flops, c->bytes};
    return p->inner->mark(x, &p->timer, 2 * p->spans);
}

static enum mx8_status end(const struct mx8_exec *x) {
    struct mx8_profile *p = x->profile;
    return p->inner->mark(x, &p->timer, 2 * p->spans++ + 1);
}

/* ---- the timed entries ---- */

/* name, type of its job */
#define JOBS(ENTRY)                                                                                                    \
    ENTRY(quantize, quant, quantize)                                                                                   \
    ENTRY(dequantize, dequant, dequantize)                                                                             \
    ENTRY(block_scales, layout, layout)                                                                                \
    ENTRY(unblock_scales, layout, layout)                                                                              \
    ENTRY(pad_groups, pad, pad)                                                                                        \
    ENTRY(unpad_groups, pad, pad)                                                                                      \
    ENTRY(gemm, gemm, gemm)                                                                                            \
    ENTRY(colsum, colsum, colsum)                                                                                      \
    ENTRY(rmsnorm, rmsnorm, rmsnorm)                                                                                   \
    ENTRY(rmsnorm_backward, rmsnorm_backward, rmsnorm_backward)                                                        \
    ENTRY(rope, rope, rope)                                                                                            \
    ENTRY(attention, attention, attention)                                                                             \
    ENTRY(attention_backward, attention, attention_backward)                                                           \
    ENTRY(router, router, router)                                                                                      \
    ENTRY(router_backward, router, router_backward)                                                                    \
    ENTRY(permute, permute, permute)                                                                                   \
    ENTRY(permute_backward, permute, permute_backward)                                                                 \
    ENTRY(combine, combine, combine)                                                                                   \
    ENTRY(combine_backward, combine, combine_backward)                                                                 \
    ENTRY(swiglu, swiglu, swiglu)                                                                                      \
    ENTRY(swiglu_backward, swiglu, swiglu_backward)                                                                    \
    ENTRY(embedding, embedding, embedding)                                                                             \
    ENTRY(embedding_backward, embedding, embedding_backward)                                                           \
    ENTRY(cross_entropy, cross_entropy, cross_entropy)                                                                 \
    ENTRY(adamw, adamw, adamw)

#define RUN(x, worth, call)                                                                                            \
    do {                                                                                                               \
        const struct cost cost_ = (worth);                                                                             \
        MX8_TRY(begin((x), &cost_));                                                                                   \
        MX8_TRY((x)->profile->inner->call);                                                                            \
        return end(x);                                                                                                 \
    } while (0)

#define DEFINE(name, job, cost)                                                                                        \
    static enum mx8_status timed_##name(const struct mx8_exec *x, const struct mx8_##job##_job *j) {                   \
        RUN(x, cost_##cost(j), name(x, j));                                                                            \
    }
JOBS(DEFINE)

static enum mx8_status timed_upload(const struct mx8_exec *x, void *dst, const void *src, size_t bytes) {
    RUN(x, move("upload", (double)bytes), upload(x, dst, src, bytes));
}
static enum mx8_status timed_copy(const struct mx8_exec *x, void *dst, const void *src, size_t bytes) {
    RUN(x, move("copy", 2 * (double)bytes), copy(x, dst, src, bytes));
}
static enum mx8_status timed_copy_lines(const struct mx8_exec *x, void *dst, size_t dst_stride, const void *src,
    size_t src_stride, int64_t lines, size_t bytes) {
    RUN(x, move("copy_lines", 2 * (double)lines * (double)bytes),
        copy_lines(x, dst, dst_stride, src, src_stride, lines, bytes));
}
static enum mx8_status timed_fill(const struct mx8_exec *x, void *dst, int32_t byte, size_t bytes) {
    RUN(x, move("fill", (double)bytes), fill(x, dst, byte, bytes));
}
static enum mx8_status timed_add(
    const struct mx8_exec *x, void *y, const void *a, const void *b, int32_t dtype, int64_t n) {
    RUN(x, move_elements("add", dtype, (double)n, 3), add(x, y, a, b, dtype, n));
}
static enum mx8_status timed_cast(
    const struct mx8_exec *x, void *y, int32_t y_dtype, const void *a, int32_t a_dtype, int64_t n) {
    RUN(x, move("cast", (double)n * (size_of(y_dtype) + size_of(a_dtype))), cast(x, y, y_dtype, a, a_dtype, n));
}
static enum mx8_status timed_scale(const struct mx8_exec *x, float *y, const float *factor, float value, int64_t n) {
    RUN(x, move("scale", 8 * (double)n), scale(x, y, factor, value, n));
}
static enum mx8_status timed_sum_squares(const struct mx8_exec *x, double *out, const float *a, int64_t n) {
    RUN(x, move("sum of squares", 4 * (double)n), sum_squares(x, out, a, n));
}
static enum mx8_status timed_sum(const struct mx8_exec *x, double *out, const float *a, int64_t n) {
    RUN(x, move("sum", 4 * (double)n), sum(x, out, a, n));
}
static enum mx8_status timed_check_finite(
    const struct mx8_exec *x, int32_t *flag, const void *a, int32_t dtype, int64_t n) {
    RUN(x, move_elements("check finite", dtype, (double)n, 1), check_finite(x, flag, a, dtype, n));
}

static enum mx8_status timed_quantize_from(
    const struct mx8_exec *x, const struct mx8_quant_source *s, const struct mx8_quant_job *j) {
    const double n = (double)j->batch * (double)j->rows * (double)j->cols;
    const int read = s->kind == MX8_FROM_SWIGLU || s->kind == MX8_FROM_FLOATS ? 4 : 2; /* bytes an element */
    RUN(x, move("quantize what is made", n * (read + 2 * 33.0 / 32.0)), quantize_from(x, s, j));
}

static enum mx8_status timed_quantize_swiglu_backward(const struct mx8_exec *x, const struct mx8_swiglu_job *s,
    const struct mx8_quant_job *dgate, const struct mx8_quant_job *dup) {
    const double n = (double)dgate->rows * (double)dgate->cols;
    RUN(x, move("swiglu backward and quantize", n * (3 * size_of(dgate->src_dtype) + 4 * 33.0 / 32.0)),
        quantize_swiglu_backward(x, s, dgate, dup));
}

static enum mx8_status timed_rmsnorm_quantize(
    const struct mx8_exec *x, const struct mx8_rmsnorm_job *n, const struct mx8_quant_job *j) {
    const double values = (double)n->T * (double)n->D;
    const struct cost plain = cost_rmsnorm(n);
    RUN(x, move("rmsnorm and quantize", plain.bytes + values * 33.0 / 32.0), rmsnorm_quantize(x, n, j));
}

static enum mx8_status timed_adamw_quantize(
    const struct mx8_exec *x, const struct mx8_adamw_job *a, const struct mx8_quant_job *j) {
    RUN(x, cost_adamw_quantize(a), adamw_quantize(x, a, j));
}

static void fill_table(struct mx8_kernels *k) {
#define SET(name, job, cost) k->name = timed_##name;
    JOBS(SET)
    if (k->quantize_from) k->quantize_from = timed_quantize_from;
    if (k->quantize_swiglu_backward) k->quantize_swiglu_backward = timed_quantize_swiglu_backward;
    if (k->rmsnorm_quantize) k->rmsnorm_quantize = timed_rmsnorm_quantize;
    k->adamw_quantize = timed_adamw_quantize;
    k->upload = timed_upload;
    k->copy = timed_copy;
    k->copy_lines = timed_copy_lines;
    k->fill = timed_fill;
    k->add = timed_add;
    k->cast = timed_cast;
    k->scale = timed_scale;
    k->sum_squares = timed_sum_squares;
    k->sum = timed_sum;
    k->check_finite = timed_check_finite;
}

/* ---- the profile ---- */

enum mx8_status mx8i_open_profile(struct mx8_exec *x, struct mx8_profile **out) {
    *out = NULL;
    if (x->profile) return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_open_profile: this context has a profile already");
    struct mx8_profile *p = mx8i_allocate(sizeof *p, "profile");
    if (!p) return MX8_OUT_OF_MEMORY;
    p->inner = x->k;
    p->table = *x->k; /* entries that are not timed go straight to the real ones */
    fill_table(&p->table);
    p->label = (struct mx8_profile_label){"other", -1, "", 0, ""};
    x->k = &p->table;
    x->profile = p;
    *out = p;
    return MX8_OK;
}

void mx8i_close_profile(struct mx8_exec *x, struct mx8_profile *p) {
    if (!p) return;
    x->k = p->inner;
    x->profile = NULL;
    p->inner->release_timer(x, p->timer);
    mx8i_release(p->row);
    mx8i_release(p->span);
    mx8i_release(p->times);
    mx8i_release(p);
}

void mx8i_label_profile(struct mx8_profile *p, const struct mx8_profile_label *label) {
    p->label = *label;
}
struct mx8_profile_label mx8i_get_profile_label(const struct mx8_profile *p) {
    return p->label;
}

struct mx8_exec mx8i_get_untimed_exec(const struct mx8_profile *p, const struct mx8_exec *x) {
    struct mx8_exec plain = *x;
    plain.k = p->inner;
    plain.profile = NULL;
    return plain;
}

enum mx8_status mx8i_collect_profile(struct mx8_profile *p, const struct mx8_exec *x, int32_t drop) {
    if (p->spans && !drop) MX8_TRY(p->inner->read_marks(x, p->timer, 2 * p->spans, p->times));
    for (int64_t i = 0; i < p->spans && !drop; i++) {
        struct mx8_profile_row *row = &p->row[p->span[i].row];
        row->calls++;
        row->seconds += p->times[2 * i + 1] - p->times[2 * i];
        row->flops += p->span[i].flops;
        row->bytes += p->span[i].bytes;
    }
    p->spans = 0;
    return MX8_OK;
}

const struct mx8_profile_row *mx8i_get_profile_rows(const struct mx8_profile *p, int64_t *count) {
    *count = p->rows;
    return p->row;
}
