/* swiglu_quantize, swiglu_backward_quantize and permute_quantize: the codes of the two calls that they stand for,
 * whichever outputs are wanted.
 */
#include "ops_test.h"

enum { ROW_CODES, ROW_SCALES, COL_CODES, COL_SCALES, ENDS, OUTPUTS };

static const struct {
    int64_t rows, cols;
    int32_t n_groups, ends[4], dtype;
    struct mx8_op_options options;
} cases[] = {
    {5, 33, 0, {0}, MX8_BF16, {0}},
    {70, 64, 0, {0}, MX8_F32, {.scale_group = 256, .tile_rows = 32}},
    {300, 96, 3, {0, 130, 290}, MX8_BF16, {.scale_group = 128, .alignment = 128}},
    {64, 40, 4, {1, 1, 33, 64}, MX8_BF16, {.scale_rule = MX8_SCALE_FLOOR, .format = MX8_F8_E5M2}},
};

/* An outlier channel: the blocks beside it lie far below a scale that they share with it. */
static void raise_first_column(const struct mx8_tensor *t) {
    for (int64_t r = 0; r < t->shape[0]; r++) put(t, r * t->shape[1], 1e6);
}

/* What is counted, clipped values and wide blocks, is the two calls' as well. */
static void run_counted(const char *op, struct mx8_op_call *call, int64_t counts[2]) {
    counts[0] = counts[1] = 0;
    shelf.ctx->saturated = counts;
    shelf.ctx->counts_gaps = 1;
    run_call(op, 0, call);
    shelf.ctx->saturated = NULL;
    shelf.ctx->counts_gaps = 0;
}

/* values, offsets? by quantize_both, against the operator with all outputs and with one orientation. */
static void expect_codes(const char *op, const struct mx8_op_call *call, const struct mx8_tensor *values) {
    struct mx8_op_call stored = {.in = {*values, call->in[call->n_in - 1]}, .options = call->options}, made = *call;
    int64_t counts[2][2];
    run_counted("quantize_both", &stored, counts[0]);
    run_counted(op, &made, counts[1]);
    assert_memory_equal(counts[0], counts[1], sizeof counts[0]);
    assert_true((counts[0][1] > 0) == (call->options.scale_group > 32));
    for (int i = 0; i < OUTPUTS; i++)
        if (mx8i_is_present(&stored.out[i])) assert_equal(&made.out[i], &stored.out[i]);
    for (int side = 0; side < 2; side++) { /* the other orientation stays absent */
        struct mx8_op_call one = made;
        for (int i = 0; i < OUTPUTS; i++) {
            const int wanted = side ? i >= COL_CODES : i < COL_CODES;
            if (!wanted) one.out[i] = (struct mx8_tensor){0};
            if (mx8i_is_present(&one.out[i])) fill(&one.out[i], 255);
        }
        assert_ok(mx8_run_op(shelf.ctx, mx8_find_op(op), 0, &one));
        for (int i = 0; i < OUTPUTS; i++)
            if (mx8i_is_present(&one.out[i])) assert_equal(&one.out[i], &stored.out[i]);
    }
    struct mx8_op_call half = made;
    half.out[ROW_SCALES] = (struct mx8_tensor){0};
    assert_status(mx8_run_op(shelf.ctx, mx8_find_op(op), 0, &half), MX8_INVALID_ARGUMENT);
    assert_message("row_scales is missing");
    if (!mx8i_is_present(&made.out[ENDS])) return;
    half = made;
    half.out[ENDS] = (struct mx8_tensor){0};
    assert_status(mx8_run_op(shelf.ctx, mx8_find_op(op), 0, &half), MX8_INVALID_ARGUMENT);
    assert_message("ends is missing");
}

static void test_swiglu_codes(void **state) {
    (void)state;
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        struct mx8_tensor offsets = {0};
        if (cases[i].n_groups) offsets = new_i32(cases[i].n_groups, cases[i].ends);
        struct mx8_tensor gate = new_normal(cases[i].dtype, 2, SHAPE(cases[i].rows, cases[i].cols)),
                          up = new_normal(cases[i].dtype, 1, SHAPE(cases[i].rows, cases[i].cols));
        raise_first_column(&up);
        struct mx8_op_call h = {.in = {gate, up}};
        run_call("swiglu", 0, &h);
        struct mx8_op_call c = {.in = {gate, up, offsets}, .n_in = 3, .options = cases[i].options};
        expect_codes("swiglu_quantize", &c, &h.out[0]);
    }
}

/* dh, gate, up, offsets?: codes of both gradients with all outputs, with one orientation of one of them, and with
 * gate's and up's own memory as the workspace. */
static void expect_gradient_codes(const struct mx8_op_call *call, const struct mx8_tensor gradient[2]) {
    const struct mx8_op *op = mx8_find_op("swiglu_backward_quantize");
    struct mx8_op_call stored[2], made = *call;
    int64_t counts[3][2];
    for (int g = 0; g < 2; g++) {
        stored[g] = (struct mx8_op_call){.in = {gradient[g], call->in[3]}, .options = call->options};
        run_counted("quantize_both", &stored[g], counts[g]);
    }
    run_counted("swiglu_backward_quantize", &made, counts[2]);
    for (int i = 0; i < 2; i++) assert_int_equal(counts[2][i], counts[0][i] + counts[1][i]);
    assert_true((counts[2][1] > 0) == (call->options.scale_group > 32));
    for (int i = 0; i < 8; i++) assert_equal(&made.out[i], &stored[i / ENDS].out[i % ENDS]);

    for (int pair = 0; pair < 8; pair += 2) { /* the other three stay absent */
        struct mx8_op_call one = made;
        for (int i = 0; i < 8; i++) {
            if (i / 2 * 2 != pair) one.out[i] = (struct mx8_tensor){0};
            if (mx8i_is_present(&one.out[i])) fill(&one.out[i], 255);
        }
        assert_ok(mx8_run_op(shelf.ctx, op, 0, &one));
        for (int i = pair; i < pair + 2; i++) assert_equal(&one.out[i], &stored[i / ENDS].out[i % ENDS]);
        one.out[pair + 1] = (struct mx8_tensor){0};
        assert_status(mx8_run_op(shelf.ctx, op, 0, &one), MX8_INVALID_ARGUMENT);
        assert_message("scales is missing, expected codes and scales or neither");
    }

    struct mx8_op_call in_place = made;
    memcpy(made.workspace, call->in[1].data, mx8_count_elements(&call->in[1]) * mx8_get_dtype_size(call->in[1].dtype));
    in_place.in[1].data = made.workspace;
    const size_t bytes = (size_t)mx8_count_elements(&call->in[2]) * mx8_get_dtype_size(call->in[2].dtype);
    in_place.in[2].data = (char *)made.workspace + (bytes + 255) / 256 * 256;
    memcpy(in_place.in[2].data, call->in[2].data, bytes);
    for (int i = 0; i < 8; i++) fill(&in_place.out[i], 255);
    assert_ok(mx8_run_op(shelf.ctx, op, 0, &in_place));
    for (int i = 0; i < 8; i++) assert_equal(&in_place.out[i], &stored[i / ENDS].out[i % ENDS]);
}

static void test_gradient_codes(void **state) {
    (void)state;
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        struct mx8_tensor in[3], offsets = {0};
        if (cases[i].n_groups) offsets = new_i32(cases[i].n_groups, cases[i].ends);
        for (int o = 0; o < 3; o++) in[o] = new_normal(cases[i].dtype, 1, SHAPE(cases[i].rows, cases[i].cols));
        raise_first_column(&in[0]);
        struct mx8_op_call backward = {.in = {in[0], in[1], in[2]}};
        run_call("swiglu", 1, &backward);
        struct mx8_op_call c = {.in = {in[0], in[1], in[2], offsets}, .n_in = 4, .options = cases[i].options};
        expect_gradient_codes(&c, backward.out);
    }
}

static void test_permuted_codes(void **state) {
    (void)state;
    for (int i = 0; i < 2 * (int)(sizeof cases / sizeof cases[0]); i++) {
        const int c = i / 2, scored = i % 2, k = cases[c].rows % 2 == 0 ? 2 : 1;
        const int64_t T = cases[c].rows / k;
        struct mx8_tensor offsets = {0}, weights = {0};
        if (cases[c].n_groups) offsets = new_i32(cases[c].n_groups, cases[c].ends);
        if (scored) weights = new_normal(MX8_F32, 1, SHAPE(T, k));
        struct mx8_tensor x = new_normal(cases[c].dtype, 1, SHAPE(T, cases[c].cols)),
                          order = new_tensor(MX8_I32, SHAPE(T * k)), positions = new_tensor(MX8_I32, SHAPE(T, k));
        raise_first_column(&x);
        for (int32_t s = 0; s < T * k; s++) { /* backwards: as good as any order */
            ((int32_t *)order.data)[s] = (int32_t)(T * k) - 1 - s;
            ((int32_t *)positions.data)[s] = (int32_t)(T * k) - 1 - s;
        }
        struct mx8_op_call rows = {.in = {x, order, positions, weights}};
        run_call("permute", 0, &rows);
        struct mx8_op_call made = {
            .in = {x, order, positions, weights, offsets}, .n_in = 5, .options = cases[c].options};
        expect_codes("permute_quantize", &made, &rows.out[0]);
    }
}

static void test_norm_codes(void **state) {
    (void)state;
    for (int i = 0; i < 2 * (int)(sizeof cases / sizeof cases[0]); i++) {
        const int c = i / 2;
        struct mx8_tensor x = new_normal(cases[c].dtype, 1, SHAPE(cases[c].rows, cases[c].cols)),
                          w = new_normal(MX8_F32, 1, SHAPE(cases[c].cols)), add = {0};
        if (i % 2) add = new_normal(cases[c].dtype, 1, SHAPE(cases[c].rows, cases[c].cols));
        struct mx8_op_call norm = {.in = {x, w, add}, .options = {.eps = 0.01f}}, both = norm;
        run_call("rmsnorm", 0, &norm);
        struct mx8_op_call codes = {.in = {norm.out[0]}, .options = cases[c].options};
        run_call("quantize_rows", 0, &codes);
        both.options = cases[c].options;
        both.options.eps = 0.01f;
        run_call("rmsnorm_quantize", 0, &both);
        for (int o = 0; o < 2 + i % 2; o++) assert_equal(&both.out[o], &norm.out[o]);
        for (int o = 0; o < 2; o++) assert_equal(&both.out[3 + o], &codes.out[o]);
    }
}

static void test_expert_codes(void **state) {
    (void)state;
    static const struct mx8_op_options styles[] = {{0}, {.scale_group = 256, .tile_rows = 32}, {.scale_group = 128}};
    for (int i = 0; i < 3; i++) {
        const int64_t E = 3, N = 64, K = i ? 288 : 40;
        struct mx8_op_call both = {.in = {new_normal(MX8_BF16, 1, SHAPE(E, N, K))}, .options = styles[i]},
                           transposed = both, rows = both;
        run_call("quantize_experts", 0, &both);
        run_call("quantize_3d", 0, &transposed);
        rows.in[0] = mx8_make_tensor(both.in[0].data, MX8_BF16, SHAPE(E * N, K));
        run_call("quantize_rows", 0, &rows);
        for (int o = 0; o < 2; o++) {
            assert_equal(&both.out[o], &rows.out[o]);
            assert_equal(&both.out[2 + o], &transposed.out[o]);
        }
    }
}

/* Codes of f32 by way of bf16 are those of the bf16 copy, whether it takes one piece or several, and others than
 * without that option. */
static void expect_rounded(const char *op, const struct mx8_tensor *x, const struct mx8_op_options *style, int n_out) {
    struct mx8_tensor copy = new_tensor(MX8_BF16, x->ndim, x->shape);
    for (int64_t i = 0; i < mx8_count_elements(x); i++)
        ((uint16_t *)copy.data)[i] = mx8_encode_bf16(((const float *)x->data)[i]);
    struct mx8_op_call stored = {.in = {copy}, .options = *style}, rounded = {.in = {*x}, .options = *style};
    rounded.options.via_bf16 = 1;
    int64_t counts[2][2];
    run_counted(op, &stored, counts[0]);
    run_counted(op, &rounded, counts[1]);
    assert_memory_equal(counts[0], counts[1], sizeof counts[0]);
    for (int i = 0; i < n_out; i++) assert_equal(&rounded.out[i], &stored.out[i]);
    if (!mx8_count_elements(x)) return;
    rounded.options.via_bf16 = 0;
    run_call(op, 0, &rounded);
    assert_memory_not_equal(rounded.out[0].data, stored.out[0].data, (size_t)mx8_count_elements(x));
    for (int i = 0; i < 2; i++) { /* bf16 is bf16 already */
        stored.options.via_bf16 = i;
        run_call(op, 0, &stored);
        assert_int_equal(stored.workspace_size, 0);
    }
}

static void test_rounded_codes(void **state) {
    static const struct mx8_op_options styles[] = {
        {.scale_rule = MX8_SCALE_FLOOR}, {.scale_group = 256, .tile_rows = 32}, {.scale_group = 128, .tile_rows = 128}};
    static const int64_t sizes[][2] = {{0, 32}, {33, 40}, {256, 1024}, {290, 1060}, {700, 1056}};
    for (int s = 0; s < 3; s++) {
        for (int i = 0; i < 5; i++) {
            struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(sizes[i][0], sizes[i][1]));
            expect_rounded("quantize_both", &x, &styles[s], 4);
            close_shelf(state);
            open_shelf(state);
        }
        for (int64_t N = 96; N <= 288; N += 192) {
            struct mx8_tensor w = new_normal(MX8_F32, 1, SHAPE(3, N, 1060));
            expect_rounded("quantize_experts", &w, &styles[s], 4);
        }
    }
}

static void test_rounding_refuses(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(40, 64));
    struct mx8_op_call call = {.in = {x}, .options = {.via_bf16 = 2}};
    assert_status(mx8_infer_op(mx8_find_op("quantize_both"), 0, &call), MX8_INVALID_ARGUMENT);
    assert_message("quantize_both: via_bf16 is 2, expected 0 to 1");
    call.options.via_bf16 = 1;
    call.in[1] = new_i32(1, (int32_t[]){40});
    assert_status(mx8_infer_op(mx8_find_op("quantize_both"), 0, &call), MX8_INVALID_ARGUMENT);
    assert_message("quantize_both: via_bf16 is 1 with offsets");
    call.in[0].shape[1] = 32; /* half of every row left out */
    call.in[1] = (struct mx8_tensor){0};
    assert_status(mx8_infer_op(mx8_find_op("quantize_both"), 0, &call), MX8_INVALID_ARGUMENT);
    assert_message("quantize_both: rows have strides 64 and 1, expected 32 and 1 with via_bf16");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_shelf_test(test_swiglu_codes), cmocka_shelf_test(test_gradient_codes),
        cmocka_shelf_test(test_permuted_codes), cmocka_shelf_test(test_norm_codes),
        cmocka_shelf_test(test_expert_codes), cmocka_shelf_test(test_rounded_codes),
        cmocka_shelf_test(test_rounding_refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
