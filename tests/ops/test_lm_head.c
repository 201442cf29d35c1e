/* lm_head_loss: against the full logits in double, whatever the chunks, and in MXFP8 against dequantized operands. */
#include "ops_test.h"
#include "ops/product.h"

enum { H, W, TARGETS, WQ, WS, WQ_T, WS_T };
enum { LOSS, DH, DW };
enum { T = 75, D = 64, V = 96 };

struct head {
    struct mx8_tensor h, w, targets;
    struct mx8_op_options options;
};

static struct head make_head(int32_t dtype, struct mx8_op_options o) {
    struct head s = {.h = new_normal(dtype, 1, SHAPE(T, D)), .w = new_normal(dtype, 0.3, SHAPE(V, D)), .options = o};
    s.targets = new_tensor(MX8_I32, SHAPE(T));
    for (int64_t t = 0; t < T; t++) put(&s.targets, t, t % 7 == 3 ? -1 - (double)(t % 2) * 99 : (double)(t * 31 % V));
    return s;
}

static struct mx8_op_call run_head(const struct head *s, int backward) {
    struct mx8_op_call c = {.in = {s->h, s->w, s->targets}, .options = s->options};
    run_call("lm_head_loss", backward, &c);
    return c;
}

static double get_loss(const struct mx8_op_call *c) {
    return get(&c->out[LOSS], 0);
}

/* Loss and gradients of given operands by the formula, all in double. */
struct reference {
    double loss;
    struct mx8_tensor dh, dw;
};

static struct reference compute(
    const struct mx8_tensor *h, const struct mx8_tensor *w, const struct mx8_tensor *targets, double scale) {
    struct mx8_tensor logits = multiply(h, w);
    struct reference r = {0};
    for (int64_t t = 0; t < T; t++) {
        double sum = 0, *row = (double *)logits.data + t * V;
        int64_t target = (int64_t)get(targets, t);
        for (int64_t v = 0; v < V; v++) sum += exp(row[v]);
        if (target >= 0) r.loss += scale * (log(sum) - row[target]);
        for (int64_t v = 0; v < V; v++) row[v] = target < 0 ? 0 : scale * (exp(row[v]) / sum - (v == target));
    }
    struct mx8_tensor wt = flip(w), ht = flip(h), lt = flip(&logits);
    r.dh = multiply(&logits, &wt);
    r.dw = multiply(&lt, &ht);
    return r;
}

static void test_matches_full_logits(void **state) {
    (void)state;
    for (int32_t scaled = 0; scaled < 2; scaled++) {
        struct head s = make_head(MX8_F32, (struct mx8_op_options){.chunk_rows = 20, .loss_scale = scaled ? 0.25f : 0});
        struct reference r = compute(&s.h, &s.w, &s.targets, scaled ? 0.25 : 1.0 / T);
        struct mx8_op_call f = run_head(&s, 0), b = run_head(&s, 1);
        assert_true(fabs(get_loss(&f) - r.loss) <= 1e-6 * r.loss);
        assert_true(get_loss(&f) == get_loss(&b));
        assert_sqnr(&r.dh, &b.out[DH], 100);
        assert_sqnr(&r.dw, &b.out[DW], 100);
    }
}

static void test_bf16(void **state) {
    (void)state;
    struct head s = make_head(MX8_BF16, (struct mx8_op_options){.chunk_rows = 32});
    struct reference r = compute(&s.h, &s.w, &s.targets, 1.0 / T);
    struct mx8_op_call b = run_head(&s, 1);
    assert_int_equal(b.out[DH].dtype, MX8_BF16);
    assert_int_equal(b.out[DW].dtype, MX8_F32);
    assert_true(fabs(get_loss(&b) - r.loss) <= 3e-3 * r.loss);
    assert_sqnr(&r.dh, &b.out[DH], 35);
    assert_sqnr(&r.dw, &b.out[DW], 35);
}

static void test_ignored_targets_have_no_gradient(void **state) {
    (void)state;
    struct head s = make_head(MX8_F32, (struct mx8_op_options){.chunk_rows = 16});
    struct mx8_op_call b = run_head(&s, 1);
    for (int64_t t = 3; t < T; t += 7) {
        struct mx8_tensor row = cut(&b.out[DH], t, 1);
        assert_zero(&row);
    }
    fill(&s.targets, -1);
    struct mx8_op_call none = run_head(&s, 1);
    assert_true(get_loss(&none) == 0);
    assert_zero(&none.out[DH]);
    assert_zero(&none.out[DW]);
}

/* The loss and dh have the same bits for all chunks; dw is summed in another grouping. */
static void test_chunks_do_not_matter(void **state) {
    (void)state;
    static const int32_t chunks[] = {1, 7, 32, 64, 74, 75, 1000};
    for (int precision = 0; precision < 2; precision++) {
        struct head s = make_head(MX8_F32, (struct mx8_op_options){.precision = precision});
        struct mx8_op_call whole = run_head(&s, 1);
        for (int i = 0; i < 7; i++) {
            s.options.chunk_rows = chunks[i];
            struct mx8_op_call b = run_head(&s, 1), f = run_head(&s, 0);
            assert_true(get_loss(&b) == get_loss(&whole) && get_loss(&f) == get_loss(&whole));
            assert_equal(&whole.out[DH], &b.out[DH]);
            assert_sqnr(&whole.out[DW], &b.out[DW], 120);
        }
    }
}

/* A chunk of logits, not all of them. */
static void test_workspace_holds_one_chunk(void **state) {
    (void)state;
    struct mx8_op_call c = {
        .in = {mx8_make_tensor(NULL, MX8_BF16, SHAPE(8192, 1024)), mx8_make_tensor(NULL, MX8_BF16, SHAPE(131072, 1024)),
            mx8_make_tensor(NULL, MX8_I32, SHAPE(8192))}};
    for (int rows = 0; rows <= 512; rows += 256) {
        c.options.chunk_rows = rows;
        assert_ok(mx8_infer_op(mx8_find_op("lm_head_loss"), 1, &c));
        size_t row_bytes = 131072 * 2, most = (rows ? (size_t)rows : 1024) * row_bytes + ((size_t)1 << 20);
        assert_true(c.workspace_size >= (rows ? (size_t)rows : 512) * row_bytes && c.workspace_size < most);
    }
}

/* Codes of a chunk's gradient are made at once, also where linear would make them in strips: a device that makes them of the
 * logits needs the room. */
static void test_workspace_holds_all_codes(void **state) {
    (void)state;
    const int64_t most = mx8i_most_dy_codes;
    struct head s = make_head(MX8_F32, (struct mx8_op_options){.precision = MX8_PRECISION_MXFP8, .chunk_rows = 32});
    struct mx8_op_call whole = run_head(&s, 1);
    mx8i_most_dy_codes = 256;
    struct mx8_op_call small = run_head(&s, 1);
    mx8i_most_dy_codes = most;
    assert_int_equal(small.workspace_size, whole.workspace_size);
    for (int i = 0; i < 3; i++) assert_equal(&whole.out[i], &small.out[i]);
}

/* Found by fuzzing: tensors without columns have as many rows as they say, and a workspace that overflows. */
static void test_more_rows_than_bytes(void **state) {
    (void)state;
    static const struct {
        int64_t rows, logits;
    } cases[] = {{64, INT64_MAX / 32}, {INT64_MAX / 8, 32}, {INT64_MAX / 32, INT64_MAX / 32}};
    for (int i = 0; i < 6; i++) {
        const int64_t rows = cases[i / 2].rows, logits = cases[i / 2].logits;
        struct mx8_op_call c = {
            .in = {mx8_make_tensor(NULL, MX8_BF16, SHAPE(rows, 0)), mx8_make_tensor(NULL, MX8_BF16, SHAPE(logits, 0)),
                mx8_make_tensor(NULL, MX8_I32, SHAPE(rows))}};
        assert_status(mx8_infer_op(mx8_find_op("lm_head_loss"), i % 2, &c), MX8_INVALID_ARGUMENT);
    }
}

static void test_accumulate(void **state) {
    (void)state;
    struct head s = make_head(MX8_F32, (struct mx8_op_options){.chunk_rows = 30});
    struct mx8_op_call once = run_head(&s, 1);
    struct mx8_op_call more = {.in = {s.h, s.w, s.targets}, .out = {[DW] = new_tensor(MX8_F32, SHAPE(V, D))}};
    fill(&more.out[DW], 2);
    more.options = s.options;
    more.options.accumulate = 1;
    run_call("lm_head_loss", 1, &more);
    assert_true(get_loss(&once) == get_loss(&more));
    assert_equal(&once.out[DH], &more.out[DH]);
    for (int64_t i = 0; i < V * D; i++) assert_true(fabs(get(&more.out[DW], i) - get(&once.out[DW], i) - 2) <= 1e-6);
}

/* ---- MXFP8 ---- */

static struct mx8_op_call quantize(const char *op, struct mx8_tensor x) {
    struct mx8_op_call c = {.in = {x}};
    run_call(op, 0, &c);
    return c;
}

static struct mx8_tensor dequantize(const struct mx8_op_call *q) {
    struct mx8_op_call c = {.in = {q->out[0], q->out[1]}, .options = {.out_dtype = 1 + MX8_F32}};
    run_call("dequantize", 0, &c);
    return c.out[0];
}

/* The loss is exactly that of the dequantized operands; gradients add the quantization of the logits' gradient. */
static void test_mxfp8(void **state) {
    (void)state;
    struct head s = make_head(MX8_F32, (struct mx8_op_options){.precision = MX8_PRECISION_MXFP8, .chunk_rows = 32});
    struct mx8_op_call hq = quantize("quantize_rows", s.h), wq = quantize("quantize_rows", s.w);
    struct mx8_tensor h = dequantize(&hq), w = dequantize(&wq);
    struct reference r = compute(&h, &w, &s.targets, 1.0 / T);
    struct mx8_op_call b = run_head(&s, 1);
    assert_true(fabs(get_loss(&b) - r.loss) <= 1e-6 * r.loss);
    assert_sqnr(&r.dh, &b.out[DH], 25);
    assert_sqnr(&r.dw, &b.out[DW], 24);
    s.options.wgrad_hp = 1;
    struct mx8_op_call hp = run_head(&s, 1);
    assert_equal(&b.out[DH], &hp.out[DH]);
    assert_false(is_equal(&b.out[DW], &hp.out[DW]));
}

static void test_given_codes_give_the_same_bits(void **state) {
    (void)state;
    struct head s = make_head(MX8_F32, (struct mx8_op_options){.precision = MX8_PRECISION_MXFP8, .chunk_rows = 32});
    struct mx8_op_call made = run_head(&s, 1), rows = quantize("quantize_rows", s.w),
                       cols = quantize("quantize_cols", s.w);
    struct mx8_op_call given = {.in = {[H] = s.h, [TARGETS] = s.targets}, .options = s.options};
    given.in[WQ] = rows.out[0], given.in[WS] = rows.out[1], given.in[WQ_T] = cols.out[0], given.in[WS_T] = cols.out[1];
    run_call("lm_head_loss", 1, &given);
    assert_true(given.workspace_size + 2 * V * D <= made.workspace_size);
    for (int i = 0; i < 3; i++) assert_equal(&made.out[i], &given.out[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_shelf_test(test_matches_full_logits),
        cmocka_shelf_test(test_bf16),
        cmocka_shelf_test(test_ignored_targets_have_no_gradient),
        cmocka_shelf_test(test_chunks_do_not_matter),
        cmocka_unit_test(test_workspace_holds_one_chunk),
        cmocka_shelf_test(test_workspace_holds_all_codes),
        cmocka_unit_test(test_more_rows_than_bytes),
        cmocka_shelf_test(test_accumulate),
        cmocka_shelf_test(test_mxfp8),
        cmocka_shelf_test(test_given_codes_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
