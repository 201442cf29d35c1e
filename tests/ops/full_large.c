/* More than 2^32 elements: index arithmetic in 64 bits all the way. Needs 5.6 GB; skipped (77) where there is less. */
#include "ops_test.h"
#include "base/clock.h"

enum { K = 4128 };                /* odd blocks: 129 */
static const int64_t M = 1250000; /* M K = 5.16e9 */

static void test_five_gigabytes(void **state) {
    (void)state;
    int64_t blocks = K / MX8_BLOCK;
    struct mx8_op_call call = {.in = {new_normal(MX8_BF16, 1, SHAPE(1, K))}};
    call.in[0].shape[0] = M; /* the same row M times: only what is written is large */
    call.in[0].stride[0] = 0;
    assert_ok(mx8_infer_op(mx8_get_op(MX8_OP_QUANTIZE_ROWS), 0, &call));
    assert_int_equal(mx8_count_elements(&call.out[0]), M * K);
    uint8_t *codes =
        mmap(NULL, (size_t)M * K, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *scales = malloc((size_t)(M * blocks));
    assert_true(codes != MAP_FAILED && scales != NULL);
    call.out[0].data = codes;
    call.out[1].data = scales;
    call.workspace = take_aligned(call.workspace_size);
    assert_ok(mx8_run_op(shelf.ctx, mx8_get_op(MX8_OP_QUANTIZE_ROWS), 0, &call));
    for (int64_t m = 1; m < M; m++) {
        if (memcmp(codes, codes + m * K, K) != 0 || memcmp(scales, scales + m * blocks, (size_t)blocks) != 0)
            fail_msg("row %lld differs from the first", (long long)m);
    }
    /* and the first is what the typed entry point makes of one row */
    struct mx8_tensor one = new_tensor(MX8_F8_E4M3, SHAPE(1, K)),
                      one_scales = new_tensor(MX8_F8_E8M0, SHAPE(1, blocks));
    struct mx8_tensor row = call.in[0];
    row.shape[0] = 1;
    assert_ok(mx8_quantize_rows(shelf.ctx, &one, &one_scales, &row, NULL));
    assert_memory_equal(one.data, codes + (M - 1) * K, K);
    assert_memory_equal(one_scales.data, scales + (M - 1) * blocks, (size_t)blocks);

    /* columns of the same: a line of the output is longer than 2^20, the last one begins beyond 2^32 */
    struct mx8_op_call cols = {.in = {call.in[0]}};
    assert_ok(mx8_infer_op(mx8_get_op(MX8_OP_QUANTIZE_COLS), 0, &cols));
    cols.out[0].data = codes;
    free(scales);
    scales = malloc((size_t)mx8_count_elements(&cols.out[1]));
    assert_non_null(scales);
    cols.out[1].data = scales;
    cols.workspace = take_aligned(cols.workspace_size);
    assert_ok(mx8_run_op(shelf.ctx, mx8_get_op(MX8_OP_QUANTIZE_COLS), 0, &cols));
    for (int64_t k = 0; k < K; k++) /* all values of a column are equal, so all its codes are */
        for (int64_t m = 1; m < M; m += 9973)
            if (codes[k * M] != codes[k * M + m])
                fail_msg("column %lld differs in row %lld", (long long)k, (long long)m);
    munmap(codes, (size_t)M * K);
    free(scales);
}

int main(void) {
    int64_t memory = mx8i_get_available_memory();
    if (memory > 0 && memory < (int64_t)6500 << 20) {
        printf("Skipped: %.1f GB of memory are free, 6.5 are needed\n", (double)memory / 1e9);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_shelf_test(test_five_gigabytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
