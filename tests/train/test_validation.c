/* Validation during training: what it measures, what it writes, and that training does not notice it. */
#include "train/job_testing.h"
#include <jansson.h>
#include <math.h>
#include "base/error.h"
#include "train/loop.h"

enum { MAX_STEPS = 16, BATCH = 4, S = 32 };

struct outcome {
    struct mx8_step step[MAX_STEPS];
    int64_t n, asked, stop_at;
    struct lines log;
    struct mx8_summary summary;
};

static struct folder corpus;

static int make_corpus(void **state) {
    (void)state;
    static char text[20000];
    corpus = make_folder();
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "the quick brown fox jumps over the lazy dog\n"[i * i % 7 + i % 37];
    write_file(in_folder(&corpus, "train.txt"), text, sizeof text);
    for (size_t i = 0; i < 700; i++) text[i] = "pack my box with five dozen liquor jugs\n"[i * i % 11 + i % 29];
    write_file(in_folder(&corpus, "valid.txt"), text, 700); /* 702 tokens: 21 samples */
    return 0;
}

static int remove_corpus(void **state) {
    (void)state;
    remove_folder(&corpus);
    return 0;
}

static void keep_step(void *user, const struct mx8_job *job, const struct mx8_step *s, int64_t steps) {
    struct outcome *o = user;
    (void)job, (void)steps;
    if (o->n < MAX_STEPS) o->step[o->n] = *s;
    o->n++;
}

static int should_stop(void *user) {
    struct outcome *o = user;
    return ++o->asked == o->stop_at || (o->stop_at && o->asked > o->stop_at);
}

static void keep_outcome_line(void *user, const char *line) {
    keep_line(&((struct outcome *)user)->log, line);
}

/* The tiny job on train.txt with more flags (NULL at the end). */
static void parse_job(struct mx8_options *options, const struct folder *out, const char *const *flags) {
    static char path_flag[256], valid_flag[256], dump_flag[256];
    static const char *const base[] = {"--model.dim=64", "--model.n_layers=2", "--model.n_heads=4",
        "--model.n_kv_heads=2", "--model.multiple_of=32", "--moe.num_experts=4", "--training.seq_len=32",
        "--training.local_batch_size=4", "--training.steps=5", "--lr_scheduler.warmup_steps=1", "--optimizer.lr=1e-2",
        "--metrics.log_freq=2", "--training.seed=3"};
    const char *all[40] = {path_flag, valid_flag, dump_flag};
    int n = 3;
    snprintf(path_flag, sizeof path_flag, "--training.dataset_path=%s", in_folder(&corpus, "train.txt"));
    snprintf(valid_flag, sizeof valid_flag, "--validation.dataset_path=%s", in_folder(&corpus, "valid.txt"));
    snprintf(dump_flag, sizeof dump_flag, "--job.dump_folder=%s/run", out->path);
    for (size_t i = 0; i < COUNT(base); i++) all[n++] = base[i];
    for (; *flags; flags++) all[n++] = *flags;
    assert_ok(parse(options, all));
}

static enum mx8_status run(struct outcome *o, const struct folder *out, const char *const *flags) {
    struct mx8_options options;
    struct mx8_job job;
    struct mx8_context *ctx = NULL;
    struct mx8_watch watch = {o, {keep_outcome_line, o}, keep_step, should_stop};
    parse_job(&options, out, flags);
    enum mx8_status status = mx8i_resolve_job(&options, &job, NULL);
    if (status == MX8_OK) status = mx8_create_context(&(struct mx8_context_options){.threads = 1}, &ctx);
    if (status == MX8_OK) status = mx8i_run_job(&job, ctx, &watch, &o->summary);
    mx8_destroy_context(ctx);
    mx8i_close_options(&options);
    return status;
}

#define RUN(outcome, folder, ...) run(outcome, folder, (const char *const[]){__VA_ARGS__, NULL})
#define F32                       "--training.mixed_precision_param=float32"
#define VALIDATE                  "--validation.enable"
#define STILL                     "--optimizer.lr=0", "--moe.load_balance_coeff=none" /* weights stay as they are */

static struct outcome *make_outcome(void) {
    return calloc(1, sizeof(struct outcome));
}

/* Same losses, gradients, clipped values and expert load, whatever is validated in between. */
static void test_training_does_not_notice(void **state) {
    (void)state;
    static const char *const flags[] = {"--model.converters=mx", "--mx.moe_fqns_prototype=experts",
        "--mx.scale_rule=floor", "--mx.filter_fqns=output,router.gate,wk,wv"};
    struct folder a = make_folder(), b = make_folder();
    struct outcome *without = make_outcome(), *with = make_outcome();
    double clipped = 0;
    assert_ok(RUN(without, &a, flags[0], flags[1], flags[2], flags[3]));
    assert_ok(RUN(with, &b, flags[0], flags[1], flags[2], flags[3], VALIDATE, "--validation.freq=1"));
    assert_int_equal(with->n, 5);
    for (int i = 0; i < 5; i++) {
        const struct mx8_step *x = &without->step[i], *y = &with->step[i];
        assert_true(x->loss == y->loss && x->grad_norm == y->grad_norm && x->saturated == y->saturated);
        assert_true(!x->validated && y->validated);
        clipped += (double)y->saturated;
    }
    assert_true(clipped > 0); /* FLOOR clips: the test above means something */
    FILE *first = fopen(in_folder(&a, "run/metrics.jsonl"), "r"),
         *second = fopen(in_folder(&b, "run/metrics.jsonl"), "r");
    for (char x[4096], y[4096]; fgets(x, sizeof x, first) && fgets(y, sizeof y, second);)
        assert_string_equal(strstr(x, "\"expert_load\""), strstr(y, "\"expert_load\""));
    fclose(first);
    fclose(second);
    free(without);
    free(with);
    remove_folder(&a);
    remove_folder(&b);
}

/* On the training data, with weights that stay, validation is the mean of the training steps that read the same. */
static void test_loss_is_that_of_the_samples(void **state) {
    (void)state;
    static const char *const masks[] = {"--model.attn_mask_type=causal", "--model.attn_mask_type=block_causal"};
    for (size_t i = 0; i < COUNT(masks); i++) {
        struct folder out = make_folder();
        struct outcome *o = make_outcome();
        char path[300];
        snprintf(path, sizeof path, "--validation.dataset_path=%s", in_folder(&corpus, "train.txt"));
        assert_ok(RUN(o, &out, F32, STILL, masks[i], VALIDATE, path, "--validation.steps=5", "--training.steps=5"));
        double mean = 0;
        for (int k = 0; k < 5; k++) mean += o->step[k].loss / 5;
        assert_true(o->step[0].validated && fabs(o->step[0].validation_loss - mean) < 1e-6);
        assert_int_equal(o->step[0].validation_tokens, 5 * BATCH * S);
        assert_true(o->step[4].validated && o->step[4].validation_loss == o->step[0].validation_loss);
        assert_true(o->summary.validation_step == 5 && o->summary.validation_loss == o->step[4].validation_loss);
        free(o);
        remove_folder(&out);
    }
}

static double validate_once(const char *const *flags, int64_t *tokens) {
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    assert_ok(run(o, &out, flags));
    assert_true(o->step[0].validated);
    double loss = o->step[0].validation_loss;
    *tokens = o->step[0].validation_tokens;
    free(o);
    remove_folder(&out);
    return loss;
}

/* The set's samples decide, not training's batch or sequence length. */
static void test_shapes_of_their_own(void **state) {
    (void)state;
#define ONCE(...) ((const char *const[]){F32, STILL, VALIDATE, "--training.steps=1", __VA_ARGS__, NULL})
    const struct {
        const char *const *flags;
        int64_t tokens;
        int same; /* as the case of that number */
    } cases[] = {
        {ONCE("--training.local_batch_size=4"), 21 * 32, 0}, /* the last batch has one sample */
        {ONCE("--training.local_batch_size=1"), 21 * 32, 0},
        {ONCE("--training.local_batch_size=40"), 21 * 32, 0},
        {ONCE("--validation.local_batch_size=3", "--validation.steps=7"), 21 * 32, 0},
        {ONCE("--validation.local_batch_size=7", "--validation.steps=3"), 21 * 32, 0},
        {ONCE("--validation.seq_len=8"), 78 * 8, 5},
        {ONCE("--training.seq_len=8"), 78 * 8, 5},
        {ONCE("--validation.seq_len=8", "--model.attn_mask_type=block_causal"), 78 * 8, 7},
        {ONCE("--training.seq_len=8", "--model.attn_mask_type=block_causal"), 78 * 8, 7},
        {ONCE("--validation.steps=2"), 2 * 4 * 32, 9},
    };
    double loss[COUNT(cases)];
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t tokens;
        loss[i] = validate_once(cases[i].flags, &tokens);
        assert_int_equal(tokens, cases[i].tokens);
        assert_true(fabs(loss[i] - loss[cases[i].same]) < 1e-6);
    }
    assert_true(fabs(loss[5] - loss[0]) > 1e-5 && fabs(loss[9] - loss[0]) > 1e-5);
}

/* After step 1, every multiple of freq, and the last: one line in torchtitan's words behind the step's own, and the
 * numbers in the step's line of metrics.jsonl. */
static void test_lines_and_metrics(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    assert_ok(RUN(o, &out, F32, VALIDATE, "--validation.freq=3", "--training.steps=7", "--metrics.log_freq=1"));
    FILE *file = fopen(in_folder(&out, "run/metrics.jsonl"), "r");
    char line[4096], text[200];
    const char *at = o->log.text;
    for (int step = 1; fgets(line, sizeof line, file); step++) {
        const struct mx8_step *s = &o->step[step - 1];
        int expected = step == 1 || step == 3 || step == 6 || step == 7;
        json_t *object = json_loads(line, 0, NULL);
        assert_int_equal(s->validated, expected);
        assert_int_equal(json_is_number(json_object_get(object, "validation_loss")), expected);
        assert_int_equal(!json_object_get(object, "validation_tokens"), !expected);
        if (expected) {
            assert_true(json_number_value(json_object_get(object, "validation_loss")) == s->validation_loss);
            assert_int_equal(json_integer_value(json_object_get(object, "validation_tokens")), 21 * 32);
            snprintf(text, sizeof text, "\nvalidate step: %2d  loss: %7.4f  memory: %5.2fGiB(", step,
                s->validation_loss, (double)s->memory / (1 << 30));
            at = strstr(at, text);
            if (!at) fail_msg("no line \"%s\" in its place", text + 1);
            snprintf(text, sizeof text, "\nstep: %2d  ", step);
            assert_true(strstr(o->log.text, text) < at);
            assert_non_null(strstr(at, ")  tps: "));
        }
        double share = json_number_value(json_object_get(object, "data_share"));
        assert_true(share >= 0 && share <= 1 && fabs(share - s->data_seconds / s->seconds) < 1e-3);
        json_decref(object);
    }
    fclose(file);
    assert_true(o->step[6].validation_loss < o->step[0].validation_loss);
    assert_true(o->summary.data_share >= 0 && o->summary.data_share < 1);
    assert_non_null(strstr(o->log.text, "Validation: 1 file, 0.7 kB of text"));
    assert_non_null(strstr(o->log.text, "21 samples of 32 tokens each time"));
    free(o);
    remove_folder(&out);
}

/* Asked to stop in the middle of a validation, the run ends with the step, which then has none. */
static void test_stops_inside(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    o->stop_at = 3; /* before step 1, before the first and the second batch */
    assert_ok(RUN(o, &out, F32, VALIDATE));
    assert_true(o->n == 1 && o->summary.interrupted && !o->step[0].validated && o->summary.validation_step == 0);
    assert_null(strstr(o->log.text, "validate step"));
    free(o);
    remove_folder(&out);
}

static void test_bad_options(void **state) {
    (void)state;
    static const struct {
        const char *flags[3];
        enum mx8_status status;
        const char *message;
    } cases[] = {
        {{"--validation.dataset_path="}, MX8_UNSUPPORTED,
            "give the text or the token shards by validation.dataset_path"},
        {{"--validation.dataset_path=", "--validation.dataset=auto"}, MX8_INVALID_ARGUMENT,
            "validation.dataset_path is not"},
        {{"--validation.dataset=pile"}, MX8_INVALID_ARGUMENT, "validation.dataset is \"pile\""},
        {{"--validation.dataset_path=/nowhere"}, MX8_IO_ERROR, "validation.dataset_path must be"},
        {{"--validation.seq_len=33"}, MX8_UNSUPPORTED, "at most training.seq_len, which is 32"},
        {{"--validation.steps=0"}, MX8_INVALID_ARGUMENT, "validation.steps is 0"},
        {{"--validation.dataset=random"}, MX8_INVALID_ARGUMENT, "which has no end"},
    };
    struct folder out = make_folder();
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct outcome *o = make_outcome();
        assert_status(RUN(o, &out, VALIDATE, cases[i].flags[0], cases[i].flags[1]), cases[i].status);
        assert_message(cases[i].message);
        free(o);
    }
    struct outcome *o = make_outcome();
    assert_ok(RUN(o, &out, F32, VALIDATE, "--validation.dataset=random", "--validation.steps=2", "--training.steps=1"));
    assert_true(o->step[0].validation_loss > 4);
    free(o);
    remove_folder(&out);
}

/* ---- what else a run says about data ---- */

/* Mixtures, shuffle and reading ahead reach the run by its options; without the thread the bits are the same. */
static void test_reading_ahead_changes_nothing(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o[4];
    char path[600];
    snprintf(path, sizeof path, "--training.dataset_path=%s=0.8,%s=0.2", in_folder(&corpus, "train.txt"),
        in_folder(&corpus, "valid.txt"));
    static const char *const flags[][2] = {{"--training.prefetch", "--training.shuffle"},
        {"--training.prefetch=false", "--training.shuffle"}, {"--training.prefetch=false", NULL},
        {"--training.global_batch_size=8", "--training.shuffle"}};
    for (int i = 0; i < 4; i++) {
        o[i] = make_outcome();
        assert_ok(RUN(o[i], &out, F32, path, flags[i][0], flags[i][1]));
    }
    assert_non_null(strstr(o[0]->log.text, "Data: 80.0 % of 1 file, 20.0 kB of text"));
    assert_non_null(strstr(o[0]->log.text, "valid.txt, shuffled, "));
    for (int i = 0; i < 5; i++)
        assert_true(o[0]->step[i].loss == o[1]->step[i].loss && o[0]->step[i].grad_norm == o[1]->step[i].grad_norm);
    assert_true(o[0]->step[0].loss != o[2]->step[0].loss);
    assert_true(o[0]->step[0].memory == o[1]->step[0].memory + 2 * BATCH * S * 4); /* the batch that lies ready */
    for (int i = 0; i < 4; i++) free(o[i]);
    remove_folder(&out);
}

static void cut_after_two(void *user, const struct mx8_job *job, const struct mx8_step *s, int64_t steps) {
    keep_step(user, job, s, steps);
    if (s->step == 2 && truncate(job->dataset_path, 100) != 0) fail_msg("cannot cut %s", job->dataset_path);
}

/* A shard that is cut during the run ends it with the shard's name: no signal, no silent zeros. */
static void test_shard_cut_during_the_run(void **state) {
    (void)state;
    struct folder out = make_folder();
    static uint16_t tokens[4096];
    char path[300];
    struct mx8_options options;
    struct mx8_job job;
    struct mx8_context *ctx = NULL;
    struct outcome *o = make_outcome();
    struct mx8_watch watch = {o, {keep_outcome_line, o}, cut_after_two, NULL};
    write_file(in_folder(&out, "cut.bin"), tokens, sizeof tokens);
    snprintf(path, sizeof path, "--training.dataset_path=%s", in_folder(&out, "cut.bin"));
    parse_job(&options, &out, (const char *const[]){F32, path, NULL});
    assert_ok(mx8i_resolve_job(&options, &job, NULL));
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 1}, &ctx));
    assert_status(mx8i_run_job(&job, ctx, &watch, &o->summary), MX8_IO_ERROR);
    assert_message("cut.bin: the file had 8192 bytes when the run began, and has 100 now");
    assert_in_range(o->n, 2, 3); /* one batch may have been read ahead */
    mx8_destroy_context(ctx);
    mx8i_close_options(&options);
    free(o);
    remove_folder(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training_does_not_notice),
        cmocka_unit_test(test_loss_is_that_of_the_samples),
        cmocka_unit_test(test_shapes_of_their_own),
        cmocka_unit_test(test_lines_and_metrics),
        cmocka_unit_test(test_stops_inside),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_reading_ahead_changes_nothing),
        cmocka_unit_test(test_shard_cut_during_the_run),
    };
    return cmocka_run_group_tests(tests, make_corpus, remove_corpus);
}
