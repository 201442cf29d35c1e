/* One training job under a terminal: options -> job -> context -> loop, with log lines and the status line. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "train/report.h"

struct progress {
    struct mx8_terminal *terminal;
    const char *label;
    double seconds; /* of the steps after the first, which is slower than the rest */
    int64_t counted;
    int32_t reports;    /* job.report */
    double next_report; /* when; report_seconds: what the last one took */
};

/* The page of a run that is not over loads itself anew. A page that cannot be written does not end the job. */
static void write_report(struct progress *p, const struct mx8_job *job, int running) {
    const char *runs[] = {job->dump_folder};
    char *path = mx8i_format_text("%s/report.html", job->dump_folder), title[128];
    double before = mx8i_get_seconds();
    snprintf(title, sizeof title, "%.100s", job->description[0] ? job->description : job->config.flavor);
    enum mx8_status status = path ? mx8i_refresh_report(path, title, runs, 1, running ? 10 : 0) : MX8_OUT_OF_MEMORY;
    if (status != MX8_OK) mx8i_print_line(p->terminal, "warning: no report: %s", mx8_get_last_error());
    mx8i_release(path);
    double took = mx8i_get_seconds() - before;
    p->next_report = before + (took > 0.1 ? 100 * took : 10); /* at most a hundredth of the time */
}

static void show_step(void *user, const struct mx8_job *job, const struct mx8_step *s, int64_t steps) {
    struct progress *p = user;
    char step[32], total[32], speed[32], left[32];
    if (p->reports && mx8i_get_seconds() >= p->next_report) write_report(p, job, 1);
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

/* Log lines of a rank after the first. */
struct rank_log {
    struct mx8_log to;
    int32_t rank;
};

static void log_with_rank(void *user, const char *line) {
    struct rank_log *l = user;
    mx8i_log(&l->to, "[rank %d] %s", (int)l->rank, line);
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
    struct mx8_context_options options = {
        .device = job->device, .threads = job->threads, .ordinal = job->device ? job->launch.local_rank : 0};
    return mx8_create_context(&options, ctx);
}

/* Several processes: finds the others. The first one's terminal and files are the job's. */
static enum mx8_status join_ranks(
    struct mx8_job *job, struct mx8_context *ctx, struct mx8_dist *dist, char *folder, size_t folder_size) {
    if (job->launch.size == 1) return MX8_OK;
    MX8_TRY(mx8i_open_dist(&job->launch, job->init_timeout, dist));
    MX8_TRY(mx8i_open_groups(dist, &job->grid, ctx->exec.ordinal, ctx->exec.stream, job->init_timeout));
    job->model.dist = dist;
    if (job->grid.rank == 0) return MX8_OK;
    snprintf(folder, folder_size, "%s/rank-%d", job->dump_folder, (int)job->grid.rank);
    if (job->save_for_all_ranks) job->dump_folder = folder;
    return MX8_OK;
}

/* One rank's failure is everyone's: the others would wait for it. Ends the process when there are others. */
static void fail_together(struct mx8_dist *dist, struct mx8_terminal *t, enum mx8_status status, int code) {
    if (dist->host.size <= 1) return;
    mx8i_clear_status(t);
    mx8i_report_failure("train", mx8i_fail_prefix(status, "rank %d", (int)dist->host.rank), code);
    mx8i_abort_dist(dist, code);
}

enum mx8_status mx8i_start_job(
    const struct mx8_options *o, struct mx8_terminal *t, const char *label, struct mx8_summary *out, int *code) {
    struct mx8_job job = {0};
    struct mx8_context *ctx = NULL;
    struct progress progress = {.terminal = t, .label = label};
    struct mx8_watch watch = {
        .user = &progress, .log = mx8i_log_to_terminal(t), .on_step = show_step, .should_stop = should_stop};
    struct mx8_dist dist = {0};
    char folder[4096];
    struct mx8_launch launch;
    if (mx8i_find_launch(&launch) == MX8_OK && launch.size > 1)
        t->tty = t->color = 0; /* mpirun's is nobody's terminal */
    mx8i_show_status(t, 1, "%s%sstarting", label ? label : "", label ? "  " : "");
    enum mx8_status status = open_job(o, t, &job, &ctx, code);
    if (status == MX8_OK) status = join_ranks(&job, ctx, &dist, folder, sizeof folder);
    struct rank_log rank_log = {watch.log, job.grid.rank};
    if (status == MX8_OK && job.grid.rank > 0) {
        watch.on_step = NULL;
        watch.log = job.log_all_ranks ? (struct mx8_log){log_with_rank, &rank_log} : (struct mx8_log){0};
    }
    if (status == MX8_OK) {
        progress.reports = job.grid.rank == 0 && mx8i_get_bool(o, "job.report");
        status = mx8i_run_job(&job, ctx, &watch, out);
        if (status == MX8_OK && progress.reports && out->steps > 0) write_report(&progress, &job, 0);
    }
    if (status != MX8_OK) fail_together(&dist, t, status, *code);
    mx8i_close_dist(&dist);
    mx8_destroy_context(ctx);
    mx8i_clear_status(t);
    return status;
}

enum mx8_status mx8i_show_plan(const struct mx8_options *o, struct mx8_terminal *t, int *code) {
    struct mx8_job job = {0};
    struct mx8_context *ctx = NULL;
    struct mx8_log lines = mx8i_log_to_terminal(t);
    struct mx8_dist imagined;
    enum mx8_status status = open_job(o, t, &job, &ctx, code);
    if (status == MX8_OK && job.grid.world > 1) {
        mx8i_imagine_dist(&job.grid, &imagined);
        job.model.dist = &imagined;
        if (job.grid.rank > 0) lines = (struct mx8_log){0}; /* they are all alike */
    }
    if (status == MX8_OK) status = mx8i_describe_plan(&job, ctx, &lines);
    mx8_destroy_context(ctx);
    return status;
}
