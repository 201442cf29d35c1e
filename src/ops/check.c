/* Checks of shapes, dtypes, strides and data against an operator's ports. */
#include "ops/check.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum { TEXT = 96 };

void mx8i_start_dims(struct mx8_dims *d, const char *op) {
    memset(d, 0, sizeof *d);
    d->op = op;
    d->dtype = -1;
    for (int i = 0; i < 26; i++) d->size[i] = -1;
}

/* ---- words of messages ---- */

static void name_axis(char text[TEXT], int32_t axis, int32_t ndim) {
    if (ndim == 1)
        snprintf(text, TEXT, "elements");
    else if (ndim == 2)
        snprintf(text, TEXT, "%s", axis == 0 ? "rows" : "columns");
    else
        snprintf(text, TEXT, "entries in dimension %d", (int)axis);
}

/* 0 to 25 of a dimension's letter, large or small. */
static int get_letter(char c) {
    return (c | 0x20) - 'a';
}

static void name_source(char text[TEXT], const struct mx8_dims *d, int letter) {
    if (d->ndim[letter] == 0) {
        snprintf(text, TEXT, "%s", d->source[letter]);
        return;
    }
    char axis[TEXT];
    name_axis(axis, d->axis[letter], d->ndim[letter]);
    snprintf(text, TEXT, "%.40s of %.40s", axis, d->source[letter]);
}

static void name_dtypes(char text[TEXT], uint32_t takes) {
    size_t used = 0;
    text[0] = 0;
    for (int32_t dtype = 0; dtype <= MX8_F64; dtype++) {
        if (!(takes & MX8I_DTYPE(dtype))) continue;
        int n = snprintf(text + used, TEXT - used, "%s%s", used ? " or " : "", mx8_get_dtype_name(dtype));
        if (n < 0 || (size_t)n >= TEXT - used) return;
        used += (size_t)n;
    }
}

static void name_shape(char text[TEXT], const struct mx8_tensor *t) {
    size_t used = 0;
    text[0] = 0;
    for (int32_t i = 0; i < t->ndim && used < TEXT - 24; i++)
        used += (size_t)snprintf(text + used, TEXT - used, "%s%lld", i ? "," : "", (long long)t->shape[i]);
}

/* ---- one tensor ---- */

static int64_t find_size(const struct mx8_dims *d, char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const int64_t size = d->size[get_letter(c)];
    return c >= 'a' && size >= 0 ? mx8i_count_blocks(size) : size;
}

static enum mx8_status check_extent(const char *op, const char *name, const struct mx8_tensor *t) {
    if (t->ndim < 0 || t->ndim > MX8_MAX_DIMS)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s has %d dimensions, expected at most %d", op, name, (int)t->ndim,
            MX8_MAX_DIMS);
    int64_t bytes = 16; /* larger than any element: a size that passes is safe to compute with */
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s has size %lld in dimension %d, expected 0 or more", op, name,
                (long long)t->shape[i], (int)i);
        if (__builtin_mul_overflow(bytes, t->shape[i] > 0 ? t->shape[i] : 1, &bytes))
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s has more elements than memory can hold", op, name);
    }
    return MX8_OK;
}

static int is_adjacent(const struct mx8_tensor *t) {
    int32_t last = t->ndim - 1;
    return t->ndim == 0 || t->shape[last] <= 1 || t->stride[last] == 1;
}

static int is_packed(const struct mx8_tensor *t) {
    int64_t expected = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] == 0) return 1;
        if (t->shape[i] != 1 && t->stride[i] != expected) return 0;
        expected *= t->shape[i];
    }
    return 1;
}

static enum mx8_status check_strides(const char *op, const struct mx8_port *p, const struct mx8_tensor *t) {
    if (mx8_count_elements(t) == 0) return MX8_OK;
    if ((p->takes & MX8I_PACKED) && !is_packed(t))
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: %s has gaps or another order, expected row-major strides", op, p->name);
    if ((p->takes & MX8I_ROWS) && !is_adjacent(t))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s has stride %lld in its last dimension, expected 1", op, p->name,
            (long long)t->stride[t->ndim - 1]);
    return MX8_OK;
}

static enum mx8_status check_dtype(struct mx8_dims *d, const struct mx8_port *p, const struct mx8_tensor *t) {
    char wanted[TEXT];
    if (t->dtype < 0 || t->dtype > MX8_F64 || !(p->takes & MX8I_DTYPE(t->dtype))) {
        name_dtypes(wanted, p->takes);
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: %s is %s, expected %s", d->op, p->name, mx8_get_dtype_name(t->dtype), wanted);
    }
    if ((p->takes & MX8I_SAME) && d->dtype >= 0 && t->dtype != d->dtype)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s is %s, expected %s as the first input", d->op, p->name,
            mx8_get_dtype_name(t->dtype), mx8_get_dtype_name(d->dtype));
    if (d->dtype < 0) d->dtype = t->dtype;
    return MX8_OK;
}

static enum mx8_status fail_size(
    const struct mx8_dims *d, const struct mx8_port *p, const struct mx8_tensor *t, int32_t axis) {
    char c = p->shape[axis], noun[TEXT], source[TEXT];
    name_axis(noun, axis, t->ndim);
    if (c >= '0' && c <= '9')
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s has %lld %s, expected %c", d->op, p->name,
            (long long)t->shape[axis], noun, c);
    int blocks = c >= 'a';
    name_source(source, d, get_letter(c));
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s has %lld %s, expected %lld (%s%s)", d->op, p->name,
        (long long)t->shape[axis], noun, (long long)find_size(d, c), blocks ? "32-blocks in the " : "", source);
}

static enum mx8_status bind_shape(struct mx8_dims *d, const struct mx8_port *p, const struct mx8_tensor *t) {
    int32_t ndim = (int32_t)strlen(p->shape);
    char shape[TEXT];
    name_shape(shape, t);
    if (t->ndim != ndim)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s has %d dimensions (%s), expected %d", d->op, p->name,
            (int)t->ndim, shape, (int)ndim);
    for (int32_t i = 0; i < ndim; i++) {
        char c = p->shape[i];
        if (c >= 'A' && c <= 'Z' && d->size[c - 'A'] < 0) {
            int letter = c - 'A';
            d->size[letter] = t->shape[i];
            d->source[letter] = p->name;
            d->axis[letter] = i;
            d->ndim[letter] = ndim;
        } else if (find_size(d, c) >= 0 && t->shape[i] != find_size(d, c)) {
            return fail_size(d, p, t, i);
        }
    }
    return MX8_OK;
}

/* ---- calls ---- */

enum mx8_status mx8i_bind_inputs(struct mx8_dims *d, const char *op, const struct mx8_op_call *call,
    const struct mx8_pass *pass, int32_t from, int32_t to) {
    if (from == 0) {
        mx8i_start_dims(d, op);
        for (int32_t i = pass->n_in; i < MX8_MAX_INPUTS; i++)
            if (mx8i_is_present(&call->in[i]))
                return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: input %d is given, expected at most %d inputs", op,
                    (int)i + 1, (int)pass->n_in);
    }
    for (int32_t i = from; i < to; i++) {
        const struct mx8_port *p = &pass->in[i];
        const struct mx8_tensor *t = &call->in[i];
        if (!mx8i_is_present(t)) {
            if (p->takes & MX8I_OPTIONAL) continue;
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s is missing (input %d)", op, p->name, (int)i + 1);
        }
        MX8_TRY(check_extent(op, p->name, t));
        MX8_TRY(check_dtype(d, p, t));
        if (p->shape) MX8_TRY(bind_shape(d, p, t));
        if (!(p->takes & MX8I_LIKE)) MX8_TRY(check_strides(op, p, t));
    }
    return MX8_OK;
}

enum mx8_status mx8i_set_dim(struct mx8_dims *d, char letter, int64_t size, const char *note) {
    int i = letter - 'A';
    if (d->size[i] >= 0 && d->size[i] != size) {
        char noun[TEXT];
        name_axis(noun, d->axis[i], d->ndim[i]);
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s has %lld %s, expected %lld (%s)", d->op, d->source[i],
            (long long)d->size[i], noun, (long long)size, note);
    }
    if (d->size[i] < 0) {
        d->size[i] = size;
        d->source[i] = note;
    }
    return MX8_OK;
}

enum mx8_status mx8i_check_blocks(const struct mx8_dims *d, char letter, const char *purpose) {
    int i = letter - 'A';
    if (d->size[i] % MX8_BLOCK == 0) return MX8_OK;
    char source[TEXT];
    name_source(source, d, i);
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %c is %lld (%s), expected a multiple of 32, which the blocks of %s need",
        d->op, letter, (long long)d->size[i], source, purpose);
}

void mx8i_clear_outputs(struct mx8_op_call *call, const struct mx8_pass *pass, size_t workspace) {
    memset(call->out, 0, sizeof call->out);
    call->n_out = pass->n_out;
    call->workspace_size = workspace;
}

void mx8i_put_output(
    struct mx8_op_call *call, const struct mx8_pass *pass, int32_t index, const struct mx8_dims *d, int32_t dtype) {
    const char *letters = pass->out[index].shape;
    int64_t shape[MX8_MAX_DIMS] = {0};
    int32_t ndim = 0;
    for (; letters[ndim]; ndim++) shape[ndim] = find_size(d, letters[ndim]);
    call->out[index] = mx8_make_tensor(NULL, dtype, ndim, shape);
}

static enum mx8_status check_pointer(const char *op, const char *name, const struct mx8_tensor *t) {
    if (t->data || mx8_count_elements(t) == 0) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s has %lld elements but its data pointer is NULL", op, name,
        (long long)mx8_count_elements(t));
}

enum mx8_status mx8i_check_data(const char *op, const struct mx8_op_call *call, const struct mx8_pass *pass) {
    for (int32_t i = 0; i < pass->n_in; i++)
        if (mx8i_is_present(&call->in[i]) && !(pass->in[i].takes & MX8I_LIKE))
            MX8_TRY(check_pointer(op, pass->in[i].name, &call->in[i]));
    return MX8_OK;
}

static int is_dtype_fit(const struct mx8_port *p, int32_t given, int32_t inferred) {
    if (given == inferred) return 1;
    if (p->takes & MX8I_CHOICE) return given == MX8_F32 || given == MX8_BF16;
    return given == MX8_U8 && mx8_get_dtype_size(inferred) == 1;
}

static enum mx8_status check_output(
    const char *op, const struct mx8_port *p, const struct mx8_tensor *given, const struct mx8_tensor *inferred) {
    char has[TEXT], wanted[TEXT];
    if (!mx8i_is_present(inferred))
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: output %s is asked for, but the inputs that it needs are absent", op, p->name);
    MX8_TRY(check_extent(op, p->name, given));
    name_shape(has, given);
    name_shape(wanted, inferred);
    int same = given->ndim == inferred->ndim;
    for (int32_t i = 0; same && i < given->ndim; i++) same = given->shape[i] == inferred->shape[i];
    if (!same)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: output %s has shape (%s), expected (%s)", op, p->name, has, wanted);
    if (!is_dtype_fit(p, given->dtype, inferred->dtype))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: output %s is %s, expected %s", op, p->name,
            mx8_get_dtype_name(given->dtype), mx8_get_dtype_name(inferred->dtype));
    for (int32_t i = 0; (p->takes & MX8I_FIXED) && i < given->ndim; i++)
        if (given->shape[i] > 1 && given->stride[i] != inferred->stride[i])
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: output %s has stride %lld in dimension %d, expected %lld", op,
                p->name, (long long)given->stride[i], (int)i, (long long)inferred->stride[i]);
    MX8_TRY(check_strides(op, p, given));
    return check_pointer(op, p->name, given);
}

enum mx8_status mx8i_check_outputs(
    const char *op, const struct mx8_op_call *call, const struct mx8_op_call *inferred, const struct mx8_pass *pass) {
    for (int32_t i = 0; i < MX8_MAX_OUTPUTS; i++) {
        int present = mx8i_is_present(&call->out[i]);
        if (i >= pass->n_out) {
            if (!present) continue;
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: output %d is given, expected at most %d outputs", op, (int)i + 1,
                (int)pass->n_out);
        }
        const struct mx8_port *p = &pass->out[i];
        if (present)
            MX8_TRY(check_output(op, p, &call->out[i], &inferred->out[i]));
        else if (!(p->takes & MX8I_OPTIONAL) && mx8i_is_present(&inferred->out[i]))
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: output %s is missing", op, p->name);
    }
    return MX8_OK;
}

/* ---- options ---- */

enum mx8_status mx8i_choose_dtype(const char *op, const struct mx8_op_options *o, int32_t otherwise, int32_t *out) {
    *out = o->out_dtype > 0 ? o->out_dtype - 1 : otherwise;
    if (*out == MX8_F32 || *out == MX8_BF16) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: out_dtype is %s, expected f32 or bf16", op, mx8_get_dtype_name(*out));
}

enum mx8_status mx8i_check_choice(const char *op, const char *option, int32_t value, int32_t limit) {
    if (value >= 0 && value < limit) return MX8_OK;
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %s is %d, expected 0 to %d", op, option, (int)value, (int)limit - 1);
}
