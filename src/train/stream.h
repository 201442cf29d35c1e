/* The kinds of data behind mx8i_read_sample: each is a stream of `total` tokens that can be read anywhere. */
#ifndef MX8_TRAIN_STREAM_H
#define MX8_TRAIN_STREAM_H

#include "base/file.h"
#include "train/data.h"

/* A file of the text stream: BOS, its bytes, EOS. Small files live on the heap, large ones are mapped. */
struct mx8_text_file {
    const uint8_t *bytes;
    int64_t size, start;
    struct mx8_map map;
};
struct mx8_text {
    struct mx8_text_file *file;
    int64_t count;
};

/* A token shard: `width` bytes a token, little-endian. */
struct mx8_shard {
    const uint8_t *tokens;
    int64_t count, start;
    int32_t width;
    struct mx8_map map;
    char *path;
};
struct mx8_shards {
    struct mx8_shard *shard;
    int64_t count;
};

struct mx8_data {
    int64_t seq_len, vocab_size, total;
    uint64_t seed;
    char *description, *path;
    int32_t *sample; /* seq_len + 1 tokens */
    struct mx8_text text;
    struct mx8_shards shards;
    /* tokens [at, at + n) of the stream, at + n <= total */
    enum mx8_status (*read)(const struct mx8_data *d, int64_t at, int64_t n, int32_t *out);
};

enum mx8_status mx8i_open_text(struct mx8_data *d, int64_t max_bytes);
void mx8i_close_text(struct mx8_text *t);
enum mx8_status mx8i_open_shards(struct mx8_data *d);
void mx8i_close_shards(struct mx8_shards *s);
/* One shard by itself, its header checked; close it in every case but failure. */
enum mx8_status mx8i_open_shard(const char *path, struct mx8_shard *s);
void mx8i_close_shard(struct mx8_shard *s);
int64_t mx8i_load_token(const struct mx8_shard *s, int64_t index);
/* Whether path is a shard, or a folder that holds any (*.bin). */
int mx8i_looks_like_shards(const char *path);

#endif
