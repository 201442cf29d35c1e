/* Scale layouts and group padding as operators. */
#include "ops/op_rows.h"
#include "ops/planes.h"

#include "base/error.h"

enum { TILE_ROWS = 128, TILE_COLS = 4 };

static const struct mx8_port block_in[] = {
    {"scales", NULL, MX8I_SCALES},
    {"offsets", "G", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port block_out[] = {
    {"blocked", NULL, MX8I_SCALES | MX8I_PACKED},
    {"starts", NULL, MX8I_I64 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port unblock_in[] = {
    {"blocked", NULL, MX8I_SCALES | MX8I_PACKED},
    {"offsets", "G", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},
    {"like", NULL, MX8I_SCALES | MX8I_LIKE},
};
static const struct mx8_port unblock_out[] = {{"scales", NULL, MX8I_SCALES}};
static const struct mx8_port pad_in[] = {
    {"x", "MK", MX8I_ANY_DTYPE | MX8I_ROWS},
    {"offsets", "G", MX8I_I32 | MX8I_PACKED},
};
static const struct mx8_port pad_out[] = {
    {"padded", "PK", MX8I_ANY_DTYPE | MX8I_ROWS},
    {"starts", "G", MX8I_I32 | MX8I_PACKED},
    {"ends", "G", MX8I_I32 | MX8I_PACKED},
};
static const struct mx8_port unpad_in[] = {
    {"padded", "PK", MX8I_ANY_DTYPE | MX8I_ROWS},
    {"starts", "G", MX8I_I32 | MX8I_PACKED},
    {"offsets", "G", MX8I_I32 | MX8I_PACKED},
    {"like", "MK", MX8I_ANY_DTYPE | MX8I_SAME | MX8I_LIKE},
};
static const struct mx8_port unpad_out[] = {{"x", "MK", MX8I_ANY_DTYPE | MX8I_ROWS}};
static const struct mx8_port pad_backward_in[] = {
    {"dpadded", "PK", MX8I_ANY_DTYPE | MX8I_ROWS},
    {"starts", "G", MX8I_I32 | MX8I_PACKED},
    {"offsets", "G", MX8I_I32 | MX8I_PACKED},
    {"like", "MK", MX8I_ANY_DTYPE | MX8I_SAME | MX8I_LIKE},
};
static const struct mx8_port pad_backward_out[] = {{"dx", "MK", MX8I_ANY_DTYPE | MX8I_ROWS}};

static const struct mx8_pass block_pass = MX8I_PASS(block_in, block_out);
static const struct mx8_pass unblock_pass = MX8I_PASS(unblock_in, unblock_out);
static const struct mx8_pass pad_pass = MX8I_PASS(pad_in, pad_out);
static const struct mx8_pass unpad_pass = MX8I_PASS(unpad_in, unpad_out);
static const struct mx8_pass pad_backward_pass = MX8I_PASS(pad_backward_in, pad_backward_out);

/* ---- scale layouts ---- */

static int is_grouped(const struct mx8_op_call *call) {
    return call->options.layout == MX8_LAYOUT_M_GROUPS || call->options.layout == MX8_LAYOUT_K_GROUPS;
}

static enum mx8_status check_layout(const char *op, const struct mx8_op_call *call, const struct mx8_tensor *plain) {
    const struct mx8_tensor *offsets = &call->in[1];
    MX8_TRY(mx8i_check_choice(op, "layout", call->options.layout, MX8_LAYOUT_PER_EXPERT + 1));
    int32_t ndim = call->options.layout == MX8_LAYOUT_PER_EXPERT ? 3 : 2;
    if (plain->ndim != ndim)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: plain scales have %d dimensions, expected %d for this layout", op,
            (int)plain->ndim, (int)ndim);
    if (is_grouped(call) != mx8i_is_present(offsets))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: offsets are %s, but layout %d %s", op,
            is_grouped(call) ? "missing" : "given", (int)call->options.layout,
            is_grouped(call) ? "has groups" : "has no groups");
    if (!is_grouped(call) || (offsets->shape[0] >= 1 && offsets->shape[0] <= INT32_MAX / TILE_ROWS)) return MX8_OK;
    return MX8_FAIL(
        MX8_INVALID_ARGUMENT, "%s: offsets has %lld elements, expected at least 1", op, (long long)offsets->shape[0]);
}

static struct mx8_tensor shape_blocked(const struct mx8_op_call *call, const struct mx8_tensor *plain) {
    int32_t batch = plain->ndim == 3;
    int64_t R = plain->shape[batch], C = plain->shape[batch + 1], G = call->in[1].shape[0];
    int64_t rows = mx8i_round_up(R, TILE_ROWS), cols = mx8i_round_up(C, TILE_COLS);
    switch (call->options.layout) {
    case MX8_LAYOUT_M_GROUPS:
        return mx8_make_tensor(NULL, MX8_F8_E8M0, 2, (int64_t[]){R + TILE_ROWS * G, cols});
    case MX8_LAYOUT_K_GROUPS:
        return mx8_make_tensor(NULL, MX8_F8_E8M0, 2, (int64_t[]){rows, C + TILE_COLS * G});
    case MX8_LAYOUT_PER_EXPERT:
        return mx8_make_tensor(NULL, MX8_F8_E8M0, 2, (int64_t[]){plain->shape[0], mx8i_multiply_sizes(rows, cols)});
    default:
        return mx8_make_tensor(NULL, MX8_F8_E8M0, 1, (int64_t[]){mx8i_multiply_sizes(rows, cols)});
    }
}

/* Tiles are full of padding: without elements, or with few, plain scales may still have lengths that fill too many. */
static enum mx8_status check_blocked(const char *op, const struct mx8_tensor *blocked) {
    int64_t bytes = mx8i_multiply_sizes(blocked->shape[0], blocked->ndim > 1 ? blocked->shape[1] : 1);
    if (bytes <= (int64_t)MX8I_MOST_WORKSPACE) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: plain scales of this shape fill more than %lld bytes of tiles", op,
        (long long)MX8I_MOST_WORKSPACE);
}

static enum mx8_status infer_block(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "block_scales", call, &block_pass, 0, 2));
    MX8_TRY(check_layout("block_scales", call, &call->in[0]));
    mx8i_clear_outputs(call, &block_pass, 0);
    call->out[0] = shape_blocked(call, &call->in[0]);
    MX8_TRY(check_blocked("block_scales", &call->out[0]));
    if (is_grouped(call)) call->out[1] = mx8_make_tensor(NULL, MX8_I64, 1, (int64_t[]){call->in[1].shape[0] + 1});
    return MX8_OK;
}

static enum mx8_status infer_unblock(struct mx8_op_call *call) {
    struct mx8_dims d;
    const struct mx8_tensor *blocked = &call->in[0], *like = &call->in[2];
    MX8_TRY(mx8i_bind_inputs(&d, "unblock_scales", call, &unblock_pass, 0, 3));
    MX8_TRY(check_layout("unblock_scales", call, like));
    struct mx8_tensor expected = shape_blocked(call, like);
    MX8_TRY(check_blocked("unblock_scales", &expected));
    if (mx8_count_elements(blocked) != mx8_count_elements(&expected))
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "unblock_scales: blocked has %lld bytes, expected %lld for these plain scales",
            (long long)mx8_count_elements(blocked), (long long)mx8_count_elements(&expected));
    struct mx8_tensor plain = mx8_make_tensor(NULL, MX8_F8_E8M0, like->ndim, like->shape);
    mx8i_clear_outputs(call, &unblock_pass, 0);
    call->out[0] = plain;
    return MX8_OK;
}

static struct mx8_layout_job make_layout_job(
    const struct mx8_op_call *call, const struct mx8_tensor *plain, const struct mx8_tensor *blocked) {
    int32_t batch = plain->ndim == 3;
    return (struct mx8_layout_job){
        .plain = plain->data,
        .blocked = blocked->data,
        .E = batch ? plain->shape[0] : 1,
        .R = plain->shape[batch],
        .C = plain->shape[batch + 1],
        .layout = call->options.layout,
        .offsets = call->in[1].data,
        .n_groups = (int32_t)call->in[1].shape[0],
        .plain_stride = {batch ? plain->stride[0] : 0, plain->stride[batch], plain->stride[batch + 1]},
    };
}

static enum mx8_status run_block(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_layout_job j = make_layout_job(call, &call->in[0], &call->out[0]);
    j.starts = call->out[1].data;
    return ctx->exec.k->block_scales(&ctx->exec, &j);
}

static enum mx8_status run_unblock(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_layout_job j = make_layout_job(call, &call->out[0], &call->in[0]);
    return ctx->exec.k->unblock_scales(&ctx->exec, &j);
}

/* ---- group padding ---- */

static int32_t find_alignment(const struct mx8_op_call *call) {
    return call->options.alignment ? call->options.alignment : MX8_BLOCK;
}

/* Binds P, the rows of the padded tensor. */
static enum mx8_status bind_padding(struct mx8_dims *d, const struct mx8_op_call *call) {
    int64_t M = mx8i_get_dim(d, 'M'), G = mx8i_get_dim(d, 'G'), A = find_alignment(call);
    if (A < 1) return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: alignment is %d, expected 0 or more", d->op, (int)A);
    if (G < 1 || G > INT32_MAX / A || M > INT32_MAX - (G + 1) * A)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s: %lld rows in %lld groups aligned to %lld, expected at least one group and less than 2^31 padded rows",
            d->op, (long long)M, (long long)G, (long long)A);
    return mx8i_set_dim(d, 'P', mx8i_padded_rows(M, (int32_t)G, A), "M + G * alignment, rounded up to it");
}

static enum mx8_status infer_pad(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "group_pad", call, &pad_pass, 0, 2));
    MX8_TRY(bind_padding(&d, call));
    mx8i_clear_outputs(call, &pad_pass, 0);
    mx8i_put_output(call, &pad_pass, 0, &d, call->in[0].dtype);
    mx8i_put_output(call, &pad_pass, 1, &d, MX8_I32);
    mx8i_put_output(call, &pad_pass, 2, &d, MX8_I32);
    return MX8_OK;
}

static enum mx8_status infer_unpadding(struct mx8_op_call *call, const char *op, const struct mx8_pass *pass) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, op, call, pass, 0, 4));
    MX8_TRY(bind_padding(&d, call));
    mx8i_clear_outputs(call, pass, 0);
    mx8i_put_output(call, pass, 0, &d, call->in[0].dtype);
    return MX8_OK;
}

static enum mx8_status infer_unpad(struct mx8_op_call *call) {
    return infer_unpadding(call, "group_unpad", &unpad_pass);
}
static enum mx8_status infer_pad_backward(struct mx8_op_call *call) {
    return infer_unpadding(call, "group_pad", &pad_backward_pass);
}

static struct mx8_pad_job make_pad_job(const struct mx8_op_call *call, const struct mx8_tensor *x,
    const struct mx8_tensor *padded, const struct mx8_tensor *offsets) {
    return (struct mx8_pad_job){
        .padded = padded->data,
        .x = x->data,
        .rows = x->shape[0],
        .padded_rows = padded->shape[0],
        .cols = x->shape[1],
        .elem_size = mx8_get_dtype_size(x->dtype),
        .x_stride = x->stride[0],
        .padded_stride = padded->stride[0],
        .offsets = offsets->data,
        .n_groups = (int32_t)offsets->shape[0],
        .alignment = find_alignment(call),
    };
}

static enum mx8_status run_pad(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_pad_job j = make_pad_job(call, &call->in[0], &call->out[0], &call->in[1]);
    j.starts = call->out[1].data;
    j.ends = call->out[2].data;
    return ctx->exec.k->pad_groups(&ctx->exec, &j);
}

static enum mx8_status run_unpad(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_pad_job j = make_pad_job(call, &call->out[0], &call->in[0], &call->in[2]);
    j.starts = call->in[1].data;
    return ctx->exec.k->unpad_groups(&ctx->exec, &j);
}

/* ---- rows ---- */

const struct mx8_op_row mx8i_block_scales_row = {
    .op =
        {
            .name = "block_scales",
            .schema = "block_scales(Tensor scales, Tensor? offsets) -> (Tensor blocked, Tensor? starts)",
            .description =
                "Plain scales to the 128x4 blocked layout that Blackwell's tensor cores and cuBLAS read. "
                "options.layout picks: plain, scales (R,C) to (roundup(R,128) * roundup(C,4)) bytes; m_groups, row "
                "groups with cumulative ends offsets (G), to (R + 128 G, roundup(C,4)); k_groups, column groups, to "
                "(roundup(R,128), C + 4 G); per_expert, (E,R,C) to (E, roundup(R,128) * roundup(C,4)). Group variants "
                "write an upper bound, so nothing is read back, and starts (G+1) i64 receives the first row or column "
                "of each group. Unused bytes are zero.",
            .infer = infer_block,
            .forward = run_block,
        },
    .forward = MX8I_PASS(block_in, block_out),
};

const struct mx8_op_row mx8i_unblock_scales_row = {
    .op =
        {
            .name = "unblock_scales",
            .schema = "unblock_scales(Tensor blocked, Tensor? offsets, Tensor like) -> Tensor scales",
            .description =
                "The reverse of block_scales, with the same options; like gives the shape of the plain scales and is "
                "not read. Scales past the last group are zero.",
            .infer = infer_unblock,
            .forward = run_unblock,
        },
    .forward = MX8I_PASS(unblock_in, unblock_out),
};

const struct mx8_op_row mx8i_group_pad_row = {
    .op =
        {
            .name = "group_pad",
            .schema = "group_pad(Tensor x, Tensor offsets) -> (Tensor padded, Tensor starts, Tensor ends)",
            .backward_schema =
                "group_pad_backward(Tensor dpadded, Tensor starts, Tensor offsets, Tensor like) -> Tensor dx",
            .description =
                "x (M,K) in groups with cumulative ends offsets (G) to padded (roundup(M + G*A, A), K): each group is "
                "copied to a start that is a multiple of A = options.alignment (0: 32), every other row is zero. "
                "starts and ends (G) say where the padded groups lie; empty groups take no rows. Rows at and past "
                "offsets[G-1] are not copied. The backward pass is group_unpad.",
            .infer = infer_pad,
            .infer_backward = infer_pad_backward,
            .forward = run_pad,
            .backward = run_unpad,
        },
    .forward = MX8I_PASS(pad_in, pad_out),
    .backward = MX8I_PASS(pad_backward_in, pad_backward_out),
};

const struct mx8_op_row mx8i_group_unpad_row = {
    .op =
        {
            .name = "group_unpad",
            .schema = "group_unpad(Tensor padded, Tensor starts, Tensor offsets, Tensor like) -> Tensor x",
            .description =
                "The reverse of group_pad: rows of padded back to x (M,K), whose shape like gives; rows of x at and "
                "past offsets[G-1] become zero. options.alignment is what group_pad was told.",
            .infer = infer_unpad,
            .forward = run_unpad,
        },
    .forward = MX8I_PASS(unpad_in, unpad_out),
};
