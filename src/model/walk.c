/* The vocabulary that the layers are written in: memory from a stack, operator calls, linears with shared codes. */
#include <string.h>
#include "model/internal.h"
#include "base/error.h"
#include "base/memory.h"

struct mx8_tensor mx8i_take(struct mx8_stack *s, int32_t dtype, int32_t ndim, const int64_t *shape) {
    struct mx8_tensor t = mx8_make_tensor(NULL, dtype, ndim, shape);
    struct mx8_plan plan = {s->used};
    size_t at = mx8i_reserve(&plan, (size_t)mx8_count_elements(&t) * mx8_get_dtype_size(dtype));
    if (s->base) t.data = s->base + at;
    s->used = plan.size;
    if (s->peak < s->used) s->peak = s->used;
    return t;
}

struct mx8_tensor mx8i_take_rows(struct mx8_stack *s, int32_t dtype, int64_t rows, int64_t cols) {
    return mx8i_take(s, dtype, 2, (const int64_t[]){rows, cols});
}

void mx8i_begin_pass(struct mx8_model *m, const char *pass, int64_t layer) {
    m->label = (struct mx8_profile_label){pass, (int32_t)layer, "", 0, ""};
    if (m->ctx && m->ctx->exec.profile) mx8i_label_profile(m->ctx->exec.profile, &m->label);
}

static enum mx8_status run_labelled(
    struct mx8_model *m, const struct mx8_op *op, int32_t backward, const struct mx8_op_call *call) {
    struct mx8_profile_label label = m->label;
    label.op = op->name;
    label.backward = backward;
    mx8i_label_profile(m->ctx->exec.profile, &label);
    enum mx8_status status = mx8_run_op(m->ctx, op, backward, call);
    mx8i_label_profile(m->ctx->exec.profile, &m->label);
    return status;
}

/* A weight's name without its layer: the label of what multiplies by it. */
static void name_weight(struct mx8_model *m, const struct mx8_param *p) {
    const char *rest = p && p->layer >= 0 ? strchr(p->name, '.') : NULL;
    rest = rest ? strchr(rest + 1, '.') : NULL;
    m->label.detail = rest ? rest + 1 : p ? p->name : "";
}

static enum mx8_status run(
    struct mx8_model *m, const struct mx8_op *op, int32_t backward, const struct mx8_op_call *call) {
    if (m->parallel) mx8i_poll(m);
    if (m->ctx->exec.profile) return run_labelled(m, op, backward, call);
    return mx8_run_op(m->ctx, op, backward, call);
}

enum mx8_status mx8i_call(struct mx8_model *m, enum mx8_row row, int32_t backward, struct mx8_op_call *call) {
    const struct mx8_op *op = mx8_get_op((int32_t)row);
    struct mx8_plan top = {m->scratch.used}; /* a call's workspace is above the scratch stack's tensors, or lent */
    if (!m->planning) {
        size_t at = mx8i_reserve(&top, 0);
        call->workspace = m->lent_bytes ? (void *)m->gradients : m->scratch.base + at;
        call->workspace_size = m->lent_bytes ? m->lent_bytes : m->plan->scratch - at;
        return run(m, op, backward, call);
    }
    struct mx8_op_call inferred = *call;
    MX8_TRY(mx8_infer_op(op, backward, &inferred));
    if (!m->lent_bytes) mx8i_reserve(&top, inferred.workspace_size);
    if (m->scratch.peak < top.size) m->scratch.peak = top.size;
    return MX8_OK;
}

struct mx8_op_options mx8i_make_options(const struct mx8_model *m, const struct mx8_param *p) {
    const struct mx8_recipe *r = &m->recipe;
    struct mx8_op_options o = {.out_dtype = 1 + r->dtype, .accumulate = m->accumulate};
    if (!p || !p->mxfp8) return o;
    o.precision = MX8_PRECISION_MXFP8;
    o.scale_rule = r->scale_rule;
    o.scale_group = r->scale_group;
    o.tile_rows = r->tile_rows;
    o.col_tile_rows = r->col_tile_rows;
    o.alignment = r->alignment;
    o.weight_scale_group = r->weight_scale_group;
    o.weight_tile_rows = r->weight_tile_rows;
    o.format = r->format;
    o.exact = r->exact;
    o.wgrad_hp = r->wgrad_hp;
    return o;
}

static void *point_at(uint8_t *arena, size_t at) {
    return arena ? arena + at : NULL;
}

int32_t mx8i_is_codes_only(const struct mx8_model *m, const struct mx8_param *p) {
    if (!p->mxfp8) return 0;
    if (!m->parallel) return m->recipe.dtype == MX8_BF16;
    return m->unit[mx8i_get_shard(m, p)->unit].segment[p->kind == MX8_PARAM_EXPERT].coded;
}

struct mx8_forms mx8i_view_weight(const struct mx8_model *m, const struct mx8_param *p) {
    const struct mx8_shard *s = mx8i_get_shard(m, p);
    const struct mx8_unit *u = &m->unit[s->unit];
    void *values = point_at(u->values, s->values_at * mx8_get_dtype_size(m->recipe.dtype));
    struct mx8_forms w = {.hp = mx8_make_tensor(values, m->recipe.dtype, p->ndim, s->shape)};
    if (!p->mxfp8) return w;
    int32_t codes = m->recipe.format ? m->recipe.format : MX8_F8_E4M3;
    int64_t E = s->shape[0], N = s->shape[p->ndim - 2], K = s->shape[p->ndim - 1];
    void *row = point_at(u->codes, p->row_codes), *row_scale = point_at(u->codes, p->row_scales);
    void *col = point_at(u->codes, p->col_codes), *col_scale = point_at(u->codes, p->col_scales);
    w.row = mx8_make_tensor(row, codes, p->ndim, s->shape);
    if (p->ndim == 2) {
        w.row_scale = mx8_make_tensor(row_scale, MX8_F8_E8M0, 2, (const int64_t[]){N, K / MX8_BLOCK});
        w.col = mx8_make_tensor(col, codes, 2, (const int64_t[]){K, N});
        w.col_scale = mx8_make_tensor(col_scale, MX8_F8_E8M0, 2, (const int64_t[]){K, N / MX8_BLOCK});
    } else { /* the seed's layout of expert weights: N contiguous */
        w.row_scale = mx8_make_tensor(row_scale, MX8_F8_E8M0, 3, (const int64_t[]){E, N, K / MX8_BLOCK});
        w.col = mx8_make_tensor(col, codes, 3, s->shape);
        w.col.stride[1] = 1;
        w.col.stride[2] = N;
        w.col_scale = mx8_make_tensor(col_scale, MX8_F8_E8M0, 3, (const int64_t[]){E, N / MX8_BLOCK, K});
    }
    if (!mx8i_is_codes_only(m, p)) return w;
    w.hp = MX8_ABSENT; /* of codes that travel, only those are here that were asked for */
    if (!(u->forms & MX8_ROW_CODES)) w.row = w.row_scale = MX8_ABSENT;
    if (!(u->forms & MX8_COL_CODES)) w.col = w.col_scale = MX8_ABSENT;
    return w;
}

struct mx8_tensor mx8i_view_gradient(const struct mx8_model *m, const struct mx8_param *p) {
    const struct mx8_shard *s = mx8i_get_shard(m, p);
    float *gradients = m->unit[s->unit].gradients;
    return mx8_make_tensor(gradients ? gradients + s->full_at : NULL, MX8_F32, p->ndim, s->shape);
}

struct mx8_need mx8i_find_need(
    const struct mx8_model *m, int32_t keep, int32_t count, const struct mx8_param *const *p) {
    struct mx8_need need = {0};
    for (int32_t i = 0; i < count; i++) {
        need.row |= p[i]->mxfp8;
        need.col |= keep && p[i]->mxfp8 && !m->recipe.wgrad_hp;
        need.hp |= keep && (!p[i]->mxfp8 || m->recipe.wgrad_hp);
    }
    return need;
}

struct mx8_tensor mx8i_take_hp(struct mx8_model *m, struct mx8_need need, int64_t rows, int64_t cols) {
    return mx8i_take_rows(need.hp ? &m->saved : &m->scratch, m->recipe.dtype, rows, cols);
}

/* Memory for an operator's output as infer described it. */
static void take_like(struct mx8_stack *s, struct mx8_tensor *t) {
    if (t->ndim) *t = mx8i_take(s, t->dtype, t->ndim, t->shape);
}

/* A product over the rows reads whole blocks, and the quantizer's column codes end with the last row. Where that is
 * inside a block, lines get room for the rest of it, zeroed. *whole is what the product reads, *out what is written.
 * A *whole that is there already has held such codes: its lines end with zeros. */
static enum mx8_status take_columns(
    struct mx8_model *m, struct mx8_stack *s, struct mx8_tensor *out, struct mx8_tensor *whole) {
    const int64_t M = out->shape[1], padded = (M + MX8_BLOCK - 1) / MX8_BLOCK * MX8_BLOCK;
    const int32_t is_used = whole->ndim;
    if (!is_used) *whole = mx8i_take_rows(s, out->dtype, out->shape[0], padded);
    whole->dtype = out->dtype;
    out->data = whole->data;
    out->stride[0] = padded;
    if (m->planning || is_used || M == padded) return MX8_OK;
    return m->ctx->exec.k->fill(&m->ctx->exec, whole->data, 0, (size_t)(out->shape[0] * padded));
}

static struct mx8_op_options make_quantizer(const struct mx8_model *m, int32_t is_gradient) {
    const struct mx8_recipe *r = &m->recipe;
    return (struct mx8_op_options){.scale_rule = r->scale_rule,
        .scale_group = r->scale_group,
        .tile_rows = r->tile_rows,
        .col_tile_rows = is_gradient ? 0 : r->col_tile_rows, /* one operand of the weight gradient is tiled */
        .alignment = r->alignment,
        .format = mx8i_choose_format(m, is_gradient)};
}

enum mx8_status mx8i_quantize_forms(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need,
    struct mx8_tensor offsets, struct mx8_stack *cols, int32_t is_gradient) {
    if (!need.row && !need.col) return MX8_OK;
    struct mx8_op_call c = {.in = {f->hp, need.col ? offsets : MX8_ABSENT},
        .n_in = need.col ? 2 : 1,
        .options = make_quantizer(m, is_gradient)};
    if (need.col) MX8_TRY(mx8i_round_for_control(m, &c.in[0], &c.options, is_gradient));
    enum mx8_row row = !need.col ? MX8_OP_QUANTIZE_ROWS : need.row ? MX8_OP_QUANTIZE_BOTH : MX8_OP_QUANTIZE_COLS;
    MX8_TRY(mx8_infer_op(mx8_get_op((int32_t)row), 0, &c));
    struct mx8_tensor *out = c.out, columns = MX8_ABSENT;
    for (int32_t i = 0; need.row && i < 2; i++) take_like(&m->scratch, out++);
    if (need.col) {
        MX8_TRY(take_columns(m, cols, &out[0], &columns));
        take_like(cols, &out[1]);
        take_like(cols, &out[2]);
    }
    MX8_TRY(mx8i_call(m, row, 0, &c));
    if (need.row) f->row = c.out[0], f->row_scale = c.out[1];
    if (need.col) f->col = columns, f->col_scale = out[1], f->ends = out[2];
    return MX8_OK;
}

/* Codes by the maker's second operator. f->hp is its workspace: where a device needs one, the values pass through
 * there. */
static enum mx8_status make_codes(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need,
    const struct mx8_maker *maker, struct mx8_tensor offsets, struct mx8_stack *cols) {
    const struct mx8_op *op = mx8_get_op((int32_t)maker->codes);
    struct mx8_op_call c = {.n_in = maker->n_in + 1,
        .options = make_quantizer(m, 0),
        .workspace = f->hp.data,
        .workspace_size = (size_t)mx8_count_elements(&f->hp) * mx8_get_dtype_size(f->hp.dtype)};
    for (int32_t i = 0; i < maker->n_in; i++) c.in[i] = maker->in[i];
    c.in[maker->n_in] = offsets;
    MX8_TRY(mx8_infer_op(op, 0, &c));
    struct mx8_tensor *out = c.out, columns = MX8_ABSENT;
    if (!need.row) out[0] = out[1] = MX8_ABSENT;
    if (!need.col) out[2] = out[3] = out[4] = MX8_ABSENT;
    take_like(&m->scratch, &out[0]);
    take_like(&m->scratch, &out[1]);
    if (need.col) MX8_TRY(take_columns(m, cols, &out[2], &columns));
    take_like(cols, &out[3]);
    take_like(cols, &out[4]);
    MX8_TRY(run(m, op, 0, &c));
    if (need.row) f->row = out[0], f->row_scale = out[1];
    if (need.col) f->col = columns, f->col_scale = out[3], f->ends = out[4];
    return MX8_OK;
}

enum mx8_status mx8i_make_forms(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need,
    const struct mx8_maker *maker, struct mx8_tensor offsets, struct mx8_stack *cols) {
    const int32_t only_codes = !need.hp && (need.row || need.col);
    /* The plan counts the memory of two calls, which is that of one. */
    if (only_codes && !m->planning && !mx8i_looks_at_values(m)) return make_codes(m, f, need, maker, offsets, cols);
    struct mx8_op_call c = {.n_in = maker->n_in, .out = {f->hp}, .n_out = 1};
    for (int32_t i = 0; i < maker->n_in; i++) c.in[i] = maker->in[i];
    MX8_TRY(mx8i_call(m, maker->stores, 0, &c));
    return mx8i_quantize_forms(m, f, need, offsets, cols, 0);
}

/* Places of d's codes, from where `out` describes them: those that are absent in d come from scratch. */
static enum mx8_status place_forms(struct mx8_model *m, struct mx8_forms *d, struct mx8_tensor out[4]) {
    if (!d->row.ndim) d->row = mx8i_take(&m->scratch, out[0].dtype, 2, out[0].shape);
    if (!d->row_scale.ndim) d->row_scale = mx8i_take(&m->scratch, out[1].dtype, 2, out[1].shape);
    MX8_TRY(take_columns(m, &m->scratch, &out[2], &d->col));
    if (!d->col_scale.ndim) d->col_scale = mx8i_take(&m->scratch, out[3].dtype, 2, out[3].shape);
    out[0].data = d->row.data;
    out[1].data = d->row_scale.data;
    out[3].data = d->col_scale.data;
    d->row.dtype = out[0].dtype;
    return MX8_OK;
}

enum mx8_status mx8i_make_gradient_forms(struct mx8_model *m, struct mx8_forms d[2], struct mx8_tensor dhidden,
    struct mx8_tensor gate, struct mx8_tensor up, struct mx8_tensor offsets) {
    const struct mx8_op *op = mx8_get_op(MX8_OP_SWIGLU_BACKWARD_QUANTIZE);
    struct mx8_op_call c = {.in = {dhidden, gate, up, offsets}, .n_in = 4, .options = make_quantizer(m, 1)};
    MX8_TRY(mx8_infer_op(op, 0, &c));
    for (int32_t i = 0; i < 2; i++) MX8_TRY(place_forms(m, &d[i], &c.out[4 * i]));
    if (m->planning) return MX8_OK;
    c.workspace = gate.data; /* one was saved behind the other: the layout that the operator asks for */
    c.workspace_size = (size_t)((uint8_t *)up.data - (uint8_t *)gate.data) +
                       (size_t)mx8_count_elements(&up) * mx8_get_dtype_size(up.dtype);
    return run(m, op, 0, &c);
}

void mx8i_forget_forms(struct mx8_forms *f, struct mx8_need need) {
    f->row = f->row_scale = MX8_ABSENT;
    if (!need.hp) f->hp = MX8_ABSENT;
}

enum mx8_status mx8i_run_linear(struct mx8_model *m, struct mx8_tensor y, const struct mx8_forms *x,
    const struct mx8_param *p, struct mx8_tensor offsets) {
    struct mx8_forms w = mx8i_view_weight(m, p), a = *x;
    if (!p->mxfp8) a.row = a.row_scale = MX8_ABSENT; /* made for another consumer */
    struct mx8_op_call c = {.out = {y}, .n_out = 1, .options = mx8i_make_options(m, p)};
    struct mx8_tensor *in = c.in;
    *in++ = a.hp;
    *in++ = w.hp;
    if (p->ndim == 3) *in++ = offsets;
    *in++ = MX8_ABSENT; /* bias */
    *in++ = a.row;
    *in++ = a.row_scale;
    *in++ = w.row;
    *in++ = w.row_scale;
    c.n_in = (int32_t)(in - c.in);
    name_weight(m, p);
    enum mx8_status status = mx8i_call(m, p->ndim == 3 ? MX8_OP_GROUPED_LINEAR : MX8_OP_LINEAR, 0, &c);
    name_weight(m, NULL);
    return status;
}

enum mx8_status mx8i_multiply_backward(struct mx8_model *m, struct mx8_tensor dx, const struct mx8_forms *d,
    const struct mx8_forms *x, const struct mx8_param *p, struct mx8_tensor offsets) {
    struct mx8_forms w = mx8i_view_weight(m, p), a = *x;
    if (!p->mxfp8) a.col = a.col_scale = MX8_ABSENT; /* made for another consumer */
    struct mx8_op_call c = {.out = {dx, mx8i_view_gradient(m, p)}, .n_out = 2, .options = mx8i_make_options(m, p)};
    struct mx8_tensor *in = c.in;
    *in++ = d->hp;
    *in++ = a.hp;
    *in++ = w.hp;
    if (p->ndim == 3) *in++ = offsets;
    *in++ = d->row;
    *in++ = d->row_scale;
    *in++ = d->col;
    *in++ = d->col_scale;
    if (p->ndim == 3) *in++ = d->ends;
    *in++ = a.col;
    *in++ = a.col_scale;
    *in++ = w.col;
    *in++ = w.col_scale;
    c.n_in = (int32_t)(in - c.in);
    name_weight(m, p);
    MX8_TRY(mx8i_call(m, p->ndim == 3 ? MX8_OP_GROUPED_LINEAR : MX8_OP_LINEAR, 1, &c));
    name_weight(m, NULL);
    return MX8_OK;
}

enum mx8_status mx8i_run_linear_backward(struct mx8_model *m, struct mx8_tensor dx, struct mx8_tensor dy,
    const struct mx8_forms *x, const struct mx8_param *p, struct mx8_tensor offsets) {
    size_t mark = m->scratch.used;
    struct mx8_forms d = {.hp = dy};
    MX8_TRY(mx8i_dump_linear(m, p, x->hp, dy, offsets));
    name_weight(m, p);
    MX8_TRY(mx8i_quantize_forms(m, &d, mx8i_find_need(m, 1, 1, &p), offsets, &m->scratch, 1));
    MX8_TRY(mx8i_multiply_backward(m, dx, &d, x, p, offsets));
    m->scratch.used = mark;
    return MX8_OK;
}

enum mx8_status mx8i_run_add(struct mx8_model *m, struct mx8_tensor y, struct mx8_tensor a, struct mx8_tensor b) {
    struct mx8_op_call c = {.in = {a, b}, .n_in = 2, .out = {y}, .n_out = 1};
    return mx8i_call(m, MX8_OP_ADD, 0, &c);
}

enum mx8_status mx8i_run_norm(struct mx8_model *m, struct mx8_tensor y, struct mx8_tensor rstd, struct mx8_tensor sum,
    struct mx8_tensor x, struct mx8_tensor add, const struct mx8_param *p) {
    struct mx8_op_call c = {.in = {x, mx8i_view_weight(m, p).hp, add},
        .n_in = 3,
        .out = {y, rstd, sum},
        .n_out = 3,
        .options = {.eps = (float)m->config.norm_eps}};
    if (!add.ndim) c.n_in = c.n_out = 2;
    return mx8i_call(m, MX8_OP_RMSNORM, 0, &c);
}

enum mx8_status mx8i_run_norm_backward(struct mx8_model *m, struct mx8_tensor dx, struct mx8_tensor dy,
    struct mx8_tensor x, struct mx8_tensor rstd, struct mx8_tensor dres, const struct mx8_param *p) {
    struct mx8_op_call c = {.in = {dy, x, mx8i_view_weight(m, p).hp, rstd, dres},
        .n_in = dres.ndim ? 5 : 4,
        .out = {dx, mx8i_view_gradient(m, p)},
        .n_out = 2,
        .options = {.eps = (float)m->config.norm_eps, .accumulate = m->accumulate}};
    return mx8i_call(m, MX8_OP_RMSNORM, 1, &c);
}

enum mx8_status mx8i_make_norm(struct mx8_model *m, struct mx8_forms *f, struct mx8_need need, struct mx8_tensor rstd,
    struct mx8_tensor sum, struct mx8_tensor x, struct mx8_tensor add, const struct mx8_param *p) {
    if (!need.row || need.col) { /* columns need a tile of rows, not one */
        MX8_TRY(mx8i_run_norm(m, f->hp, rstd, sum, x, add, p));
        return mx8i_quantize_forms(m, f, need, MX8_ABSENT, &m->saved, 0);
    }
    struct mx8_op_call c = {.in = {x, mx8i_view_weight(m, p).hp, add}, .n_in = 3, .options = make_quantizer(m, 0)};
    c.options.eps = (float)m->config.norm_eps;
    MX8_TRY(mx8_infer_op(mx8_get_op(MX8_OP_RMSNORM_QUANTIZE), 0, &c));
    c.out[0] = f->hp;
    c.out[1] = rstd;
    c.out[2] = add.ndim ? sum : MX8_ABSENT;
    take_like(&m->scratch, &c.out[3]);
    take_like(&m->scratch, &c.out[4]);
    MX8_TRY(mx8i_call(m, MX8_OP_RMSNORM_QUANTIZE, 0, &c));
    f->row = c.out[3];
    f->row_scale = c.out[4];
    return MX8_OK;
}
