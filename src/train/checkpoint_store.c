/* Names in the folder of checkpoints. Only step-N (digits alone) is a checkpoint; .saving-* and .removing-* are what a
 * process was at when it ended, and go when the next one starts. */
#include "train/checkpoint_store.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/error.h"
#include "base/folder.h"
#include "base/memory.h"

static const char prefix[] = "step-";

char *mx8i_make_step_path(const char *folder, int64_t step) {
    return mx8i_format_text("%s/%s%lld", folder, prefix, (long long)step);
}

/* The N of "step-N", -1 for any other name. "step-007" is another name: mx8 writes "step-7". */
static int64_t parse_name(const char *name) {
    const char *digits = name + sizeof prefix - 1;
    if (strncmp(name, prefix, sizeof prefix - 1) || !digits[0] || strlen(digits) > 18) return -1;
    if (digits[strspn(digits, "0123456789")] || (digits[0] == '0' && digits[1])) return -1;
    return strtoll(digits, NULL, 10);
}

static int has_manifest(const char *folder, const char *name) {
    char *path = mx8i_format_text("%s/%s/" MX8_MANIFEST_NAME, folder, name);
    int found = path && mx8i_is_file(path);
    mx8i_release(path);
    return found;
}

static int compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

enum mx8_status mx8i_list_checkpoints(const char *folder, int64_t **steps, int64_t *count) {
    char **names;
    int64_t n_names;
    *steps = NULL;
    *count = 0;
    if (!mx8i_is_folder(folder)) return MX8_OK;
    MX8_TRY(mx8i_list_folder(folder, &names, &n_names));
    *steps = mx8i_allocate((size_t)n_names * sizeof **steps, "a list of checkpoints");
    for (int64_t i = 0; *steps && i < n_names; i++) {
        int64_t step = parse_name(names[i]);
        if (step >= 0 && has_manifest(folder, names[i])) (*steps)[(*count)++] = step;
    }
    mx8i_release_list(names, n_names);
    if (!*steps) return MX8_OUT_OF_MEMORY;
    qsort(*steps, (size_t)*count, sizeof **steps, compare_steps);
    return MX8_OK;
}

/* ---- one process ---- */

static enum mx8_status take_lock(struct mx8_store *s) {
    char *path = mx8i_format_text("%s/.lock", s->folder);
    enum mx8_status status = path ? mx8i_lock_file(path, &s->lock) : MX8_OUT_OF_MEMORY;
    mx8i_release(path);
    if (status == MX8_OK && s->lock < 0)
        return MX8_FAIL(MX8_IO_ERROR,
            "%s: another process is using these checkpoints; stop it, or give this run a job.dump_folder of its own",
            s->folder);
    return status;
}

static enum mx8_status remove_leftovers(const struct mx8_store *s) {
    char **names;
    int64_t count;
    MX8_TRY(mx8i_list_folder(s->folder, &names, &count));
    enum mx8_status status = MX8_OK;
    for (int64_t i = 0; i < count && status == MX8_OK; i++) {
        if (strncmp(names[i], ".saving-", 8) && strncmp(names[i], ".removing-", 10)) continue;
        char *path = mx8i_format_text("%s/%s", s->folder, names[i]);
        status = path ? mx8i_remove_tree(path) : MX8_OUT_OF_MEMORY;
        mx8i_release(path);
    }
    mx8i_release_list(names, count);
    return status;
}

enum mx8_status mx8i_open_store(const char *folder, struct mx8_store *out) {
    *out = (struct mx8_store){.folder = mx8i_copy_text(folder), .lock = -1};
    enum mx8_status status = out->folder ? mx8i_make_folders(folder) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = take_lock(out);
    if (status == MX8_OK) status = remove_leftovers(out);
    if (status != MX8_OK) mx8i_close_store(out);
    return status;
}

void mx8i_close_store(struct mx8_store *s) {
    if (!s->folder) return;
    mx8i_unlock_file(s->lock);
    mx8i_release(s->folder);
    *s = (struct mx8_store){.lock = -1};
}

/* ---- checkpoints come and go ---- */

enum mx8_status mx8i_begin_checkpoint(const struct mx8_store *s, int64_t step, char **path) {
    *path = mx8i_format_text("%s/.saving-%s%lld", s->folder, prefix, (long long)step);
    if (!*path) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_remove_tree(*path);
    if (status == MX8_OK && mkdir(*path, 0777) != 0)
        status = MX8_FAIL(MX8_IO_ERROR, "%s: cannot make the folder: %s", *path, strerror(errno));
    if (status == MX8_OK) return MX8_OK;
    mx8i_release(*path);
    *path = NULL;
    return status;
}

enum mx8_status mx8i_set_aside(const struct mx8_store *s, int64_t step, const char *why) {
    char *from = mx8i_make_step_path(s->folder, step);
    enum mx8_status status = from ? MX8_OK : MX8_OUT_OF_MEMORY;
    struct stat info;
    for (int n = 1; status == MX8_OK; n++) {
        char *to = n == 1 ? mx8i_format_text("%s.%s", from, why) : mx8i_format_text("%s.%s-%d", from, why, n);
        int taken = to && lstat(to, &info) == 0;
        if (!to) status = MX8_OUT_OF_MEMORY;
        if (to && !taken) status = mx8i_rename(from, to);
        mx8i_release(to);
        if (!taken) break;
    }
    mx8i_release(from);
    return status;
}

enum mx8_status mx8i_publish_checkpoint(const struct mx8_store *s, const char *path, int64_t step) {
    struct stat info;
    char *to = mx8i_make_step_path(s->folder, step);
    enum mx8_status status = to ? mx8i_sync_folder(path) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK && lstat(to, &info) == 0) status = mx8i_set_aside(s, step, "replaced");
    if (status == MX8_OK) status = mx8i_rename(path, to);
    mx8i_release(to);
    return status;
}

static enum mx8_status remove_checkpoint(const struct mx8_store *s, int64_t step) {
    char *from = mx8i_make_step_path(s->folder, step);
    char *to = mx8i_format_text("%s/.removing-%s%lld", s->folder, prefix, (long long)step);
    enum mx8_status status = from && to ? mx8i_remove_tree(to) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = mx8i_rename(from, to);
    if (status == MX8_OK) status = mx8i_remove_tree(to);
    mx8i_release(from);
    mx8i_release(to);
    return status;
}

enum mx8_status mx8i_prune_store(const struct mx8_store *s, int64_t keep) {
    int64_t *steps, count;
    if (keep <= 0) return MX8_OK;
    MX8_TRY(mx8i_list_checkpoints(s->folder, &steps, &count));
    enum mx8_status status = MX8_OK;
    for (int64_t i = 0; steps && i < count - keep && status == MX8_OK; i++) status = remove_checkpoint(s, steps[i]);
    mx8i_release(steps);
    return status;
}
