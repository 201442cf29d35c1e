/* Trains the same model from the same start on the same batches, once per recipe. Each recipe runs in a process of its
 * own: its peak memory is its own, and one that crashes does not take the others along. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "train/report.h"

#define MAX_RECIPES 8

static const char usage[] =
    "usage: mx8 compare [--recipes bf16,mxfp8_dense,mxfp8_moe] [train flags]\n\n"
    "Trains the model once per recipe, from the same start and on the same batches, one run after another, into\n"
    "DUMP_FOLDER/RECIPE; then prints a table and writes compare.json and report.html into DUMP_FOLDER.\n\n"
    "  --recipes LIST   f32, bf16, mxfp8_dense (dense layers), mxfp8_moe (dense layers and experts), with commas;\n"
    "                   gaps are taken to the first\n\n"
    "Every flag of `mx8 train` is taken too; --job.dump_folder is where the results go.\n";

/* What a recipe's name means in the options of `mx8 train`. */
struct recipe {
    const char *name, *converters, *experts, *dtype;
};
static const struct recipe recipes[] = {
    {"f32", "", "", "float32"},
    {"bf16", "", "", "bfloat16"},
    {"mxfp8_dense", "mx", "", "bfloat16"},
    {"mxfp8_moe", "mx", "experts", "bfloat16"},
};

struct result {
    const struct recipe *recipe;
    struct mx8_summary summary;
    char folder[1024];
    int32_t done;
};

struct comparison {
    struct result result[MAX_RECIPES];
    int n;
    char folder[900];
};

static const struct recipe *find_recipe(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++)
        if (strlen(recipes[i].name) == length && strncmp(recipes[i].name, name, length) == 0) return &recipes[i];
    return NULL;
}

static int read_recipes(struct comparison *c, const char *list) {
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        const struct recipe *recipe = find_recipe(at, length);
        if (!recipe)
            return mx8i_report_usage(
                "compare", "--recipes: \"%.*s\" is none of f32, bf16, mxfp8_dense, mxfp8_moe", (int)length, at);
        for (int i = 0; i < c->n; i++)
            if (c->result[i].recipe == recipe)
                return mx8i_report_usage("compare", "--recipes: \"%s\" stands twice", recipe->name);
        c->result[c->n++].recipe = recipe;
        at += length;
        if (!*at) return MX8_EXIT_OK;
    }
}

static enum mx8_status set_recipe(struct mx8_options *o, const struct result *r) {
    static const char source[] = "mx8 compare";
    MX8_TRY(mx8i_set_option(o, "model.converters", r->recipe->converters, source));
    MX8_TRY(mx8i_set_option(o, "mx.moe_fqns_prototype", r->recipe->experts, source));
    MX8_TRY(mx8i_set_option(o, "training.mixed_precision_param", r->recipe->dtype, source));
    /* the head, the router and the two narrow projections stay in bf16 unless the user says otherwise */
    if (!mx8i_is_set(o, "mx.filter_fqns"))
        MX8_TRY(mx8i_set_option(o, "mx.filter_fqns", "output,router.gate,wk,wv", source));
    return mx8i_set_option(o, "job.dump_folder", r->folder, source);
}

/* The child's whole life: one job, its summary through the pipe. */
static int run_child(struct mx8_options *o, const struct comparison *c, int index, int pipe_end) {
    const struct result *r = &c->result[index];
    struct mx8_terminal terminal;
    struct mx8_summary summary;
    char label[64];
    int code = MX8_EXIT_FAILURE;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    mx8i_open_terminal(&terminal);
    snprintf(label, sizeof label, "recipe %d/%d %s", index + 1, c->n, r->recipe->name);
    enum mx8_status status = set_recipe(o, r);
    if (status == MX8_OK && mx8i_get_bool(o, "job.dry_run")) {
        terminal.bare = 1;
        status = mx8i_show_plan(o, &terminal, &code);
        return status == MX8_OK ? MX8_EXIT_OK : mx8i_report_failure("compare", status, code);
    }
    if (status == MX8_OK) status = mx8i_start_job(o, &terminal, label, &summary, &code);
    if (status != MX8_OK) return mx8i_report_failure("compare", status, code);
    if (write(pipe_end, &summary, sizeof summary) != (ssize_t)sizeof summary) return MX8_EXIT_FAILURE;
    return summary.interrupted ? MX8_EXIT_INTERRUPTED : MX8_EXIT_OK;
}

static int wait_for_child(pid_t child, const struct recipe *recipe) {
    int state = 0;
    while (waitpid(child, &state, 0) < 0) {
        if (errno != EINTR) return MX8_EXIT_FAILURE;
        kill(child, SIGTERM); /* a signal for this process alone is passed on */
    }
    if (WIFEXITED(state)) return WEXITSTATUS(state);
    fprintf(stderr, "mx8 compare: recipe %s ended by signal %d (%s)\n", recipe->name, WTERMSIG(state),
        strsignal(WTERMSIG(state)));
    return WTERMSIG(state) == SIGINT ? MX8_EXIT_INTERRUPTED : MX8_EXIT_FAILURE;
}

static int run_recipe(struct mx8_options *o, struct comparison *c, int index) {
    struct result *r = &c->result[index];
    int ends[2];
    if (pipe(ends) != 0) {
        perror("mx8 compare: pipe");
        return MX8_EXIT_FAILURE;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        perror("mx8 compare: fork");
        close(ends[0]);
        close(ends[1]);
        return MX8_EXIT_FAILURE;
    }
    if (child == 0) {
        close(ends[0]);
        int child_code = run_child(o, c, index, ends[1]);
        fflush(NULL);
        _exit(child_code);
    }
    close(ends[1]);
    int code = wait_for_child(child, r->recipe);
    /* the summary fits a pipe's buffer, so the child has never waited for this read */
    r->done = read(ends[0], &r->summary, sizeof r->summary) == (ssize_t)sizeof r->summary;
    close(ends[0]);
    if (code == MX8_EXIT_OK && !r->done && !mx8i_get_bool(o, "job.dry_run")) code = MX8_EXIT_FAILURE;
    return code;
}

static double get_gap(const struct comparison *c, const struct result *r) {
    return (r->summary.final_loss / c->result[0].summary.final_loss - 1) * 100;
}

static void print_validation(const struct comparison *c) {
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        const struct result *r = &c->result[i];
        if (!r->done || !r->summary.validation_step) continue;
        printf("%s %s %.4f", n++ ? "," : "Validation loss:", r->recipe->name, r->summary.validation_loss);
    }
    if (n > 0) printf("\n");
}

static void print_table(const struct comparison *c) {
    char speed[32], gap[32], loss[32], heading[48];
    snprintf(heading, sizeof heading, "loss gap to %s", c->result[0].recipe->name);
    double most_waiting = 0;
    printf("\n%-12s  %16s  %12s  %10s  %20s\n", "recipe", "median tokens/s", "peak memory", "final loss", heading);
    for (int i = 0; i < c->n; i++) {
        const struct result *r = &c->result[i];
        if (!r->done) continue;
        if (i == 0 || !c->result[0].done || !isfinite(get_gap(c, r)))
            snprintf(gap, sizeof gap, "-");
        else
            snprintf(gap, sizeof gap, "%+.3f %%", get_gap(c, r));
        snprintf(loss, sizeof loss, isfinite(r->summary.final_loss) ? "%.4f" : "-", r->summary.final_loss);
        printf("%-12s  %16s  %8.2f GiB  %10s  %20s\n", r->recipe->name,
            mx8i_format_count(speed, (int64_t)(r->summary.median_tps + 0.5)),
            (double)r->summary.peak_memory / (1 << 30), loss, gap);
        most_waiting = fmax(most_waiting, r->summary.data_share);
    }
    printf("\nTokens/s: median over the steps but the first. Final loss: mean of the last 5 %% of the steps.\n"
           "Waiting for data: at most %.2f %% of the steps' time.\n",
        100 * most_waiting);
    print_validation(c);
}

/* JSON has no NaN and no Inf: null, so that a run that diverged keeps its row. */
static json_t *make_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static enum mx8_status write_json(const struct comparison *c) {
    json_t *list = json_array();
    for (int i = 0; i < c->n; i++) {
        const struct result *r = &c->result[i];
        if (!r->done) continue;
        json_t *row = json_pack("{s:s, s:o, s:I, s:o, s:o, s:I, s:I, s:f, s:b}", "recipe", r->recipe->name,
            "median_tokens_per_second", make_number(r->summary.median_tps), "peak_memory_bytes",
            (json_int_t)r->summary.peak_memory, "final_loss", make_number(r->summary.final_loss), "first_loss",
            make_number(r->summary.first_loss), "steps", (json_int_t)r->summary.steps, "tokens",
            (json_int_t)r->summary.tokens, "seconds", r->summary.seconds, "interrupted", r->summary.interrupted);
        if (row) json_object_set_new(row, "data_share", make_number(r->summary.data_share));
        if (row && r->summary.validation_step)
            json_object_set_new(row, "validation_loss", make_number(r->summary.validation_loss));
        if (row && i > 0 && c->result[0].done) json_object_set_new(row, "gap_per_cent", make_number(get_gap(c, r)));
        json_array_append_new(list, row); /* a row that could not be packed is NULL, and is left out */
    }
    char *text = json_dumps(list, JSON_INDENT(2));
    json_decref(list);
    if (!text) return MX8_FAIL(MX8_OUT_OF_MEMORY, "compare.json: out of memory");
    char path[1024];
    snprintf(path, sizeof path, "%s/compare.json", c->folder);
    enum mx8_status status = mx8i_write_text(path, text);
    free(text);
    return status;
}

/* Table, compare.json and report of the runs that finished. */
static enum mx8_status write_results(const struct comparison *c, const char *flavor) {
    const char *runs[MAX_RECIPES];
    char path[1024], title[128];
    int n = 0;
    for (int i = 0; i < c->n; i++)
        if (c->result[i].done) runs[n++] = c->result[i].folder;
    if (n == 0) return MX8_OK;
    print_table(c);
    MX8_TRY(write_json(c));
    snprintf(path, sizeof path, "%s/report.html", c->folder);
    snprintf(title, sizeof title, "Recipes compared: %s", flavor);
    MX8_TRY(mx8i_write_report(path, title, runs, n));
    printf("Report: %s\n", path);
    return MX8_OK;
}

static int compare(struct mx8_options *o, struct comparison *c) {
    int code = MX8_EXIT_OK;
    snprintf(c->folder, sizeof c->folder, "%s", mx8i_get_text(o, "job.dump_folder"));
    enum mx8_status status = mx8i_make_folders(c->folder);
    if (status != MX8_OK) return mx8i_report_failure("compare", status, MX8_EXIT_FAILURE);
    mx8i_catch_signals();
    for (int i = 0; i < c->n && code == MX8_EXIT_OK; i++) {
        snprintf(c->result[i].folder, sizeof c->result[i].folder, "%s/%s", c->folder, c->result[i].recipe->name);
        printf("%srecipe %d/%d: %s\n", i ? "\n" : "", i + 1, c->n, c->result[i].recipe->name);
        code = run_recipe(o, c, i);
    }
    status = write_results(c, mx8i_get_text(o, "model.flavor"));
    if (status != MX8_OK) return mx8i_report_failure("compare", status, MX8_EXIT_FAILURE);
    return code;
}

int mx8i_run_compare(int argc, char **argv) {
    struct mx8_options options;
    const char *list = "bf16,mxfp8_dense,mxfp8_moe";
    int rest_count = 0;
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, mx8i_option_table, mx8i_option_count);
    if (!mx8i_take_value(&argc, argv, "--recipes", &list))
        return mx8i_report_usage("compare", "--recipes needs a list");

    struct mx8_launch launch;
    if (mx8i_find_launch(&launch) == MX8_OK && launch.size > 1)
        return mx8i_report_usage("compare", "runs in one process; several train one recipe by mx8 train");

    struct comparison *c = mx8i_allocate(sizeof *c, "comparison");
    if (!c) return mx8i_report_failure("compare", MX8_OUT_OF_MEMORY, MX8_EXIT_FAILURE);
    int code = read_recipes(c, list);
    enum mx8_status status = MX8_OK;
    if (code == MX8_EXIT_OK) status = mx8i_open_options(mx8i_option_table, mx8i_option_count, &options);
    if (code != MX8_EXIT_OK || status != MX8_OK) {
        mx8i_release(c);
        return code ? code : mx8i_report_failure("compare", status, MX8_EXIT_FAILURE);
    }
    status = mx8i_parse_flags(&options, argc - 1, argv + 1, "job.config_file", NULL, &rest_count, 0);
    if (status == MX8_OK)
        code = compare(&options, c);
    else
        code = mx8i_report_failure("compare", status, status == MX8_INVALID_ARGUMENT ? 2 : MX8_EXIT_FAILURE);
    mx8i_close_options(&options);
    mx8i_release(c);
    return code;
}
