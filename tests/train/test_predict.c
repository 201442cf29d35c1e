/* The model behind mx8 plan: its rules, case by case; what it predicts for real machines is docs/distributed.md's. */
#include "job_testing.h"
#include <math.h>
#include "train/predict.h"

static void test_bandwidths(void **state) {
    (void)state;
    const struct mx8_gpu *h200 = mx8i_find_gpu("h200");
    assert_non_null(h200);
    assert_null(mx8i_find_gpu("h100"));
    assert_true(isinf(mx8i_get_group_bandwidth(h200, 1, 1)));
    assert_true(mx8i_get_group_bandwidth(h200, 8, 8) == h200->nvlink);
    /* eight cards carry nearly what NVLink does, one card an eighth of that */
    assert_true(mx8i_get_group_bandwidth(h200, 64, 8) == fmin(8 * h200->network, h200->nvlink));
    assert_true(mx8i_get_group_bandwidth(h200, 8, 1) == h200->network);
}

static struct mx8_prediction predict(int32_t world, const char *const *flags) {
    struct mx8_options o;
    struct mx8_job job;
    struct mx8_dist dist;
    struct mx8_model *m;
    struct mx8_prediction p;
    assert_ok(parse(&o, flags));
    assert_ok(mx8i_resolve_job_as(&o, &(struct mx8_launch){.size = world}, &job, NULL));
    mx8i_imagine_dist(&job.grid, &dist);
    if (world > 1) job.model.dist = &dist;
    assert_ok(mx8i_plan_model(&job.config, &job.recipe, &job.model, &m));
    mx8i_predict_step(&job, m, mx8i_find_gpu("h200"), &p);
    mx8i_free_model(m);
    mx8i_close_options(&o);
    return p;
}

#define PREDICT(world, ...)                                                                                            \
    predict(world, (const char *const[]){"--model.flavor=debugmodel", "--training.dataset=random", __VA_ARGS__, NULL})
#define MX "--model.converters=mx", "--mx.filter_fqns=output,router.gate", "--mx.moe_fqns_prototype=experts"

static void test_directions(void **state) {
    (void)state;
    const struct mx8_prediction one = PREDICT(1, "--activation_checkpoint.mode=none");
    assert_true(one.gather == 0 && one.reduce == 0 && one.dispatch == 0 && one.sum == 0 && one.bytes == 0 && one.fits);
    assert_true(one.step > 0 && one.tokens_per_second > 0);
    /* the parts are the step */
    assert_true(fabs(one.products + one.attention + one.elements + one.weights + one.optimizer - one.step) < 1e-12);

    const struct mx8_prediction mx = PREDICT(1, "--activation_checkpoint.mode=none", MX);
    assert_true(mx.products < one.products && mx.weights > one.weights);
    const struct mx8_prediction again = PREDICT(1, "--activation_checkpoint.mode=full");
    assert_true(again.products > 1.2 * one.products && again.products < 4.0 / 3 * one.products);

    /* made again: what is no product, and only that */
    const struct mx8_prediction ops = PREDICT(1, "--activation_checkpoint.selective_ac_option=op");
    assert_true(ops.products == one.products && ops.attention == one.attention && ops.elements == again.elements);
    assert_true(ops.elements > one.elements);
    const struct mx8_prediction small =
        PREDICT(1, "--activation_checkpoint.mode=none", "--optimizer.state_dtype=bfloat16");
    assert_true(fabs(30 * small.optimizer - 22 * one.optimizer) < 1e-12 && small.products == one.products);

    const struct mx8_prediction eight = PREDICT(8, "--activation_checkpoint.mode=none");
    const struct mx8_prediction kept =
        PREDICT(8, "--activation_checkpoint.mode=none", "--parallelism.fsdp_reshard_after_forward=never");
    assert_true(eight.gather > kept.gather && eight.reduce == kept.reduce && kept.bytes < eight.bytes);
    const struct mx8_prediction plain =
        PREDICT(8, "--activation_checkpoint.mode=none", "--parallelism.fsdp_overlap=false");
    assert_true(plain.hidden == 0 && plain.step > eight.step);
    assert_true(fabs(plain.step - eight.step - eight.hidden) < 1e-9);

    const struct mx8_prediction values = PREDICT(8, "--activation_checkpoint.mode=none", MX);
    const struct mx8_prediction codes =
        PREDICT(8, "--activation_checkpoint.mode=none", MX, "--parallelism.fsdp_gather_dtype=mxfp8");
    assert_true(codes.gather < values.gather && codes.reduce == values.reduce && codes.bytes < values.bytes);
    assert_true(codes.products == values.products && codes.weights < 1.2 * values.weights && codes.weights > 0);

    const struct mx8_prediction hybrid =
        PREDICT(16, "--activation_checkpoint.mode=none", "--parallelism.data_parallel_replicate_degree=2");
    assert_true(hybrid.sum > 0);
    const struct mx8_prediction spread =
        PREDICT(8, "--activation_checkpoint.mode=none", "--parallelism.expert_parallel_degree=8");
    assert_true(spread.dispatch > 0 && spread.gather < eight.gather);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bandwidths), cmocka_unit_test(test_directions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
