/* The processes of a job as a grid, replicate x shard, and the groups in it that communicate. Expert parallelism takes
 * neighbours inside a shard group, as torchtitan does: of S ranks that share the weights, E neighbours hold different
 * experts, and S / E ranks share each of those. */
#ifndef MX8_DIST_DIST_H
#define MX8_DIST_DIST_H

#include "dist/comm.h"

struct mx8_grid { int32_t world, rank, replicate, shard, expert; }; /* degrees; world = replicate * shard */

enum mx8_group {
    MX8_GROUP_WORLD,        /* every rank */
    MX8_GROUP_SHARD,        /* shares the dense weights */
    MX8_GROUP_REPLICATE,    /* holds the same shards */
    MX8_GROUP_EXPERT,       /* exchanges tokens: each rank has other experts */
    MX8_GROUP_EXPERT_SHARD, /* shares the same experts' weights */
    MX8_GROUP_COUNT
};

/* Which process this is, from the launcher's variables (mpirun, srun, torchrun); one process without any. */
struct mx8_launch { int32_t rank, size, local_rank; const char *variable; /* the one that gave the size; NULL: none */ };
enum mx8_status mx8i_find_launch(struct mx8_launch *out);

/* shard -1: world / replicate. Errors name the option and say what would fit. */
enum mx8_status mx8i_make_grid(int32_t world, int32_t rank, int64_t replicate, int64_t shard, int64_t expert,
                               struct mx8_grid *out);
/* World ranks of this rank's group, rising; room for grid->world of them. Returns how many; *own: the rank's index. */
int32_t mx8i_list_group(const struct mx8_grid *grid, enum mx8_group group, int32_t *members, int32_t *own);

struct mx8_dist {
    struct mx8_grid grid;
    struct mx8_comm host;                     /* every rank, host memory */
    struct mx8_comm group[MX8_GROUP_COUNT];   /* the kernels' memory; WORLD is not used for data */
    struct mx8_traffic traffic;
};

/* Joins the launcher's processes: MPI for more than one. All ranks are there when it returns. */
enum mx8_status mx8i_open_dist(const struct mx8_launch *launch, double timeout, struct mx8_dist *out);
/* The grid's groups, for kernels on the CPU (device -1) or on a CUDA device and stream. */
enum mx8_status mx8i_open_groups(struct mx8_dist *d, const struct mx8_grid *grid, int32_t device, void *stream,
                                 double timeout);
/* A grid that cannot communicate: memory and traffic of any number of ranks can be planned with it. */
void mx8i_imagine_dist(const struct mx8_grid *grid, struct mx8_dist *out);
void mx8i_set_dist_timeout(struct mx8_dist *d, double seconds);
void mx8i_close_dist(struct mx8_dist *d);
/* After a failure was printed: ends the other ranks too. Returns when there is one process. */
void mx8i_abort_dist(struct mx8_dist *d, int code);

/* ---- small things in host memory, all ranks; they wait ---- */
/* all: size entries of `bytes`; this rank's own is filled in already. */
enum mx8_status mx8i_gather_entries(struct mx8_comm *c, void *all, size_t bytes);
/* Sums in order of rank. */
enum mx8_status mx8i_sum_doubles(struct mx8_comm *c, double *values, int64_t n);
enum mx8_status mx8i_sum_over_shards(struct mx8_dist *d, double *value); /* of this rank's replica */
enum mx8_status mx8i_sum_integers(struct mx8_comm *c, int64_t *values, int64_t n);
enum mx8_status mx8i_find_least(struct mx8_comm *c, int64_t *value);
enum mx8_status mx8i_broadcast(struct mx8_comm *c, void *data, size_t bytes, int32_t from);
enum mx8_status mx8i_barrier(struct mx8_comm *c);
/* In the kernels' memory: n floats become their sum over the ranks, in pieces that the scratch has room for: at least
 * two floats for each of the other ranks. */
enum mx8_status mx8i_sum_floats(struct mx8_comm *c, float *values, size_t n, void *scratch, size_t scratch_bytes);

int64_t mx8i_count_sum_bytes(const struct mx8_comm *c, size_t n, size_t scratch_bytes); /* that it sends from here */

/* ---- split.c: where shards begin ---- */
/* One tensor of a segment: `count` elements from `at`, divisible every `granule` (whole MX blocks of rows). */
struct mx8_run_of { size_t at, count, granule; };
/* cut[0 .. parts]: the segment [0, size) in `parts` ranges, as even as the granules allow. Runs in rising order; what lies
 * between two of them goes to the first. */
void mx8i_split(const struct mx8_run_of *run, int64_t runs, size_t size, int32_t parts, size_t *cut);

#endif
