/* A profile: what it counts and times, that it changes nothing, and that it goes away without a trace. */
#include "test.h"
#include "kernels/profile.h"

struct bench {
    struct mx8_exec exec;
    float a[4096], b[4096], c[4096];
};

static struct bench *open_bench(void) {
    static struct bench bench;
    char reason[160];
    bench = (struct bench){.exec = {.threads = 1, .ordinal = -1}};
    assert_ok(mx8i_find_cpu_kernels("scalar", &bench.exec.k, reason, sizeof reason));
    bench.exec.scratch_bytes = bench.exec.k->scratch_size(1);
    bench.exec.scratch = aligned_alloc(4096, (bench.exec.scratch_bytes + 4095) / 4096 * 4096);
    for (int i = 0; i < 4096; i++) bench.a[i] = bench.b[i] = (float)(i % 7);
    return &bench;
}

static struct mx8_gemm_job make_product(struct bench *b) {
    return (struct mx8_gemm_job){.mode = MX8_GEMM_DENSE, .M = 64, .N = 64, .K = 64, .c = b->c, .c_dtype = MX8_F32,
        .c_ls = 64, .a = {.data = b->a, .dtype = MX8_F32, .ls = 64, .ks = 1},
        .b = {.data = b->b, .dtype = MX8_F32, .ls = 64, .ks = 1}};
}

static void run_calls(struct bench *b) {
    struct mx8_gemm_job product = make_product(b);
    assert_ok(b->exec.k->gemm(&b->exec, &product));
    assert_ok(b->exec.k->gemm(&b->exec, &product));
    assert_ok(b->exec.k->add(&b->exec, b->c, b->c, b->a, MX8_F32, 4096));
}

static const struct mx8_profile_row *find_row(const struct mx8_profile *p, const char *kernel, const char *detail) {
    int64_t count;
    const struct mx8_profile_row *row = mx8i_get_profile_rows(p, &count), *found = NULL;
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(row[i].kernel, kernel) || strcmp(row[i].label.detail, detail)) continue;
        assert_null(found); /* one row for all calls */
        found = &row[i];
    }
    return found;
}

static void test_rows(void **state) {
    (void)state;
    struct bench *b = open_bench();
    const struct mx8_kernels *plain = b->exec.k;
    struct mx8_profile *p = NULL, *second = NULL;
    float want[4096];
    run_calls(b);
    memcpy(want, b->c, sizeof want);

    assert_ok(mx8i_open_profile(&b->exec, &p));
    assert_int_equal(mx8i_open_profile(&b->exec, &second), MX8_INVALID_ARGUMENT);
    run_calls(b); /* dropped */
    assert_ok(mx8i_collect_profile(p, &b->exec, 1));
    mx8i_label_profile(p, &(struct mx8_profile_label){"forward", 3, "linear", 0, "wq"});
    run_calls(b);
    mx8i_label_profile(p, &(struct mx8_profile_label){"forward", 3, "linear", 0, "wk"});
    run_calls(b);
    run_calls(b);
    assert_ok(mx8i_collect_profile(p, &b->exec, 0));
    assert_memory_equal(b->c, want, sizeof want);

    const struct mx8_profile_row *wq = find_row(p, "product f32", "wq"), *wk = find_row(p, "product f32", "wk");
    const struct mx8_profile_row *add = find_row(p, "add", "wk");
    assert_non_null(wq);
    assert_non_null(wk);
    assert_non_null(add);
    assert_int_equal(find_row(p, "add", "")->calls, 0); /* dropped */
    assert_true(wq->calls == 2 && wk->calls == 4 && add->calls == 2);
    assert_true(wq->flops == 2 * 2.0 * 64 * 64 * 64 && wk->flops == 2 * wq->flops);
    assert_true(add->bytes == 2 * 3 * 4 * 4096.0 && add->unit == MX8_PROFILE_MEMORY && wq->unit == MX8_PROFILE_F32);
    assert_true(wq->seconds > 0 && add->seconds > 0 && wq->seconds < 60);
    assert_true(wq->label.layer == 3 && !strcmp(wq->label.op, "linear"));

    struct mx8_exec untimed = mx8i_get_untimed_exec(p, &b->exec);
    assert_ptr_equal(untimed.k, plain);
    mx8i_close_profile(&b->exec, p);
    mx8i_close_profile(&b->exec, NULL);
    assert_ptr_equal(b->exec.k, plain);
    assert_null(b->exec.profile);
    free(b->exec.scratch);
}

/* More calls than the first allocation has room for. */
static void test_growth(void **state) {
    (void)state;
    struct bench *b = open_bench();
    struct mx8_profile *p = NULL;
    assert_ok(mx8i_open_profile(&b->exec, &p));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 1500; i++) assert_ok(b->exec.k->fill(&b->exec, b->c, i, 64));
        assert_ok(mx8i_collect_profile(p, &b->exec, 0));
    }
    const struct mx8_profile_row *fill = find_row(p, "fill", "");
    assert_true(fill && fill->calls == 3000 && fill->bytes == 3000 * 64.0 && fill->seconds > 0);
    mx8i_close_profile(&b->exec, p);
    free(b->exec.scratch);
}

static void test_timer(void **state) {
    (void)state;
    struct bench *b = open_bench();
    void *timer = NULL;
    double seconds[1000];
    for (int i = 0; i < 1000; i++) assert_ok(b->exec.k->mark(&b->exec, &timer, i));
    assert_ok(b->exec.k->read_marks(&b->exec, timer, 1000, seconds));
    for (int i = 1; i < 1000; i++) assert_true(seconds[0] == 0 && seconds[i] >= seconds[i - 1]);
    assert_int_equal(b->exec.k->read_marks(&b->exec, timer, 100000, seconds), MX8_INVALID_ARGUMENT);
    assert_int_equal(b->exec.k->read_marks(&b->exec, NULL, 1, seconds), MX8_INVALID_ARGUMENT);
    assert_ok(b->exec.k->read_marks(&b->exec, NULL, 0, seconds));
    b->exec.k->release_timer(&b->exec, timer);
    b->exec.k->release_timer(&b->exec, NULL);
    free(b->exec.scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_timer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
