/* The language model's head and its loss, a chunk of rows at a time: logits = h w^T, cross entropy with the gradient in
 * place, dh = dlogits w, dw += dlogits^T h. The (T,V) logits exist one chunk at a time; the losses of all rows are kept
 * and added up once, so that the loss does not depend on the chunks. In MXFP8 the weight is quantized once a call, and
 * chunks begin at multiples of a block, so that the blocks along T do not depend on them either. */
#include "base/error.h"
#include "ops/op_rows.h"
#include "ops/product.h"

static const struct mx8_port forward_in[] = {
    {"h", "TD", MX8I_HP},
    {"w", "VD", MX8I_HP | MX8I_OPTIONAL},
    {"targets", "T", MX8I_I32 | MX8I_PACKED},
    {"wq", "VD", MX8I_CODES | MX8I_OPTIONAL},
    {"ws", "Vd", MX8I_SCALES | MX8I_OPTIONAL},
};
static const struct mx8_port forward_out[] = {{"loss", "1", MX8I_F64 | MX8I_PACKED}};
static const struct mx8_port backward_in[] = {
    {"h", "TD", MX8I_HP},
    {"w", "VD", MX8I_HP | MX8I_OPTIONAL},
    {"targets", "T", MX8I_I32 | MX8I_PACKED},
    {"wq", "VD", MX8I_CODES | MX8I_OPTIONAL},
    {"ws", "Vd", MX8I_SCALES | MX8I_OPTIONAL},
    {"wq_t", "DV", MX8I_CODES | MX8I_OPTIONAL},
    {"ws_t", "Dv", MX8I_SCALES | MX8I_OPTIONAL},
};
static const struct mx8_port backward_out[] = {
    {"loss", "1", MX8I_F64 | MX8I_PACKED},
    {"dh", "TD", MX8I_HP | MX8I_ROWS},
    {"dw", "VD", MX8I_F32 | MX8I_ROWS | MX8I_OPTIONAL},
};
static const struct mx8_pass forward_pass = MX8I_PASS(forward_in, forward_out);
static const struct mx8_pass backward_pass = MX8I_PASS(backward_in, backward_out);
static const struct mx8_tensor absent;
static const char *const op_name = "lm_head_loss";

/* A chunk's logits stay below LOGITS_BYTES where that leaves at least LEAST_ROWS rows. */
#define LOGITS_BYTES ((int64_t)256 << 20)
enum { LEAST_ROWS = 512, MOST_ROWS = 1024 };

struct head {
    const struct mx8_op_call *call;
    const struct mx8_tensor *h, *w, *targets, *dh, *dw;
    int64_t T, V, D, chunk;
    float scale;
    int backward;
    struct mx8_code_pair wq, wq_t;                      /* given, or the tensors below */
    struct mx8_tensor codes, scales, codes_t, scales_t; /* made in the workspace */
    int make_wq, make_wq_t;
    float *losses;
    struct mx8_row_softmax *softmax; /* of a chunk's rows, where the gradient may be quantized as it is made */
    char *logits, *workspace;        /* of one chunk, and of its products */
};

static int is_quantized(const struct mx8_op_call *call) {
    return call->options.precision == MX8_PRECISION_MXFP8;
}

static int64_t find_chunk(const struct mx8_op_options *o, const struct head *s) {
    int64_t rows = o->chunk_rows, unit = 1;
    if (rows == 0) {
        int64_t row_bytes = mx8i_multiply_sizes(s->V > 0 ? s->V : 1, (int64_t)mx8_get_dtype_size(s->h->dtype));
        rows = LOGITS_BYTES / row_bytes;
        rows = rows < LEAST_ROWS ? LEAST_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows;
    }
    if (o->precision == MX8_PRECISION_MXFP8) {
        struct mx8_style style = mx8i_get_style(o, 0);
        unit = style.group > style.tile ? style.group : style.tile;
    }
    rows = mx8i_round_up(rows, unit);
    return rows < s->T ? rows : s->T;
}

/* The product of `rows` rows. In forward y is the logits, in backward dy is. */
static struct mx8_product make_product(const struct head *s, const struct mx8_op_options *o, int64_t rows) {
    struct mx8_product p = {.op = op_name, .options = o, .M = rows, .N = s->V, .K = s->D, .w = s->w, .at_once = 1};
    p.x = p.bias = p.dy = p.offsets = p.ends = &absent;
    p.wq = s->wq;
    p.wq_t = s->wq_t;
    return p;
}

/* Codes of the weight, row-major, in the workspace. */
static void carve_codes(struct mx8_carver *c, int64_t lines, int64_t depth, int32_t format, struct mx8_tensor *codes,
    struct mx8_tensor *scales) {
    int64_t blocks = mx8i_count_blocks(depth);
    void *code_bytes = mx8i_carve(c, mx8i_multiply_sizes(lines, depth));
    void *scale_bytes = mx8i_carve(c, mx8i_multiply_sizes(lines, blocks));
    *codes = mx8_make_tensor(code_bytes, format, 2, (int64_t[]){lines, depth});
    *scales = mx8_make_tensor(scale_bytes, MX8_F8_E8M0, 2, (int64_t[]){lines, blocks});
}

/* Lays out the workspace; sizes alone matter when it is NULL. */
static size_t plan(struct head *s, void *workspace) {
    struct mx8_carver c = {workspace, 0};
    const struct mx8_op_options *o = &s->call->options;
    int32_t format = mx8i_get_style(o, 1).format;
    s->losses = mx8i_carve(&c, mx8i_multiply_sizes(s->T, sizeof(float)));
    if (s->backward && is_quantized(s->call) && !o->wgrad_hp)
        s->softmax = mx8i_carve(&c, s->chunk * (int64_t)sizeof *s->softmax);
    int64_t logits = mx8i_multiply_sizes(s->chunk, s->V);
    s->logits = mx8i_carve(&c, mx8i_multiply_sizes(logits, (int64_t)mx8_get_dtype_size(s->h->dtype)));
    s->make_wq = is_quantized(s->call) && !mx8i_has_codes(&s->wq);
    s->make_wq_t = is_quantized(s->call) && s->backward && !mx8i_has_codes(&s->wq_t);
    if (s->make_wq) {
        carve_codes(&c, s->V, s->D, format, &s->codes, &s->scales);
        s->wq = (struct mx8_code_pair){&s->codes, &s->scales};
    }
    if (s->make_wq_t) {
        carve_codes(&c, s->D, s->V, format, &s->codes_t, &s->scales_t);
        s->wq_t = (struct mx8_code_pair){&s->codes_t, &s->scales_t};
    }
    struct mx8_product p = make_product(s, o, s->chunk);
    size_t bytes = mx8i_size_forward(&p);
    size_t backward = s->backward ? mx8i_size_backward(&p, MX8I_WANT_DX | MX8I_WANT_DW) : 0;
    s->workspace = mx8i_carve(&c, (int64_t)(bytes > backward ? bytes : backward));
    return c.used;
}

static enum mx8_status read_call(const struct mx8_op_call *call, int backward, struct head *s) {
    const struct mx8_pass *pass = backward ? &backward_pass : &forward_pass;
    *s = (struct head){
        .call = call, .h = &call->in[0], .w = &call->in[1], .targets = &call->in[2], .backward = backward};
    s->dh = backward ? &call->out[1] : &absent;
    s->dw = backward ? &call->out[2] : &absent;
    s->wq = s->wq_t = (struct mx8_code_pair){&absent, &absent};
    MX8_TRY(mx8i_get_code_pair(op_name, call, pass, 3, &s->wq));
    if (backward) MX8_TRY(mx8i_get_code_pair(op_name, call, pass, 5, &s->wq_t));
    s->T = s->h->shape[0];
    s->D = s->h->shape[1];
    s->V = mx8i_is_present(s->w) ? s->w->shape[0] : s->wq.codes->shape[0];
    s->chunk = find_chunk(&call->options, s);
    s->scale = call->options.loss_scale != 0 ? call->options.loss_scale : 1.0f / (float)(s->T > 0 ? s->T : 1);
    return MX8_OK;
}

static enum mx8_status check_operands(const struct mx8_op_call *call, int backward, const struct mx8_dims *d) {
    const struct mx8_op_options *o = &call->options;
    int has_w = mx8i_is_present(&call->in[1]), quantized = is_quantized(call);
    MX8_TRY(mx8i_check_choice(op_name, "precision", o->precision, MX8_PRECISION_MXFP8 + 1));
    MX8_TRY(mx8i_check_styles(op_name, o));
    if (o->chunk_rows < 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: chunk_rows is %d, expected 0 or more", op_name, (int)o->chunk_rows);
    if (!has_w && !(quantized && mx8i_is_present(&call->in[3])))
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: w is missing%s", op_name, quantized ? " and so are its codes wq" : "");
    if (!has_w && backward && !mx8i_is_present(&call->in[5]))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: w is missing and so are its codes wq_t", op_name);
    if (!quantized) return MX8_OK;
    MX8_TRY(mx8i_check_blocks(d, 'D', "h and w along D for the logits"));
    return backward ? mx8i_check_blocks(d, 'V', "the logits and w along V in the input gradient") : MX8_OK;
}

static enum mx8_status infer_pass(struct mx8_op_call *call, int backward) {
    const struct mx8_pass *pass = backward ? &backward_pass : &forward_pass;
    struct mx8_dims d;
    struct head s;
    MX8_TRY(mx8i_bind_inputs(&d, op_name, call, pass, 0, pass->n_in));
    MX8_TRY(read_call(call, backward, &s));
    MX8_TRY(check_operands(call, backward, &d));
    mx8i_clear_outputs(call, pass, plan(&s, NULL));
    mx8i_put_output(call, pass, 0, &d, MX8_F64);
    if (!backward) return MX8_OK;
    mx8i_put_output(call, pass, 1, &d, call->in[0].dtype);
    mx8i_put_output(call, pass, 2, &d, MX8_F32);
    return MX8_OK;
}

static enum mx8_status infer(struct mx8_op_call *call) {
    return infer_pass(call, 0);
}
static enum mx8_status infer_backward(struct mx8_op_call *call) {
    return infer_pass(call, 1);
}

/* ---- passes ---- */

/* Both orientations that are missing from one read of w. */
static enum mx8_status quantize_weight(struct mx8_context *ctx, const struct head *s) {
    if (!s->make_wq && !s->make_wq_t) return MX8_OK;
    struct mx8_style style = mx8i_get_style(&s->call->options, 1);
    struct mx8_quant_job j = mx8i_start_quant(ctx, s->w, style);
    struct mx8_plane rows = mx8i_view_plane(&s->wq, 0, style);
    if (s->make_wq) mx8i_emit_rows(&j, &rows);
    if (s->make_wq_t) {
        struct mx8_plane cols = mx8i_view_plane(&s->wq_t, 0, style);
        mx8i_emit_cols(&j, &cols);
    }
    return mx8i_run_quant(ctx, &j);
}

static struct mx8_tensor cut_rows(const struct mx8_tensor *t, int64_t start, int64_t rows) {
    struct mx8_tensor part = *t;
    if (mx8_count_elements(t) > 0) /* an empty one may have no memory, and any stride */
        part.data = (char *)t->data + start * t->stride[0] * (int64_t)mx8_get_dtype_size(t->dtype);
    part.shape[0] = rows;
    return part;
}

static enum mx8_status run_chunk(struct mx8_context *ctx, const struct head *s, int64_t start, int64_t rows) {
    const struct mx8_op_options *o = &s->call->options;
    struct mx8_tensor h = cut_rows(s->h, start, rows);
    struct mx8_tensor logits = mx8_make_tensor(s->logits, h.dtype, 2, (int64_t[]){rows, s->V});
    struct mx8_product p = make_product(s, o, rows);
    p.x = &h;
    MX8_TRY(mx8i_run_forward(ctx, &p, &logits, s->workspace));

    struct mx8_cross_entropy_job loss = {
        .T = rows,
        .V = s->V,
        .ls = s->V,
        .dtype = h.dtype,
        .grad = s->backward,
        .scale = s->scale,
        .logits = s->logits,
        .targets = (const int32_t *)s->targets->data + start,
        .losses = s->losses + start,
    };
    if (!s->backward) return ctx->exec.k->cross_entropy(&ctx->exec, &loss);

    struct mx8_op_options accumulating = *o;
    if (start > 0) accumulating.accumulate = 1;
    struct mx8_tensor dh = cut_rows(s->dh, start, rows);
    p.options = &accumulating;
    p.dy = &logits;
    if (s->softmax && ctx->exec.k->quantize_from && !mx8i_counts_gaps(ctx)) { /* the gradient exists as codes only */
        const struct mx8_quant_source source = {
            .kind = MX8_FROM_SOFTMAX, .a = s->logits, .a_ls = s->V, .rows = s->softmax};
        loss.grad = 0;
        loss.rows = s->softmax;
        p.dy_source = &source;
        MX8_TRY(ctx->exec.k->cross_entropy(&ctx->exec, &loss));
        enum mx8_status status = mx8i_run_backward(ctx, &p, &dh, s->dw, &absent, s->workspace);
        if (status != MX8_UNSUPPORTED) return status;
        p.dy_source = NULL; /* not in this geometry: nothing was written */
        loss.grad = 1;
        loss.rows = NULL;
    }
    MX8_TRY(ctx->exec.k->cross_entropy(&ctx->exec, &loss));
    return mx8i_run_backward(ctx, &p, &dh, s->dw, &absent, s->workspace);
}

/* Without rows no chunk writes dw: it is the product over none. */
static enum mx8_status clear_gradient(struct mx8_context *ctx, const struct head *s) {
    if (!mx8i_is_present(s->dw) || s->call->options.accumulate || s->D == 0) return MX8_OK;
    int64_t row_bytes = s->dw->stride[0] * (int64_t)sizeof(float);
    for (int64_t v = 0; v < s->V; v++)
        MX8_TRY(ctx->exec.k->fill(&ctx->exec, (char *)s->dw->data + v * row_bytes, 0, (size_t)s->D * sizeof(float)));
    return MX8_OK;
}

static enum mx8_status run_pass(struct mx8_context *ctx, const struct mx8_op_call *call, int backward) {
    const struct mx8_exec *x = &ctx->exec;
    struct head s;
    double *loss = call->out[0].data;
    MX8_TRY(read_call(call, backward, &s));
    plan(&s, call->workspace);
    MX8_TRY(x->k->fill(x, loss, 0, sizeof *loss));
    if (s.T == 0) return clear_gradient(ctx, &s);
    MX8_TRY(quantize_weight(ctx, &s));
    for (int64_t start = 0; start < s.T; start += s.chunk)
        MX8_TRY(run_chunk(ctx, &s, start, s.T - start < s.chunk ? s.T - start : s.chunk));
    MX8_TRY(x->k->scale(x, s.losses, NULL, s.scale, s.T));
    return x->k->sum(x, loss, s.losses, s.T);
}

static enum mx8_status forward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    return run_pass(ctx, call, 0);
}
static enum mx8_status backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    return run_pass(ctx, call, 1);
}

const struct mx8_op_row mx8i_lm_head_loss_row = {
    .op =
        {
            .name = "lm_head_loss",
            .schema = "lm_head_loss(Tensor h, Tensor? w, Tensor targets, Tensor? wq, Tensor? ws) -> Tensor loss",
            .backward_schema =
                "lm_head_loss_backward(Tensor h, Tensor? w, Tensor targets, Tensor? wq, Tensor? ws, Tensor? wq_t, "
                "Tensor? ws_t) -> (Tensor loss, Tensor dh, Tensor? dw)",
            .description =
                "loss (1) f64 = options.loss_scale (0: 1 / T) times the sum over rows of -log softmax(h w^T)[target], "
                "for h (T,D), w (V,D) and targets (T); rows whose target is negative count nothing. The backward pass "
                "computes the same loss and its gradients dh (T,D) and dw (V,D) f32 (options.accumulate adds to dw). "
                "Logits exist options.chunk_rows rows at a time (0: 512 to 1024) in the dtype of h; the loss does not "
                "depend on that. Precision mxfp8 and its options are as for linear, with D a multiple of 32, and V "
                "for the backward pass; wq, ws, wq_t, ws_t are the weight's codes and scales along D and, transposed, "
                "along V, made once a call where absent.",
            .infer = infer,
            .infer_backward = infer_backward,
            .forward = forward,
            .backward = backward,
        },
    .forward = MX8I_PASS(forward_in, forward_out),
    .backward = MX8I_PASS(backward_in, backward_out),
};
