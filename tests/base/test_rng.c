/* Philox against Random123's known answers (kat_vectors, philox4x32 10); distributions against their moments. */
#include "test.h"
#include <math.h>
#include "base/normal.h"
#include "base/rng.h"

static void test_philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, stream, n;
        uint32_t out[4];
    } rows[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t out[4];
        mx8i_philox(rows[i].seed, rows[i].stream, rows[i].n, out);
        for (int j = 0; j < 4; j++) assert_int_equal(out[j], rows[i].out[j]);
    }
}

static void test_uniform(void **state) {
    (void)state;
    enum { COUNT = 100000, BINS = 16 };
    int bins[BINS] = {0};
    for (uint64_t n = 0; n < COUNT; n++) {
        double u = mx8i_random_uniform(1, 2, n);
        assert_true(u > 0 && u < 1);
        bins[(int)(u * BINS)]++;
    }
    double chi2 = 0, expected = (double)COUNT / BINS;
    for (int i = 0; i < BINS; i++) chi2 += (bins[i] - expected) * (bins[i] - expected) / expected;
    assert_true(chi2 < 45); /* 15 degrees of freedom: p = 1e-4 */
}

static void test_normal_moments(void **state) {
    (void)state;
    enum { COUNT = 200000 };
    double moment[5] = {0}, product = 0, last = 0;
    for (uint64_t n = 0; n < COUNT; n++) {
        double x = mx8i_random_normal(42, mx8i_hash_text("layers.0.attention.wq.weight"), n);
        for (int k = 1; k <= 4; k++) moment[k] += pow(x, k) / COUNT;
        product += x * last / COUNT;
        last = x;
    }
    /* five standard errors: sqrt(1/n), sqrt(2/n), sqrt(15/n), sqrt(96/n) */
    assert_true(fabs(moment[1]) < 0.0112);
    assert_true(fabs(moment[2] - 1) < 0.0159);
    assert_true(fabs(moment[3]) < 0.0434);
    assert_true(fabs(moment[4] - 3) < 0.11);
    assert_true(fabs(product) < 0.0112);
}

static void test_streams_differ(void **state) {
    (void)state;
    double a = mx8i_random_uniform(1, 1, 1);
    assert_true(a == mx8i_random_uniform(1, 1, 1));
    assert_true(a != mx8i_random_uniform(2, 1, 1));
    assert_true(a != mx8i_random_uniform(1, 2, 1));
    assert_true(a != mx8i_random_uniform(1, 1, 2));
}

static void test_inverse_normal(void **state) {
    (void)state;
    static const struct {
        double p, x;
    } rows[] = {{0.5, 0}, {0.975, 1.959963984540054}, {0.84134474606854293, 1}, {0.99865010196836990, 3},
        {0.0013498980316300933, -3}, {1e-10, -6.361340902404056}, {1e-300, -37.0470962993612},
        {0.02425, -1.9729610513118845}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double x = mx8i_inverse_normal(rows[i].p);
        if (fabs(x - rows[i].x) > 2e-14 * (1 + fabs(rows[i].x)))
            fail_msg("inverse_normal(%g) is %.17g, expected %.17g", rows[i].p, x, rows[i].x);
    }
    for (double p = 0.0005; p < 0.5; p += 0.0005) { /* there and back, and symmetric */
        double x = mx8i_inverse_normal(p);
        assert_true(fabs(0.5 * erfc(-x / sqrt(2)) - p) < 4e-16 + 1e-14 * p);
        assert_true(fabs(mx8i_inverse_normal(1 - p) + x) < 1e-12);
    }
}

static void test_hash(void **state) {
    (void)state; /* the published FNV-1a vectors */
    assert_true(mx8i_hash_text("") == 0xcbf29ce484222325);
    assert_true(mx8i_hash_text("a") == 0xaf63dc4c8601ec8c);
    assert_true(mx8i_hash_text("foobar") == 0x85944171f73967e8);
}

/* The portable one against the other: every region, and what initial weights are made of. */
static void test_portable_normal(void **state) {
    (void)state;
    for (double p = 1e-300; p < 0.999; p = p < 1e-3 ? p * 1.7 : p + 0.00037) {
        const double expected = mx8i_inverse_normal(p), x = mx8i_make_normal(p);
        if (fabs(x - expected) > 4e-15 * (1 + fabs(expected)))
            fail_msg("make_normal(%g) is %.17g, expected %.17g", p, x, expected);
        assert_true(fabs(mx8i_make_log(p) - log(p)) <= 4e-16 * (1 + fabs(log(p))));
    }
    double sum = 0, squares = 0;
    enum { COUNT = 100000 };
    for (uint64_t n = 0; n < COUNT; n++) {
        const float w = mx8i_make_weight(5, 6, n, 0.02, 0, 1);
        sum += (double)w / COUNT;
        squares += (double)w * (double)w / COUNT;
    }
    assert_true(fabs(sum) < 5 * 0.02 / sqrt(COUNT));
    assert_true(fabs(squares / (0.02 * 0.02) - 1) < 5 * sqrt(2.0 / COUNT));
    /* truncated at two standard deviations */
    const double low = 0.022750131948179207;
    for (uint64_t n = 0; n < COUNT; n++)
        assert_true(fabsf(mx8i_make_weight(5, 6, n, 0.5, low, 1 - 2 * low)) <= 1.0000001f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_normal_moments),
        cmocka_unit_test(test_streams_differ),
        cmocka_unit_test(test_inverse_normal),
        cmocka_unit_test(test_portable_normal),
        cmocka_unit_test(test_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
