/* RMSNorm and rope against double references; rmsnorm's gradient against central differences as well. */
#include "model_testing.h"

struct norm_case { int64_t T, D; int add, sum, in_place; };
static const struct norm_case norm_cases[] = {
    {0, 8, 0, 0, 0}, {1, 1, 0, 0, 0},  {1, 8, 1, 1, 0},   {33, 65, 0, 0, 0},   {33, 65, 1, 1, 0},
    {33, 65, 1, 0, 0}, {7, 64, 1, 1, 1}, {300, 128, 0, 0, 1}, {2, 1000, 1, 1, 1}, {257, 31, 1, 1, 0},
};
enum { N_NORM_CASES = sizeof norm_cases / sizeof *norm_cases };

static double reference_rstd(const double *x, int64_t D, double eps) {
    double squares = 0;
    for (int64_t i = 0; i < D; i++) squares += x[i] * x[i];
    return 1.0 / sqrt(squares / (double)D + eps);
}

/* x + add as stored: rounded to dtype. */
static double *norm_inputs(const void *x, const void *add, int32_t dtype, int64_t n) {
    double *out = make_reference(n);
    for (int64_t i = 0; i < n; i++) {
        out[i] = value_at(x, dtype, i);
        if (!add) continue;
        float sum = (float)out[i] + (float)value_at(add, dtype, i);
        out[i] = (double)(dtype == MX8_BF16 ? mx8_decode_bf16(mx8_encode_bf16(sum)) : sum);
    }
    return out;
}

static void check_norm(const struct mx8_kernels *k, const struct norm_case *c, int32_t dtype, int32_t w_dtype) {
    int64_t n = c->T * c->D;
    size_t e = mx8_get_dtype_size(dtype);
    void *x = make_normal(dtype, n, 1, 2.0), *add = c->add ? make_normal(dtype, n, 2, 1.0) : NULL;
    void *w = make_normal(w_dtype, c->D, 3, 1.0), *sum = c->sum ? make_zeros(dtype, n) : NULL;
    void *y = make_zeros(dtype, n);
    float *rstd = make_zeros(MX8_F32, c->T);
    double *s = norm_inputs(x, add, dtype, n), *want = make_reference(n), *want_rstd = make_reference(c->T);
    for (int64_t t = 0; t < c->T; t++) {
        want_rstd[t] = reference_rstd(s + t * c->D, c->D, 1e-5);
        for (int64_t i = 0; i < c->D; i++) {
            want[t * c->D + i] = s[t * c->D + i] * want_rstd[t] * value_at(w, w_dtype, i);
        }
    }
    /* in place: the sum replaces x where it is asked for, else y does */
    void *sum_out = c->in_place && c->sum ? x : sum, *y_out = c->in_place && !c->sum ? x : y;
    struct mx8_rmsnorm_job job = {.T = c->T, .D = c->D, .dtype = dtype, .w_dtype = w_dtype, .eps = 1e-5f, .x = x,
        .add = add, .w = w, .y = y_out, .sum = sum_out, .rstd = rstd};
    struct replay r;
    begin_replay(&r, k, (struct span[]){{x, (size_t)n * e}, {y, (size_t)n * e}, {rstd, (size_t)c->T * 4}}, 3);
    while (next_replay(&r)) assert_ok(k->rmsnorm(&r.exec, &job));
    check_values("rmsnorm y", y_out, dtype, want, n, 2e-6, 1e-6);
    check_values("rmsnorm rstd", rstd, MX8_F32, want_rstd, c->T, 2e-6, 0);
    for (int64_t i = 0; sum_out && i < n; i++) assert_true(value_at(sum_out, dtype, i) == s[i]);
    void *owned[] = {x, add, w, sum, y, rstd, s, want, want_rstd};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void rmsnorm_forward(const struct mx8_kernels *k) {
    for (int i = 0; i < N_NORM_CASES; i++) {
        for (int a = 0; a < 4; a++) check_norm(k, &norm_cases[i], both_dtypes[a / 2], both_dtypes[a % 2]);
    }
}

/* dx and dw in double, without the residual. */
static void reference_norm_backward(const double *x, const double *dy, const double *w, int64_t T, int64_t D,
    double eps, double *dx, double *dw) {
    for (int64_t t = 0; t < T; t++, x += D, dy += D, dx += D) {
        double rstd = reference_rstd(x, D, eps), dot = 0;
        for (int64_t i = 0; i < D; i++) dot += dy[i] * w[i] * x[i];
        for (int64_t i = 0; i < D; i++) {
            dx[i] = rstd * (dy[i] * w[i] - x[i] * rstd * rstd * dot / (double)D);
            dw[i] += dy[i] * x[i] * rstd;
        }
    }
}

static double *widened(const void *data, int32_t dtype, int64_t n) {
    double *out = make_reference(n);
    for (int64_t i = 0; i < n; i++) out[i] = value_at(data, dtype, i);
    return out;
}

/* residual: 0 none, 1 of its own, 2 already in dx. */
static void check_norm_backward(const struct mx8_kernels *k, int64_t T, int64_t D, int32_t dtype, int residual,
    int accumulate) {
    int64_t n = T * D;
    void *x = make_normal(dtype, n, 1, 2.0), *dy = make_normal(dtype, n, 2, 1.0), *w = make_normal(MX8_F32, D, 3, 1.0);
    void *dres = make_normal(dtype, n, 4, 1.0), *dx = make_normal(dtype, n, 5, 1.0);
    float *rstd = make_zeros(MX8_F32, T), *dw = make_normal(MX8_F32, D, 6, 1.0);
    double *rx = widened(x, dtype, n), *rdy = widened(dy, dtype, n), *rw = widened(w, MX8_F32, D);
    double *want = make_reference(n), *want_dw = accumulate ? widened(dw, MX8_F32, D) : make_reference(D);
    reference_norm_backward(rx, rdy, rw, T, D, 1e-5, want, want_dw);
    for (int64_t t = 0; t < T; t++) rstd[t] = (float)reference_rstd(rx + t * D, D, 1e-5);
    const void *added = residual == 2 ? dx : residual == 1 ? dres : NULL;
    for (int64_t i = 0; added && i < n; i++) want[i] += value_at(added, dtype, i);
    struct mx8_rmsnorm_backward_job job = {.T = T, .D = D, .dtype = dtype, .w_dtype = MX8_F32, .dy = dy, .x = x, .w = w,
        .dres = added, .rstd = rstd, .dx = dx, .dw = dw, .accumulate = accumulate};
    struct replay r;
    begin_replay(&r, k, (struct span[]){{dx, (size_t)n * mx8_get_dtype_size(dtype)}, {dw, (size_t)D * 4}}, 2);
    while (next_replay(&r)) assert_ok(k->rmsnorm_backward(&r.exec, &job));
    check_values("rmsnorm dx", dx, dtype, want, n, 1e-5, 3e-6);
    check_values("rmsnorm dw", dw, MX8_F32, want_dw, D, 1e-5, 1e-5 * sqrt((double)T + 1));
    void *owned[] = {x, dy, w, dres, dx, rstd, dw, rx, rdy, rw, want, want_dw};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void rmsnorm_backward(const struct mx8_kernels *k) {
    static const int64_t sizes[][2] = {{1, 1}, {1, 65}, {33, 65}, {300, 128}, {513, 40}, {0, 16}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int a = 0; a < 12; a++) {
            check_norm_backward(k, sizes[i][0], sizes[i][1], both_dtypes[a % 2], a / 2 % 3, a / 6);
        }
    }
}

static void test_norm(void **state) {
    (void)state;
    for_every_isa(rmsnorm_forward);
    for_every_isa(rmsnorm_backward);
}

/* The analytic reference itself, against central differences of sum(dy * y). */
static void test_norm_reference_gradient(void **state) {
    (void)state;
    enum { D = 9 };
    double x[D], dy[D], w[D], dx[D] = {0}, dw[D] = {0};
    for (int i = 0; i < D; i++) {
        x[i] = mx8i_random_normal(1, 1, (uint64_t)i);
        dy[i] = mx8i_random_normal(1, 2, (uint64_t)i);
        w[i] = mx8i_random_normal(1, 3, (uint64_t)i);
    }
    reference_norm_backward(x, dy, w, 1, D, 0.1, dx, dw);
    for (int i = 0; i < D; i++) {
        double side[2] = {0, 0}, at = x[i];
        for (int up = 0; up < 2; up++) {
            x[i] = at + (up ? 1e-6 : -1e-6);
            double rstd = reference_rstd(x, D, 0.1);
            for (int c = 0; c < D; c++) side[up] += dy[c] * w[c] * x[c] * rstd;
        }
        x[i] = at;
        assert_true(fabs((side[1] - side[0]) / 2e-6 - dx[i]) < 1e-8);
    }
}

/* ---- rope ---- */

static void check_rope(const struct mx8_kernels *k, int64_t T, int64_t H, int64_t d, int64_t S, int32_t dtype) {
    int64_t ls = H * d + 5, n = T * ls;
    size_t bytes = (size_t)n * mx8_get_dtype_size(dtype);
    void *x = make_normal(dtype, n, 1, 1.0), *y = make_normal(dtype, n, 2, 1.0);
    float *table = make_zeros(MX8_F32, S * d);
    for (int64_t i = 0; i < S * d / 2; i++) {
        double angle = (double)(i / (d / 2)) * pow(100.0, -2.0 * (double)(i % (d / 2)) / (double)d);
        table[2 * i] = (float)cos(angle);
        table[2 * i + 1] = (float)sin(angle);
    }
    for (int inverse = 0; inverse < 2; inverse++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            void *to = in_place ? x : y;
            double *want = widened(to, dtype, n);
            for (int64_t i = 0; i < T * H * d / 2; i++) {
                int64_t t = i / (H * d / 2), at = t * ls + i % (H * d / 2) * 2, p = (t % S * d / 2 + i % (d / 2)) * 2;
                double c = (double)table[p], s = (double)(inverse ? -table[p + 1] : table[p + 1]);
                double x0 = value_at(x, dtype, at), x1 = value_at(x, dtype, at + 1);
                want[at] = x0 * c - x1 * s;
                want[at + 1] = x0 * s + x1 * c;
            }
            struct mx8_rope_job job = {.T = T, .H = H, .d = d, .S = S, .dtype = dtype, .inverse = inverse, .x = x,
                .y = to, .x_ls = ls, .y_ls = ls, .table = table};
            struct replay r;
            begin_replay(&r, k, (struct span[]){{to, bytes}}, 1);
            while (next_replay(&r)) assert_ok(k->rope(&r.exec, &job));
            check_values("rope", to, dtype, want, n, 1e-6, 1e-6);
            free(want);
        }
    }
    free(x);
    free(y);
    free(table);
}

static void rope(const struct mx8_kernels *k) {
    static const int64_t sizes[][4] = {
        {1, 1, 2, 1}, {33, 3, 6, 11}, {64, 4, 64, 32}, {20, 2, 128, 20}, {80, 16, 18, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int a = 0; a < 2; a++) check_rope(k, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], both_dtypes[a]);
    }
}

static void test_rope(void **state) {
    (void)state;
    for_every_isa(rope);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_reference_gradient),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
