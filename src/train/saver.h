/* Saves checkpoints while a run trains: at once, or as a copy in host memory that a thread writes meanwhile. */
#ifndef MX8_TRAIN_SAVER_H
#define MX8_TRAIN_SAVER_H

#include "train/checkpoint_store.h"

struct mx8_saver_options {
    const struct mx8_store *store; /* borrowed, as all pointers here */
    const struct mx8_exec *x;      /* of the device that the state lies on */
    const struct mx8_log *log;
    const char *metrics_path; /* on disk before a checkpoint gets its name: no step without its line; may be NULL */
    int64_t keep;
    size_t shard_bytes;
    size_t snapshot_bytes; /* host memory for the copy; 0: every save is written at once */
};

struct mx8_saver; /* train/saver.c */

enum mx8_status mx8i_open_saver(const struct mx8_saver_options *o, struct mx8_saver **out);
/* Takes over state and manifest in every case. Waits for the save before and gives its failure, if any, instead of
 * saving. With `background`, returns as soon as the copy is made. A failure leaves the checkpoints that are there as they
 * are and says which is the newest. */
enum mx8_status mx8i_save_checkpoint(
    struct mx8_saver *s, struct mx8_state *state, struct mx8_manifest *manifest, int32_t background);
/* Reports a background save that has ended since: a log line, or its failure. Does not wait. */
enum mx8_status mx8i_poll_saver(struct mx8_saver *s);
enum mx8_status mx8i_wait_for_saver(struct mx8_saver *s);
int64_t mx8i_get_saved_step(const struct mx8_saver *s); /* the last that is known to be complete; -1: none yet */
void mx8i_close_saver(struct mx8_saver *s);             /* waits; a failure is not told: see wait */

#endif
