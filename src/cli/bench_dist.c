/* mx8 bench dist: training steps on random tokens, under mpirun or alone, with and without overlap: tokens a second,
 * bytes sent against the plan, and how much of the communication computing hides. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "train/optimizer.h"
#include "train/parallel.h"

static const char usage[] =
    "usage: [mpirun -n N] mx8 bench dist [--reps N] [flags of mx8 train]\n\n"
    "Trains on random tokens and prints what the processes have in common: tokens a second, bytes that a process sends "
    "in\n"
    "a step (counted, and as planned), the time it waits for others, and which part of that time overlap hides: the "
    "same\n"
    "steps are timed with transfers behind computing and with transfers waited for where they start. Tokens go to the\n"
    "experts round robin. Compare 1, 2 and 4 processes by starting it three times.\n";

/* What one rank measured in one way of running. */
struct measured {
    double seconds, waited; /* of a step; median */
    int64_t sent;           /* in a step */
};

struct subject {
    struct mx8_job job;
    struct mx8_context *ctx;
    struct mx8_dist dist;
    struct mx8_model *m;
    struct mx8_optimizer optimizer;
    struct mx8_flat flat;
    int32_t *ids; /* tokens and targets of a microbatch */
};

static enum mx8_status fill_ids(struct subject *s) {
    const int64_t T = s->job.model.batch * s->job.model.seq_len;
    s->ids = mx8i_allocate(3 * (size_t)T * sizeof *s->ids, "tokens");
    if (!s->ids) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < 2 * T; i++) {
        const double u = mx8i_random_uniform(7, (uint64_t)s->job.grid.rank, (uint64_t)i);
        s->ids[i] = (int32_t)(u * (double)s->job.config.vocab_size);
    }
    return MX8_OK;
}

static enum mx8_status open_subject(struct subject *s) {
    MX8_TRY(mx8i_plan_model(&s->job.config, &s->job.recipe, &s->job.model, &s->m));
    MX8_TRY(mx8i_allocate_model(s->m, s->ctx));
    MX8_TRY(mx8i_init_weights(s->m, s->job.seed));
    MX8_TRY(mx8i_open_optimizer(s->ctx, &s->optimizer));
    s->flat = mx8i_view_flat(s->m, s->job.model.dist);
    return fill_ids(s);
}

static void close_subject(struct subject *s) {
    mx8i_close_optimizer(&s->optimizer);
    mx8i_free_model(s->m);
    mx8i_release(s->ids);
    s->m = NULL;
    s->ids = NULL;
}

static enum mx8_status run_step(struct subject *s) {
    const int64_t T = s->job.model.batch * s->job.model.seq_len;
    const double tokens = (double)(T * s->job.accumulation * mx8i_count_ranks(&s->job));
    const double lr = 1e-4;
    double loss = 0, norm = 0;
    MX8_TRY(mx8i_begin_update(&s->optimizer, &s->job.adamw, lr));
    for (int64_t i = 0; i < s->job.accumulation; i++) {
        MX8_TRY(mx8i_forward_backward(s->m, s->ids, s->ids + T, s->ids + 2 * T, (float)(1 / tokens), i > 0, &loss));
    }
    MX8_TRY(mx8i_sum_gradients(s->m));
    MX8_TRY(mx8i_sum_expert_load(s->m));
    MX8_TRY(mx8i_clip_gradients(&s->optimizer, &s->flat, s->job.max_norm, &norm));
    if (!isfinite(loss) || !isfinite(norm)) {
        return MX8_FAIL(MX8_NOT_FINITE, "mx8 bench dist: loss is %g, gradient norm is %g: nothing to time", loss, norm);
    }
    MX8_TRY(mx8i_update_expert_bias(s->m));
    MX8_TRY(mx8i_apply_adamw(&s->optimizer, &s->flat, &s->job.adamw, lr));
    MX8_TRY(mx8i_refresh_weights(s->m, 1));
    return mx8_synchronize_context(s->ctx);
}

static int compare_measured(const void *a, const void *b) {
    const double x = ((const struct measured *)a)->seconds, y = ((const struct measured *)b)->seconds;
    return (x > y) - (x < y);
}

/* One step to warm up; ranks begin each step together. */
static enum mx8_status measure(struct subject *s, int64_t reps, struct measured *out) {
    struct measured *each = mx8i_allocate((size_t)reps * sizeof *each, "times");
    enum mx8_status status = each ? open_subject(s) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = run_step(s);
    for (int64_t i = 0; i < reps && status == MX8_OK; i++) {
        if (s->job.model.dist) status = mx8i_barrier(&s->dist.host);
        const struct mx8_traffic before = s->dist.traffic;
        const double begin = mx8i_get_seconds();
        if (status == MX8_OK) status = run_step(s);
        each[i] = (struct measured){
            mx8i_get_seconds() - begin, s->dist.traffic.waited - before.waited, s->dist.traffic.sent - before.sent};
    }
    if (status == MX8_OK) {
        qsort(each, (size_t)reps, sizeof *each, compare_measured);
        *out = each[reps / 2];
    }
    mx8i_release(each);
    return status;
}

static int64_t get_planned(const struct subject *s) {
    const struct mx8_traffic_plan *t = mx8i_get_traffic_plan(s->m);
    return s->job.accumulation * (t->gathered + t->reduced + t->dispatched) + t->summed;
}

static void print_result(
    const struct subject *s, int64_t planned, const struct measured *plain, const struct measured *overlapped) {
    const struct mx8_job *j = &s->job;
    const double tokens = (double)(j->model.batch * j->model.seq_len * j->accumulation * mx8i_count_ranks(j));
    char count[32];
    printf("%d process%s (replicate %d, shard %d, expert parallel %d), %d thread%s each: llama4 %s, recipe %s, %s "
           "tokens a "
           "step\n",
        (int)j->grid.world, j->grid.world == 1 ? "" : "es", (int)j->grid.replicate, (int)j->grid.shard,
        (int)j->grid.expert, (int)s->ctx->exec.threads, s->ctx->exec.threads == 1 ? "" : "s", j->config.flavor,
        j->recipe.name, mx8i_format_count(count, (int64_t)tokens));
    printf("%s tokens/s, %.2f ms a step; without overlap %.2f ms\n",
        mx8i_format_count(count, (int64_t)(tokens / overlapped->seconds)), 1000 * overlapped->seconds,
        1000 * plain->seconds);
    if (j->grid.world == 1) return;
    printf("sent by rank 0: %s bytes a step", mx8i_format_count(count, overlapped->sent));
    printf(", planned %s\n", mx8i_format_count(count, planned));
    printf("waiting for other ranks: %.2f ms a step, without overlap %.2f ms: ", 1000 * overlapped->waited,
        1000 * plain->waited);
    const double hidden = plain->waited > 0 ? 1 - overlapped->waited / plain->waited : 0;
    printf("%.0f %% hidden\n", 100 * (hidden > 0 ? hidden : 0));
}

static enum mx8_status join(struct subject *s) {
    const struct mx8_context_options options = {
        .device = s->job.device, .threads = s->job.threads, .ordinal = s->job.device ? s->job.launch.local_rank : 0};
    MX8_TRY(mx8_create_context(&options, &s->ctx));
    if (s->job.launch.size == 1) return MX8_OK;
    MX8_TRY(mx8i_open_dist(&s->job.launch, s->job.init_timeout, &s->dist));
    MX8_TRY(mx8i_open_groups(&s->dist, &s->job.grid, s->ctx->exec.ordinal, s->ctx->exec.stream, s->job.init_timeout));
    s->job.model.dist = &s->dist;
    return MX8_OK;
}

static enum mx8_status bench(struct subject *s, const struct mx8_options *o, int64_t reps) {
    struct measured result[2] = {{0}};
    int64_t planned = 0;
    MX8_TRY(mx8i_resolve_job(o, &s->job, NULL));
    s->job.config.force_balance = 1;
    MX8_TRY(join(s));
    for (int32_t overlap = 0; overlap < 2; overlap++) {
        s->job.model.no_overlap = !overlap;
        MX8_TRY(measure(s, reps, &result[overlap]));
        planned = get_planned(s);
        close_subject(s);
    }
    if (s->job.grid.rank == 0) print_result(s, planned, &result[0], &result[1]);
    return MX8_OK;
}

int mx8i_run_bench_dist(int argc, char **argv) {
    struct mx8_options options;
    struct subject s = {.ctx = NULL};
    const char *reps = "5";
    int rest = 0;
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, mx8i_option_table, mx8i_option_count);
    if (!mx8i_take_value(&argc, argv, "--reps", &reps)) return mx8i_report_usage("bench dist", "--reps needs a value");
    const long n = strtol(reps, NULL, 10);
    if (n < 1 || n > 10000) return mx8i_report_usage("bench dist", "--reps is \"%s\", expected 1 to 10000", reps);
    enum mx8_status status = mx8i_open_options(mx8i_option_table, mx8i_option_count, &options);
    if (status != MX8_OK) return mx8i_report_failure("bench dist", status, MX8_EXIT_FAILURE);
    status = mx8i_parse_flags(&options, argc - 1, argv + 1, "job.config_file", NULL, &rest, 0);
    if (status == MX8_OK) status = bench(&s, &options, n);
    int code = MX8_EXIT_OK;
    if (status != MX8_OK) {
        close_subject(&s);
        code = mx8i_report_failure("bench dist", status, MX8_EXIT_FAILURE);
        mx8i_abort_dist(&s.dist, code);
    }
    mx8i_close_dist(&s.dist);
    mx8_destroy_context(s.ctx);
    mx8i_close_options(&options);
    return code;
}
