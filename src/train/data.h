/* Training data: one or several streams of tokens, cut into samples of seq_len + 1, and one integer, the position, that
 * says which sample. What sample `position` holds depends on the options and the files alone, not on who asks, in which
 * order, or how many processes share the work; docs/data.md has the rules.
 * Sources: text files or folders (bytes 0..255, each file BOS bytes EOS, files sorted by path), token shards (llm.c
 * format, uint16 and uint32, bare too), "random" (uniform tokens from the seed; for benchmarks). */
#ifndef MX8_TRAIN_DATA_H
#define MX8_TRAIN_DATA_H

#include <stdint.h>
#include "mx8/status.h"
#include "base/log.h"

#define MX8_BOS 256
#define MX8_EOS 257

struct mx8_data; /* train/source.h */

struct mx8_data_options {
    const char *dataset;  /* "text", "shards", "random", or "auto" (by looking at each path) */
    const char *path;     /* PATH, or a mixture: PATH=WEIGHT,PATH=WEIGHT,...; not looked at when random */
    const char *name;     /* of the option that path came from, for messages; NULL: "training.dataset_path" */
    int64_t max_bytes;    /* > 0: most text that is read under each path */
    int64_t seq_len, vocab_size;
    int64_t document_end; /* id of the token that ends documents; < 0: the shards' manifest.json says, else MX8_EOS */
    uint64_t seed;        /* of the shuffle, and of random tokens */
    int32_t shuffle;      /* the samples of each pass in an order of their own */
};

/* Errors: a missing path, an empty corpus, a token or a tokenizer's vocabulary beyond vocab_size (file named), a shard
 * header or a manifest that lies, sources of different tokenizers, weights that are none. */
enum mx8_status mx8i_open_data(const struct mx8_data_options *o, struct mx8_data **out);
void mx8i_close_data(struct mx8_data *d);
int64_t mx8i_count_tokens(const struct mx8_data *d);    /* of one pass over every source */
int64_t mx8i_count_samples(const struct mx8_data *d);   /* whole samples in one pass over every source, at least 1 */
int64_t mx8i_get_sample_length(const struct mx8_data *d); /* seq_len */
const char *mx8i_describe_data(const struct mx8_data *d); /* "512 files, 6.1 MB of text under /usr/include" */
/* SHA-256 of everything that sample n depends on: names and sizes of files, weights, seed, shuffle, seq_len. Runs with
 * the same hash read the same samples at the same positions. */
const char *mx8i_get_data_hash(const struct mx8_data *d);
/* Sample `position` (0, 1, 2, ...; never ends, sources begin anew): tokens[seq_len], targets[seq_len], and document ids
 * docs[seq_len] (counting from 0 in the sample, next document after each end of one); docs may be NULL. Not for two
 * threads at once. A file that is cut, changed or gone since it was opened is an IO_ERROR with its name. */
enum mx8_status mx8i_read_sample(struct mx8_data *d, int64_t position, int32_t *tokens, int32_t *targets, int32_t *docs);

#endif
