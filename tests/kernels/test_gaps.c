/* Counting blocks that lie far below the scale they share: tensors of which the number is known. */
#include "model_testing.h"
#include "gaps.h"

static int64_t count_wide(const struct mx8_kernels *k, const struct mx8_quant_job *j, int32_t threads) {
    struct mx8_exec x = {.k = k, .threads = threads, .ordinal = -1, .scratch_bytes = k->scratch_size(threads)};
    x.scratch = mx8i_allocate_aligned(x.scratch_bytes, 4096, "scratch");
    int64_t count = 1000; /* is added to */
    assert_ok(k->quantize(&x, j));
    assert_ok(k->count_wide_blocks(&x, j, &count));
    mx8i_release(x.scratch);
    return count - 1000;
}

static void check_case(const struct mx8_kernels *k, const struct gap_case *c, int32_t dtype) {
    void *src = make_zeros(dtype, GAP_ROWS * GAP_COLS);
    uint8_t *codes[2] = {make_zeros(MX8_U8, GAP_CODES), make_zeros(MX8_U8, GAP_CODES)};
    uint8_t *scales[2] = {make_zeros(MX8_U8, GAP_SCALES), make_zeros(MX8_U8, GAP_SCALES)};
    for (int64_t i = 0; i < GAP_ROWS * GAP_COLS; i++)
        set_value(src, dtype, i, (double)make_gap_value(c, i / GAP_COLS, i % GAP_COLS));
    const struct mx8_quant_job j = make_gap_job(c, src, dtype, gap_ends, codes, scales);
    for (int32_t threads = 1; threads < 4; threads++) {
        const int64_t got = count_wide(k, &j, threads);
        if (got != c->wide)
            fail_msg("%s: %lld wide blocks, expected %lld", c->name, (long long)got, (long long)c->wide);
    }
    if (c->fall == 3 && !c->grouped) {
        for (int64_t i = 0; i < 32; i++)
            set_value(src, dtype, 3 * GAP_COLS + 5 * 32 + i, 0); /* a zero block is exact */
        assert_int_equal(count_wide(k, &j, 1), c->wide - 1);
        set_value(src, dtype, 4 * GAP_COLS, (double)NAN); /* its group is NaN, and no more told about it */
        assert_int_equal(count_wide(k, &j, 1), c->wide - 1 - 4);
    }
    void *owned[] = {src, codes[0], codes[1], scales[0], scales[1]};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void count(const struct mx8_kernels *k) {
    for (size_t i = 0; i < sizeof gap_cases / sizeof *gap_cases; i++)
        for (int d = 0; d < 2; d++) check_case(k, &gap_cases[i], both_dtypes[d]);
}

static void test_wide_blocks(void **state) {
    (void)state;
    for_every_isa(count);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wide_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
