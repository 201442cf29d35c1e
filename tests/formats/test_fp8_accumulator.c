/* The model of the FP8 tensor core against what an H200 was seen to do, and against sums that are exact. */
#include "test.h"
#include "formats/fp8_accumulator.h"

enum { MOST = 512 };
static const uint8_t ones[MOST / MX8_BLOCK] = {[0 ... MOST / MX8_BLOCK - 1] = 127};

/* The product of two rows of values that e4m3 holds. */
static float multiply(const float *a, const float *b, int64_t n, int64_t promote) {
    struct fp8_value x[MOST], y[MOST];
    for (int64_t i = 0; i < n; i++) {
        x[i] = fp8_split(mx8_encode_e4m3(a[i]));
        y[i] = fp8_split(mx8_encode_e4m3(b[i]));
    }
    return fp8_multiply(x, y, n, promote, ones, ones);
}

static void test_every_code_is_split(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        if ((code & 0x7F) == 0x7F) continue;
        struct fp8_value v = fp8_split((uint8_t)code);
        assert_true(ldexpf((float)v.significand, v.exponent - 3) == mx8_decode_e4m3((uint8_t)code));
    }
}

/* 1 + 31 * 2^-13 is exact; smaller products are cut off, toward zero, on either side. */
static void test_products_are_cut(void **state) {
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int power = 12; power <= 15; power++) {
            float a[32], b[32];
            for (int i = 0; i < 32; i++) {
                a[i] = i ? ldexpf(1, -7) : 1;
                b[i] = (float)sign * (i ? ldexpf(1, 7 - power) : 1);
            }
            float want = power <= 13 ? 1 + 31 * ldexpf(1, -power) : 1;
            assert_true(multiply(a, b, 32, 256) == (float)sign * want);
        }
    }
}

/* What a sum loses is found again by promoting before it is lost. */
static void test_promotion(void **state) {
    (void)state;
    float a[MOST], b[MOST];
    for (int i = 0; i < MOST; i++) {
        a[i] = i == 0 ? 256 : 1;
        b[i] = i == 0 ? 256 : 1;
    }
    /* Beside 2^16 the accumulator keeps multiples of 8, so that ones are cut off, however many there are. */
    assert_true(multiply(a, b, MOST, 512) == 65536);
    assert_true(multiply(a, b, MOST, 256) == 65536 + 256);
    assert_true(multiply(a, b, MOST, 128) == 65536 + 384);
    assert_true(multiply(a, b, 40, 32) == 65536 + 8);
    assert_true(multiply(a + 1, b + 1, 511, 512) == 511);
    assert_true(multiply(a, b, 0, 256) == 0);
}

static void test_scales(void **state) {
    (void)state;
    uint8_t left[2] = {130, 130}, right[2] = {120, 120};
    struct fp8_value a[64], b[64];
    for (int i = 0; i < 64; i++) a[i] = b[i] = fp8_split(mx8_encode_e4m3(1.5f));
    assert_true(fp8_multiply(a, b, 64, 256, left, right) == 64 * 2.25f / 16);
    right[1] = 121; /* read where sums of 32 are promoted */
    assert_true(fp8_multiply(a, b, 64, 32, left, right) == 32 * 2.25f / 16 + 32 * 2.25f / 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_code_is_split),
        cmocka_unit_test(test_products_are_cut), cmocka_unit_test(test_promotion), cmocka_unit_test(test_scales)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
