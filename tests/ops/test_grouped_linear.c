/* grouped_linear: against torchao's own results, and against linear on every group's rows by itself. */
#include "ops_test.h"

enum { DY, BX, BW, OFFSETS, DYQ, DYS, DYQ_T, DYS_T, ENDS, XQ_T, XS_T, WQ_T, WS_T };
enum { DX, DW, DBIAS };

static const struct mx8_op_options mxfp8 = {.precision = MX8_PRECISION_MXFP8};

struct layer {
    struct mx8_tensor x, w, bias, dy, offsets;
    struct mx8_op_options options;
};
struct result {
    struct mx8_tensor y, dx, dw, dbias;
};

static struct result run_layer(const struct layer *l) {
    struct mx8_op_call f = {.in = {l->x, l->w, l->offsets, l->bias}, .options = l->options};
    struct mx8_op_call b = {.in = {l->dy, l->x, l->w, l->offsets}, .options = l->options};
    run_call("grouped_linear", 0, &f);
    run_call("grouped_linear", 1, &b);
    return (struct result){f.out[0], b.out[DX], b.out[DW], b.out[DBIAS]};
}

/* ---- torchao ---- */

static void test_matches_torchao(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int32_t rule;
    } cases[] = {
        {"grouped.even.rceil", MX8_SCALE_RCEIL},
        {"grouped.even.floor", MX8_SCALE_FLOOR},
        {"grouped.ragged.rceil", MX8_SCALE_RCEIL},
        {"grouped.ragged.floor", MX8_SCALE_FLOOR},
        {"grouped.one.rceil", MX8_SCALE_RCEIL},
        {"grouped.one.floor", MX8_SCALE_FLOOR},
    };
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(MX8_TEST_DATA "/gemm.safetensors", &st));
    for (int i = 0; i < 6; i++) {
        const char *name = cases[i].name;
        struct layer l = {.x = load(&st, name, "x"),
            .w = load(&st, name, "w"),
            .dy = load(&st, name, "dy"),
            .offsets = load(&st, name, "offs"),
            .options = mxfp8};
        struct mx8_tensor y = load(&st, name, "y"), dx = load(&st, name, "dx"), dw = load(&st, name, "dw");
        l.options.scale_rule = cases[i].rule;
        struct result r = run_layer(&l);
        assert_sqnr(&y, &r.y, 50);
        assert_sqnr(&dx, &r.dx, 50);
        assert_sqnr(&dw, &r.dw, 50);
    }
    mx8i_close_safetensors(&st);
}

/* ---- groups ---- */

/* Group sizes, then `tail` rows past the last group. `more` groups of `size` rows follow the listed ones. */
struct groups {
    int32_t size[8], count, more, more_size;
    int64_t tail;
};

static const struct groups group_cases[] = {
    {{64}, 1, 0, 0, 0}, {{44}, 1, 0, 0, 0}, {{1, 31, 32, 33, 0, 44, 7}, 7, 0, 0, 0},
    {{0, 0, 40, 0}, 4, 0, 0, 5}, /* empty groups first, between and last */
    {{0, 0, 0}, 3, 0, 0, 9},     /* nothing but empty groups and rows that belong to none */
    {{0}, 1, 0, 0, 0},           /* no rows at all */
    {{5}, 1, 32, 3, 2},          /* 33 */
    {{0}, 1, 63, 2, 0},          /* 64 */
    {{70, 0}, 2, 126, 1, 33},    /* 128 */
};
enum { GROUP_CASES = sizeof group_cases / sizeof group_cases[0] };

static struct layer make_layer(const struct groups *g, int64_t N, int64_t K, struct mx8_op_options o) {
    int32_t E = g->count + g->more, end = 0;
    struct layer l = {.offsets = new_tensor(MX8_I32, SHAPE(E)), .options = o};
    for (int32_t e = 0; e < E; e++) put(&l.offsets, e, end += e < g->count ? g->size[e] : g->more_size);
    int64_t M = end + g->tail;
    l.x = new_normal(MX8_F32, 1, SHAPE(M, K));
    l.w = new_normal(MX8_F32, 1, SHAPE(E, N, K));
    l.dy = new_normal(MX8_F32, 1, SHAPE(M, N));
    l.bias = new_normal(MX8_F32, 100, SHAPE(N));
    for (int64_t i = end * K; i < M * K; i++) put(&l.x, i, NAN);
    for (int64_t i = end * N; i < M * N; i++) put(&l.dy, i, NAN);
    return l;
}

static int64_t find_end(const struct layer *l, int64_t e) {
    return e < 0 ? 0 : (int64_t)get(&l->offsets, e);
}

static void assert_close(const struct mx8_tensor *expected, const struct mx8_tensor *got) {
    double largest = 0;
    for (int64_t i = 0; i < mx8_count_elements(expected); i++) largest = fmax(largest, fabs(get(expected, i)));
    for (int64_t i = 0; i < mx8_count_elements(expected); i++)
        if (!(fabs(get(expected, i) - get(got, i)) <= 2e-6 * largest))
            fail_msg("element %d is %g, expected %g", (int)i, get(got, i), get(expected, i));
}

/* Every group by itself is a linear product; one that starts its blocks elsewhere or reads its neighbour differs. */
static void check_groups(const struct layer *l, const struct result *r) {
    int64_t E = l->offsets.shape[0], N = l->w.shape[1], M = l->x.shape[0], end = find_end(l, E - 1);
    struct mx8_tensor bias = new_tensor(MX8_F64, SHAPE(N));
    for (int64_t e = 0; e < E; e++) {
        int64_t start = find_end(l, e - 1), rows = find_end(l, e) - start;
        struct mx8_tensor x = cut(&l->x, start, rows), dy = cut(&l->dy, start, rows), w = pick(&l->w, e);
        struct mx8_tensor y = cut(&r->y, start, rows), dx = cut(&r->dx, start, rows), dw = pick(&r->dw, e);
        struct mx8_op_call f = {.in = {x, w, l->bias}, .options = l->options};
        struct mx8_op_call b = {.in = {dy, x, w}, .options = l->options};
        run_call("linear", 0, &f);
        run_call("linear", 1, &b);
        assert_close(&f.out[0], &y);
        assert_close(&b.out[DX], &dx);
        assert_close(&b.out[DW], &dw);
        if (rows == 0) assert_zero(&dw);
        for (int64_t n = 0; n < N; n++) put(&bias, n, get(&bias, n) + get(&b.out[DBIAS], n));
    }
    assert_close(&bias, &r->dbias);
    struct mx8_tensor y = cut(&r->y, end, M - end), dx = cut(&r->dx, end, M - end);
    assert_zero(&y);
    assert_zero(&dx);
}

static void test_any_groups(void **state) {
    for (int i = 0; i < GROUP_CASES; i++) {
        for (int precision = 0; precision < 2; precision++) {
            struct mx8_op_options o = {.precision = precision};
            int64_t N = group_cases[i].more ? 32 : 64, K = group_cases[i].more ? 32 : 96;
            struct layer l = make_layer(&group_cases[i], N, K, o);
            struct result r = run_layer(&l);
            check_groups(&l, &r);
            close_shelf(state);
            open_shelf(state);
        }
    }
}

/* Many binades inside a block: normal values alone hardly notice a coarser scale. */
static void widen(const struct mx8_tensor *t) {
    for (int64_t i = 0; i < mx8_count_elements(t); i++)
        put(t, i, get(t, i) * exp(3 * mx8i_random_normal(9, 1, (uint64_t)i)));
}

static void test_options_reach_every_group(void **state) {
    (void)state;
    static const struct mx8_op_options options[] = {
        {.precision = 1, .scale_rule = MX8_SCALE_FLOOR},
        {.precision = 1, .scale_rule = MX8_SCALE_EVEN, .format = MX8_F8_E5M2},
        {.precision = 1, .scale_group = 256},
        {.precision = 1, .scale_group = 128, .weight_scale_group = 128, .weight_tile_rows = 128},
        {.precision = 1, .wgrad_hp = 1},
        {.precision = 1, .exact = 1},
    };
    struct layer l = make_layer(&group_cases[2], 64, 96, mxfp8);
    widen(&l.x);
    widen(&l.w);
    widen(&l.dy);
    struct result base = run_layer(&l);
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        l.options = options[i];
        struct result r = run_layer(&l);
        check_groups(&l, &r);
        if (options[i].exact) continue; /* the same numbers, by another way */
        assert_false(is_equal(&r.dw, &base.dw));
        assert_int_equal(is_equal(&r.y, &base.y), options[i].wgrad_hp);
        assert_int_equal(is_equal(&r.dx, &base.dx), options[i].wgrad_hp);
    }
}

static void test_accuracy_gates(void **state) {
    (void)state;
    struct layer l = make_layer(&group_cases[2], 64, 96, mxfp8);
    struct result r = run_layer(&l);
    l.options.precision = MX8_PRECISION_HIGH;
    l.bias = (struct mx8_tensor){0};
    struct result high = run_layer(&l);
    l.options = mxfp8;
    struct result plain = run_layer(&l);
    assert_sqnr(&high.y, &plain.y, 27);
    assert_sqnr(&high.dx, &r.dx, 25);
    assert_sqnr(&high.dw, &r.dw, 24);
    l.options.wgrad_hp = 1;
    struct result hp = run_layer(&l);
    assert_sqnr(&high.dw, &hp.dw, 110);
}

/* Rows that belong to no group are not quantized: clipped values there would count. */
static void test_tail_is_not_quantized(void **state) {
    (void)state;
    int64_t clipped = 0;
    struct layer l = make_layer(&group_cases[3], 64, 96, mxfp8);
    l.options.scale_rule = MX8_SCALE_FLOOR;
    fill(&l.x, 1);
    fill(&l.w, 1);
    fill(&l.dy, 1);
    for (int64_t i = find_end(&l, 3) * 96; i < mx8_count_elements(&l.x); i++) put(&l.x, i, 500);
    for (int64_t i = find_end(&l, 3) * 64; i < mx8_count_elements(&l.dy); i++) put(&l.dy, i, 500);
    shelf.ctx->saturated = &clipped;
    run_layer(&l);
    assert_int_equal(clipped, 0);
    fill(&l.x, 500);
    run_layer(&l);
    assert_int_equal(clipped, 2 * 40 * 96); /* in forward and in the weight gradient */
}

/* With accumulate an empty expert's gradient is left alone, and the others are added to. */
static void test_accumulate(void **state) {
    (void)state;
    for (int hp = 0; hp < 2; hp++) {
        struct layer l = make_layer(&group_cases[3], 64, 96, mxfp8);
        l.options.wgrad_hp = hp;
        struct result once = run_layer(&l);
        struct mx8_op_call b = {.in = {l.dy, l.x, l.w, l.offsets}, .options = l.options};
        b.options.accumulate = 1;
        b.out[DW] = new_tensor(MX8_F32, SHAPE(4, 64, 96));
        b.out[DBIAS] = new_tensor(MX8_F32, SHAPE(64));
        fill(&b.out[DW], 0.5);
        fill(&b.out[DBIAS], 0.5);
        run_call("grouped_linear", 1, &b);
        for (int64_t i = 0; i < 4 * 64 * 96; i++)
            assert_true(fabs(get(&b.out[DW], i) - get(&once.dw, i) - 0.5) <= 1e-5);
        for (int64_t i = 0; i < 64; i++) assert_true(fabs(get(&b.out[DBIAS], i) - get(&once.dbias, i) - 0.5) <= 1e-5);
        struct mx8_tensor empty = pick(&b.out[DW], 3);
        for (int64_t i = 0; i < 64 * 96; i++) assert_true(get(&empty, i) == 0.5);
    }
}

/* ---- codes given ---- */

static struct mx8_op_call quantize(const char *op, struct mx8_tensor x, struct mx8_tensor offsets) {
    struct mx8_op_call c = {.in = {x, offsets}};
    run_call(op, 0, &c);
    return c;
}

/* Weights (E,N,K) along K: one matrix of E*N rows. */
static void quantize_weights(const struct mx8_tensor *w, struct mx8_tensor *codes, struct mx8_tensor *scales) {
    int64_t E = w->shape[0], N = w->shape[1], K = w->shape[2];
    struct mx8_op_call c =
        quantize("quantize_rows", mx8_make_tensor(w->data, w->dtype, SHAPE(E * N, K)), (struct mx8_tensor){0});
    *codes = mx8_make_tensor(c.out[0].data, MX8_F8_E4M3, SHAPE(E, N, K));
    *scales = mx8_make_tensor(c.out[1].data, MX8_F8_E8M0, SHAPE(E, N, K / 32));
}

static void test_given_codes_give_the_same_bits(void **state) {
    (void)state;
    struct layer l = make_layer(&group_cases[2], 64, 96, mxfp8);
    l.bias = (struct mx8_tensor){0};
    struct result r = run_layer(&l);
    struct mx8_op_call x = quantize("quantize_both", l.x, l.offsets), dy = quantize("quantize_both", l.dy, l.offsets);
    struct mx8_op_call wt = quantize("quantize_3d", l.w, (struct mx8_tensor){0});
    struct mx8_tensor wq, ws;
    quantize_weights(&l.w, &wq, &ws);

    struct mx8_op_call f = {
        .in = {[2] = l.offsets, [4] = x.out[0], [5] = x.out[1], [6] = wq, [7] = ws}, .options = mxfp8};
    f.options.out_dtype = 1 + MX8_F32;
    run_call("grouped_linear", 0, &f);
    assert_int_equal(f.workspace_size, 0);
    assert_equal(&r.y, &f.out[0]);

    struct mx8_op_call b = {.in = {[DY] = l.dy, [OFFSETS] = l.offsets}, .options = mxfp8};
    b.in[DYQ] = dy.out[0], b.in[DYS] = dy.out[1], b.in[DYQ_T] = dy.out[2], b.in[DYS_T] = dy.out[3];
    b.in[ENDS] = dy.out[4], b.in[XQ_T] = x.out[2], b.in[XS_T] = x.out[3], b.in[WQ_T] = wt.out[0],
    b.in[WS_T] = wt.out[1];
    run_call("grouped_linear", 1, &b);
    assert_int_equal(b.workspace_size, 0);
    assert_equal(&r.dx, &b.out[DX]);
    assert_equal(&r.dw, &b.out[DW]);
    assert_equal(&r.dbias, &b.out[DBIAS]);

    struct mx8_op_call part = {.in = {[DY] = l.dy, [BX] = l.x, [OFFSETS] = l.offsets}, .options = mxfp8};
    part.in[DYQ_T] = dy.out[2], part.in[DYS_T] = dy.out[3]; /* x's codes are made inside, and the ends with them */
    run_call("grouped_linear", 1, &part);
    assert_equal(&r.dw, &part.out[DW]);
    assert_false(mx8i_is_present(&part.out[DX])); /* there is no weight */

    memset(&b.in[ENDS], 0, sizeof b.in[ENDS]);
    assert_status(try_call("grouped_linear", 1, &b, 0), MX8_INVALID_ARGUMENT);
    assert_message("without ends");
}

/* What a tensor core wants of the weight gradient's operands: groups padded further, x tiled and dy not. Neither
 * changes the other results, and padding changes dw by summation order at most. */
static void test_tensor_core_geometry(void **state) {
    (void)state;
    struct layer l = make_layer(&group_cases[2], 64, 96, mxfp8);
    widen(&l.x); /* a power-of-two scale shows only where values fall below the element's normal numbers */
    struct result plain = run_layer(&l);
    l.options.alignment = 128;
    struct result padded = run_layer(&l);
    assert_equal(&plain.y, &padded.y);
    assert_equal(&plain.dx, &padded.dx);
    assert_sqnr(&plain.dw, &padded.dw, 110);
    l.options.col_tile_rows = 32;
    struct result tiled = run_layer(&l);
    assert_equal(&plain.y, &tiled.y);
    assert_equal(&plain.dx, &tiled.dx);
    assert_sqnr(&plain.dw, &tiled.dw, 20);
    assert_true(memcmp(plain.dw.data, tiled.dw.data, (size_t)mx8_count_elements(&plain.dw) * sizeof(float)) != 0);
    l.options.alignment = 48;
    struct mx8_op_call b = {.in = {[DY] = l.dy, [BX] = l.x, [BW] = l.w, [OFFSETS] = l.offsets}, .options = l.options};
    assert_status(try_call("grouped_linear", 1, &b, 0), MX8_INVALID_ARGUMENT);
    assert_message("alignment is 48");
}

static void test_any_strides(void **state) {
    (void)state;
    for (int precision = 0; precision < 2; precision++) {
        struct mx8_op_options o = {.precision = precision};
        struct layer l = make_layer(&group_cases[3], 32, 64, o), t = l;
        struct result r = run_layer(&l);
        t.x = copy_transposed(&l.x);
        t.w = copy_transposed(&l.w);
        t.dy = copy_transposed(&l.dy);
        struct result s = run_layer(&t);
        assert_equal(&r.y, &s.y);
        assert_equal(&r.dx, &s.dx);
        assert_equal(&r.dw, &s.dw);
        assert_close(&r.dbias, &s.dbias);
    }
}

/* Threads divide the work, never the sums. */
static void test_thread_count_changes_no_bit(void **state) {
    (void)state;
    struct layer l = make_layer(&group_cases[2], 64, 96, mxfp8);
    struct result first = run_layer(&l);
    struct mx8_context *usual = shelf.ctx;
    for (int32_t threads = 1; threads <= 5; threads += 2) {
        struct mx8_context_options o = {.threads = threads};
        assert_ok(mx8_create_context(&o, &shelf.ctx));
        struct result r = run_layer(&l);
        mx8_destroy_context(shelf.ctx);
        assert_equal(&first.y, &r.y);
        assert_equal(&first.dx, &r.dx);
        assert_equal(&first.dw, &r.dw);
        assert_equal(&first.dbias, &r.dbias);
    }
    shelf.ctx = usual;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_shelf_test(test_matches_torchao),
        cmocka_shelf_test(test_any_groups),
        cmocka_shelf_test(test_options_reach_every_group),
        cmocka_shelf_test(test_accuracy_gates),
        cmocka_shelf_test(test_tail_is_not_quantized),
        cmocka_shelf_test(test_accumulate),
        cmocka_shelf_test(test_given_codes_give_the_same_bits),
        cmocka_shelf_test(test_tensor_core_geometry),
        cmocka_shelf_test(test_any_strides),
        cmocka_shelf_test(test_thread_count_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
