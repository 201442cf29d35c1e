/* Which kernel table is chosen, why, and that every table is whole. */
#include "test.h"
#include <stddef.h>
#include "base/cpu.h"
#include "kernels/kernels.h"

static const char *const names[] = {"scalar", "avx2", "avx512"};

static int best_isa(void) {
    struct mx8_cpu cpu = mx8i_get_cpu();
    return cpu.avx2_fma ? cpu.avx512 ? 2 : 1 : 0;
}

static void test_default(void **state) {
    (void)state;
    const struct mx8_kernels *k = NULL;
    char reason[160] = "", expected[32];
    unsetenv("MX8_ISA");
    assert_ok(mx8i_find_cpu_kernels(NULL, &k, reason, sizeof reason));
    snprintf(expected, sizeof expected, "cpu-%s", names[best_isa()]);
    assert_string_equal(k->name, expected);
    assert_non_null(strstr(reason, best_isa() == 0 ? "absent" : "present"));
    assert_null(strchr(reason, '\n'));
    assert_ok(mx8i_find_cpu_kernels("", &k, reason, sizeof reason));
    assert_string_equal(k->name, expected);
    assert_ok(mx8i_find_cpu_kernels(NULL, &k, NULL, 0));
}

/* What the CPU has is given, what it lacks is refused by name. */
static void test_by_name(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        const struct mx8_kernels *k = NULL;
        char reason[160] = "", expected[32];
        snprintf(expected, sizeof expected, "cpu-%s", names[i]);
        if (i <= best_isa()) {
            assert_ok(mx8i_find_cpu_kernels(names[i], &k, reason, sizeof reason));
            assert_string_equal(k->name, expected);
            assert_non_null(strstr(reason, "caller"));
        } else {
            print_message("this CPU lacks %s\n", names[i]);
            assert_status(mx8i_find_cpu_kernels(names[i], &k, reason, sizeof reason), MX8_INVALID_ARGUMENT);
            assert_message(names[i]);
            assert_message("scalar");
            assert_null(k);
        }
    }
}

static void test_environment(void **state) {
    (void)state;
    const struct mx8_kernels *k = NULL;
    char reason[160] = "";
    setenv("MX8_ISA", "scalar", 1);
    assert_ok(mx8i_find_cpu_kernels(NULL, &k, reason, sizeof reason));
    assert_string_equal(k->name, "cpu-scalar");
    assert_non_null(strstr(reason, "MX8_ISA"));
    assert_ok(mx8i_find_cpu_kernels(names[best_isa()], &k, reason, sizeof reason)); /* the caller wins */
    assert_null(strstr(reason, "MX8_ISA"));
    setenv("MX8_ISA", "sse9", 1);
    assert_status(mx8i_find_cpu_kernels(NULL, &k, reason, sizeof reason), MX8_INVALID_ARGUMENT);
    assert_message("sse9");
    assert_message("MX8_ISA");
    unsetenv("MX8_ISA");
}

static void test_unknown(void **state) {
    (void)state;
    const struct mx8_kernels *k = NULL;
    char reason[160] = "";
    assert_status(mx8i_find_cpu_kernels("AVX2", &k, reason, sizeof reason), MX8_INVALID_ARGUMENT);
    assert_message("AVX2");
    assert_message("avx512");
    assert_null(k);
}

/* An entry that a table leaves out would be a jump to NULL in some operator: every word of the struct must be set, up to
 * those that only some backends have, which stand last. */
static void test_whole(void **state) {
    (void)state;
    for (int i = 0; i <= best_isa(); i++) {
        const struct mx8_kernels *k = NULL;
        assert_ok(mx8i_find_cpu_kernels(names[i], &k, NULL, 0));
        void *word[sizeof *k / sizeof(void *)];
        memcpy(word, k, sizeof word);
        for (size_t w = 0; w < offsetof(struct mx8_kernels, quantize_from) / sizeof *word; w++)
            if (!word[w]) fail_msg("%s: entry %zu is missing", k->name, w);
        assert_true(k->scratch_size(1) > 0 && k->scratch_size(64) >= k->scratch_size(1));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default),
        cmocka_unit_test(test_by_name),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
