/* Runs that stop and go on: the same bits as the run that never stopped, and what happens when a checkpoint is not what
 * it was. */
#include "train/loop_testing.h"
#include <dirent.h>
#include <math.h>
#include "base/file.h"
#include "base/memory.h"
#include "train/checkpoint.h"
#include "train/run_state.h"

#define ENABLE "--checkpoint.enable"
#define EVERY  "--checkpoint.interval=2"
#define FULL   "--checkpoint.last_save_model_only=false"

static int exists(const struct folder *out, const char *name) {
    return access(in_folder(out, name), F_OK) == 0;
}

static char *read_text(const char *path, size_t *size) {
    char *text;
    assert_ok(mx8i_read_file(path, 1 << 26, &text, size));
    return text;
}

static void expect_same_file(const char *a, const char *b) {
    size_t size_a, size_b;
    char *x = read_text(a, &size_a), *y = read_text(b, &size_b);
    if (size_a != size_b || memcmp(x, y, size_a)) fail_msg("%s and %s differ", a, b);
    mx8i_release(x);
    mx8i_release(y);
}

/* Weights and the rest of two checkpoints in the folder. */
static void expect_same_state(const struct folder *out, const char *a, const char *b) {
    static const char *const files[] = {"model.safetensors", "state-0000-0000.safetensors"};
    for (size_t i = 0; i < COUNT(files); i++) {
        char x[128], y[128];
        snprintf(x, sizeof x, "%s/%s", a, files[i]);
        snprintf(y, sizeof y, "%s/%s", b, files[i]);
        expect_same_file(in_folder(out, x), in_folder(out, y));
    }
}

/* Lines of metrics.jsonl without their times: the part before "seconds", the part from "saturated" on. */
static void read_metrics(const char *path, struct lines *out) {
    FILE *file = fopen(path, "r");
    char line[4096], kept[4096];
    assert_non_null(file);
    out->used = 0;
    while (fgets(line, sizeof line, file)) {
        char *seconds = strstr(line, ",\"seconds\""), *rest = strstr(line, ",\"saturated\"");
        assert_true(seconds && rest);
        *seconds = 0;
        rest[strcspn(rest, "\n")] = 0;
        snprintf(kept, sizeof kept, "%s%s", line, rest);
        keep_line(out, kept);
    }
    fclose(file);
}

static void expect_same_metrics(const char *a, const char *b) {
    struct lines *x = calloc(1, sizeof *x), *y = calloc(1, sizeof *y);
    read_metrics(a, x);
    read_metrics(b, y);
    assert_string_equal(x->text, y->text);
    free(x);
    free(y);
}

static void expect_log(const struct outcome *o, const char *words) {
    if (!strstr(o->log.text, words)) fail_msg("the log has no \"%s\":\n%s", words, o->log.text);
}

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

/* ---- which checkpoint ---- */

/* Six steps with checkpoints 2, 4 and (full) 6. */
static struct folder make_steps(void) {
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, FULL, "--training.steps=6"));
    free(o);
    return out;
}

static void flip_byte(const char *path) {
    FILE *file = fopen(path, "r+");
    assert_true(file && fseek(file, -100, SEEK_END) == 0);
    int byte = fgetc(file);
    assert_true(fseek(file, -1, SEEK_CUR) == 0 && fputc(byte ^ 16, file) != EOF && fclose(file) == 0);
}

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
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY));
    assert_true(exists(&out, "run/checkpoint/step-5/model.safetensors"));
    memset(o, 0, sizeof *o);
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY));
    assert_true(o->n == 0 && o->summary.complete && o->summary.steps == 5);
    expect_log(o, "nothing is left to do");
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

/* ---- another job ---- */

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

/* ---- saves that fail ---- */

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
        cmocka_unit_test(test_same_bits_in_three_parts),
        cmocka_unit_test(test_background_saves_the_same),
        cmocka_unit_test(test_every_persistent_array_is_saved),
        cmocka_unit_test(test_load_and_save_again),
        cmocka_unit_test(test_damaged_checkpoints_are_passed_over),
        cmocka_unit_test(test_all_damaged),
        cmocka_unit_test(test_an_earlier_step),
        cmocka_unit_test(test_finished_runs),
        cmocka_unit_test(test_weights_alone_cannot_be_resumed),
        cmocka_unit_test(test_old_ones_go),
        cmocka_unit_test(test_options_that_disagree),
        cmocka_unit_test(test_exclusions),
        cmocka_unit_test(test_initial_load),
        cmocka_unit_test(test_saves_that_fail),
        cmocka_unit_test(test_metrics_that_are_gone),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, make_corpus, remove_corpus);
}
