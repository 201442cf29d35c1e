/* The sources behind mx8i_read_sample: each is a stream of `total` tokens that can be read anywhere. */
#ifndef MX8_TRAIN_SOURCE_H
#define MX8_TRAIN_SOURCE_H

#include "base/file.h"
#include "train/data.h"
#include "train/data_file.h"

/* A file's share of the stream: tokens [start, start + count). */
struct mx8_data_part {
    int64_t start, count;
    int64_t file;       /* in the table of files, unless `bytes` holds it */
    int64_t offset;     /* of a shard's first token, in bytes */
    int32_t width;      /* bytes a token, little-endian */
    uint8_t *bytes;     /* a small text, on the heap */
};

/* What made a source's ids. Ids of different tokenizers are never mixed. */
struct mx8_ids {
    char tokenizer[72];   /* "bytes", or the SHA-256 of its file; "" unknown */
    int64_t vocabulary;   /* ids are below this; 0: unknown */
    int64_t document_end; /* < 0: unknown */
    int32_t incomplete;   /* the corpus has not been read to its end */
};

struct mx8_source {
    const struct mx8_data_options *options; /* while it is opened */
    struct mx8_data_files *files;           /* of all sources */
    int64_t total, vocab_size;
    uint64_t seed;
    struct mx8_ids ids;
    char *path, *description;
    struct mx8_data_part *part; /* in the stream's order */
    int64_t n_parts;
    int full;       /* no more files are wanted */
    int in_folder;  /* text: files were not named one by one */
    int64_t binary; /* of them, left out because they are no text */
    int vouched;    /* a manifest says what made the shards of the folder at hand */
    /* tokens [at, at + n) of the stream, at + n <= total */
    enum mx8_status (*read)(const struct mx8_source *s, int64_t at, int64_t n, int32_t *out);
};

/* path is copied; `files` outlives the stream. Close it in every case. */
enum mx8_status mx8i_open_source(
    const struct mx8_data_options *o, const char *path, struct mx8_data_files *files, struct mx8_source *out);
void mx8i_close_source(struct mx8_source *s);
enum mx8_status mx8i_open_text(struct mx8_source *s);
enum mx8_status mx8i_open_shards(struct mx8_source *s);
/* Calls add for every file at s->path, in the byte order of their paths; it fills *p and adds it by mx8i_append_data_part, or
 * leaves the file out. suffix NULL: of files of any name. *n_files: how many there were. */
enum mx8_status mx8i_add_data_parts(struct mx8_source *s, const char *suffix,
    enum mx8_status (*add)(struct mx8_source *s, const char *path, struct mx8_data_part *p), int64_t *n_files);
void mx8i_append_data_part(struct mx8_source *s, const struct mx8_data_part *p); /* sets its start */
/* The part that holds token `at`. */
const struct mx8_data_part *mx8i_find_data_part(const struct mx8_source *s, int64_t at);
/* Turns n tokens of `width` bytes that lie at the end of out's n int32 into n int32. */
void mx8i_widen_tokens(int32_t *out, int64_t n, int32_t width);

/* What manifest.json in `folder` says, if there is one that `mx8 tokenize` wrote (*found). Every shard that it lists, or
 * the one named `only`, must be there with the size it lists. */
enum mx8_status mx8i_read_manifest(const char *folder, const char *only, int *found, struct mx8_ids *out);

/* That of the folder that a shard lies in. alone: the other shards do not matter. */
enum mx8_status mx8i_read_shard_ids(const char *path, int alone, int *found, struct mx8_ids *out);

/* One shard by itself, mapped, its header checked; close it in every case but failure. For the tools that look at
 * shards: they read all of it at once. */
struct mx8_shard {
    const uint8_t *tokens;
    int64_t count;
    int32_t width;
    struct mx8_map map;
    char *path;
};
enum mx8_status mx8i_open_shard(const char *path, struct mx8_shard *s);
void mx8i_close_shard(struct mx8_shard *s);
int64_t mx8i_load_token(const struct mx8_shard *s, int64_t index);
/* Whether path is a shard, or a folder that holds any (*.bin). */
int mx8i_looks_like_shards(const char *path);

#endif
