/* Checkpoints as they are saved: old ones go, saves that fail are told, and memory that runs out loses nothing. */
#include "train/resume_testing.h"

static void test_old_ones_go(void **state) {
    (void)state;
    static const char *const modes[] = {"--checkpoint.async_mode=disabled", "--checkpoint.async_mode=async"};
    for (size_t i = 0; i < COUNT(modes); i++) {
        struct folder out = make_folder();
        struct outcome *o = make_outcome();
        assert_ok(RUN(o, &out, 1, F32, ENABLE, "--checkpoint.interval=1", "--checkpoint.keep_latest_k=2", modes[i]));
        assert_true(exists(&out, "run/checkpoint/step-5") && exists(&out, "run/checkpoint/step-4"));
        for (int step = 1; step < 4; step++) {
            char name[64];
            snprintf(name, sizeof name, "run/checkpoint/step-%d", step);
            assert_false(exists(&out, name));
        }
        free(o);
        remove_folder(&out);
    }
}

/* Puts a file where the folder of checkpoints was, after a step of the user's choice. */
struct saboteur {
    struct outcome o;
    struct folder *out;
    int64_t after;
};

static void sabotage(void *user, const struct mx8_job *job, const struct mx8_step *s, int64_t steps) {
    struct saboteur *x = user;
    keep_step(&x->o, job, s, steps);
    if (s->step != x->after) return;
    while (!exists(x->out, "run/checkpoint/step-2")) usleep(1000); /* may be written in the background */
    assert_int_equal(rename(in_folder(x->out, "run/checkpoint"), in_folder(x->out, "moved")), 0);
    write_file(in_folder(x->out, "run/checkpoint"), "x", 1);
}

static enum mx8_status run_sabotaged(struct saboteur *x, const char *const *flags) {
    struct mx8_options options;
    struct mx8_job job;
    struct mx8_context *ctx = NULL;
    struct mx8_watch watch = {x, {keep_outcome_line, x}, sabotage, stop_after};
    parse_job(&options, x->out, flags);
    assert_ok(mx8i_resolve_job(&options, &job, NULL));
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 1}, &ctx));
    enum mx8_status status = mx8i_run_job(&job, ctx, &watch, &x->o.summary);
    mx8_destroy_context(ctx);
    mx8i_close_options(&options);
    return status;
}

static void test_saves_that_fail(void **state) {
    (void)state;
    static const struct {
        const char *mode, *policy;
        int64_t steps; /* that are run: the failure is told after the step, or with the next save */
    } cases[] = {{"--checkpoint.async_mode=disabled", "--checkpoint.on_save_error=stop", 4},
        {"--checkpoint.async_mode=async", "--checkpoint.on_save_error=stop", -1},
        {"--checkpoint.async_mode=disabled", "--checkpoint.on_save_error=continue", 7},
        {"--checkpoint.async_mode=async", "--checkpoint.on_save_error=continue", 7}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct folder out = make_folder();
        struct saboteur *x = calloc(1, sizeof *x);
        x->out = &out;
        x->after = 3;
        assert_status(run_sabotaged(x, (const char *const[]){F32, ENABLE, EVERY, "--training.steps=7", cases[i].mode,
                                           cases[i].policy, NULL}),
            MX8_IO_ERROR);
        assert_message(cases[i].steps == 7 ? "step 7 was not saved" : "step 4 was not saved");
        assert_message("run/checkpoint");
        if (cases[i].steps > 0)
            assert_int_equal(x->o.n, cases[i].steps);
        else
            assert_in_range(x->o.n, 4, 6);
        if (cases[i].steps == 7) expect_log(&x->o, "warning: step 4 was not saved");
        /* what was there before is still good */
        assert_int_equal(unlink(in_folder(&out, "run/checkpoint")), 0);
        assert_int_equal(rename(in_folder(&out, "moved"), in_folder(&out, "run/checkpoint")), 0);
        struct outcome *o = make_outcome();
        assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, "--training.steps=3"));
        expect_log(o, "Resuming from step 2");
        free(o);
        free(x);
        remove_folder(&out);
    }
}

/* Whichever allocation fails while resuming or saving, the run ends with an error that says so. */
static void test_allocation_failures(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    static const char *const flags[] = {F32, ENABLE, "--checkpoint.interval=1", "--checkpoint.keep_latest_k=2",
        "--model.n_layers=1", "--model.dim=32", "--training.steps=4", FULL, NULL};
    assert_ok(run(o, &out, 1, flags));
    struct mx8_options options;
    struct mx8_job job;
    struct mx8_context *ctx;
    parse_job(&options, &out, flags);
    assert_ok(mx8i_resolve_job(&options, &job, NULL));
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 1}, &ctx));
    int64_t n = 0, steps = 4;
    for (enum mx8_status status = MX8_INTERNAL; status != MX8_OK && n < 40000; n += n < 20 ? 1 : 1 + n / 3) {
        job.steps = ++steps;
        mx8i_fail_allocation(n + 1, 1);
        status = mx8i_run_job(&job, ctx, NULL, NULL);
        mx8i_fail_allocation(0, 0);
        if (status != MX8_OK && status != MX8_OUT_OF_MEMORY) assert_message("memory");
    }
    assert_in_range(n, 100, 39999);
    mx8_destroy_context(ctx);
    mx8i_close_options(&options);
    free(o);
    remove_folder(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_old_ones_go),
        cmocka_unit_test(test_saves_that_fail),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, make_corpus, remove_corpus);
}
