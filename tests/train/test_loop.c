/* Whole jobs on a tiny model: learning, determinism, files, failures. */
#include "train/loop_testing.h"
#include <jansson.h>
#include <math.h>
#include <regex.h>
#include "base/memory.h"
#include "base/safetensors.h"
#include "train/logline.h"
#include "train/peak.h"

static double get_json(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("metrics.jsonl: no number %s", key);
    return json_number_value(value);
}

static void check_metrics(const char *path, const struct outcome *o) {
    FILE *file = fopen(path, "r");
    char line[4096];
    int64_t n = 0;
    assert_non_null(file);
    for (; fgets(line, sizeof line, file); n++) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        const struct mx8_step *s = &o->step[n];
        assert_true(get_json(object, "step") == (double)(n + 1));
        assert_true(get_json(object, "loss") == s->loss); /* to the last bit */
        assert_true((float)get_json(object, "grad_norm") == (float)s->grad_norm);
        assert_true(get_json(object, "lr") == s->lr && get_json(object, "tokens") == (double)s->tokens);
        assert_true(get_json(object, "memory") == (double)s->memory && get_json(object, "seconds") > 0);
        assert_true(get_json(object, "tokens_per_second") > 0 && get_json(object, "data_seconds") >= 0);
        assert_true(get_json(object, "saturated") == (double)s->saturated);
        json_t *load = json_object_get(object, "expert_load");
        assert_int_equal(json_array_size(load), 2);
        for (size_t layer = 0; layer < 2; layer++) {
            double tokens = 0;
            json_t *counts = json_array_get(load, layer);
            assert_int_equal(json_array_size(counts), 4);
            for (size_t e = 0; e < 4; e++) tokens += json_number_value(json_array_get(counts, e));
            assert_true(tokens == 128); /* top_k 1: every token of this step once */
        }
        json_decref(object);
    }
    fclose(file);
    assert_int_equal(n, o->n);
}

static void check_run_json(const char *path) {
    json_t *object = json_load_file(path, 0, NULL);
    assert_non_null(object);
    assert_string_equal(json_string_value(json_object_get(object, "recipe")), "bf16");
    assert_true(get_json(object, "tokens_per_step") == 128 && get_json(object, "parameters") > 1000);
    assert_string_equal(json_string_value(json_object_get(json_object_get(object, "options"), "optimizer.lr")), "1e-2");
    assert_null(json_object_get(json_object_get(object, "options"), "optimizer.beta1"));
    json_decref(object);
}

static void test_learns_and_records(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    assert_ok(RUN(o, &out, 1, "--training.steps=10"));
    assert_int_equal(o->n, 10);
    assert_true(o->step[9].loss < o->step[0].loss - 0.5);
    assert_true(fabs(o->step[0].loss - log(288)) < 1.5);
    assert_int_equal(o->step[9].tokens, 10 * 128);
    assert_true(o->summary.first_loss == o->step[0].loss && o->summary.final_loss == o->step[9].loss);
    assert_true(o->summary.steps == 10 && o->summary.tokens == 1280 && !o->summary.interrupted);
    assert_true(o->summary.median_tps > 0 && o->summary.peak_memory == o->step[0].memory);
    check_metrics(in_folder(&out, "run/metrics.jsonl"), o);
    check_run_json(in_folder(&out, "run/run.json"));
    free(o);
    remove_folder(&out);
}

/* The number that the expression's group finds in `text`, thousands commas left out; NaN when it does not match. */
static double match_number(const char *text, const char *expression) {
    regex_t regex;
    regmatch_t match[2];
    char digits[64];
    size_t used = 0;
    assert_int_equal(regcomp(&regex, expression, REG_EXTENDED), 0);
    int found = regexec(&regex, text, 2, match, 0) == 0;
    regfree(&regex);
    if (!found) return (double)NAN;
    for (regoff_t i = match[1].rm_so; i < match[1].rm_eo && used < sizeof digits - 1; i++)
        if (text[i] != ',') digits[used++] = text[i];
    digits[used] = 0;
    return strtod(digits, NULL);
}

static void test_step_line_as_torchtitan_prints_it(void **state) {
    (void)state;
    char text[256], number[64];
    struct mx8_step_line line = {.step = 7,
        .memory = 3LL << 29,
        .capacity = 6LL << 30,
        .loss = 12.34567,
        .grad_norm = 0.5,
        .tokens_per_second = 1234567.6,
        .flops_per_token = 2e9};
    mx8i_format_step(text, sizeof text, &line);
    assert_string_equal(text, "step:  7  loss: 12.3457  grad_norm:  0.5000  memory:  1.50GiB(25.00%)  tps: 1,234,568  "
                              "tflops: 2,469.14  mfu: N/A");
    line.peak_flops = 9.89e15;
    mx8i_format_step(text, sizeof text, &line);
    assert_non_null(strstr(text, "mfu: 24.97%"));
    assert_string_equal(mx8i_format_thousands(number, 999, 0), "999");
    assert_string_equal(mx8i_format_thousands(number, -1000, 1), "-1,000.0");
    assert_string_equal(mx8i_format_thousands(number, -100, 0), "-100");
}

static void test_peaks(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double tflops;
    } cases[] = {{"NVIDIA H200", 989}, {"NVIDIA H200 NVL", 835}, {"NVIDIA GH200 480GB", 989}, {"NVIDIA B200", 2250},
        {"NVIDIA GB200", 2500}, {"NVIDIA H100 80GB HBM3", 989}, {"NVIDIA H100 PCIe", 756},
        {"NVIDIA A100-SXM4-80GB", 312}, {"NVIDIA L40S", 362}, {"NVIDIA GeForce RTX 9999", 0}, {"", 0}};
    for (size_t i = 0; i < COUNT(cases); i++)
        if (mx8i_find_gpu_peak(cases[i].name) != cases[i].tflops * 1e12) fail_msg("%s", cases[i].name);
    for (int dtype = 0; dtype < 2; dtype++) { /* the CPU is measured, well within anything that exists */
        struct mx8_context *ctx;
        double flops = 0;
        assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 1}, &ctx));
        assert_ok(mx8i_find_peak(ctx, dtype ? MX8_BF16 : MX8_F32, &flops));
        assert_true(flops > 1e6 && flops < 1e14);
        mx8_destroy_context(ctx);
    }
}

/* torchtitan's parsers read the step lines: step 1 and the multiples of log_freq. */
static void test_log_lines(void **state) {
    (void)state;
    static const double steps[] = {1, 2, 4};
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    size_t seen = 0;
    assert_ok(RUN(o, &out, 1, F32));
    assert_true(match_number(o->log.text, "Peak FLOPS used for computing MFU: ([0-9.]+)") > 0);
    for (char *rest = o->log.text, *line; (line = strsep(&rest, "\n"));) {
        double step = match_number(line, "step:[[:space:]]*([0-9]+)");
        if (isnan(step)) continue;
        assert_true(seen < COUNT(steps) && step == steps[seen++]);
        assert_true(match_number(line, "tps:[[:space:]]*([0-9,]+)") > 0);
        double gib = match_number(line, "memory:[[:space:]]*([0-9.]+)GiB");
        assert_true(fabs(gib - (double)o->step[0].memory / (1 << 30)) < 0.006);
        double loss = match_number(line, "loss:[[:space:]]*([0-9.]+)");
        assert_true(fabs(loss - o->step[(int)step - 1].loss) < 1e-4);
        assert_non_null(strstr(line, "grad_norm: "));
        assert_non_null(strstr(line, "tflops: "));
        assert_true(match_number(line, "mfu: ([0-9.]+)%") >= 0); /* of what the CPU reaches */
    }
    assert_int_equal(seen, COUNT(steps));
    free(o);
    remove_folder(&out);
}

static void test_same_bits(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *first = make_outcome();
    assert_ok(RUN(first, &out, 1, MXFP8));
    assert_non_null(strstr(first->log.text, "Converted to MXFP8"));
    assert_non_null(strstr(first->log.text, "layers.*.moe.experts.w1"));
    static const int threads[] = {1, 2, 3, 7};
    for (int i = 0; i < 4; i++) {
        struct outcome *o = make_outcome();
        assert_ok(RUN(o, &out, threads[i], MXFP8));
        expect_same(first, o);
        free(o);
    }
    struct outcome *other = make_outcome();
    assert_ok(RUN(other, &out, 1, MXFP8, "--training.seed=4"));
    assert_true(other->step[0].loss != first->step[0].loss);
    free(other);
    free(first);
    remove_folder(&out);
}

static void test_accumulation(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *whole = make_outcome(), *halves = make_outcome();
    assert_ok(RUN(whole, &out, 1, F32));
    assert_ok(RUN(halves, &out, 1, F32, "--training.local_batch_size=2", "--training.global_batch_size=4"));
    for (int i = 0; i < 5; i++) {
        assert_true(fabs(whole->step[i].loss - halves->step[i].loss) < 1e-4);
        assert_int_equal(whole->step[i].tokens, halves->step[i].tokens);
    }
    assert_true(halves->step[0].memory < whole->step[0].memory);
    free(whole);
    free(halves);
    remove_folder(&out);
}

/* With weights that stay as they are, the losses say which samples a step read: two steps of one batch are one step of
 * two, whether those are accumulated or not. */
static void test_samples_are_read_in_order(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *single = make_outcome(), *twice = make_outcome(), *wide = make_outcome();
    static const char still[] = "--optimizer.lr=0", unbiased[] = "--moe.load_balance_coeff=none";
    assert_ok(RUN(single, &out, 1, F32, still, unbiased, "--training.steps=4"));
    assert_ok(RUN(twice, &out, 1, F32, still, unbiased, "--training.steps=2", "--training.global_batch_size=8"));
    assert_ok(RUN(wide, &out, 1, F32, still, unbiased, "--training.steps=2", "--training.local_batch_size=8"));
    for (int i = 0; i < 2; i++) {
        double mean = (single->step[2 * i].loss + single->step[2 * i + 1].loss) / 2;
        assert_true(single->step[2 * i].loss != single->step[2 * i + 1].loss);
        assert_true(fabs(twice->step[i].loss - mean) < 1e-5 && fabs(wide->step[i].loss - mean) < 1e-5);
    }
    assert_true(twice->step[0].loss != twice->step[1].loss);
    free(single);
    free(twice);
    free(wide);
    remove_folder(&out);
}

static void test_document_mask(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *causal = make_outcome(), *document = make_outcome();
    char path_flag[400];
    mkdir(in_folder(&out, "docs"), 0777);
    write_file(in_folder(&out, "docs/a"), "a document", 10);
    write_file(in_folder(&out, "docs/b"), "another document", 16);
    snprintf(path_flag, sizeof path_flag, "--training.dataset_path=%s", in_folder(&out, "docs"));
    assert_ok(RUN(causal, &out, 1, F32, path_flag, "--training.steps=1"));
    assert_ok(RUN(document, &out, 1, F32, path_flag, "--training.steps=1", "--model.attn_mask_type=block_causal"));
    assert_true(causal->step[0].loss != document->step[0].loss);
    assert_true(fabs(causal->step[0].loss - document->step[0].loss) < 0.05);
    free(causal);
    free(document);
    remove_folder(&out);
}

static void test_plan_is_what_is_used(void **state) {
    (void)state;
    static const char *const flags[][5] = {{F32}, {"--activation_checkpoint.mode=none"}, {MXFP8},
        {F32, "--checkpoint.enable", "--checkpoint.async_mode=async", "--checkpoint.interval=2"}};
    struct folder out = make_folder();
    for (size_t i = 0; i < COUNT(flags); i++) {
        struct outcome *o = make_outcome();
        struct lines plan = {.used = 0};
        struct mx8_log log = {keep_line, &plan};
        struct mx8_options options;
        struct mx8_job job;
        struct mx8_context *ctx;
        assert_ok(run(o, &out, 1, flags[i]));
        parse_job(&options, &out, flags[i]);
        assert_ok(mx8i_resolve_job(&options, &job, NULL));
        assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 1}, &ctx));
        assert_ok(mx8i_describe_plan(&job, ctx, &log));
        assert_true(match_number(plan.text, "total +([0-9,]+) bytes") == (double)o->step[0].memory);
        assert_true(match_number(plan.text, "batch +([0-9,]+) bytes") ==
                    2 * 2 * 4 * 128 + 64); /* int32 pairs, two batches; scalars */
        double sum = 0;
        for (char *rest = plan.text, *line; (line = strsep(&rest, "\n"));) {
            double bytes = match_number(line, "^[a-z]+ +([0-9,]+) bytes");
            if (!isnan(bytes) && strncmp(line, "total", 5)) sum += bytes;
        }
        assert_true(sum == (double)o->step[0].memory);
        mx8_destroy_context(ctx);
        mx8i_close_options(&options);
        free(o);
    }
    remove_folder(&out);
}

static void test_too_big_for_memory(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    if (mx8i_get_available_memory() > 0) {
        assert_status(
            RUN(o, &out, 1, "--training.local_batch_size=30000", "--training.seq_len=32768"), MX8_OUT_OF_MEMORY);
        assert_message("training.local_batch_size=1 with training.global_batch_size=30000 would make it fit");
        assert_int_equal(access(in_folder(&out, "run"), F_OK), -1);
    }
    free(o);
    remove_folder(&out);
}

static void test_interrupt_and_earlier_runs(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct outcome *o = make_outcome(), *second = make_outcome();
    o->stop_after = 3;
    assert_ok(RUN(o, &out, 1, F32, "--checkpoint.enable"));
    assert_true(o->summary.interrupted && o->summary.steps == 3);
    assert_int_equal(access(in_folder(&out, "run/checkpoint/step-3/manifest.json"), F_OK), 0);
    assert_int_equal(o->summary.saved_step, 3);
    second->stop_after = 1;
    assert_ok(RUN(second, &out, 1, F32));
    check_metrics(in_folder(&out, "run/metrics-1.jsonl"), o);
    check_metrics(in_folder(&out, "run/metrics.jsonl"), second);
    assert_int_equal(access(in_folder(&out, "run/run-1.json"), F_OK), 0);
    free(o);
    free(second);
    remove_folder(&out);
}

/* Trains for `steps` and leaves the weights behind: path of the folder that holds model.safetensors. */
static const char *make_weights(const struct folder *out, const char *steps, const char *dtype) {
    static char steps_flag[64], dtype_flag[64], dump_flag[128], folder[64];
    struct outcome *o = make_outcome();
    snprintf(steps_flag, sizeof steps_flag, "--training.steps=%s", steps);
    snprintf(dtype_flag, sizeof dtype_flag, "--checkpoint.export_dtype=%s", dtype);
    snprintf(dump_flag, sizeof dump_flag, "--job.dump_folder=%s/weights-%s", out->path, dtype);
    snprintf(folder, sizeof folder, "weights-%s/checkpoint/step-%s", dtype, steps);
    assert_ok(RUN(o, out, 1, F32, "--checkpoint.enable", steps_flag, dtype_flag, dump_flag));
    assert_true(o->summary.saved_step == o->summary.steps);
    free(o);
    return in_folder(out, folder);
}

static void test_weights_round_trip(void **state) {
    (void)state;
    static const char *const dtypes[] = {"float32", "bfloat16"};
    struct folder out = make_folder();
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        char flag[400], path[300];
        struct mx8_safetensors st;
        struct outcome *o = make_outcome(), *from_file = make_outcome();
        const char *folder = make_weights(&out, "8", dtypes[i]);
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        assert_ok(mx8i_open_safetensors(path, &st));
        assert_int_equal(mx8i_find_tensor(&st, "layers.1.moe.experts.w2")->dtype, i ? MX8_BF16 : MX8_F32);
        mx8i_close_safetensors(&st);
        snprintf(flag, sizeof flag, "--checkpoint.initial_load_path=%s", folder);
        assert_ok(RUN(o, &out, 1, F32, flag, "--training.steps=1"));
        assert_true(o->step[0].loss < log(288) - 1); /* it goes on where training stopped */
        snprintf(flag, sizeof flag, "--checkpoint.initial_load_path=%s", path);
        assert_ok(RUN(from_file, &out, 1, F32, flag, "--training.steps=1"));
        expect_same(o, from_file);
        free(o);
        free(from_file);
    }
    struct outcome *o = make_outcome();
    assert_status(RUN(o, &out, 1, F32, "--checkpoint.initial_load_path=/nowhere"), MX8_IO_ERROR);
    assert_message("/nowhere");
    free(o);
    remove_folder(&out);
}

static void plant_nan(const char *folder, const char *tensor) {
    char path[300];
    float nan_value = NAN;
    struct mx8_safetensors st;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(mx8i_open_safetensors(path, &st));
    long at = (long)((const uint8_t *)mx8i_find_tensor(&st, tensor)->data - st.map.data);
    mx8i_close_safetensors(&st);
    FILE *file = fopen(path, "r+");
    assert_true(file && fseek(file, at, SEEK_SET) == 0 && fwrite(&nan_value, sizeof nan_value, 1, file) == 1);
    fclose(file);
}

static void test_nan_policies(void **state) {
    (void)state;
    struct folder out = make_folder();
    char flag[300];
    const char *folder = make_weights(&out, "1", "float32");
    plant_nan(folder, "layers.1.attention.wo.weight");
    /* the file alone: the folder's checksums would tell what was done to it */
    snprintf(flag, sizeof flag, "--checkpoint.initial_load_path=%s/model.safetensors", folder);

    struct outcome *o = make_outcome();
    assert_status(RUN(o, &out, 1, F32, flag, "--checkpoint.enable"), MX8_NOT_FINITE);
    assert_message("step 1");
    assert_message("layers.1.attention.wo.weight");
    assert_int_equal(o->n, 0);
    assert_int_equal(access(in_folder(&out, "run/checkpoint/step-5"), F_OK), -1);
    free(o);

    o = make_outcome();
    assert_status(RUN(o, &out, 1, F32, flag, "--training.on_nan=skip", "--training.steps=2", "--checkpoint.enable",
                      "--checkpoint.interval=1"),
        MX8_NOT_FINITE); /* a bad weight is not saved */
    assert_message("step 2 was not saved: layers.1.attention.wo.weight holds a NaN");
    assert_non_null(strstr(o->log.text, "step 1 was not saved: layers.1.attention.wo.weight holds a NaN"));
    assert_true(o->n == 2 && o->step[0].skipped && o->step[1].skipped && isnan(o->summary.final_loss));
    assert_non_null(strstr(o->log.text, "layers.1.attention.wo.weight; the update is left out"));
    assert_int_equal(access(in_folder(&out, "run/checkpoint/step-2"), F_OK), -1);
    free(o);

    o = make_outcome();
    assert_ok(RUN(o, &out, 1, F32, flag, "--training.on_nan=continue", "--training.steps=2"));
    assert_true(o->n == 2 && !o->step[0].skipped && isnan(o->step[1].loss));
    free(o);
    remove_folder(&out);
}

/* Whichever allocation fails, the job ends with an error that says so; the sanitizers see whether anything is lost. */
static void test_allocation_failures(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct mx8_options options;
    struct mx8_job job;
    struct mx8_context *ctx;
    static const char *const flags[] = {F32, "--training.steps=1", "--model.n_layers=1", NULL};
    parse_job(&options, &out, flags);
    assert_ok(mx8i_resolve_job(&options, &job, NULL));
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 1}, &ctx));
    int64_t n = 0;
    for (enum mx8_status status = MX8_INTERNAL; status != MX8_OK && n < 1000;) {
        mx8i_fail_allocation(++n, 1);
        status = mx8i_run_job(&job, ctx, NULL, NULL);
        mx8i_fail_allocation(0, 0);
        if (status != MX8_OK && status != MX8_OUT_OF_MEMORY)
            assert_message("memory"); /* a file's failure names its cause */
    }
    assert_in_range(n, 20, 900);
    mx8_destroy_context(ctx);
    mx8i_close_options(&options);
    remove_folder(&out);
}

/* The profile names kernels and passes, adds up to no more than the steps, and changes no loss. */
static void test_profile(void **state) {
    (void)state;
    struct folder plain_out = make_folder(), out = make_folder();
    struct outcome plain = {0}, o = {0};
    assert_ok(run(&plain, &plain_out, 1, (const char *const[]){NULL}));
    assert_ok(run(&o, &out, 1, (const char *const[]){"--profiling.enable", NULL}));
    for (int i = 0; i < 5; i++) assert_true(o.step[i].loss == plain.step[i].loss);
    assert_non_null(strstr(o.log.text, "Profile of 4 steps"));
    assert_non_null(strstr(o.log.text, "backward of layer 1"));
    assert_non_null(strstr(o.log.text, "Roofline: at the ceilings the kernels would take"));
    assert_non_null(strstr(o.log.text, "grouped_linear backward moe.experts.w2"));
    assert_null(strstr(plain.log.text, "Profile of"));

    json_t *profile = json_load_file(in_folder(&out, "run/profile.json"), 0, NULL), *row;
    assert_non_null(profile);
    assert_int_equal(json_integer_value(json_object_get(profile, "steps")), 4);
    assert_true(json_real_value(json_object_get(json_object_get(profile, "ceilings"), "bf16")) > 0);
    double kernels = 0;
    size_t index;
    int found = 0;
    json_array_foreach(json_object_get(profile, "kernels"), index, row) {
        kernels += json_real_value(json_object_get(row, "seconds"));
        const char *detail = json_string_value(json_object_get(row, "detail"));
        if (strcmp(detail, "attention.wq.weight") || json_is_true(json_object_get(row, "backward"))) continue;
        const double D = 64, T = 4 * 32;
        const json_int_t calls = json_integer_value(json_object_get(row, "calls"));
        assert_true(json_real_value(json_object_get(row, "flops")) == 2 * T * D * D * (double)calls);
        found++;
    }
    assert_true(found > 0 && kernels > 0 && kernels <= json_real_value(json_object_get(profile, "seconds")));
    double least = json_real_value(json_object_get(profile, "seconds_at_ceilings"));
    assert_true(least > 0 && least <= kernels);
    json_decref(profile);
    remove_folder(&out);
    remove_folder(&plain_out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_learns_and_records),
        cmocka_unit_test(test_step_line_as_torchtitan_prints_it),
        cmocka_unit_test(test_peaks),
        cmocka_unit_test(test_log_lines),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_samples_are_read_in_order),
        cmocka_unit_test(test_document_mask),
        cmocka_unit_test(test_plan_is_what_is_used),
        cmocka_unit_test(test_too_big_for_memory),
        cmocka_unit_test(test_interrupt_and_earlier_runs),
        cmocka_unit_test(test_weights_round_trip),
        cmocka_unit_test(test_nan_policies),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, make_corpus, remove_corpus);
}
