/* What the loop does differently with several processes; with one, all of this returns at once. */
#ifndef MX8_TRAIN_PARALLEL_H
#define MX8_TRAIN_PARALLEL_H

#include "train/run.h"

/* Degrees and timeouts, for the process that the launch says. */
enum mx8_status mx8i_resolve_parallel(
    const struct mx8_options *o, const struct mx8_launch *launch, struct mx8_job *job);
/* Processes of the job: each reads its own rows of a step. */
int64_t mx8i_count_ranks(const struct mx8_job *job);
/* Only the first rank says and writes what is the same for all of them. */
int mx8i_is_first_rank(const struct mx8_job *job);

/* Before weights are made: every rank must have the same options, version and data. The error names what differs. */
enum mx8_status mx8i_check_agreement(struct mx8_run *r);
/* After the last microbatch: gradients, loss and expert counts become those of all ranks; ranks agree on stopping; a rank
 * that is ten times slower than the others is an error. began: of the step; waited: mx8i_get_waited then. */
enum mx8_status mx8i_join_step(struct mx8_run *r, struct mx8_step *s, double began, double waited);
double mx8i_get_waited(const struct mx8_run *r);
/* Values clipped by all ranks. */
enum mx8_status mx8i_join_saturated(struct mx8_run *r, struct mx8_step *s);
/* Every rank's pieces as one checkpoint: all of it or nothing, and the same answer on every rank. */
struct mx8_state;
struct mx8_manifest;
enum mx8_status mx8i_save_together(struct mx8_run *r, struct mx8_state *state, struct mx8_manifest *manifest);
/* Whether to stop before the next step: the same answer on every rank. */
int mx8i_should_stop(struct mx8_run *r);

#endif
