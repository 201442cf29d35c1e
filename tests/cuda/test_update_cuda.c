/* The optimizer, elementwise kernels, sums, timers and graphs on CUDA and on the CPU. What only moves or
 * rounds single products and sums must agree to the bit; sums in another order and exponentials within f32 rounding,
 * bf16 results within a unit. */
#include "model_pairs.h"

static void test_adamw(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(lengths) * 8; c++) {
        const int64_t n = lengths[c / 8];
        const int32_t copy_dtype = dtypes[c & 1], more = c >> 1 & 1, moment_dtype = dtypes[c >> 2 & 1];
        const char *what = describe(
            "n %d, moments in %s, grad_scale and copy %d", (int)n, mx8_get_dtype_name(moment_dtype), (int)more);
        begin_case();
        struct pair *master = make_normal(MX8_F32, n, 1), *m = make_normal(moment_dtype, n, 0.1),
                    *v = make_normal(moment_dtype, n, 0.1), *grad = make_normal(MX8_F32, n, 1);
        struct pair *grad_scale = more ? make_normal(MX8_F32, 1, 1) : NULL,
                    *copy = more ? make_output(copy_dtype, n) : NULL;
        for (int64_t i = 0; i < n; i++) set_value(v, i, fabs(get_value(v, v->at[CPU], i)));
        struct pair *scalars = make_output(MX8_F32, 4); /* struct mx8_adamw_state: the same four numbers from memory */
        for (int i = 0; i < 4; i++) set_value(scalars, i, (double)(float[]){3e-4f, 0.271f, 0.142625f, 1.2345f}[i]);
        uint32_t rounding;
        memcpy(&rounding, (float *)scalars->at[CPU] + 3, sizeof rounding);
        struct mx8_adamw_job j[SIDES];
        for (int s = CPU; s < SIDES; s++) {
            j[s] = (struct mx8_adamw_job){.n = n, .lr = 3e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                .weight_decay = 0.1f, .bias1 = 0.271f, .bias2 = 0.142625f, .grad_scale = side_of(grad_scale, s),
                .master = side_of(master, s), .m = side_of(m, s), .v = side_of(v, s), .grad = side_of(grad, s),
                .copy = side_of(copy, s), .copy_dtype = copy_dtype, .moment_dtype = moment_dtype, .rounding = rounding,
                .first = ((uint64_t)1 << 32) - 21}; /* the low word wraps inside */
            if (!more) continue;
            j[s].state = side_of(scalars, s);
            j[s].lr = j[s].bias1 = j[s].bias2 = NAN;
            j[s].rounding = 0;
        }
        RUN(adamw, &j[side]);
        EXACT(what, master);
        EXACT(what, m);
        EXACT(what, v);
        EXACT(what, copy);
        if (n < 3) continue;
        for (int s = CPU; s < SIDES; s++) { /* off the wide packs' boundary */
            j[s].n = n - 1;
            j[s].first++;
            j[s].master++;
            j[s].grad++;
            j[s].m = (uint8_t *)j[s].m + mx8_get_dtype_size(moment_dtype);
            j[s].v = (uint8_t *)j[s].v + mx8_get_dtype_size(moment_dtype);
            if (j[s].copy) j[s].copy = (uint8_t *)j[s].copy + mx8_get_dtype_size(copy_dtype);
        }
        RUN(adamw, &j[side]);
        EXACT(what, master);
        EXACT(what, m);
        EXACT(what, v);
        EXACT(what, copy);
    }
}

static void test_fill_normal(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(lengths) * 3; c++) {
        const int64_t n = lengths[c / 3];
        const char *what = describe("n %d, %s", (int)n, c % 3 ? "truncated" : "whole");
        begin_case();
        struct pair *out = make_output(MX8_F32, n);
        struct mx8_normal_job j[SIDES];
        for (int s = CPU; s < SIDES; s++) /* low 1e-12: the far tail */
            j[s] = (struct mx8_normal_job){
                side_of(out, s), n, 42, 0x123456789ABCDEFull, ((uint64_t)1 << 33) - 7, 0.02, 0.00135, 1 - 2 * 0.00135};
        for (int s = CPU; s < SIDES; s++) {
            if (c % 3 == 0) j[s].low = 0, j[s].width = 1;
            if (c % 3 == 1) j[s].low = 0, j[s].width = 1e-9;
        }
        RUN(fill_normal, &j[side]);
        EXACT(what, out);
    }
}

/* Marks are in order, and time passes between them. */
static void test_marks(void **state) {
    (void)state;
    NEEDS_CUDA();
    begin_case();
    const struct mx8_kernels *k = cuda.exec.k;
    enum { MARKS = 600, BYTES = 1 << 26 };
    void *timer = NULL, *space = make_buffer(BYTES, 0);
    double seconds[MARKS];
    for (int i = 0; i < MARKS; i++) {
        assert_ok(k->mark(&cuda.exec, &timer, i));
        assert_ok(k->fill(&cuda.exec, space, i, BYTES));
    }
    assert_ok(k->read_marks(&cuda.exec, timer, MARKS, seconds));
    assert_true(seconds[0] == 0);
    for (int i = 1; i < MARKS; i++) assert_true(seconds[i] > seconds[i - 1]);
    assert_int_equal(k->read_marks(&cuda.exec, timer, 100000, seconds), MX8_INVALID_ARGUMENT);
    k->release_timer(&cuda.exec, timer);
    k->release_timer(&cuda.exec, NULL);
}

/* A recorded sum of squares runs when it is launched, as often as it is. */
static void test_graph(void **state) {
    (void)state;
    NEEDS_CUDA();
    begin_case();
    const struct mx8_kernels *k = cuda.exec.k;
    struct mx8_exec x = cuda.exec;
    void *graph = NULL;
    enum { N = 1000 };
    float host[N];
    for (int i = 0; i < N; i++) host[i] = 2;
    float *a = make_buffer(sizeof host, 0);
    double *sum = make_buffer(sizeof *sum, 0), got = -1;
    assert_int_equal(k->begin_graph(&x), MX8_UNSUPPORTED); /* the default stream */
    assert_ok(k->synchronize(&x)); /* the other stream does not wait for this one */
    assert_ok(k->make_stream(&x, &x.stream));
    assert_ok(k->upload(&x, a, host, sizeof host));
    assert_ok(k->synchronize(&x));
    assert_ok(k->begin_graph(&x));
    assert_ok(k->fill(&x, sum, 0, sizeof *sum));
    assert_ok(k->sum_squares(&x, sum, a, N));
    assert_ok(k->end_graph(&x, &graph));
    assert_ok(k->download(&x, &got, sum, sizeof got));
    assert_true(got == 0);
    for (int i = 0; i < 3; i++) {
        assert_ok(k->launch_graph(&x, graph));
        assert_ok(k->download(&x, &got, sum, sizeof got));
        assert_true(got == 4.0 * N);
    }
    k->release_graph(&x, graph);
    k->release_graph(&x, NULL);
}

static void test_elementwise(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(lengths) * 4; c++) {
        const int64_t n = lengths[c / 4];
        const int32_t dtype = dtypes[c & 1], other = dtypes[c >> 1 & 1];
        const char *what = describe("n %d", (int)n);
        begin_case();
        struct pair *a = make_normal(dtype, n, 1), *b = make_normal(dtype, n, 1), *y = make_output(dtype, n),
                    *as = make_output(other, n);
        RUN(add, side_of(y, side), side_of(a, side), side_of(b, side), dtype, n);
        EXACT(what, y);
        RUN(add, side_of(a, side), side_of(a, side), side_of(b, side), dtype, n);
        EXACT(what, a);
        RUN(cast, side_of(as, side), other, side_of(a, side), dtype, n);
        EXACT(what, as);
        if (dtype != MX8_F32) continue;
        struct pair *factor = make_normal(MX8_F32, 1, 1);
        RUN(scale, side_of(a, side), side_of(factor, side), 0, n);
        EXACT(what, a);
        RUN(scale, side_of(a, side), NULL, 0.3f, n);
        EXACT(what, a);
        if (n < 2) continue;
        RUN(scale, (float *)side_of(a, side) + 1, NULL, 3.0f, n - 1); /* off the 16-byte boundary */
        EXACT(what, a);
    }
}

static void test_sums(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(lengths) * 2; c++) {
        const int64_t n = lengths[c / 2], shift = c & 1 && n > 0;
        const char *what = describe("n %d, shift %d", (int)n, (int)shift);
        begin_case();
        struct pair *a = make_normal(MX8_F32, n, 1e20), *squares = make_normal(MX8_F64, 1, 1),
                    *total = make_normal(MX8_F64, 1, 1);
        struct pair *factor = make_output(MX8_F32, 1), *norm = make_output(MX8_F32, 1);
        RUN(sum_squares, side_of(squares, side), (float *)side_of(a, side) + shift, n - shift);
        CLOSE(what, squares, 1e-13, 0);
        RUN(sum, side_of(total, side), (float *)side_of(a, side) + shift, n - shift);
        CLOSE(what, total, 1e-12, 1e20 * 1e-12);
        for (double limit = 1; limit < 1e25; limit *= 1e24) {
            RUN(clip_factor, side_of(factor, side), side_of(norm, side), side_of(squares, side), (float)limit);
            CLOSE(what, factor, 2e-7, 0);
            CLOSE(what, norm, 2e-7, 0);
        }
        set_value(squares, 0, NAN);
        RUN(clip_factor, side_of(factor, side), side_of(norm, side), side_of(squares, side), 1.0f);
        EXACT(what, factor);
    }
}

static void test_check_finite(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(lengths) * 2; c++) {
        const int64_t n = lengths[c / 2];
        const int32_t dtype = dtypes[c & 1];
        static const double values[] = {3.3e38, NAN, INFINITY, -INFINITY};
        for (int v = 0; v < COUNT(values) && n > 0; v++) {
            begin_case();
            struct pair *a = make_normal(dtype, n, 1), *flag = make_integers(1, 0, 1);
            set_value(a, n * v / 4, values[v]);
            RUN(check_finite, side_of(flag, side), side_of(a, side), dtype, n);
            EXACT(describe("n %d, value %g", (int)n, values[v]), flag);
            assert_int_equal((int)get_value(flag, flag->got, 0), v > 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cuda_unit_test(test_adamw),
        cuda_unit_test(test_fill_normal),
        cuda_unit_test(test_marks),
        cuda_unit_test(test_graph),
        cuda_unit_test(test_elementwise),
        cuda_unit_test(test_sums),
        cuda_unit_test(test_check_finite),
    };
    return cmocka_run_group_tests_name("cuda updates", tests, open_both, close_both);
}
