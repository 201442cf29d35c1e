/* The learning rate against torchtitan's formulas, step by step. */
#include "train/job_testing.h"
#include <math.h>
#include "train/resolve.h"

/* The formula as torchtitan writes it, with its 0-based step. */
static double get_reference(int64_t s, double W, double P, double N, enum mx8_decay type, double min) {
    double t = (double)s;
    if (t < W) return (t + 1) / W;
    if (t < W + P) return 1;
    double p = (t + 1 - W - P) / N;
    double f = type == MX8_DECAY_LINEAR ? 1 - p : type == MX8_DECAY_SQRT ? 1 - sqrt(p) : 0.5 * (1 + cos(M_PI * p));
    return min + (1 - min) * f;
}

static void test_every_step(void **state) {
    (void)state;
    static const struct {
        int64_t steps, warmup;
        double ratio;
        int64_t stable, decay;
    } cases[] = {
        {100, 2, 0.8, 19, 80},
        {100, 10, NAN, 1, 90},
        {100, 0, 0, 101, 0},
        {100, 0, 1, 1, 100},
        {5, 2, 0.5, 2, 2}, /* 2.5 rounds to even */
        {7, 2, 0.5, 2, 4}, /* 3.5 rounds to even */
        {1, 1, NAN, 1, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int type = MX8_DECAY_LINEAR; type <= MX8_DECAY_COSINE; type++) {
            struct mx8_schedule s = mx8i_make_schedule(
                2e-3, cases[i].steps, cases[i].warmup, cases[i].ratio, (enum mx8_decay)type, 0.1, NULL);
            assert_true(s.warmup == cases[i].warmup && s.stable == cases[i].stable && s.decay == cases[i].decay);
            for (int64_t step = 1; step <= cases[i].steps; step++) {
                double expected = 2e-3 * get_reference(step - 1, (double)s.warmup, (double)s.stable, (double)s.decay,
                                             (enum mx8_decay)type, 0.1);
                assert_true(fabs(mx8i_get_learning_rate(&s, step) - expected) < 1e-15);
            }
        }
}

static void test_the_seed(void **state) {
    (void)state;
    struct mx8_schedule s = mx8i_make_schedule(1, 100, 2, 0.8, MX8_DECAY_LINEAR, 0.1, NULL);
    assert_int_equal(s.stable, 19);
    assert_true(mx8i_get_learning_rate(&s, 1) == 0.5 && mx8i_get_learning_rate(&s, 2) == 1);
    assert_true(mx8i_get_learning_rate(&s, 21) == 1 && mx8i_get_learning_rate(&s, 22) < 1);
    assert_true(fabs(mx8i_get_learning_rate(&s, 100) - 0.11125) < 1e-12);
}

static void test_clamps(void **state) {
    (void)state;
    struct lines notes = {.used = 0};
    struct mx8_log log = {keep_line, &notes};
    struct mx8_schedule s = mx8i_make_schedule(1, 10, 200, NAN, MX8_DECAY_LINEAR, 0, &log);
    assert_true(s.warmup == 10 && s.decay == 0 && s.stable == 1);
    assert_true(mx8i_get_learning_rate(&s, 10) == 1);
    assert_non_null(strstr(notes.text, "warmup_steps 200"));

    notes.used = 0;
    s = mx8i_make_schedule(1, 10, 5, 0.9, MX8_DECAY_LINEAR, 0, &log);
    assert_true(s.decay == 5 && s.stable == 1);
    assert_non_null(strstr(notes.text, "clamped to 5"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_step),
        cmocka_unit_test(test_the_seed),
        cmocka_unit_test(test_clamps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
