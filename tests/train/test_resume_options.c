/* Going on, or starting from a checkpoint, with other options than it was saved with. */
#include <math.h>
#include "train/resume_testing.h"

static void test_options_that_disagree(void **state) {
    (void)state;
    static const struct {
        const char *flags[3];
        const char *message; /* of the error; NULL: a warning with the next */
        const char *warning;
    } cases[] = {
        {{"--training.local_batch_size=2"}, "training.global_batch_size was \"4\" and is \"2\" now", NULL},
        {{"--training.global_batch_size=8"}, "training.global_batch_size was \"4\" and is \"8\" now", NULL},
        {{"--training.seq_len=16"}, "training.seq_len was \"32\" and is \"16\" now", NULL},
        {{"--training.seed=4"}, "training.seed was \"3\" and is \"4\" now", NULL},
        {{"--training.dataset_bytes=9000"}, "training.dataset_path was", NULL},
        {{"--model.n_heads=2"}, "model.n_heads was \"4\" and is \"2\" now", NULL},
        {{"--model.rope_theta=1e4"}, "model.rope_theta was", NULL},
        {{"--model.n_layers=3"}, "model.n_layers was \"2\" and is \"3\" now", NULL},
        {{"--moe.top_k=2", "--moe.route_scale=2"}, "moe.route_scale was \"1\" and is \"2\" now", NULL},
        {{"--training.local_batch_size=2", "--training.global_batch_size=4"}, NULL, "training.local_batch_size was"},
        {{"--optimizer.lr=1e-3"}, NULL,
            "warning: optimizer.lr was \"1e-2\" when the checkpoint was saved and is \"1e-3\""},
        {{MXFP8}, NULL, "warning: model.converters was \"\""},
        {{"--training.seed=4", "--checkpoint.exclude_from_loading=dataloader"}, NULL, "training.seed was"},
        {{"--metrics.log_freq=1"}, NULL, "Resuming from step 4"},
    };
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, "--training.steps=4", FULL));
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *flags[10] = {F32, ENABLE, "--training.steps=6", "--checkpoint.interval=100"};
        for (int k = 0; k < 3; k++) flags[4 + k] = cases[i].flags[k];
        memset(o, 0, sizeof *o);
        o->stop_after = cases[i].message ? 0 : -1;
        enum mx8_status status = run(o, &out, 1, flags);
        if (cases[i].message) {
            assert_int_equal(status, MX8_INVALID_ARGUMENT);
            assert_message(cases[i].message);
            assert_message("run/checkpoint/step-4 was saved by another job");
            continue;
        }
        if (status != MX8_OK) fail_msg("case %zu: %s", i, mx8_get_last_error());
        expect_log(o, cases[i].warning);
        assert_int_equal(rename(in_folder(&out, "run/checkpoint/step-6"), in_folder(&out, "run/checkpoint/seen")), 0);
        struct folder seen = {{0}};
        snprintf(seen.path, sizeof seen.path, "%s", in_folder(&out, "run/checkpoint/seen"));
        remove_folder(&seen);
    }
    free(o);
    remove_folder(&out);
}

/* What is left out starts as a new run would have it. */
static void test_exclusions(void **state) {
    (void)state;
    struct folder out = make_steps();
    struct outcome *fresh = make_outcome(), *o = make_outcome();
    struct folder other = make_folder();
    assert_ok(RUN(fresh, &other, 1, F32, "--training.steps=2"));
    o->stop_after = 1;
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, "--training.steps=9",
        "--checkpoint.exclude_from_loading=model,optimizer,lr_scheduler,dataloader"));
    assert_true(o->step[0].step == 7 && o->step[0].loss == fresh->step[0].loss && o->step[0].tokens == 128);
    assert_true(o->step[0].grad_norm == fresh->step[0].grad_norm && o->step[0].lr == fresh->step[0].lr);
    memset(o, 0, sizeof *o);
    o->stop_after = 1;
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, "--training.steps=9", "--checkpoint.load_step=6",
        "--checkpoint.exclude_from_loading=train_state"));
    assert_true(o->step[0].step == 1 && o->step[0].tokens == 7 * 128 && o->step[0].loss < fresh->step[0].loss);
    assert_true(exists(&out, "run/checkpoint/step-6.superseded") && exists(&out, "run/checkpoint/step-1"));
    free(fresh);
    free(o);
    remove_folder(&out);
    remove_folder(&other);
}

static void test_initial_load(void **state) {
    (void)state;
    struct folder out = make_steps();
    struct outcome *o = make_outcome(), *direct = make_outcome();
    char path[300], dump[128];
    snprintf(path, sizeof path, "--checkpoint.initial_load_path=%s/run/checkpoint/step-4", out.path);
    snprintf(dump, sizeof dump, "--job.dump_folder=%s/other", out.path);
    assert_ok(RUN(o, &out, 1, F32, path, dump, "--training.steps=1"));
    expect_log(o, "Loaded the weights of step 4 from");
    assert_true(o->step[0].step == 1 && o->step[0].loss < log(288) - 0.5); /* weights that have learned, sample 0 */
    flip_byte(in_folder(&out, "run/checkpoint/step-4/state-0000-0000.safetensors"));
    assert_status(RUN(o, &out, 1, F32, path, dump, "--training.steps=1"), MX8_FORMAT_ERROR);
    assert_message("was changed since it was saved");
    snprintf(path, sizeof path, "--checkpoint.initial_load_path=%s/run/checkpoint/step-6/state-0000-0000.safetensors",
        out.path);
    assert_status(RUN(o, &out, 1, F32, path, dump, "--checkpoint.initial_load_model_only=false"), MX8_INVALID_ARGUMENT);
    assert_message("expected a folder with manifest.json");
    free(o);
    free(direct);
    remove_folder(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_that_disagree),
        cmocka_unit_test(test_exclusions),
        cmocka_unit_test(test_initial_load),
    };
    return cmocka_run_group_tests(tests, make_corpus, remove_corpus);
}
