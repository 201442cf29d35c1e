/* The typed functions of quant.h against the oracle, the files made by torchao, and each other. */
#include "ops_test.h"
#include "mx8/quant.h"

static const int32_t rules[] = {MX8_SCALE_FLOOR, MX8_SCALE_RCEIL, MX8_SCALE_CEIL, MX8_SCALE_EVEN};
static const char *const rule_names[] = {"floor", "rceil", "ceil", "even"};

static struct mx8_tensor new_codes(int32_t ndim, const int64_t *shape) {
    return new_tensor(MX8_F8_E4M3, ndim, shape);
}
static struct mx8_tensor new_scales(int32_t ndim, const int64_t *shape) {
    return new_tensor(MX8_F8_E8M0, ndim, shape);
}

static void assert_bytes(const struct mx8_tensor *expected, const struct mx8_tensor *got, const char *what) {
    for (int64_t i = 0; i < mx8_count_elements(expected); i++)
        if (get(expected, i) != get(got, i))
            fail_msg("%s: byte %d is %d, expected %d", what, (int)i, (int)get(got, i), (int)get(expected, i));
}

/* ---- quantizers ---- */

static void test_rows_match_torchao(void **state) {
    (void)state;
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(MX8_TEST_DATA "/quantize.safetensors", &st));
    for (int i = 0; i < 4; i++) {
        char prefix[64];
        struct mx8_op_options o = {.scale_rule = rules[i]};
        struct mx8_tensor x = load(&st, "bf16.heavy", "x"), q = new_codes(SHAPE(48, 160)), s = new_scales(SHAPE(48, 5));
        snprintf(prefix, sizeof prefix, "bf16.heavy.%s", rule_names[i]);
        struct mx8_tensor expected_q = load(&st, prefix, "q"), expected_s = load(&st, prefix, "s");
        assert_ok(mx8_quantize_rows(shelf.ctx, &q, &s, &x, &o));
        assert_bytes(&expected_s, &s, prefix);
        assert_bytes(&expected_q, &q, prefix);
    }
    mx8i_close_safetensors(&st);
}

static void test_cols_and_weights_match_torchao(void **state) {
    (void)state;
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(MX8_TEST_DATA "/quantize.safetensors", &st));
    for (int i = 0; i < 2; i++) {
        char cols[64], weights[64];
        struct mx8_op_options o = {.scale_rule = rules[i]};
        snprintf(cols, sizeof cols, "col.%s", rule_names[i]);
        snprintf(weights, sizeof weights, "w3d.%s", rule_names[i]);
        struct mx8_tensor x = load(&st, "col", "x"), q = new_codes(SHAPE(64, 96)), s = new_scales(SHAPE(64, 3));
        struct mx8_tensor expected_q = load(&st, cols, "q"), expected_s = load(&st, cols, "s");
        assert_ok(mx8_quantize_cols(shelf.ctx, &q, &s, &x, &o));
        assert_bytes(&expected_q, &q, cols);
        assert_bytes(&expected_s, &s, cols);

        struct mx8_tensor w = load(&st, "w3d", "x"), wq = new_codes(SHAPE(3, 96, 64)), ws = new_scales(SHAPE(3, 3, 64));
        struct mx8_tensor expected_kn = load(&st, weights, "q_kn"), expected_ws = load(&st, weights, "s");
        wq.stride[1] = 1, wq.stride[2] = 96;
        assert_ok(mx8_quantize_3d(shelf.ctx, &wq, &ws, &w, &o));
        struct mx8_tensor kn = mx8_make_tensor(wq.data, MX8_F8_E4M3, SHAPE(3, 64, 96));
        assert_bytes(&expected_kn, &kn, weights);
        assert_bytes(&expected_ws, &ws, weights);
    }
    mx8i_close_safetensors(&st);
}

/* Sizes that are no multiples of 32, any strides, and both orientations at once: all against the oracle. */
static void check_both(int64_t M, int64_t K, int transposed, const struct mx8_op_options *o) {
    struct mx8_tensor packed = new_normal(MX8_BF16, 3, SHAPE(M, K)), x = transposed ? copy_transposed(&packed) : packed;
    int64_t kb = mx8i_count_blocks(K), mb = mx8i_count_blocks(M);
    struct mx8_tensor q[6], s[6];
    for (int i = 0; i < 3; i++) {
        q[i] = new_codes(SHAPE(M, K)), s[i] = new_scales(SHAPE(M, kb));
        q[i + 3] = new_codes(SHAPE(K, M)), s[i + 3] = new_scales(SHAPE(K, mb));
    }
    assert_ok(mx8_quantize_rows(shelf.ctx, &q[0], &s[0], &x, o));
    assert_ok(mx8_quantize_cols(shelf.ctx, &q[3], &s[3], &x, o));
    assert_ok(mx8_quantize_both(shelf.ctx, &q[1], &s[1], &q[4], &s[4], &x, o));
    struct mx8_quant_job j = {.src = packed.data,
        .src_dtype = MX8_BF16,
        .batch = 1,
        .rows = M,
        .cols = K,
        .padded_rows = M,
        .src_stride = {0, K, 1},
        .row_codes = q[2].data,
        .row_scales = s[2].data,
        .col_codes = q[5].data,
        .col_scales = s[5].data,
        .row_code_stride = {0, K, 1},
        .row_scale_stride = {0, kb, 1},
        .col_code_stride = {0, 1, M},
        .col_scale_stride = {0, 1, mb},
        .format = MX8_F8_E4M3,
        .group = 32,
        .tile = 1};
    if (o) {
        j.rule = o->scale_rule;
        j.group = o->scale_group ? o->scale_group : 32;
        j.tile = o->tile_rows ? o->tile_rows : 1;
    }
    mx8i_reference_quantize(&j);
    for (int i = 0; i < 6; i++) {
        assert_equal(&q[i], &q[i / 3 * 3 + 2]);
        assert_equal(&s[i], &s[i / 3 * 3 + 2]);
    }
}

static void test_shapes_strides_and_options(void **state) {
    static const int64_t sizes[][2] = {{1, 1}, {31, 33}, {32, 32}, {33, 31}, {70, 5}, {0, 7}, {7, 0}, {130, 300}};
    static const struct mx8_op_options options[] = {{.scale_rule = MX8_SCALE_FLOOR}, {.scale_group = 128},
        {.scale_group = 256, .tile_rows = 32}, {.tile_rows = 128}};
    for (int i = 0; i < 8; i++) {
        for (int transposed = 0; transposed < 2; transposed++) {
            check_both(sizes[i][0], sizes[i][1], transposed, NULL);
            for (int k = 0; k < 4; k++) check_both(sizes[i][0], sizes[i][1], transposed, &options[k]);
        }
        close_shelf(state);
        open_shelf(state);
    }
}

/* Neither gaps between rows nor bytes behind the last one are touched. */
static void test_gaps_stay(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(5, 40)), wide = new_codes(SHAPE(40, 9)),
                      s = new_scales(SHAPE(40, 1));
    memset(wide.data, 0x5A, 40 * 9);
    struct mx8_tensor q = wide;
    q.shape[1] = 5;
    assert_ok(mx8_quantize_cols(shelf.ctx, &q, &s, &x, NULL));
    for (int64_t i = 0; i < 40; i++)
        for (int64_t n = 5; n < 9; n++) assert_int_equal((int)get(&wide, i * 9 + n), 0x5A);
}

static void test_option_sizes(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 100, SHAPE(4, 32)), s = new_scales(SHAPE(4, 1));
    struct mx8_tensor q[3] = {new_codes(SHAPE(4, 32)), new_codes(SHAPE(4, 32)), new_codes(SHAPE(4, 32))};
    struct mx8_op_options o = {
        .size = 12, .scale_rule = MX8_SCALE_FLOOR, .format = 77}; /* an older caller: rule is known, format not */
    assert_ok(mx8_quantize_rows(shelf.ctx, &q[0], &s, &x, &o));
    o = (struct mx8_op_options){.size = sizeof o, .scale_rule = MX8_SCALE_FLOOR};
    assert_ok(mx8_quantize_rows(shelf.ctx, &q[1], &s, &x, &o));
    assert_equal(&q[0], &q[1]);
    o.size = sizeof o + 8;
    assert_status(mx8_quantize_rows(shelf.ctx, &q[2], &s, &x, &o), MX8_INVALID_ARGUMENT);
    assert_message("options.size");
}

static void test_bad_calls(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(4, 40)), q = new_codes(SHAPE(4, 40)),
                      s = new_scales(SHAPE(4, 1));
    assert_status(mx8_quantize_rows(shelf.ctx, &q, &s, &x, NULL), MX8_INVALID_ARGUMENT);
    assert_message("quantize_rows: output scales has shape (4,1), expected (4,2)");
    assert_status(mx8_quantize_rows(shelf.ctx, &q, NULL, &x, NULL), MX8_INVALID_ARGUMENT);
    assert_message("output scales is missing");
    assert_status(mx8_quantize_rows(shelf.ctx, &q, &s, NULL, NULL), MX8_INVALID_ARGUMENT);
    assert_message("x is missing");
    assert_status(mx8_quantize_rows(NULL, &q, &s, &x, NULL), MX8_INVALID_ARGUMENT);
    struct mx8_tensor w = new_normal(MX8_F32, 1, SHAPE(2, 32, 8)), wq = new_codes(SHAPE(2, 32, 8));
    struct mx8_tensor ws = new_scales(SHAPE(2, 1, 8));
    assert_status(mx8_quantize_3d(shelf.ctx, &wq, &ws, &w, NULL), MX8_INVALID_ARGUMENT);
    assert_message("output codes has stride 8 in dimension 1, expected 1");
}

/* ---- dequantize ---- */

static void test_dequantize(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(6, 70)), q = new_codes(SHAPE(6, 70)),
                      s = new_scales(SHAPE(6, 3));
    assert_ok(mx8_quantize_rows(shelf.ctx, &q, &s, &x, NULL));
    struct mx8_tensor f32 = new_tensor(MX8_F32, SHAPE(6, 70)), bf16 = new_tensor(MX8_BF16, SHAPE(6, 70));
    assert_ok(mx8_dequantize(shelf.ctx, &f32, &q, &s, NULL));
    assert_ok(mx8_dequantize(shelf.ctx, &bf16, &q, &s, NULL));
    assert_sqnr(&x, &f32, 27);
    for (int64_t i = 0; i < 6 * 70; i++) {
        double value = (double)mx8_decode_e4m3((uint8_t)get(&q, i)) *
                       (double)mx8_decode_e8m0((uint8_t)get(&s, i / 70 * 3 + i % 70 / 32));
        assert_true(get(&f32, i) == value && get(&bf16, i) == value);
    }
    /* as four dimensions, and as one */
    struct mx8_tensor q4 = mx8_make_tensor(q.data, q.dtype, SHAPE(2, 1, 3, 70)),
                      s4 = mx8_make_tensor(s.data, s.dtype, SHAPE(2, 1, 3, 3));
    struct mx8_tensor x4 = new_tensor(MX8_F32, SHAPE(2, 1, 3, 70)), x1 = new_tensor(MX8_F32, SHAPE(70));
    struct mx8_tensor q1 = mx8_make_tensor(q.data, q.dtype, SHAPE(70)), s1 = mx8_make_tensor(s.data, s.dtype, SHAPE(3));
    assert_ok(mx8_dequantize(shelf.ctx, &x4, &q4, &s4, NULL));
    assert_ok(mx8_dequantize(shelf.ctx, &x1, &q1, &s1, NULL));
    assert_equal(&f32, &x4);
    assert_memory_equal(x1.data, f32.data, 70 * sizeof(float));
}

/* The tensor's dtype says how codes are read; plain bytes follow the option. */
static void test_dequantize_formats(void **state) {
    (void)state;
    struct mx8_op_options e5m2 = {.format = MX8_F8_E5M2};
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(4, 32)), q = new_tensor(MX8_F8_E5M2, SHAPE(4, 32)),
                      s = new_scales(SHAPE(4, 1));
    struct mx8_tensor typed = new_tensor(MX8_F32, SHAPE(4, 32)), bytes = new_tensor(MX8_F32, SHAPE(4, 32)), u8 = q;
    u8.dtype = MX8_U8;
    assert_ok(mx8_quantize_rows(shelf.ctx, &q, &s, &x, &e5m2));
    assert_ok(mx8_dequantize(shelf.ctx, &typed, &q, &s, NULL));
    assert_ok(mx8_dequantize(shelf.ctx, &bytes, &u8, &s, &e5m2));
    assert_sqnr(&x, &typed, 18);
    assert_equal(&typed, &bytes);
}

/* Codes of quantize_3d through transposed views: blocks along N are the last axis of (E,K,N). */
static void test_dequantize_views(void **state) {
    (void)state;
    struct mx8_tensor w = new_normal(MX8_F32, 1, SHAPE(3, 64, 10)), q = new_codes(SHAPE(3, 64, 10)),
                      s = new_scales(SHAPE(3, 2, 10));
    q.stride[1] = 1, q.stride[2] = 64;
    assert_ok(mx8_quantize_3d(shelf.ctx, &q, &s, &w, NULL));
    struct mx8_tensor x = new_tensor(MX8_F32, SHAPE(3, 10, 64)), qt = q, st = s;
    qt.shape[1] = 10, qt.shape[2] = 64, qt.stride[1] = 64, qt.stride[2] = 1;
    st.shape[1] = 10, st.shape[2] = 2, st.stride[1] = 1, st.stride[2] = 10;
    assert_ok(mx8_dequantize(shelf.ctx, &x, &qt, &st, NULL));
    struct mx8_tensor back = x;
    back.shape[1] = 64, back.shape[2] = 10, back.stride[1] = 1, back.stride[2] = 64;
    assert_sqnr(&w, &back, 27);
}

/* ---- layouts and padding ---- */

static void check_layout(const struct mx8_safetensors *st, const char *name, int32_t layout) {
    struct mx8_op_options o = {.layout = layout};
    int grouped = layout == MX8_LAYOUT_M_GROUPS || layout == MX8_LAYOUT_K_GROUPS;
    struct mx8_tensor plain = load(st, name, "s"), expected = load(st, name, "blocked"), offsets = {0}, starts = {0};
    struct mx8_tensor expected_starts = {0}, blocked = new_scales(expected.ndim, expected.shape);
    if (grouped) {
        offsets = load(st, name, "offs"), expected_starts = load(st, name, "starts");
        starts = new_tensor(MX8_I64, expected_starts.ndim, expected_starts.shape);
    }
    memset(blocked.data, 0xEE, (size_t)mx8_count_elements(&blocked));
    assert_ok(mx8_block_scales(shelf.ctx, &blocked, grouped ? &starts : NULL, &plain, grouped ? &offsets : NULL, &o));
    assert_bytes(&expected, &blocked, name);
    if (grouped) assert_equal(&expected_starts, &starts);
    struct mx8_tensor back = new_scales(plain.ndim, plain.shape);
    assert_ok(mx8_unblock_scales(shelf.ctx, &back, &blocked, grouped ? &offsets : NULL, &o));
    assert_bytes(&plain, &back, name);
}

static void test_layouts_match_torchao(void **state) {
    (void)state;
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(MX8_TEST_DATA "/layouts.safetensors", &st));
    check_layout(&st, "plain.300x9", MX8_LAYOUT_PLAIN);
    check_layout(&st, "plain.1x1", MX8_LAYOUT_PLAIN);
    check_layout(&st, "m.a", MX8_LAYOUT_M_GROUPS);
    check_layout(&st, "m.c", MX8_LAYOUT_M_GROUPS);
    check_layout(&st, "k.b", MX8_LAYOUT_K_GROUPS);
    check_layout(&st, "k.c", MX8_LAYOUT_K_GROUPS);
    check_layout(&st, "e.3x128x4", MX8_LAYOUT_PER_EXPERT);
    mx8i_close_safetensors(&st);
}

static void test_padding_matches_torchao(void **state) {
    (void)state;
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(MX8_TEST_DATA "/layouts.safetensors", &st));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "pad.b" : "pad.a";
        struct mx8_tensor x = load(&st, name, "x"), offsets = load(&st, name, "offs"),
                          expected = load(&st, name, "padded");
        struct mx8_tensor starts = new_tensor(MX8_I32, 1, offsets.shape), ends = new_tensor(MX8_I32, 1, offsets.shape);
        struct mx8_tensor expected_starts = load(&st, name, "start"), expected_ends = load(&st, name, "end");
        int64_t rows = mx8i_round_up(x.shape[0] + 32 * offsets.shape[0], 32);
        struct mx8_tensor padded = new_tensor(MX8_BF16, SHAPE(rows, x.shape[1])),
                          back = new_tensor(MX8_BF16, 2, x.shape);
        memset(padded.data, 0xFF, (size_t)mx8_count_elements(&padded) * 2);
        assert_ok(mx8_pad_groups(shelf.ctx, &padded, &starts, &ends, &x, &offsets, NULL));
        struct mx8_tensor front = cut(&padded, 0, expected.shape[0]),
                          rest = cut(&padded, expected.shape[0], rows - expected.shape[0]);
        assert_equal(&expected, &front);
        assert_zero(&rest);
        assert_equal(&expected_starts, &starts);
        assert_equal(&expected_ends, &ends);
        assert_ok(mx8_unpad_groups(shelf.ctx, &back, &padded, &starts, &offsets, NULL));
        assert_equal(&x, &back);
    }
    mx8i_close_safetensors(&st);
}

static void test_rows_past_the_groups_come_back_zero(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(9, 3)), offsets = new_i32(2, (int32_t[]){0, 6});
    struct mx8_tensor starts = new_tensor(MX8_I32, SHAPE(2)), ends = new_tensor(MX8_I32, SHAPE(2));
    struct mx8_op_options o = {.alignment = 4};
    struct mx8_tensor padded = new_tensor(MX8_F32, SHAPE(20, 3)), back = new_normal(MX8_F32, 1, SHAPE(9, 3));
    assert_ok(mx8_pad_groups(shelf.ctx, &padded, &starts, &ends, &x, &offsets, &o));
    assert_true(get(&ends, 0) == 0 && get(&ends, 1) == 8);
    assert_ok(mx8_unpad_groups(shelf.ctx, &back, &padded, &starts, &offsets, &o));
    struct mx8_tensor kept = cut(&back, 0, 6), lost = cut(&back, 6, 3), original = cut(&x, 0, 6);
    assert_equal(&original, &kept);
    assert_zero(&lost);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_shelf_test(test_rows_match_torchao),
        cmocka_shelf_test(test_cols_and_weights_match_torchao),
        cmocka_shelf_test(test_shapes_strides_and_options),
        cmocka_shelf_test(test_gaps_stay),
        cmocka_shelf_test(test_option_sizes),
        cmocka_shelf_test(test_bad_calls),
        cmocka_shelf_test(test_dequantize),
        cmocka_shelf_test(test_dequantize_views),
        cmocka_shelf_test(test_dequantize_formats),
        cmocka_shelf_test(test_layouts_match_torchao),
        cmocka_shelf_test(test_padding_matches_torchao),
        cmocka_shelf_test(test_rows_past_the_groups_come_back_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
