/* When and what a run saves. */
#include <math.h>
#include "base/error.h"
#include "base/folder.h"
#include "base/memory.h"
#include "train/describe.h"
#include "train/facts.h"
#include "train/parallel.h"
#include "train/run_state.h"

/* Told early: a disk that fills up at night is a long way to a message. */
static void check_space(struct mx8_run *r, size_t bytes) {
    int64_t space = mx8i_get_free_space(r->store.folder);
    if (space >= 0 && (uint64_t)space < bytes)
        mx8i_log(&r->watch->log, "warning: a checkpoint takes %.3f GiB, and %s has %.3f GiB left",
            (double)bytes / (1 << 30), r->store.folder, (double)space / (1 << 30));
}

enum mx8_status mx8i_start_saving(struct mx8_run *r) {
    const struct mx8_checkpoint_options *o = &r->job->checkpoint;
    struct mx8_state state;
    if (!o->enable || !mx8i_is_first_rank(r->job)) return MX8_OK;
    if (r->job->model.dist && o->async)
        mx8i_log(&r->watch->log, "checkpoint.async_mode: several processes save while training waits");
    if (!r->store.folder) MX8_TRY(mx8i_open_store(r->checkpoint_folder, &r->store));
    MX8_TRY(mx8i_describe_state(r, MX8_CHECKPOINT_FULL, 0, &state));
    check_space(r, mx8i_count_state_bytes(&state));
    struct mx8_saver_options options = {.store = &r->store,
        .x = &r->ctx->exec,
        .log = &r->watch->log,
        .metrics_path = r->metrics.path,
        .keep = o->keep,
        .shard_bytes = o->shard_bytes,
        .snapshot_bytes = mx8i_count_snapshot_plan(r->job, mx8i_get_memory_plan(r->model, r->ctx))};
    mx8i_free_state(&state);
    return mx8i_open_saver(&options, &r->saver);
}

/* Weights, not moments, decide: nothing brings a weight back that is lost. */
static enum mx8_status check_finite(struct mx8_run *r) {
    const char *name;
    if (!r->loss_is_finite)
        return MX8_FAIL(
            MX8_NOT_FINITE, "step %lld was not saved: its loss or gradient norm is not finite", (long long)r->step);
    MX8_TRY(mx8i_find_not_finite(r->model, 0, &name));
    if (!name) return MX8_OK;
    return MX8_FAIL(MX8_NOT_FINITE, "step %lld was not saved: %s holds a NaN or an infinity", (long long)r->step, name);
}

static enum mx8_status save(struct mx8_run *r, enum mx8_checkpoint_kind kind, int32_t background) {
    struct mx8_state state = {0};
    struct mx8_manifest m = {.kind = kind,
        .ranks = mx8i_count_ranks(r->job),
        .progress = {r->step, r->position, r->schedule_step, r->optimizer.updates}};
    MX8_TRY(check_finite(r));
    enum mx8_status status = mx8i_describe_job(r, &m.job, &m.options);
    if (status == MX8_OK) status = mx8i_describe_state(r, kind, 0, &state);
    if (status == MX8_OK && r->job->model.dist)
        status = mx8i_save_together(r, &state, &m);
    else if (status == MX8_OK)
        status = mx8i_save_checkpoint(r->saver, &state, &m, background);
    if (status == MX8_OK) r->saved_step = r->step;
    mx8i_free_state(&state);
    mx8i_free_manifest(&m);
    return status;
}

/* A failure that the job was told to live with. Running out of memory or a defect is none. */
static enum mx8_status forgive(struct mx8_run *r, enum mx8_status status) {
    int bad_numbers = status == MX8_NOT_FINITE, cannot_write = status == MX8_IO_ERROR;
    if (!bad_numbers && !(cannot_write && r->job->checkpoint.goes_on)) return status;
    mx8i_log(&r->watch->log, "warning: %s", mx8_get_last_error());
    return MX8_OK;
}

enum mx8_status mx8i_save_step(struct mx8_run *r, const struct mx8_step *s) {
    const struct mx8_checkpoint_options *o = &r->job->checkpoint;
    if (!o->enable) return MX8_OK;
    /* a skipped step left the state as it was: its loss says nothing about it */
    r->loss_is_finite = s->skipped || (isfinite(s->loss) && isfinite(s->grad_norm));
    if (r->saver) MX8_TRY(forgive(r, mx8i_poll_saver(r->saver)));
    int due = s->step % o->interval == 0 || (s->step == 1 && o->first_step);
    if (!due || s->step == r->job->steps) return MX8_OK; /* the last step: mx8i_save_last */
    return forgive(r, save(r, MX8_CHECKPOINT_FULL, o->async));
}

enum mx8_status mx8i_save_last(struct mx8_run *r, struct mx8_summary *out) {
    out->saved_step = -1;
    if (!r->job->checkpoint.enable || r->complete) return MX8_OK;
    if (r->saver) MX8_TRY(forgive(r, mx8i_wait_for_saver(r->saver)));
    if (r->step > r->started_at && r->step != (r->job->model.dist ? r->saved_step : mx8i_get_saved_step(r->saver))) {
        int ended = r->step >= r->job->steps;
        MX8_TRY(save(r, ended && r->job->checkpoint.last_model_only ? MX8_CHECKPOINT_MODEL : MX8_CHECKPOINT_FULL, 0));
        /* every process' part is in the checkpoint by now */
        if (ended && r->job->checkpoint.last_in_hf && mx8i_is_first_rank(r->job)) MX8_TRY(mx8i_export_last(r));
    }
    out->saved_step = r->step > r->started_at || r->resumed ? r->step : -1;
    return MX8_OK;
}
