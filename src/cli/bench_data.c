/* Problems' data: shapes from text, random tensors, outputs and workspace as infer wants them. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "cli/bench.h"

static const struct mx8_problem *const lists[] = {
    mx8i_gemm_problems, mx8i_quantize_problems, mx8i_layer_problems, mx8i_memory_problems};
#define N_LISTS (sizeof lists / sizeof lists[0])

const struct mx8_problem *mx8i_find_problem(const char *name) {
    for (size_t i = 0; i < N_LISTS; i++)
        for (const struct mx8_problem *p = lists[i]; p->name; p++)
            if (strcmp(p->name, name) == 0) return p;
    return NULL;
}

void mx8i_list_problems(FILE *out) {
    fprintf(out, "  %-16s %-14s %s\n", "OP", "SHAPE", "for example");
    for (size_t i = 0; i < N_LISTS; i++)
        for (const struct mx8_problem *p = lists[i]; p->name; p++)
            fprintf(out, "  %-16s %-14s mx8 bench %s %s\n", p->name, p->shape, p->name, p->example);
}

/* Letters before a number name the dimension and must be the right ones: "G8" where the shape says G. */
static int match_letters(const char **text, const char *name, size_t name_size) {
    size_t n = 0;
    while (isalpha((unsigned char)(*text)[n])) n++;
    if (n > 0 && (n != name_size || strncmp(*text, name, n) != 0)) return 0;
    *text += n;
    return 1;
}

enum mx8_status mx8i_parse_shape(struct mx8_bench *b, const char *text) {
    const char *at = text, *name = b->problem->shape;
    for (int i = 0;; i++) {
        size_t name_size = strcspn(name, "x");
        char *end = NULL;
        if (!match_letters(&at, name, name_size) || !isdigit((unsigned char)*at)) break;
        long long value = strtoll(at, &end, 10);
        if (value < 0 || value > ((int64_t)1 << 40)) break;
        b->dim[i] = value;
        at = end;
        name += name_size;
        if (!*name && !*at) return MX8_OK;
        if (*name != 'x' || *at != 'x') break;
        name++;
        at++;
    }
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: shape \"%s\" is no %s, such as %s", b->problem->name, text,
        b->problem->shape, b->problem->example);
}

void *mx8i_take_block(struct mx8_bench *b, size_t size) {
    if (b->n_blocks == MX8_BENCH_BLOCKS) {
        MX8_FAIL(MX8_INTERNAL, "bench: more than %d blocks", MX8_BENCH_BLOCKS);
        return NULL;
    }
    void *block = mx8i_allocate_aligned(size ? size : 1, 64, "bench data");
    if (!block) return NULL;
    memset(block, 0, size);
    return b->block[b->n_blocks++] = block;
}

void mx8i_drop_blocks(struct mx8_bench *b, int32_t n) {
    for (; n > 0 && b->n_blocks > 0; n--) mx8i_release(b->block[--b->n_blocks]);
}

void mx8i_release_bench(struct mx8_bench *b) {
    mx8i_drop_blocks(b, b->n_blocks);
}

uint64_t mx8i_draw(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Four 16-bit uniforms added up: near enough to a normal distribution, and one draw a number. */
static double draw_normal(uint64_t *state) {
    uint64_t bits = mx8i_draw(state);
    double sum =
        (double)(bits & 0xFFFF) + (double)(bits >> 16 & 0xFFFF) + (double)(bits >> 32 & 0xFFFF) + (double)(bits >> 48);
    return (sum / 65535 - 2) * 1.7320508075688772;
}

enum mx8_status mx8i_make_input(
    struct mx8_bench *b, struct mx8_tensor *out, int32_t dtype, double std, int32_t ndim, const int64_t *shape) {
    *out = mx8_make_tensor(NULL, dtype, ndim, shape);
    int64_t n = mx8_count_elements(out);
    out->data = mx8i_take_block(b, (size_t)n * mx8_get_dtype_size(dtype));
    if (!out->data) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; std > 0 && i < n; i++) {
        float value = (float)(std * draw_normal(&b->seed));
        if (dtype == MX8_BF16)
            ((uint16_t *)out->data)[i] = mx8_encode_bf16(value);
        else
            ((float *)out->data)[i] = value;
    }
    return MX8_OK;
}

enum mx8_status mx8i_make_offsets(struct mx8_bench *b, struct mx8_tensor *out, int64_t M, int64_t G) {
    MX8_TRY(mx8i_make_input(b, out, MX8_I32, 0, 1, &G));
    int32_t *ends = out->data;
    double *weight = mx8i_take_block(b, (size_t)G * sizeof *weight), sum = 0, so_far = 0;
    if (!weight) return MX8_OUT_OF_MEMORY;
    for (int64_t g = 0; g < G; g++) sum += weight[g] = 0.5 + (double)(mx8i_draw(&b->seed) >> 11) * 0x1p-53;
    for (int64_t g = 0; g < G; g++) {
        so_far += weight[g];
        ends[g] = g == G - 1 ? (int32_t)M : (int32_t)floor((double)M * so_far / sum);
    }
    return MX8_OK;
}

enum mx8_status mx8i_make_integers(
    struct mx8_bench *b, struct mx8_tensor *out, int64_t limit, int32_t ndim, const int64_t *shape) {
    MX8_TRY(mx8i_make_input(b, out, MX8_I32, 0, ndim, shape));
    int64_t n = mx8_count_elements(out);
    for (int64_t i = 0; i < n; i++) ((int32_t *)out->data)[i] = (int32_t)(mx8i_draw(&b->seed) % (uint64_t)limit);
    return MX8_OK;
}

static const struct mx8_op *get_op(const struct mx8_bench *b) {
    return mx8_find_op(b->problem->name);
}

enum mx8_status mx8i_finish_call(struct mx8_bench *b, struct mx8_op_call *call, int32_t backward) {
    MX8_TRY(mx8_infer_op(get_op(b), backward, call));
    for (int32_t i = 0; i < call->n_out; i++) {
        struct mx8_tensor *t = &call->out[i];
        if (t->ndim == 0) continue; /* an optional output that these inputs do not have */
        t->data = mx8i_take_block(b, (size_t)mx8_count_elements(t) * mx8_get_dtype_size(t->dtype));
        if (!t->data) return MX8_OUT_OF_MEMORY;
    }
    call->workspace = mx8i_take_block(b, call->workspace_size);
    return call->workspace ? MX8_OK : MX8_OUT_OF_MEMORY;
}

enum mx8_status mx8i_prepare_bench(struct mx8_bench *b) {
    b->forward.options = b->options;
    b->forward.options.precision = b->mxfp8 ? MX8_PRECISION_MXFP8 : MX8_PRECISION_HIGH;
    MX8_TRY(b->problem->build(b));
    if (b->problem->run) return MX8_OK;
    MX8_TRY(mx8i_finish_call(b, &b->forward, 0));
    if (!b->backward) {
        b->call = b->forward;
        return MX8_OK;
    }
    MX8_TRY(mx8_run_op(b->ctx, get_op(b), 0, &b->forward));
    b->call.options = b->forward.options;
    MX8_TRY(b->problem->build_backward(b));
    return mx8i_finish_call(b, &b->call, 1);
}

enum mx8_status mx8i_run_pass(struct mx8_bench *b) {
    return b->problem->run ? b->problem->run(b) : mx8_run_op(b->ctx, get_op(b), b->backward, &b->call);
}

double mx8i_count_bench_bytes(const struct mx8_bench *b) {
    double bytes = 0;
    if (b->problem->count_bytes) return b->problem->count_bytes(b);
    for (int32_t i = 0; i < b->call.n_in + b->call.n_out; i++) {
        const struct mx8_tensor *t = i < b->call.n_in ? &b->call.in[i] : &b->call.out[i - b->call.n_in];
        if (t->data) bytes += (double)mx8_count_elements(t) * (double)mx8_get_dtype_size(t->dtype);
    }
    return bytes;
}

double mx8i_read_element(const struct mx8_tensor *t, int64_t at) {
    switch (t->dtype) {
    case MX8_F32:
        return (double)((const float *)t->data)[at];
    case MX8_F64:
        return ((const double *)t->data)[at];
    case MX8_BF16:
        return (double)mx8_decode_bf16(((const uint16_t *)t->data)[at]);
    case MX8_I32:
        return ((const int32_t *)t->data)[at];
    default:
        return (double)NAN;
    }
}

void mx8i_compare_value(struct mx8_check *check, double got, double expected, double allowed) {
    double part = fabs(got - expected) / allowed;
    check->compared++;
    if (!(part <= 1)) check->wrong++;
    if (!(part <= check->worst)) check->worst = part;
}

void mx8i_compare_bytes(struct mx8_check *check, const void *got, const void *expected, size_t size) {
    const uint8_t *a = got, *b = expected;
    check->compared += (int64_t)size;
    if (memcmp(a, b, size) == 0) return;
    for (size_t i = 0; i < size; i++) check->wrong += a[i] != b[i];
}

double mx8i_get_rounding(int32_t dtype) {
    return dtype == MX8_BF16 ? 0x1p-8 : 0x1p-24;
}
