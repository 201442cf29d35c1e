/* The report's page: what ran, the table, the charts. */
#include "train/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "train/report_charts.h"
#include "train/report_style.h"

#define MAX_RUNS 8 /* as many colours as the style sheet has */

static void append_style(struct mx8_text *t) {
    mx8i_append(t, "<style>\n%s", MX8_REPORT_STYLE);
    for (int i = 0; i < MAX_RUNS; i++)
        mx8i_append(
            t, ".l.s%d{stroke:var(--s%d)}.b.s%d{fill:var(--s%d)}.sw.s%d{background:var(--s%d)}\n", i, i, i, i, i, i);
    for (int i = 0; i < 9; i++) mx8i_append(t, ".h%d{fill:var(--h%d)}", i, i);
    mx8i_append(t, "\n</style>\n");
}

static void append_key(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n) {
    mx8i_append(t, "<div class=\"key\">");
    for (int32_t i = 0; i < n; i++) {
        mx8i_append(t, "<span><i class=\"sw s%d\"></i>", i);
        mx8i_append_escaped(t, runs[i].name);
        mx8i_append(t, "</span>");
    }
    mx8i_append(t, "</div>\n");
}

/* A number with thousands separators. */
static void append_count(struct mx8_text *t, double value) {
    char digits[32];
    if (!isfinite(value)) {
        mx8i_append(t, "-");
        return;
    }
    int n = snprintf(digits, sizeof digits, "%.0f", value);
    for (int i = 0; i < n; i++) mx8i_append(t, i && (n - i) % 3 == 0 && digits[i - 1] != '-' ? ",%c" : "%c", digits[i]);
}

/* What all runs have in common, under the words of the page. */
static void append_facts(struct mx8_text *t, const struct mx8_report_run *r) {
    static const struct {
        const char *fact, *label;
        int count;
    } shown[] = {{"flavor", "Model", 0}, {"parameters", "Parameters", 1}, {"active_parameters", "Active per token", 1},
        {"dataset_path", "Data", 0}, {"steps", "Steps", 1}, {"tokens_per_step", "Tokens per step", 1},
        {"seq_len", "Sequence", 1}, {"backend", "Device", 0}, {"threads", "Threads", 0}, {"started", "Started", 0},
        {"version", "mx8", 0}};
    int any = 0;
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) any |= mx8i_find_fact(r, shown[i].fact) != NULL;
    if (!any) return;
    mx8i_append(t, "<dl>\n");
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        const char *value = mx8i_find_fact(r, shown[i].fact);
        double number;
        char rest;
        if (!value) continue;
        mx8i_append(t, "<div><dt>%s</dt><dd>", shown[i].label);
        if (shown[i].count && sscanf(value, "%lf%c", &number, &rest) == 1)
            append_count(t, number);
        else
            mx8i_append_escaped(t, value);
        mx8i_append(t, "</dd></div>\n");
    }
    mx8i_append(t, "</dl>\n");
}

/* The rest of a cell, and the beginning of the next. */
static void append_cell(struct mx8_text *t, double value, int decimals, const char *unit) {
    if (isfinite(value))
        mx8i_append(t, "%.*f%s</td><td>", decimals, value, unit);
    else
        mx8i_append(t, "-</td><td>");
}

/* Mean loss of the last 5 % of a run's first n steps, at least one. */
static double get_loss_at(const struct mx8_report_run *r, int64_t n) {
    int64_t count = n / 20 > 1 ? n / 20 : 1, used = 0;
    double sum = 0;
    for (int64_t i = n - count; i < n; i++) {
        if (!isfinite(r->loss[i])) continue;
        sum += r->loss[i];
        used++;
    }
    return used ? sum / (double)used : (double)NAN;
}

/* Per cent, over the steps that both have: a run that goes on or was stopped is not compared with another's end. */
static double get_gap(const struct mx8_report_run *r, const struct mx8_report_run *base) {
    int64_t n = r->n < base->n ? r->n : base->n;
    if (r->n == base->n) return (r->final_loss / base->final_loss - 1) * 100;
    return (get_loss_at(r, n) / get_loss_at(base, n) - 1) * 100;
}

static void append_row(struct mx8_text *t, const struct mx8_report_run *r, int32_t index,
    const struct mx8_report_run *base, int shows_validation) {
    mx8i_append(t, "<tr><td><i class=\"sw s%d\"></i>", index);
    mx8i_append_escaped(t, r->name);
    mx8i_append(t, "</td><td>");
    append_count(t, (double)r->n);
    mx8i_append(t, "</td><td>");
    append_count(t, r->median_speed);
    if (base) mx8i_append(t, "</td><td>%.2f\303\227", r->median_speed / base->median_speed);
    mx8i_append(t, "</td><td>%.2f GiB</td><td>", r->peak_memory / (1 << 30));
    append_cell(t, 100 * r->data_share, 2, " %");
    if (shows_validation) append_cell(t, r->final_validation, 4, "");
    mx8i_append(t, "%.4f</td>", r->final_loss);
    if (base == r)
        mx8i_append(t, "<td>-</td>");
    else if (base)
        mx8i_append(t, "<td>%+.3f %%</td>", get_gap(r, base));
    mx8i_append(t, "</tr>\n");
}

static int64_t get_most_validations(const struct mx8_report_run *runs, int32_t n) {
    int64_t most = 0;
    for (int32_t i = 0; i < n; i++) most = runs[i].n_validations > most ? runs[i].n_validations : most;
    return most;
}

static void append_table(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n) {
    int64_t most_validations = get_most_validations(runs, n);
    mx8i_append(t,
        "<div class=\"wide\"><table><thead><tr><th>Recipe</th><th>Steps</th><th>Median tokens/s</th>%s"
        "<th>Peak memory</th><th>Data wait</th>%s<th>Final loss</th>%s</tr></thead><tbody>\n",
        n > 1 ? "<th>Speed</th>" : "", most_validations ? "<th>Validation</th>" : "", n > 1 ? "<th>Loss gap</th>" : "");
    for (int32_t i = 0; i < n; i++) append_row(t, &runs[i], i, n > 1 ? &runs[0] : NULL, most_validations > 0);
    mx8i_append(t, "</tbody></table></div>\n<p class=\"note\">");
    if (n > 1) {
        mx8i_append(t, "Speed and gap are relative to ");
        mx8i_append_escaped(t, runs[0].name);
        mx8i_append(t, ", the gap over the steps that both have. ");
    }
    mx8i_append(t,
        "Tokens/s is the median over the steps but the first; the final loss is the mean of the last 5 %% of "
        "the steps.%s Data wait is the share of the steps' time that was spent waiting for data.</p>\n",
        most_validations ? " Validation is the last validation's loss." : "");
}

/* A chart where anything was counted, a sentence where nothing was, silence where no run counts. */
static void append_counts(
    struct mx8_text *t, enum mx8_report_count which, const struct mx8_report_run *runs, int32_t n) {
    static const struct {
        const char *title, *note, *none;
    } texts[] = {
        [MX8_COUNT_SATURATED] = {"Saturation", "Values that the 8-bit format clipped, a step.",
            "No value was clipped by the 8-bit format in any run."},
        [MX8_COUNT_WIDE_BLOCKS] = {"Wide blocks",
            "Blocks of 32 values, a step, that lie so far below the scale they share (more than 2<sup>11</sup>) that "
            "small values lose bits.",
            "No block lies more than 2<sup>11</sup> below the scale it shares."},
    };
    double most = (double)NAN;
    for (int32_t i = 0; i < n; i++) most = fmax(most, runs[i].total[which]); /* fmax leaves NaN out */
    if (most > 0) {
        mx8i_append(t, "<h2>%s</h2>\n<p class=\"note\">%s</p>\n", texts[which].title, texts[which].note);
        mx8i_draw_counts(t, which, runs, n);
    } else if (isfinite(most)) {
        mx8i_append(t, "<p class=\"note\">%s</p>\n", texts[which].none);
    }
}

static enum mx8_status append_charts(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n) {
    int64_t window = mx8i_get_smoothing(runs, n), layers = 0;
    for (int32_t i = 0; i < n; i++) layers += runs[i].layers;
    mx8i_append(t, "<h2>Loss</h2>\n<p class=\"note\">");
    if (window > 1) mx8i_append(t, "Mean over %lld steps; every step behind it, faint. ", (long long)window);
    if (n > 1) {
        mx8i_append(t, "Below: the gap to ");
        mx8i_append_escaped(t, runs[0].name);
        mx8i_append(t, " at the same step.");
    }
    mx8i_append(t, "</p>\n");
    append_key(t, runs, n);
    MX8_TRY(mx8i_draw_loss(t, runs, n));
    if (get_most_validations(runs, n) > 1) {
        mx8i_append(t, "<h2>Validation</h2>\n<p class=\"note\">Loss on the validation set.</p>\n");
        mx8i_draw_validation(t, runs, n);
    }
    mx8i_append(t, "<div class=\"pair\"><div><h2>Speed</h2>\n<p class=\"note\">Tokens per second of every step but the "
                   "first.</p>\n");
    mx8i_draw_speed(t, runs, n);
    mx8i_append(t, "</div><div><h2>Memory</h2>\n<p class=\"note\">What the job held, at its peak.</p>\n");
    mx8i_draw_memory(t, runs, n);
    mx8i_append(t, "</div></div>\n");
    if (layers > 0) {
        mx8i_append(t,
            "<h2>Expert load</h2>\n<p class=\"note\">Tokens that each expert received over the even share: a "
            "strip for every MoE layer, a row for every expert, steps from left to right.</p>\n");
        mx8i_draw_load(t, runs, n);
    }
    for (int i = 0; i < MX8_REPORT_COUNTS; i++) append_counts(t, (enum mx8_report_count)i, runs, n);
    return MX8_OK;
}

static enum mx8_status append_page(
    struct mx8_text *t, const char *title, const struct mx8_report_run *runs, int32_t n, int refresh) {
    const char *description = mx8i_find_fact(&runs[0], "description");
    mx8i_append(t, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                   "content=\"width=device-width,initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light "
                   "dark\">\n");
    if (refresh > 0) mx8i_append(t, "<meta http-equiv=\"refresh\" content=\"%d\">\n", refresh);
    mx8i_append(t, "<title>");
    mx8i_append_escaped(t, title);
    mx8i_append(t, "</title>\n");
    append_style(t);
    mx8i_append(t, "</head><body><main>\n<h1>");
    mx8i_append_escaped(t, title);
    mx8i_append(t, "</h1>\n<p class=\"lead\">");
    if (description && *description)
        mx8i_append_escaped(t, description);
    else if (n > 1)
        mx8i_append(t, "%d training runs, the first of which is the baseline.", n);
    else
        mx8i_append(t, "One training run.");
    mx8i_append(t, "</p>\n");
    append_table(t, runs, n);
    append_facts(t, &runs[0]);
    MX8_TRY(append_charts(t, runs, n));
    mx8i_append(t,
        "<footer>Written by mx8 %s from metrics.jsonl and run.json of each run. No scripts, nothing loaded from "
        "elsewhere.</footer>\n</main></body></html>\n",
        mx8_get_version_text());
    return t->status == MX8_OK ? MX8_OK : MX8_FAIL(t->status, "mx8i_write_report: no memory for the page");
}

enum mx8_status mx8i_write_report(const char *path, const char *title, const char *const *runs, int n_runs) {
    return mx8i_refresh_report(path, title, runs, n_runs, 0);
}

/* Runs of one recipe are told apart by their folders, of which the end says most. */
static void tell_apart(struct mx8_report_run *run, int32_t n, const char *const *folders) {
    enum { MOST = 40 };
    int clash[MAX_RUNS] = {0};
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n; j++) clash[i] |= i != j && !strcmp(run[i].name, run[j].name);
    for (int32_t i = 0; i < n; i++) {
        size_t size = strlen(run[i].name), length = strlen(folders[i]), from = length > MOST ? length - MOST : 0;
        if (clash[i])
            snprintf(run[i].name + size, sizeof run[i].name - size, " (%s%s)", from ? "..." : "", folders[i] + from);
    }
}

enum mx8_status mx8i_refresh_report(
    const char *path, const char *title, const char *const *runs, int n_runs, int refresh) {
    struct mx8_report_run run[MAX_RUNS];
    struct mx8_text text = {0};
    int32_t n = 0;
    enum mx8_status status = MX8_OK;
    if (n_runs < 1 || n_runs > MAX_RUNS)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_write_report: %d runs, expected 1 to %d", n_runs, MAX_RUNS);
    while (n < n_runs && status == MX8_OK) {
        status = mx8i_read_run(runs[n], &run[n]);
        if (status == MX8_OK) n++;
    }
    tell_apart(run, n, runs);
    if (status == MX8_OK) status = append_page(&text, title ? title : "Training report", run, n, refresh);
    if (status == MX8_OK) status = mx8i_write_file(path, text.data, text.size);
    mx8i_release_text(&text);
    while (n > 0) mx8i_release_run(&run[--n]);
    return status;
}
