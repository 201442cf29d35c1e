/* What memory can do: the ceiling of everything that is bound by it, and operators that are nothing else. */
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "cli/bench.h"

static enum mx8_status build_copy(struct mx8_bench *b) {
    b->call.n_in = b->call.n_out = 1;
    MX8_TRY(mx8i_make_input(b, &b->call.in[0], MX8_F32, 1, 1, b->dim));
    return mx8i_make_input(b, &b->call.out[0], MX8_F32, 0, 1, b->dim);
}

/* Every thread copies a part of its own. */
static enum mx8_status run_copy(struct mx8_bench *b) {
    int32_t threads = b->ctx->exec.threads;
    int64_t n = b->dim[0];
    float *to = b->call.out[0].data;
    const float *from = b->call.in[0].data;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int32_t i = 0; i < threads; i++) {
        int64_t start = n * i / threads, end = n * (i + 1) / threads;
        memcpy(to + start, from + start, (size_t)(end - start) * sizeof *to);
    }
    return MX8_OK;
}

static enum mx8_status check_copy(struct mx8_bench *b, struct mx8_check *out) {
    out->against = "the source";
    mx8i_compare_bytes(out, b->call.out[0].data, b->call.in[0].data, (size_t)b->dim[0] * sizeof(float));
    return MX8_OK;
}

static enum mx8_status build_add(struct mx8_bench *b) {
    b->forward.n_in = 2;
    MX8_TRY(mx8i_make_input(b, &b->forward.in[0], b->dtype, 1, 1, b->dim));
    return mx8i_make_input(b, &b->forward.in[1], b->dtype, 1, 1, b->dim);
}

static enum mx8_status check_add(struct mx8_bench *b, struct mx8_check *out) {
    out->against = "sums in double, rounded once";
    for (int64_t i = 0; i < b->dim[0]; i++) {
        double sum = mx8i_read_element(&b->call.in[0], i) + mx8i_read_element(&b->call.in[1], i);
        mx8i_compare_value(
            out, mx8i_read_element(&b->call.out[0], i), sum, mx8i_get_rounding(b->dtype) * fabs(sum) + 1e-30);
    }
    return MX8_OK;
}

static enum mx8_status build_embedding(struct mx8_bench *b) {
    b->forward.n_in = 2;
    MX8_TRY(mx8i_make_integers(b, &b->forward.in[0], b->dim[1], 1, b->dim));
    return mx8i_make_input(b, &b->forward.in[1], b->dtype, 1, 2, &b->dim[1]);
}

static enum mx8_status check_embedding(struct mx8_bench *b, struct mx8_check *out) {
    const int32_t *token = b->call.in[0].data;
    size_t line = (size_t)b->dim[2] * mx8_get_dtype_size(b->dtype);
    const char *w = b->call.in[1].data, *y = b->call.out[0].data;
    out->against = "the rows of the table";
    for (int64_t t = 0; t < b->dim[0]; t++)
        mx8i_compare_bytes(out, y + (size_t)t * line, w + (size_t)token[t] * line, line);
    return MX8_OK;
}

static double count_embedding_bytes(const struct mx8_bench *b) {
    return 2.0 * (double)b->dim[0] * (double)b->dim[2] * (double)mx8_get_dtype_size(b->dtype);
}

/* in: gradients; out: masters, both moments, bf16 copies. Moments start at zero, so that the first step is known. */
enum { MASTER, FIRST, SECOND, COPY };

static enum mx8_status build_adamw(struct mx8_bench *b) {
    b->call.n_in = 1;
    b->call.n_out = 4;
    MX8_TRY(mx8i_make_input(b, &b->call.in[0], MX8_F32, 1e-3, 1, b->dim));
    for (int i = 0; i < 4; i++)
        MX8_TRY(mx8i_make_input(b, &b->call.out[i], i == COPY ? MX8_BF16 : MX8_F32, 0, 1, b->dim));
    return MX8_OK;
}

static struct mx8_adamw_job make_adamw(struct mx8_bench *b) {
    return (struct mx8_adamw_job){.n = b->dim[0],
        .lr = 1e-3f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .bias1 = 0.1f,
        .bias2 = 0.05f,
        .master = b->call.out[MASTER].data,
        .m = b->call.out[FIRST].data,
        .v = b->call.out[SECOND].data,
        .grad = b->call.in[0].data,
        .copy = b->call.out[COPY].data,
        .copy_dtype = MX8_BF16};
}

static enum mx8_status run_adamw(struct mx8_bench *b) {
    struct mx8_adamw_job j = make_adamw(b);
    return b->ctx->exec.k->adamw(&b->ctx->exec, &j);
}

/* One more step from the state that the timed ones left, in double. Sums of opposite signs may cancel, so the error
 * that is allowed follows the size of their parts. */
static enum mx8_status check_adamw(struct mx8_bench *b, struct mx8_check *out) {
    struct mx8_adamw_job j = make_adamw(b);
    size_t bytes = (size_t)j.n * sizeof(float);
    float *p = mx8i_take_block(b, bytes), *m = mx8i_take_block(b, bytes), *v = mx8i_take_block(b, bytes);
    if (!p || !m || !v) return MX8_OUT_OF_MEMORY;
    memcpy(p, j.master, bytes);
    memcpy(m, j.m, bytes);
    memcpy(v, j.v, bytes);
    MX8_TRY(run_adamw(b));
    out->against = "one step in double";
    for (int64_t i = 0; i < j.n; i++) {
        double g = (double)j.grad[i], b1 = (double)j.beta1, b2 = (double)j.beta2, lr = (double)j.lr;
        double m1 = b1 * (double)m[i] + (1 - b1) * g, v1 = b2 * (double)v[i] + (1 - b2) * g * g;
        double step = lr / (double)j.bias1 * m1 / (sqrt(v1) / sqrt((double)j.bias2) + (double)j.eps);
        double expected = (double)p[i] * (1 - lr * (double)j.weight_decay) - step;
        double parts = fabs((double)p[i]) + lr / (double)j.bias1 * (b1 * fabs((double)m[i]) + (1 - b1) * fabs(g)) /
                                                (sqrt(v1) / sqrt((double)j.bias2) + (double)j.eps);
        mx8i_compare_value(out, (double)j.master[i], expected, 16 * 0x1p-24 * parts + 1e-30);
        out->wrong += ((const uint16_t *)j.copy)[i] != mx8_encode_bf16(j.master[i]);
    }
    return MX8_OK;
}

static double count_adamw_bytes(const struct mx8_bench *b) {
    return (double)b->dim[0] * (4 * sizeof(float) + 3 * sizeof(float) + sizeof(uint16_t));
}

const struct mx8_problem mx8i_memory_problems[] = {
    {.name = "adamw",
        .shape = "N",
        .example = "4194304",
        .build = build_adamw,
        .check = check_adamw,
        .run = run_adamw,
        .count_bytes = count_adamw_bytes},
    {.name = "add", .shape = "N", .example = "16777216", .build = build_add, .check = check_add},
    {.name = "embedding",
        .shape = "TxVxD",
        .example = "8192xV2048x1024",
        .build = build_embedding,
        .check = check_embedding,
        .count_bytes = count_embedding_bytes},
    {.name = "memcpy", .shape = "N", .example = "33554432", .build = build_copy, .check = check_copy, .run = run_copy},
    {0},
};
