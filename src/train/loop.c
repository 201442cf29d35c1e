/* The training loop. run_job -> open_run, train, save_weights; train -> run_step; run_step -> compute_gradients, clip,
 * judge, update. One step:
 *     for each microbatch: samples -> forward_backward, gradients add up
 *     global norm and clip factor -> is everything finite? -> expert load to the metrics -> expert bias -> AdamW ->
 * codes Samples are read in order: step s, microbatch i, row b is sample (s - 1) batch accum + i batch + b. */
#include "train/loop.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "train/describe.h"
#include "train/logline.h"
#include "train/metrics.h"
#include "train/optimizer.h"

struct run {
    const struct mx8_job *job;
    struct mx8_context *ctx;
    const struct mx8_watch *watch;
    struct mx8_data *data;
    struct mx8_model *model;
    struct mx8_optimizer optimizer;
    struct mx8_metrics metrics;
    struct mx8_flat flat;
    int32_t *tokens, *targets, *docs; /* one microbatch; docs NULL unless the mask wants them */
    int64_t memory, capacity;         /* bytes held; bytes that were free before */
    double *losses, *speeds;          /* losses: of the steps that were not skipped; speeds: of all */
    int64_t n_losses;
    double started, line_time; /* when training started; when the last step line was logged */
    int64_t line_tokens;       /* tokens since then */
};

/* ---- before the first step ---- */

static enum mx8_status check_memory(const struct run *r) {
    int on_host = r->ctx->exec.ordinal < 0;
    if (!on_host || r->capacity <= 0 || r->memory <= r->capacity) return MX8_OK;
    return MX8_FAIL(MX8_OUT_OF_MEMORY,
        "the job needs %.2f GiB, the machine has %.2f GiB left (--dry-run shows the plan); smaller: "
        "training.local_batch_size (%lld; training.global_batch_size accumulates), training.seq_len (%lld), "
        "activation_checkpoint.mode=full, or a smaller model.flavor",
        (double)r->memory / (1 << 30), (double)r->capacity / (1 << 30), (long long)r->job->local_batch_size,
        (long long)r->job->model.seq_len);
}

static enum mx8_status allocate_host(struct run *r) {
    size_t tokens = (size_t)(r->job->local_batch_size * r->job->model.seq_len), steps = (size_t)r->job->steps;
    int wants_docs = r->job->config.attn_mask == MX8_MASK_DOCUMENT;
    r->tokens = mx8i_allocate(tokens * sizeof *r->tokens, "tokens");
    r->targets = mx8i_allocate(tokens * sizeof *r->targets, "targets");
    r->docs = wants_docs ? mx8i_allocate(tokens * sizeof *r->docs, "document ids") : NULL;
    r->losses = mx8i_allocate(steps * sizeof *r->losses, "the losses of all steps");
    r->speeds = mx8i_allocate(steps * sizeof *r->speeds, "the speeds of all steps");
    int complete = r->tokens && r->targets && (r->docs || !wants_docs) && r->losses && r->speeds;
    return complete ? MX8_OK : MX8_OUT_OF_MEMORY;
}

static enum mx8_status start_weights(struct run *r) {
    const char *path = r->job->initial_load_path;
    if (!path[0]) return mx8i_init_weights(r->model, r->job->seed);
    char *file = mx8i_is_folder(path) ? mx8i_format_text("%s/model.safetensors", path) : mx8i_copy_text(path);
    if (!file) return MX8_OUT_OF_MEMORY;
    mx8i_log(&r->watch->log, "Loading weights from %s", file);
    enum mx8_status status = mx8i_load_weights(r->model, file, &r->watch->log);
    mx8i_release(file);
    return status == MX8_OK ? mx8i_refresh_weights(r->model, 0) : status;
}

static enum mx8_status open_run(struct run *r) {
    const struct mx8_job *job = r->job;
    MX8_TRY(mx8i_plan_model(&job->config, &job->recipe, &job->model, &r->model));
    r->memory = mx8i_count_job_bytes(job, mx8i_get_memory_plan(r->model, r->ctx));
    r->capacity = mx8i_get_available_memory();
    MX8_TRY(check_memory(r));
    MX8_TRY(mx8i_open_data(job->dataset, job->dataset_path, job->dataset_bytes, job->model.seq_len,
        job->config.vocab_size, job->seed, &r->data));
    MX8_TRY(allocate_host(r));
    MX8_TRY(mx8i_allocate_model(r->model, r->ctx));
    MX8_TRY(mx8i_open_optimizer(r->ctx, &r->optimizer));
    mx8i_log_start(&r->watch->log, job, r->ctx, r->data, r->memory, r->capacity);
    if (job->print_after_conversion || job->recipe.convert_linear || job->recipe.convert_experts)
        mx8i_describe_conversion(r->model, job->print_after_conversion, &r->watch->log);
    MX8_TRY(start_weights(r));
    r->flat = (struct mx8_flat){.master = mx8i_get_masters(r->model),
        .grad = mx8i_get_gradients(r->model),
        .m = mx8i_get_moment(r->model, 0),
        .v = mx8i_get_moment(r->model, 1),
        .copy = mx8i_get_copies(r->model),
        .n = (int64_t)mx8i_get_params(r->model)->elements};
    return mx8i_open_metrics(job, r->ctx, r->model, &r->metrics); /* last: a job that cannot start leaves no files */
}

static void close_run(struct run *r) {
    mx8i_close_metrics(&r->metrics);
    mx8i_close_optimizer(&r->optimizer);
    mx8i_free_model(r->model);
    mx8i_close_data(r->data);
    mx8i_release(r->tokens);
    mx8i_release(r->targets);
    mx8i_release(r->docs);
    mx8i_release(r->losses);
    mx8i_release(r->speeds);
}

/* ---- one step ---- */

static enum mx8_status read_microbatch(struct run *r, int64_t position) {
    int64_t S = r->job->model.seq_len;
    for (int64_t b = 0; b < r->job->local_batch_size; b++)
        MX8_TRY(mx8i_read_sample(
            r->data, position + b, r->tokens + b * S, r->targets + b * S, r->docs ? r->docs + b * S : NULL));
    return MX8_OK;
}

static enum mx8_status compute_gradients(struct run *r, struct mx8_step *s) {
    const struct mx8_job *job = r->job;
    int64_t samples = job->local_batch_size * job->accumulation, tokens = samples * job->model.seq_len;
    float loss_scale = (float)(1.0 / (double)tokens);
    for (int64_t i = 0; i < job->accumulation; i++) {
        double before = mx8i_get_seconds();
        MX8_TRY(read_microbatch(r, (s->step - 1) * samples + i * job->local_batch_size));
        s->data_seconds += mx8i_get_seconds() - before;
        MX8_TRY(mx8i_forward_backward(r->model, r->tokens, r->targets, r->docs, loss_scale, i > 0, &s->loss));
    }
    s->tokens = s->step * tokens;
    return MX8_OK;
}

/* What to do about a step whose loss or gradient norm is not finite, and which tensor went bad first. */
static enum mx8_status judge_step(struct run *r, struct mx8_step *s) {
    if (isfinite(s->loss) && isfinite(s->grad_norm)) return MX8_OK;
    const char *kind = "weight", *name = NULL;
    MX8_TRY(mx8i_find_not_finite(r->model, 0, &name));
    if (!name) {
        kind = "gradient";
        MX8_TRY(mx8i_find_not_finite(r->model, 1, &name));
    }
    char where[160];
    if (name)
        snprintf(where, sizeof where, "the first %s that is not finite is that of %s", kind, name);
    else
        snprintf(where, sizeof where, "all weights and gradients are finite");
    if (r->job->on_nan == MX8_ON_NAN_STOP)
        return MX8_FAIL(MX8_NOT_FINITE,
            "step %lld: loss is %g, gradient norm is %g; %s; no weights were saved "
            "(training.on_nan=skip leaves such steps out, continue goes on)",
            (long long)s->step, s->loss, s->grad_norm, where);
    s->skipped = r->job->on_nan == MX8_ON_NAN_SKIP;
    mx8i_log(&r->watch->log, "warning: step %lld: loss is %g, gradient norm is %g; %s; %s", (long long)s->step, s->loss,
        s->grad_norm, where, s->skipped ? "the update is left out" : "going on");
    return MX8_OK;
}

/* A skipped step leaves the expert counts to the next update: only a bias update clears them. */
static enum mx8_status update_model(struct run *r, const struct mx8_step *s) {
    if (s->skipped) return MX8_OK;
    MX8_TRY(mx8i_update_expert_bias(r->model));
    MX8_TRY(mx8i_apply_adamw(&r->optimizer, &r->flat, &r->job->adamw, s->lr));
    return mx8i_refresh_weights(r->model, r->flat.copy != NULL);
}

static void log_step(struct run *r, const struct mx8_step *s) {
    int64_t freq = r->job->log_freq;
    r->line_tokens += s->tokens / s->step;
    if (s->step != 1 && s->step % freq != 0) return;
    char text[512];
    double now = mx8i_get_seconds(), seconds = fmax(now - r->line_time, 1e-9);
    struct mx8_step_line line = {.step = s->step,
        .memory = r->memory,
        .capacity = r->capacity,
        .loss = s->loss,
        .grad_norm = s->grad_norm,
        .tokens_per_second = (double)r->line_tokens / seconds,
        .flops_per_token = mx8i_count_model(&r->job->config, r->job->model.seq_len).flops_per_token};
    mx8i_format_step(text, sizeof text, &line);
    mx8i_log(&r->watch->log, "%s", text);
    r->line_time = now;
    r->line_tokens = 0;
}

static enum mx8_status run_step(struct run *r, struct mx8_step *s) {
    double before = mx8i_get_seconds();
    MX8_TRY(compute_gradients(r, s));
    MX8_TRY(mx8i_clip_gradients(&r->optimizer, &r->flat, r->job->max_norm, &s->grad_norm));
    enum mx8_status verdict = judge_step(r, s);
    if (verdict != MX8_OK && verdict != MX8_NOT_FINITE) return verdict;
    MX8_TRY(mx8i_take_saturated(r->model, &s->saturated));
    MX8_TRY(mx8i_read_expert_load(&r->metrics));
    if (verdict == MX8_OK) MX8_TRY(update_model(r, s));
    MX8_TRY(mx8_synchronize_context(r->ctx));
    s->seconds = mx8i_get_seconds() - before;
    s->tokens_per_second = (double)(s->tokens / s->step) / fmax(s->seconds, 1e-9);
    MX8_TRY(mx8i_write_metrics(&r->metrics, s));
    return verdict;
}

static enum mx8_status train(struct run *r, struct mx8_summary *out) {
    const struct mx8_watch *w = r->watch;
    mx8i_log(&w->log, "Training starts at step 1");
    r->started = r->line_time = mx8i_get_seconds();
    for (int64_t step = 1; step <= r->job->steps; step++) {
        if (w->should_stop && w->should_stop(w->user)) {
            out->interrupted = 1;
            break;
        }
        struct mx8_step s = {.step = step, .lr = mx8i_get_learning_rate(&r->job->schedule, step), .memory = r->memory};
        MX8_TRY(run_step(r, &s));
        out->steps = step;
        out->tokens = s.tokens;
        if (step == 1) out->first_loss = s.loss;
        r->speeds[step - 1] = s.tokens_per_second;
        if (!s.skipped) r->losses[r->n_losses++] = s.loss;
        log_step(r, &s);
        if (w->on_step) w->on_step(w->user, r->job, &s, r->job->steps);
    }
    return MX8_OK;
}

/* ---- after the last step ---- */

static enum mx8_status save_weights(struct run *r, int64_t step) {
    if (!r->job->save_weights || step == 0) return MX8_OK;
    char *folder = mx8i_format_text("%s/%s/step-%lld", r->job->dump_folder, r->job->checkpoint_folder, (long long)step);
    char *path = folder ? mx8i_format_text("%s/model.safetensors", folder) : NULL;
    enum mx8_status status = path ? mx8i_make_folders(folder) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = mx8i_save_weights(r->model, path, r->job->export_dtype);
    if (status == MX8_OK) mx8i_log(&r->watch->log, "Saved the weights of step %lld to %s", (long long)step, path);
    mx8i_release(path);
    mx8i_release(folder);
    return status;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The first step carries what happens once (page faults, cold caches): it counts only when it is alone. */
static double get_median_speed(struct run *r, int64_t steps) {
    int64_t from = steps > 1, n = steps - from;
    if (n < 1) return 0;
    double *speeds = r->speeds + from;
    qsort(speeds, (size_t)n, sizeof *speeds, compare_doubles);
    return n % 2 ? speeds[n / 2] : (speeds[n / 2 - 1] + speeds[n / 2]) / 2;
}

/* The mean over the last 5 % of the steps that were not skipped, at least one. */
static double get_final_loss(const struct run *r) {
    int64_t n = r->n_losses / 20 > 1 ? r->n_losses / 20 : 1;
    if (r->n_losses == 0) return (double)NAN;
    double sum = 0;
    for (int64_t i = r->n_losses - n; i < r->n_losses; i++) sum += r->losses[i];
    return sum / (double)n;
}

static void summarize(struct run *r, struct mx8_summary *out) {
    out->final_loss = get_final_loss(r);
    out->median_tps = get_median_speed(r, out->steps);
    out->peak_memory = r->memory;
    out->seconds = r->started > 0 ? mx8i_get_seconds() - r->started : 0;
}

enum mx8_status mx8i_run_job(
    const struct mx8_job *job, struct mx8_context *ctx, const struct mx8_watch *watch, struct mx8_summary *out) {
    static const struct mx8_watch nobody;
    struct run r = {.job = job, .ctx = ctx, .watch = watch ? watch : &nobody};
    struct mx8_summary summary = {0};
    enum mx8_status status = open_run(&r);
    if (status == MX8_OK) status = train(&r, &summary);
    if (status == MX8_OK) status = save_weights(&r, summary.steps);
    if (status == MX8_OK) mx8i_log(&r.watch->log, "Training completed");
    summarize(&r, &summary);
    close_run(&r);
    if (out) *out = summary;
    return status;
}
