/* The update of converted weights makes their codes: those that quantizing the new masters gives, nothing else is
 * written, and training goes on with the bits of the way that quantizes afterwards. */
#include "model/model_helpers.h"
#include "model/internal.h"
#include "train/optimizer.h"

static const struct mx8_adamw adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

struct trained {
    struct subject s;
    struct mx8_optimizer optimizer;
    struct mx8_flat flat;
    int32_t *ids;
};

static struct trained open_model(const char *recipe, struct mx8_model_options o) {
    struct mx8_model_config c = make_tiny_config();
    o.batch = 2;
    o.seq_len = 32;
    struct trained t = {.s = make_subject(&c, recipe, o, 1), .ids = make_tokens(64, c.vocab_size, 5)};
    assert_ok(mx8i_open_optimizer(t.s.ctx, &t.optimizer));
    t.optimizer.seed = 3;
    t.flat = mx8i_view_flat(t.s.m, NULL);
    return t;
}

static void close_model(struct trained *t) {
    mx8i_close_optimizer(&t->optimizer);
    free_subject(&t->s);
    free(t->ids);
}

static double run_training_step(struct trained *t) {
    double norm = 0, loss = run_step(&t->s, t->ids, NULL);
    assert_ok(mx8i_clip_gradients(&t->optimizer, &t->flat, 1, &norm));
    assert_ok(mx8i_begin_update(&t->optimizer, &adamw, 1e-2));
    assert_ok(mx8i_apply_adamw(&t->optimizer, &t->flat, &adamw, 1e-2));
    assert_ok(mx8i_refresh_weights(t->s.m, 1));
    return loss;
}

static int64_t count_updated(const struct mx8_model *m) {
    int64_t count = 0;
    for (int64_t i = 0; i < m->params.count; i++) count += mx8i_updates_codes(m, &m->params.param[i]);
    return count;
}

/* Every element is in a stretch, or in a tensor whose update makes codes, and in one of them only. */
static void check_places(const struct mx8_model *m) {
    uint8_t *seen = calloc(m->params.elements, 1);
    assert_non_null(seen);
    for (int64_t i = 0; i < m->stretches; i++)
        for (int64_t e = 0; e < m->stretch[i].n; e++) seen[m->stretch[i].at + (size_t)e]++;
    for (int64_t i = 0; i < m->params.count; i++) {
        const struct mx8_param *p = &m->params.param[i];
        for (int64_t e = 0; e < p->count; e++)
            if (seen[p->at + (size_t)e] != !mx8i_updates_codes(m, p))
                fail_msg("%s: element %d is in %d stretches", p->name, (int)e, seen[p->at + (size_t)e]);
    }
    free(seen);
}

static void test_codes_are_those_of_the_masters(void **state) {
    (void)state;
    static const int32_t moments[] = {MX8_F32, MX8_BF16};
    for (int i = 0; i < 4; i++) {
        struct trained t =
            open_model(i / 2 ? "mxfp8_moe" : "mxfp8_dense", (struct mx8_model_options){.moment_dtype = moments[i % 2]});
        struct mx8_model *m = t.s.m;
        const size_t bytes = m->plan->codes;
        uint8_t *codes = malloc(bytes);
        assert_non_null(codes);
        assert_true(count_updated(m) > 0);
        check_places(m);
        run_training_step(&t);
        memset(m->codes, 0xEE, bytes);
        run_step(&t.s, t.ids, NULL);
        assert_ok(mx8i_begin_update(&t.optimizer, &adamw, 1e-2));
        assert_ok(mx8i_apply_adamw(&t.optimizer, &t.flat, &adamw, 1e-2));
        memcpy(codes, m->codes, bytes);
        assert_ok(mx8i_refresh_weights(m, 1)); /* makes none again */
        assert_memory_equal(codes, m->codes, bytes);
        memset(m->codes, 0xEE, bytes);
        assert_ok(mx8i_refresh_weights(m, 0)); /* makes all of them */
        assert_memory_equal(codes, m->codes, bytes);
        free(codes);
        close_model(&t);
    }
}

/* Where wide blocks are counted the values are quantized after the update. */
static void test_training_has_the_same_bits(void **state) {
    (void)state;
    static const int32_t moments[] = {MX8_F32, MX8_BF16};
    for (int i = 0; i < 2; i++) {
        struct trained fused = open_model("mxfp8_moe", (struct mx8_model_options){.moment_dtype = moments[i]});
        struct trained apart =
            open_model("mxfp8_moe", (struct mx8_model_options){.moment_dtype = moments[i], .count_gaps = 1});
        assert_true(count_updated(fused.s.m) > 0 && count_updated(apart.s.m) == 0);
        check_places(apart.s.m);
        for (int step = 0; step < 3; step++) {
            assert_true(run_training_step(&fused) == run_training_step(&apart));
            int64_t clipped[2];
            assert_ok(mx8i_take_saturated(fused.s.m, &clipped[0]));
            assert_ok(mx8i_take_saturated(apart.s.m, &clipped[1]));
            assert_int_equal(clipped[0], clipped[1]);
        }
        const struct mx8_memory_plan *p = fused.s.m->plan, *q = apart.s.m->plan;
        assert_memory_equal(fused.s.m->masters, apart.s.m->masters, p->masters);
        assert_memory_equal(fused.s.m->moments, apart.s.m->moments, p->moments);
        assert_true(p->codes == q->codes && p->total == q->total);
        assert_in_range(fused.s.m->scratch.peak, 1, p->scratch);
        close_model(&fused);
        close_model(&apart);
    }
}

static void test_who_quantizes_afterwards(void **state) {
    (void)state;
    struct trained f32 = open_model("f32", (struct mx8_model_options){0});
    struct trained bf16 = open_model("bf16", (struct mx8_model_options){0});
    struct trained control = open_model("mxfp8_moe", (struct mx8_model_options){.control = MX8_CONTROL_REUSED_CODES});
    assert_true(count_updated(f32.s.m) == 0 && count_updated(bf16.s.m) == 0 && count_updated(control.s.m) == 0);
    check_places(control.s.m);
    close_model(&f32);
    close_model(&bf16);
    close_model(&control);
}

/* Each weight once, 28 bytes of AdamW and 2.06 of codes; nothing is quantized behind it. */
static void test_profile(void **state) {
    (void)state;
    struct trained t = open_model("mxfp8_moe", (struct mx8_model_options){.moment_dtype = MX8_F32});
    struct mx8_exec *x = &t.s.ctx->exec;
    struct mx8_profile *profile;
    assert_ok(mx8i_open_profile(x, &profile));
    run_training_step(&t);
    assert_ok(mx8i_collect_profile(profile, x, 0));
    int64_t rows, calls = 0, weights = 0;
    double bytes = 0;
    const struct mx8_profile_row *row = mx8i_get_profile_rows(profile, &rows);
    for (int64_t i = 0; i < rows; i++) {
        assert_true(strcmp(row[i].label.pass, "weights"));
        if (strcmp(row[i].kernel, "adamw and quantize")) continue;
        calls += row[i].calls;
        bytes += row[i].bytes;
    }
    const struct mx8_model *m = t.s.m;
    for (int64_t i = 0; i < m->params.count; i++)
        if (mx8i_updates_codes(m, &m->params.param[i])) weights += m->params.param[i].count;
    assert_int_equal(calls, count_updated(m));
    assert_true(bytes == (double)weights * (28 + 2 * 33.0 / 32.0));
    mx8i_close_profile(x, profile);
    close_model(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes_are_those_of_the_masters),
        cmocka_unit_test(test_training_has_the_same_bits),
        cmocka_unit_test(test_who_quantizes_afterwards),
        cmocka_unit_test(test_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
