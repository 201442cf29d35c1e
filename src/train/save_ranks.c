/* A checkpoint of several processes. The first rank makes the folder, every rank writes its pieces into files of its
 * own and hands in its part of the manifest, and the first rank merges the parts, writes the manifest and gives the
 * folder its name. Ranks agree after each stage, so that one full disk is everybody's failed save and nobody waits. All
 * of them must see the same folder: a shared file system when they run on several machines. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/folder.h"
#include "base/memory.h"
#include "train/checkpoint_store.h"
#include "train/parallel.h"

enum { REASON = 512 };

/* Every rank's status; the first failure is everyone's, told by its rank. */
static enum mx8_status agree(struct mx8_comm *c, enum mx8_status own) {
    struct verdict {
        int64_t status;
        char reason[REASON];
    } *all = mx8i_allocate((size_t)c->size * sizeof *all, "an agreement");
    if (!all) return MX8_OUT_OF_MEMORY;
    all[c->rank].status = own;
    if (own != MX8_OK) snprintf(all[c->rank].reason, REASON, "%s", mx8_get_last_error());
    enum mx8_status status = mx8i_gather_entries(c, all, sizeof *all);
    for (int32_t r = 0; r < c->size && status == MX8_OK; r++) {
        if (all[r].status == MX8_OK) continue;
        status = mx8i_fail((enum mx8_status)all[r].status, "rank %d: %s", (int)r, all[r].reason);
    }
    mx8i_release(all);
    return status;
}

/* A rank's part of the manifest, as text, to the first rank. */
static enum mx8_status hand_in(struct mx8_comm *c, const char *own, int64_t *sizes, char **texts) {
    int32_t ticket = 0, n = 0;
    struct mx8_part *part = mx8i_allocate((size_t)c->size * sizeof *part, "parts of a manifest");
    enum mx8_status status = part ? MX8_OK : MX8_OUT_OF_MEMORY;
    if (c->rank > 0) {
        if (part) part[n++] = (struct mx8_part){.peer = 0, .send = own, .send_bytes = (size_t)sizes[c->rank]};
    }
    for (int32_t r = 1; r < c->size && c->rank == 0 && status == MX8_OK; r++) {
        texts[r] = mx8i_allocate((size_t)sizes[r] + 1, "parts of a manifest");
        if (!texts[r])
            status = MX8_OUT_OF_MEMORY;
        else
            part[n++] = (struct mx8_part){.peer = r, .receive = texts[r], .receive_bytes = (size_t)sizes[r]};
    }
    if (status == MX8_OK) status = c->t->start_exchange(c, part, n, &ticket);
    if (status == MX8_OK) status = c->t->wait(c, &ticket);
    mx8i_release(part);
    return status;
}

static enum mx8_status merge_texts(struct mx8_comm *c, const int64_t *sizes, char **texts, struct mx8_manifest *m) {
    for (int32_t r = 1; r < c->size && c->rank == 0; r++) {
        struct mx8_manifest part;
        char where[64];
        snprintf(where, sizeof where, "the manifest of rank %d", (int)r);
        MX8_TRY(mx8i_parse_manifest(texts[r], (size_t)sizes[r], where, &part));
        enum mx8_status status = mx8i_merge_manifest(m, &part);
        mx8i_free_manifest(&part);
        MX8_TRY(status);
    }
    return MX8_OK;
}

static enum mx8_status merge_manifests(struct mx8_comm *c, struct mx8_manifest *m) {
    char *own = NULL, **texts = mx8i_allocate((size_t)c->size * sizeof *texts, "parts of a manifest");
    int64_t *sizes = mx8i_allocate((size_t)c->size * sizeof *sizes, "parts of a manifest");
    enum mx8_status status = texts && sizes ? mx8i_print_manifest(m, &own) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) sizes[c->rank] = (int64_t)strlen(own);
    if (status == MX8_OK) status = mx8i_gather_entries(c, sizes, sizeof *sizes);
    if (status == MX8_OK) status = hand_in(c, own, sizes, texts);
    if (status == MX8_OK) status = merge_texts(c, sizes, texts, m);
    for (int32_t r = 1; texts && r < c->size; r++) mx8i_release(texts[r]);
    mx8i_release(own);
    mx8i_release(sizes);
    mx8i_release(texts);
    return status;
}

/* The folder's name, from the first rank. */
static enum mx8_status begin(struct mx8_run *r, int64_t step, char path[4096]) {
    struct mx8_comm *c = &r->job->model.dist->host;
    char *made = NULL;
    enum mx8_status status = c->rank ? MX8_OK : mx8i_begin_checkpoint(&r->store, step, &made);
    if (made) snprintf(path, 4096, "%s", made);
    mx8i_release(made);
    MX8_TRY(agree(c, status));
    return mx8i_broadcast(c, path, 4096, 0);
}

static enum mx8_status publish(struct mx8_run *r, const char *path, struct mx8_manifest *m) {
    if (!mx8i_is_first_rank(r->job)) return MX8_OK;
    MX8_TRY(mx8i_write_manifest(path, m));
    if (r->metrics.path) MX8_TRY(mx8i_sync_file(r->metrics.path));
    return mx8i_publish_checkpoint(&r->store, path, m->progress.step);
}

static enum mx8_status write(struct mx8_run *r, const char *path, struct mx8_state *state, struct mx8_manifest *m) {
    struct mx8_comm *c = &r->job->model.dist->host;
    const struct mx8_grid *grid = &r->job->grid;
    if (grid->rank > 0) mx8i_drop_pieces(state, 1);
    if (grid->rank >= grid->shard) mx8i_drop_pieces(state, 0); /* another replica holds the same */
    MX8_TRY(agree(c, mx8i_write_pieces(path, grid->rank, state, r->job->checkpoint.shard_bytes, &r->ctx->exec, m)));
    MX8_TRY(agree(c, merge_manifests(c, m)));
    return agree(c, publish(r, path, m));
}

enum mx8_status mx8i_save_together(struct mx8_run *r, struct mx8_state *state, struct mx8_manifest *m) {
    char path[4096] = "", reason[900];
    const double before = mx8i_get_seconds();
    const long long step = (long long)m->progress.step;
    MX8_TRY(begin(r, step, path));
    const enum mx8_status status = write(r, path, state, m);
    if (status != MX8_OK) {
        snprintf(reason, sizeof reason, "%s", mx8_get_last_error());
        if (mx8i_is_first_rank(r->job)) mx8i_remove_tree(path);
        return MX8_FAIL(status, "step %lld was not saved: %s", step, reason);
    }
    mx8i_log(&r->watch->log, "Saved a checkpoint of step %lld to %s/step-%lld in %.2f s, %d processes", step,
        r->checkpoint_folder, step, mx8i_get_seconds() - before, (int)r->job->grid.world);
    if (mx8i_is_first_rank(r->job) && mx8i_prune_store(&r->store, r->job->checkpoint.keep) != MX8_OK)
        mx8i_log(&r->watch->log, "warning: an old checkpoint stays: %s", mx8_get_last_error());
    return MX8_OK;
}
