/* Rounding to bf16 at random: its mean is exact, what is a bf16 stays, and the bits are as good as random ones. */
#include "test.h"
#include <math.h>
#include "formats/stochastic.h"
#include "mx8/formats.h"

static uint32_t get_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Over all 2^16 noises a value goes up as often as its distance to the number below says. */
static void test_mean_is_exact(void **state) {
    (void)state;
    static const uint32_t values[] = {0x3F800000, 0x3F800001, 0x3F80FFFF, 0x3F801234, 0xBF801234, 0x00000001,
        0x80004321, 0x007FFFFF, 0x7F7E8000, 0x7F7F8000, 0x33333333, 0x3F7FFFFF};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        int64_t up = 0;
        for (uint32_t noise = 0; noise < 65536; noise++) {
            const uint32_t got = mx8i_round_bf16_randomly(values[i], noise), below = values[i] >> 16;
            assert_true(got == below || got == below + 1);
            up += got != below;
        }
        assert_int_equal(up, values[i] & 0xFFFF);
    }
}

static void test_special_values(void **state) {
    (void)state;
    for (uint32_t noise = 0; noise < 65536; noise += 257) {
        for (uint32_t high = 0; high < 65536; high += 13) { /* bf16 numbers, infinities among them */
            if ((high & 0x7FFF) <= 0x7F80) assert_int_equal(mx8i_round_bf16_randomly(high << 16, noise), high);
        }
        assert_int_equal(mx8i_round_bf16_randomly(0x7F800000, noise), 0x7F80);
        assert_int_equal(mx8i_round_bf16_randomly(0xFF800000, noise), 0xFF80);
        static const uint32_t nans[] = {0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF80FFFF, 0x7FC00000};
        for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
            float value;
            memcpy(&value, &nans[i], sizeof value);
            assert_int_equal(mx8i_round_bf16_randomly(nans[i], noise), mx8_encode_bf16(value));
        }
    }
    assert_int_equal(mx8i_round_bf16_randomly(0x7F7FFFFF, 0xFFFF), 0x7F80);
}

/* Known words, so that another version of the program resumes to the same bits. */
static void test_known_bits(void **state) {
    (void)state;
    assert_int_equal(mx8i_make_rounding_bits(0, 0), 0);
    assert_int_equal(mx8i_make_rounding_bits(1, 0), 0x514E28B7u); /* MurmurHash3's finalizer of 1 */
    assert_int_equal(
        mx8i_make_rounding_bits(0x12345678, 1000), mx8i_make_rounding_bits(0x12345678, 1000 + (1ull << 32)));
}

/* Among `n` numbers of mean 0 and deviation 1 each, five deviations are not passed. */
static void expect_no_bias(const char *what, double sum, double n) {
    if (!(fabs(sum) < 5 * sqrt(n))) fail_msg("%s: %g among %g, expected less than %g", what, sum, n, 5 * sqrt(n));
}

/* Each bit is as often 1 as 0; it does not follow the same bit of the neighbour, of the step before, or of the other
 * half, which rounds the other moment. */
static void test_bits_are_random(void **state) {
    (void)state;
    enum { N = 1 << 16 };
    for (uint32_t salt = 0x9ABCDEF0; salt < 0x9ABCDEF3; salt++) {
        for (int bit = 0; bit < 32; bit++) {
            double ones = 0, neighbour = 0, before = 0, half = 0;
            for (uint64_t i = 0; i < N; i++) {
                const uint32_t h = mx8i_make_rounding_bits(salt, i), own = h >> bit & 1;
                ones += own ? 1 : -1;
                neighbour += own == (mx8i_make_rounding_bits(salt, i + 1) >> bit & 1) ? 1 : -1;
                before += own == (mx8i_make_rounding_bits(salt - 0x01234567, i) >> bit & 1) ? 1 : -1;
                half += own == (h >> (bit ^ 16) & 1) ? 1 : -1;
            }
            expect_no_bias("ones", ones, N);
            expect_no_bias("like the neighbour", neighbour, N);
            expect_no_bias("like the step before", before, N);
            expect_no_bias("like the other half", half, N);
        }
    }
}

/* A second moment of decay 0.999 whose gradient falls to a tenth: it must follow. Rounded to nearest it would stay. */
static void test_running_mean_follows(void **state) {
    (void)state;
    enum { N = 2000, STEPS = 3000 };
    const float beta = 0.999f, target = 0.01f;
    double sum = 0, exact = 1;
    float nearest = 1;
    for (uint64_t i = 0; i < N; i++) {
        float v = 1;
        for (uint32_t t = 0; t < STEPS; t++) {
            const float next = beta * v + (1 - beta) * target;
            v = mx8_decode_bf16(
                mx8i_round_bf16_randomly(get_bits(next), mx8i_make_rounding_bits(t * 0x2545F491u, i) >> 16));
        }
        sum += (double)v;
    }
    for (int t = 0; t < STEPS; t++) {
        exact = (double)beta * exact + (double)(1 - beta) * (double)target;
        nearest = mx8_decode_bf16(mx8_encode_bf16(beta * nearest + (1 - beta) * target));
    }
    assert_true(nearest == 1); /* what this is for */
    if (!(fabs(sum / N - exact) < 0.02 * exact)) fail_msg("mean %g, expected %g", sum / N, exact);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean_is_exact),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_known_bits),
        cmocka_unit_test(test_bits_are_random),
        cmocka_unit_test(test_running_mean_follows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
