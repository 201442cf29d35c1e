/* The memory plan is what is allocated, a step stays inside it, and running out of memory leaves nothing behind. */
#include "model_helpers.h"
#include "model/internal.h"
#include "base/memory.h"

static const struct mx8_model_options small = {.batch = 2, .seq_len = 16, .training = 1};

static struct {
    size_t bytes;
    int64_t calls, live;
    enum mx8_status (*allocate)(const struct mx8_exec *, size_t, void **);
    void (*release)(const struct mx8_exec *, void *);
} counted;

static enum mx8_status count_allocate(const struct mx8_exec *x, size_t bytes, void **out) {
    counted.bytes += bytes;
    counted.calls++;
    counted.live++;
    return counted.allocate(x, bytes, out);
}

static void count_release(const struct mx8_exec *x, void *p) {
    counted.live--;
    counted.release(x, p);
}

static void test_plan_is_allocation(void **state) {
    (void)state;
    static const char *const recipes[] = {"f32", "bf16", "mxfp8_moe"};
    for (int i = 0; i < 6; i++) {
        struct mx8_model_config c = make_tiny_config();
        struct mx8_recipe r = make_recipe(recipes[i % 3]);
        struct mx8_model_options o = small;
        o.training = i < 3;
        struct mx8_context *ctx = make_context(2);
        struct mx8_kernels kernels = *ctx->exec.k;
        counted.bytes = 0;
        counted.calls = counted.live = 0;
        counted.allocate = kernels.allocate;
        counted.release = kernels.release;
        kernels.allocate = count_allocate;
        kernels.release = count_release;
        ctx->exec.k = &kernels;
        struct mx8_model *m;
        assert_ok(mx8i_plan_model(&c, &r, &o, &m));
        assert_int_equal(counted.calls, 0);
        assert_ok(mx8i_allocate_model(m, ctx));
        const struct mx8_memory_plan *p = mx8i_get_memory_plan(m, NULL);
        assert_int_equal(counted.bytes, p->total);
        assert_int_equal(p->masters + p->copies + p->codes + p->gradients + p->moments + p->saved + p->scratch +
                             p->workspace + p->buffers,
            p->total);
        assert_int_equal(p->gradients == 0, !o.training);
        assert_int_equal(p->codes > 0, i % 3 == 2);
        size_t elements = mx8i_get_params(m)->elements;
        assert_int_equal(p->masters, 4 * elements);
        size_t copied = 0; /* what is read in bf16: converted weights are read as codes */
        for (int64_t k = 0; i % 3 && k < m->params.count; k++)
            if (!m->params.param[k].mxfp8) copied += ((size_t)m->params.param[k].count + 63) / 64 * 64;
        assert_int_equal(p->copies, 2 * copied);
        assert_int_equal(copied < elements, i % 3 != 1);
        assert_int_equal(p->moments, o.training ? 8 * elements : 0);
        size_t total = p->total;
        assert_int_equal(mx8i_get_memory_plan(m, ctx)->total, total + ctx->exec.scratch_bytes);
        mx8i_free_model(m);
        assert_int_equal(counted.live, 0);
        mx8_destroy_context(ctx);
    }
}

/* The dry walk saw every peak: a real step reaches the same marks and none higher. */
static void test_step_stays_in_plan(void **state) {
    (void)state;
    for (int32_t mode = MX8_AC_NONE; mode <= MX8_AC_OPS; mode++) {
        struct mx8_model_config c = make_tiny_config();
        c.interleave_moe_layer_step = 2;
        c.score_before_experts = 0;
        struct mx8_model_options o = small;
        o.ac_mode = mode;
        o.ac_every = 2;
        struct subject s = make_subject(&c, "mxfp8_moe", o, 1);
        s.m->saved.peak = s.m->scratch.peak = 0;
        int32_t *ids = make_tokens(s.T, c.vocab_size, 41);
        float *logits = calloc((size_t)(s.T * c.vocab_size), sizeof *logits);
        double loss = 0;
        run_step(&s, ids, NULL);
        assert_ok(mx8i_forward(s.m, ids, ids + s.T, NULL, 1, &loss, logits));
        assert_ok(mx8i_update_expert_bias(s.m));
        assert_ok(mx8i_refresh_weights(s.m, 0));
        assert_int_equal(s.m->saved.peak, mx8i_get_memory_plan(s.m, NULL)->saved);
        /* The rest of it is workspace: an operator that gets too little of that refuses to run. */
        assert_in_range(s.m->scratch.peak, 1, mx8i_get_memory_plan(s.m, NULL)->scratch);
        free(logits);
        free(ids);
        free_subject(&s);
    }
}

/* The n-th allocation fails, for every n: the status says so and nothing leaks (AddressSanitizer watches). */
static void test_out_of_memory(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct mx8_recipe r = make_recipe("mxfp8_moe");
    struct mx8_context *ctx = make_context(1);
    int64_t n = 1;
    for (enum mx8_status status = MX8_OUT_OF_MEMORY; status != MX8_OK; n++) {
        struct mx8_model *m = NULL;
        mx8i_fail_allocation(n, 1);
        status = mx8i_plan_model(&c, &r, &small, &m);
        if (status == MX8_OK) status = mx8i_allocate_model(m, ctx);
        if (status == MX8_OK) status = mx8i_init_weights(m, 1);
        mx8i_fail_allocation(0, 0);
        if (status != MX8_OK) assert_int_equal(status, MX8_OUT_OF_MEMORY);
        mx8i_free_model(m);
    }
    assert_true(n > 10);
    mx8_destroy_context(ctx);
}

/* Maverick on this machine: refused before the first byte, with the sizes by purpose and the ways out. */
static void test_too_large(void **state) {
    (void)state;
    struct mx8_model_config c;
    struct mx8_recipe r = make_recipe("mxfp8_moe");
    struct mx8_model_options o = {.batch = 64, .seq_len = 8192, .training = 1};
    struct mx8_context *ctx = make_context(1);
    struct mx8_model *m;
    assert_ok(mx8i_find_preset("17bx128e", &c, NULL, NULL));
    assert_ok(mx8i_plan_model(&c, &r, &o, &m));
    assert_true(mx8i_get_memory_plan(m, NULL)->total > (size_t)6e12);
    assert_status(mx8i_allocate_model(m, ctx), MX8_OUT_OF_MEMORY);
    assert_message("local_batch_size");
    mx8i_free_model(m);
    mx8_destroy_context(ctx);
}

static void test_bad_options(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct mx8_recipe r = make_recipe("bf16");
    struct mx8_model *m;
    struct mx8_model_options o = small;
    o.batch = 0;
    assert_status(mx8i_plan_model(&c, &r, &o, &m), MX8_INVALID_ARGUMENT);
    assert_message("local_batch_size is 0");
    o.batch = INT64_C(1) << 40;
    assert_status(mx8i_plan_model(&c, &r, &o, &m), MX8_INVALID_ARGUMENT);
    o = small;
    o.ac_mode = MX8_AC_EVERY_N;
    assert_status(mx8i_plan_model(&c, &r, &o, &m), MX8_INVALID_ARGUMENT);
    assert_message("checkpointing");
    r.dtype = MX8_F8_E4M3;
    assert_status(mx8i_plan_model(&c, &r, &small, &m), MX8_INVALID_ARGUMENT);
    assert_message("f8_e4m3");
    r.dtype = MX8_BF16;
    double loss = 0;
    int32_t ids[64] = {0};
    assert_ok(mx8i_plan_model(&c, &r, &small, &m));
    assert_status(mx8i_forward(m, ids, ids, NULL, 1, &loss, NULL), MX8_INVALID_ARGUMENT);
    assert_message("mx8i_allocate_model");
    mx8i_free_model(m);
    mx8i_free_model(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plan_is_allocation),
        cmocka_unit_test(test_step_stays_in_plan), cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_too_large), cmocka_unit_test(test_bad_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
