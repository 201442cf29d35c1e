/* Which checkpoint a run goes on from: the newest whole one, an earlier one that is asked for, or none. */
#include <math.h>
#include "train/resume_testing.h"

#define VALIDATE validation, "--validation.enable", "--validation.freq=2", "--validation.steps=1"

static void cut_in_half(const char *path) {
    size_t size;
    char *bytes = read_text(path, &size);
    write_file(path, bytes, size / 2);
    mx8i_release(bytes);
}

static void remove_it(const char *path) {
    assert_int_equal(unlink(path), 0);
}

static void test_damaged_checkpoints_are_passed_over(void **state) {
    (void)state;
    static const struct {
        const char *file;
        void (*damage)(const char *path);
        const char *message;
    } cases[] = {
        {"state-0000-0000.safetensors", flip_byte, "state-0000-0000.safetensors: was changed since it was saved"},
        {"model.safetensors", cut_in_half, "model.safetensors: holds"},
        {"state-0000-0000.safetensors", remove_it, "state-0000-0000.safetensors: is missing"},
        {"manifest.json", cut_in_half, "manifest.json: is cut off or changed"},
        {"manifest.json", flip_byte, "manifest.json: "}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct folder out = make_steps();
        struct outcome *o = make_outcome();
        char name[128];
        snprintf(name, sizeof name, "run/checkpoint/step-6/%s", cases[i].file);
        cases[i].damage(in_folder(&out, name));
        assert_status(
            RUN(o, &out, 1, F32, ENABLE, EVERY, "--training.steps=7", "--checkpoint.load_step=6"), MX8_FORMAT_ERROR);
        assert_message("checkpoint.load_step is 6");
        assert_message(cases[i].message);
        assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, "--training.steps=7"));
        expect_log(o, cases[i].message);
        expect_log(o, "Resuming from step 4");
        assert_int_equal(o->n, 3);
        assert_true(exists(&out, "run/checkpoint/step-6.damaged") && exists(&out, "run/checkpoint/step-6"));
        free(o);
        remove_folder(&out);
    }
}

static void test_all_damaged(void **state) {
    (void)state;
    struct folder out = make_steps();
    struct outcome *o = make_outcome();
    for (int step = 2; step <= 6; step += 2) {
        char name[128];
        snprintf(name, sizeof name, "run/checkpoint/step-%d/state-0000-0000.safetensors", step);
        flip_byte(in_folder(&out, name));
    }
    assert_status(RUN(o, &out, 1, F32, ENABLE, EVERY, "--training.steps=7"), MX8_FORMAT_ERROR);
    assert_message("none of 3 checkpoints can be resumed");
    assert_true(o->n == 0 && exists(&out, "run/checkpoint/step-2.damaged"));
    free(o);
    remove_folder(&out);
}

/* An earlier step that is asked for: what came after it is kept, but not found. */
static void test_an_earlier_step(void **state) {
    (void)state;
    struct folder out = make_steps();
    struct outcome *o = make_outcome();
    o->stop_after = 1;
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, "--training.steps=6", "--checkpoint.load_step=2"));
    assert_int_equal(o->step[0].step, 3);
    assert_true(exists(&out, "run/checkpoint/step-4.superseded") && exists(&out, "run/checkpoint/step-6.superseded"));
    assert_true(exists(&out, "run/metrics-1.jsonl")); /* the lines of steps 3 to 6 */
    memset(o, 0, sizeof *o);
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, FULL, "--training.steps=6"));
    assert_int_equal(o->step[0].step, 4); /* from the step-3 that the interrupt saved */
    expect_same_state(&out, "run/checkpoint/step-6", "run/checkpoint/step-6.superseded");
    expect_same_metrics(in_folder(&out, "run/metrics.jsonl"), in_folder(&out, "run/metrics-1.jsonl"));
    assert_status(RUN(o, &out, 1, F32, ENABLE, "--checkpoint.load_step=5"), MX8_IO_ERROR);
    assert_message("step-5");
    free(o);
    remove_folder(&out);
}

static void test_finished_runs(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    char validation[128];
    snprintf(validation, sizeof validation, "--validation.dataset_path=%s", in_folder(&corpus, "c.txt"));
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, VALIDATE));
    assert_true(exists(&out, "run/checkpoint/step-5/model.safetensors"));
    const struct mx8_summary first = o->summary;
    assert_true(first.validation_step == 5 && first.validation_loss > 0);
    memset(o, 0, sizeof *o);
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, VALIDATE));
    assert_true(o->n == 0 && o->summary.complete && o->summary.steps == 5);
    /* the same results, from the metrics: no checkpoint of weights holds them */
    assert_true(o->summary.final_loss == first.final_loss && o->summary.first_loss == first.first_loss);
    assert_true(o->summary.tokens == first.tokens && o->summary.validation_loss == first.validation_loss);
    assert_true(o->summary.validation_step == 5 && fabs(o->summary.median_tps / first.median_tps - 1) < 1e-6);
    expect_log(o, "nothing is left to do");
    assert_int_equal(rename(in_folder(&out, "run/metrics.jsonl"), in_folder(&out, "moved")), 0);
    memset(o, 0, sizeof *o);
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY));
    expect_log(o, "warning: what this run came to is not known: ");
    assert_true(o->summary.complete && isnan(o->summary.final_loss));
    assert_int_equal(rename(in_folder(&out, "moved"), in_folder(&out, "run/metrics.jsonl")), 0);
    memset(o, 0, sizeof *o);
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, "--training.steps=6"));
    expect_log(o, "step-5 holds weights only and cannot be resumed");
    expect_log(o, "warning: training.steps was \"5\" when the checkpoint was saved and is \"6\" now");
    assert_true(o->n == 2 && o->step[0].step == 5);
    assert_status(RUN(o, &out, 1, F32, ENABLE, "--training.steps=8", "--checkpoint.load_step=6"), MX8_INVALID_ARGUMENT);
    assert_message("weights only");
    free(o);
    remove_folder(&out);
}

static void test_weights_alone_cannot_be_resumed(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    assert_ok(RUN(o, &out, 1, F32, ENABLE));
    assert_status(RUN(o, &out, 1, F32, ENABLE, "--training.steps=9"), MX8_INVALID_ARGUMENT);
    assert_message("checkpoint.initial_load_path=");
    free(o);
    remove_folder(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damaged_checkpoints_are_passed_over),
        cmocka_unit_test(test_all_damaged),
        cmocka_unit_test(test_an_earlier_step),
        cmocka_unit_test(test_finished_runs),
        cmocka_unit_test(test_weights_alone_cannot_be_resumed),
    };
    return cmocka_run_group_tests(tests, make_corpus, remove_corpus);
}
