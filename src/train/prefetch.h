/* Batches of consecutive samples, read ahead by a thread of their own while the model computes. The same batches come
 * without the thread; only the waiting differs. */
#ifndef MX8_TRAIN_PREFETCH_H
#define MX8_TRAIN_PREFETCH_H

#include <stddef.h>
#include "train/data.h"

struct mx8_prefetch_options {
    int64_t first;    /* sample of the first batch's first row */
    int64_t rows;     /* of a batch: samples at, at + 1, ... */
    int64_t stride;   /* from the first sample of a batch to that of the next; 0: rows */
    int32_t docs;     /* document ids are wanted, too */
    int32_t threaded; /* read one batch ahead */
};

/* (rows, seq_len) each, valid until the next call. */
struct mx8_batch {
    const int32_t *tokens, *targets, *docs; /* docs NULL unless wanted */
    int64_t position;                       /* sample of the first row */
};

struct mx8_prefetch;

/* Bytes of the arrays that mx8i_open_prefetch allocates. */
size_t mx8i_count_prefetch_bytes(const struct mx8_prefetch_options *o, int64_t seq_len);
/* From here to mx8i_close_prefetch no one else may read from d. */
enum mx8_status mx8i_open_prefetch(
    struct mx8_data *d, const struct mx8_prefetch_options *o, struct mx8_prefetch **out);
/* A batch that could not be read gives its error here, at the step that needs it, and again when asked for again. */
enum mx8_status mx8i_next_batch(struct mx8_prefetch *p, struct mx8_batch *out);
void mx8i_close_prefetch(struct mx8_prefetch *p); /* waits for at most one batch; accepts NULL */

#endif
