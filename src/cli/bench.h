/* `mx8 bench`: problems (an operator and what its shape means), their data, their checks. */
#ifndef MX8_CLI_BENCH_H
#define MX8_CLI_BENCH_H

#include <stdio.h>
#include "kernels/kernels.h"
#include "mx8/mx8.h"

#define MX8_BENCH_DIMS   6
#define MX8_BENCH_BLOCKS 48

struct mx8_problem;

/* One pass of one problem, ready to run. */
struct mx8_bench {
    const struct mx8_problem *problem;
    struct mx8_context *ctx;
    int64_t dim[MX8_BENCH_DIMS];      /* in the order of problem->shape */
    int32_t dtype, mxfp8, backward;   /* dtype of the high-precision tensors */
    struct mx8_op_options options;    /* what the flags say about scales */
    struct mx8_op_call forward, call; /* the forward whose results a backward needs; the pass that is timed */
    uint64_t seed;
    void *block[MX8_BENCH_BLOCKS]; /* everything allocated, released together */
    int32_t n_blocks;
};

/* What a check found. `worst` is the largest error as a part of what is allowed; exact checks count differing values.
 */
struct mx8_check {
    int64_t compared, wrong;
    double worst;
    const char *against; /* "the reference, bit for bit" */
};

struct mx8_problem {
    const char *name, *shape, *example; /* shape: "MxNxKxG" */
    int32_t has_backward, has_mxfp8;
    enum mx8_status (*build)(struct mx8_bench *b);          /* inputs and options of b->forward */
    enum mx8_status (*build_backward)(struct mx8_bench *b); /* those of b->call; b->forward has run */
    enum mx8_status (*check)(struct mx8_bench *b, struct mx8_check *out);
    double (*count_flops)(const struct mx8_bench *b); /* NULL: bytes are what counts */
    double (*count_bytes)(const struct mx8_bench *b); /* NULL: every input and output once */
    enum mx8_status (*run)(struct mx8_bench *b);      /* NULL: the operator of the same name */
};

extern const struct mx8_problem mx8i_gemm_problems[], mx8i_quantize_problems[], mx8i_layer_problems[],
    mx8i_memory_problems[]; /* each ends with a zeroed row */

/* bench_attention.c: rows of mx8i_layer_problems. */
enum mx8_status mx8i_build_attention(struct mx8_bench *b);
enum mx8_status mx8i_build_attention_backward(struct mx8_bench *b);
enum mx8_status mx8i_check_attention(struct mx8_bench *b, struct mx8_check *out);
double mx8i_count_attention_flops(const struct mx8_bench *b);
enum mx8_status mx8i_build_loss(struct mx8_bench *b);
enum mx8_status mx8i_build_loss_backward(struct mx8_bench *b);
enum mx8_status mx8i_check_loss(struct mx8_bench *b, struct mx8_check *out);
double mx8i_count_loss_flops(const struct mx8_bench *b);

const struct mx8_problem *mx8i_find_problem(const char *name);
void mx8i_list_problems(FILE *out); /* for --help */
/* "4096x1024x512xG8" into b->dim. */
enum mx8_status mx8i_parse_shape(struct mx8_bench *b, const char *text);

/* Data, outputs and workspace of the pass; then it can run any number of times. */
enum mx8_status mx8i_prepare_bench(struct mx8_bench *b);
enum mx8_status mx8i_run_pass(struct mx8_bench *b);
double mx8i_count_bench_bytes(const struct mx8_bench *b);
void mx8i_release_bench(struct mx8_bench *b);

/* For build functions. Memory is zeroed and lives as long as the bench. */
void *mx8i_take_block(struct mx8_bench *b, size_t size);
void mx8i_drop_blocks(struct mx8_bench *b, int32_t n); /* the n that were taken last */
/* A tensor of the given shape, filled with normal numbers of the deviation `std` (0: left zero), rounded to dtype. */
enum mx8_status mx8i_make_input(
    struct mx8_bench *b, struct mx8_tensor *out, int32_t dtype, double std, int32_t ndim, const int64_t *shape);
/* Ends (G) int32 of ragged groups that add up to M. */
enum mx8_status mx8i_make_offsets(struct mx8_bench *b, struct mx8_tensor *out, int64_t M, int64_t G);
/* Integers in [0, limit). */
enum mx8_status mx8i_make_integers(
    struct mx8_bench *b, struct mx8_tensor *out, int64_t limit, int32_t ndim, const int64_t *shape);
/* infer, outputs and workspace of a call. */
enum mx8_status mx8i_finish_call(struct mx8_bench *b, struct mx8_op_call *call, int32_t backward);
uint64_t mx8i_draw(uint64_t *state); /* splitmix64 */

/* For checks: element `at` (row-major, whatever the strides say) as a double. */
double mx8i_read_element(const struct mx8_tensor *t, int64_t at);
/* Counts `got` against `expected` with the error that is allowed. */
void mx8i_compare_value(struct mx8_check *check, double got, double expected, double allowed);
void mx8i_compare_bytes(struct mx8_check *check, const void *got, const void *expected, size_t size);
/* Half a unit in the last place of a stored value, relative: 2^-8 for bf16, 2^-24 for f32. */
double mx8i_get_rounding(int32_t dtype);

#endif
