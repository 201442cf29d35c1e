/* Three products, each over operands quantized along its own contraction axis from the original:
 *     y  (M,N) = x  (M,K) w (N,K)^T     blocks along K
 *     dx (M,K) = dy (M,N) w (N,K)       blocks along N
 *     dw (N,K) = dy (M,N)^T x (M,K)     blocks along M
 * With groups, w and dw have one matrix per group and the rows of x, y, dx and dy are cut at the offsets; the blocks
 * along M then start anew in every group, which the column quantizer pads to options.alignment rows (dyq_t, xq_t and
 * the padded ends). A plan lists what has to be quantized; laid over a NULL workspace it says how much memory that
 * takes. */
#include "ops/product.h"

#include "base/error.h"

struct forward_plan {
    struct mx8_plane x, w;
    int make_x, make_w;
};

struct backward_plan {
    struct mx8_plane dy_rows, w_cols; /* for dx */
    struct mx8_plane dy_cols, x_cols; /* for dw */
    int32_t *ends;
    int make_dy_rows, make_w_cols, make_dy_cols, make_x_cols;
    int in_strips; /* dy_rows and dy_cols hold a strip: so many rows, or columns, of dy */
    int64_t rows, cols;
};

int64_t mx8i_most_dy_codes = (int64_t)1 << 30;
enum { STRIP_UNIT = 256 }; /* every scale group and tile divides it */

static int is_quantized(const struct mx8_product *p) {
    return p->options->precision == MX8_PRECISION_MXFP8;
}
static int is_wgrad_quantized(const struct mx8_product *p) {
    return is_quantized(p) && !p->options->wgrad_hp;
}
static int64_t count_matrices(const struct mx8_product *p) {
    return p->groups > 0 ? p->groups : 1;
}

static int64_t find_padded_depth(const struct mx8_product *p) {
    int64_t padding = mx8i_get_style(p->options, 0).padding;
    return p->groups > 0 ? mx8i_padded_rows(p->M, p->groups, padding) : mx8i_round_up(p->M, MX8_BLOCK);
}

int mx8i_find_wanted(const struct mx8_product *p) {
    int wanted = 0;
    if (mx8i_is_present(p->w) || (is_quantized(p) && mx8i_has_codes(&p->wq_t))) wanted |= MX8I_WANT_DX;
    if (mx8i_is_present(p->x) || (is_wgrad_quantized(p) && mx8i_has_codes(&p->xq_t))) wanted |= MX8I_WANT_DW;
    return wanted;
}

/* ---- checks ---- */

static enum mx8_status check_operand(
    const struct mx8_product *p, const char *name, const struct mx8_tensor *t, const struct mx8_code_pair *codes) {
    if (mx8i_is_present(t) || (is_quantized(p) && mx8i_has_codes(codes))) return MX8_OK;
    if (is_quantized(p))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s is missing and so are its codes %sq", p->op, name, name);
    return MX8_FAIL(
        MX8_INVALID_ARGUMENT, "%s: %s is missing; precision high multiplies the operands as they are", p->op, name);
}

static enum mx8_status check_options(const struct mx8_product *p) {
    MX8_TRY(mx8i_check_choice(p->op, "precision", p->options->precision, MX8_PRECISION_MXFP8 + 1));
    return mx8i_check_styles(p->op, p->options);
}

enum mx8_status mx8i_check_forward(const struct mx8_product *p, const struct mx8_dims *d) {
    MX8_TRY(check_options(p));
    MX8_TRY(check_operand(p, "x", p->x, &p->xq));
    MX8_TRY(check_operand(p, "w", p->w, &p->wq));
    return is_quantized(p) ? mx8i_check_blocks(d, 'K', "x and w along K in forward") : MX8_OK;
}

enum mx8_status mx8i_check_backward(const struct mx8_product *p, const struct mx8_dims *d) {
    MX8_TRY(check_options(p));
    int wanted = mx8i_find_wanted(p);
    if (is_quantized(p) && (wanted & MX8I_WANT_DX))
        MX8_TRY(mx8i_check_blocks(d, 'N', "dy and w along N in the input gradient"));
    if (p->groups > 0 && is_wgrad_quantized(p) && mx8i_has_codes(&p->dyq_t) && mx8i_has_codes(&p->xq_t) &&
        !mx8i_is_present(p->ends))
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: dyq_t and xq_t are given without ends, the padded ends they have", p->op);
    return MX8_OK;
}

/* ---- plans ---- */

static size_t plan_forward(const struct mx8_product *p, void *workspace, struct forward_plan *plan) {
    struct mx8_carver c = {workspace, 0};
    struct mx8_style x = mx8i_get_style(p->options, 0), w = mx8i_get_style(p->options, 1);
    *plan = (struct forward_plan){.make_x = !mx8i_has_codes(&p->xq), .make_w = !mx8i_has_codes(&p->wq)};
    plan->x = plan->make_x ? mx8i_carve_plane(&c, p->M, p->K, x) : mx8i_view_plane(&p->xq, 0, x);
    plan->w =
        plan->make_w ? mx8i_carve_weights(&c, count_matrices(p), p->N, p->K, 0, w) : mx8i_view_plane(&p->wq, 0, w);
    return c.used;
}

/* Of n lines of `length` elements, in equal strips. */
static int64_t cut_strip(int64_t n, int64_t length) {
    const int64_t elements = mx8i_multiply_sizes(n, length), strips = (elements - 1) / mx8i_most_dy_codes + 1;
    const int64_t strip = mx8i_round_up((n - 1) / strips + 1, STRIP_UNIT);
    return strip < n ? strip : n;
}

/* By the inputs alone: which gradients a call leaves out must not change what its workspace was sized for. */
static void plan_strips(const struct mx8_product *p, struct backward_plan *plan) {
    plan->rows = p->M;
    plan->cols = p->N;
    plan->in_strips = p->groups == 0 && is_quantized(p) && !p->at_once && !mx8i_has_codes(&p->dyq) &&
                      !mx8i_has_codes(&p->dyq_t) && mx8i_multiply_sizes(p->M, p->N) > mx8i_most_dy_codes;
    if (!plan->in_strips) return;
    plan->rows = cut_strip(p->M, p->N);
    plan->cols = cut_strip(p->N, p->M);
}

static void plan_dgrad(const struct mx8_product *p, struct mx8_carver *c, struct backward_plan *plan) {
    struct mx8_style x = mx8i_get_style(p->options, 0), w = mx8i_get_style(p->options, 1);
    int over_middle = p->groups > 0;
    plan->make_dy_rows = !mx8i_has_codes(&p->dyq);
    plan->make_w_cols = !mx8i_has_codes(&p->wq_t);
    plan->dy_rows = plan->make_dy_rows ? mx8i_carve_plane(c, plan->rows, p->N, x) : mx8i_view_plane(&p->dyq, 0, x);
    plan->w_cols = plan->make_w_cols ? mx8i_carve_weights(c, count_matrices(p), p->K, p->N, over_middle, w)
                                     : mx8i_view_plane(&p->wq_t, over_middle, w);
}

static void plan_wgrad(const struct mx8_product *p, struct mx8_carver *c, struct backward_plan *plan) {
    struct mx8_style x = mx8i_get_col_style(p->options), dy = mx8i_get_dy_style(p->options);
    int64_t depth = find_padded_depth(p);
    plan->make_dy_cols = !mx8i_has_codes(&p->dyq_t);
    plan->make_x_cols = !mx8i_has_codes(&p->xq_t);
    plan->dy_cols = plan->make_dy_cols ? mx8i_carve_plane(c, plan->cols, depth, dy) : mx8i_view_plane(&p->dyq_t, 0, dy);
    plan->x_cols = plan->make_x_cols ? mx8i_carve_plane(c, p->K, depth, x) : mx8i_view_plane(&p->xq_t, 0, x);
    if (p->groups == 0) return;
    if (plan->make_dy_cols || plan->make_x_cols)
        plan->ends = mx8i_carve(c, p->groups * (int64_t)sizeof(int32_t));
    else
        plan->ends = p->ends->data;
}

static size_t plan_backward(const struct mx8_product *p, int wanted, void *workspace, struct backward_plan *plan) {
    struct mx8_carver c = {workspace, 0};
    *plan = (struct backward_plan){0};
    plan_strips(p, plan);
    if (is_quantized(p) && (wanted & MX8I_WANT_DX)) plan_dgrad(p, &c, plan);
    const size_t first = c.used;
    if (plan->in_strips) c.used = 0; /* dx is finished when dw begins */
    if (is_wgrad_quantized(p) && (wanted & MX8I_WANT_DW)) plan_wgrad(p, &c, plan);
    return c.used > first ? c.used : first;
}

size_t mx8i_size_forward(const struct mx8_product *p) {
    struct forward_plan plan;
    return is_quantized(p) ? plan_forward(p, NULL, &plan) : 0;
}

size_t mx8i_size_backward(const struct mx8_product *p, int wanted) {
    struct backward_plan plan;
    return plan_backward(p, wanted, NULL, &plan);
}

enum mx8_status mx8i_choose_product_dtype(const struct mx8_product *p, int32_t *out) {
    int32_t dtype = MX8_BF16;
    if (mx8i_is_present(p->w)) dtype = p->w->dtype;
    if (mx8i_is_present(p->x)) dtype = p->x->dtype;
    return mx8i_choose_dtype(p->op, p->options, dtype, out);
}

void mx8i_put_gradients(struct mx8_op_call *call, const struct mx8_pass *pass, const struct mx8_product *p,
    const struct mx8_dims *d, int32_t dx_dtype) {
    int wanted = mx8i_find_wanted(p);
    mx8i_clear_outputs(call, pass, mx8i_size_backward(p, wanted));
    if (wanted & MX8I_WANT_DX) mx8i_put_output(call, pass, 0, d, dx_dtype);
    if (wanted & MX8I_WANT_DW) mx8i_put_output(call, pass, 1, d, MX8_F32);
    mx8i_put_output(call, pass, 2, d, MX8_F32);
}

/* ---- quantizers ---- */

static enum mx8_status quantize_rows(
    struct mx8_context *ctx, const struct mx8_product *p, const struct mx8_tensor *x, const struct mx8_plane *plane) {
    struct mx8_quant_job j = mx8i_start_quant(ctx, x, plane->style);
    mx8i_emit_rows(&j, plane);
    if (p->groups > 0 && x->ndim == 2) mx8i_set_groups(&j, p->offsets, NULL);
    return mx8i_run_quant(ctx, &j);
}

static enum mx8_status quantize_weight_cols(
    struct mx8_context *ctx, const struct mx8_product *p, const struct mx8_plane *plane) {
    struct mx8_quant_job j = mx8i_start_quant(ctx, p->w, plane->style);
    mx8i_emit_cols(&j, plane);
    return mx8i_run_quant(ctx, &j);
}

static enum mx8_status quantize_token_cols(
    struct mx8_context *ctx, const struct mx8_product *p, const struct backward_plan *plan) {
    struct mx8_quant_job j = mx8i_start_quant(ctx, p->x, plan->x_cols.style);
    mx8i_emit_cols(&j, &plan->x_cols);
    if (p->groups > 0) mx8i_set_groups(&j, p->offsets, plan->ends);
    return mx8i_run_quant(ctx, &j);
}

/* Both orientations of dy from one read where both are needed. */
static enum mx8_status quantize_dy(
    struct mx8_context *ctx, const struct mx8_product *p, const struct backward_plan *plan) {
    if (!plan->make_dy_rows && !plan->make_dy_cols) return MX8_OK;
    struct mx8_quant_job j = mx8i_start_quant(ctx, p->dy, mx8i_get_dy_style(p->options));
    if (plan->make_dy_rows) mx8i_emit_rows(&j, &plan->dy_rows);
    if (plan->make_dy_cols) mx8i_emit_cols(&j, &plan->dy_cols);
    if (p->groups > 0) mx8i_set_groups(&j, p->offsets, plan->make_dy_cols ? plan->ends : NULL);
    if (p->dy_source) return ctx->exec.k->quantize_from(&ctx->exec, p->dy_source, &j);
    return mx8i_run_quant(ctx, &j);
}

/* Rows (axis 0) or columns (axis 1) [first, first + count) of dy, in the orientation that they decide alone. */
static enum mx8_status quantize_strip(struct mx8_context *ctx, const struct mx8_product *p,
    const struct backward_plan *plan, int axis, int64_t first, int64_t count, int counts) {
    struct mx8_tensor strip = *p->dy;
    strip.data = (char *)strip.data + first * strip.stride[axis] * (int64_t)mx8_get_dtype_size(strip.dtype);
    strip.shape[axis] = count;
    struct mx8_quant_job j = mx8i_start_quant(ctx, &strip, mx8i_get_dy_style(p->options));
    if (axis == 0)
        mx8i_emit_rows(&j, &plan->dy_rows);
    else
        mx8i_emit_cols(&j, &plan->dy_cols);
    if (!counts) j.saturated = NULL;
    return mx8i_run_quant(ctx, &j);
}

/* ---- products ---- */

static struct mx8_gemm_job start_gemm(
    const struct mx8_product *p, enum mx8_gemm_mode mode, const struct mx8_tensor *c) {
    struct mx8_gemm_job j = {
        .mode = p->groups > 0 ? mode : MX8_GEMM_DENSE,
        .G = p->groups,
        .offsets = p->groups > 0 ? p->offsets->data : NULL,
        .c = c->data,
        .c_dtype = c->dtype,
        .c_ls = c->stride[c->ndim - 2],
        .c_gs = c->ndim == 3 ? c->stride[0] : 0,
        .exact = p->options->exact,
    };
    return j;
}

static enum mx8_status multiply(struct mx8_context *ctx, const struct mx8_gemm_job *j) {
    ctx->products += j->a.dtype == MX8_F8_E4M3 || j->a.dtype == MX8_F8_E5M2;
    return ctx->exec.k->gemm(&ctx->exec, j);
}

static struct mx8_matrix use_weight(const struct mx8_tensor *w, int over_n) {
    int32_t n = w->ndim - 2, k = w->ndim - 1;
    return over_n ? mx8i_use_tensor(w, k, n) : mx8i_use_tensor(w, n, k);
}

enum mx8_status mx8i_run_forward(
    struct mx8_context *ctx, const struct mx8_product *p, const struct mx8_tensor *y, void *workspace) {
    struct mx8_gemm_job j = start_gemm(p, MX8_GEMM_M_GROUPS, y);
    j.M = p->M;
    j.N = p->N;
    j.K = p->K;
    if (is_quantized(p)) {
        struct forward_plan plan;
        plan_forward(p, workspace, &plan);
        if (plan.make_x) MX8_TRY(quantize_rows(ctx, p, p->x, &plan.x));
        if (plan.make_w) MX8_TRY(quantize_rows(ctx, p, p->w, &plan.w));
        j.a = mx8i_use_plane(&plan.x);
        j.b = mx8i_use_plane(&plan.w);
    } else {
        j.a = mx8i_use_tensor(p->x, 0, 1);
        j.b = use_weight(p->w, 0);
    }
    if (mx8i_is_present(p->bias)) {
        j.bias = p->bias->data;
        j.bias_dtype = p->bias->dtype;
    }
    return multiply(ctx, &j);
}

/* Rows [first, first + count) of c alone; a product of all has first 0. */
static void narrow_rows(struct mx8_gemm_job *j, int64_t first, int64_t count) {
    if (first)
        j->c = (char *)j->c + first * j->c_ls * (int64_t)mx8_get_dtype_size(j->c_dtype); /* else it may be NULL */
    j->M = count;
}

static enum mx8_status multiply_dx(struct mx8_context *ctx, const struct mx8_product *p,
    const struct backward_plan *plan, const struct mx8_tensor *dx, int64_t first, int64_t count) {
    struct mx8_gemm_job j = start_gemm(p, MX8_GEMM_M_GROUPS, dx);
    narrow_rows(&j, first, count);
    j.N = p->K;
    j.K = p->N;
    if (is_quantized(p)) {
        if (plan->make_w_cols && first == 0) MX8_TRY(quantize_weight_cols(ctx, p, &plan->w_cols));
        j.a = mx8i_use_plane(&plan->dy_rows);
        j.b = mx8i_use_plane(&plan->w_cols);
    } else {
        j.a = mx8i_use_tensor(p->dy, 0, 1);
        j.b = use_weight(p->w, 1);
    }
    return multiply(ctx, &j);
}

static enum mx8_status multiply_dw(struct mx8_context *ctx, const struct mx8_product *p,
    const struct backward_plan *plan, const struct mx8_tensor *dw, int64_t first, int64_t count) {
    struct mx8_gemm_job j = start_gemm(p, MX8_GEMM_K_GROUPS, dw);
    narrow_rows(&j, first, count);
    j.N = p->K;
    j.K = p->M;
    j.accumulate = p->options->accumulate;
    if (is_wgrad_quantized(p)) {
        if (plan->make_x_cols && first == 0) MX8_TRY(quantize_token_cols(ctx, p, plan));
        j.K = plan->x_cols.depth;
        j.a = mx8i_use_plane(&plan->dy_cols);
        j.b = mx8i_use_plane(&plan->x_cols);
        if (p->groups > 0) {
            j.offsets = plan->ends;
            j.padding = mx8i_get_style(p->options, 0).padding;
        }
    } else {
        j.a = mx8i_use_tensor(p->dy, 1, 0);
        j.b = mx8i_use_tensor(p->x, 1, 0);
    }
    return multiply(ctx, &j);
}

/* The kernel adds up rows whose elements are adjacent. A gradient that is transposed or expanded goes column by column:
 * slow, and rare enough. */
static enum mx8_status sum_columns(
    struct mx8_context *ctx, const struct mx8_product *p, const struct mx8_tensor *dbias) {
    int adjacent = p->N <= 1 || p->dy->stride[1] == 1;
    int64_t step = adjacent ? p->N : 1;
    struct mx8_colsum_job j = {.dtype = p->dy->dtype, .M = p->M, .N = step, .ls = p->dy->stride[0]};
    j.accumulate = p->options->accumulate;
    j.n_groups = p->groups;
    j.offsets = p->groups > 0 ? p->offsets->data : NULL;
    const int64_t bytes = (int64_t)mx8_get_dtype_size(p->dy->dtype);
    for (int64_t n = 0; n < p->N; n += step) {
        j.out = (float *)dbias->data + n;
        /* the stride of an empty tensor, or of a single column, may be anything */
        j.x = p->M > 0 ? (const char *)p->dy->data + n * p->dy->stride[1] * bytes : NULL;
        MX8_TRY(ctx->exec.k->colsum(&ctx->exec, &j));
    }
    return MX8_OK;
}

/* dy twice, a strip of codes at a time. Clipped values are counted by rows, where there are any. */
static enum mx8_status multiply_by_strips(struct mx8_context *ctx, const struct mx8_product *p,
    const struct backward_plan *plan, int wanted, const struct mx8_tensor *dx, const struct mx8_tensor *dw) {
    const int by_rows = wanted & MX8I_WANT_DX, by_cols = (wanted & MX8I_WANT_DW) && is_wgrad_quantized(p);
    for (int64_t m = 0; by_rows && m < p->M; m += plan->rows) {
        const int64_t count = p->M - m < plan->rows ? p->M - m : plan->rows;
        MX8_TRY(quantize_strip(ctx, p, plan, 0, m, count, 1));
        MX8_TRY(multiply_dx(ctx, p, plan, dx, m, count));
    }
    for (int64_t n = 0; by_cols && n < p->N; n += plan->cols) {
        const int64_t count = p->N - n < plan->cols ? p->N - n : plan->cols;
        MX8_TRY(quantize_strip(ctx, p, plan, 1, n, count, !by_rows));
        MX8_TRY(multiply_dw(ctx, p, plan, dw, n, count));
    }
    if ((wanted & MX8I_WANT_DW) && !by_cols) return multiply_dw(ctx, p, plan, dw, 0, p->N);
    return MX8_OK;
}

enum mx8_status mx8i_run_backward(struct mx8_context *ctx, const struct mx8_product *p, const struct mx8_tensor *dx,
    const struct mx8_tensor *dw, const struct mx8_tensor *dbias, void *workspace) {
    int wanted = (mx8i_is_present(dx) ? MX8I_WANT_DX : 0) | (mx8i_is_present(dw) ? MX8I_WANT_DW : 0);
    struct backward_plan plan;
    plan_backward(p, wanted, workspace, &plan);
    if (plan.in_strips) {
        MX8_TRY(multiply_by_strips(ctx, p, &plan, wanted, dx, dw));
    } else {
        if (is_quantized(p)) MX8_TRY(quantize_dy(ctx, p, &plan));
        if (wanted & MX8I_WANT_DX) MX8_TRY(multiply_dx(ctx, p, &plan, dx, 0, p->M));
        if (wanted & MX8I_WANT_DW) MX8_TRY(multiply_dw(ctx, p, &plan, dw, 0, p->N));
    }
    return mx8i_is_present(dbias) ? sum_columns(ctx, p, dbias) : MX8_OK;
}
