/* Quantizes every matrix of a safetensors file: NAME becomes codes, NAME.scale its scales. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/safetensors.h"
#include "cli/cli.h"
#include "mx8/quant.h"

static const char usage[] =
    "usage: mx8 quantize IN.safetensors OUT.safetensors [--axis rows|cols] [--scale-rule RULE] [--scale-group N]\n"
    "                    [--layout plain|blocked]\n\n"
    "Writes NAME (F8_E4M3) and NAME.scale (F8_E8M0) for every bf16 or f32 tensor of 2 or 3 dimensions, copies the\n"
    "others unchanged, and prints the signal to quantization noise ratio of each. How things are stored:\n\n"
    "  axis  input    NAME       NAME.scale           blocks of 32 along\n"
    "  rows  (M,K)    (M,K)      (M, ceil(K/32))      K\n"
    "  rows  (E,N,K)  (E,N,K)    (E, N, ceil(K/32))   K\n"
    "  cols  (M,K)    (K,M)      (K, ceil(M/32))      M: codes are stored transposed\n"
    "  cols  (E,N,K)  (E,K,N)    (E, ceil(N/32), K)   N: each expert's codes are stored transposed\n\n"
    "With --layout blocked the scale matrix of R stored lines and C blocks a line is laid out for tensor cores: tiles\n"
    "of 128 x 4, roundup(R,128) * roundup(C,4) bytes, one such row per expert for 3D tensors. An axis that is no\n"
    "multiple of 32 ends in a short block.\n";

static const struct mx8_option table[] = {
    {"axis", MX8_OPT_CHOICE, "rows", "rows|cols", 0, 0, "blocks along the last axis (rows) or the one before (cols)",
        NULL},
    {"scale_rule", MX8_OPT_CHOICE, "rceil", "rceil|floor|ceil|even", 0, 0,
        "how a block's exponent follows from its amax", NULL},
    {"scale_group", MX8_OPT_CHOICE, "32", "32|128|256", 0, 0, "elements along the axis whose scales are forced equal",
        NULL},
    {"layout", MX8_OPT_CHOICE, "plain", "plain|blocked", 0, 0, "of the scales", NULL},
};
#define TABLE_COUNT ((int32_t)(sizeof table / sizeof table[0]))

/* Stored codes are E matrices of `lines` x `length`, blocks along length. */
struct piece {
    const struct mx8_st_entry *in;
    int64_t E, lines, length, blocks;
    size_t code_bytes, scale_bytes, blocked_bytes;
};

struct conversion {
    struct mx8_context *ctx;
    struct mx8_op_options options;
    int32_t cols, blocked;
    struct mx8_safetensors in;
    struct mx8_st_entry *out;
    char **scale_name;
    int64_t n_out;
    struct mx8_st_writer writer;
    uint8_t *codes, *scales, *blocked_scales;
    void *aligned; /* a copy of the tensor at hand when the file has it at an odd address */
};

static int is_matrix(const struct mx8_st_entry *e) {
    return (e->ndim == 2 || e->ndim == 3) && (e->dtype == MX8_F32 || e->dtype == MX8_BF16);
}

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

static struct piece measure(const struct conversion *c, const struct mx8_st_entry *e) {
    int64_t last = e->shape[e->ndim - 1], before = e->shape[e->ndim - 2];
    struct piece p = {.in = e, .E = e->ndim == 3 ? e->shape[0] : 1};
    p.lines = c->cols ? last : before;
    p.length = c->cols ? before : last;
    p.blocks = (p.length + MX8_BLOCK - 1) / MX8_BLOCK;
    p.code_bytes = (size_t)(p.E * p.lines * p.length);
    p.scale_bytes = (size_t)(p.E * p.lines * p.blocks);
    p.blocked_bytes = (size_t)(p.E * round_up(p.lines, 128) * round_up(p.blocks, 4));
    return p;
}

static void set_shape(struct mx8_st_entry *e, int32_t ndim, int64_t a, int64_t b, int64_t c) {
    e->ndim = ndim;
    e->shape[0] = a;
    e->shape[1] = b;
    e->shape[2] = c;
}

/* The output's header: codes and scales in place of each matrix. */
static enum mx8_status describe_output(struct conversion *c) {
    size_t most_codes = 0, most_scales = 0, most_blocked = 0;
    c->out = mx8i_allocate((size_t)(2 * c->in.count) * sizeof *c->out, "tensor list");
    c->scale_name = mx8i_allocate((size_t)c->in.count * sizeof *c->scale_name, "tensor names");
    if (!c->out || !c->scale_name) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < c->in.count; i++) {
        const struct mx8_st_entry *e = &c->in.entry[i];
        struct mx8_st_entry *codes = &c->out[c->n_out++];
        *codes = *e;
        if (!is_matrix(e)) continue;
        struct piece p = measure(c, e);
        struct mx8_st_entry *scales = &c->out[c->n_out++];
        c->scale_name[i] = mx8i_format_text("%s.scale", e->name);
        if (!c->scale_name[i]) return MX8_OUT_OF_MEMORY;
        if (mx8i_find_tensor(&c->in, c->scale_name[i]))
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "quantize: the input already has a tensor \"%s\"", c->scale_name[i]);
        codes->dtype = MX8_F8_E4M3;
        codes->size = p.code_bytes;
        if (e->ndim == 2)
            set_shape(codes, 2, p.lines, p.length, 0);
        else
            set_shape(codes, 3, p.E, p.lines, p.length);
        scales->name = c->scale_name[i];
        scales->dtype = MX8_F8_E8M0;
        scales->size = c->blocked ? p.blocked_bytes : p.scale_bytes;
        if (c->blocked && e->ndim == 2)
            set_shape(scales, 1, (int64_t)p.blocked_bytes, 0, 0);
        else if (c->blocked)
            set_shape(scales, 2, p.E, round_up(p.lines, 128) * round_up(p.blocks, 4), 0);
        else if (e->ndim == 2)
            set_shape(scales, 2, p.lines, p.blocks, 0);
        else if (c->cols)
            set_shape(scales, 3, p.E, p.blocks, p.lines);
        else
            set_shape(scales, 3, p.E, p.lines, p.blocks);
        if (p.code_bytes > most_codes) most_codes = p.code_bytes;
        if (p.scale_bytes > most_scales) most_scales = p.scale_bytes;
        if (p.blocked_bytes > most_blocked) most_blocked = p.blocked_bytes;
    }
    c->codes = mx8i_allocate_aligned(most_codes + 1, 64, "codes");
    c->scales = mx8i_allocate_aligned(most_scales + 1, 64, "scales");
    c->blocked_scales = mx8i_allocate_aligned(most_blocked + 1, 64, "blocked scales");
    return c->codes && c->scales && c->blocked_scales ? MX8_OK : MX8_OUT_OF_MEMORY;
}

static enum mx8_status quantize_piece(const struct conversion *c, const struct piece *p) {
    const struct mx8_st_entry *e = p->in;
    int64_t before = e->shape[e->ndim - 2], last = e->shape[e->ndim - 1];
    struct mx8_tensor x = mx8_make_tensor((void *)(uintptr_t)e->data, e->dtype, e->ndim, e->shape);
    if (e->ndim == 3 && c->cols) {
        int64_t scale_shape[] = {p->E, p->blocks, p->lines};
        struct mx8_tensor codes = mx8_make_tensor(c->codes, MX8_F8_E4M3, 3, e->shape);
        struct mx8_tensor scales = mx8_make_tensor(c->scales, MX8_F8_E8M0, 3, scale_shape);
        codes.stride[1] = 1;
        codes.stride[2] = before;
        return mx8_quantize_3d(c->ctx, &codes, &scales, &x, &c->options);
    }
    int64_t code_shape[] = {p->E * p->lines, p->length}, scale_shape[] = {p->E * p->lines, p->blocks};
    int64_t flat_shape[] = {p->E * before, last};
    struct mx8_tensor codes = mx8_make_tensor(c->codes, MX8_F8_E4M3, 2, code_shape);
    struct mx8_tensor scales = mx8_make_tensor(c->scales, MX8_F8_E8M0, 2, scale_shape);
    x = mx8_make_tensor(x.data, e->dtype, 2, flat_shape);
    return c->cols ? mx8_quantize_cols(c->ctx, &codes, &scales, &x, &c->options)
                   : mx8_quantize_rows(c->ctx, &codes, &scales, &x, &c->options);
}

static enum mx8_status block_piece(const struct conversion *c, const struct piece *p) {
    struct mx8_op_options options = {.layout = MX8_LAYOUT_PER_EXPERT};
    int64_t shape[] = {p->E, p->lines, p->blocks};
    int64_t blocked_shape[] = {p->E, round_up(p->lines, 128) * round_up(p->blocks, 4)};
    struct mx8_tensor scales = mx8_make_tensor(c->scales, MX8_F8_E8M0, 3, shape);
    struct mx8_tensor blocked = mx8_make_tensor(c->blocked_scales, MX8_F8_E8M0, 2, blocked_shape);
    if (p->in->ndim == 3 && c->cols) {
        scales.stride[1] = 1;
        scales.stride[2] = p->lines;
    }
    return mx8_block_scales(c->ctx, &blocked, NULL, &scales, NULL, &options);
}

static double read_value(const struct mx8_st_entry *e, int64_t at) {
    if (e->dtype == MX8_F32) {
        float value;
        memcpy(&value, (const uint8_t *)e->data + at * 4, 4);
        return (double)value;
    }
    uint16_t bits;
    memcpy(&bits, (const uint8_t *)e->data + at * 2, 2);
    return (double)mx8_decode_bf16(bits);
}

/* 10 log10(signal / noise) over finite values, in double; *lost counts values in blocks that became NaN. */
static double measure_noise(const struct conversion *c, const struct piece *p, int64_t *lost) {
    double signal = 0, noise = 0;
    int32_t cols_3d = c->cols && p->in->ndim == 3;
    *lost = 0;
    for (int64_t e = 0; e < p->E; e++) {
        for (int64_t l = 0; l < p->lines; l++) {
            for (int64_t i = 0; i < p->length; i++) {
                int64_t b = i / MX8_BLOCK, matrix = e * p->lines * p->length;
                int64_t scale_at = cols_3d ? (e * p->blocks + b) * p->lines + l : (e * p->lines + l) * p->blocks + b;
                uint8_t byte = c->scales[scale_at];
                if (byte == 255) {
                    (*lost)++;
                    continue;
                }
                double x = read_value(p->in, matrix + (c->cols ? i * p->lines + l : l * p->length + i));
                double q =
                    (double)mx8_decode_e4m3(c->codes[matrix + l * p->length + i]) * (double)mx8_decode_e8m0(byte);
                signal += x * x;
                noise += (x - q) * (x - q);
            }
        }
    }
    return noise > 0 ? 10 * log10(signal / noise) : (double)INFINITY;
}

/* Kernels want elements at multiples of their size, which the format does not promise. */
static enum mx8_status align_tensor(struct conversion *c, struct mx8_st_entry *e) {
    if ((uintptr_t)e->data % mx8_get_dtype_size(e->dtype) == 0) return MX8_OK;
    mx8i_release(c->aligned);
    c->aligned = mx8i_allocate_aligned(e->size, 64, "aligned copy");
    if (!c->aligned) return MX8_OUT_OF_MEMORY;
    memcpy(c->aligned, e->data, e->size);
    e->data = c->aligned;
    return MX8_OK;
}

static enum mx8_status convert_tensor(struct conversion *c, const struct mx8_st_entry *entry) {
    struct mx8_st_entry tensor = *entry, *e = &tensor;
    if (!is_matrix(e)) {
        printf("%-56s copied (%s, %d dimension%s)\n", e->name, mx8_get_dtype_name(e->dtype), e->ndim,
            e->ndim == 1 ? "" : "s");
        return mx8i_write_tensor(&c->writer, e->data, e->size);
    }
    MX8_TRY(align_tensor(c, e));
    struct piece p = measure(c, e);
    char shape[64];
    int64_t lost = 0;
    MX8_TRY(quantize_piece(c, &p));
    if (c->blocked) MX8_TRY(block_piece(c, &p));
    MX8_TRY(mx8i_write_tensor(&c->writer, c->codes, p.code_bytes));
    MX8_TRY(mx8i_write_tensor(
        &c->writer, c->blocked ? c->blocked_scales : c->scales, c->blocked ? p.blocked_bytes : p.scale_bytes));
    if (e->ndim == 2)
        snprintf(shape, sizeof shape, "(%lld, %lld)", (long long)e->shape[0], (long long)e->shape[1]);
    else
        snprintf(shape, sizeof shape, "(%lld, %lld, %lld)", (long long)e->shape[0], (long long)e->shape[1],
            (long long)e->shape[2]);
    double sqnr = measure_noise(c, &p, &lost);
    printf("%-56s %-20s SQNR %6.2f dB", e->name, shape, sqnr);
    if (lost) printf("  (%lld values lie in blocks with a NaN or Inf)", (long long)lost);
    putchar('\n');
    return MX8_OK;
}

static enum mx8_status convert(struct conversion *c, const char *in, const char *out, const char *const *metadata) {
    struct stat from, to;
    if (stat(in, &from) == 0 && stat(out, &to) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: is the input, expected another file to write", out);
    MX8_TRY(mx8_create_context(NULL, &c->ctx));
    MX8_TRY(mx8i_open_safetensors(in, &c->in));
    MX8_TRY(describe_output(c));
    MX8_TRY(mx8i_begin_safetensors(out, c->out, c->n_out, metadata, &c->writer));
    for (int64_t i = 0; i < c->in.count; i++) {
        enum mx8_status status = convert_tensor(c, &c->in.entry[i]);
        if (status != MX8_OK) {
            mx8i_abandon_safetensors(&c->writer);
            return status;
        }
    }
    return mx8i_commit_safetensors(&c->writer);
}

static void release(struct conversion *c) {
    for (int64_t i = 0; c->scale_name && i < c->in.count; i++) mx8i_release(c->scale_name[i]);
    mx8i_release(c->scale_name);
    mx8i_release(c->out);
    mx8i_release(c->codes);
    mx8i_release(c->scales);
    mx8i_release(c->blocked_scales);
    mx8i_release(c->aligned);
    mx8i_close_safetensors(&c->in);
    mx8_destroy_context(c->ctx);
}

int mx8i_run_quantize(int argc, char **argv) {
    struct mx8_options options;
    const char *files[2];
    int n_files = 0;
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, table, TABLE_COUNT);
    enum mx8_status status = mx8i_open_options(table, TABLE_COUNT, &options);
    if (status != MX8_OK) return mx8i_report_failure("quantize", status, MX8_EXIT_FAILURE);
    status = mx8i_parse_flags(&options, argc - 1, argv + 1, NULL, files, &n_files, 2);
    if (status != MX8_OK || n_files != 2) {
        int code = status != MX8_OK ? mx8i_report_failure("quantize", status, MX8_EXIT_USAGE)
                                    : mx8i_report_usage("quantize", "needs an input file and an output file");
        mx8i_close_options(&options);
        return code;
    }
    const char *axis = mx8i_get_text(&options, "axis"), *rule = mx8i_get_text(&options, "scale_rule");
    const char *group = mx8i_get_text(&options, "scale_group"), *layout = mx8i_get_text(&options, "layout");
    const char *metadata[] = {
        "mx8.axis", axis, "mx8.scale_rule", rule, "mx8.scale_group", group, "mx8.layout", layout, NULL};
    struct conversion c = {.cols = strcmp(axis, "cols") == 0, .blocked = strcmp(layout, "blocked") == 0};
    c.options.scale_rule = mx8i_find_scale_rule(rule);
    c.options.scale_group = (int32_t)strtol(group, NULL, 10);
    status = convert(&c, files[0], files[1], metadata);
    release(&c);
    mx8i_close_options(&options);
    return status == MX8_OK ? MX8_EXIT_OK : mx8i_report_failure("quantize", status, MX8_EXIT_FAILURE);
}
