/* The profile of a run: rows of the kernel profile, summed over layers for people, whole for programs. */
#include "train/profile.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

static const char *const unit_names[MX8_PROFILE_UNITS] = {"bytes", "f32", "bf16", "mxfp8"};
static const double least_share = 5e-4; /* of a step: rows below it are summed up */

enum mx8_status mx8i_open_step_profile(
    const struct mx8_job *job, struct mx8_context *ctx, struct mx8_step_profile *out) {
    *out = (struct mx8_step_profile){0};
    return job->profile ? mx8i_open_profile(&ctx->exec, &out->profile) : MX8_OK;
}

enum mx8_status mx8i_add_step_profile(
    struct mx8_step_profile *p, const struct mx8_job *job, struct mx8_context *ctx, const struct mx8_step *s) {
    if (!p->profile) return MX8_OK;
    const int32_t drop = s->step == 1 && job->steps > 1;
    p->steps += !drop;
    p->seconds += drop ? 0 : s->seconds;
    return mx8i_collect_profile(p->profile, &ctx->exec, drop);
}

enum mx8_status mx8i_forget_calls(struct mx8_step_profile *p, struct mx8_context *ctx) {
    return p->profile ? mx8i_collect_profile(p->profile, &ctx->exec, 1) : MX8_OK;
}

void mx8i_close_step_profile(struct mx8_step_profile *p, struct mx8_context *ctx) {
    mx8i_close_profile(&ctx->exec, p->profile);
    p->profile = NULL;
}

/* ---- sums ---- */

typedef int same_row(const struct mx8_profile_row *a, const struct mx8_profile_row *b);

static int is_same_kernel(const struct mx8_profile_row *a, const struct mx8_profile_row *b) {
    return a->unit == b->unit && a->label.backward == b->label.backward && !strcmp(a->kernel, b->kernel) &&
           !strcmp(a->label.op, b->label.op) && !strcmp(a->label.detail, b->label.detail);
}
static int is_same_operation(const struct mx8_profile_row *a, const struct mx8_profile_row *b) {
    return a->unit == b->unit && a->label.backward == b->label.backward && !strcmp(a->kernel, b->kernel);
}
static int is_same_pass(const struct mx8_profile_row *a, const struct mx8_profile_row *b) {
    return a->label.layer == b->label.layer && !strcmp(a->label.pass, b->label.pass);
}

static int compare_seconds(const void *a, const void *b) {
    const double x = ((const struct mx8_profile_row *)a)->seconds, y = ((const struct mx8_profile_row *)b)->seconds;
    return (x < y) - (x > y);
}

/* Rows that are the same become one, in `out`; returns how many are left. */
static int64_t sum_rows(const struct mx8_profile_row *row, int64_t count, same_row *same, struct mx8_profile_row *out) {
    int64_t sums = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0;
        while (at < sums && !same(&out[at], &row[i])) at++;
        if (at == sums) {
            out[sums++] = row[i];
            continue;
        }
        out[at].calls += row[i].calls;
        out[at].seconds += row[i].seconds;
        out[at].flops += row[i].flops;
        out[at].bytes += row[i].bytes;
    }
    return sums;
}

static double get_work(const struct mx8_profile_row *r) {
    return r->unit == MX8_PROFILE_MEMORY ? r->bytes : r->flops;
}

/* Seconds at the ceiling. What runs faster, from a cache, counts as it is. */
static double get_least_seconds(const struct mx8_profile_row *r, const struct mx8_ceilings *c) {
    const double most = c->rate[r->unit], least = most > 0 ? get_work(r) / most : r->seconds;
    return least < r->seconds ? least : r->seconds;
}

/* ---- for people ---- */

static void log_row(const struct mx8_log *log, const struct mx8_step_profile *p, const struct mx8_profile_row *r,
    const struct mx8_ceilings *ceilings) {
    char ceiling[16] = "", call[128];
    const double rate = r->seconds > 0 ? get_work(r) / r->seconds : 0, most = ceilings->rate[r->unit];
    if (most > 0) snprintf(ceiling, sizeof ceiling, "%4.0f %%", 100 * rate / most);
    const int is_memory = r->unit == MX8_PROFILE_MEMORY;
    const double shown = rate * (is_memory ? 1e-9 : 1e-12);
    snprintf(call, sizeof call, "%s%s%s%s", r->label.op, r->label.backward ? " backward" : "",
        r->label.detail[0] ? " " : "", r->label.detail);
    mx8i_log(log, "  %10.3f ms %5.1f %% %6.0f x %8.*f %s %6s  %-22s %s", 1e3 * r->seconds / (double)p->steps,
        100 * r->seconds / p->seconds, (double)r->calls / (double)p->steps, shown < 10 ? 4 : 1, shown,
        is_memory ? "GB/s   " : "TFLOP/s", ceiling, r->kernel, call);
}

static void log_kernels(const struct mx8_log *log, const struct mx8_step_profile *p, const struct mx8_profile_row *row,
    int64_t count, const struct mx8_ceilings *c) {
    mx8i_log(log, "  time a step     share  calls       rate      ceiling  kernel                 operator");
    double rest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (row[i].seconds >= least_share * p->seconds)
            log_row(log, p, &row[i], c);
        else
            rest += row[i].seconds;
    }
    mx8i_log(log, "  %10.3f ms %5.1f %%  all others", 1e3 * rest / (double)p->steps, 100 * rest / p->seconds);
}

/* The step's roofline: its time if every kernel ran at its ceiling, and which ones keep it from that. */
static void log_roofline(const struct mx8_log *log, const struct mx8_step_profile *p, struct mx8_profile_row *row,
    int64_t count, const struct mx8_ceilings *c) {
    enum { NAMED = 4 };
    char lost[256] = "";
    double least = 0, kernels = 0;
    int used = 0;
    for (int64_t i = 0; i < count; i++) {
        least += get_least_seconds(&row[i], c);
        kernels += row[i].seconds;
        row[i].seconds -= get_least_seconds(&row[i], c); /* what it loses, to sort by */
    }
    qsort(row, (size_t)count, sizeof *row, compare_seconds);
    for (int64_t i = 0; i < count && i < NAMED && used < (int)sizeof lost; i++)
        used += snprintf(lost + used, sizeof lost - (size_t)used, "%s%s %.3f ms, ", row[i].kernel,
            row[i].label.backward ? " backward" : "", 1e3 * row[i].seconds / (double)p->steps);
    mx8i_log(log, "Roofline: at the ceilings the kernels would take %.3f ms, %.0f %% of the step",
        1e3 * least / (double)p->steps, 100 * least / p->seconds);
    mx8i_log(log, "Beyond them: %soutside kernels %.3f ms", lost, 1e3 * (p->seconds - kernels) / (double)p->steps);
}

static void log_passes(
    const struct mx8_log *log, const struct mx8_step_profile *p, const struct mx8_profile_row *row, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        char layer[32] = "";
        if (row[i].label.layer >= 0) snprintf(layer, sizeof layer, " of layer %d", (int)row[i].label.layer);
        mx8i_log(log, "  %10.3f ms %5.1f %%  %s%s", 1e3 * row[i].seconds / (double)p->steps,
            100 * row[i].seconds / p->seconds, row[i].label.pass, layer);
    }
}

static void log_head(
    const struct mx8_log *log, const struct mx8_step_profile *p, double kernels, const struct mx8_ceilings *c) {
    mx8i_log(log, "Profile of %lld steps: %.3f ms a step, %.1f %% of it in kernels", (long long)p->steps,
        1e3 * p->seconds / (double)p->steps, 100 * kernels / p->seconds);
    char text[160];
    int used = snprintf(text, sizeof text, "copy %.0f GB/s", c->rate[MX8_PROFILE_MEMORY] * 1e-9);
    for (int u = MX8_PROFILE_F32; u < MX8_PROFILE_UNITS; u++) {
        if (c->rate[u] > 0 && used < (int)sizeof text)
            used += snprintf(text + used, sizeof text - (size_t)used, ", %s product of %lld^3 %.2f TFLOP/s",
                unit_names[u], (long long)c->product, c->rate[u] * 1e-12);
    }
    mx8i_log(log, "Ceilings, measured after the run on this device: %s", text);
}

/* ---- for programs ---- */

static json_t *describe_row(const struct mx8_profile_row *r, const struct mx8_ceilings *c) {
    const double rate = r->seconds > 0 ? get_work(r) / r->seconds : 0, most = c->rate[r->unit];
    return json_pack("{s:s, s:i, s:s, s:b, s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:o}", "pass", r->label.pass,
        "layer", (int)r->label.layer, "operator", r->label.op, "backward", (int)r->label.backward, "detail",
        r->label.detail, "kernel", r->kernel, "unit", unit_names[r->unit], "calls", (json_int_t)r->calls, "seconds",
        r->seconds, "flops", r->flops, "bytes", r->bytes, "rate", rate, "ceiling_share",
        most > 0 ? json_real(rate / most) : json_null());
}

static json_t *describe_profile(const struct mx8_step_profile *p, const struct mx8_context *ctx,
    const struct mx8_profile_row *row, int64_t count, const struct mx8_ceilings *c) {
    json_t *rows = json_array(), *ceilings = json_object();
    double least = 0;
    for (int64_t i = 0; i < count; i++) {
        least += get_least_seconds(&row[i], c);
        if (row[i].calls) json_array_append_new(rows, describe_row(&row[i], c));
    }
    for (int u = 0; u < MX8_PROFILE_UNITS; u++) {
        if (c->rate[u] > 0) json_object_set_new(ceilings, unit_names[u], json_real(c->rate[u]));
    }
    json_object_set_new(ceilings, "product_edge", json_integer((json_int_t)c->product));
    return json_pack("{s:s, s:I, s:f, s:f, s:o, s:o}", "backend", ctx->backend_name, "steps", (json_int_t)p->steps,
        "seconds", p->seconds, "seconds_at_ceilings", least, "ceilings", ceilings, "kernels", rows);
}

static enum mx8_status write_profile(const struct mx8_job *job, json_t *profile) {
    char *text = profile ? json_dumps(profile, JSON_INDENT(1)) : NULL;
    char *path = mx8i_format_text("%s/profile.json", job->dump_folder);
    enum mx8_status status = text && path ? mx8i_write_text(path, text) : MX8_OUT_OF_MEMORY;
    mx8i_release(path);
    free(text);
    json_decref(profile);
    return status;
}

/* In the model's scratch memory; that of a tiny model says nothing about a device. */
static enum mx8_status measure_ceilings(
    const struct mx8_exec *x, struct mx8_model *model, uint32_t units, struct mx8_ceilings *out) {
    const size_t least = (size_t)16 << 20;
    size_t bytes = 0;
    void *memory = mx8i_get_scratch(model, &bytes), *own = NULL;
    if (bytes < least) {
        MX8_TRY(x->k->allocate(x, least, &own));
        memory = own;
        bytes = least;
    }
    enum mx8_status status = own ? x->k->fill(x, own, 0, least) : MX8_OK;
    if (status == MX8_OK) status = mx8i_measure_ceilings(x, memory, bytes, units, out);
    if (own) x->k->release(x, own);
    return status;
}

enum mx8_status mx8i_report_step_profile(struct mx8_step_profile *p, const struct mx8_job *job, struct mx8_context *ctx,
    struct mx8_model *model, const struct mx8_log *log) {
    if (!p->profile || !p->steps) return MX8_OK;
    int64_t count, sums;
    const struct mx8_profile_row *row = mx8i_get_profile_rows(p->profile, &count);
    struct mx8_profile_row *sum = mx8i_allocate((size_t)count * sizeof *sum, "profile");
    if (!sum) return MX8_OUT_OF_MEMORY;
    uint32_t units = 1 << MX8_PROFILE_MEMORY;
    double kernels = 0;
    for (int64_t i = 0; i < count; i++) {
        if (row[i].calls) units |= 1u << row[i].unit;
        kernels += row[i].seconds;
    }
    struct mx8_ceilings ceilings;
    const struct mx8_exec plain = mx8i_get_untimed_exec(p->profile, &ctx->exec);
    enum mx8_status status = measure_ceilings(&plain, model, units, &ceilings);
    if (status == MX8_OK) {
        log_head(log, p, kernels, &ceilings);
        sums = sum_rows(row, count, is_same_kernel, sum);
        qsort(sum, (size_t)sums, sizeof *sum, compare_seconds);
        log_kernels(log, p, sum, sums, &ceilings);
        log_passes(log, p, sum, sum_rows(row, count, is_same_pass, sum));
        log_roofline(log, p, sum, sum_rows(row, count, is_same_operation, sum), &ceilings);
        status = write_profile(job, describe_profile(p, ctx, row, count, &ceilings));
    }
    mx8i_release(sum);
    return status;
}
