/* Many complaints as one text, and shapes as people write them. */
#include "test.h"
#include <string.h>
#include "base/complaints.h"

static void test_first_ones_are_told(void **state) {
    (void)state;
    struct mx8_complaints c = {.count = 0};
    mx8i_complain(&c, "%s is missing", "a.weight");
    assert_string_equal(c.text, "a.weight is missing");
    mx8i_complain(&c, "%s is left over", "b.weight");
    assert_string_equal(c.text, "a.weight is missing; b.weight is left over");
    assert_int_equal(c.count, 2);
}

/* However many and however long: inside the array, all counted, and the text says that it is not all. */
static void test_room_ends(void **state) {
    (void)state;
    char name[1000];
    for (int length = 0; length < 400; length++) {
        struct mx8_complaints c = {.count = 0};
        memset(name, 'n', sizeof name);
        name[length] = 0;
        for (int i = 0; i < 1000; i++) mx8i_complain(&c, "%s is missing", name);
        assert_int_equal(c.count, 1000);
        assert_in_range(strlen(c.text), 300, sizeof c.text - 1);
        assert_string_equal(c.text + strlen(c.text) - 5, "; ...");
        assert_null(strstr(c.text, "; ...; "));
        name[length < 150 ? length : 150] = 0; /* one alone stands whole, or its first 199 bytes */
        assert_int_equal(strncmp(c.text, name, strlen(name)), 0);
    }
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t most = INT64_MAX, shape[8] = {2, 64, 0, -1, 5, 6, 7, 8};
    const int64_t huge[8] = {most, most, most, most, most, most, most, most};
    char text[64];
    assert_string_equal(mx8i_format_shape(text, 0, shape), "()");
    assert_string_equal(mx8i_format_shape(text, 1, shape), "(2)");
    assert_string_equal(mx8i_format_shape(text, 4, shape), "(2, 64, 0, -1)");
    assert_string_equal(mx8i_format_shape(text, 8, shape), "(2, 64, 0, -1, 5, 6, 7, 8)");
    assert_string_equal(mx8i_format_shape(text, 8, huge), "(9223372036854775807, 9223372036854775807, ...)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_ones_are_told),
        cmocka_unit_test(test_room_ends),
        cmocka_unit_test(test_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
