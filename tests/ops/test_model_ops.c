/* Forward values of the model's operators against their formulas in double, with every option that they name. Their
 * gradients follow from these forwards (test_gradients.c). */
#include "ops_test.h"

static void assert_near(const struct mx8_tensor *t, int64_t index, double expected, const char *what) {
    double got = get(t, index);
    if (!(fabs(got - expected) <= 2e-5 * fmax(1, fabs(expected))))
        fail_msg("%s[%d] is %g, expected %g", what, (int)index, got, expected);
}

/* ---- norm, rope ---- */

static void test_rmsnorm(void **state) {
    (void)state;
    static const float eps[] = {0, 0.5f};
    for (int i = 0; i < 4; i++) {
        struct mx8_tensor x = new_normal(MX8_F32, 0.01, SHAPE(5, 33)), w = new_normal(MX8_F32, 1, SHAPE(33));
        struct mx8_tensor add = new_normal(MX8_F32, 0.01, SHAPE(5, 33));
        struct mx8_op_call c = {.in = {x, w}, .options = {.eps = eps[i % 2]}};
        if (i / 2) c.in[2] = add;
        run_call("rmsnorm", 0, &c);
        assert_int_equal(mx8i_is_present(&c.out[2]), i / 2);
        for (int64_t t = 0; t < 5; t++) {
            double squares = 0, s[33];
            for (int64_t d = 0; d < 33; d++) {
                s[d] = get(&x, t * 33 + d) + (i / 2 ? get(&add, t * 33 + d) : 0);
                squares += s[d] * s[d];
            }
            double rstd = 1 / sqrt(squares / 33 + (i % 2 ? 0.5 : 1e-5));
            assert_near(&c.out[1], t, rstd, "rstd");
            for (int64_t d = 0; d < 33; d++) {
                assert_near(&c.out[0], t * 33 + d, s[d] * rstd * get(&w, d), "y");
                if (i / 2) assert_near(&c.out[2], t * 33 + d, s[d], "sum");
            }
        }
    }
}

static void test_weight_gradients_accumulate(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(5, 8)), w = new_normal(MX8_F32, 1, SHAPE(8));
    struct mx8_tensor dy = new_normal(MX8_F32, 1, SHAPE(5, 8)), tokens = new_i32(5, (int32_t[]){1, 0, 1, 7, -1});
    struct mx8_op_call f = {.in = {x, w}};
    run_call("rmsnorm", 0, &f);
    struct mx8_op_call norm = {.in = {dy, x, w, f.out[1]}}, look_up = {.in = {dy, tokens}};
    look_up.out[0] = new_tensor(MX8_F32, SHAPE(3, 8));
    fill(&look_up.out[0], 77); /* overwritten */
    run_call("rmsnorm", 1, &norm);
    run_call("embedding", 1, &look_up);
    struct mx8_op_call norm_twice = norm, look_up_twice = look_up;
    norm_twice.options.accumulate = look_up_twice.options.accumulate = 1;
    norm_twice.out[1] = copy_tensor(&norm.out[1]);
    look_up_twice.out[0] = copy_tensor(&look_up.out[0]);
    run_call("rmsnorm", 1, &norm_twice);
    run_call("embedding", 1, &look_up_twice);
    for (int64_t d = 0; d < 8; d++) assert_near(&norm_twice.out[1], d, 2 * get(&norm.out[1], d), "dw of rmsnorm");
    for (int64_t i = 0; i < 24; i++)
        assert_near(&look_up_twice.out[0], i, 2 * get(&look_up.out[0], i), "dw of embedding");
    for (int64_t d = 0; d < 8; d++) {
        assert_near(&look_up.out[0], d, get(&dy, 8 + d), "dw of token 0");
        assert_near(&look_up.out[0], 8 + d, get(&dy, d) + get(&dy, 16 + d), "dw of token 1");
        assert_near(&look_up.out[0], 16 + d, 0, "dw of token 2");
    }
}

static void test_rope(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(7, 12)), table = new_tensor(MX8_F32, SHAPE(5, 2, 2));
    for (int64_t i = 0; i < 10; i++) {
        put(&table, 2 * i, cos(0.3 * (double)i));
        put(&table, 2 * i + 1, sin(0.3 * (double)i));
    }
    for (int64_t seq_len = 0; seq_len <= 3; seq_len += 3) {
        struct mx8_op_call c = {.in = {x, table}, .options = {.n_heads = 3, .seq_len = seq_len}};
        run_call("rope", 0, &c);
        for (int64_t p = 0; p < 7 * 6; p++) { /* pairs */
            int64_t t = p / 6, i = p % 2, position = t % (seq_len ? seq_len : 5);
            double angle = 0.3 * (double)(2 * position + i), a = get(&x, 2 * p), b = get(&x, 2 * p + 1);
            assert_near(&c.out[0], 2 * p, a * cos(angle) - b * sin(angle), "y");
            assert_near(&c.out[0], 2 * p + 1, a * sin(angle) + b * cos(angle), "y");
        }
        struct mx8_op_call in_place = {.in = {copy_tensor(&x), table}, .options = c.options};
        in_place.out[0] = in_place.in[0];
        run_call("rope", 0, &in_place);
        assert_equal(&c.out[0], &in_place.out[0]);
    }
}

/* ---- attention ---- */

enum { TOKENS = 12, SEQ = 6, HEADS = 4, KV_HEADS = 2, HEAD = 5 };

static int is_visible(const struct mx8_op_options *o, const struct mx8_tensor *doc, int64_t query, int64_t key) {
    int64_t i = query % SEQ, j = key % SEQ;
    if (query / SEQ != key / SEQ || j > i) return 0;
    if (o->mask == MX8_MASK_DOCUMENT && get(doc, query) != get(doc, key)) return 0;
    return o->chunk == 0 || i / o->chunk == j / o->chunk;
}

static void check_attention(const struct mx8_op_options *o, const struct mx8_tensor in[4]) {
    struct mx8_op_call c = {.in = {in[0], in[1], in[2]}, .options = *o};
    if (o->mask == MX8_MASK_DOCUMENT) c.in[3] = in[3];
    run_call("attention", 0, &c);
    double scale = o->attn_scale != 0 ? (double)o->attn_scale : 1 / sqrt(HEAD);
    for (int64_t row = 0; row < TOKENS * HEADS; row++) {
        int64_t t = row / HEADS, h = row % HEADS, kv = h / (HEADS / KV_HEADS);
        double sum = 0, out[HEAD] = {0};
        for (int64_t s = 0; s < TOKENS; s++) {
            if (!is_visible(o, &in[3], t, s)) continue;
            double score = 0;
            for (int64_t d = 0; d < HEAD; d++)
                score += get(&in[0], row * HEAD + d) * get(&in[1], (s * KV_HEADS + kv) * HEAD + d);
            double weight = exp(scale * score);
            sum += weight;
            for (int64_t d = 0; d < HEAD; d++) out[d] += weight * get(&in[2], (s * KV_HEADS + kv) * HEAD + d);
        }
        assert_near(&c.out[1], row, log(sum), "lse");
        for (int64_t d = 0; d < HEAD; d++) assert_near(&c.out[0], row * HEAD + d, out[d] / sum, "o");
    }
}

static void test_attention(void **state) {
    (void)state;
    static const struct mx8_op_options options[] = {
        {0}, {.attn_scale = 1.7f}, {.chunk = 4}, {.mask = MX8_MASK_DOCUMENT}, {.mask = MX8_MASK_DOCUMENT, .chunk = 2}};
    struct mx8_tensor in[4] = {new_normal(MX8_F32, 1, SHAPE(TOKENS, HEADS * HEAD)),
        new_normal(MX8_F32, 1, SHAPE(TOKENS, KV_HEADS * HEAD)), new_normal(MX8_F32, 1, SHAPE(TOKENS, KV_HEADS * HEAD)),
        new_i32(TOKENS, (int32_t[]){0, 0, 1, 1, 1, 0, 3, 3, 3, 3, 4, 4})};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        struct mx8_op_options o = options[i];
        o.n_heads = HEADS;
        o.n_kv_heads = KV_HEADS;
        o.seq_len = SEQ;
        check_attention(&o, in);
    }
}

/* infer asks the scalar table for all of the CPU's. */
static void test_tables_want_the_same_workspace(void **state) {
    (void)state;
    static const char *const names[] = {"avx2", "avx512"};
    const struct mx8_kernels *scalar, *other;
    char reason[160];
    struct mx8_attention_job j = {.T = 37, .S = 37, .H = 6, .KV = 2, .d = 40};
    struct mx8_embedding_job e = {.T = 37, .V = 100, .D = 40};
    assert_ok(mx8i_find_cpu_kernels("scalar", &scalar, reason, sizeof reason));
    for (int i = 0; i < 2; i++) {
        if (mx8i_find_cpu_kernels(names[i], &other, reason, sizeof reason) != MX8_OK) continue;
        for (int backward = 0; backward < 2; backward++)
            assert_int_equal(scalar->attention_workspace(&j, backward, 3), other->attention_workspace(&j, backward, 3));
        assert_int_equal(scalar->embedding_workspace(&e), other->embedding_workspace(&e));
    }
}

/* A context with more threads than infer could know of still runs in the workspace that infer asked for. */
static void test_attention_with_many_threads(void **state) {
    (void)state;
    struct mx8_context *usual = shelf.ctx;
    struct mx8_op_call c = {.options = {.n_heads = 8}}, b = {.options = {.n_heads = 8}}, many, many_b;
    for (int i = 0; i < 3; i++) c.in[i] = new_normal(MX8_F32, 1, SHAPE(40, 64));
    run_call("attention", 0, &c);
    b.in[0] = new_normal(MX8_F32, 1, SHAPE(40, 64));
    for (int i = 0; i < 3; i++) b.in[i + 1] = c.in[i];
    for (int i = 0; i < 2; i++) b.in[i + 4] = c.out[i];
    run_call("attention", 1, &b);
    many = c, many_b = b;
    memset(many.out, 0, sizeof many.out);
    memset(many_b.out, 0, sizeof many_b.out);
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 64}, &shelf.ctx));
    run_call("attention", 0, &many);
    run_call("attention", 1, &many_b);
    mx8_destroy_context(shelf.ctx);
    shelf.ctx = usual;
    for (int i = 0; i < 2; i++) assert_equal(&c.out[i], &many.out[i]);
    for (int i = 0; i < 3; i++) assert_equal(&b.out[i], &many_b.out[i]);
}

/* ---- routing ---- */

enum { EXPERTS = 5, TOP = 2, ROUTED = 9 };

static double score(const struct mx8_op_options *o, const struct mx8_tensor *logits, int64_t t, int64_t e) {
    double sum = 0;
    if (o->score_func == MX8_SCORE_SIGMOID) return 1 / (1 + exp(-get(logits, t * EXPERTS + e)));
    for (int64_t i = 0; i < EXPERTS; i++) sum += exp(get(logits, t * EXPERTS + i));
    return exp(get(logits, t * EXPERTS + e)) / sum;
}

static void check_slots(const struct mx8_op_call *c) {
    int64_t before = 0;
    for (int64_t e = 0, p = 0; e < EXPERTS; e++) { /* stable: slots of an expert in rising order */
        for (int64_t slot = 0; slot < ROUTED * TOP; slot++) {
            if ((int64_t)get(&c->out[1], slot) != e) continue;
            assert_int_equal((int64_t)get(&c->out[3], p), slot);
            assert_int_equal((int64_t)get(&c->out[4], slot), p);
            p++;
            before++;
        }
        assert_int_equal((int64_t)get(&c->out[5], e), before);
    }
}

static void test_router(void **state) {
    (void)state;
    static const struct mx8_op_options options[] = {{0}, {.route_norm = 1}, {.route_scale = 2.5f},
        {.score_func = MX8_SCORE_SOFTMAX}, {.score_func = MX8_SCORE_SOFTMAX, .route_norm = 1, .route_scale = 3}};
    struct mx8_tensor logits = new_normal(MX8_F32, 1, SHAPE(ROUTED, EXPERTS)),
                      bias = new_normal(MX8_F32, 0.5, SHAPE(EXPERTS));
    put(&logits, 0, get(&logits, 1)); /* equals: the lower index first */
    for (int i = 0; i < 10; i++) {
        struct mx8_op_options o = options[i / 2];
        struct mx8_op_call c = {.in = {logits}, .options = o};
        c.options.top_k = TOP;
        if (i % 2) c.in[1] = bias;
        run_call("router", 0, &c);
        for (int64_t t = 0; t < ROUTED; t++) {
            double s[EXPERTS], key[EXPERTS], sum = 0;
            int64_t chosen[TOP];
            for (int64_t e = 0; e < EXPERTS; e++) {
                s[e] = score(&o, &logits, t, e);
                key[e] = (double)(float)s[e] + (i % 2 ? get(&bias, e) : 0);
                assert_near(&c.out[0], t * EXPERTS + e, s[e], "scores");
            }
            for (int j = 0; j < TOP; j++) {
                chosen[j] = 0;
                for (int64_t e = 1; e < EXPERTS; e++)
                    if (key[e] > key[chosen[j]]) chosen[j] = e;
                key[chosen[j]] = -HUGE_VAL;
                sum += s[chosen[j]];
            }
            for (int64_t j = 0; j < TOP; j++) {
                assert_int_equal((int64_t)get(&c.out[1], t * TOP + j), chosen[j]);
                double weight = s[chosen[j]] * (o.route_scale != 0 ? (double)o.route_scale : 1);
                assert_near(&c.out[2], t * TOP + j, o.route_norm ? weight / sum : weight, "weights");
            }
        }
        check_slots(&c);
    }
}

static void test_permute_and_combine(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(ROUTED, 6)), base = new_normal(MX8_F32, 1, SHAPE(ROUTED, 6));
    struct mx8_op_call r = {.in = {new_normal(MX8_F32, 1, SHAPE(ROUTED, EXPERTS))}, .options = {.top_k = TOP}};
    run_call("router", 0, &r);
    struct mx8_tensor weights = r.out[2], order = r.out[3], positions = r.out[4];
    for (int weighted = 0; weighted < 2; weighted++) {
        struct mx8_op_call p = {.in = {x, order, positions}}, c = {.in = {{0}, order, positions, {0}, base}};
        if (weighted) p.in[3] = c.in[3] = weights;
        run_call("permute", 0, &p);
        for (int64_t i = 0; i < ROUTED * TOP * 6; i++) {
            int64_t slot = (int64_t)get(&order, i / 6);
            assert_near(&p.out[0], i, get(&x, slot / TOP * 6 + i % 6) * (weighted ? get(&weights, slot) : 1), "rows");
        }
        c.in[0] = p.out[0];
        run_call("combine", 0, &c);
        for (int64_t i = 0; i < ROUTED * 6; i++) {
            double sum = get(&base, i);
            for (int64_t s = i / 6 * TOP; s < (i / 6 + 1) * TOP; s++)
                sum += get(&x, i) * (weighted ? get(&weights, s) * get(&weights, s) : 1);
            assert_near(&c.out[0], i, sum, "y");
        }
        struct mx8_op_call in_place = c;
        in_place.in[4] = in_place.out[0] = copy_tensor(&base);
        run_call("combine", 0, &in_place);
        assert_equal(&c.out[0], &in_place.out[0]);
        memset(&c.in[4], 0, sizeof c.in[4]);
        run_call("combine", 0, &c);
        for (int64_t i = 0; i < ROUTED * 6; i++)
            assert_near(&c.out[0], i, get(&in_place.out[0], i) - get(&base, i), "y");
    }
}

/* ---- element by element ---- */

static void test_swiglu_and_add(void **state) {
    (void)state;
    struct mx8_tensor halves = new_normal(MX8_F32, 2, SHAPE(5, 14)), gate = halves, up = halves;
    gate.shape[1] = up.shape[1] = 7;
    up.data = (float *)halves.data + 7;
    struct mx8_op_call c = {.in = {gate, up}}, sum = {.in = {halves, new_normal(MX8_F32, 1, SHAPE(5, 14))}};
    run_call("swiglu", 0, &c);
    for (int64_t i = 0; i < 35; i++)
        assert_near(&c.out[0], i, get(&gate, i) / (1 + exp(-get(&gate, i))) * get(&up, i), "h");
    run_call("add", 0, &sum);
    for (int64_t i = 0; i < 70; i++) assert_near(&sum.out[0], i, get(&halves, i) + get(&sum.in[1], i), "y");

    struct mx8_op_call b = {.in = {new_normal(MX8_F32, 1, SHAPE(5, 7)), gate, up}},
                       over = b; /* dgate over gate, dup over up */
    run_call("swiglu", 1, &b);
    over.out[0] = gate;
    over.out[1] = up;
    run_call("swiglu", 1, &over);
    for (int i = 0; i < 2; i++) assert_equal(&b.out[i], &over.out[i]);
}

static void test_embedding(void **state) {
    (void)state;
    struct mx8_tensor w = new_normal(MX8_BF16, 1, SHAPE(4, 5)), tokens = new_i32(5, (int32_t[]){3, -1, 0, 4, 3});
    struct mx8_op_call c = {.in = {tokens, w}, .options = {.out_dtype = 1 + MX8_F32}};
    run_call("embedding", 0, &c);
    for (int64_t i = 0; i < 25; i++) {
        int64_t token = (int64_t)get(&tokens, i / 5);
        assert_true(get(&c.out[0], i) == (token < 0 || token > 3 ? 0 : get(&w, token * 5 + i % 5)));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_shelf_test(test_rmsnorm),
        cmocka_shelf_test(test_weight_gradients_accumulate),
        cmocka_shelf_test(test_rope),
        cmocka_shelf_test(test_attention),
        cmocka_unit_test(test_tables_want_the_same_workspace),
        cmocka_shelf_test(test_attention_with_many_threads),
        cmocka_shelf_test(test_router),
        cmocka_shelf_test(test_permute_and_combine),
        cmocka_shelf_test(test_swiglu_and_add),
        cmocka_shelf_test(test_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
