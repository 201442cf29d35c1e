/* Samples from a stream of tokens. Sample p is the stream's tokens [p (S+1), (p+1) (S+1)), wrapping at its end: as in
 * torchtitan the last token of a sample is a target only and is not seen again, and a document may span samples. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "train/stream.h"

/* Random tokens have no end; this many make one pass. */
#define RANDOM_TOTAL ((int64_t)1 << 48)

static enum mx8_status read_random(const struct mx8_data *d, int64_t at, int64_t n, int32_t *out) {
    uint64_t stream = mx8i_hash_text("random tokens");
    uint32_t words[4] = {0};
    for (int64_t i = 0; i < n; i++) {
        uint64_t index = (uint64_t)(at + i);
        if (i == 0 || index % 4 == 0) mx8i_philox(d->seed, stream, index / 4, words);
        out[i] = (int32_t)((uint64_t)words[index % 4] * (uint64_t)d->vocab_size >> 32);
    }
    return MX8_OK;
}

static enum mx8_status open_random(struct mx8_data *d) {
    d->total = RANDOM_TOTAL;
    d->read = read_random;
    d->description =
        mx8i_format_text("random tokens below %lld, seed %llu", (long long)d->vocab_size, (unsigned long long)d->seed);
    return MX8_OK;
}

static enum mx8_status open_stream(struct mx8_data *d, const char *dataset, int64_t max_bytes) {
    if (!strcmp(dataset, "random")) return open_random(d);
    if (!mx8i_is_folder(d->path) && !mx8i_is_file(d->path))
        return MX8_FAIL(MX8_IO_ERROR,
            "%s: no such file or folder; training.dataset_path must be text files or token shards", d->path);
    int shards = !strcmp(dataset, "shards") || (!strcmp(dataset, "auto") && mx8i_looks_like_shards(d->path));
    return shards ? mx8i_open_shards(d) : mx8i_open_text(d, max_bytes);
}

enum mx8_status mx8i_open_data(const char *dataset, const char *path, int64_t max_bytes, int64_t seq_len,
    int64_t vocab_size, uint64_t seed, struct mx8_data **out) {
    *out = NULL;
    if (seq_len < 1 || vocab_size < 1 || vocab_size > INT32_MAX)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "mx8i_open_data: sequence length %lld, vocabulary %lld, expected at least 1", (long long)seq_len,
            (long long)vocab_size);
    struct mx8_data *d = mx8i_allocate(sizeof *d, "data");
    if (!d) return MX8_OUT_OF_MEMORY;
    d->seq_len = seq_len;
    d->vocab_size = vocab_size;
    d->seed = seed;
    d->path = mx8i_copy_text(path ? path : "");
    d->sample = mx8i_allocate(((size_t)seq_len + 1) * sizeof *d->sample, "a sample");
    enum mx8_status status = d->path && d->sample ? open_stream(d, dataset, max_bytes) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK && !d->description) status = MX8_OUT_OF_MEMORY;
    if (status != MX8_OK) {
        mx8i_close_data(d);
        return status;
    }
    *out = d;
    return MX8_OK;
}

void mx8i_close_data(struct mx8_data *d) {
    if (!d) return;
    mx8i_close_text(&d->text);
    mx8i_close_shards(&d->shards);
    mx8i_release(d->description);
    mx8i_release(d->path);
    mx8i_release(d->sample);
    mx8i_release(d);
}

int64_t mx8i_count_tokens(const struct mx8_data *d) {
    return d->total;
}

const char *mx8i_describe_data(const struct mx8_data *d) {
    return d->description;
}

enum mx8_status mx8i_read_sample(
    struct mx8_data *d, int64_t position, int32_t *tokens, int32_t *targets, int32_t *docs) {
    int64_t length = d->seq_len + 1;
    if (position < 0 || position > INT64_MAX / length)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_read_sample: position %lld", (long long)position);
    int64_t at = position * length % d->total;
    for (int64_t done = 0; done < length;) {
        int64_t n = length - done < d->total - at ? length - done : d->total - at;
        MX8_TRY(d->read(d, at, n, d->sample + done));
        done += n;
        at = 0;
    }
    memcpy(tokens, d->sample, (size_t)d->seq_len * sizeof *tokens);
    memcpy(targets, d->sample + 1, (size_t)d->seq_len * sizeof *targets);
    if (!docs) return MX8_OK;
    int32_t doc = 0;
    for (int64_t i = 0; i < d->seq_len; i++) {
        docs[i] = doc;
        doc += tokens[i] == MX8_EOS;
    }
    return MX8_OK;
}
