/* Views of shapes that no memory can hold: nothing overflows. */
#include "test.h"

static void test_absurd_shapes(void **state) {
    (void)state;
    static const struct {
        int64_t shape[4], count, outer_stride;
    } cases[] = {
        {{3, 4, 5, 6}, 360, 120},
        {{1, 0, 7, 2}, 0, 0},
        {{INT64_MAX, 0, INT64_MAX, 2}, 0, 0},
        {{1LL << 32, 1LL << 32, 1, 1}, INT64_MAX, 1LL << 32},
        {{2, INT64_MAX, INT64_MAX, INT64_MAX}, INT64_MAX, INT64_MAX},
        {{1LL << 40, 1LL << 20, 1 << 2, 1}, 1LL << 62, 1LL << 22},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx8_tensor t = mx8_make_tensor(NULL, MX8_F32, 4, cases[i].shape);
        assert_int_equal(mx8_count_elements(&t), cases[i].count);
        assert_int_equal(t.stride[0], cases[i].outer_stride);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_absurd_shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
