/* Norms, column sums, RoPE and activations on CUDA and on the CPU, job by job. What only moves or
 * rounds single products and sums must agree to the bit; sums in another order and exponentials within f32 rounding,
 * bf16 results within a unit. */
#include "model_pairs.h"

/* ---- norm ---- */

static const struct {
    int64_t T, D;
} norm_shapes[] = {
    {0, 64},
    {1, 1},
    {1, 65},
    {3, 32},
    {37, 65},
    {33, 2880},
    {17, 5120},
    {700, 128},
    {3, 8192},
    {2, 16392},
    {2, 33000},
    {5, 4099},
};

static void test_rmsnorm(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(norm_shapes) * 8; c++) {
        const int64_t T = norm_shapes[c / 8].T, D = norm_shapes[c / 8].D;
        const int32_t dtype = dtypes[c & 1], w_dtype = dtypes[c >> 1 & 1], has_add = c >> 2 & 1;
        const char *what =
            describe("T %d, D %d, add %d, w %s", (int)T, (int)D, (int)has_add, mx8_get_dtype_name(w_dtype));
        begin_case();
        struct pair *x = make_normal(dtype, T * D, 2), *w = make_normal(w_dtype, D, 1), *y = make_output(dtype, T * D);
        struct pair *rstd = make_output(MX8_F32, T), *add = has_add ? make_normal(dtype, T * D, 1) : NULL;
        struct pair *sum = has_add ? make_output(dtype, T * D) : NULL;
        struct mx8_rmsnorm_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_rmsnorm_job){T, D, dtype, w_dtype, 1e-5f, side_of(x, s), side_of(add, s), side_of(w, s),
                side_of(y, s), side_of(sum, s), side_of(rstd, s)};
        const double rounding = 2e-6 + 3e-10 * (double)D; /* the CPU's few lanes add up long rows */
        RUN(rmsnorm, &j[side]);
        CLOSE(what, y, rounding, 1e-7);
        CLOSE(what, rstd, rounding, 0);
        EXACT(what, sum);
        if (!has_add) continue;
        for (int s = CPU; s < SIDES; s++) j[s].sum = side_of(x, s); /* in place */
        RUN(rmsnorm, &j[side]);
        CLOSE(what, y, rounding, 1e-7);
        EXACT(what, x);
    }
}

static void test_rmsnorm_backward(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(norm_shapes) * 8; c++) {
        const int64_t T = norm_shapes[c / 8].T, D = norm_shapes[c / 8].D;
        const int32_t dtype = dtypes[c & 1], w_dtype = dtypes[c >> 1 & 1], more = c >> 2 & 1;
        const char *what = describe("T %d, D %d, dres and accumulate %d", (int)T, (int)D, (int)more);
        begin_case();
        struct pair *x = make_normal(dtype, T * D, 2), *w = make_normal(w_dtype, D, 1),
                    *dy = make_normal(dtype, T * D, 1);
        struct pair *rstd = make_output(MX8_F32, T), *dw = make_normal(MX8_F32, D, 1),
                    *dx = make_normal(dtype, T * D, 1);
        for (int64_t t = 0; t < T; t++) set_value(rstd, t, 0.4 + 0.01 * (double)(t % 17));
        struct mx8_rmsnorm_backward_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_rmsnorm_backward_job){T, D, dtype, w_dtype, side_of(dy, s), side_of(x, s), side_of(w, s),
                more ? side_of(dx, s) : NULL, side_of(rstd, s), side_of(dx, s), side_of(dw, s), more};
        RUN(rmsnorm_backward, &j[side]);
        CLOSE(what, dx, 2e-6, 1e-5);
        CLOSE(what, dw, 4e-6, 2e-5 + 1e-6 * sqrt((double)T));
        for (int s = CPU; s < SIDES; s++) j[s].dx = NULL; /* dw alone */
        RUN(rmsnorm_backward, &j[side]);
        CLOSE(what, dw, 4e-6, 2e-5 + 1e-6 * sqrt((double)T));
    }
}

static void test_colsum(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct {
        int64_t M, N, gap;
        int32_t n_groups, ends[3];
    } shapes[] = {
        {0, 7, 0, 0, {0}},
        {1, 1, 0, 0, {0}},
        {33, 65, 3, 0, {0}},
        {1000, 264, 8, 0, {0}},
        {5000, 31, 0, 3, {7, 7, 4099}},
        {700, 2880, 0, 2, {0, 0, 0}},
        {20000, 8, 0, 0, {0}},
    };
    for (int c = 0; c < COUNT(shapes) * 4; c++) {
        const int64_t M = shapes[c / 4].M, N = shapes[c / 4].N, ls = N + shapes[c / 4].gap;
        const int32_t dtype = dtypes[c & 1], accumulate = c >> 1 & 1, n_groups = shapes[c / 4].n_groups;
        const char *what = describe("M %d, N %d, accumulate %d", (int)M, (int)N, (int)accumulate);
        begin_case();
        struct pair *x = make_normal(dtype, M * ls, 1), *out = make_normal(MX8_F32, N, 1),
                    *ends = n_groups ? make_output(MX8_I32, n_groups) : NULL;
        for (int g = 0; g < n_groups; g++) set_value(ends, g, shapes[c / 4].ends[g]);
        struct mx8_colsum_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_colsum_job){
                side_of(out, s), side_of(x, s), dtype, M, N, ls, accumulate, side_of(ends, s), n_groups};
        RUN(colsum, &j[side]);
        CLOSE(what, out, 4e-6, 1e-5 + 2e-6 * sqrt((double)M));
    }
}

/* ---- rope, swiglu ---- */

static void test_rope(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct {
        int64_t T, H, d, S, gap;
    } shapes[] = {
        {0, 1, 8, 4, 0},
        {1, 1, 2, 1, 0},
        {12, 3, 6, 4, 1},
        {40, 5, 64, 8, 0},
        {66, 40, 128, 33, 8},
        {9, 70, 96, 9, 5},
    };
    for (int c = 0; c < COUNT(shapes) * 8; c++) {
        const int64_t T = shapes[c / 8].T, H = shapes[c / 8].H, d = shapes[c / 8].d, S = shapes[c / 8].S,
                      ls = H * d + shapes[c / 8].gap;
        const int32_t dtype = dtypes[c & 1], inverse = c >> 1 & 1, in_place = c >> 2 & 1;
        const char *what =
            describe("T %d, H %d, d %d, inverse %d, in place %d", (int)T, (int)H, (int)d, (int)inverse, (int)in_place);
        begin_case();
        struct pair *x = make_normal(dtype, T * ls, 1), *y = in_place ? x : make_output(dtype, T * H * d),
                    *table = make_normal(MX8_F32, S * d, 1);
        struct mx8_rope_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_rope_job){
                T, H, d, S, dtype, inverse, side_of(x, s), side_of(y, s), ls, in_place ? ls : H * d, side_of(table, s)};
        RUN(rope, &j[side]);
        EXACT(what, y);
    }
}

static void test_swiglu(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct {
        int64_t M, F, gap;
    } shapes[] = {{0, 8, 0}, {1, 1, 0}, {7, 65, 0}, {33, 2880, 8}, {5, 8192, 0}, {9, 5000, 1}};
    for (int c = 0; c < COUNT(shapes) * 2; c++) {
        const int64_t M = shapes[c / 2].M, F = shapes[c / 2].F, ls = 2 * F + shapes[c / 2].gap;
        const int32_t dtype = dtypes[c & 1];
        const char *what = describe("M %d, F %d", (int)M, (int)F);
        begin_case();
        struct pair *x = make_normal(dtype, M * ls, 3), *h = make_output(dtype, M * F),
                    *dh = make_normal(dtype, M * F, 1);
        if (M > 1) set_value(x, 0, -200);
        struct mx8_swiglu_job j[SIDES];
        for (int s = CPU; s < SIDES; s++) {
            char *gate = side_of(x, s), *up = gate + (size_t)F * mx8_get_dtype_size(dtype);
            j[s] = (struct mx8_swiglu_job){
                M, F, dtype, gate, up, side_of(h, s), side_of(dh, s), gate, up, ls, ls, F, F, ls, ls};
        }
        RUN(swiglu, &j[side]);
        CLOSE(what, h, 2e-6, 1e-30);
        RUN(swiglu_backward, &j[side]); /* in place */
        CLOSE(what, x, 5e-6, 1e-6);
    }
}

static void test_clamp(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const int64_t sizes[] = {0, 1, 7, 8, 65, 4096, 100003};
    for (int c = 0; c < COUNT(sizes) * 4; c++) {
        const int64_t n = sizes[c / 4];
        const int32_t dtype = dtypes[c & 1], in_place = c >> 1 & 1;
        const char *what = describe("n %d, in place %d", (int)n, (int)in_place);
        begin_case();
        struct pair *x = make_normal(dtype, n, 2), *dy = make_normal(dtype, n, 1);
        struct pair *y = in_place ? x : make_output(dtype, n), *dx = in_place ? dy : make_output(dtype, n);
        if (n > 7) set_value(x, 5, 1.5), set_value(x, 6, -1.5); /* on the limit */
        struct mx8_clamp_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_clamp_job){
                n, dtype, 1.5f, side_of(x, s), side_of(y, s), side_of(dy, s), side_of(dx, s)};
        RUN(clamp_backward, &j[side]);
        EXACT(what, dx);
        RUN(clamp, &j[side]);
        EXACT(what, y);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cuda_unit_test(test_rmsnorm),
        cuda_unit_test(test_rmsnorm_backward),
        cuda_unit_test(test_colsum),
        cuda_unit_test(test_rope),
        cuda_unit_test(test_swiglu),
        cuda_unit_test(test_clamp),
    };
    return cmocka_run_group_tests_name("cuda model kernels", tests, open_both, close_both);
}
