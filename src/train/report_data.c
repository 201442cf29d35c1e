#include "train/report_data.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

#define MAX_METRICS  ((size_t)4 << 30)
#define MAX_RUN_JSON ((size_t)16 << 20)

static double get_number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* The first line that has an expert load fixes layers and experts. */
static enum mx8_status read_load(struct mx8_report_run *r, int64_t at, int64_t room, const json_t *load) {
    if (!json_is_array(load) || json_array_size(load) == 0) return MX8_OK;
    if (r->layers == 0) {
        r->layers = (int64_t)json_array_size(load);
        r->experts = (int64_t)json_array_size(json_array_get(load, 0));
        if (r->experts == 0) return MX8_FAIL(MX8_FORMAT_ERROR, "expert_load has a layer without experts");
        size_t count = (size_t)(room * r->layers * r->experts);
        r->load = mx8i_allocate(count * sizeof *r->load, "expert load");
        if (!r->load) return MX8_OUT_OF_MEMORY;
        for (size_t i = 0; i < count; i++) r->load[i] = (double)NAN;
    }
    if ((int64_t)json_array_size(load) != r->layers)
        return MX8_FAIL(MX8_FORMAT_ERROR, "expert_load has %zu layers, the lines before it %lld", json_array_size(load),
            (long long)r->layers);
    for (int64_t layer = 0; layer < r->layers; layer++) {
        const json_t *counts = json_array_get(load, (size_t)layer);
        double *out = &r->load[(at * r->layers + layer) * r->experts], sum = 0;
        if ((int64_t)json_array_size(counts) != r->experts)
            return MX8_FAIL(MX8_FORMAT_ERROR, "expert_load has %zu experts in layer %lld, expected %lld",
                json_array_size(counts), (long long)layer, (long long)r->experts);
        for (int64_t e = 0; e < r->experts; e++) sum += out[e] = json_number_value(json_array_get(counts, (size_t)e));
        for (int64_t e = 0; e < r->experts; e++) out[e] = sum > 0 ? out[e] * (double)r->experts / sum : 1;
    }
    return MX8_OK;
}

static enum mx8_status read_line(struct mx8_report_run *r, int64_t room, const char *line, size_t length) {
    json_error_t error;
    json_t *object = json_loadb(line, length, 0, &error);
    if (!json_is_object(object)) {
        json_decref(object);
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s", object ? "expected a JSON object" : error.text);
    }
    static const char *const counts[] = {[MX8_COUNT_SATURATED] = "saturated", [MX8_COUNT_WIDE_BLOCKS] = "wide_blocks"};
    int64_t at = r->n++;
    r->step[at] = get_number(object, "step");
    r->loss[at] = get_number(object, "loss");
    r->speed[at] = get_number(object, "tokens_per_second");
    r->memory[at] = get_number(object, "memory");
    for (int i = 0; i < MX8_REPORT_COUNTS; i++) r->count[i][at] = get_number(object, counts[i]);
    r->last_tokens = fmax(get_number(object, "tokens"), 0);
    double validation = get_number(object, "validation_loss");
    if (isfinite(validation)) {
        r->validation_step[r->n_validations] = r->step[at];
        r->validation_loss[r->n_validations++] = validation;
    }
    r->waited += fmax(get_number(object, "data_seconds"), 0); /* fmax leaves NaN out */
    r->seconds += fmax(get_number(object, "seconds"), 0);
    enum mx8_status status = read_load(r, at, room, json_object_get(object, "expert_load"));
    if (status == MX8_OK && !isfinite(r->step[at])) status = MX8_FAIL(MX8_FORMAT_ERROR, "\"step\" is no number");
    json_decref(object);
    return status;
}

static enum mx8_status allocate_steps(struct mx8_report_run *r, int64_t lines) {
    double **series[] = {&r->step, &r->loss, &r->speed, &r->memory, &r->count[MX8_COUNT_SATURATED],
        &r->count[MX8_COUNT_WIDE_BLOCKS], &r->validation_step, &r->validation_loss};
    for (size_t i = 0; i < sizeof series / sizeof series[0]; i++) {
        *series[i] = mx8i_allocate((size_t)lines * sizeof **series[i], "metrics");
        if (!*series[i]) return MX8_OUT_OF_MEMORY;
    }
    return MX8_OK;
}

static enum mx8_status read_metrics(struct mx8_report_run *r, const char *path) {
    char *text = NULL;
    size_t size = 0;
    MX8_TRY(mx8i_read_file(path, MAX_METRICS, &text, &size));
    int64_t lines = 1, number = 0;
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    enum mx8_status status = allocate_steps(r, lines);
    for (const char *at = text, *end = text + size; status == MX8_OK && at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) break; /* a last line without its end: the run was killed while writing it */
        number++;
        if (stop > at) {
            status = read_line(r, lines, at, (size_t)(stop - at));
            if (status != MX8_OK) mx8i_fail_prefix(status, "%s:%lld", path, (long long)number);
        }
        at = stop + 1;
    }
    if (status == MX8_OK && r->n == 0) status = MX8_FAIL(MX8_FORMAT_ERROR, "%s: no step in it", path);
    mx8i_release(text);
    return status;
}

static enum mx8_status add_fact(struct mx8_report_run *r, const char *name, const json_t *value) {
    char number[64];
    if (r->n_facts == (int32_t)(sizeof r->fact / sizeof r->fact[0])) return MX8_OK;
    if (json_is_integer(value))
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(number, sizeof number, "%g", json_real_value(value));
    else if (!json_is_string(value))
        return MX8_OK; /* nested parts are for other readers */
    struct mx8_run_fact *fact = &r->fact[r->n_facts];
    fact->name = mx8i_copy_text(name);
    fact->value = mx8i_copy_text(json_is_string(value) ? json_string_value(value) : number);
    r->n_facts++;
    return fact->name && fact->value ? MX8_OK : MX8_OUT_OF_MEMORY;
}

/* A folder without run.json still makes a report: the curves matter most. */
static enum mx8_status read_facts(struct mx8_report_run *r, const char *path) {
    char *text = NULL;
    size_t size = 0;
    if (!mx8i_is_file(path)) return MX8_OK;
    MX8_TRY(mx8i_read_file(path, MAX_RUN_JSON, &text, &size));
    json_error_t error;
    json_t *object = json_loadb(text, size, 0, &error);
    enum mx8_status status = MX8_OK;
    if (!json_is_object(object))
        status = MX8_FAIL(MX8_FORMAT_ERROR, "%s:%d: %s", path, object ? 1 : error.line,
            object ? "expected a JSON object" : error.text);
    else
        for (void *item = json_object_iter(object); item && status == MX8_OK;
             item = json_object_iter_next(object, item))
            status = add_fact(r, json_object_iter_key(item), json_object_iter_value(item));
    json_decref(object);
    mx8i_release(text);
    return status;
}

const char *mx8i_find_fact(const struct mx8_report_run *r, const char *name) {
    for (int32_t i = 0; i < r->n_facts; i++)
        if (strcmp(r->fact[i].name, name) == 0) return r->fact[i].value;
    return NULL;
}

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* NaN when there is none. */
static double sum_finite(const double *values, int64_t n) {
    double sum = (double)NAN;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(values[i])) sum = isfinite(sum) ? sum + values[i] : values[i];
    return sum;
}

static enum mx8_status summarize(struct mx8_report_run *r) {
    double *sorted = mx8i_allocate((size_t)r->n * sizeof *sorted, "median");
    if (!sorted) return MX8_OUT_OF_MEMORY;
    int64_t count = 0, last = r->n / 20 > 0 ? r->n / 20 : 1;
    for (int64_t i = r->n > 1; i < r->n; i++)
        if (isfinite(r->speed[i])) sorted[count++] = r->speed[i];
    qsort(sorted, (size_t)count, sizeof *sorted, compare_numbers);
    r->median_speed = count ? (sorted[(count - 1) / 2] + sorted[count / 2]) / 2 : (double)NAN;
    mx8i_release(sorted);
    r->data_share = r->seconds > 0 ? r->waited / r->seconds : (double)NAN;
    r->final_validation = r->n_validations ? r->validation_loss[r->n_validations - 1] : (double)NAN;
    for (int64_t i = r->n - last; i < r->n; i++) r->final_loss += r->loss[i] / (double)last;
    for (int64_t i = 0; i < r->n; i++)
        if (r->memory[i] > r->peak_memory) r->peak_memory = r->memory[i];
    for (int i = 0; i < MX8_REPORT_COUNTS; i++) r->total[i] = sum_finite(r->count[i], r->n);
    return MX8_OK;
}

static void name_run(struct mx8_report_run *r, const char *folder) {
    const char *recipe = mx8i_find_fact(r, "recipe");
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') length--;
    size_t start = length;
    while (start > 0 && folder[start - 1] != '/') start--;
    if (recipe)
        snprintf(r->name, sizeof r->name, "%s", recipe);
    else
        snprintf(r->name, sizeof r->name, "%.*s", (int)(length - start), folder + start);
}

enum mx8_status mx8i_read_run(const char *folder, struct mx8_report_run *out) {
    if (mx8i_is_file(folder)) {
        *out = (struct mx8_report_run){0};
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: is a file, expected a run's folder with metrics.jsonl in it", folder);
    }
    char *metrics = mx8i_format_text("%s/metrics.jsonl", folder), *facts = mx8i_format_text("%s/run.json", folder);
    memset(out, 0, sizeof *out);
    enum mx8_status status = metrics && facts ? read_metrics(out, metrics) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = read_facts(out, facts);
    if (status == MX8_OK) status = summarize(out);
    if (status == MX8_OK) name_run(out, folder);
    mx8i_release(metrics);
    mx8i_release(facts);
    if (status != MX8_OK) mx8i_release_run(out);
    return status;
}

void mx8i_release_run(struct mx8_report_run *r) {
    double *series[] = {r->step, r->loss, r->speed, r->memory, r->count[MX8_COUNT_SATURATED],
        r->count[MX8_COUNT_WIDE_BLOCKS], r->load, r->validation_step, r->validation_loss};
    for (size_t i = 0; i < sizeof series / sizeof series[0]; i++) mx8i_release(series[i]);
    for (int32_t i = 0; i < r->n_facts; i++) {
        mx8i_release(r->fact[i].name);
        mx8i_release(r->fact[i].value);
    }
    memset(r, 0, sizeof *r);
}

void mx8i_smooth(const double *in, int64_t n, int64_t window, double *out) {
    for (int64_t i = 0; i < n; i++) {
        int64_t reach = (window - 1) / 2;
        if (reach > i) reach = i; /* symmetric at the start, where the loss falls fast */
        double sum = 0;
        int64_t count = 0;
        for (int64_t j = i - reach; j <= i + reach && j < n; j++) {
            if (!isfinite(in[j])) continue;
            sum += in[j];
            count++;
        }
        out[i] = count ? sum / (double)count : (double)NAN;
    }
}
