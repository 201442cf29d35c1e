/* linear and grouped_linear: sampled elements of every output against a double product of the operands as the kernel
 * should have seen them (quantized by the scalar reference in MXFP8), within the bound of an fp32 accumulation. */
#include <math.h>
#include "base/error.h"
#include "cli/bench.h"
#include "formats/jobs.h"

#define SAMPLES 512

enum { M, N, K, G };

static enum mx8_status build_linear(struct mx8_bench *b) {
    int64_t x[] = {b->dim[M], b->dim[K]}, w[] = {b->dim[N], b->dim[K]};
    b->forward.n_in = 7;
    MX8_TRY(mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, x));
    return mx8i_make_input(b, &b->forward.in[1], b->dtype, 0.02, 2, w);
}

static enum mx8_status build_linear_backward(struct mx8_bench *b) {
    int64_t dy[] = {b->dim[M], b->dim[N]};
    b->call.n_in = 11;
    b->call.in[1] = b->forward.in[0];
    b->call.in[2] = b->forward.in[1];
    return mx8i_make_input(b, &b->call.in[0], b->dtype, 0.01, 2, dy);
}

static enum mx8_status build_grouped(struct mx8_bench *b) {
    int64_t x[] = {b->dim[M], b->dim[K]}, w[] = {b->dim[G], b->dim[N], b->dim[K]};
    b->forward.n_in = 8;
    MX8_TRY(mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, x));
    MX8_TRY(mx8i_make_input(b, &b->forward.in[1], b->dtype, 0.02, 3, w));
    return mx8i_make_offsets(b, &b->forward.in[2], b->dim[M], b->dim[G]);
}

static enum mx8_status build_grouped_backward(struct mx8_bench *b) {
    int64_t dy[] = {b->dim[M], b->dim[N]};
    b->call.n_in = 13;
    for (int i = 0; i < 3; i++) b->call.in[i + 1] = b->forward.in[i];
    return mx8i_make_input(b, &b->call.in[0], b->dtype, 0.01, 2, dy);
}

static double count_flops(const struct mx8_bench *b) {
    return (b->backward ? 4.0 : 2.0) * (double)b->dim[M] * (double)b->dim[N] * (double)b->dim[K];
}

/* Quantizes `rows` x `cols` values in place, blocks along an axis (0: down the rows), and puts back what the codes say.
 */
static enum mx8_status round_matrix(struct mx8_bench *b, float *values, int64_t rows, int64_t cols, int axis) {
    int32_t group = b->options.scale_group ? b->options.scale_group : MX8_BLOCK;
    uint8_t *codes = mx8i_take_block(b, (size_t)(rows * cols)), *scales = mx8i_take_block(b, (size_t)(rows * cols));
    if (!codes || !scales) return MX8_OUT_OF_MEMORY;
    struct mx8_quant_job j = {.src = values,
        .src_dtype = MX8_F32,
        .batch = 1,
        .rows = rows,
        .cols = cols,
        .src_stride = {0, cols, 1},
        .rule = b->options.scale_rule,
        .format = MX8_F8_E4M3,
        .group = group,
        .tile = 1};
    if (axis == 0) {
        j.col_codes = codes;
        j.col_scales = scales;
        j.col_code_stride[1] = j.col_scale_stride[1] = cols;
        j.col_code_stride[2] = j.col_scale_stride[2] = 1;
    } else {
        j.row_codes = codes;
        j.row_scales = scales;
        j.row_code_stride[1] = j.row_scale_stride[1] = cols;
        j.row_code_stride[2] = j.row_scale_stride[2] = 1;
    }
    mx8i_reference_quantize(&j);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            uint8_t scale = axis == 0 ? scales[r / MX8_BLOCK * cols + c] : scales[r * cols + c / MX8_BLOCK];
            values[r * cols + c] = mx8_decode_e4m3(codes[r * cols + c]) * mx8_decode_e8m0(scale);
        }
    mx8i_drop_blocks(b, 2);
    return MX8_OK;
}

/* The operand as the product sees it. With `ends`, rows fall into groups that are quantized on their own (axis 0). */
static float *take_operand(
    struct mx8_bench *b, const struct mx8_tensor *t, int axis, const int32_t *ends, int64_t groups) {
    int64_t count = mx8_count_elements(t), cols = t->shape[t->ndim - 1], rows = t->shape[t->ndim - 2];
    float *values = mx8i_take_block(b, (size_t)count * sizeof *values);
    if (!values) return NULL;
    for (int64_t i = 0; i < count; i++) values[i] = (float)mx8i_read_element(t, i);
    if (!b->mxfp8) return values;
    if (ends && axis == 0) {
        for (int64_t g = 0; g < groups; g++) {
            int64_t start = g ? ends[g - 1] : 0;
            if (round_matrix(b, values + start * cols, ends[g] - start, cols, 0) != MX8_OK) return NULL;
        }
        return values;
    }
    for (int64_t e = 0; e < (t->ndim == 3 ? t->shape[0] : 1); e++)
        if (round_matrix(b, values + e * rows * cols, rows, cols, axis) != MX8_OK) return NULL;
    return values;
}

/* out[at] against the sum of a[i * a_stride] * b[i * b_stride], i < n. */
static void compare_dot(struct mx8_check *check, const struct mx8_tensor *out, int64_t at, const float *a,
    int64_t a_stride, const float *b, int64_t b_stride, int64_t n) {
    double sum = 0, magnitude = 0;
    for (int64_t i = 0; i < n; i++) {
        double product = (double)a[i * a_stride] * (double)b[i * b_stride];
        sum += product;
        magnitude += fabs(product);
    }
    double allowed = (double)(n + 1) * 0x1p-24 * magnitude;
    allowed += mx8i_get_rounding(out->dtype) * (fabs(sum) + allowed) + 1e-30;
    mx8i_compare_value(check, mx8i_read_element(out, at), sum, allowed);
}

struct product {
    const int32_t *ends; /* NULL: one group of all rows */
    int64_t dim[4];
};

static int64_t find_group(const struct product *p, int64_t m) {
    int64_t g = 0;
    while (p->ends && m >= p->ends[g]) g++;
    return g;
}

/* The corners first, then anywhere. */
static int64_t pick(struct mx8_bench *b, int64_t sample, int64_t size) {
    if (sample == 0) return 0;
    return sample == 1 ? size - 1 : (int64_t)(mx8i_draw(&b->seed) % (uint64_t)size);
}

static enum mx8_status check_forward(struct mx8_bench *b, const struct product *p, struct mx8_check *out) {
    const float *x = take_operand(b, &b->call.in[0], 1, NULL, 0), *w = take_operand(b, &b->call.in[1], 1, NULL, 0);
    if (!x || !w) return MX8_OUT_OF_MEMORY;
    for (int64_t s = 0; s < SAMPLES; s++) {
        int64_t m = pick(b, s, p->dim[M]), n = pick(b, s, p->dim[N]);
        const float *line = w + (find_group(p, m) * p->dim[N] + n) * p->dim[K];
        compare_dot(out, &b->call.out[0], m * p->dim[N] + n, x + m * p->dim[K], 1, line, 1, p->dim[K]);
    }
    return MX8_OK;
}

static enum mx8_status check_backward(struct mx8_bench *b, const struct product *p, struct mx8_check *out) {
    const struct mx8_tensor *dy = &b->call.in[0], *x = &b->call.in[1], *w = &b->call.in[2];
    int64_t rows = p->dim[M], width = p->dim[N], depth = p->dim[K];
    const float *dy_rows = take_operand(b, dy, 1, NULL, 0), *w_cols = take_operand(b, w, 0, NULL, 0);
    const float *dy_cols = take_operand(b, dy, 0, p->ends, p->dim[G]),
                *x_cols = take_operand(b, x, 0, p->ends, p->dim[G]);
    if (!dy_rows || !w_cols || !dy_cols || !x_cols) return MX8_OUT_OF_MEMORY;
    for (int64_t s = 0; s < SAMPLES; s++) {
        int64_t m = pick(b, s, rows), k = pick(b, s, depth), n = pick(b, s, width), g = find_group(p, m);
        compare_dot(
            out, &b->call.out[0], m * depth + k, dy_rows + m * width, 1, w_cols + g * width * depth + k, depth, width);
        int64_t start = p->ends && g ? p->ends[g - 1] : 0, end = p->ends ? p->ends[g] : rows;
        compare_dot(out, &b->call.out[1], (g * width + n) * depth + k, dy_cols + start * width + n, width,
            x_cols + start * depth + k, depth, end - start);
    }
    return MX8_OK;
}

static enum mx8_status check(struct mx8_bench *b, const struct product *p, struct mx8_check *out) {
    out->against = "sampled elements in double, within the bound of an fp32 sum";
    if (p->dim[M] * p->dim[N] * p->dim[K] == 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: nothing to check in an empty product", b->problem->name);
    return b->backward ? check_backward(b, p, out) : check_forward(b, p, out);
}

static enum mx8_status check_linear(struct mx8_bench *b, struct mx8_check *out) {
    struct product p = {NULL, {b->dim[M], b->dim[N], b->dim[K], 1}};
    return check(b, &p, out);
}

static enum mx8_status check_grouped(struct mx8_bench *b, struct mx8_check *out) {
    struct product p = {b->forward.in[2].data, {b->dim[M], b->dim[N], b->dim[K], b->dim[G]}};
    return check(b, &p, out);
}

const struct mx8_problem mx8i_gemm_problems[] = {
    {.name = "linear",
        .shape = "MxNxK",
        .example = "2048x2048x2048",
        .has_backward = 1,
        .has_mxfp8 = 1,
        .build = build_linear,
        .build_backward = build_linear_backward,
        .check = check_linear,
        .count_flops = count_flops},
    {.name = "grouped_linear",
        .shape = "MxNxKxG",
        .example = "4096x1024x512xG8",
        .has_backward = 1,
        .has_mxfp8 = 1,
        .build = build_grouped,
        .build_backward = build_grouped_backward,
        .check = check_grouped,
        .count_flops = count_flops},
    {0},
};
