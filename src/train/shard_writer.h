/* Token shards as llm.c reads them, in a folder of their own: tokens_000000.bin, tokens_000001.bin, ..., manifest.json.
 * A shard is a header of 256 int32 {magic, version, count, 0 ...} and the tokens: magic 20240801, version 7 for uint32;
 * 20240520, version 1 for uint16. A document is never cut: a shard ends with the one that fills it.
 *
 * Every file is written beside and renamed, and the manifest is renewed after each shard. Opening the same folder again
 * with the same `made_from` keeps the finished shards whose size and SHA-256 are those of the manifest. */
#ifndef MX8_TRAIN_SHARD_WRITER_H
#define MX8_TRAIN_SHARD_WRITER_H

#include <jansson.h>
#include <stdint.h>
#include "mx8/status.h"

/* What a shard, or all of them, hold. */
struct mx8_shard_counts {
    int64_t tokens, documents;
    int64_t records;    /* of the corpus, those without text too */
    int64_t text_bytes; /* that the tokens stand for */
    int64_t replaced;   /* invalid UTF-8 sequences */
};

struct mx8_shard_options {
    const char *folder;
    int32_t width;           /* bytes a token: 2 or 4 */
    int64_t shard_tokens;    /* a shard is full from so many on */
    int32_t overwrite;       /* begin anew, whatever an earlier run left */
    const json_t *made_from; /* an object: tokenizer, options, inputs; a run with another does not go on */
};

struct mx8_shard_writer;

enum mx8_status mx8i_open_shard_writer(const struct mx8_shard_options *options, struct mx8_shard_writer **out);
/* Closes; an unfinished shard is dropped. */
void mx8i_close_shard_writer(struct mx8_shard_writer *w);
/* A document's tokens and what it counts for (tokens and documents are counted here). count 0: no document, but its
 * record counts. */
enum mx8_status mx8i_append_document(
    struct mx8_shard_writer *w, const int32_t *tokens, int64_t count, const struct mx8_shard_counts *counts);
/* Ends the last shard and marks the manifest complete. */
enum mx8_status mx8i_finish_shards(struct mx8_shard_writer *w);

int64_t mx8i_count_shards(const struct mx8_shard_writer *w);               /* finished ones */
int mx8i_is_complete(const struct mx8_shard_writer *w);                    /* an earlier run has finished all */
struct mx8_shard_counts mx8i_sum_shards(const struct mx8_shard_writer *w); /* finished ones, and the one at hand */

#endif
