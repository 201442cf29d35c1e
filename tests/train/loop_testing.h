/* Whole jobs on a tiny model, for the tests of the loop and of checkpoints. */
#ifndef MX8_TESTS_TRAIN_LOOP_TESTING_H
#define MX8_TESTS_TRAIN_LOOP_TESTING_H

#include "train/job_testing.h"
#include "train/loop.h"

enum { MAX_STEPS = 64 };

/* A job's outcome: what on_step saw, the log, the summary. */
struct outcome {
    struct mx8_step step[MAX_STEPS];
    int64_t n, stop_after;
    struct lines log;
    struct mx8_summary summary;
};

static struct folder corpus;

static inline int make_corpus(void **state) {
    (void)state;
    static char text[20000];
    corpus = make_folder();
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "the quick brown fox jumps over the lazy dog\n"[i * i % 7 + i % 37];
    write_file(in_folder(&corpus, "a.txt"), text, sizeof text);
    write_file(in_folder(&corpus, "b.txt"), text, 50);
    write_file(in_folder(&corpus, "c.txt"), text, 7000);
    return 0;
}

static inline int remove_corpus(void **state) {
    (void)state;
    remove_folder(&corpus);
    return 0;
}

static inline void keep_step(void *user, const struct mx8_job *job, const struct mx8_step *s, int64_t steps) {
    struct outcome *o = user;
    assert_int_equal(steps, job->steps);
    if (o->n < MAX_STEPS) o->step[o->n] = *s;
    o->n++;
}

static inline int stop_after(void *user) {
    struct outcome *o = user;
    return o->stop_after > 0 && o->n >= o->stop_after;
}

static inline void keep_outcome_line(void *user, const char *line) {
    keep_line(&((struct outcome *)user)->log, line);
}

#define MAX_FLAGS 40

static const char *const base_flags[] = {"--model.dim=64", "--model.n_layers=2", "--model.n_heads=4",
    "--model.n_kv_heads=2", "--model.multiple_of=32", "--moe.num_experts=4", "--training.seq_len=32",
    "--training.local_batch_size=4", "--training.steps=5", "--lr_scheduler.warmup_steps=1", "--optimizer.lr=1e-2",
    "--metrics.log_freq=2", "--training.seed=3"};

/* The tiny job with more flags (NULL at the end), its output in `out`. */
static inline void parse_job(struct mx8_options *options, const struct folder *out, const char *const *flags) {
    static char path_flag[256], dump_flag[256];
    const char *all[MAX_FLAGS] = {path_flag, dump_flag};
    int n = 2;
    snprintf(path_flag, sizeof path_flag, "--training.dataset_path=%s", corpus.path);
    snprintf(dump_flag, sizeof dump_flag, "--job.dump_folder=%s/run", out->path);
    for (size_t i = 0; i < COUNT(base_flags); i++) all[n++] = base_flags[i];
    for (; *flags; flags++) all[n++] = *flags;
    assert_ok(parse(options, all));
}

static inline enum mx8_status run(struct outcome *o, const struct folder *out, int threads, const char *const *flags) {
    struct mx8_options options;
    struct mx8_job job;
    struct mx8_context *ctx = NULL;
    struct mx8_watch watch = {o, {keep_outcome_line, o}, keep_step, stop_after};
    parse_job(&options, out, flags);
    assert_ok(mx8i_resolve_job(&options, &job, NULL));
    enum mx8_status status = mx8_create_context(&(struct mx8_context_options){.threads = threads}, &ctx);
    if (status == MX8_OK) status = mx8i_run_job(&job, ctx, &watch, &o->summary);
    mx8_destroy_context(ctx);
    mx8i_close_options(&options);
    return status;
}

#define RUN(outcome, folder, threads, ...) run(outcome, folder, threads, (const char *const[]){__VA_ARGS__, NULL})
#define F32                                "--training.mixed_precision_param=float32"
#define MOE                                "--mx.moe_fqns_prototype=experts"
#define MXFP8                              "--model.converters=mx", MOE, "--mx.filter_fqns=output,router.gate,wk,wv"

static inline struct outcome *make_outcome(void) {
    return calloc(1, sizeof(struct outcome));
}

static inline void expect_same(const struct outcome *a, const struct outcome *b) {
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++)
        assert_true(a->step[i].loss == b->step[i].loss && a->step[i].grad_norm == b->step[i].grad_norm);
}

#endif
