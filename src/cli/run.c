/* One training job under a terminal: options -> job -> context -> loop, with log lines and the status line. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "cli/cli.h"

struct progress {
    struct mx8_terminal *terminal;
    const char *label;
    double seconds; /* of the steps after the first, which is slower than the rest */
    int64_t counted;
};

static void show_step(void *user, const struct mx8_job *job, const struct mx8_step *s, int64_t steps) {
    struct progress *p = user;
    char step[32], total[32], speed[32], left[32];
    (void)job;
    if (s->step > 1) {
        p->seconds += s->seconds;
        p->counted++;
    }
    double each = p->counted ? p->seconds / (double)p->counted : s->seconds;
    /* a rate without a number (the first step may be too short to measure) reads as 0 */
    int64_t rate = isfinite(s->tokens_per_second) ? (int64_t)llround(s->tokens_per_second) : 0;
    mx8i_show_status(p->terminal, s->step == steps, "%s%sstep %s/%s  loss %.4f  %s tokens/s  %s left%s",
        p->label ? p->label : "", p->label ? "  " : "", mx8i_format_count(step, s->step),
        mx8i_format_count(total, steps), s->loss, mx8i_format_count(speed, rate),
        mx8i_format_duration(left, each * (double)(steps - s->step)), mx8i_is_stopping() ? "  (stopping)" : "");
}

static int should_stop(void *user) {
    (void)user;
    return mx8i_is_stopping();
}

static enum mx8_status open_job(
    const struct mx8_options *o, struct mx8_terminal *t, struct mx8_job *job, struct mx8_context **ctx, int *code) {
    struct mx8_log notes = mx8i_log_to_terminal(t);
    *code = MX8_EXIT_FAILURE;
    enum mx8_status status = mx8i_resolve_job(o, job, &notes);
    if (status != MX8_OK) {
        /* what the flags say cannot be done: the command line is at fault */
        if (status == MX8_INVALID_ARGUMENT || status == MX8_UNSUPPORTED) *code = MX8_EXIT_USAGE;
        return status;
    }
    struct mx8_context_options options = {.device = job->device, .threads = job->threads};
    return mx8_create_context(&options, ctx);
}

enum mx8_status mx8i_start_job(
    const struct mx8_options *o, struct mx8_terminal *t, const char *label, struct mx8_summary *out, int *code) {
    struct mx8_job job;
    struct mx8_context *ctx = NULL;
    struct progress progress = {.terminal = t, .label = label};
    struct mx8_watch watch = {
        .user = &progress, .log = mx8i_log_to_terminal(t), .on_step = show_step, .should_stop = should_stop};
    mx8i_show_status(t, 1, "%s%sstarting", label ? label : "", label ? "  " : "");
    enum mx8_status status = open_job(o, t, &job, &ctx, code);
    if (status == MX8_OK) status = mx8i_run_job(&job, ctx, &watch, out);
    mx8_destroy_context(ctx);
    mx8i_clear_status(t);
    return status;
}

enum mx8_status mx8i_show_plan(const struct mx8_options *o, struct mx8_terminal *t, int *code) {
    struct mx8_job job;
    struct mx8_context *ctx = NULL;
    struct mx8_log lines = mx8i_log_to_terminal(t);
    enum mx8_status status = open_job(o, t, &job, &ctx, code);
    if (status == MX8_OK) status = mx8i_describe_plan(&job, ctx, &lines);
    mx8_destroy_context(ctx);
    return status;
}
