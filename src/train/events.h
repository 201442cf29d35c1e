/* TensorBoard's event files: TFRecord frames around hand-encoded protobuf messages (tensorflow's event.proto and
 * summary.proto, the few fields that a scalar needs). */
#ifndef MX8_TRAIN_EVENTS_H
#define MX8_TRAIN_EVENTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "mx8/status.h"

struct mx8_scalar {
    const char *tag;
    double value; /* stored as a float; one that is not finite is stored as it is */
};

struct mx8_events {
    FILE *file;
    char *path;
};

/* Creates folder and in it events.out.tfevents.TIME.HOST.PID.0, which begins with the format's version and comes after
 * the files that are there. first_step > 0: events of that step and later ones in those files hold no longer, which is
 * how TensorBoard is told of a run that went back to a checkpoint. */
enum mx8_status mx8i_open_events(const char *folder, int64_t first_step, struct mx8_events *out);
/* All scalars of a step as one event, on disk before this returns. At most 64 of them, tags of at most 127 bytes. */
enum mx8_status mx8i_write_events(struct mx8_events *e, int64_t step, const struct mx8_scalar *scalars, int n);
void mx8i_close_events(struct mx8_events *e);

/* The pieces, for tests. CRC-32C (Castagnoli), and the form of it that TFRecord stores. */
uint32_t mx8i_compute_crc32c(const void *data, size_t size);
uint32_t mx8i_mask_crc32c(uint32_t crc);
/* length (8), masked CRC of those 8 bytes (4), data, masked CRC of data (4): size + 16 bytes to `out`. */
void mx8i_frame_record(uint8_t *out, const void *data, size_t size);

#endif
