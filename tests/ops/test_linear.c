/* linear: against torchao's own results, against products in double, and against itself with codes given. */
#include "ops_test.h"
#include "ops/product.h"

/* Positions of the calls' tensors. */
enum { X, W, BIAS, XQ, XS, WQ, WS };
enum { DY, BX, BW, DYQ, DYS, DYQ_T, DYS_T, XQ_T, XS_T, WQ_T, WS_T };
enum { DX, DW, DBIAS };

static const struct mx8_op_options mxfp8 = {.precision = MX8_PRECISION_MXFP8};

static struct mx8_op_call run_forward(struct mx8_tensor x, struct mx8_tensor w, struct mx8_op_options o) {
    struct mx8_op_call c = {.in = {x, w}, .options = o};
    run_call("linear", 0, &c);
    return c;
}

static struct mx8_op_call run_backward(
    struct mx8_tensor dy, struct mx8_tensor x, struct mx8_tensor w, struct mx8_op_options o) {
    struct mx8_op_call c = {.in = {dy, x, w}, .options = o};
    run_call("linear", 1, &c);
    return c;
}

/* ---- torchao ---- */

static void test_matches_torchao(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int32_t rule;
    } cases[] = {
        {"dense.a.rceil", MX8_SCALE_RCEIL},
        {"dense.a.floor", MX8_SCALE_FLOOR},
        {"dense.b.rceil", MX8_SCALE_RCEIL},
        {"dense.b.floor", MX8_SCALE_FLOOR},
    };
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(MX8_TEST_DATA "/gemm.safetensors", &st));
    for (int i = 0; i < 4; i++) {
        struct mx8_op_options o = mxfp8;
        o.scale_rule = cases[i].rule;
        struct mx8_tensor x = load(&st, cases[i].name, "x"), w = load(&st, cases[i].name, "w");
        struct mx8_tensor dy = load(&st, cases[i].name, "dy"), y = load(&st, cases[i].name, "y");
        struct mx8_tensor dx = load(&st, cases[i].name, "dx"), dw = load(&st, cases[i].name, "dw");
        struct mx8_op_call f = run_forward(x, w, o), b = run_backward(dy, x, w, o);
        assert_int_equal(f.out[0].dtype, MX8_BF16);
        assert_sqnr(&y, &f.out[0], 50);
        assert_sqnr(&dx, &b.out[DX], 50);
        assert_sqnr(&dw, &b.out[DW], 50);
    }
    mx8i_close_safetensors(&st);
}

/* The rule must reach all three products: with another rule each result differs. */
static void test_scale_rule_reaches_every_product(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(64, 96)), w = new_normal(MX8_F32, 1, SHAPE(32, 96));
    struct mx8_tensor dy = new_normal(MX8_F32, 1, SHAPE(64, 32));
    struct mx8_op_call f0 = run_forward(x, w, mxfp8), b0 = run_backward(dy, x, w, mxfp8);
    for (int32_t rule = MX8_SCALE_FLOOR; rule <= MX8_SCALE_EVEN; rule++) {
        struct mx8_op_options o = mxfp8;
        o.scale_rule = rule;
        struct mx8_op_call f = run_forward(x, w, o), b = run_backward(dy, x, w, o);
        assert_false(is_equal(&f.out[0], &f0.out[0]));
        assert_false(is_equal(&b.out[DX], &b0.out[DX]));
        assert_false(is_equal(&b.out[DW], &b0.out[DW]));
    }
}

/* ---- accuracy ---- */

/* torchao's gates for random data, and the products of unquantized operands against double. */
static void check_gates(struct mx8_op_options o, int32_t dtype, double y_least, double dx_least, double dw_least) {
    struct mx8_tensor x = new_normal(dtype, 1, SHAPE(70, 128)), w = new_normal(dtype, 0.1, SHAPE(96, 128));
    struct mx8_tensor dy = new_normal(dtype, 0.01, SHAPE(70, 96));
    struct mx8_tensor wt = flip(&w), xt = flip(&x), dyt = flip(&dy);
    struct mx8_tensor y = multiply(&x, &w), dx = multiply(&dy, &wt), dw = multiply(&dyt, &xt);
    struct mx8_op_call f = run_forward(x, w, o), b = run_backward(dy, x, w, o);
    assert_sqnr(&y, &f.out[0], y_least);
    assert_sqnr(&dx, &b.out[DX], dx_least);
    assert_sqnr(&dw, &b.out[DW], dw_least);
}

static void test_accuracy_gates(void **state) {
    (void)state;
    struct mx8_op_options o = mxfp8, high = {0};
    check_gates(o, MX8_F32, 27, 25, 24);
    check_gates(o, MX8_BF16, 27, 25, 24);
    o.scale_rule = MX8_SCALE_FLOOR;
    check_gates(o, MX8_F32, 27, 25, 24);
    o = mxfp8, o.exact = 1;
    check_gates(o, MX8_F32, 27, 25, 24);
    o = mxfp8, o.scale_group = 256, o.weight_scale_group = 256, o.weight_tile_rows = 32;
    check_gates(o, MX8_F32, 27, 25, 24);
    o = mxfp8, o.wgrad_hp = 1;
    check_gates(o, MX8_F32, 27, 25, 120);
    check_gates(high, MX8_F32, 120, 120, 120);
    check_gates(high, MX8_BF16, 50, 50, 120); /* y and dx are rounded to bf16, dw is f32 */
}

static void test_bf16_gradients_and_mixed_dtypes(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_BF16, 1, SHAPE(33, 64)), w = new_normal(MX8_F32, 1, SHAPE(32, 64));
    struct mx8_tensor dy = new_normal(MX8_BF16, 1, SHAPE(33, 32)), y = multiply(&x, &w);
    struct mx8_op_options o = {.out_dtype = 1 + MX8_F32};
    struct mx8_op_call f = run_forward(x, w, o);
    assert_int_equal(f.out[0].dtype, MX8_F32);
    assert_sqnr(&y, &f.out[0], 120);
    struct mx8_op_call b = {.in = {dy, x, w}, .out = {[DW] = new_tensor(MX8_BF16, SHAPE(32, 64))}, .options = mxfp8};
    run_call("linear", 1, &b);
    struct mx8_op_call b32 = run_backward(dy, x, w, mxfp8);
    assert_int_equal(b.out[DW].dtype, MX8_BF16);
    assert_sqnr(&b32.out[DW], &b.out[DW], 45);
}

/* ---- bias ---- */

/* A large bias beside small products: a bias that is lost or added twice cannot hide. */
static void test_bias_and_its_gradient(void **state) {
    (void)state;
    for (int precision = 0; precision < 2; precision++) {
        struct mx8_op_options o = {.precision = precision};
        struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(40, 64)), w = new_normal(MX8_F32, 0.1, SHAPE(32, 64));
        struct mx8_tensor bias = new_normal(MX8_F32, 1000, SHAPE(32)), dy = new_normal(MX8_F32, 1, SHAPE(40, 32));
        struct mx8_op_call plain = run_forward(x, w, o), c = {.in = {x, w, bias}, .options = o};
        run_call("linear", 0, &c);
        for (int64_t i = 0; i < 40 * 32; i++) {
            double expected = get(&plain.out[0], i) + get(&bias, i % 32);
            assert_true(fabs(get(&c.out[0], i) - expected) <= 1e-6 * fabs(expected) + 1e-6);
        }
        struct mx8_op_call b = run_backward(dy, x, w, o);
        for (int64_t n = 0; n < 32; n++) {
            double sum = 0;
            for (int64_t m = 0; m < 40; m++) sum += get(&dy, m * 32 + n);
            assert_true(fabs(get(&b.out[DBIAS], n) - sum) <= 1e-5);
        }
    }
}

static void test_accumulate_adds(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(40, 64)), w = new_normal(MX8_F32, 1, SHAPE(32, 64));
    struct mx8_tensor dy = new_normal(MX8_F32, 1, SHAPE(40, 32));
    struct mx8_op_call once = run_backward(dy, x, w, mxfp8), twice = once;
    for (int i = 0; i < 3; i++) twice.out[i] = copy_tensor(&once.out[i]);
    twice.options.accumulate = 1;
    run_call("linear", 1, &twice);
    assert_equal(&once.out[DX], &twice.out[DX]); /* not a weight's gradient: never added to */
    for (int64_t i = 0; i < 32 * 64; i++) assert_true(get(&twice.out[DW], i) == 2 * get(&once.out[DW], i));
    for (int64_t i = 0; i < 32; i++) assert_true(get(&twice.out[DBIAS], i) == 2 * get(&once.out[DBIAS], i));
}

/* ---- strides, absent outputs ---- */

static void test_any_strides(void **state) {
    (void)state;
    for (int precision = 0; precision < 2; precision++) {
        struct mx8_op_options o = {.precision = precision};
        struct mx8_tensor x = new_normal(MX8_BF16, 1, SHAPE(37, 64)), w = new_normal(MX8_BF16, 1, SHAPE(32, 64));
        struct mx8_tensor dy = new_normal(MX8_BF16, 1, SHAPE(37, 32));
        struct mx8_tensor xt = copy_transposed(&x), wt = copy_transposed(&w), dyt = copy_transposed(&dy);
        struct mx8_op_call f0 = run_forward(x, w, o), f1 = run_forward(xt, wt, o);
        struct mx8_op_call b0 = run_backward(dy, x, w, o), b1 = run_backward(dyt, xt, wt, o);
        assert_equal(&f0.out[0], &f1.out[0]);
        assert_equal(&b0.out[DX], &b1.out[DX]);
        assert_equal(&b0.out[DW], &b1.out[DW]);
        for (int64_t n = 0; n < 32; n++) assert_true(fabs(get(&b0.out[DBIAS], n) - get(&b1.out[DBIAS], n)) <= 1e-5);

        struct mx8_tensor ones = new_tensor(MX8_F32, SHAPE(37, 32)); /* what y.sum().backward() gives */
        fill(&ones, 1);
        struct mx8_tensor expanded = ones;
        expanded.stride[0] = expanded.stride[1] = 0;
        struct mx8_op_call e0 = run_backward(ones, x, w, o), e1 = run_backward(expanded, x, w, o);
        for (int i = 0; i < 3; i++) assert_equal(&e0.out[i], &e1.out[i]);
    }
}

/* Each gradient alone is what it is beside the others. */
static void test_absent_outputs(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(37, 64)), w = new_normal(MX8_F32, 1, SHAPE(32, 64));
    struct mx8_tensor dy = new_normal(MX8_F32, 1, SHAPE(37, 32));
    struct mx8_op_call all = run_backward(dy, x, w, mxfp8);
    for (int i = 0; i < 3; i++) {
        struct mx8_op_call one = {.in = {dy, x, w}, .options = mxfp8};
        assert_ok(try_call("linear", 1, &one, 7u & ~(1u << i)));
        for (int k = 0; k < 3; k++)
            if (k != i) assert_null(one.out[k].data);
        assert_equal(&one.out[i], &all.out[i]);
    }
}

static void test_padded_outputs_keep_their_gaps(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(5, 64)), w = new_normal(MX8_F32, 1, SHAPE(7, 64));
    struct mx8_tensor wide = new_tensor(MX8_F32, SHAPE(5, 10));
    fill(&wide, -3);
    struct mx8_op_call f = run_forward(x, w, mxfp8), g = {.in = {x, w}, .out = {wide}, .options = mxfp8};
    g.out[0].shape[1] = 7;
    run_call("linear", 0, &g);
    assert_equal(&f.out[0], &g.out[0]);
    for (int64_t i = 0; i < 5; i++)
        for (int64_t n = 7; n < 10; n++) assert_true(get(&wide, i * 10 + n) == -3);
}

/* ---- codes given ---- */

static struct mx8_op_call quantize(const char *op, struct mx8_tensor x, struct mx8_op_options o) {
    struct mx8_op_call c = {.in = {x}, .options = o};
    run_call(op, 0, &c);
    return c;
}

/* x with zero rows up to a multiple of 32: quantize_cols of it has the codes that backward pads inside. */
static struct mx8_tensor pad_rows(const struct mx8_tensor *x) {
    struct mx8_tensor p = new_tensor(x->dtype, SHAPE(mx8i_round_up(x->shape[0], 32), x->shape[1]));
    for (int64_t i = 0; i < mx8_count_elements(x); i++) put(&p, i, get(x, i));
    return p;
}

static void test_given_codes_give_the_same_bits(void **state) {
    (void)state;
    for (int32_t format = MX8_F8_E4M3; format <= MX8_F8_E5M2; format++) {
        struct mx8_op_options o = mxfp8, wo = {0}, xo = {.scale_group = 128};
        o.scale_group = 128, o.weight_scale_group = 32, o.weight_tile_rows = 32;
        o.format = xo.format = wo.format = format;
        wo.tile_rows = 32;
        struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(70, 128)), w = new_normal(MX8_F32, 1, SHAPE(64, 128));
        struct mx8_tensor dy = new_normal(MX8_F32, 1, SHAPE(70, 64)), xp = pad_rows(&x), dyp = pad_rows(&dy);
        struct mx8_op_call xq = quantize("quantize_rows", x, xo), wq = quantize("quantize_rows", w, wo);
        struct mx8_op_call f0 = run_forward(x, w, o), f1 = {.options = o};
        f1.in[XQ] = xq.out[0], f1.in[XS] = xq.out[1], f1.in[WQ] = wq.out[0], f1.in[WS] = wq.out[1];
        f1.options.out_dtype = 1 + MX8_F32;
        run_call("linear", 0, &f1);
        assert_int_equal(f1.workspace_size, 0);
        assert_equal(&f0.out[0], &f1.out[0]);

        struct mx8_op_call dyq = quantize("quantize_rows", dy, xo), dyt = quantize("quantize_cols", dyp, xo);
        struct mx8_op_call xt = quantize("quantize_cols", xp, xo), wt = quantize("quantize_cols", w, wo);
        struct mx8_op_call b0 = run_backward(dy, x, w, o), b1 = {.in = {dy}, .options = o};
        b1.in[DYQ] = dyq.out[0], b1.in[DYS] = dyq.out[1], b1.in[DYQ_T] = dyt.out[0], b1.in[DYS_T] = dyt.out[1];
        b1.in[XQ_T] = xt.out[0], b1.in[XS_T] = xt.out[1], b1.in[WQ_T] = wt.out[0], b1.in[WS_T] = wt.out[1];
        run_call("linear", 1, &b1);
        assert_int_equal(b1.workspace_size, 0);
        for (int i = 0; i < 3; i++) assert_equal(&b0.out[i], &b1.out[i]);

        struct mx8_op_call b2 = b1; /* square weight tiles: one plane of codes serves both products */
        b2.in[WQ_T] = flip(&wq.out[0]);
        b2.out[DX] = new_tensor(MX8_F32, SHAPE(70, 128));
        run_call("linear", 1, &b2);
        assert_equal(&b0.out[DX], &b2.out[DX]);
    }
}

/* Given codes are read by their own dtype, whatever options.format says of those made inside. */
static void test_given_codes_keep_their_format(void **state) {
    (void)state;
    struct mx8_op_options e5m2 = {.format = MX8_F8_E5M2};
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(7, 64)), w = new_normal(MX8_F32, 1, SHAPE(5, 64)),
                      y = multiply(&x, &w);
    struct mx8_op_call xq = quantize("quantize_rows", x, e5m2), f = {.in = {[W] = w}, .options = mxfp8};
    f.in[XQ] = xq.out[0], f.in[XS] = xq.out[1];
    run_call("linear", 0, &f);
    assert_sqnr(&y, &f.out[0], 18);
}

/* ---- what reaches the kernels ---- */

static struct mx8_gemm_job seen[2];
static int seen_count;
static enum mx8_status (*real_gemm)(const struct mx8_exec *x, const struct mx8_gemm_job *j);

static enum mx8_status watch_gemm(const struct mx8_exec *x, const struct mx8_gemm_job *j) {
    seen[seen_count++ % 2] = *j;
    return real_gemm(x, j);
}

/* Options that change no number, but which way a backend takes. */
static void test_geometry_and_exact_reach_the_products(void **state) {
    (void)state;
    static struct mx8_kernels watched; /* the context keeps it until the shelf is torn down */
    watched = *shelf.ctx->exec.k;
    real_gemm = watched.gemm;
    watched.gemm = watch_gemm;
    shelf.ctx->exec.k = &watched;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(7, 64)), w = new_normal(MX8_F32, 1, SHAPE(32, 64));
    struct mx8_tensor dy = new_normal(MX8_F32, 1, SHAPE(7, 32));
    struct mx8_op_options o = {.precision = 1,
        .exact = 1,
        .scale_group = 256,
        .tile_rows = 32,
        .weight_scale_group = 128,
        .weight_tile_rows = 128};
    seen_count = 0;
    run_forward(x, w, o);
    assert_int_equal(seen_count, 1);
    assert_true(seen[0].exact && seen[0].a.scale_group == 256 && seen[0].a.tile == 32);
    assert_true(seen[0].b.scale_group == 128 && seen[0].b.tile == 128);
    o.exact = 0;
    seen_count = 0;
    run_backward(dy, x, w, o);
    assert_int_equal(seen_count, 2);
    assert_true(!seen[0].exact && seen[0].a.scale_group == 256 && seen[0].b.scale_group == 128);
    assert_true(!seen[1].exact && seen[1].a.scale_group == 256 && seen[1].b.scale_group == 256);
}

/* `exact` differs from the fast path by summation order at most. */
static void test_exact_agrees(void **state) {
    (void)state;
    struct mx8_op_options o = mxfp8;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(70, 320)), w = new_normal(MX8_F32, 1, SHAPE(64, 320));
    struct mx8_tensor dy = new_normal(MX8_F32, 1, SHAPE(70, 64));
    struct mx8_op_call f0 = run_forward(x, w, o), b0 = run_backward(dy, x, w, o);
    o.exact = 1;
    struct mx8_op_call f1 = run_forward(x, w, o), b1 = run_backward(dy, x, w, o);
    assert_sqnr(&f1.out[0], &f0.out[0], 110);
    assert_sqnr(&b1.out[DX], &b0.out[DX], 110);
    assert_sqnr(&b1.out[DW], &b0.out[DW], 110);
}

/* The counter of clipped values: FLOOR clips what lies above 448 times its scale, RCEIL nothing. */
static void test_saturation_is_counted(void **state) {
    (void)state;
    struct mx8_tensor x = new_tensor(MX8_F32, SHAPE(4, 32)), w = new_tensor(MX8_F32, SHAPE(4, 32));
    fill(&x, 500);
    fill(&w, 1);
    int64_t clipped = 0;
    shelf.ctx->saturated = &clipped;
    run_forward(x, w, mxfp8);
    assert_int_equal(clipped, 0);
    struct mx8_op_options o = mxfp8;
    o.scale_rule = MX8_SCALE_FLOOR;
    run_forward(x, w, o);
    assert_int_equal(clipped, 4 * 32);
    shelf.ctx->saturated = NULL;
}

/* dy in strips: fewer codes at a time, the same bits and counts, whichever gradients a call leaves out. */
static void test_strips_give_the_same_bits(void **state) {
    (void)state;
    static const struct mx8_op_options styles[] = {{.scale_rule = MX8_SCALE_FLOOR},
        {.scale_group = 256, .weight_scale_group = 256, .weight_tile_rows = 32, .scale_rule = MX8_SCALE_FLOOR},
        {.scale_group = 128, .tile_rows = 128, .accumulate = 1}};
    static const int64_t sizes[][2] = {{257, 800}, {1000, 288}, {512, 512}, {40, 1056}};
    const int64_t most = mx8i_most_dy_codes;
    for (size_t s = 0; s < 3; s++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const int64_t M = sizes[i][0], N = sizes[i][1], K = 96;
            struct mx8_op_options o = styles[s];
            o.precision = MX8_PRECISION_MXFP8;
            struct mx8_tensor x = new_normal(MX8_BF16, 1, SHAPE(M, K)), w = new_normal(MX8_BF16, 2, SHAPE(N, K));
            struct mx8_tensor dy = new_normal(MX8_BF16, 3, SHAPE(M, N));
            o.wgrad_hp = i == 1;
            struct mx8_op_call call[2] = {{.in = {dy, x, w}, .options = o}, {.in = {dy, x, w}, .options = o}};
            const uint32_t left_out = (uint32_t)(s + i) % 3; /* none, dx, dw */
            int64_t clipped[2] = {0, 0};
            for (int way = 0; way < 2; way++) {
                mx8i_most_dy_codes = way ? 300 * 256 : most;
                shelf.ctx->saturated = &clipped[way];
                for (int out = 0; o.accumulate && out < 3; out++) {
                    call[way].out[out] = out == 0   ? new_tensor(MX8_BF16, SHAPE(M, K))
                                         : out == 1 ? new_tensor(MX8_F32, SHAPE(N, K))
                                                    : new_tensor(MX8_F32, SHAPE(N));
                    fill(&call[way].out[out], 1);
                }
                assert_ok(try_call("linear", 1, &call[way], left_out));
                shelf.ctx->saturated = NULL;
            }
            mx8i_most_dy_codes = most;
            assert_true(M * N <= 300 * 256 || call[1].workspace_size < call[0].workspace_size);
            assert_int_equal(clipped[0], clipped[1]);
            for (int out = 0; out < 3; out++)
                if (!(left_out >> out & 1)) assert_equal(&call[0].out[out], &call[1].out[out]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_shelf_test(test_matches_torchao),
        cmocka_shelf_test(test_scale_rule_reaches_every_product),
        cmocka_shelf_test(test_accuracy_gates),
        cmocka_shelf_test(test_bf16_gradients_and_mixed_dtypes),
        cmocka_shelf_test(test_bias_and_its_gradient),
        cmocka_shelf_test(test_accumulate_adds),
        cmocka_shelf_test(test_any_strides),
        cmocka_shelf_test(test_absent_outputs),
        cmocka_shelf_test(test_padded_outputs_keep_their_gaps),
        cmocka_shelf_test(test_given_codes_give_the_same_bits),
        cmocka_shelf_test(test_given_codes_keep_their_format),
        cmocka_shelf_test(test_geometry_and_exact_reach_the_products),
        cmocka_shelf_test(test_exact_agrees),
        cmocka_shelf_test(test_saturation_is_counted),
        cmocka_shelf_test(test_strips_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
