/* Where a run starts. Resuming looks at the folder's checkpoints from the newest down and takes the first that is
 * whole; one that is damaged is told, set aside and kept. */
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "train/facts.h"
#include "train/parallel.h"
#include "train/run_state.h"

/* ---- loading ---- */

/* Losses of the steps before, and room for those to come. */
static enum mx8_status reserve_losses(struct mx8_run *r, const struct mx8_manifest *m) {
    int64_t index = mx8i_find_stored_tensor(m, MX8_HISTORY_LOSSES), n = index < 0 ? 0 : m->tensor[index].count;
    if (n > r->job->steps) { /* the job was cut short since */
        double *larger = mx8i_reallocate(r->losses, (size_t)n * sizeof *larger, "the losses of all steps");
        if (!larger) return MX8_OUT_OF_MEMORY;
        r->losses = larger;
    }
    r->n_losses = n;
    return MX8_OK;
}

/* Everything but what checkpoint.exclude_from_loading names. */
static enum mx8_status load_full(struct mx8_run *r, const struct mx8_checkpoint *c) {
    const struct mx8_progress *p = &c->manifest.progress;
    int32_t without = r->job->checkpoint.exclude;
    struct mx8_state state;
    MX8_TRY(mx8i_compare_job(r, &c->manifest, c->folder));
    if (without & MX8_EXCLUDE_MODEL) MX8_TRY(mx8i_init_weights(r->model, r->job->seed));
    if (!(without & MX8_EXCLUDE_TRAIN_STATE)) MX8_TRY(reserve_losses(r, &c->manifest));
    MX8_TRY(mx8i_describe_state(r, MX8_CHECKPOINT_FULL, without, &state));
    enum mx8_status status = mx8i_load_pieces(c, &state, without == 0, &r->ctx->exec);
    mx8i_free_state(&state);
    MX8_TRY(status);
    mx8i_accept_expert_counts(r->model);
    if (!(without & MX8_EXCLUDE_TRAIN_STATE)) r->step = p->step;
    if (!(without & MX8_EXCLUDE_DATALOADER)) r->position = p->position;
    if (!(without & MX8_EXCLUDE_LR_SCHEDULER)) r->schedule_step = p->schedule_step;
    if (!(without & MX8_EXCLUDE_OPTIMIZER)) r->optimizer.updates = p->updates;
    return mx8i_refresh_weights(r->model, 0);
}

static enum mx8_status load_weights(struct mx8_run *r, const struct mx8_checkpoint *c) {
    struct mx8_state state;
    MX8_TRY(mx8i_describe_state(r, MX8_CHECKPOINT_MODEL, 0, &state));
    enum mx8_status status = mx8i_load_pieces(c, &state, 0, &r->ctx->exec);
    mx8i_free_state(&state);
    return status == MX8_OK ? mx8i_refresh_weights(r->model, 0) : status;
}

/* ---- checkpoint.initial_load_path ---- */

static enum mx8_status load_initial_checkpoint(struct mx8_run *r, const char *path) {
    struct mx8_checkpoint c;
    MX8_TRY(mx8i_open_checkpoint(path, 1, &c));
    int weights_only = r->job->checkpoint.initial_model_only;
    enum mx8_status status;
    if (!weights_only && c.manifest.kind == MX8_CHECKPOINT_MODEL)
        status = MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s holds weights only, but checkpoint.initial_load_model_only is false: expected a checkpoint that was "
            "not "
            "the last of its run",
            path);
    else
        status = weights_only ? load_weights(r, &c) : load_full(r, &c);
    if (status == MX8_OK)
        mx8i_log(&r->watch->log, "Loaded %s of step %lld from %s", weights_only ? "the weights" : "the state",
            (long long)c.manifest.progress.step, path);
    mx8i_close_checkpoint(&c);
    return status;
}

static enum mx8_status load_initial_file(struct mx8_run *r, const char *path) {
    if (!r->job->checkpoint.initial_model_only)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s: checkpoint.initial_load_model_only is false: expected a folder with " MX8_MANIFEST_NAME, path);
    char *file = mx8i_is_folder(path) ? mx8i_format_text("%s/model.safetensors", path) : mx8i_copy_text(path);
    if (!file) return MX8_OUT_OF_MEMORY;
    mx8i_log(&r->watch->log, "Loading weights from %s", file);
    enum mx8_status status = mx8i_load_weights(r->model, file, &r->watch->log);
    mx8i_release(file);
    return status == MX8_OK ? mx8i_refresh_weights(r->model, 0) : status;
}

static enum mx8_status make_weights(struct mx8_run *r) {
    const struct mx8_job_debug *debug = &r->job->debug;
    MX8_TRY(mx8i_init_weights(r->model, r->job->seed));
    if (!debug->outlier_every) return MX8_OK;
    return mx8i_plant_outliers(r->model, debug->outlier_every, debug->outlier_factor);
}

static enum mx8_status start_anew(struct mx8_run *r) {
    const char *path = r->job->checkpoint.initial_load_path;
    if (!path[0]) return make_weights(r);
    if (r->job->checkpoint.initial_in_hf) {
        mx8i_log(&r->watch->log, "Loading weights from the Hugging Face folder %s", path);
        return mx8i_load_open_weights(r->model, path, &r->watch->log);
    }
    char *manifest = mx8i_format_text("%s/" MX8_MANIFEST_NAME, path);
    if (!manifest) return MX8_OUT_OF_MEMORY;
    int is_checkpoint = mx8i_is_file(manifest);
    mx8i_release(manifest);
    return is_checkpoint ? load_initial_checkpoint(r, path) : load_initial_file(r, path);
}

/* ---- resuming ---- */

struct search {
    struct mx8_run *r;
    int64_t *steps, count;
    int64_t damaged, weights_only;
};

static enum mx8_status resume_from(struct mx8_run *r, const struct mx8_checkpoint *c) {
    if (!r->job->model.dist) MX8_TRY(load_full(r, c)); /* several processes load together, once the first has chosen */
    r->resumed = 1;
    r->started_at = c->manifest.progress.step;
    mx8i_log(&r->watch->log, "Resuming from step %lld, saved in %s", (long long)c->manifest.progress.step, c->folder);
    return MX8_OK;
}

/* Checkpoints after the one that was chosen belong to a run that is given up: they must not be found as the newest. */
static enum mx8_status set_later_aside(struct search *s, int64_t step) {
    for (int64_t i = 0; i < s->count; i++) {
        if (s->steps[i] <= step) continue;
        MX8_TRY(mx8i_set_aside(&s->r->store, s->steps[i], "superseded"));
        mx8i_log(&s->r->watch->log, "Set aside step-%lld, which comes after step %lld, as step-%lld.superseded",
            (long long)s->steps[i], (long long)step, (long long)s->steps[i]);
        s->r->branched = 1;
        s->steps[i] = -1; /* not there any more */
    }
    return MX8_OK;
}

static enum mx8_status resume_chosen(struct search *s, const char *folder) {
    int64_t step = s->r->job->checkpoint.load_step;
    char *path = mx8i_make_step_path(folder, step);
    struct mx8_checkpoint c = {0};
    enum mx8_status status = path ? mx8i_open_checkpoint(path, 1, &c) : MX8_OUT_OF_MEMORY;
    if (status != MX8_OK) {
        mx8i_fail_prefix(status, "checkpoint.load_step is %lld", (long long)step);
    } else if (c.manifest.kind == MX8_CHECKPOINT_MODEL) {
        status = MX8_FAIL(MX8_INVALID_ARGUMENT,
            "checkpoint.load_step is %lld, but %s holds weights only; start a new run from them with "
            "checkpoint.initial_load_path",
            (long long)step, path);
    } else {
        status = resume_from(s->r, &c);
        if (status == MX8_OK) status = set_later_aside(s, step);
    }
    mx8i_close_checkpoint(&c);
    mx8i_release(path);
    return status;
}

static enum mx8_status pass_over_damaged(struct search *s, int64_t step) {
    mx8i_log(&s->r->watch->log, "warning: the checkpoint of step %lld is damaged: %s; it is kept as step-%lld.damaged",
        (long long)step, mx8_get_last_error(), (long long)step);
    s->damaged++;
    return mx8i_set_aside(&s->r->store, step, "damaged");
}

/* Resumes from this checkpoint when it can be. */
static enum mx8_status try_checkpoint(struct search *s, int64_t step, const char *path) {
    struct mx8_run *r = s->r;
    struct mx8_manifest m;
    struct mx8_checkpoint c = {0};
    enum mx8_status status = mx8i_read_checkpoint_head(path, &m);
    if (status == MX8_OK && m.kind == MX8_CHECKPOINT_MODEL) {
        mx8i_log(&r->watch->log, "step-%lld holds weights only and cannot be resumed%s", (long long)step,
            r->job->checkpoint.last_model_only
                ? " (checkpoint.last_save_model_only=false keeps the last step resumable)"
                : "");
        s->weights_only++;
        mx8i_free_manifest(&m);
        return MX8_OK;
    }
    mx8i_free_manifest(&m);
    if (status == MX8_OK) status = mx8i_open_checkpoint(path, 1, &c);
    if (status == MX8_FORMAT_ERROR) return pass_over_damaged(s, step);
    if (status == MX8_OK) status = resume_from(r, &c);
    mx8i_close_checkpoint(&c);
    return status;
}

static enum mx8_status resume_newest(struct search *s, const char *folder) {
    struct mx8_run *r = s->r;
    for (int64_t i = s->count - 1; i >= 0 && !r->resumed; i--) {
        char *path = mx8i_make_step_path(folder, s->steps[i]);
        enum mx8_status status = path ? try_checkpoint(s, s->steps[i], path) : MX8_OUT_OF_MEMORY;
        mx8i_release(path);
        MX8_TRY(status);
    }
    if (r->resumed || !s->count) return MX8_OK;
    if (s->damaged)
        return MX8_FAIL(MX8_FORMAT_ERROR,
            "%s: none of %lld checkpoints can be resumed, %lld are damaged (see the log); restore one, or start anew "
            "in "
            "another job.dump_folder",
            folder, (long long)s->count, (long long)s->damaged);
    if (r->job->checkpoint.initial_load_path[0]) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT,
        "%s holds weights only, up to step %lld: a run cannot go on from them; start a new one with "
        "checkpoint.initial_load_path=%s/step-%lld, in another job.dump_folder",
        folder, (long long)s->steps[s->count - 1], folder, (long long)s->steps[s->count - 1]);
}

static enum mx8_status resume(struct mx8_run *r, const char *folder) {
    struct search s = {.r = r};
    MX8_TRY(mx8i_open_store(folder, &r->store));
    MX8_TRY(mx8i_list_checkpoints(folder, &s.steps, &s.count));
    int64_t newest = s.count ? s.steps[s.count - 1] : -1;
    enum mx8_status status = MX8_OK;
    if (r->job->checkpoint.load_step >= 0) {
        status = resume_chosen(&s, folder);
    } else if (newest >= r->job->steps) {
        mx8i_log(&r->watch->log, "Step %lld is saved in %s/step-%lld: training.steps is %lld, nothing is left to do",
            (long long)newest, folder, (long long)newest, (long long)r->job->steps);
        r->complete = 1;
        r->step = newest;
    } else {
        status = resume_newest(&s, folder);
    }
    /* steps are counted anew: what is there comes after them */
    if (status == MX8_OK && r->resumed && (r->job->checkpoint.exclude & MX8_EXCLUDE_TRAIN_STATE))
        status = set_later_aside(&s, r->step);
    mx8i_release(s.steps);
    return status;
}

/* Several processes: the first one has looked, all of them load. */
static enum mx8_status resume_together(struct mx8_run *r) {
    struct {
        int64_t step, from;
        int32_t resumed, complete, branched;
    } found = {r->step, r->started_at, r->resumed, r->complete, r->branched};
    MX8_TRY(mx8i_broadcast(&r->job->model.dist->host, &found, sizeof found, 0));
    r->step = found.step;
    r->resumed = found.resumed;
    r->complete = found.complete;
    r->branched = found.branched;
    if (!r->resumed) return MX8_OK;
    char *path = mx8i_make_step_path(r->checkpoint_folder, found.from);
    struct mx8_checkpoint c = {0};
    enum mx8_status status =
        path ? mx8i_open_checkpoint(path, 0, &c) : MX8_OUT_OF_MEMORY; /* the first one verified it */
    if (status == MX8_OK) status = load_full(r, &c);
    mx8i_close_checkpoint(&c);
    mx8i_release(path);
    return status;
}

enum mx8_status mx8i_start_state(struct mx8_run *r) {
    const struct mx8_checkpoint_options *o = &r->job->checkpoint;
    if (o->enable) {
        r->checkpoint_folder = mx8i_format_text("%s/%s", r->job->dump_folder, o->folder);
        if (!r->checkpoint_folder) return MX8_OUT_OF_MEMORY;
        if (mx8i_is_first_rank(r->job) && mx8i_is_folder(r->checkpoint_folder))
            MX8_TRY(resume(r, r->checkpoint_folder));
        if (r->job->model.dist) MX8_TRY(resume_together(r));
        if (o->load_step >= 0 && !r->resumed)
            return MX8_FAIL(MX8_IO_ERROR, "checkpoint.load_step is %lld, but there is no folder %s",
                (long long)o->load_step, r->checkpoint_folder);
        if (r->resumed && o->initial_load_path[0])
            mx8i_log(&r->watch->log, "checkpoint.initial_load_path is not looked at: there is a checkpoint to resume");
    }
    return r->resumed || r->complete ? MX8_OK : start_anew(r);
}
