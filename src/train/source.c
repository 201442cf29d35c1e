/* Opening a source by its kind, and the source that needs no files. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "train/source.h"

/* Random tokens have no end; this many make one pass. */
#define RANDOM_TOTAL ((int64_t)1 << 48)

static enum mx8_status read_random(const struct mx8_source *s, int64_t at, int64_t n, int32_t *out) {
    uint64_t stream = mx8i_hash_text("random tokens");
    uint32_t words[4] = {0};
    for (int64_t i = 0; i < n; i++) {
        uint64_t index = (uint64_t)(at + i);
        if (i == 0 || index % 4 == 0) mx8i_philox(s->seed, stream, index / 4, words);
        out[i] = (int32_t)((uint64_t)words[index % 4] * (uint64_t)s->vocab_size >> 32);
    }
    return MX8_OK;
}

static enum mx8_status open_random(struct mx8_source *s) {
    s->total = RANDOM_TOTAL;
    s->read = read_random;
    s->ids.document_end = MX8_EOS;
    s->description =
        mx8i_format_text("random tokens below %lld, seed %llu", (long long)s->vocab_size, (unsigned long long)s->seed);
    return MX8_OK;
}

static enum mx8_status open_kind(struct mx8_source *s) {
    const char *dataset = s->options->dataset, *name = s->options->name;
    if (!strcmp(dataset, "random")) return open_random(s);
    if (!mx8i_is_folder(s->path) && !mx8i_is_file(s->path))
        return MX8_FAIL(MX8_IO_ERROR,
            "%s: no such file or folder; %s must be text files or token shards, or several of them as "
            "PATH=WEIGHT,PATH=WEIGHT",
            s->path, name ? name : "training.dataset_path");
    int shards = !strcmp(dataset, "shards") || (!strcmp(dataset, "auto") && mx8i_looks_like_shards(s->path));
    return shards ? mx8i_open_shards(s) : mx8i_open_text(s);
}

enum mx8_status mx8i_open_source(
    const struct mx8_data_options *o, const char *path, struct mx8_data_files *files, struct mx8_source *out) {
    *out = (struct mx8_source){.options = o,
        .files = files,
        .vocab_size = o->vocab_size,
        .seed = o->seed,
        .ids = {.document_end = -1},
        .path = mx8i_copy_text(path)};
    if (!out->path) return MX8_OUT_OF_MEMORY;
    MX8_TRY(open_kind(out));
    out->options = NULL;
    return out->description ? MX8_OK : MX8_OUT_OF_MEMORY;
}

void mx8i_close_source(struct mx8_source *s) {
    for (int64_t i = 0; i < s->n_parts; i++) mx8i_release(s->part[i].bytes);
    mx8i_release(s->part);
    mx8i_release(s->description);
    mx8i_release(s->path);
    *s = (struct mx8_source){0};
}

/* ---- files as parts of a stream ---- */

enum mx8_status mx8i_add_data_parts(struct mx8_source *s, const char *suffix,
    enum mx8_status (*add)(struct mx8_source *s, const char *path, struct mx8_data_part *p), int64_t *n_files) {
    char **paths;
    MX8_TRY(mx8i_list_files(s->path, suffix, &paths, n_files));
    s->part = mx8i_allocate((size_t)*n_files * sizeof *s->part, "the table of data files");
    enum mx8_status status = s->part ? MX8_OK : MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < *n_files && status == MX8_OK && !s->full; i++) {
        struct mx8_data_part part = {0};
        status = mx8i_add_data_file(s->files, paths[i], &part.file);
        if (status == MX8_OK) status = add(s, paths[i], &part);
    }
    mx8i_release_list(paths, *n_files);
    return status;
}

void mx8i_append_data_part(struct mx8_source *s, const struct mx8_data_part *p) {
    s->part[s->n_parts] = *p;
    s->part[s->n_parts++].start = s->total;
    s->total += p->count;
}

const struct mx8_data_part *mx8i_find_data_part(const struct mx8_source *s, int64_t at) {
    int64_t low = 0, high = s->n_parts - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (s->part[middle].start <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return &s->part[low];
}

/* In place, from the front: the int32 that is written never reaches a token that is still to be read. */
void mx8i_widen_tokens(int32_t *out, int64_t n, int32_t width) {
    const uint8_t *from = (const uint8_t *)(out + n) - n * width;
    for (int64_t i = 0; i < n; i++) {
        uint32_t wide;
        uint16_t narrow;
        if (width == 4) {
            memcpy(&wide, from + 4 * i, sizeof wide);
        } else if (width == 2) {
            memcpy(&narrow, from + 2 * i, sizeof narrow);
            wide = narrow;
        } else {
            wide = from[i];
        }
        memcpy(&out[i], &wide, sizeof wide);
    }
}
