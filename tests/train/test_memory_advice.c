/* A job that does not fit into what is free: the options that the message names do make it fit. */
#include "train/loop_testing.h"
#include "train/describe.h"

static int64_t little; /* what the machine has */

static int64_t get_little(const struct mx8_exec *x) {
    (void)x;
    return little;
}

/* Bytes that the job holds. */
static int64_t plan(const char *const *flags) {
    struct folder out = make_folder();
    struct mx8_options options;
    struct mx8_job job;
    struct mx8_model *m;
    struct mx8_context *ctx;
    parse_job(&options, &out, flags);
    assert_ok(mx8i_resolve_job(&options, &job, NULL));
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 1}, &ctx));
    assert_ok(mx8i_plan_model(&job.config, &job.recipe, &job.model, &m));
    const int64_t bytes = mx8i_count_job_bytes(&job, mx8i_get_memory_plan(m, ctx));
    mx8i_free_model(m);
    mx8_destroy_context(ctx);
    mx8i_close_options(&options);
    remove_folder(&out);
    return bytes;
}

#define LAYERS    "--model.n_layers=4"
#define NONE      "--activation_checkpoint.mode=none"
#define PLAN(...) plan((const char *const[]){LAYERS, __VA_ARGS__, NULL})

/* The tiny job without checkpointing in `bytes`; where they do not do, the message has the words. */
static void check_advice(int64_t bytes, const char *words) {
    struct folder out = make_folder();
    struct mx8_options options;
    struct mx8_job job;
    struct mx8_context *ctx;
    struct mx8_summary summary;
    struct mx8_watch watch = {0};
    parse_job(&options, &out, (const char *const[]){LAYERS, NONE, "--training.steps=1", NULL});
    assert_ok(mx8i_resolve_job(&options, &job, NULL));
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 1}, &ctx));
    const struct mx8_kernels *own = ctx->exec.k;
    struct mx8_kernels poor = *own;
    poor.get_free_memory = get_little;
    little = bytes;
    ctx->exec.k = &poor;
    const enum mx8_status status = mx8i_run_job(&job, ctx, &watch, &summary);
    assert_int_equal(status, words ? MX8_OUT_OF_MEMORY : MX8_OK);
    if (words && !strstr(mx8_get_last_error(), words))
        fail_msg("\"%s\" does not say \"%s\"", mx8_get_last_error(), words);
    ctx->exec.k = own;
    mx8_destroy_context(ctx);
    mx8i_close_options(&options);
    remove_folder(&out);
}

static void test_advice(void **state) {
    (void)state;
    const int64_t all = PLAN(NONE), ops = PLAN("--activation_checkpoint.selective_ac_option=op");
    const int64_t moments = PLAN(NONE, "--optimizer.state_dtype=bfloat16");
    const int64_t least = PLAN("--activation_checkpoint.mode=full", "--optimizer.state_dtype=bfloat16",
        "--training.local_batch_size=1", "--training.global_batch_size=4");
    assert_true(ops < all && moments < all && least < ops && least < moments);
    check_advice(all, NULL);
    check_advice(0, NULL); /* unknown */
    check_advice(all - 1, "activation_checkpoint.selective_ac_option=op would make it fit");
    if (moments < ops) check_advice(moments, "optimizer.state_dtype=bfloat16 would make it fit");
    check_advice(least,
        "activation_checkpoint.mode=full, optimizer.state_dtype=bfloat16, training.local_batch_size=1 with "
        "training.global_batch_size=4 would make it fit");
    check_advice(least - 1, "it still needs");
    check_advice(all - 1, "the job needs");
    check_advice(all - 1, "has");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_advice)};
    return cmocka_run_group_tests(tests, make_corpus, remove_corpus);
}
