/* Allocation, the hook that makes it fail, and linear layouts. */
#include "test.h"
#include "base/memory.h"

static void test_allocate(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 31, 32, 33, 4096, 100001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *p = mx8i_allocate(sizes[i], "bytes");
        assert_non_null(p);
        for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(p[j], 0);
        mx8i_release(p);
        for (size_t alignment = 16; alignment <= 4096; alignment *= 2) {
            p = mx8i_allocate_aligned(sizes[i], alignment, "bytes");
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % alignment, 0);
            memset(p, 1, sizes[i]);
            mx8i_release(p);
        }
    }
    mx8i_release(NULL);
}

static void test_reallocate(void **state) {
    (void)state;
    char *p = mx8i_reallocate(NULL, 4, "bytes");
    assert_non_null(p);
    memcpy(p, "abc", 4);
    p = mx8i_reallocate(p, 10000, "bytes");
    assert_string_equal(p, "abc");
    mx8i_fail_allocation(1, 0);
    assert_null(mx8i_reallocate(p, 20000, "more bytes"));
    mx8i_fail_allocation(0, 0);
    assert_message("20000 bytes for more bytes");
    assert_string_equal(p, "abc"); /* the old block is still there */
    mx8i_release(p);
}

static void test_hook(void **state) {
    (void)state;
    mx8i_fail_allocation(3, 0);
    void *p[4];
    for (int i = 0; i < 4; i++) p[i] = mx8i_allocate(8, "an item");
    assert_true(p[0] && p[1] && !p[2] && p[3]);
    assert_message("out of memory: 8 bytes for an item");
    assert_int_equal(mx8i_count_allocations(), 4);
    for (int i = 0; i < 4; i++) mx8i_release(p[i]);
    mx8i_fail_allocation(1, 1);
    assert_null(mx8i_allocate(1, "x"));
    assert_null(mx8i_allocate_aligned(1, 64, "x"));
    assert_null(mx8i_copy_text("x"));
    assert_null(mx8i_format_text("%d", 1));
    assert_int_equal(mx8i_count_allocations(), 4);
    mx8i_fail_allocation(0, 0);
    assert_int_equal(mx8i_count_allocations(), 0);
    char *text = mx8i_format_text("%s-%d", "layer", 12);
    assert_string_equal(text, "layer-12");
    char *copy = mx8i_copy_text(text);
    assert_string_equal(copy, text);
    mx8i_release(text);
    mx8i_release(copy);
}

static void test_reserve(void **state) {
    (void)state;
    struct mx8_plan plan = {0};
    assert_int_equal(mx8i_reserve(&plan, 1), 0);
    assert_int_equal(mx8i_reserve(&plan, 256), 256);
    assert_int_equal(mx8i_reserve(&plan, 0), 512);
    assert_int_equal(mx8i_reserve(&plan, 257), 512);
    assert_int_equal(mx8i_reserve(&plan, 3), 1024);
    assert_int_equal(plan.size, 1027);
    mx8i_reserve(&plan, SIZE_MAX - 1000);
    assert_int_equal(plan.size, SIZE_MAX);
    mx8i_reserve(&plan, 8); /* an overflow is not forgotten */
    assert_int_equal(plan.size, SIZE_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocate),
        cmocka_unit_test(test_reallocate),
        cmocka_unit_test(test_hook),
        cmocka_unit_test(test_reserve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
