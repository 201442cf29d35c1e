/* The model's other operators: sampled rows against the formulas in double. */
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "cli/bench.h"

#define SAMPLES 64

static const char in_double[] = "sampled rows in double";

static int64_t pick(struct mx8_bench *b, int64_t size) {
    return (int64_t)(mx8i_draw(&b->seed) % (uint64_t)size);
}

/* Elements [row * width, +width) of a row-major tensor, in double. */
static const double *read_row(const struct mx8_tensor *t, int64_t row, int64_t width, double *out) {
    for (int64_t i = 0; i < width; i++) out[i] = mx8i_read_element(t, row * width + i);
    return out;
}

/* `scale` is the size of the parts that a value is summed from: fp32 inside, rounded once when stored. */
static void compare(struct mx8_check *check, const struct mx8_tensor *t, int64_t at, double expected, double scale) {
    mx8i_compare_value(check, mx8i_read_element(t, at), expected,
        mx8i_get_rounding(t->dtype) * fabs(expected) * 1.01 + 0x1p-18 * scale + 1e-30);
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* ---- rmsnorm TxD ---- */

static enum mx8_status build_rmsnorm(struct mx8_bench *b) {
    b->forward.n_in = 3; /* the third, a residual to add, is absent */
    MX8_TRY(mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, b->dim));
    return mx8i_make_input(b, &b->forward.in[1], b->dtype, 1, 1, &b->dim[1]);
}

static enum mx8_status build_rmsnorm_backward(struct mx8_bench *b) {
    b->call.n_in = 5;
    b->call.in[1] = b->forward.in[0];
    b->call.in[2] = b->forward.in[1];
    b->call.in[3] = b->forward.out[1];
    return mx8i_make_input(b, &b->call.in[0], b->dtype, 1, 2, b->dim);
}

static enum mx8_status check_rmsnorm(struct mx8_bench *b, struct mx8_check *out) {
    int64_t D = b->dim[1];
    double *row = mx8i_take_block(b, (size_t)(3 * D) * sizeof *row);
    if (!row) return MX8_OUT_OF_MEMORY;
    const double *w = read_row(&b->forward.in[1], 0, D, row + D);
    out->against = in_double;
    for (int64_t s = 0; s < SAMPLES && b->dim[0] > 0; s++) {
        int64_t t = pick(b, b->dim[0]);
        const double *x = read_row(&b->forward.in[0], t, D, row);
        double r = 1 / sqrt(dot(x, x, D) / (double)D + 1e-5), inner = 0;
        if (!b->backward) {
            for (int64_t i = 0; i < D; i++)
                compare(out, &b->call.out[0], t * D + i, x[i] * r * w[i], fabs(x[i] * r * w[i]));
            continue;
        }
        const double *dy = read_row(&b->call.in[0], t, D, row + 2 * D);
        for (int64_t i = 0; i < D; i++) inner += dy[i] * w[i] * x[i];
        for (int64_t i = 0; i < D; i++)
            compare(out, &b->call.out[0], t * D + i, r * dy[i] * w[i] - r * r * r / (double)D * inner * x[i],
                fabs(r * dy[i] * w[i]) + 4 * fabs(x[i]) * r * r);
    }
    return MX8_OK;
}

/* ---- swiglu MxF ---- */

static enum mx8_status build_swiglu(struct mx8_bench *b) {
    b->forward.n_in = 2;
    MX8_TRY(mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, b->dim));
    return mx8i_make_input(b, &b->forward.in[1], b->dtype, 1, 2, b->dim);
}

static enum mx8_status build_swiglu_backward(struct mx8_bench *b) {
    b->call.n_in = 3;
    b->call.in[1] = b->forward.in[0];
    b->call.in[2] = b->forward.in[1];
    return mx8i_make_input(b, &b->call.in[0], b->dtype, 1, 2, b->dim);
}

static enum mx8_status check_swiglu(struct mx8_bench *b, struct mx8_check *out) {
    int64_t count = b->dim[0] * b->dim[1];
    out->against = "sampled elements in double";
    for (int64_t s = 0; s < SAMPLES * 64 && count > 0; s++) {
        int64_t at = pick(b, count);
        double gate = mx8i_read_element(&b->forward.in[0], at), up = mx8i_read_element(&b->forward.in[1], at);
        double sigmoid = 1 / (1 + exp(-gate));
        if (!b->backward) {
            compare(out, &b->call.out[0], at, gate * sigmoid * up, fabs(gate * up));
            continue;
        }
        double dh = mx8i_read_element(&b->call.in[0], at);
        compare(out, &b->call.out[0], at, dh * up * sigmoid * (1 + gate * (1 - sigmoid)), fabs(dh * up));
        compare(out, &b->call.out[1], at, dh * gate * sigmoid, fabs(dh * gate));
    }
    return MX8_OK;
}

/* ---- router TxExk, permute TxDxExk ---- */

static enum mx8_status build_router(struct mx8_bench *b) {
    b->forward.options.top_k = (int32_t)b->dim[2];
    b->forward.n_in = 2; /* no expert bias */
    return mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, b->dim);
}

static enum mx8_status build_router_backward(struct mx8_bench *b) {
    int64_t shape[] = {b->dim[0], b->dim[2]};
    b->call.n_in = 4;
    for (int i = 0; i < 3; i++) b->call.in[i + 1] = b->forward.out[i];
    return mx8i_make_input(b, &b->call.in[0], MX8_F32, 1, 2, shape);
}

/* Forward: each chosen expert is the best that is left. Backward: weights are the chosen sigmoids. */
static enum mx8_status check_router(struct mx8_bench *b, struct mx8_check *out) {
    int64_t E = b->dim[1], k = b->dim[2];
    const int32_t *index = b->forward.out[1].data;
    out->against = in_double;
    for (int64_t s = 0; s < SAMPLES && b->dim[0] > 0; s++) {
        int64_t t = pick(b, b->dim[0]);
        if (b->backward) {
            for (int64_t j = 0; j < k; j++) {
                double p = mx8i_read_element(&b->call.in[1], t * E + index[t * k + j]);
                double expected = mx8i_read_element(&b->call.in[0], t * k + j) * p * (1 - p);
                compare(out, &b->call.out[0], t * E + index[t * k + j], expected, fabs(expected));
            }
            continue;
        }
        for (int64_t j = 0; j < k; j++) {
            int64_t best = -1;
            for (int64_t e = 0; e < E; e++) {
                int taken = 0;
                for (int64_t before = 0; before < j; before++) taken |= index[t * k + before] == e;
                double score = mx8i_read_element(&b->call.out[0], t * E + e);
                if (!taken && (best < 0 || score > mx8i_read_element(&b->call.out[0], t * E + best))) best = e;
            }
            out->compared++;
            out->wrong += index[t * k + j] != best;
            double p = 1 / (1 + exp(-mx8i_read_element(&b->call.in[0], t * E + best)));
            compare(out, &b->call.out[2], t * k + j, p, 1);
        }
    }
    return MX8_OK;
}

/* The routing of random logits, by the router itself: order and positions. */
static enum mx8_status make_routing(struct mx8_bench *b, struct mx8_tensor *order, struct mx8_tensor *positions) {
    struct mx8_op_call route = {.n_in = 2, .options = {.top_k = (int32_t)b->dim[3]}};
    const struct mx8_op *router = mx8_find_op("router");
    int64_t logits[] = {b->dim[0], b->dim[2]};
    MX8_TRY(mx8i_make_input(b, &route.in[0], MX8_F32, 1, 2, logits));
    MX8_TRY(mx8_infer_op(router, 0, &route));
    for (int32_t i = 0; i < route.n_out; i++) {
        route.out[i].data = mx8i_take_block(b, (size_t)mx8_count_elements(&route.out[i]) * sizeof(float));
        if (!route.out[i].data) return MX8_OUT_OF_MEMORY;
    }
    route.workspace = mx8i_take_block(b, route.workspace_size);
    MX8_TRY(mx8_run_op(b->ctx, router, 0, &route));
    *order = route.out[3];
    *positions = route.out[4];
    b->forward.options.top_k = route.options.top_k;
    return MX8_OK;
}

static enum mx8_status build_permute(struct mx8_bench *b) {
    b->forward.n_in = 4; /* no weights */
    MX8_TRY(make_routing(b, &b->forward.in[1], &b->forward.in[2]));
    return mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, b->dim);
}

static enum mx8_status build_combine(struct mx8_bench *b) {
    int64_t rows[] = {b->dim[0] * b->dim[3], b->dim[1]};
    b->forward.n_in = 5; /* no weights, nothing to add to */
    MX8_TRY(make_routing(b, &b->forward.in[1], &b->forward.in[2]));
    return mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 2, rows);
}

static enum mx8_status check_combine(struct mx8_bench *b, struct mx8_check *out) {
    const int32_t *position = b->forward.in[2].data;
    int64_t D = b->dim[1], k = b->dim[3];
    out->against = in_double;
    for (int64_t s = 0; s < SAMPLES && b->dim[0] > 0; s++) {
        int64_t t = pick(b, b->dim[0]);
        for (int64_t i = 0; i < D; i++) {
            double sum = 0, parts = 0;
            for (int64_t j = 0; j < k; j++) {
                double part = mx8i_read_element(&b->call.in[0], position[t * k + j] * D + i);
                sum += part;
                parts += fabs(part);
            }
            compare(out, &b->call.out[0], t * D + i, sum, parts);
        }
    }
    return MX8_OK;
}

static enum mx8_status check_permute(struct mx8_bench *b, struct mx8_check *out) {
    const int32_t *order = b->forward.in[1].data;
    size_t line = (size_t)b->dim[1] * mx8_get_dtype_size(b->dtype);
    const char *x = b->call.in[0].data, *rows = b->call.out[0].data;
    out->against = "the rows it should have moved";
    for (int64_t p = 0; p < b->dim[0] * b->dim[3]; p++)
        mx8i_compare_bytes(out, rows + (size_t)p * line, x + (size_t)(order[p] / b->dim[3]) * line, line);
    return MX8_OK;
}

const struct mx8_problem mx8i_layer_problems[] = {
    {.name = "attention",
        .shape = "BxSxHxKVxd",
        .example = "2x512xH8xKV2xd64",
        .has_backward = 1,
        .build = mx8i_build_attention,
        .build_backward = mx8i_build_attention_backward,
        .check = mx8i_check_attention,
        .count_flops = mx8i_count_attention_flops},
    {.name = "lm_head_loss",
        .shape = "TxDxV",
        .example = "1024x512xV2048",
        .has_backward = 1,
        .build = mx8i_build_loss,
        .build_backward = mx8i_build_loss_backward,
        .check = mx8i_check_loss,
        .count_flops = mx8i_count_loss_flops},
    {.name = "rmsnorm",
        .shape = "TxD",
        .example = "8192x1024",
        .has_backward = 1,
        .build = build_rmsnorm,
        .build_backward = build_rmsnorm_backward,
        .check = check_rmsnorm},
    {.name = "swiglu",
        .shape = "MxF",
        .example = "8192x1024",
        .has_backward = 1,
        .build = build_swiglu,
        .build_backward = build_swiglu_backward,
        .check = check_swiglu},
    {.name = "router",
        .shape = "TxExk",
        .example = "8192xE16xk2",
        .has_backward = 1,
        .build = build_router,
        .build_backward = build_router_backward,
        .check = check_router},
    {.name = "combine",
        .shape = "TxDxExk",
        .example = "8192x1024xE16xk2",
        .build = build_combine,
        .check = check_combine},
    {.name = "permute",
        .shape = "TxDxExk",
        .example = "8192x1024xE16xk2",
        .build = build_permute,
        .check = check_permute},
    {0},
};
