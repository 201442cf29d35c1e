/* Planes: where the codes and scales of an operand lie, for the quantizer that writes and the product that reads. */
#include "ops/planes.h"
#include "kernels/pieces.h"

#include "base/error.h"

enum { ALIGNMENT = 256 };

int64_t mx8i_padded_rows(int64_t M, int32_t G, int64_t alignment) {
    return mx8i_round_up(M + (int64_t)G * alignment, alignment);
}

void *mx8i_carve(struct mx8_carver *c, int64_t bytes) {
    if (bytes <= 0) return c->base;
    if (c->used > MX8I_MOST_WORKSPACE || (size_t)bytes > MX8I_MOST_WORKSPACE) {
        c->used = MX8I_MOST_WORKSPACE + 1;
        return c->base;
    }
    size_t offset = (c->used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    c->used = offset + (size_t)bytes;
    return c->base ? c->base + offset : NULL;
}

int64_t mx8i_multiply_sizes(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* ---- styles ---- */

struct mx8_style mx8i_get_style(const struct mx8_op_options *o, int weight) {
    int32_t group = weight ? o->weight_scale_group : o->scale_group;
    int32_t tile = weight ? o->weight_tile_rows : o->tile_rows;
    return (struct mx8_style){
        .rule = o->scale_rule,
        .group = group ? group : MX8_BLOCK,
        .tile = tile ? tile : 1,
        .format = o->format ? o->format : MX8_F8_E4M3,
        .col_tile = !weight && o->col_tile_rows ? o->col_tile_rows
                    : tile                      ? tile
                                                : 1,
        .padding = o->alignment ? o->alignment : MX8_BLOCK,
    };
}

struct mx8_style mx8i_get_col_style(const struct mx8_op_options *o) {
    struct mx8_style style = mx8i_get_style(o, 0);
    style.tile = style.col_tile;
    return style;
}

struct mx8_style mx8i_get_dy_style(const struct mx8_op_options *o) {
    struct mx8_style style = mx8i_get_style(o, 0);
    style.col_tile = style.tile;
    return style;
}

static enum mx8_status check_group(const char *op, const char *option, int32_t value) {
    if (value == 0 || value == 32 || value == 128 || value == 256) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s is %d, expected 0, 32, 128 or 256", op, option, (int)value);
}

static enum mx8_status check_tile(const char *op, const char *option, int32_t value) {
    if (value == 0 || value == 1 || value == 32 || value == 128) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s is %d, expected 0, 1, 32 or 128", op, option, (int)value);
}

enum mx8_status mx8i_check_styles(const char *op, const struct mx8_op_options *o) {
    MX8_TRY(mx8i_check_choice(op, "scale_rule", o->scale_rule, MX8_SCALE_EVEN + 1));
    MX8_TRY(check_group(op, "scale_group", o->scale_group));
    MX8_TRY(check_group(op, "weight_scale_group", o->weight_scale_group));
    MX8_TRY(check_tile(op, "tile_rows", o->tile_rows));
    MX8_TRY(check_tile(op, "col_tile_rows", o->col_tile_rows));
    MX8_TRY(check_tile(op, "weight_tile_rows", o->weight_tile_rows));
    if (o->alignment < 0 || o->alignment % MX8_BLOCK || o->alignment > 4096)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: alignment is %d, expected a multiple of 32 from 0 to 4096", op,
            (int)o->alignment);
    if (o->format == 0 || o->format == MX8_F8_E4M3 || o->format == MX8_F8_E5M2) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: format is %d (%s), expected f8_e4m3 or f8_e5m2", op, (int)o->format,
        mx8_get_dtype_name(o->format));
}

enum mx8_status mx8i_set_padded_dim(struct mx8_dims *d, const struct mx8_op_options *o) {
    MX8_TRY(mx8i_check_styles(d->op, o));
    int64_t rows = mx8i_get_dim(d, 'M'), groups = mx8i_get_dim(d, 'G');
    int32_t padding = mx8i_get_style(o, 0).padding;
    if (groups < 0) return mx8i_set_dim(d, 'P', rows, "M");
    if (groups == 0 || rows > INT32_MAX / 2 || groups > INT32_MAX / 2 / padding)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s: %lld rows in %lld groups, expected at least one group and at most 2^30 rows", d->op, (long long)rows,
            (long long)groups);
    return mx8i_set_dim(d, 'P', mx8i_padded_rows(rows, (int32_t)groups, padding), "M + alignment G rounded up to it");
}

/* ---- planes ---- */

enum mx8_status mx8i_get_code_pair(const char *op, const struct mx8_op_call *call, const struct mx8_pass *pass,
    int32_t index, struct mx8_code_pair *out) {
    int codes = mx8i_is_present(&call->in[index]), scales = mx8i_is_present(&call->in[index + 1]);
    if (codes != scales)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s is given without %s", op,
            pass->in[codes ? index : index + 1].name, pass->in[codes ? index + 1 : index].name);
    *out = (struct mx8_code_pair){&call->in[index], &call->in[index + 1]};
    return MX8_OK;
}

struct mx8_plane mx8i_carve_plane(struct mx8_carver *c, int64_t lines, int64_t depth, struct mx8_style style) {
    int64_t blocks = mx8i_count_blocks(depth);
    struct mx8_plane p = {
        .lines = lines, .depth = depth, .ls = depth, .ks = 1, .sls = blocks, .sks = 1, .style = style};
    p.codes = mx8i_carve(c, mx8i_multiply_sizes(lines, depth));
    p.scales = mx8i_carve(c, mx8i_multiply_sizes(lines, blocks));
    return p;
}

struct mx8_plane mx8i_carve_weights(
    struct mx8_carver *c, int64_t E, int64_t lines, int64_t depth, int over_middle, struct mx8_style style) {
    int64_t blocks = mx8i_count_blocks(depth);
    struct mx8_plane p = {.lines = lines, .depth = depth, .ls = depth, .ks = 1, .style = style};
    p.gs = mx8i_multiply_sizes(lines, depth);
    p.sls = over_middle ? 1 : blocks;
    p.sks = over_middle ? lines : 1;
    p.sgs = mx8i_multiply_sizes(lines, blocks);
    p.codes = mx8i_carve(c, mx8i_multiply_sizes(E, p.gs));
    p.scales = mx8i_carve(c, mx8i_multiply_sizes(E, p.sgs));
    return p;
}

struct mx8_plane mx8i_view_plane(const struct mx8_code_pair *pair, int over_middle, struct mx8_style style) {
    const struct mx8_tensor *codes = pair->codes, *scales = pair->scales;
    int32_t last = codes->ndim - 1, line = over_middle ? last : last - 1, depth = over_middle ? last - 1 : last;
    if (codes->dtype != MX8_U8) style.format = codes->dtype;
    struct mx8_plane p = {
        .codes = codes->data,
        .scales = scales->data,
        .lines = codes->shape[line],
        .depth = codes->shape[depth],
        .ls = codes->stride[line],
        .ks = codes->stride[depth],
        .sls = scales->stride[line],
        .sks = scales->stride[depth],
        .style = style,
    };
    if (last == 2) {
        p.gs = codes->stride[0];
        p.sgs = scales->stride[0];
    }
    return p;
}

/* ---- quantizer jobs ---- */

struct mx8_quant_job mx8i_start_quant(
    const struct mx8_context *ctx, const struct mx8_tensor *x, struct mx8_style style) {
    int32_t row = x->ndim - 2, col = x->ndim - 1;
    return (struct mx8_quant_job){
        .src = x->data,
        .src_dtype = x->dtype,
        .batch = x->ndim == 3 ? x->shape[0] : 1,
        .rows = x->shape[row],
        .cols = x->shape[col],
        .src_stride = {x->ndim == 3 ? x->stride[0] : 0, x->stride[row], x->stride[col]},
        .padded_rows = mx8i_round_up(x->shape[row], MX8_BLOCK),
        .rule = style.rule,
        .format = style.format,
        .group = style.group,
        .tile = style.tile,
        .col_tile = style.col_tile,
        .padding = style.padding,
        .saturated = ctx->saturated,
    };
}

static void set_strides(int64_t stride[3], int64_t batch, int64_t row, int64_t col) {
    stride[0] = batch;
    stride[1] = row;
    stride[2] = col;
}

void mx8i_emit_rows(struct mx8_quant_job *j, const struct mx8_plane *p) {
    j->row_codes = p->codes;
    j->row_scales = p->scales;
    set_strides(j->row_code_stride, p->gs, p->ls, p->ks);
    set_strides(j->row_scale_stride, p->sgs, p->sls, p->sks);
}

/* The source's columns are the plane's lines; its depth, padding included, is where rows may go. */
void mx8i_emit_cols(struct mx8_quant_job *j, const struct mx8_plane *p) {
    j->col_codes = p->codes;
    j->col_scales = p->scales;
    j->padded_rows = p->depth;
    set_strides(j->col_code_stride, p->gs, p->ks, p->ls);
    set_strides(j->col_scale_stride, p->sgs, p->sks, p->sls);
}

void mx8i_set_groups(struct mx8_quant_job *j, const struct mx8_tensor *offsets, int32_t *padded_ends) {
    j->offsets = offsets->data;
    j->n_groups = (int32_t)offsets->shape[0];
    j->padded_ends = padded_ends;
}

int mx8i_counts_gaps(const struct mx8_context *ctx) {
    return ctx->saturated && ctx->counts_gaps;
}

enum mx8_status mx8i_run_quant(struct mx8_context *ctx, const struct mx8_quant_job *j) {
    MX8_TRY(ctx->exec.k->quantize(&ctx->exec, j));
    if (!j->saturated || !ctx->counts_gaps) return MX8_OK;
    return ctx->exec.k->count_wide_blocks(&ctx->exec, j, j->saturated + 1);
}

/* ---- sources that are rounded ---- */

/* Elements of a piece. On a CPU the second-level cache holds one. On a GPU launches cost more than its cache saves: 335
 * M values took 1.26 ms in pieces of 2^24 and 0.98 in one (H200, 2026-12-01, a trial program that was not kept). */
enum { PIECE_CPU = 1 << 18, PIECE_GPU = 1 << 26 };

/* One matrix at a time: entries of a batch need not follow each other. */
size_t mx8i_size_rounding(const struct mx8_tensor *x) {
    const struct mx8_quant_job one = {.batch = 1, .rows = x->shape[x->ndim - 2], .cols = x->shape[x->ndim - 1]};
    return (size_t)mx8i_size_largest_piece(&one, PIECE_GPU) * mx8_get_dtype_size(MX8_BF16);
}

enum mx8_status mx8i_run_quant_from(
    struct mx8_context *ctx, const struct mx8_quant_source *source, const struct mx8_quant_job *j) {
    if (!ctx->exec.k->quantize_from || mx8i_counts_gaps(ctx)) return MX8_UNSUPPORTED; /* who counts wants the values */
    return ctx->exec.k->quantize_from(&ctx->exec, source, j);
}

/* In one pass, where the device can. */
static enum mx8_status quantize_floats(struct mx8_context *ctx, const struct mx8_quant_job *j) {
    const struct mx8_quant_source source = {
        .kind = MX8_FROM_FLOATS, .a = j->src, .a_ls = j->src_stride[1], .a_bs = j->src_stride[0]};
    struct mx8_quant_job rounded = *j;
    rounded.src_dtype = MX8_BF16;
    return mx8i_run_quant_from(ctx, &source, &rounded);
}

enum mx8_status mx8i_run_quant_rounded(struct mx8_context *ctx, const struct mx8_quant_job *j, void *scratch) {
    const enum mx8_status status = quantize_floats(ctx, j);
    if (status != MX8_UNSUPPORTED) return status;
    struct mx8_quant_job one = *j;
    one.batch = 1;
    for (int64_t entry = 0; entry < j->batch; entry++) {
        const float *values = (const float *)j->src + entry * j->src_stride[0];
        for (int64_t at = 0, n; at < j->rows * j->cols; at += n) {
            struct mx8_piece piece = mx8i_choose_piece(&one, at, ctx->exec.ordinal < 0 ? PIECE_CPU : PIECE_GPU);
            n = mx8i_size_piece(&one, &piece);
            piece.entry = entry;
            const struct mx8_quant_job codes = mx8i_cut_codes(&one, &piece, scratch);
            MX8_TRY(ctx->exec.k->cast(&ctx->exec, scratch, MX8_BF16, values + at, MX8_F32, n));
            MX8_TRY(mx8i_run_quant(ctx, &codes));
        }
    }
    return MX8_OK;
}

/* ---- operands of products ---- */

struct mx8_matrix mx8i_use_tensor(const struct mx8_tensor *t, int32_t line_axis, int32_t depth_axis) {
    return (struct mx8_matrix){
        .data = t->data,
        .dtype = t->dtype,
        .ls = t->stride[line_axis],
        .ks = t->stride[depth_axis],
        .gs = t->ndim == 3 ? t->stride[0] : 0,
    };
}

struct mx8_matrix mx8i_use_plane(const struct mx8_plane *p) {
    return (struct mx8_matrix){
        .data = p->codes,
        .dtype = p->style.format,
        .ls = p->ls,
        .ks = p->ks,
        .gs = p->gs,
        .scales = p->scales,
        .sls = p->sls,
        .sks = p->sks,
        .sgs = p->sgs,
        .scale_group = p->style.group,
        .tile = p->style.tile,
    };
}
