/* optimizer.state_dtype=bfloat16: learns as with float32, goes on to the bit after a stop, for any number of threads,
 * and checkpoints of either kind are read by either. */
#include "train/loop_testing.h"
#include <math.h>
#include "train/checkpoint.h"

#define ENABLE  "--checkpoint.enable"
#define FULL    "--checkpoint.last_save_model_only=false"
#define BF16    "--optimizer.state_dtype=bfloat16"
#define BETA2   "--optimizer.beta2=0.999"
#define FORTY   "--training.steps=40"
#define SHORTER "--optimizer.lr=3e-3"

static double get_last_loss(const struct outcome *o) {
    double sum = 0;
    for (int64_t i = o->n - 5; i < o->n; i++) sum += o->step[i].loss / 5;
    return sum;
}

static void test_learns_the_same(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *wide = make_outcome(), *narrow = make_outcome(), *again = make_outcome();
    assert_ok(RUN(wide, &out, 2, BETA2, FORTY, SHORTER));
    assert_ok(RUN(narrow, &out, 2, BETA2, FORTY, SHORTER, BF16));
    assert_ok(RUN(again, &out, 1, BETA2, FORTY, SHORTER, BF16));
    expect_same(narrow, again); /* one thread, the same random bits */
    assert_true(narrow->step[0].loss == wide->step[0].loss && narrow->step[39].loss != wide->step[39].loss);
    const double a = get_last_loss(wide), b = get_last_loss(narrow), start = wide->step[0].loss;
    if (!(a < 0.8 * start && fabs(b - a) < 0.01 * a)) fail_msg("loss %g at the start, then %g and %g", start, a, b);
    free(wide);
    free(narrow);
    free(again);
    remove_folder(&out);
}

static void test_same_bits_after_a_stop(void **state) {
    (void)state;
    struct folder out = make_folder(), parts = make_folder();
    struct outcome *whole = make_outcome(), *first = make_outcome(), *second = make_outcome();
    assert_ok(RUN(whole, &out, 1, ENABLE, BF16, MXFP8));
    first->stop_after = 3;
    assert_ok(RUN(first, &parts, 2, ENABLE, BF16, MXFP8));
    assert_ok(RUN(second, &parts, 1, ENABLE, BF16, MXFP8));
    assert_int_equal(second->n, 2);
    for (int i = 0; i < 2; i++) {
        assert_true(second->step[i].loss == whole->step[3 + i].loss);
        assert_true(second->step[i].grad_norm == whole->step[3 + i].grad_norm);
    }
    assert_true(second->summary.final_loss == whole->summary.final_loss);
    free(whole);
    free(first);
    free(second);
    remove_folder(&out);
    remove_folder(&parts);
}

/* The dtype of the moments in the checkpoint of step 3. */
static int32_t get_stored_dtype(const struct folder *out) {
    struct mx8_checkpoint c;
    assert_ok(mx8i_open_checkpoint(in_folder(out, "run/checkpoint/step-3"), 1, &c));
    const int64_t m = mx8i_find_stored_tensor(&c.manifest, "optimizer.exp_avg.layers.0.attention.wq.weight");
    const int64_t v = mx8i_find_stored_tensor(&c.manifest, "optimizer.exp_avg_sq.layers.0.attention.wq.weight");
    assert_true(m >= 0 && v >= 0);
    const int32_t dtype = c.manifest.tensor[m].dtype;
    assert_int_equal(dtype, c.manifest.tensor[v].dtype);
    mx8i_close_checkpoint(&c);
    return dtype;
}

/* Saved in one dtype, resumed in the other: told, and the next step is nearly the one that would have been. */
static void check_switch(const char *before, const char *after, int32_t stored) {
    struct folder out = make_folder();
    struct outcome *first = make_outcome(), *second = make_outcome(), *whole = make_outcome();
    assert_ok(RUN(whole, &out, 1, before, FORTY));
    remove_folder(&out);
    out = make_folder();
    first->stop_after = 3;
    assert_ok(RUN(first, &out, 1, ENABLE, before, FORTY));
    assert_int_equal(get_stored_dtype(&out), stored);
    assert_ok(RUN(second, &out, 1, ENABLE, after, FORTY));
    if (!strstr(second->log.text, "warning: optimizer.state_dtype was"))
        fail_msg("the log does not tell:\n%s", second->log.text);
    assert_true(second->step[0].step == 4 && second->step[0].loss == whole->step[3].loss);
    const double a = get_last_loss(whole), b = get_last_loss(second);
    if (!(fabs(a - b) < 0.02 * a)) fail_msg("%s: loss %g, expected about %g", after, b, a);
    free(first);
    free(second);
    free(whole);
    remove_folder(&out);
}

static void test_switch(void **state) {
    (void)state;
    check_switch("--optimizer.state_dtype=float32", BF16, MX8_F32);
    check_switch(BF16, "--optimizer.state_dtype=float32", MX8_BF16);
}

static size_t plan_moments(const char *flag) {
    struct folder out = make_folder();
    struct mx8_options options;
    struct mx8_job job;
    struct mx8_model *m;
    parse_job(&options, &out, (const char *const[]){flag, NULL});
    assert_ok(mx8i_resolve_job(&options, &job, NULL));
    assert_ok(mx8i_plan_model(&job.config, &job.recipe, &job.model, &m));
    const size_t bytes = mx8i_get_memory_plan(m, NULL)->moments;
    assert_int_equal(bytes % mx8i_get_params(m)->elements, 0);
    mx8i_free_model(m);
    mx8i_close_options(&options);
    remove_folder(&out);
    return bytes;
}

static void test_memory(void **state) {
    (void)state;
    assert_int_equal(2 * plan_moments(BF16), plan_moments("--optimizer.state_dtype=float32"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns_the_same),
        cmocka_unit_test(test_same_bits_after_a_stop),
        cmocka_unit_test(test_switch),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, make_corpus, remove_corpus);
}
