/* Checking calls against tables. A port describes one input or output of an operator: its name, its shape in letters
 * and the dtypes it takes. Binding a call's tensors to the ports in order gives each letter its size from the first
 * tensor that has it, and every later tensor must agree: "linear: w has 96 columns, expected 100 (columns of x)". */
#ifndef MX8_OPS_CHECK_H
#define MX8_OPS_CHECK_H

#include "ops/rows.h"

/* What a port takes: a set of dtypes, and flags. */
#define MX8I_DTYPE(dtype) (1u << (dtype))
enum {
    MX8I_F32 = MX8I_DTYPE(MX8_F32),
    MX8I_F64 = MX8I_DTYPE(MX8_F64),
    MX8I_I32 = MX8I_DTYPE(MX8_I32),
    MX8I_I64 = MX8I_DTYPE(MX8_I64),
    MX8I_HP = MX8I_F32 | MX8I_DTYPE(MX8_BF16),
    MX8I_CODES = MX8I_DTYPE(MX8_F8_E4M3) | MX8I_DTYPE(MX8_F8_E5M2) | MX8I_DTYPE(MX8_U8),
    MX8I_SCALES = MX8I_DTYPE(MX8_F8_E8M0) | MX8I_DTYPE(MX8_U8),
    MX8I_ANY_DTYPE = 0x1FF,

    MX8I_OPTIONAL = 1 << 16, /* may be absent */
    MX8I_LIKE = 1 << 17,     /* input: gives a shape and dtype, its data is never read */
    MX8I_SAME = 1 << 18,     /* input: has the dtype of the call's first input */
    MX8I_ROWS = 1 << 19,     /* elements of the last dimension are adjacent */
    MX8I_PACKED = 1 << 20,   /* row-major without gaps */
    MX8I_FIXED = 1 << 21,    /* output: strides exactly as inferred */
    MX8I_CHOICE = 1 << 22    /* output: f32 or bf16, whatever infer proposes */
};

/* shape: 'A' to 'Z' a size, 'a' to 'z' the number of 32-blocks in the size of that letter, '0' to '9' itself. NULL: any
 * shape; the operator looks at it by itself. */
struct mx8_port {
    const char *name;
    const char *shape;
    uint32_t takes;
};

struct mx8_pass {
    const struct mx8_port *in, *out;
    int32_t n_in, n_out;
};
#define MX8I_PASS(in, out)                                                                                             \
    { (in), (out), (int32_t)(sizeof(in) / sizeof(in)[0]), (int32_t)(sizeof(out) / sizeof(out)[0]) }

/* A row of the operator table with the ports of both passes; `backward` is zero where there is none. */
struct mx8_op_row {
    struct mx8_op op;
    struct mx8_pass forward, backward;
};

/* Sizes that letters stand for, and where each came from. */
struct mx8_dims {
    const char *op;
    int64_t size[26];       /* -1: not bound */
    const char *source[26]; /* tensor, or a note when ndim is 0 */
    int32_t axis[26], ndim[26];
    int32_t dtype; /* of the first input, -1 before it is bound */
};

static inline int mx8i_is_present(const struct mx8_tensor *t) {
    return t->data != NULL || t->ndim != 0;
}
static inline int64_t mx8i_get_dim(const struct mx8_dims *d, char letter) {
    return d->size[letter - 'A'];
}
static inline int64_t mx8i_count_blocks(int64_t n) {
    return n / MX8_BLOCK + (n % MX8_BLOCK != 0);
}
static inline int64_t mx8i_round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

void mx8i_start_dims(struct mx8_dims *d, const char *op);
/* Inputs [from, to) of the call; from 0 also starts `d` and refuses inputs that the pass does not have. */
enum mx8_status mx8i_bind_inputs(struct mx8_dims *d, const char *op, const struct mx8_op_call *call,
    const struct mx8_pass *pass, int32_t from, int32_t to);
/* Gives a letter a size that follows from others ("M rounded up to 32"); fails when it is bound to another size. */
enum mx8_status mx8i_set_dim(struct mx8_dims *d, char letter, int64_t size, const char *note);
/* Fails unless the size is a multiple of 32, saying what it is needed for. */
enum mx8_status mx8i_check_blocks(const struct mx8_dims *d, char letter, const char *purpose);

/* Starts call's outputs as all absent; then each put fills one, row-major, shaped by its port. */
void mx8i_clear_outputs(struct mx8_op_call *call, const struct mx8_pass *pass, size_t workspace);
void mx8i_put_output(
    struct mx8_op_call *call, const struct mx8_pass *pass, int32_t index, const struct mx8_dims *d, int32_t dtype);

/* The caller's inputs have data and its outputs are what `inferred` says. */
enum mx8_status mx8i_check_data(const char *op, const struct mx8_op_call *call, const struct mx8_pass *pass);
enum mx8_status mx8i_check_outputs(
    const char *op, const struct mx8_op_call *call, const struct mx8_op_call *inferred, const struct mx8_pass *pass);

/* Dtype of an output from options.out_dtype, else `otherwise`; INVALID_ARGUMENT unless it is f32 or bf16. */
enum mx8_status mx8i_choose_dtype(const char *op, const struct mx8_op_options *o, int32_t otherwise, int32_t *out);
/* An option must lie in [0, limit). */
enum mx8_status mx8i_check_choice(const char *op, const char *option, int32_t value, int32_t limit);

#endif
