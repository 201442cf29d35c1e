/* What the plan foretells is what happens: bytes that every rank sends in a microbatch and over the replicas, and the
 * memory that it takes, to the byte. Run by mpirun with 4 processes. */
#include "model/model_helpers.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static struct mx8_dist dist;

/* A kernel table whose allocations are counted. */
static size_t allocated;
static enum mx8_status (*allocate)(const struct mx8_exec *x, size_t bytes, void **out);

static enum mx8_status count_allocation(const struct mx8_exec *x, size_t bytes, void **out) {
    allocated += bytes;
    return allocate(x, bytes, out);
}

static const struct {
    int64_t replicate, expert;
    const char *recipe;
    int32_t keep, plain, tokens_mxfp8, ac, codes;
} cases[] = {
    {1, 1, "f32", 0, 0, 0, MX8_AC_NONE, 0},
    {1, 1, "mxfp8_moe", 0, 1, 0, MX8_AC_FULL, 0},
    {2, 1, "bf16", 0, 0, 0, MX8_AC_OPS, 0},
    {1, 2, "mxfp8_moe", 1, 0, 0, MX8_AC_NONE, 0},
    {1, 4, "mxfp8_moe", 0, 0, 1, MX8_AC_FULL, 0},
    {2, 2, "bf16", 0, 0, 0, MX8_AC_NONE, 0},
    {1, 1, "mxfp8_moe", 0, 0, 0, MX8_AC_NONE, 1},
    {1, 2, "mxfp8_moe", 1, 0, 1, MX8_AC_NONE, 1},
    {2, 2, "mxfp8_moe", 0, 1, 0, MX8_AC_FULL, 1},
    {1, 4, "mxfp8_moe", 0, 0, 0, MX8_AC_OPS, 1},
};

static void check_case(size_t i) {
    struct mx8_model_config c = make_tiny_config();
    struct mx8_recipe r = make_recipe(cases[i].recipe);
    struct mx8_grid grid;
    struct mx8_dist d = {.host = dist.host};
    c.force_balance = 1; /* the plan counts on tokens spread evenly */
    assert_ok(mx8i_make_grid(dist.host.size, dist.host.rank, cases[i].replicate, -1, cases[i].expert, &grid));
    assert_ok(mx8i_open_groups(&d, &grid, -1, NULL, 20));
    struct mx8_model_options o = {.batch = 2,
        .seq_len = 32,
        .training = 1,
        .dist = &d,
        .ac_mode = cases[i].ac,
        .keep_gathered = cases[i].keep,
        .no_overlap = cases[i].plain,
        .gather_mxfp8 = cases[i].codes,
        .dispatch_mxfp8 = cases[i].tokens_mxfp8};
    struct mx8_context *ctx = make_context(1);
    struct mx8_kernels counting = *ctx->exec.k;
    allocate = counting.allocate;
    counting.allocate = count_allocation;
    ctx->exec.k = &counting;
    allocated = 0;

    struct mx8_model *m, *imagined;
    assert_ok(mx8i_plan_model(&c, &r, &o, &m));
    assert_ok(mx8i_allocate_model(m, ctx));
    const struct mx8_memory_plan *memory = mx8i_get_memory_plan(m, NULL);
    assert_int_equal(allocated, memory->total);
    assert_ok(mx8i_init_weights(m, 7));

    /* the same grid without processes gives the same plan */
    struct mx8_dist nobody;
    mx8i_imagine_dist(&grid, &nobody);
    o.dist = &nobody;
    assert_ok(mx8i_plan_model(&c, &r, &o, &imagined));
    assert_memory_equal(memory, mx8i_get_memory_plan(imagined, NULL), sizeof *memory);
    const struct mx8_traffic_plan *t = mx8i_get_traffic_plan(m);
    assert_memory_equal(t, mx8i_get_traffic_plan(imagined), sizeof *t);
    mx8i_free_model(imagined);

    int32_t *ids = make_tokens(64, c.vocab_size, 3);
    double loss = 0;
    for (int32_t step = 0; step < 2; step++) {
        int64_t before = d.traffic.sent;
        assert_ok(mx8i_forward_backward(m, ids, ids + 64, NULL, 1.0f / 256, 0, &loss));
        assert_int_equal(d.traffic.sent - before, t->gathered + t->reduced + t->dispatched);
        before = d.traffic.sent;
        assert_ok(mx8i_sum_gradients(m));
        assert_int_equal(d.traffic.sent - before, t->summed);
        assert_ok(mx8i_refresh_weights(m, 0));
    }
    assert_true(t->gathered > 0 && t->reduced > 0);
    assert_int_equal(t->summed > 0, grid.replicate > 1);
    assert_int_equal(t->dispatched > 0, grid.expert > 1);
    assert_int_equal(allocated, memory->total); /* nothing was allocated on the way */
    free(ids);
    mx8i_free_model(m);
    mx8_destroy_context(ctx);
    for (int32_t g = 1; g < MX8_GROUP_COUNT; g++) d.group[g].t->close(&d.group[g]);
}

static void test_plans(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) check_case(i);
}

int main(void) {
    struct mx8_launch launch;
    if (mx8i_find_launch(&launch) != MX8_OK || mx8i_open_dist(&launch, 20, &dist) != MX8_OK) {
        fprintf(stderr, "%s\n", mx8_get_last_error());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plans)};
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    if (failures) mx8i_abort_dist(&dist, 1);
    mx8i_close_dist(&dist);
    return failures;
}
