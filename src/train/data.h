/* Training data: an endless stream of tokens cut into samples of seq_len + 1, and one integer that says where we are.
 * Sources: text files or folders (bytes 0..255, each file BOS bytes EOS, files sorted by path), token shards (llm.c
 * format, uint16 and uint32, bare too), "random" (uniform tokens from the seed; for benchmarks). */
#ifndef MX8_TRAIN_DATA_H
#define MX8_TRAIN_DATA_H

#include <stdint.h>
#include "mx8/status.h"
#include "base/log.h"

#define MX8_BOS 256
#define MX8_EOS 257

struct mx8_data; /* train/data.c */

/* dataset: "text", "shards", "random", or "auto" (by looking at path). max_bytes > 0 stops reading text after that much.
 * Errors: a missing path, an empty corpus, a token >= vocab_size (file and position named), a shard header that lies. */
enum mx8_status mx8i_open_data(const char *dataset, const char *path, int64_t max_bytes, int64_t seq_len, int64_t vocab_size,
                               uint64_t seed, struct mx8_data **out);
void mx8i_close_data(struct mx8_data *d);
int64_t mx8i_count_tokens(const struct mx8_data *d);   /* of one pass */
const char *mx8i_describe_data(const struct mx8_data *d); /* "512 files, 6.1 MB of text under /usr/include" */
/* Sample `position` (0, 1, 2, ...; wraps around at the end of the corpus): tokens[seq_len], targets[seq_len], and document
 * ids docs[seq_len] (counting from 0 in the sample, next document after each EOS); docs may be NULL. */
enum mx8_status mx8i_read_sample(struct mx8_data *d, int64_t position, int32_t *tokens, int32_t *targets, int32_t *docs);

#endif
