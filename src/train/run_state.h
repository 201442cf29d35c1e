/* A run's persistent state: as a list for checkpoints, out of one, and into one. */
#ifndef MX8_TRAIN_RUN_STATE_H
#define MX8_TRAIN_RUN_STATE_H

#include "train/checkpoint.h"
#include "train/run.h"

#define MX8_HISTORY_LOSSES "history.losses"

/* Every persistent array of the run, with names of torchtitan's kind. MODEL: weights (in checkpoint.export_dtype) and
 * buffers alone. without: enum mx8_exclude, left out. The pointers hold as long as the run, until its next step. */
enum mx8_status mx8i_describe_state(
    struct mx8_run *r, enum mx8_checkpoint_kind kind, int32_t without, struct mx8_state *out);

/* ---- resume.c ---- */
/* Gives the run its weights and says where it stands: from its folder's newest checkpoint (or checkpoint.load_step), else
 * from checkpoint.initial_load_path, else from the seed. */
enum mx8_status mx8i_start_state(struct mx8_run *r);

/* ---- save.c ---- */
/* Opens the folder of checkpoints, when they are asked for. */
enum mx8_status mx8i_start_saving(struct mx8_run *r);
/* After a step that is done: saves when it is time to, and reports background saves. */
enum mx8_status mx8i_save_step(struct mx8_run *r, const struct mx8_step *s);
/* When training has ended: saves the last step if it is not saved yet, and waits. */
enum mx8_status mx8i_save_last(struct mx8_run *r, struct mx8_summary *out);

/* ---- export.c ---- */
/* checkpoint.last_save_in_hf: the saved last step as dump_folder/hf/step-N, beside what is there already. */
enum mx8_status mx8i_export_last(struct mx8_run *r);

#endif
