/* The bytes of one file, decompressed if need be. */
#ifndef MX8_TRAIN_CORPUS_STREAM_H
#define MX8_TRAIN_CORPUS_STREAM_H

#include "base/file.h"

enum mx8_compression { MX8_PLAIN, MX8_GZIP, MX8_ZSTD };

struct mx8_stream {
    const char *path; /* borrowed, for messages */
    struct mx8_map map;
    size_t used; /* bytes of the map that are consumed */
    enum mx8_compression compression;
    void *decoder;
    int32_t inside; /* a compressed member has begun and not ended */
};

enum mx8_status mx8i_open_stream(const char *path, struct mx8_stream *s);
void mx8i_close_stream(struct mx8_stream *s);
/* Up to `size` bytes; *got is 0 only at the end. */
enum mx8_status mx8i_read_stream(struct mx8_stream *s, void *out, size_t size, size_t *got);

#endif
