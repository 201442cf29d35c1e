#include "train/saver.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/memory.h"

struct mx8_saver {
    struct mx8_saver_options o;
    uint8_t *snapshot;
    int64_t saved_step;
    /* of the save in progress; the thread's until `finished` is set */
    pthread_t thread;
    int32_t running;
    atomic_int finished;
    struct mx8_state state;
    struct mx8_manifest manifest;
    const struct mx8_exec *x; /* NULL: the state is a copy on the host */
    enum mx8_status status;
    double seconds;
    char error[1024], note[1024];
};

enum mx8_status mx8i_open_saver(const struct mx8_saver_options *o, struct mx8_saver **out) {
    struct mx8_saver *s = mx8i_allocate(sizeof *s, "a saver of checkpoints");
    *out = s;
    if (!s) return MX8_OUT_OF_MEMORY;
    s->o = *o;
    s->saved_step = -1;
    if (!o->snapshot_bytes) return MX8_OK;
    s->snapshot = mx8i_allocate_aligned(
        o->snapshot_bytes, MX8_SNAPSHOT_ALIGNMENT, "a copy of the state (checkpoint.async_mode=async)");
    if (s->snapshot) {
        memset(s->snapshot, 0, o->snapshot_bytes); /* now, so that the first save does not wait for pages */
        return MX8_OK;
    }
    mx8i_release(s);
    *out = NULL;
    return MX8_OUT_OF_MEMORY;
}

/* ---- one save ---- */

static enum mx8_status write_folder(struct mx8_saver *s, const char *path) {
    MX8_TRY(mx8i_write_pieces(path, 0, &s->state, s->o.shard_bytes, s->x, &s->manifest));
    MX8_TRY(mx8i_write_manifest(path, &s->manifest));
    if (s->o.metrics_path) MX8_TRY(mx8i_sync_file(s->o.metrics_path));
    return mx8i_publish_checkpoint(s->o.store, path, s->manifest.progress.step);
}

/* What a failed save says beside its cause. */
static enum mx8_status fail_save(const struct mx8_saver *s, enum mx8_status status) {
    int64_t *steps = NULL, count = 0;
    char reason[900];
    snprintf(reason, sizeof reason, "%s", mx8_get_last_error());
    mx8i_list_checkpoints(s->o.store->folder, &steps, &count);
    int64_t step = s->manifest.progress.step;
    if (count)
        mx8i_fail(status, "step %lld was not saved: %s; the newest checkpoint is step-%lld", (long long)step, reason,
            (long long)steps[count - 1]);
    else
        mx8i_fail(status, "step %lld was not saved: %s; there is no checkpoint yet", (long long)step, reason);
    mx8i_release(steps);
    return status;
}

static enum mx8_status write_checkpoint(struct mx8_saver *s) {
    char *path = NULL;
    double before = mx8i_get_seconds();
    enum mx8_status status = mx8i_begin_checkpoint(s->o.store, s->manifest.progress.step, &path);
    if (status == MX8_OK) status = write_folder(s, path);
    if (status != MX8_OK) {
        fail_save(s, status);
        char kept[sizeof s->error];
        snprintf(kept, sizeof kept, "%s", mx8_get_last_error());
        if (path) mx8i_remove_tree(path); /* gives the disk its space back */
        mx8i_fail(status, "%s", kept);
    }
    mx8i_release(path);
    s->seconds = mx8i_get_seconds() - before;
    s->note[0] = 0;
    if (status == MX8_OK && mx8i_prune_store(s->o.store, s->o.keep) != MX8_OK)
        snprintf(s->note, sizeof s->note, "warning: an old checkpoint stays: %.900s", mx8_get_last_error());
    return status;
}

static void *write_in_background(void *user) {
    struct mx8_saver *s = user;
    /* a thread of its own priority, on Linux: training comes first where cores are few */
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
    s->status = write_checkpoint(s);
    if (s->status != MX8_OK) snprintf(s->error, sizeof s->error, "%s", mx8_get_last_error());
    atomic_store(&s->finished, 1);
    return NULL;
}

/* The pieces' bytes side by side in host memory; the pieces point there afterwards. */
static enum mx8_status take_snapshot(struct mx8_saver *s) {
    size_t at = 0, bytes = mx8i_count_snapshot_bytes(&s->state);
    if (bytes > s->o.snapshot_bytes)
        return MX8_FAIL(MX8_INTERNAL, "mx8i_save_checkpoint: a state of %zu bytes, the copy was planned for %zu", bytes,
            s->o.snapshot_bytes);
    for (int64_t i = 0; i < s->state.n_pieces; i++) {
        struct mx8_piece *p = &s->state.piece[i];
        size_t size = (size_t)p->count * mx8_get_dtype_size(s->state.tensor[p->tensor].dtype);
        if (p->on_host)
            memcpy(s->snapshot + at, p->data, size);
        else
            MX8_TRY(s->x->k->download(s->x, s->snapshot + at, p->data, size));
        p->data = s->snapshot + at;
        p->on_host = 1;
        at += (size + MX8_SNAPSHOT_ALIGNMENT - 1) / MX8_SNAPSHOT_ALIGNMENT * MX8_SNAPSHOT_ALIGNMENT;
    }
    return MX8_OK;
}

static void forget_save(struct mx8_saver *s) {
    mx8i_free_state(&s->state);
    mx8i_free_manifest(&s->manifest);
}

static void report_save(struct mx8_saver *s, const char *how) {
    int64_t step = s->manifest.progress.step;
    s->saved_step = step;
    mx8i_log(s->o.log, "Saved a checkpoint of step %lld to %s/step-%lld %s%.2f s", (long long)step, s->o.store->folder,
        (long long)step, how, s->seconds);
    if (s->note[0]) mx8i_log(s->o.log, "%s", s->note);
}

static enum mx8_status start_thread(struct mx8_saver *s) {
    double before = mx8i_get_seconds();
    MX8_TRY(take_snapshot(s));
    double stall = mx8i_get_seconds() - before;
    s->x = NULL;
    atomic_store(&s->finished, 0);
    if (pthread_create(&s->thread, NULL, write_in_background, s) != 0)
        return MX8_FAIL(MX8_IO_ERROR, "a thread for writing checkpoints cannot be started");
    s->running = 1;
    mx8i_log(s->o.log, "Saving a checkpoint of step %lld in the background; training waited %.3f s",
        (long long)s->manifest.progress.step, stall);
    return MX8_OK;
}

enum mx8_status mx8i_save_checkpoint(
    struct mx8_saver *s, struct mx8_state *state, struct mx8_manifest *manifest, int32_t background) {
    enum mx8_status status = mx8i_wait_for_saver(s);
    s->state = *state;
    s->manifest = *manifest;
    *state = (struct mx8_state){0};
    *manifest = (struct mx8_manifest){0};
    s->x = s->o.x;
    if (status == MX8_OK && background && s->snapshot) {
        status = start_thread(s);
        if (status == MX8_OK) return MX8_OK;
    } else if (status == MX8_OK) {
        status = write_checkpoint(s);
        if (status == MX8_OK) report_save(s, "in ");
    }
    forget_save(s);
    return status;
}

enum mx8_status mx8i_wait_for_saver(struct mx8_saver *s) {
    if (!s->running) return MX8_OK;
    pthread_join(s->thread, NULL);
    s->running = 0;
    enum mx8_status status = s->status;
    if (status == MX8_OK)
        report_save(s, "in the background in ");
    else
        mx8i_fail(status, "%s", s->error);
    forget_save(s);
    return status;
}

enum mx8_status mx8i_poll_saver(struct mx8_saver *s) {
    return s->running && atomic_load(&s->finished) ? mx8i_wait_for_saver(s) : MX8_OK;
}

int64_t mx8i_get_saved_step(const struct mx8_saver *s) {
    return s->saved_step;
}

void mx8i_close_saver(struct mx8_saver *s) {
    if (!s) return;
    char kept[1024];
    snprintf(kept, sizeof kept, "%s", mx8_get_last_error());
    enum mx8_status status = mx8i_wait_for_saver(s);
    if (status != MX8_OK) mx8i_log(s->o.log, "warning: %s", s->error);
    if (status != MX8_OK && kept[0]) mx8i_fail(status, "%s", kept); /* what the run failed with stays the last error */
    mx8i_release(s->snapshot);
    mx8i_release(s);
}
