/* CUDA's count of blocks that lie far below the scale they share: the tensors of tests/kernels/test_gaps.c. */
#include "cuda_test.h"
#include "gaps.h"

static void check_case(const struct gap_case *c, int32_t dtype) {
    const size_t width = mx8_get_dtype_size(dtype), n = (size_t)GAP_ROWS * GAP_COLS;
    uint8_t *host = make_host(n * width, 0);
    for (size_t i = 0; i < n; i++) {
        const float value = make_gap_value(c, (int64_t)i / GAP_COLS, (int64_t)i % GAP_COLS);
        const uint16_t bits = mx8_encode_bf16(value);
        memcpy(host + i * width, dtype == MX8_BF16 ? (const void *)&bits : (const void *)&value, width);
    }
    rewind_buffers();
    void *src = copy_to_device(host, n * width);
    free(host);
    uint8_t *codes[2] = {make_buffer(GAP_CODES, CUDA_POISON), make_buffer(GAP_CODES, CUDA_POISON)};
    uint8_t *scales[2] = {make_buffer(GAP_SCALES, CUDA_POISON), make_buffer(GAP_SCALES, CUDA_POISON)};
    const int64_t start = 1000;
    int64_t *count = copy_to_device(&start, sizeof start);
    const struct mx8_quant_job j =
        make_gap_job(c, src, dtype, copy_to_device(gap_ends, sizeof gap_ends), codes, scales);
    for (int run = 1; run < 3; run++) {
        assert_ok(cuda.exec.k->quantize(&cuda.exec, &j));
        assert_ok(cuda.exec.k->count_wide_blocks(&cuda.exec, &j, count));
        int64_t *got = fetch_buffer(count, sizeof *got, "count_wide_blocks");
        if (*got != start + run * c->wide)
            fail_msg("%s, %s, run %d: %lld wide blocks, expected %lld", c->name, mx8_get_dtype_name(dtype), run,
                (long long)(*got - start), (long long)(run * c->wide));
        free(got);
    }
}

static void test_wide_blocks(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int i = 0; i < COUNT(gap_cases) * 2; i++) check_case(&gap_cases[i / 2], i % 2 ? MX8_BF16 : MX8_F32);
}

int main(void) {
    const struct CMUnitTest tests[] = {cuda_unit_test(test_wide_blocks)};
    return cmocka_run_group_tests_name("cuda.gaps", tests, open_cuda, close_cuda);
}
