/* What the train floor's tests share: folders that vanish, files in them, and jobs made from flags. */
#ifndef MX8_TESTS_TRAIN_JOB_TESTING_H
#define MX8_TESTS_TRAIN_JOB_TESTING_H

#include "test.h"
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>
#include "train/data.h"
#include "train/job.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

struct folder { char path[64]; };

static inline struct folder make_folder(void) {
    struct folder f = {"/tmp/mx8-train-XXXXXX"};
    if (!mkdtemp(f.path)) fail_msg("no temporary folder");
    return f;
}

static inline int remove_entry(const char *path, const struct stat *state, int type, struct FTW *place) {
    (void)state, (void)type, (void)place;
    return remove(path);
}

static inline void remove_folder(const struct folder *f) {
    nftw(f->path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Path of a file in the folder, in one of a few static buffers. */
static inline const char *in_folder(const struct folder *f, const char *name) {
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", f->path, name);
    return path;
}

static inline void write_file(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "w");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) fail_msg("%s cannot be written", path);
}

/* One source in its own order. */
static inline enum mx8_status open_data(const char *dataset, const char *path, int64_t max_bytes, int64_t seq_len,
    int64_t vocab_size, uint64_t seed, struct mx8_data **out) {
    struct mx8_data_options o = {.dataset = dataset,
        .path = path,
        .max_bytes = max_bytes,
        .seq_len = seq_len,
        .vocab_size = vocab_size,
        .document_end = -1,
        .seed = seed};
    return mx8i_open_data(&o, out);
}

/* Lines of a log, one after the other. */
struct lines { char text[32768]; size_t used; };

static inline void keep_line(void *user, const char *line) {
    struct lines *l = user;
    l->used += (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, "%s\n", line);
    if (l->used >= sizeof l->text) l->used = sizeof l->text - 1;
}

/* Options from flags; `flags` ends with NULL. */
static inline enum mx8_status parse(struct mx8_options *o, const char *const *flags) {
    int argc = 0, rest = 0;
    while (flags[argc]) argc++;
    assert_ok(mx8i_open_options(mx8i_option_table, mx8i_option_count, o));
    return mx8i_parse_flags(o, argc, (char **)(uintptr_t)flags, "job.config_file", NULL, &rest, 0);
}

#endif
