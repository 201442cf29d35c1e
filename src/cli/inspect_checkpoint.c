/* A checkpoint as people read it: where its run stood, what it holds, and whether it is whole. */
#include <stdio.h>
#include <string.h>
#include "base/complaints.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/inspect.h"
#include "train/checkpoint_store.h"

enum { MAX_MANIFEST = 1 << 30 };

/* The first row whose words the name begins or ends with; the last row holds what is left. */
static const struct {
    const char *begin, *end, *what;
} kinds[] = {
    {"optimizer.exp_avg.", "", "first moments"},
    {"optimizer.exp_avg_sq.", "", "second moments"},
    {"history.", "", "history"},
    {"moe.tokens_per_expert", "", "expert counts"},
    {"", ".expert_bias", "expert biases"},
    {"", "", "weights"},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

static size_t find_kind(const char *name) {
    size_t i = 0, length = strlen(name);
    for (; i < KINDS - 1; i++) {
        size_t tail = strlen(kinds[i].end);
        if (!strncmp(name, kinds[i].begin, strlen(kinds[i].begin)) && length >= tail &&
            !strcmp(name + length - tail, kinds[i].end))
            break;
    }
    return i;
}

static void print_kinds(const struct mx8_manifest *m) {
    struct {
        int64_t tensors, elements, bytes;
        int32_t dtype, mixed;
    } sum[KINDS] = {{0}};
    char a[32], b[32], c[32];
    for (int64_t i = 0; i < m->n_tensors; i++) {
        const struct mx8_stored_tensor *t = &m->tensor[i];
        size_t k = find_kind(t->name);
        if (sum[k].tensors && sum[k].dtype != t->dtype) sum[k].mixed = 1;
        sum[k].dtype = t->dtype;
        sum[k].tensors++;
        sum[k].elements += t->count;
        sum[k].bytes += t->count * (int64_t)mx8_get_dtype_size(t->dtype);
    }
    printf("  tensors    %s\n", mx8i_format_count(a, m->n_tensors));
    for (size_t r = 0; r < KINDS; r++) {
        size_t k = (r + KINDS - 1) % KINDS; /* weights first */
        if (!sum[k].tensors) continue;
        printf("    %-14s %6s  %14s elements  %-5s %16s bytes\n", kinds[k].what, mx8i_format_count(a, sum[k].tensors),
            mx8i_format_count(b, sum[k].elements), sum[k].mixed ? "mixed" : mx8_get_dtype_name(sum[k].dtype),
            mx8i_format_count(c, sum[k].bytes));
    }
}

static void print_tensors(const struct mx8_manifest *m) {
    char shape[64];
    int64_t at = 0;
    for (int64_t i = 0; i < m->n_tensors; i++) {
        const struct mx8_stored_tensor *t = &m->tensor[i];
        int64_t pieces = 0;
        for (; at < m->n_pieces && m->piece[at].tensor == i; at++) pieces++; /* sorted by tensor */
        printf("    %-5s %-20s %s", mx8_get_dtype_name(t->dtype), mx8i_format_shape(shape, t->ndim, t->shape), t->name);
        if (pieces != 1) printf("  in %lld pieces", (long long)pieces);
        putchar('\n');
    }
}

static void print_fact(const struct mx8_manifest *m, const char *label, const char *key) {
    const char *value = mx8i_get_fact(&m->job, key);
    if (value) printf("  %-10s %s\n", label, value);
}

static void print_head(const char *path, const struct mx8_manifest *m) {
    const struct mx8_progress *p = &m->progress;
    char a[32], b[32];
    printf("%s\n", path);
    printf("  holds      %s after step %s\n",
        m->kind == MX8_CHECKPOINT_MODEL ? "weights alone, which cannot be resumed," : "the full state",
        mx8i_format_count(a, p->step));
    printf("  stands at  %s samples read, %s updates of AdamW", mx8i_format_count(a, p->position),
        mx8i_format_count(b, p->updates));
    if (p->schedule_step != p->step) printf(", step %s of the schedule", mx8i_format_count(a, p->schedule_step));
    printf("\n  written    by %lld process%s\n", (long long)m->ranks, m->ranks == 1 ? "" : "es");
    print_fact(m, "recipe", "recipe");
    print_fact(m, "data", "data");
    print_kinds(m);
}

static void print_files(const struct mx8_manifest *m, int verified) {
    char a[32];
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->n_files; i++) bytes += m->file[i].size;
    printf("  files      %lld, %s bytes: %s\n", (long long)m->n_files, mx8i_format_count(a, bytes),
        verified ? "whole, their SHA-256 sums are the manifest's"
                 : "their sizes are the manifest's, their sums not looked at");
    for (int64_t i = 0; i < m->n_files; i++)
        printf("    %-32s %16s bytes  sha256 %.16s...\n", m->file[i].name, mx8i_format_count(a, m->file[i].size),
            m->file[i].sha256);
}

static enum mx8_status inspect_one(const char *path, const struct mx8_inspection *how) {
    struct mx8_checkpoint c;
    struct mx8_manifest head;
    MX8_TRY(mx8i_read_checkpoint_head(path, &head));
    print_head(path, &head);
    if (how->tensors) print_tensors(&head);
    mx8i_free_manifest(&head);
    fflush(stdout);
    MX8_TRY(mx8i_open_checkpoint(path, how->verify, &c));
    print_files(&c.manifest, how->verify);
    mx8i_close_checkpoint(&c);
    return MX8_OK;
}

static int has_checkpoint_manifest(const char *path) {
    char *name = mx8i_format_text("%s/" MX8_MANIFEST_NAME, path), *text = NULL;
    size_t size;
    int found = name && mx8i_is_file(name) && mx8i_read_file(name, MAX_MANIFEST, &text, &size) == MX8_OK &&
                strstr(text, "\"mx8 checkpoint\"");
    mx8i_release(text);
    mx8i_release(name);
    return found;
}

int mx8i_inspect_checkpoint(const char *path, const struct mx8_inspection *how, enum mx8_status *status) {
    int64_t *steps, count;
    *status = MX8_OK;
    if (has_checkpoint_manifest(path)) {
        *status = inspect_one(path, how);
        return 1;
    }
    if (mx8i_list_checkpoints(path, &steps, &count) != MX8_OK) return 0;
    for (int64_t i = 0; i < count && *status == MX8_OK; i++) { /* a run's folder of them */
        char *one = mx8i_make_step_path(path, steps[i]);
        if (i > 0) putchar('\n');
        *status = one ? inspect_one(one, how) : MX8_OUT_OF_MEMORY;
        mx8i_release(one);
    }
    mx8i_release(steps);
    return count > 0;
}
