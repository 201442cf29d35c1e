/* mx8 plan: what a job would take on GPUs that are not here: memory, bytes sent, time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "cli/cli.h"
#include "train/predict.h"

static const char usage[] =
    "usage: mx8 plan --world N --gpu h200|b200 [--model FLAVOR] [--table] [flags of mx8 train]\n\n"
    "Memory of each purpose on one GPU, bytes that it sends, and the time of a step, for N GPUs: the memory and the "
    "bytes\n"
    "are exact for this program's own plan, the times follow from a model of rates and bandwidths "
    "(docs/distributed.md).\n"
    "--table prints a line for 8, 16, ... 1024 GPUs. Degrees as for training: --parallelism.expert_parallel_degree=8\n"
    "--parallelism.data_parallel_replicate_degree=4. A GPU of batch 1 and full recomputation is a good start:\n"
    "--activation_checkpoint.mode=full.\n";

struct question {
    const struct mx8_options *options;
    const struct mx8_gpu *gpu;
};

/* Rank 0 stands for all: cuts are even to within a block of rows. */
static enum mx8_status plan_world(const struct question *q, int32_t world, struct mx8_job *job, struct mx8_dist *dist,
    struct mx8_model **m, struct mx8_prediction *p) {
    const struct mx8_launch launch = {.size = world};
    *m = NULL;
    MX8_TRY(mx8i_resolve_job_as(q->options, &launch, job, NULL));
    mx8i_imagine_dist(&job->grid, dist);
    if (world > 1) job->model.dist = dist;
    MX8_TRY(mx8i_plan_model(&job->config, &job->recipe, &job->model, m));
    mx8i_predict_step(job, *m, q->gpu, p);
    return MX8_OK;
}

static void print_bytes(const char *what, double bytes) {
    printf("  %-34s %10.3f GiB\n", what, bytes / (1 << 30));
}

static void print_time(const char *what, double seconds, double step) {
    if (seconds > 0) printf("  %-34s %10.2f ms %5.1f %%\n", what, 1000 * seconds, 100 * seconds / step);
}

static void print_memory(const struct mx8_model *m, const struct mx8_gpu *gpu, const struct mx8_prediction *p) {
    const struct mx8_memory_plan *plan = mx8i_get_memory_plan(m, NULL);
    printf("memory of a GPU\n");
    print_bytes("masters, moments, gradients", (double)(plan->masters + plan->moments + plan->gradients));
    if (plan->copies) print_bytes("bf16 weights", (double)plan->copies);
    print_bytes("gathered weights and their codes", (double)(plan->gathered + plan->codes));
    print_bytes("gradients on their way", (double)plan->reduced);
    print_bytes("activations", (double)plan->saved);
    print_bytes("scratch and the rest", (double)(plan->scratch + plan->workspace + plan->buffers));
    printf("  %-34s %10.3f GiB, %.1f GiB there: %s\n", "all", (double)plan->total / (1 << 30), gpu->memory / (1 << 30),
        p->fits ? "fits" : "does not fit");
}

static void print_answer(
    const struct mx8_job *job, const struct mx8_model *m, const struct mx8_gpu *gpu, const struct mx8_prediction *p) {
    const struct mx8_traffic_plan *t = mx8i_get_traffic_plan(m);
    const double n = (double)job->accumulation;
    char tokens[32];
    printf("%d x %s: replicate %d, shard %d, expert parallel %d; llama4 %s, recipe %s, %lld x %lld tokens a GPU, %lld "
           "microbatch%s\n\n",
        (int)job->grid.world, gpu->name, (int)job->grid.replicate, (int)job->grid.shard, (int)job->grid.expert,
        job->config.flavor, job->recipe.name, (long long)job->model.batch, (long long)job->model.seq_len,
        (long long)job->accumulation, job->accumulation == 1 ? "" : "es");
    print_memory(m, gpu, p);
    printf("sent by a GPU in a step\n");
    print_bytes("weights", n * (double)t->gathered);
    print_bytes("gradients, in shards", n * (double)t->reduced);
    print_bytes("gradients, over replicas", (double)t->summed);
    print_bytes("tokens to experts and back", n * (double)t->dispatched);
    print_bytes("all", p->bytes);
    printf("predicted time of a step\n");
    print_time("products", n * p->products, p->step);
    print_time("attention", n * p->attention, p->step);
    print_time("element-wise", n * p->elements, p->step);
    print_time("quantizing weights", n * p->weights, p->step);
    print_time("weights and gradients, not hidden", n * (p->gather + p->reduce - p->hidden), p->step);
    print_time("tokens to experts and back", n * p->dispatch, p->step);
    print_time("sum over replicas", p->sum, p->step);
    print_time("optimizer", p->optimizer, p->step);
    printf("  %-34s %10.2f ms; hidden behind it: %.2f ms\n", "all", 1000 * p->step, 1000 * n * p->hidden);
    printf("%s tokens/s a GPU, ", mx8i_format_count(tokens, (int64_t)p->tokens_per_second));
    printf("%s in all; mfu %.1f %% of %.0f TFLOP/s\n",
        mx8i_format_count(tokens, (int64_t)(p->tokens_per_second * job->grid.world)), 100 * p->mfu,
        gpu->peak_bf16 * 1e-12);
}

static enum mx8_status answer(const struct question *q, int32_t world) {
    struct mx8_job job;
    struct mx8_dist dist;
    struct mx8_model *m = NULL;
    struct mx8_prediction p;
    enum mx8_status status = plan_world(q, world, &job, &dist, &m, &p);
    if (status == MX8_OK) print_answer(&job, m, q->gpu, &p);
    mx8i_free_model(m);
    return status;
}

static enum mx8_status answer_table(const struct question *q) {
    printf("%5s %8s %6s %12s %10s %12s %14s %6s\n", "GPUs", "shard", "expert", "GiB a GPU", "GiB sent", "ms a step",
        "tokens/s", "mfu");
    for (int32_t world = 8; world <= 1024; world *= 2) {
        struct mx8_job job;
        struct mx8_dist dist;
        struct mx8_model *m = NULL;
        struct mx8_prediction p;
        char tokens[32];
        const enum mx8_status status = plan_world(q, world, &job, &dist, &m, &p);
        if (status != MX8_OK && status != MX8_INVALID_ARGUMENT) return status;
        if (status == MX8_INVALID_ARGUMENT) {
            printf("%5d %s\n", (int)world, mx8_get_last_error());
        } else {
            printf("%5d %8d %6d %11.1f%s %10.2f %12.1f %14s %5.1f%%\n", (int)world, (int)job.grid.shard,
                (int)job.grid.expert, (double)mx8i_get_memory_plan(m, NULL)->total / (1 << 30), p.fits ? " " : "!",
                p.bytes / (1 << 30), 1000 * p.step,
                mx8i_format_count(tokens, (int64_t)(p.tokens_per_second * job.grid.world)), 100 * p.mfu);
        }
        mx8i_free_model(m);
    }
    printf("! does not fit into %.1f GiB\n", q->gpu->memory / (1 << 30));
    return MX8_OK;
}

int mx8i_run_plan(int argc, char **argv) {
    const char *world = "1", *gpu = "h200", *model = NULL;
    struct mx8_options options;
    int rest = 0;
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, mx8i_option_table, mx8i_option_count);
    const int table = mx8i_take_word(&argc, argv, "--table");
    if (!mx8i_take_value(&argc, argv, "--world", &world) || !mx8i_take_value(&argc, argv, "--gpu", &gpu) ||
        !mx8i_take_value(&argc, argv, "--model", &model))
        return mx8i_report_usage("plan", "--world, --gpu and --model need a value");
    char *end;
    const long n = strtol(world, &end, 10);
    if (*end || n < 1 || n > 65536) return mx8i_report_usage("plan", "--world is \"%s\", expected 1 to 65536", world);
    const struct question q = {&options, mx8i_find_gpu(gpu)};
    if (!q.gpu) return mx8i_report_usage("plan", "--gpu is \"%s\", expected h200 or b200", gpu);
    enum mx8_status status = mx8i_open_options(mx8i_option_table, mx8i_option_count, &options);
    if (status != MX8_OK) return mx8i_report_failure("plan", status, MX8_EXIT_FAILURE);
    status = mx8i_parse_flags(&options, argc - 1, argv + 1, "job.config_file", NULL, &rest, 0);
    if (status == MX8_OK && model) status = mx8i_set_option(&options, "model.flavor", model, "--model");
    if (status == MX8_OK) status = mx8i_set_option(&options, "job.device", "cuda", "mx8 plan");
    if (status == MX8_OK) status = table ? answer_table(&q) : answer(&q, (int32_t)n);
    const int code = status == MX8_INVALID_ARGUMENT || status == MX8_UNSUPPORTED ? MX8_EXIT_USAGE : MX8_EXIT_FAILURE;
    const int result = status == MX8_OK ? MX8_EXIT_OK : mx8i_report_failure("plan", status, code);
    mx8i_close_options(&options);
    return result;
}
