/* A job in MXFP8 that validates and saves after each of its two steps, whose N-th allocation fails, for every N: it
 * ends with OUT_OF_MEMORY and a message, gives everything back (the sanitized round of ./test.sh sees leaks), and the
 * next job is none the wiser. */
#include "train/job_testing.h"
#include "base/memory.h"
#include "train/loop.h"

static struct folder place;

static int make_place(void **state) {
    (void)state;
    char text[3000];
    place = make_folder();
    for (size_t i = 0; i < sizeof text; i++) text[i] = "the quick brown fox\n"[i * i % 7 + i % 13];
    write_file(in_folder(&place, "a.txt"), text, sizeof text);
    return 0;
}

static int remove_place(void **state) {
    (void)state;
    remove_folder(&place);
    return 0;
}

static enum mx8_status run_job(double *loss) {
    char data[128], dump[128], valid[128];
    snprintf(data, sizeof data, "--training.dataset_path=%s/a.txt", place.path);
    snprintf(valid, sizeof valid, "--validation.dataset_path=%s/a.txt", place.path);
    snprintf(dump, sizeof dump, "--job.dump_folder=%s/run", place.path);
    const char *const flags[] = {data, dump, "--model.dim=32", "--model.n_layers=2", "--model.n_heads=1",
        "--model.n_kv_heads=1", "--model.multiple_of=32", "--moe.num_experts=2", "--training.seq_len=32",
        "--training.local_batch_size=1", "--training.steps=2", "--model.converters=mx",
        "--mx.filter_fqns=output,router.gate,wk,wv", "--mx.moe_fqns_prototype=experts", "--metrics.enable_tensorboard",
        "--checkpoint.enable", "--checkpoint.interval=1", "--validation.enable", valid, "--validation.freq=1",
        "--validation.steps=1", "--training.prefetch=false", NULL};
    struct mx8_options options;
    struct mx8_job job;
    struct mx8_context *ctx = NULL;
    struct mx8_summary summary = {0};
    struct mx8_context_options one = {.threads = 1};
    int argc = 0, rest = 0;
    while (flags[argc]) argc++;
    enum mx8_status status = mx8i_open_options(mx8i_option_table, mx8i_option_count, &options);
    if (status != MX8_OK) return status;
    status = mx8i_parse_flags(&options, argc, (char **)(uintptr_t)flags, "job.config_file", NULL, &rest, 0);
    if (status == MX8_OK) status = mx8i_resolve_job(&options, &job, NULL);
    if (status == MX8_OK) status = mx8_create_context(&one, &ctx);
    if (status == MX8_OK) status = mx8i_run_job(&job, ctx, NULL, &summary);
    mx8_destroy_context(ctx);
    mx8i_close_options(&options);
    *loss = summary.first_loss;
    return status;
}

static void clear_run(void) {
    nftw(in_folder(&place, "run"), remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void test_every_allocation(void **state) {
    (void)state;
    double loss, again;
    assert_ok(run_job(&loss)); /* what the C library keeps for itself, it has now */
    clear_run();
    mx8i_fail_allocation(0, 0);
    assert_ok(run_job(&loss));
    clear_run();
    int64_t n = mx8i_count_allocations();
    assert_true(n > 100 && n < 100000);
    /* some forty of them, spread; all of them in the full tier */
    int64_t step = getenv("MX8_EVERY_ALLOCATION") ? 1 : n / 40 + 1;
    for (int forever = 0; forever < 2; forever++) {
        for (int64_t i = 1; i <= n; i += step) {
            mx8i_fail_allocation(i, forever);
            enum mx8_status status = run_job(&again);
            mx8i_fail_allocation(0, 0);
            clear_run();
            if (status == MX8_OK && again == loss) continue; /* done without, as counting cores is */
            if (status != MX8_OUT_OF_MEMORY)
                fail_msg("allocation %lld of %lld: %s: %s", (long long)i, (long long)n, mx8_get_status_name(status),
                    mx8_get_last_error());
            assert_message("out of memory");
        }
    }
    assert_ok(run_job(&again));
    assert_true(loss == again);
    clear_run();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};
    return cmocka_run_group_tests(tests, make_place, remove_place);
}
