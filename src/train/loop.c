/* The training loop. run_job -> mx8i_open_run (run.c), train, mx8i_save_last (save.c); train -> run_step; run_step ->
 * compute_gradients, clip, judge, update. One step:
 *     for each microbatch: samples -> forward_backward, gradients add up
 *     global norm and clip factor -> is everything finite? -> expert load to the metrics -> expert bias -> AdamW ->
 * codes. Samples are read in order, from r->position on: row b of microbatch i on rank k of n is sample
 * position + (i n + k) batch + b. */
#include "train/loop.h"
#include <math.h>
#include "base/error.h"
#include "train/logline.h"
#include "train/parallel.h"
#include "train/run_state.h"

static int64_t count_step_tokens(const struct mx8_run *r) {
    return r->job->local_batch_size * r->job->accumulation * mx8i_count_ranks(r->job) * r->job->model.seq_len;
}

static enum mx8_status compute_gradients(struct mx8_run *r, struct mx8_step *s) {
    const struct mx8_job *job = r->job;
    float loss_scale = (float)(1.0 / (double)count_step_tokens(r));
    for (int64_t i = 0; i < job->accumulation; i++) {
        struct mx8_batch batch;
        MX8_TRY(mx8i_next_run_batch(r, s, &batch));
        MX8_TRY(mx8i_forward_backward(r->model, batch.tokens, batch.targets, batch.docs, loss_scale, i > 0, &s->loss));
    }
    r->position += job->local_batch_size * job->accumulation * mx8i_count_ranks(job);
    s->tokens = r->position * job->model.seq_len;
    return MX8_OK;
}

/* What to do about a step whose loss or gradient norm is not finite, and which tensor went bad first. */
static enum mx8_status judge_step(struct mx8_run *r, struct mx8_step *s) {
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
            "step %lld: loss is %g, gradient norm is %g; %s; this step is not saved "
            "(training.on_nan=skip leaves such steps out, continue goes on)",
            (long long)s->step, s->loss, s->grad_norm, where);
    s->skipped = r->job->on_nan == MX8_ON_NAN_SKIP;
    mx8i_log(&r->watch->log, "warning: step %lld: loss is %g, gradient norm is %g; %s; %s", (long long)s->step, s->loss,
        s->grad_norm, where, s->skipped ? "the update is left out" : "going on");
    return MX8_OK;
}

static void name_optimizer(const struct mx8_run *r) {
    static const struct mx8_profile_label optimizer = {"optimizer", -1, "", 0, ""};
    if (r->profile.profile) mx8i_label_profile(r->profile.profile, &optimizer);
}

/* A skipped step leaves the expert counts to the next update: only a bias update clears them. */
static enum mx8_status update_model(struct mx8_run *r, const struct mx8_step *s) {
    if (s->skipped) return MX8_OK;
    name_optimizer(r);
    MX8_TRY(mx8i_update_expert_bias(r->model));
    return mx8i_run_update(r, s->lr);
}

static void log_step(struct mx8_run *r, const struct mx8_step *s) {
    int64_t freq = r->job->log_freq;
    r->line_tokens += count_step_tokens(r);
    if (s->step != 1 && s->step % freq != 0) return;
    char text[512];
    double now = mx8i_get_seconds(), seconds = fmax(now - r->line_time, 1e-9);
    struct mx8_step_line line = {.step = s->step,
        .memory = r->memory,
        .capacity = r->capacity,
        .loss = s->loss,
        .grad_norm = s->grad_norm,
        .tokens_per_second = (double)r->line_tokens / (double)mx8i_count_ranks(r->job) / seconds, /* as torchtitan */
        .flops_per_token = mx8i_count_model(&r->job->config, r->job->model.seq_len).flops_per_token,
        .peak_flops = r->peak_flops};
    mx8i_format_step(text, sizeof text, &line);
    mx8i_log(&r->watch->log, "%s", text);
    r->line_time = now;
    r->line_tokens = 0;
}

/* With debug.dump_tensors one step writes what its linears read. */
static enum mx8_status compute_and_dump(struct mx8_run *r, struct mx8_step *s) {
    const struct mx8_job_debug *debug = &r->job->debug;
    if (s->step != debug->dump_step) return compute_gradients(r, s);
    struct mx8_dump dump = {.folder = debug->dump_folder, .names = debug->dump_names};
    mx8i_set_dump(r->model, &dump);
    enum mx8_status status = compute_gradients(r, s);
    mx8i_set_dump(r->model, NULL);
    MX8_TRY(status);
    if (!dump.count)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "debug.dump_tensors: step %lld has no linear in high precision whose name matches debug.dump_fqns \"%s\"; "
            "converted ones need mx.wgrad_hp",
            (long long)s->step, debug->dump_names);
    mx8i_log(&r->watch->log, "Wrote the tensors of %lld linears at step %lld to %s", (long long)dump.count,
        (long long)s->step, debug->dump_folder);
    return MX8_OK;
}

static enum mx8_status run_step(struct mx8_run *r, struct mx8_step *s) {
    const double before = mx8i_get_seconds(), waited = mx8i_get_waited(r);
    MX8_TRY(compute_and_dump(r, s));
    MX8_TRY(mx8i_join_step(r, s, before, waited));
    name_optimizer(r);
    MX8_TRY(mx8i_clip_gradients(&r->optimizer, &r->flat, r->job->max_norm, &s->grad_norm));
    enum mx8_status verdict = judge_step(r, s);
    if (verdict != MX8_OK && verdict != MX8_NOT_FINITE) return verdict;
    MX8_TRY(mx8i_take_saturated(r->model, &s->saturated));
    if (r->job->model.count_gaps) MX8_TRY(mx8i_take_wide_blocks(r->model, &s->wide_blocks));
    MX8_TRY(mx8i_join_saturated(r, s));
    MX8_TRY(mx8i_read_expert_load(&r->metrics));
    if (verdict == MX8_OK) MX8_TRY(update_model(r, s));
    MX8_TRY(mx8_synchronize_context(r->ctx));
    s->seconds = mx8i_get_seconds() - before;
    s->tokens_per_second = (double)count_step_tokens(r) / fmax(s->seconds, 1e-9);
    MX8_TRY(mx8i_add_step_profile(&r->profile, r->job, r->ctx, s));
    if (verdict == MX8_OK) MX8_TRY(mx8i_validate_run(r, s));
    MX8_TRY(mx8i_forget_calls(&r->profile, r->ctx)); /* the validation's */
    MX8_TRY(mx8i_write_metrics(&r->metrics, s));
    return verdict;
}

static void note_step(struct mx8_run *r, const struct mx8_step *s) {
    r->step = s->step;
    r->schedule_step++;
    r->speeds[r->n_speeds++] = s->tokens_per_second;
    if (s->step == 1) r->first_loss = s->loss;
    if (!s->skipped) r->losses[r->n_losses++] = s->loss;
    log_step(r, s);
}

static enum mx8_status train(struct mx8_run *r, struct mx8_summary *out) {
    const struct mx8_watch *w = r->watch;
    if (r->step < r->job->steps) mx8i_log(&w->log, "Training starts at step %lld", (long long)r->step + 1);
    r->started = r->line_time = mx8i_get_seconds();
    while (r->step < r->job->steps) {
        if (mx8i_should_stop(r)) {
            out->interrupted = 1;
            break;
        }
        struct mx8_step s = {.step = r->step + 1,
            .lr = mx8i_get_learning_rate(&r->job->schedule, r->schedule_step + 1),
            .memory = r->memory};
        MX8_TRY(run_step(r, &s));
        note_step(r, &s);
        mx8i_finish_step_data(r, &s, out);
        if (w->on_step) w->on_step(w->user, r->job, &s, r->job->steps);
        MX8_TRY(mx8i_save_step(r, &s));
    }
    return MX8_OK;
}

enum mx8_status mx8i_run_job(
    const struct mx8_job *job, struct mx8_context *ctx, const struct mx8_watch *watch, struct mx8_summary *out) {
    static const struct mx8_watch nobody;
    struct mx8_run r = {.job = job, .ctx = ctx, .watch = watch ? watch : &nobody};
    struct mx8_summary summary = {0};
    enum mx8_status status = mx8i_open_run(&r);
    if (status == MX8_OK) status = train(&r, &summary);
    if (status == MX8_OK) status = mx8i_save_last(&r, &summary);
    if (status == MX8_OK && !summary.interrupted) mx8i_log(&r.watch->log, "Training completed");
    if (status == MX8_OK) status = mx8i_report_step_profile(&r.profile, job, ctx, r.model, &r.watch->log);
    mx8i_summarize_run(&r, &summary);
    mx8i_close_run(&r);
    if (out) *out = summary;
    return status;
}
