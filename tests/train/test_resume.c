/* Runs that stop and go on give the same bits as the run that never stopped, and nothing that lasts is left out of a
 * checkpoint. */
#include "train/resume_testing.h"
#include "train/checkpoint.h"
#include "train/run_state.h"

/* Steps [from, to) of a were run by b, bit by bit. */
static void expect_part(const struct outcome *whole, const struct outcome *part, int64_t from) {
    for (int64_t i = 0; i < part->n; i++) {
        const struct mx8_step *x = &whole->step[from + i], *y = &part->step[i];
        assert_int_equal(x->step, y->step);
        assert_true(x->loss == y->loss && x->grad_norm == y->grad_norm && x->lr == y->lr && x->tokens == y->tokens);
    }
}

/* ---- the same bits ---- */

/* 12 steps in one run; then in three runs that stop after 5, after 4 more, and at the end. The corpus is so small that
 * its end lies inside. */
static void check_three_parts(const char *const *recipe) {
    static const int64_t stops[] = {5, 4, 0};
    struct folder out = make_folder(), parts = make_folder();
    const char *flags[16] = {ENABLE, EVERY, "--training.steps=12", "--training.dataset_bytes=600",
        "--lr_scheduler.decay_ratio=0.5", "--training.global_batch_size=8"};
    for (int n = 6; *recipe; recipe++) flags[n++] = *recipe;
    struct outcome *whole = make_outcome();
    assert_ok(run(whole, &out, 1, flags));
    int64_t at = 0;
    for (size_t i = 0; i < COUNT(stops); i++) {
        struct outcome *part = make_outcome();
        part->stop_after = stops[i];
        assert_ok(run(part, &parts, 1 + (int)i % 2, flags));
        assert_int_equal(part->n, stops[i] ? stops[i] : 3);
        expect_part(whole, part, at);
        at += part->n;
        assert_true(part->summary.steps == at && part->summary.saved_step == at);
        assert_true(part->summary.resumed_at == at - part->n && part->summary.interrupted == (stops[i] > 0));
        if (i) expect_log(part, i == 1 ? "Resuming from step 5" : "Resuming from step 9");
        if (i == 2) {
            assert_true(part->summary.final_loss == whole->summary.final_loss);
            assert_true(part->summary.first_loss == whole->summary.first_loss);
        }
        free(part);
    }
    expect_same_metrics(in_folder(&out, "run/metrics.jsonl"), in_folder(&parts, "run/metrics.jsonl"));
    expect_same_file(in_folder(&out, "run/checkpoint/step-12/model.safetensors"),
        in_folder(&parts, "run/checkpoint/step-12/model.safetensors"));
    assert_false(exists(&parts, "run/metrics-1.jsonl"));
    free(whole);
    remove_folder(&out);
    remove_folder(&parts);
}

static void test_same_bits_in_three_parts(void **state) {
    (void)state;
    check_three_parts((const char *const[]){F32, NULL});
    check_three_parts((const char *const[]){MXFP8, "--checkpoint.async_mode=async", "--checkpoint.shard_mib=1", NULL});
}

/* Written in the background or at once: the same bytes. */
static void test_background_saves_the_same(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, "--checkpoint.async_mode=async", "--job.description=a"));
    expect_log(o, "Saving a checkpoint of step 2 in the background");
    expect_log(o, "Saved a checkpoint of step 4");
    assert_int_equal(rename(in_folder(&out, "run"), in_folder(&out, "background")), 0);
    memset(o, 0, sizeof *o);
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, "--checkpoint.enable_first_step_checkpoint"));
    assert_true(exists(&out, "run/checkpoint/step-1") && !exists(&out, "background/checkpoint/step-1"));
    for (int step = 2; step <= 4; step += 2) {
        char a[64], b[64];
        snprintf(a, sizeof a, "run/checkpoint/step-%d", step);
        snprintf(b, sizeof b, "background/checkpoint/step-%d", step);
        expect_same_state(&out, a, b);
    }
    free(o);
    remove_folder(&out);
}

/* ---- nothing is forgotten ---- */

/* Every purpose that the model takes memory for, and whether the next step needs what the last one left there. Another
 * purpose in the plan must be judged here first. */
static void test_every_persistent_array_is_saved(void **state) {
    (void)state;
    static const struct {
        const char *purpose;
        int persistent;
    } purposes[] = {{"masters", 1}, {"copies", 0}, {"codes", 0}, {"gradients", 0}, {"moments", 1}, {"saved", 0},
        {"scratch", 0}, {"workspace", 0}, {"buffers", 1}, {"gathered", 0}, {"reduced", 0}};
    assert_int_equal(COUNT(purposes) + 1, sizeof(struct mx8_memory_plan) / sizeof(size_t));
    struct folder out = make_folder();
    struct mx8_options options;
    struct mx8_job job;
    static const struct mx8_watch nobody;
    struct mx8_run r = {.job = &job, .watch = &nobody};
    struct mx8_state s;
    parse_job(&options, &out, (const char *const[]){F32, ENABLE, NULL});
    assert_ok(mx8i_resolve_job(&options, &job, NULL));
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 1}, &r.ctx));
    assert_ok(mx8i_open_run(&r));
    assert_ok(mx8i_describe_state(&r, MX8_CHECKPOINT_FULL, 0, &s));

    const struct mx8_param_table *t = mx8i_get_params(r.model);
    int64_t elements = 0, buffers = 0;
    for (int64_t i = 0; i < t->count; i++) elements += t->param[i].count;
    for (int64_t i = 0; i < t->buffer_count; i++) buffers += t->buffer[i].count;
    const struct {
        const void *array;
        size_t bytes; /* of the array */
        int64_t elements;
    } arrays[] = {{mx8i_get_masters(r.model), t->elements * 4, elements},
        {mx8i_get_moment(r.model, 0), t->elements * 4, elements},
        {mx8i_get_moment(r.model, 1), t->elements * 4, elements},
        {mx8i_get_buffers(r.model), t->buffer_elements * 4, buffers},
        {mx8i_get_expert_counts(r.model), (size_t)(mx8i_count_moe_layers(r.model) * 4) * 8,
            mx8i_count_moe_layers(r.model) * 4},
        {r.losses, (size_t)job.steps * 8, r.n_losses}, {&r.first_loss, 8, 1}};
    int64_t found = 0;
    for (size_t k = 0; k < COUNT(arrays); k++) {
        const char *start = arrays[k].array, *end = start + arrays[k].bytes;
        int64_t covered = 0;
        for (int64_t i = 0; i < s.n_pieces; i++) {
            const char *at = s.piece[i].data;
            if (at < start || at >= end) continue;
            covered += s.piece[i].count;
            found++;
            assert_true(s.piece[i].on_host == (k >= 4) && s.piece[i].count == s.tensor[s.piece[i].tensor].count);
        }
        assert_int_equal(covered, arrays[k].elements);
    }
    assert_true(buffers > 0 && elements > 1000);
    assert_int_equal(found, s.n_pieces); /* and nothing else is in it */
    mx8i_free_state(&s);
    mx8i_close_run(&r);
    mx8_destroy_context(r.ctx);
    mx8i_close_options(&options);
    remove_folder(&out);
}

/* Loading and saving again gives the same file: what is loaded is what is saved, counters included. */
static void test_load_and_save_again(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    assert_ok(RUN(o, &out, 1, F32, ENABLE, FULL, EVERY));
    char flag[300];
    snprintf(flag, sizeof flag, "--checkpoint.initial_load_path=%s/run/checkpoint/step-4", out.path);
    memset(o, 0, sizeof *o);
    char dump[128];
    snprintf(dump, sizeof dump, "--job.dump_folder=%s/other", out.path);
    assert_ok(RUN(o, &out, 1, F32, ENABLE, FULL, flag, dump, "--checkpoint.initial_load_model_only=false"));
    assert_int_equal(o->n, 1);
    assert_int_equal(o->step[0].step, 5);
    expect_same_state(&out, "run/checkpoint/step-5", "other/checkpoint/step-5");
    free(o);
    remove_folder(&out);
}

static void test_metrics_that_are_gone(void **state) {
    (void)state;
    struct folder out = make_steps();
    struct outcome *o = make_outcome();
    assert_int_equal(unlink(in_folder(&out, "run/metrics.jsonl")), 0);
    assert_ok(RUN(o, &out, 1, F32, ENABLE, "--training.steps=7"));
    expect_log(o, "ends at step 0: the metrics of steps up to 6 are missing");
    free(o);
    remove_folder(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_in_three_parts),
        cmocka_unit_test(test_background_saves_the_same),
        cmocka_unit_test(test_every_persistent_array_is_saved),
        cmocka_unit_test(test_load_and_save_again),
        cmocka_unit_test(test_metrics_that_are_gone),
    };
    return cmocka_run_group_tests(tests, make_corpus, remove_corpus);
}
