/* The debug section: what it accepts, what it warns of, and what a job makes of it. */
#include "train/job_testing.h"
#include "base/file.h"
#include "train/loop.h"

static const char *const tiny[] = {"--model.dim=64", "--model.n_layers=2", "--model.n_heads=2", "--model.n_kv_heads=1",
    "--training.seq_len=32", "--training.local_batch_size=2", "--training.steps=3", "--training.dataset=random",
    "--mx.filter_fqns=output,router.gate"};

static enum mx8_status resolve(const char *const *more, struct mx8_options *o, struct mx8_job *job, struct lines *log) {
    const char *flags[32];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(tiny); i++) flags[n++] = tiny[i];
    for (size_t i = 0; more[i]; i++) flags[n++] = more[i];
    flags[n] = NULL;
    assert_ok(parse(o, flags));
    struct mx8_log notes = {.user = log, .write = keep_line};
    return mx8i_resolve_job(o, job, &notes);
}

static void test_bad_values(void **state) {
    (void)state;
    static const struct {
        const char *flags[3], *message;
        enum mx8_status status;
    } cases[] = {
        {{"--debug.outlier_channels=24"}, "24:30", MX8_INVALID_ARGUMENT},
        {{"--debug.outlier_channels=0:30"}, "0:30", MX8_INVALID_ARGUMENT},
        {{"--debug.outlier_channels=24:0"}, "24:0", MX8_INVALID_ARGUMENT},
        {{"--debug.outlier_channels=24:x"}, "24:x", MX8_INVALID_ARGUMENT},
        {{"--debug.outlier_channels=65:30"}, "65-th channel of 64", MX8_INVALID_ARGUMENT},
        {{"--debug.outlier_channels=8:30", "--checkpoint.initial_load_path=w"}, "initial_load_path",
            MX8_INVALID_ARGUMENT},
        {{"--debug.dump_tensors=folder"}, "STEP:FOLDER", MX8_INVALID_ARGUMENT},
        {{"--debug.dump_tensors=4:folder"}, "which is 3", MX8_INVALID_ARGUMENT},
        {{"--debug.dump_tensors=2:folder", "--compile.enable", "--job.device=cuda"}, "captured", MX8_UNSUPPORTED},
        {{"--debug.mx_control=reused_codes"}, "nothing is converted", MX8_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mx8_options o;
        struct mx8_job job;
        struct lines log = {0};
        const char *const flags[] = {cases[i].flags[0], cases[i].flags[1], cases[i].flags[2], NULL};
        assert_status(resolve(flags, &o, &job, &log), cases[i].status);
        assert_message(cases[i].message);
        mx8i_close_options(&o);
    }
}

static void test_what_makes_a_model_worse_warns(void **state) {
    (void)state;
    static const char *const controls[] = {"none", "e5m2_gradients", "reused_codes"};
    for (int32_t i = 0; i < 3; i++) {
        struct mx8_options o;
        struct mx8_job job;
        struct lines log = {0};
        char flag[64];
        snprintf(flag, sizeof flag, "--debug.mx_control=%s", controls[i]);
        assert_ok(resolve((const char *const[]){"--model.converters=mx", flag, NULL}, &o, &job, &log));
        assert_int_equal(job.model.control, i);
        assert_int_equal(strstr(log.text, "worse on purpose") != NULL, i > 0);
        mx8i_close_options(&o);
    }
    struct mx8_options o;
    struct mx8_job job;
    struct lines log = {0};
    assert_ok(resolve((const char *const[]){"--debug.outlier_channels=24:300", NULL}, &o, &job, &log));
    assert_int_equal(job.debug.outlier_every, 24);
    assert_true(job.debug.outlier_factor == 300);
    assert_non_null(strstr(log.text, "warning: debug.outlier_channels"));
    mx8i_close_options(&o);
}

static enum mx8_status run(const char *const *flags, struct lines *log, struct mx8_summary *summary) {
    struct mx8_options o;
    struct mx8_job job;
    struct mx8_context *ctx;
    assert_ok(resolve(flags, &o, &job, log));
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 1}, &ctx));
    struct mx8_watch watch = {.log = {.user = log, .write = keep_line}};
    enum mx8_status status = mx8i_run_job(&job, ctx, &watch, summary);
    mx8_destroy_context(ctx);
    mx8i_close_options(&o);
    return status;
}

/* Files are written in one step, and change no number of the run. Outliers change the first loss. */
static void test_jobs(void **state) {
    (void)state;
    struct folder f = make_folder();
    char out[96], dump[96];
    snprintf(out, sizeof out, "--job.dump_folder=%s/run", f.path);
    snprintf(dump, sizeof dump, "--debug.dump_tensors=2:%s/tensors", f.path);
    struct lines log = {0};
    struct mx8_summary plain, dumped, planted;
    assert_ok(run((const char *const[]){out, NULL}, &log, &plain));
    assert_ok(run((const char *const[]){out, dump, "--debug.dump_fqns=wq,layers.1.moe", NULL}, &log, &dumped));
    assert_non_null(strstr(log.text, "Wrote the tensors of 9 linears at step 2")); /* 2 wq; gate, 3 + 3 of layer 1 */
    assert_true(mx8i_is_file(in_folder(&f, "tensors/layers.1.moe.router.gate.safetensors")));
    assert_true(plain.final_loss == dumped.final_loss);
    assert_ok(run((const char *const[]){out, "--debug.outlier_channels=8:30", NULL}, &log, &planted));
    assert_true(plain.first_loss != planted.first_loss);
    assert_status(
        run((const char *const[]){out, dump, "--model.converters=mx", "--debug.dump_fqns=wq", NULL}, &log, &dumped),
        MX8_INVALID_ARGUMENT);
    assert_message("mx.wgrad_hp");
    remove_folder(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_what_makes_a_model_worse_warns), cmocka_unit_test(test_jobs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
