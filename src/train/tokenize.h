/* A corpus to token shards: documents are encoded side by side and written in the corpus' order, so that the shards do
 * not depend on the number of threads. A run that was stopped goes on after the last shard that it finished. */
#ifndef MX8_TRAIN_TOKENIZE_H
#define MX8_TRAIN_TOKENIZE_H

#include "base/log.h"
#include "train/corpus.h"
#include "train/shard_writer.h"
#include "train/tokenizer.h"

struct mx8_tokenize_progress {
    struct mx8_shard_counts counts; /* of all shards, kept ones too */
    int64_t shards, kept_shards;
    int64_t bytes_read, bytes_total; /* of the corpus, on disk */
    int64_t fresh_bytes;             /* text that this run encoded */
    double seconds;                  /* that this run took */
};

struct mx8_tokenize_options {
    const struct mx8_tokenizer *tokenizer;
    const char *const *paths;
    int64_t n_paths;
    enum mx8_corpus_format format;
    const char *field; /* of JSON lines */
    const char *folder;
    int32_t width; /* bytes a token */
    int64_t shard_tokens;
    int32_t without_bos;     /* a document is BOS, ids, EOS; BOS only where the tokenizer has one */
    int32_t special_as_text; /* what the tokenizer was opened with, for the manifest */
    const char *pattern;     /* likewise, NULL: none was given */
    int32_t overwrite;
    int (*is_stopping)(void);                                        /* NULL: never */
    void (*show)(void *user, const struct mx8_tokenize_progress *p); /* after each batch; NULL: silent */
    void *user;
    struct mx8_log log;
};

/* Threads are OpenMP's. MX8_INTERRUPTED when is_stopping said so: finished shards are there. */
enum mx8_status mx8i_tokenize_corpus(const struct mx8_tokenize_options *o, struct mx8_tokenize_progress *out);

#endif
