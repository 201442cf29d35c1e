/* The folder that holds a run's checkpoints: FOLDER/step-N. A checkpoint is written under a name that nothing looks at
 * and renamed when all of it is on disk; one that goes is renamed before it is removed. So whatever kills the process,
 * every step-N is whole, and the newest is found by looking, not by a pointer that could lie. One process at a time. */
#ifndef MX8_TRAIN_CHECKPOINT_STORE_H
#define MX8_TRAIN_CHECKPOINT_STORE_H

#include "base/log.h"
#include "train/checkpoint.h"

struct mx8_store {
    char *folder; /* NULL: not open */
    int lock;
};

/* FOLDER/step-N; release with mx8i_release. */
char *mx8i_make_step_path(const char *folder, int64_t step);
/* Steps of the checkpoints in the folder (those with a manifest, whatever it says), ascending; a folder that is not
 * there has none. Release with mx8i_release. */
enum mx8_status mx8i_list_checkpoints(const char *folder, int64_t **steps, int64_t *count);

/* Makes the folder, takes it for this process, and removes what killed processes left half written or half removed. */
enum mx8_status mx8i_open_store(const char *folder, struct mx8_store *out);
void mx8i_close_store(struct mx8_store *s);
/* An empty folder to write a checkpoint into. Release *path with mx8i_release. */
enum mx8_status mx8i_begin_checkpoint(const struct mx8_store *s, int64_t step, char **path);
/* Gives it its name. A folder that has the name already is set aside. */
enum mx8_status mx8i_publish_checkpoint(const struct mx8_store *s, const char *path, int64_t step);
/* Renames step-N to step-N.WHY, or step-N.WHY-2, ...: kept for people, no longer found. */
enum mx8_status mx8i_set_aside(const struct mx8_store *s, int64_t step, const char *why);
/* Removes the oldest checkpoints until `keep` are left; 0 keeps all. */
enum mx8_status mx8i_prune_store(const struct mx8_store *s, int64_t keep);

#endif
