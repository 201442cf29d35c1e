/* metrics.enable_scale_gaps: blocks beside an outlier channel are counted in every step's line, others are not. */
#include "train/loop_testing.h"
#include "base/file.h"
#include "base/memory.h"

#define GROUPS     "--mx.scale_group=256", "--mx.weight_scale_group=256"
#define COUNT_GAPS "--metrics.enable_scale_gaps"

/* Values of "wide_blocks" in the lines; -1: a line without. */
static void read_counts(const struct folder *out, int64_t *counts, int n) {
    char *text;
    size_t size;
    assert_ok(mx8i_read_file(in_folder(out, "run/metrics.jsonl"), 1 << 20, &text, &size));
    const char *line = text;
    for (int i = 0; i < n; i++) {
        const char *end = strchr(line, '\n'), *at = strstr(line, "\"wide_blocks\":");
        assert_non_null(end);
        counts[i] = at && at < end ? strtoll(at + 14, NULL, 10) : -1;
        line = end + 1;
    }
    assert_int_equal(*line, 0);
    mx8i_release(text);
}

static void run_two(int64_t counts[2], int threads, const char *const *flags) {
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    assert_ok(run(o, &out, threads, flags));
    read_counts(&out, counts, 2);
    for (int i = 0; i < 2; i++) assert_true(o->step[i].wide_blocks == (counts[i] < 0 ? 0 : counts[i]));
    free(o);
    remove_folder(&out);
}

#define RUN_TWO(counts, threads, ...)                                                                                  \
    run_two(counts, threads, (const char *const[]){MXFP8, "--training.steps=2", __VA_ARGS__, NULL})

static void test_wide_blocks(void **state) {
    (void)state;
    int64_t without[2], own[2], shared[2], again[2], outliers[2];
    RUN_TWO(without, 1, GROUPS);
    assert_true(without[0] == -1 && without[1] == -1);
    RUN_TWO(own, 1, COUNT_GAPS); /* no block shares its scale */
    assert_true(own[0] == 0 && own[1] == 0);
    RUN_TWO(shared, 1, GROUPS, COUNT_GAPS);
    RUN_TWO(again, 2, GROUPS, COUNT_GAPS);
    RUN_TWO(outliers, 1, GROUPS, COUNT_GAPS, "--debug.outlier_channels=64:1e6");
    assert_true(again[0] == shared[0] && again[1] == shared[1]);
    /* the normalised stream has two blocks a row, of which one is 2^20 below: four linears' inputs of 128 tokens, at
     * least */
    for (int i = 0; i < 2; i++)
        if (!(outliers[i] > shared[i] + 256))
            fail_msg("step %d: %lld wide blocks with outliers, %lld without", i + 1, (long long)outliers[i],
                (long long)shared[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wide_blocks)};
    return cmocka_run_group_tests(tests, make_corpus, remove_corpus);
}
