/* The report's page: what ran, the table, the charts. */
#include "train/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "train/report_charts.h"

#define MAX_RUNS 8 /* as many colours as the style sheet has */

/* Series and load colours are variables: the dark page only changes those. */
static const char style[] =
    ":root{--bg:#fff;--fg:#1c2126;--soft:#5b6670;--line:#e3e7eb;--zero:#8d979f;--track:#eef1f4;"
    "--s0:#2563c9;--s1:#d9681d;--s2:#148a66;--s3:#8c4fc4;--s4:#b8374a;--s5:#6b7280;--s6:#a37b00;--s7:#0e7c9b;"
    "--h0:#1f4e9c;--h1:#5583c4;--h2:#93b3dc;--h3:#cbd9ec;--h4:#f1f1ee;--h5:#f8d7bd;--h6:#f0a877;--h7:#dd7536;--h8:#b34a10}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#14181c;--fg:#e4e8eb;--soft:#9aa5ae;--line:#2a3138;--zero:#6c7780;"
    "--track:#20262c;--s0:#6ea3ff;--s1:#ff9a52;--s2:#42c79a;--s3:#c193f2;--s4:#ff7b8b;--s5:#a3adb8;--s6:#e0b93c;"
    "--s7:#52c4e6;--h0:#79a9ff;--h1:#5a87d6;--h2:#41659f;--h3:#334963;--h4:#2b3036;--h5:#5c4230;--h6:#93592f;"
    "--h7:#cc7434;--h8:#ff9d57}}\n"
    "body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,-apple-system,\"Segoe UI\",\"DejaVu Sans\","
    "sans-serif}\n"
    "main{max-width:960px;margin:0 auto;padding:40px 24px 64px}\n"
    "h1{font-size:28px;line-height:1.2;margin:0 0 4px}h2{font-size:19px;margin:44px 0 6px}\n"
    ".lead,.note,footer{color:var(--soft)}.lead{margin:0 0 20px}.note{margin:2px 0 12px;font-size:14px}\n"
    "dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px 24px;margin:24px 0;padding:16px 0;"
    "border:solid var(--line);border-width:1px 0}dt{color:var(--soft);font-size:13px}dd{margin:0;overflow-wrap:anywhere}\n"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}.wide{overflow-x:auto}\n"
    "th,td{padding:8px 12px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left;padding-left:0}th{font-weight:600;font-size:14px;color:var(--soft)}\n"
    ".key{display:flex;flex-wrap:wrap;gap:4px 20px;margin:4px 0 8px;font-size:14px}\n"
    "i.sw{display:inline-block;width:14px;height:14px;border-radius:3px;margin-right:8px;vertical-align:-2px}\n"
    "svg{display:block;width:100%;height:auto;font-size:13px;font-family:inherit}\n"
    "svg text{fill:var(--soft)}.tx{text-anchor:middle}.ty{text-anchor:end}.lab{fill:var(--fg)}.strong{font-weight:600}\n"
    ".grid{stroke:var(--line);fill:none}.zero{stroke:var(--zero);fill:none}.track{fill:var(--track)}\n"
    ".l{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.raw{stroke-width:1;opacity:.28}\n"
    ".pair{display:grid;grid-template-columns:3fr 2fr;gap:8px 40px}@media(max-width:760px){.pair{grid-template-columns:1fr}}\n"
    "footer{margin-top:56px;font-size:13px;border-top:1px solid var(--line);padding-top:14px}\n";

static void append_style(struct mx8_text *t) {
    mx8i_append(t, "<style>\n%s", style);
    for (int i = 0; i < MAX_RUNS; i++)
        mx8i_append(t, ".l.s%d{stroke:var(--s%d)}.b.s%d{fill:var(--s%d)}.sw.s%d{background:var(--s%d)}\n", i, i, i, i, i, i);
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
    static const struct { const char *fact, *label; int count; } shown[] = {
        {"flavor", "Model", 0}, {"parameters", "Parameters", 1}, {"active_parameters", "Active per token", 1},
        {"dataset_path", "Data", 0}, {"steps", "Steps", 1}, {"tokens_per_step", "Tokens per step", 1}, {"seq_len", "Sequence", 1},
        {"backend", "Device", 0}, {"threads", "Threads", 0}, {"started", "Started", 0},
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
        if (shown[i].count && sscanf(value, "%lf%c", &number, &rest) == 1) append_count(t, number);
        else mx8i_append_escaped(t, value);
        mx8i_append(t, "</dd></div>\n");
    }
    mx8i_append(t, "</dl>\n");
}

static void append_row(struct mx8_text *t, const struct mx8_report_run *r, int32_t index, const struct mx8_report_run *base) {
    mx8i_append(t, "<tr><td><i class=\"sw s%d\"></i>", index);
    mx8i_append_escaped(t, r->name);
    mx8i_append(t, "</td><td>");
    append_count(t, (double)r->n);
    mx8i_append(t, "</td><td>");
    append_count(t, r->median_speed);
    if (base) mx8i_append(t, "</td><td>%.2f\303\227", r->median_speed / base->median_speed);
    mx8i_append(t, "</td><td>%.2f GiB</td><td>%.4f</td>", r->peak_memory / (1 << 30), r->final_loss);
    if (base == r) mx8i_append(t, "<td>-</td>");
    else if (base) mx8i_append(t, "<td>%+.3f %%</td>", (r->final_loss / base->final_loss - 1) * 100);
    mx8i_append(t, "</tr>\n");
}

static void append_table(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n) {
    mx8i_append(t, "<div class=\"wide\"><table><thead><tr><th>Recipe</th><th>Steps</th><th>Median tokens/s</th>%s"
                "<th>Peak memory</th><th>Final loss</th>%s</tr></thead><tbody>\n", n > 1 ? "<th>Speed</th>" : "",
                n > 1 ? "<th>Loss gap</th>" : "");
    for (int32_t i = 0; i < n; i++) append_row(t, &runs[i], i, n > 1 ? &runs[0] : NULL);
    mx8i_append(t, "</tbody></table></div>\n<p class=\"note\">");
    if (n > 1) {
        mx8i_append(t, "Speed and gap are relative to ");
        mx8i_append_escaped(t, runs[0].name);
        mx8i_append(t, ". ");
    }
    mx8i_append(t, "Tokens/s is the median over the steps but the first; the final loss is the mean of the last 5 %% of "
                "the steps.</p>\n");
}

static enum mx8_status append_charts(struct mx8_text *t, const struct mx8_report_run *runs, int32_t n) {
    int64_t window = mx8i_get_smoothing(runs, n), layers = 0;
    double saturated = 0;
    int measured = 0;
    for (int32_t i = 0; i < n; i++) {
        layers += runs[i].layers;
        saturated += runs[i].total_saturated;
        measured |= isfinite(runs[i].saturated[0]);
    }
    mx8i_append(t, "<h2>Loss</h2>\n<p class=\"note\">");
    if (window > 1) mx8i_append(t, "Mean over %lld steps; every step behind it, faint. ", (long long)window);
    if (n > 1) {
        mx8i_append(t, "Below: the gap to ");
        mx8i_append_escaped(t, runs[0].name);
        mx8i_append(t, " on the same batches.");
    }
    mx8i_append(t, "</p>\n");
    append_key(t, runs, n);
    MX8_TRY(mx8i_draw_loss(t, runs, n));
    mx8i_append(t, "<div class=\"pair\"><div><h2>Speed</h2>\n<p class=\"note\">Tokens per second of every step but the "
                "first.</p>\n");
    MX8_TRY(mx8i_draw_speed(t, runs, n));
    mx8i_append(t, "</div><div><h2>Memory</h2>\n<p class=\"note\">What the job held, at its peak.</p>\n");
    mx8i_draw_memory(t, runs, n);
    mx8i_append(t, "</div></div>\n");
    if (layers > 0) {
        mx8i_append(t, "<h2>Expert load</h2>\n<p class=\"note\">Tokens that each expert received over the even share: a "
                    "strip for every MoE layer, a row for every expert, steps from left to right.</p>\n");
        mx8i_draw_load(t, runs, n);
    }
    if (saturated > 0) {
        mx8i_append(t, "<h2>Saturation</h2>\n<p class=\"note\">Values that the 8-bit format clipped, a step.</p>\n");
        mx8i_draw_saturation(t, runs, n);
    } else if (measured) {
        mx8i_append(t, "<p class=\"note\">No value was clipped by the 8-bit format in any run.</p>\n");
    }
    return MX8_OK;
}

static enum mx8_status append_page(struct mx8_text *t, const char *title, const struct mx8_report_run *runs, int32_t n) {
    const char *description = mx8i_find_fact(&runs[0], "description");
    mx8i_append(t, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                "content=\"width=device-width,initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<title>");
    mx8i_append_escaped(t, title);
    mx8i_append(t, "</title>\n");
    append_style(t);
    mx8i_append(t, "</head><body><main>\n<h1>");
    mx8i_append_escaped(t, title);
    mx8i_append(t, "</h1>\n<p class=\"lead\">");
    if (description && *description) mx8i_append_escaped(t, description);
    else mx8i_append(t, "%s", n > 1 ? "The same model, the same start, the same batches." : "One training run.");
    mx8i_append(t, "</p>\n");
    append_table(t, runs, n);
    append_facts(t, &runs[0]);
    MX8_TRY(append_charts(t, runs, n));
    mx8i_append(t, "<footer>Written by mx8 %s from metrics.jsonl and run.json of each run. No scripts, nothing loaded from "
                "elsewhere.</footer>\n</main></body></html>\n", mx8_get_version_text());
    return t->status == MX8_OK ? MX8_OK : MX8_FAIL(t->status, "mx8i_write_report: no memory for the page");
}

static enum mx8_status write_page(const char *path, const struct mx8_text *t) {
    struct mx8_writer w;
    MX8_TRY(mx8i_open_writer(path, &w));
    enum mx8_status status = mx8i_write(&w, t->data, t->size);
    if (status == MX8_OK) return mx8i_commit_writer(&w);
    mx8i_abandon_writer(&w);
    return status;
}

enum mx8_status mx8i_write_report(const char *path, const char *title, const char *const *runs, int n_runs) {
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
    if (status == MX8_OK) status = append_page(&text, title ? title : "Training report", run, n);
    if (status == MX8_OK) status = write_page(path, &text);
    mx8i_release_text(&text);
    while (n > 0) mx8i_release_run(&run[--n]);
    return status;
}
