/* Times one operator on one problem, checks the result in the same run, prints a line and writes JSON. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/bench.h"
#include "cli/cli.h"

#define MAX_REPS 1000

static const char usage[] =
    "usage: mx8 bench OP SHAPE [--check] [--pass forward|backward|both] [--dtype bf16|f32|mxfp8] [--threads N]\n"
    "                 [--reps N] [--scale-rule RULE] [--scale-group N] [--json FILE]\n\n"
    "Random data, one warm-up, then the median and the spread of the repetitions. Dimensions may carry their letter\n"
    "(4096x1024x512xG8). mxfp8 products include quantizing their operands. GFLOP/s where multiplications count, GB/s\n"
    "(every input and output once) where memory does; `mx8 bench memcpy` is its ceiling. With --check a wrong result\n"
    "makes the exit code 1.\n\n";

static const struct mx8_option table[] = {
    {"check", MX8_OPT_BOOL, "false", NULL, 0, 0, "compare the result with the reference", NULL},
    {"pass", MX8_OPT_CHOICE, "forward", "forward|backward|both", 0, 0, "what to time", NULL},
    {"dtype", MX8_OPT_CHOICE, "auto", "auto|bf16|f32|mxfp8", 0, 0, "auto: mxfp8 where the operator has it, else bf16",
        NULL},
    {"threads", MX8_OPT_INT, "0", NULL, 0, 4096, "0: OMP_NUM_THREADS, else all cores", NULL},
    {"reps", MX8_OPT_INT, "0", NULL, 0, MAX_REPS, "repetitions; 0: about a second's worth", NULL},
    {"scale_rule", MX8_OPT_CHOICE, "rceil", "rceil|floor|ceil|even", 0, 0, "of the quantizers", NULL},
    {"scale_group", MX8_OPT_CHOICE, "32", "32|128|256", 0, 0, "of the quantizers", NULL},
    {"json", MX8_OPT_TEXT, "", NULL, 0, 0, "file for the figures, with every repetition's time", NULL},
};
#define TABLE_COUNT ((int32_t)(sizeof table / sizeof table[0]))

struct timing {
    double seconds[MAX_REPS]; /* in order of measurement */
    int reps;
    double median, low, high, quarter, three_quarters;
};

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum mx8_status time_pass(struct mx8_bench *b, int reps, struct timing *t) {
    double start = mx8i_get_seconds();
    MX8_TRY(mx8i_run_pass(b));
    double once = mx8i_get_seconds() - start;
    if (reps == 0) reps = once > 0.2 ? 5 : once < 0.001 ? MAX_REPS : (int)(1 / once);
    for (t->reps = 0; t->reps < reps; t->reps++) {
        start = mx8i_get_seconds();
        MX8_TRY(mx8i_run_pass(b));
        t->seconds[t->reps] = mx8i_get_seconds() - start;
    }
    double sorted[MAX_REPS];
    memcpy(sorted, t->seconds, sizeof sorted);
    qsort(sorted, (size_t)reps, sizeof *sorted, compare_numbers);
    t->median = (sorted[(reps - 1) / 2] + sorted[reps / 2]) / 2;
    t->low = sorted[0];
    t->high = sorted[reps - 1];
    t->quarter = sorted[reps / 4];
    t->three_quarters = sorted[reps - 1 - reps / 4];
    return MX8_OK;
}

static const char *get_dtype_name(const struct mx8_bench *b) {
    return b->mxfp8 ? "mxfp8" : mx8_get_dtype_name(b->dtype);
}

/* "M=4096 N=1024": names from the problem's shape. */
static void describe_shape(const struct mx8_bench *b, char *text, size_t size) {
    const char *name = b->problem->shape;
    size_t at = 0;
    for (int i = 0; *name && at < size; i++) {
        size_t length = strcspn(name, "x");
        at += (size_t)snprintf(
            text + at, size - at, "%s%.*s=%lld", i ? " " : "", (int)length, name, (long long)b->dim[i]);
        name += length + (name[length] == 'x');
    }
}

static void print_result(const struct mx8_bench *b, const struct timing *t, double rate, const char *unit) {
    char shape[160];
    describe_shape(b, shape, sizeof shape);
    printf("%s %s  %s  %s  %s, %d threads\n", b->problem->name, b->backward ? "backward" : "forward", shape,
        get_dtype_name(b), mx8_get_backend_name(b->ctx), mx8_get_thread_count(b->ctx));
    printf("  %.2f %s  median %.4g ms (min %.4g, quartiles %.4g to %.4g, max %.4g; %d repetitions)\n", rate, unit,
        t->median * 1e3, t->low * 1e3, t->quarter * 1e3, t->three_quarters * 1e3, t->high * 1e3, t->reps);
}

static void print_check(const struct mx8_check *c) {
    char count[32];
    printf("  check %s: %s values against %s", c->wrong ? "FAILED" : "passed", mx8i_format_count(count, c->compared),
        c->against);
    if (c->worst > 0) printf(", largest error %.2g of the bound", c->worst);
    if (c->wrong) printf(", %lld differ", (long long)c->wrong);
    putchar('\n');
}

static json_t *describe_pass(
    const struct mx8_bench *b, const struct timing *t, double rate, const char *unit, const struct mx8_check *c) {
    json_t *times = json_array();
    char shape[160];
    describe_shape(b, shape, sizeof shape);
    for (int i = 0; i < t->reps; i++) json_array_append_new(times, json_real(t->seconds[i]));
    json_t *pass = json_pack("{s:s, s:s, s:s, s:s, s:f, s:s, s:f, s:f, s:f, s:o}", "operator", b->problem->name, "pass",
        b->backward ? "backward" : "forward", "shape", shape, "dtype", get_dtype_name(b), "rate", rate, "unit", unit,
        "median_seconds", t->median, "min_seconds", t->low, "max_seconds", t->high, "seconds", times);
    if (pass && c)
        json_object_set_new(pass, "check",
            json_pack("{s:b, s:I, s:I, s:f, s:s}", "passed", c->wrong == 0, "compared", (json_int_t)c->compared,
                "wrong", (json_int_t)c->wrong, "worst_part_of_bound", c->worst, "against", c->against));
    return pass;
}

/* `git describe` of the folder that holds the binary; "" when that is no work tree. */
static void describe_commit(char *out, size_t size) {
    char path[1024], command[1200];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    out[0] = 0;
    if (length <= 0) return;
    path[length] = 0;
    char *slash = strrchr(path, '/');
    if (!slash || strchr(path, '\'')) return;
    *slash = 0;
    snprintf(command, sizeof command, "git -C '%s' describe --always --dirty 2>/dev/null", path);
    FILE *pipe = popen(command, "r");
    if (!pipe) return;
    if (!fgets(out, (int)size, pipe)) out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    pclose(pipe);
}

/* Takes over `passes`. */
static enum mx8_status write_json(const char *path, const struct mx8_bench *b, json_t *passes) {
    struct mx8_cpu cpu = mx8i_get_cpu();
    char commit[128];
    describe_commit(commit, sizeof commit);
    json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:o}", "device", cpu.brand, "backend",
        mx8_get_backend_name(b->ctx), "backend_reason", mx8_get_backend_reason(b->ctx), "threads",
        (int)mx8_get_thread_count(b->ctx), "version", mx8_get_version_text(), "commit", commit, "passes", passes);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!text) return MX8_FAIL(MX8_OUT_OF_MEMORY, "%s: no memory for the figures", path);
    enum mx8_status status = mx8i_write_text(path, text);
    free(text);
    return status;
}

static enum mx8_status run_bench(struct mx8_bench *b, const struct mx8_options *o, json_t *passes, int *wrong) {
    struct timing *t = mx8i_allocate(sizeof *t, "times");
    struct mx8_check check = {0};
    int checked = mx8i_get_bool(o, "check");
    if (!t) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_prepare_bench(b);
    if (status == MX8_OK) status = time_pass(b, (int)mx8i_get_int(o, "reps"), t);
    if (status == MX8_OK) {
        int by_flops = b->problem->count_flops != NULL;
        double work = by_flops ? b->problem->count_flops(b) : mx8i_count_bench_bytes(b);
        double rate = t->median > 0 ? work / t->median * 1e-9 : 0;
        const char *unit = by_flops ? "GFLOP/s" : "GB/s";
        print_result(b, t, rate, unit);
        if (checked) status = b->problem->check(b, &check);
        if (status == MX8_OK && checked) print_check(&check);
        json_array_append_new(passes, describe_pass(b, t, rate, unit, checked ? &check : NULL));
        *wrong |= check.wrong > 0;
    }
    mx8i_release(t);
    mx8i_release_bench(b);
    return status;
}

/* The words and flags into `b`; a message and MX8_EXIT_USAGE when they make no sense. */
static int read_problem(struct mx8_bench *b, const struct mx8_options *o, const char *const *words, int n_words) {
    if (n_words != 2) return mx8i_report_usage("bench", "needs an operator and a shape");
    b->problem = mx8i_find_problem(words[0]);
    if (!b->problem) return mx8i_report_usage("bench", "there is no problem \"%s\"", words[0]);
    enum mx8_status status = mx8i_parse_shape(b, words[1]);
    if (status != MX8_OK) return mx8i_report_failure("bench", status, MX8_EXIT_USAGE);
    const char *dtype = mx8i_get_text(o, "dtype");
    int automatic = strcmp(dtype, "auto") == 0, wants_mxfp8 = strcmp(dtype, "mxfp8") == 0;
    if (wants_mxfp8 && !b->problem->has_mxfp8) return mx8i_report_usage("bench", "%s has no mxfp8 form", words[0]);
    if (strcmp(mx8i_get_text(o, "pass"), "forward") != 0 && !b->problem->has_backward)
        return mx8i_report_usage("bench", "%s has no backward pass here", words[0]);
    b->dtype = strcmp(dtype, "f32") == 0 ? MX8_F32 : MX8_BF16;
    b->mxfp8 = wants_mxfp8 || (automatic && b->problem->has_mxfp8);
    b->options.scale_rule = mx8i_find_scale_rule(mx8i_get_text(o, "scale_rule"));
    b->options.scale_group = (int32_t)strtol(mx8i_get_text(o, "scale_group"), NULL, 10);
    b->options.weight_scale_group = b->options.scale_group;
    return MX8_EXIT_OK;
}

static int bench(const struct mx8_options *o, const char *const *words, int n_words) {
    struct mx8_bench b = {.seed = 1};
    struct mx8_context_options context = {.threads = (int32_t)mx8i_get_int(o, "threads")};
    const char *pass = mx8i_get_text(o, "pass"), *json = mx8i_get_text(o, "json");
    int wrong = 0, code = read_problem(&b, o, words, n_words);
    if (code != MX8_EXIT_OK) return code;
    enum mx8_status status = mx8_create_context(&context, &b.ctx);
    json_t *passes = json_array();
    for (int backward = 0; backward < 2 && status == MX8_OK; backward++) {
        if (strcmp(pass, backward ? "forward" : "backward") == 0) continue;
        struct mx8_bench one = b;
        one.backward = backward;
        status = run_bench(&one, o, passes, &wrong);
    }
    if (status == MX8_OK && *json)
        status = write_json(json, &b, passes);
    else
        json_decref(passes);
    mx8_destroy_context(b.ctx);
    if (status != MX8_OK) return mx8i_report_failure("bench", status, MX8_EXIT_FAILURE);
    return wrong ? MX8_EXIT_FAILURE : MX8_EXIT_OK;
}

static int print_help(void) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return MX8_EXIT_FAILURE;
    fputs(usage, out);
    mx8i_list_problems(out);
    int code = fclose(out) == 0 ? mx8i_print_help(text, table, TABLE_COUNT) : MX8_EXIT_FAILURE;
    free(text);
    return code;
}

int mx8i_run_bench(int argc, char **argv) {
    struct mx8_options options;
    const char *words[2];
    int n_words = 0;
    if (argc > 1 && strcmp(argv[1], "dist") == 0) return mx8i_run_bench_dist(argc - 1, argv + 1);
    if (mx8i_wants_help(argc, argv)) return print_help();
    enum mx8_status status = mx8i_open_options(table, TABLE_COUNT, &options);
    if (status != MX8_OK) return mx8i_report_failure("bench", status, MX8_EXIT_FAILURE);
    status = mx8i_parse_flags(&options, argc - 1, argv + 1, NULL, words, &n_words, 2);
    int code =
        status == MX8_OK ? bench(&options, words, n_words) : mx8i_report_failure("bench", status, MX8_EXIT_USAGE);
    mx8i_close_options(&options);
    return code;
}
