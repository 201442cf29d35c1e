/* Messages, status names, versions, dtypes, tensor views, the log sink, time and CPU facts. */
#include "test.h"
#include <pthread.h>
#include "base/clock.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/log.h"

static void test_fail_stores_message(void **state) {
    (void)state;
    assert_int_equal(MX8_FAIL(MX8_IO_ERROR, "open: %d", 7), MX8_IO_ERROR);
    assert_string_equal(mx8_get_last_error(), "open: 7");
    assert_int_equal(mx8i_fail_prefix(MX8_FORMAT_ERROR, "file %s", "a"), MX8_FORMAT_ERROR);
    assert_string_equal(mx8_get_last_error(), "file a: open: 7");
    MX8_FAIL(MX8_INTERNAL, "<%s>", mx8_get_last_error()); /* its own text as an argument */
    assert_string_equal(mx8_get_last_error(), "<file a: open: 7>");
}

static void test_long_messages_are_cut(void **state) {
    (void)state;
    char text[3000];
    memset(text, 'x', sizeof text);
    static const size_t lengths[] = {1022, 1023, 1024, 2999};
    for (size_t i = 0; i < 4; i++) {
        text[lengths[i]] = 0;
        MX8_FAIL(MX8_INTERNAL, "%s", text);
        const char *got = mx8_get_last_error();
        assert_int_equal(strlen(got), lengths[i] < 1024 ? lengths[i] : 1023);
        assert_int_equal(strcmp(got + strlen(got) - 3, "...") == 0, lengths[i] >= 1024);
        mx8i_fail_prefix(MX8_INTERNAL, "prefix");
        assert_memory_equal(mx8_get_last_error(), "prefix: xxx", 11);
        assert_string_equal(mx8_get_last_error() + 1020, "...");
        text[lengths[i]] = 'x';
    }
    for (size_t i = 0; i < 1500; i++) memcpy(text + 2 * i, "\xC3\xA9", 2); /* two-byte characters stay whole */
    for (int shift = 0; shift < 2; shift++) {
        MX8_FAIL(MX8_INTERNAL, "%s%.*s", shift ? "x" : "", 2998, text);
        const char *got = mx8_get_last_error();
        size_t length = strlen(got);
        assert_string_equal(got + length - 3, "...");
        assert_int_equal((unsigned char)got[length - 4], 0xA9);
    }
}

static void *fail_elsewhere(void *seen) {
    *(int *)seen = mx8_get_last_error()[0];
    MX8_FAIL(MX8_INTERNAL, "elsewhere");
    return NULL;
}

static void test_message_is_the_threads_own(void **state) {
    (void)state;
    pthread_t thread;
    int seen = -1;
    MX8_FAIL(MX8_INTERNAL, "here");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &seen), 0);
    pthread_join(thread, NULL);
    assert_int_equal(seen, 0);
    assert_string_equal(mx8_get_last_error(), "here");
}

static enum mx8_status try_it(enum mx8_status status, int *reached) {
    MX8_TRY(status);
    *reached = 1;
    return MX8_OK;
}

static void test_try_passes_failures_up(void **state) {
    (void)state;
    int reached = 0;
    assert_int_equal(try_it(MX8_COMM_ERROR, &reached), MX8_COMM_ERROR);
    assert_int_equal(reached, 0);
    assert_int_equal(try_it(MX8_OK, &reached), MX8_OK);
    assert_int_equal(reached, 1);
}

static void test_names_and_version(void **state) {
    (void)state;
    assert_string_equal(mx8_get_status_name(MX8_OK), "MX8_OK");
    assert_string_equal(mx8_get_status_name(MX8_WORKSPACE_TOO_SMALL), "MX8_WORKSPACE_TOO_SMALL");
    assert_string_equal(mx8_get_status_name(MX8_INTERNAL), "MX8_INTERNAL");
    assert_string_equal(mx8_get_status_name((enum mx8_status)5), "MX8_UNKNOWN");
    assert_int_equal(mx8_get_version(), MX8_VERSION);
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", MX8_VERSION_MAJOR, MX8_VERSION_MINOR, MX8_VERSION_PATCH);
    assert_string_equal(mx8_get_version_text(), text);
}

static void test_tensors(void **state) {
    (void)state;
    static const struct {
        int32_t dtype;
        size_t size;
        const char *name;
    } rows[] = {{MX8_F32, 4, "f32"}, {MX8_BF16, 2, "bf16"}, {MX8_F8_E4M3, 1, "f8_e4m3"}, {MX8_F8_E5M2, 1, "f8_e5m2"},
        {MX8_F8_E8M0, 1, "f8_e8m0"}, {MX8_U8, 1, "u8"}, {MX8_I32, 4, "i32"}, {MX8_I64, 8, "i64"}, {MX8_F64, 8, "f64"},
        {-1, 0, "unknown"}, {9, 0, "unknown"}, {INT32_MAX, 0, "unknown"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(mx8_get_dtype_size(rows[i].dtype), rows[i].size);
        assert_string_equal(mx8_get_dtype_name(rows[i].dtype), rows[i].name);
    }
    int64_t shape[5] = {2, 3, 5, 7, 11};
    struct mx8_tensor t = mx8_make_tensor(shape, MX8_I64, 3, shape);
    assert_int_equal(t.ndim, 3);
    assert_int_equal(t.stride[0], 15);
    assert_int_equal(t.stride[1], 5);
    assert_int_equal(t.stride[2], 1);
    assert_int_equal(t.shape[3], 0);
    assert_int_equal(mx8_count_elements(&t), 30);
    assert_int_equal(mx8_make_tensor(NULL, MX8_F32, 5, shape).ndim, MX8_MAX_DIMS);
    struct mx8_tensor scalar = mx8_make_tensor(NULL, MX8_F32, 0, NULL);
    assert_int_equal(mx8_count_elements(&scalar), 1);
    shape[1] = 0;
    t = mx8_make_tensor(NULL, MX8_F32, 3, shape);
    assert_int_equal(mx8_count_elements(&t), 0);
}

static void keep_line(void *user, const char *line) {
    snprintf(user, 100, "%s", line);
}

static void test_log(void **state) {
    (void)state;
    char kept[100] = "";
    struct mx8_log log = {keep_line, kept}, silent = {NULL, kept};
    mx8i_log(NULL, "nothing");
    mx8i_log(&silent, "nothing");
    assert_string_equal(kept, "");
    mx8i_log(&log, "step: %d", 3);
    assert_string_equal(kept, "step: 3");
}

static void test_clock_and_machine(void **state) {
    (void)state;
    double before = mx8i_get_seconds();
    assert_true(mx8i_get_seconds() >= before);
    char text[32];
    int number[7];
    mx8i_format_time(text);
    assert_int_equal(strlen(text), 23);
    assert_int_equal(sscanf(text, "%4d-%2d-%2d %2d:%2d:%2d,%3d", &number[0], &number[1], &number[2], &number[3],
                         &number[4], &number[5], &number[6]),
        7);
    assert_true(mx8i_get_peak_rss() > 100 * 1024);
    assert_true(mx8i_get_available_memory() >= 0);
    struct mx8_cpu cpu = mx8i_get_cpu();
    assert_true(cpu.cores >= 1);
    assert_true(cpu.avx2_fma || !cpu.avx512);
    assert_true(cpu.avx512 || !cpu.avx512_bf16);
#if defined(__x86_64__)
    __builtin_cpu_init(); /* the compiler's own detection agrees */
    int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    assert_int_equal(cpu.avx2_fma != 0, has_avx2 != 0);
    assert_int_equal(cpu.avx512 != 0, __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"));
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_stores_message),
        cmocka_unit_test(test_long_messages_are_cut),
        cmocka_unit_test(test_message_is_the_threads_own),
        cmocka_unit_test(test_try_passes_failures_up),
        cmocka_unit_test(test_names_and_version),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_clock_and_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
