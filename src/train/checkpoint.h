/* Checkpoints: a folder that holds manifest.json and the safetensors files that the manifest lists, nothing else. The
 * manifest is written last, everything is on disk before the folder gets its name step-N, and nothing is believed that
 * does not match the manifest's sizes and SHA-256 sums: a checkpoint is whole or it is none. docs/checkpoints.md tells
 * the format; checkpoint_store.h keeps many of them in one folder.
 *
 * Writing and reading know only named flat tensors and pieces of them. A process writes the pieces that it holds into
 * files of its own, and reads any range of elements whichever files its parts lie in: so the number of processes may
 * differ between saving and loading. */
#ifndef MX8_TRAIN_CHECKPOINT_H
#define MX8_TRAIN_CHECKPOINT_H

#include "base/safetensors.h"
#include "kernels/kernels.h"

#define MX8_MANIFEST_NAME    "manifest.json"
#define MX8_MANIFEST_VERSION 1

/* ---- what is saved: this process' part of the persistent state ---- */

struct mx8_state_tensor {
    char *name;
    int32_t dtype, stored; /* in memory; in the file: the same, or BF16 for F32 */
    int32_t is_weight;     /* of the model: stands in the files that other tools read */
    int32_t may_round;     /* BF16 in memory may be loaded from F32, rounded to nearest */
    int32_t ndim;
    int64_t shape[3], count;
};

/* Elements [start, start + count) of a tensor, row-major. */
struct mx8_piece {
    int64_t tensor, start, count;
    void *data;      /* of the first element */
    int32_t on_host; /* 0: the context's device */
    int32_t common;  /* every process has it: the first one writes it */
};

struct mx8_state {
    struct mx8_state_tensor *tensor;
    struct mx8_piece *piece;
    int64_t n_tensors, n_pieces;
};

/* Appends a tensor (name is copied) and one piece that holds all of it. dtype is also what is stored. */
enum mx8_status mx8i_add_state(struct mx8_state *s, const char *name, int32_t dtype, int32_t ndim, const int64_t *shape,
    void *data, int32_t on_host);
/* The same with a piece that holds elements [start, start + count) alone; none when count is 0. */
enum mx8_status mx8i_add_state_part(struct mx8_state *s, const char *name, int32_t dtype, int32_t ndim,
    const int64_t *shape, void *data, int64_t start, int64_t count);
/* Leaves out the pieces that every process has, or the others: what this process need not write. */
void mx8i_drop_pieces(struct mx8_state *s, int32_t common);
void mx8i_free_state(struct mx8_state *s);
size_t mx8i_count_state_bytes(const struct mx8_state *s); /* of the pieces, in memory */
#define MX8_SNAPSHOT_ALIGNMENT 64
size_t mx8i_count_snapshot_bytes(const struct mx8_state *s); /* of a copy of all pieces, each aligned */

/* ---- what the folder says about itself ---- */

enum mx8_checkpoint_kind { MX8_CHECKPOINT_FULL, MX8_CHECKPOINT_MODEL }; /* MODEL: weights and buffers, no resuming */

struct mx8_fact { char *key, *value; };
struct mx8_facts { struct mx8_fact *fact; int64_t count; };

/* Appends a copy; mx8i_get_fact gives NULL for a key that is not there. */
enum mx8_status mx8i_add_fact(struct mx8_facts *f, const char *key, const char *value);
const char *mx8i_get_fact(const struct mx8_facts *f, const char *key);
void mx8i_free_facts(struct mx8_facts *f);

struct mx8_stored_file { char *name; int64_t size; char sha256[65]; };
struct mx8_stored_tensor { char *name; int32_t dtype, ndim; int64_t shape[8], count; };
struct mx8_stored_piece { int64_t tensor, file, start, count; };

/* Where a run stands. `step` steps are done; `position` samples of the data were read, over all processes; the learning
 * rate's schedule has taken schedule_step steps and AdamW `updates`. */
struct mx8_progress { int64_t step, position, schedule_step, updates; };

struct mx8_manifest {
    enum mx8_checkpoint_kind kind;
    struct mx8_progress progress;
    int64_t ranks; /* processes that wrote it */
    struct mx8_facts job;     /* what the job was made of: the facts that resuming compares */
    struct mx8_facts options; /* every option's text */
    struct mx8_stored_file *file;
    struct mx8_stored_tensor *tensor;
    struct mx8_stored_piece *piece; /* sorted by tensor and start */
    int64_t n_files, n_tensors, n_pieces;
};

void mx8i_free_manifest(struct mx8_manifest *m);
enum mx8_status mx8i_add_stored_file(struct mx8_manifest *m, const char *name, int64_t size, const char *sha256);
/* The tensor's index, added when its name is new; FORMAT_ERROR when it is there with another dtype or shape. */
enum mx8_status mx8i_add_stored_tensor(struct mx8_manifest *m, const struct mx8_stored_tensor *t, int64_t *index);
enum mx8_status mx8i_add_stored_piece(struct mx8_manifest *m, const struct mx8_stored_piece *p);
int64_t mx8i_find_stored_tensor(const struct mx8_manifest *m, const char *name); /* -1 */
/* Files, tensors and pieces of `from` (another process' part) are added to `into`. */
enum mx8_status mx8i_merge_manifest(struct mx8_manifest *into, const struct mx8_manifest *from);
void mx8i_sort_pieces(struct mx8_manifest *m); /* by tensor and start, as reading and printing expect them */
/* Sorts the pieces; the pieces of every tensor must cover it once. `where` begins the message. */
enum mx8_status mx8i_check_coverage(struct mx8_manifest *m, const char *where);

/* JSON with a checksum of itself: of a whole checkpoint, or of one process' part on its way to the one that merges.
 * `where` names the text in messages. Release *text with mx8i_release. */
enum mx8_status mx8i_print_manifest(const struct mx8_manifest *m, char **text);
enum mx8_status mx8i_parse_manifest(const char *text, size_t size, const char *where, struct mx8_manifest *out);

/* ---- writing ---- */

/* Writes this process' pieces into files of at most about max_bytes in `folder` and adds them to the manifest. When one
 * process holds everything, weights are in model.safetensors, or in model-NNNNN-of-NNNNN.safetensors with
 * model.safetensors.index.json, whole, with the architecture (the job's fact MX8_CONFIG_KEY) in the metadata, as other
 * tools expect them. The rest, and everything of many processes, is in state-RRRR-NNNN.safetensors. Every file is on disk
 * when the call returns. x: of the device that pieces lie on; may be NULL when all are on the host. */
enum mx8_status mx8i_write_pieces(const char *folder, int32_t rank, const struct mx8_state *s, size_t max_bytes,
    const struct mx8_exec *x, struct mx8_manifest *m);
/* Checks the coverage and writes manifest.json. */
enum mx8_status mx8i_write_manifest(const char *folder, struct mx8_manifest *m);

/* ---- reading ---- */

struct mx8_checkpoint {
    char *folder;
    struct mx8_manifest manifest;
    struct mx8_safetensors *shard; /* one a file */
    const struct mx8_st_entry **entry; /* one a piece of the manifest */
};

/* Reads manifest.json alone. */
enum mx8_status mx8i_read_checkpoint_head(const char *folder, struct mx8_manifest *out);
/* Opens every file and, with verify, checks its SHA-256 sum. FORMAT_ERROR means that the checkpoint is damaged: the
 * message names the file and what is wrong with it. */
enum mx8_status mx8i_open_checkpoint(const char *folder, int32_t verify, struct mx8_checkpoint *out);
void mx8i_close_checkpoint(struct mx8_checkpoint *c);
/* Elements [start, start + count) of a tensor as `dtype`: the stored one, F32 of a stored BF16, or BF16 of a stored F32,
 * rounded to nearest. x NULL: to the host. */
enum mx8_status mx8i_read_range(const struct mx8_checkpoint *c, int64_t tensor, int64_t start, int64_t count,
    int32_t dtype, const struct mx8_exec *x, void *out);
/* Fills every piece of the state. One error names all tensors that are missing or of another shape, and (with exact)
 * those of the checkpoint that the state lacks. Nothing is copied before all are known to fit. */
enum mx8_status mx8i_load_pieces(
    const struct mx8_checkpoint *c, const struct mx8_state *s, int32_t exact, const struct mx8_exec *x);

#endif
