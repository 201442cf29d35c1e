/* The last step for other programs: read back from its checkpoint, which is on disk and whole by then, so that the
 * export needs no memory of the model's size. */
#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/memory.h"
#include "train/checkpoint_store.h"
#include "train/open_weights.h"
#include "train/run_state.h"

/* The end marks and lengths of the config.json that training started from go with it. */
static enum mx8_status keep_idle(const struct mx8_run *r, struct mx8_weights *w) {
    struct mx8_weights start;
    if (!r->job->checkpoint.initial_in_hf) return MX8_OK;
    const char *path = r->job->checkpoint.initial_load_path;
    if (mx8i_open_weights(path, NULL, &start) != MX8_OK) return MX8_OK; /* moved away since: they are not needed */
    w->idle = start.idle;
    start.idle = NULL;
    mx8i_close_weights(&start);
    return MX8_OK;
}

static enum mx8_status export_to(struct mx8_run *r, const char *checkpoint, const char *folder) {
    struct mx8_export_options o = {
        .dtype = r->job->checkpoint.export_dtype, .shard_bytes = r->job->checkpoint.shard_bytes};
    struct mx8_weights w;
    MX8_TRY(mx8i_guess_hf_family(&r->job->config, &o.family));
    MX8_TRY(mx8i_open_saved_weights(checkpoint, &r->job->config, &w));
    enum mx8_status status = keep_idle(r, &w);
    if (status == MX8_OK) status = mx8i_export_weights(&w, folder, &o, &r->watch->log);
    mx8i_close_weights(&w);
    return status;
}

enum mx8_status mx8i_export_last(struct mx8_run *r) {
    char *checkpoint = mx8i_make_step_path(r->checkpoint_folder, r->step);
    char *folder = mx8i_format_text("%s/hf/step-%lld", r->job->dump_folder, (long long)r->step);
    char *partial = folder ? mx8i_format_text("%s.partial", folder) : NULL;
    enum mx8_status status = checkpoint && partial ? mx8i_remove_tree(partial) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = export_to(r, checkpoint, partial);
    if (status == MX8_OK) status = mx8i_remove_tree(folder);
    if (status == MX8_OK) status = mx8i_rename(partial, folder);
    if (status == MX8_OK)
        mx8i_log(&r->watch->log, "Saved step %lld as a Hugging Face model to %s", (long long)r->step, folder);
    mx8i_release(partial);
    mx8i_release(folder);
    mx8i_release(checkpoint);
    return status;
}
