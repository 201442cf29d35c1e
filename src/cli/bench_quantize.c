/* Quantizers, dequantizer and group padding: checked bit for bit against the scalar reference. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "cli/bench.h"
#include "formats/jobs.h"

static const char bit_for_bit[] = "the reference, bit for bit";

static enum mx8_status build_matrix(struct mx8_bench *b) {
    b->forward.n_in = 1;
    return mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, b->dim);
}

static enum mx8_status build_cols(struct mx8_bench *b) {
    MX8_TRY(build_matrix(b));
    b->forward.n_in = 2; /* the second is absent: no groups */
    return MX8_OK;
}

static enum mx8_status build_experts(struct mx8_bench *b) {
    b->forward.n_in = 1;
    return mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 3, b->dim);
}

static enum mx8_status build_codes(struct mx8_bench *b) {
    struct mx8_tensor x, *in = b->forward.in;
    int64_t scale_shape[] = {b->dim[0], (b->dim[1] + MX8_BLOCK - 1) / MX8_BLOCK};
    MX8_TRY(mx8i_make_input(b, &x, b->dtype, 1, 2, b->dim));
    MX8_TRY(mx8i_make_input(b, &in[0], MX8_F8_E4M3, 0, 2, b->dim));
    MX8_TRY(mx8i_make_input(b, &in[1], MX8_F8_E8M0, 0, 2, scale_shape));
    b->forward.n_in = 2;
    return mx8_quantize_rows(b->ctx, &in[0], &in[1], &x, &b->options);
}

static enum mx8_status build_groups(struct mx8_bench *b) {
    b->forward.n_in = 2;
    MX8_TRY(mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, b->dim));
    return mx8i_make_offsets(b, &b->forward.in[1], b->dim[0], b->dim[2]);
}

/* The reference's job: source and options as in the call; the caller says where results go. */
static struct mx8_quant_job start_job(const struct mx8_bench *b) {
    const struct mx8_tensor *x = &b->call.in[0];
    struct mx8_quant_job j = {.src = x->data,
        .src_dtype = x->dtype,
        .batch = 1,
        .rule = b->options.scale_rule,
        .format = MX8_F8_E4M3,
        .group = b->options.scale_group ? b->options.scale_group : 32,
        .tile = 1};
    int32_t at = x->ndim - 2;
    j.batch = at ? x->shape[0] : 1;
    j.rows = x->shape[at];
    j.cols = x->shape[at + 1];
    j.src_stride[0] = j.rows * j.cols;
    j.src_stride[1] = j.cols;
    j.src_stride[2] = 1;
    return j;
}

static uint8_t *take_like(struct mx8_bench *b, const struct mx8_tensor *t) {
    return mx8i_take_block(b, (size_t)mx8_count_elements(t) * mx8_get_dtype_size(t->dtype));
}

static void compare_output(struct mx8_check *check, const struct mx8_tensor *got, const void *expected) {
    mx8i_compare_bytes(check, got->data, expected, (size_t)mx8_count_elements(got) * mx8_get_dtype_size(got->dtype));
}

static enum mx8_status check_quantize(struct mx8_bench *b, int rows_at, int cols_at, struct mx8_check *out) {
    struct mx8_quant_job j = start_job(b);
    const struct mx8_tensor *to = b->call.out;
    int64_t row_blocks = (j.cols + MX8_BLOCK - 1) / MX8_BLOCK, col_blocks = (j.rows + MX8_BLOCK - 1) / MX8_BLOCK;
    if (rows_at >= 0) {
        j.row_codes = take_like(b, &to[rows_at]);
        j.row_scales = take_like(b, &to[rows_at + 1]);
        if (!j.row_codes || !j.row_scales) return MX8_OUT_OF_MEMORY;
        j.row_code_stride[1] = j.cols;
        j.row_code_stride[2] = 1;
        j.row_scale_stride[1] = row_blocks;
        j.row_scale_stride[2] = 1;
    }
    if (cols_at >= 0) {
        int is_3d = b->call.in[0].ndim == 3; /* scales (E,N/32,K) there, (K,M/32) in 2D */
        j.col_codes = take_like(b, &to[cols_at]);
        j.col_scales = take_like(b, &to[cols_at + 1]);
        if (!j.col_codes || !j.col_scales) return MX8_OUT_OF_MEMORY;
        j.col_code_stride[0] = j.rows * j.cols;
        j.col_code_stride[1] = 1;
        j.col_code_stride[2] = j.rows;
        j.col_scale_stride[0] = col_blocks * j.cols;
        j.col_scale_stride[1] = is_3d ? j.cols : 1;
        j.col_scale_stride[2] = is_3d ? 1 : col_blocks;
    }
    mx8i_reference_quantize(&j);
    out->against = bit_for_bit;
    if (rows_at >= 0) {
        compare_output(out, &to[rows_at], j.row_codes);
        compare_output(out, &to[rows_at + 1], j.row_scales);
    }
    if (cols_at >= 0) {
        compare_output(out, &to[cols_at], j.col_codes);
        compare_output(out, &to[cols_at + 1], j.col_scales);
    }
    return MX8_OK;
}

static enum mx8_status check_rows(struct mx8_bench *b, struct mx8_check *out) {
    return check_quantize(b, 0, -1, out);
}
static enum mx8_status check_cols(struct mx8_bench *b, struct mx8_check *out) {
    return check_quantize(b, -1, 0, out);
}
static enum mx8_status check_both(struct mx8_bench *b, struct mx8_check *out) {
    return check_quantize(b, 0, 2, out);
}

static enum mx8_status check_dequantize(struct mx8_bench *b, struct mx8_check *out) {
    const struct mx8_tensor *x = &b->call.out[0];
    struct mx8_dequant_job j = {.dst = take_like(b, x),
        .dst_dtype = x->dtype,
        .rows = x->shape[0],
        .cols = x->shape[1],
        .codes = b->call.in[0].data,
        .scales = b->call.in[1].data,
        .format = MX8_F8_E4M3};
    if (!j.dst) return MX8_OUT_OF_MEMORY;
    j.dst_stride[0] = j.code_stride[0] = j.cols;
    j.scale_stride[0] = b->call.in[1].shape[1];
    j.dst_stride[1] = j.code_stride[1] = j.scale_stride[1] = 1;
    mx8i_reference_dequantize(&j);
    out->against = bit_for_bit;
    compare_output(out, x, j.dst);
    return MX8_OK;
}

static enum mx8_status check_pad(struct mx8_bench *b, struct mx8_check *out) {
    const struct mx8_tensor *x = &b->call.in[0], *to = b->call.out;
    struct mx8_pad_job j = {.x = x->data,
        .rows = x->shape[0],
        .cols = x->shape[1],
        .elem_size = mx8_get_dtype_size(x->dtype),
        .x_stride = x->shape[1],
        .padded_stride = x->shape[1],
        .padded_rows = to[0].shape[0],
        .offsets = b->call.in[1].data,
        .n_groups = (int32_t)b->dim[2],
        .alignment = MX8_BLOCK};
    j.padded = take_like(b, &to[0]);
    j.starts = mx8i_take_block(b, (size_t)b->dim[2] * sizeof *j.starts);
    j.ends = mx8i_take_block(b, (size_t)b->dim[2] * sizeof *j.ends);
    if (!j.padded || !j.starts || !j.ends) return MX8_OUT_OF_MEMORY;
    mx8i_reference_pad_groups(&j);
    out->against = bit_for_bit;
    compare_output(out, &to[0], j.padded);
    compare_output(out, &to[1], j.starts);
    compare_output(out, &to[2], j.ends);
    return MX8_OK;
}

static enum mx8_status build_scales(struct mx8_bench *b) {
    b->forward.n_in = 2; /* no groups */
    MX8_TRY(mx8i_make_input(b, &b->forward.in[0], MX8_F8_E8M0, 0, 2, b->dim));
    uint8_t *scales = b->forward.in[0].data;
    for (int64_t i = 0; i < b->dim[0] * b->dim[1]; i++) scales[i] = (uint8_t)mx8i_draw(&b->seed);
    return MX8_OK;
}

static enum mx8_status check_scales(struct mx8_bench *b, struct mx8_check *out) {
    struct mx8_layout_job j = {.plain = b->call.in[0].data,
        .E = 1,
        .R = b->dim[0],
        .C = b->dim[1],
        .layout = MX8_LAYOUT_PLAIN,
        .plain_stride = {b->dim[0] * b->dim[1], b->dim[1], 1}};
    j.blocked = take_like(b, &b->call.out[0]);
    if (!j.blocked) return MX8_OUT_OF_MEMORY;
    mx8i_reference_block_scales(&j);
    out->against = bit_for_bit;
    compare_output(out, &b->call.out[0], j.blocked);
    return MX8_OK;
}

const struct mx8_problem mx8i_quantize_problems[] = {
    {.name = "quantize_rows", .shape = "MxK", .example = "8192x5120", .build = build_matrix, .check = check_rows},
    {.name = "quantize_cols", .shape = "MxK", .example = "8192x5120", .build = build_cols, .check = check_cols},
    {.name = "quantize_both", .shape = "MxK", .example = "8192x5120", .build = build_cols, .check = check_both},
    {.name = "quantize_3d", .shape = "ExNxK", .example = "8x1024x512", .build = build_experts, .check = check_cols},
    {.name = "dequantize", .shape = "MxK", .example = "8192x5120", .build = build_codes, .check = check_dequantize},
    {.name = "block_scales", .shape = "RxC", .example = "8192x160", .build = build_scales, .check = check_scales},
    {.name = "group_pad", .shape = "MxKxG", .example = "8192x1024xG8", .build = build_groups, .check = check_pad},
    {0},
};
