#include "formats/conformance.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "formats/conformance_inputs.h"
#include "formats/jobs.h"

/* What a case does; the fields that it does not use are 0. M, K: rows and columns; E: experts or groups. */
struct row {
    const char *name, *operation;
    int32_t dtype, format, E, M, K;
    int32_t rule, group, tile, layout; /* rule ALL: a case for each rule */
};
#define ALL       (-1)
#define E4M3      MX8_F8_E4M3
#define E5M2      MX8_F8_E5M2
#define N_RULES   4
#define MAX_CASES 128

static const struct row table[] = {
    {"encode", "encode", MX8_F32, E4M3, 0, 0, 0, 0, 0, 0, 0},
    {"encode", "encode", MX8_F32, E5M2, 0, 0, 0, 0, 0, 0, 0},
    {"decode", "decode", MX8_F32, E4M3, 0, 0, 0, 0, 0, 0, 0},
    {"decode", "decode", MX8_F32, E5M2, 0, 0, 0, 0, 0, 0, 0},
    {"decode", "decode", MX8_F32, MX8_F8_E8M0, 0, 0, 0, 0, 0, 0, 0},
    {"rows", "quantize_rows", MX8_F32, E4M3, 0, 24, 160, ALL, 0, 0, 0},
    {"rows", "quantize_rows", MX8_BF16, E4M3, 0, 24, 160, ALL, 0, 0, 0},
    {"rows", "quantize_rows", MX8_F32, E5M2, 0, 24, 160, ALL, 0, 0, 0},
    {"rows_short", "quantize_rows", MX8_F32, E4M3, 0, 9, 77, 0, 0, 0, 0},
    {"rows_one", "quantize_rows", MX8_F32, E4M3, 0, 5, 1, 0, 0, 0, 0},
    {"rows_group128", "quantize_rows", MX8_F32, E4M3, 0, 10, 416, ALL, 128, 0, 0},
    {"rows_group256", "quantize_rows", MX8_BF16, E4M3, 0, 6, 640, 0, 256, 0, 0},
    {"rows_tile32", "quantize_rows", MX8_F32, E4M3, 0, 70, 96, 0, 0, 32, 0},
    {"rows_tile32_group256", "quantize_rows", MX8_F32, E4M3, 0, 40, 288, 0, 256, 32, 0},
    {"rows_tile128_group128", "quantize_rows", MX8_BF16, E4M3, 0, 130, 160, 0, 128, 128, 0},
    {"cols", "quantize_cols", MX8_F32, E4M3, 0, 160, 24, ALL, 0, 0, 0},
    {"cols", "quantize_cols", MX8_BF16, E4M3, 0, 160, 24, ALL, 0, 0, 0},
    {"cols_short", "quantize_cols", MX8_F32, E4M3, 0, 77, 9, 0, 0, 0, 0},
    {"cols_group128", "quantize_cols", MX8_F32, E4M3, 0, 416, 10, 0, 128, 0, 0},
    {"cols_tile32_group256", "quantize_cols", MX8_F32, E4M3, 0, 288, 40, 0, 256, 32, 0},
    {"cols_groups", "quantize_cols", MX8_F32, E4M3, 5, 150, 12, 0, 0, 0, 0},
    {"cols_groups_group128", "quantize_cols", MX8_BF16, E4M3, 5, 400, 8, 0, 128, 0, 0},
    {"both", "quantize_both", MX8_F32, E4M3, 0, 96, 64, ALL, 0, 0, 0},
    {"3d", "quantize_3d", MX8_F32, E4M3, 3, 64, 40, ALL, 0, 0, 0},
    {"3d", "quantize_3d", MX8_BF16, E4M3, 2, 96, 33, 0, 0, 0, 0},
    {"3d_tile32_group256", "quantize_3d", MX8_F32, E4M3, 2, 256, 64, 0, 256, 32, 0},
    {"dequantize_f32", "dequantize", MX8_F32, E4M3, 0, 16, 96, 0, 0, 0, 0},
    {"dequantize_bf16", "dequantize", MX8_BF16, E4M3, 0, 16, 96, 0, 0, 0, 0},
    {"dequantize_f32", "dequantize", MX8_F32, E5M2, 0, 16, 96, 0, 0, 0, 0},
    {"scales_plain", "block_scales", 0, 0, 0, 200, 13, 0, 0, 0, MX8_LAYOUT_PLAIN},
    {"scales_m_groups", "block_scales", 0, 0, 5, 300, 9, 0, 0, 0, MX8_LAYOUT_M_GROUPS},
    {"scales_k_groups", "block_scales", 0, 0, 5, 130, 40, 0, 0, 0, MX8_LAYOUT_K_GROUPS},
    {"scales_per_expert", "block_scales", 0, 0, 3, 140, 6, 0, 0, 0, MX8_LAYOUT_PER_EXPERT},
    {"group_pad", "group_pad", MX8_F32, 0, 5, 100, 7, 0, 0, 0, 0},
};
#define N_ROWS ((int32_t)(sizeof table / sizeof table[0]))

/* One of the cases that a row stands for. */
struct one {
    const struct row *row;
    int32_t rule;
};

static int32_t list_cases(struct one *out) {
    int32_t n = 0;
    for (int32_t i = 0; i < N_ROWS; i++)
        for (int32_t rule = 0; rule < (table[i].rule == ALL ? N_RULES : 1); rule++)
            out[n++] = (struct one){&table[i], table[i].rule == ALL ? rule : table[i].rule};
    return n;
}

int32_t mx8i_count_vectors(void) {
    struct one cases[MAX_CASES];
    return list_cases(cases);
}

const char *mx8i_get_rule_name(int32_t rule) {
    static const char *const names[N_RULES] = {
        [MX8_SCALE_RCEIL] = "rceil", [MX8_SCALE_FLOOR] = "floor", [MX8_SCALE_CEIL] = "ceil", [MX8_SCALE_EVEN] = "even"};
    return rule >= 0 && rule < N_RULES ? names[rule] : "unknown";
}

const char *mx8i_get_layout_name(int32_t layout) {
    static const char *const names[] = {[MX8_LAYOUT_PLAIN] = "plain",
        [MX8_LAYOUT_M_GROUPS] = "m_groups",
        [MX8_LAYOUT_K_GROUPS] = "k_groups",
        [MX8_LAYOUT_PER_EXPERT] = "per_expert"};
    return layout >= 0 && layout < 4 ? names[layout] : "unknown";
}

/* ---- tensors of a vector ---- */

/* Zeroed memory; NULL when there is none. */
static void *add_tensor(
    struct mx8_vector *v, const char *name, int is_output, int32_t dtype, int32_t ndim, const int64_t *shape) {
    struct mx8_vector_tensor *t = &v->tensor[v->n];
    *t = (struct mx8_vector_tensor){.name = name, .is_output = is_output};
    t->view = mx8_make_tensor(NULL, dtype, ndim, shape);
    t->size = (size_t)mx8_count_elements(&t->view) * mx8_get_dtype_size(dtype);
    t->view.data = mx8i_allocate(t->size, "a conformance vector");
    if (t->view.data) v->n++;
    return t->view.data;
}
#define SHAPE(...)                                                                                                     \
    (const int64_t[]) {                                                                                                \
        __VA_ARGS__                                                                                                    \
    }

void mx8i_release_vector(struct mx8_vector *v) {
    for (int32_t i = 0; i < v->n; i++) mx8i_release(v->tensor[i].view.data);
    v->n = 0;
}

static int32_t *add_offsets(struct mx8_vector *v, const struct row *r, int64_t extent) {
    int32_t *offsets = add_tensor(v, "offsets", 0, MX8_I32, 1, SHAPE(r->E));
    if (offsets) mx8i_fill_offsets(offsets, r->E, extent);
    return offsets;
}

/* ---- the operations ---- */

static enum mx8_status make_elements(struct mx8_vector *v, const struct row *r) {
    int encode = !strcmp(r->operation, "encode");
    int64_t n = encode ? mx8i_count_element_inputs() : 256;
    float *values = NULL;
    uint8_t *codes = NULL;
    if (encode) {
        values = add_tensor(v, "values", 0, MX8_F32, 1, SHAPE(n));
        codes = add_tensor(v, "codes", 1, r->format, 1, SHAPE(n));
    } else {
        codes = add_tensor(v, "codes", 0, r->format, 1, SHAPE(n));
        values = add_tensor(v, "values", 1, MX8_F32, 1, SHAPE(n));
    }
    if (!values || !codes) return MX8_OUT_OF_MEMORY;
    if (encode) mx8i_fill_element_inputs(values);
    for (int64_t i = 0; i < n; i++) {
        if (encode)
            codes[i] = r->format == E4M3 ? mx8_encode_e4m3(values[i]) : mx8_encode_e5m2(values[i]);
        else
            codes[i] = (uint8_t)i;
        if (encode) continue;
        values[i] = r->format == E4M3   ? mx8_decode_e4m3(codes[i])
                    : r->format == E5M2 ? mx8_decode_e5m2(codes[i])
                                        : mx8_decode_e8m0(codes[i]);
    }
    return MX8_OK;
}

static int64_t count_blocks(int64_t n) {
    return (n + MX8_BLOCK - 1) / MX8_BLOCK;
}
static int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* Row-major strides of (rows, cols) with a batch in front. */
static void set_strides(int64_t stride[3], int64_t batch, int64_t row, int64_t col) {
    stride[0] = batch;
    stride[1] = row;
    stride[2] = col;
}

static int want_rows(const struct row *r) {
    return strcmp(r->operation, "quantize_cols") && strcmp(r->operation, "quantize_3d");
}
static int want_cols(const struct row *r) {
    return strcmp(r->operation, "quantize_rows") != 0;
}

static int add_codes(struct mx8_vector *v, const struct one *c, struct mx8_quant_job *j) {
    const struct row *r = c->row;
    int both = want_rows(r) && want_cols(r), grouped = r->E > 0 && !strcmp(r->operation, "quantize_cols");
    int64_t M = r->M, K = r->K, Mp = grouped ? round_up(M + 32 * r->E, 32) : M, Mb = count_blocks(Mp);
    if (want_rows(r)) {
        j->row_codes = add_tensor(v, both ? "row_codes" : "codes", 1, r->format, 2, SHAPE(M, K));
        j->row_scales = add_tensor(v, both ? "row_scales" : "scales", 1, MX8_F8_E8M0, 2, SHAPE(M, count_blocks(K)));
        set_strides(j->row_code_stride, 0, K, 1);
        set_strides(j->row_scale_stride, 0, count_blocks(K), 1);
        if (!j->row_codes || !j->row_scales) return 0;
    }
    if (!strcmp(r->operation, "quantize_3d")) {
        /* stored as the operator's strides (N*K, 1, N) say: (E, K, N) in the file */
        j->col_codes = add_tensor(v, "codes", 1, r->format, 3, SHAPE(r->E, K, M));
        j->col_scales = add_tensor(v, "scales", 1, MX8_F8_E8M0, 3, SHAPE(r->E, Mb, K));
        set_strides(j->col_code_stride, M * K, 1, M);
        set_strides(j->col_scale_stride, Mb * K, K, 1);
    } else if (want_cols(r)) {
        j->col_codes = add_tensor(v, both ? "col_codes" : "codes", 1, r->format, 2, SHAPE(K, Mp));
        j->col_scales = add_tensor(v, both ? "col_scales" : "scales", 1, MX8_F8_E8M0, 2, SHAPE(K, Mb));
        set_strides(j->col_code_stride, 0, 1, Mp);
        set_strides(j->col_scale_stride, 0, 1, Mb);
    }
    if (grouped) j->padded_ends = add_tensor(v, "ends", 1, MX8_I32, 1, SHAPE(r->E));
    j->padded_rows = grouped ? Mp : 0;
    return !want_cols(r) || (j->col_codes && j->col_scales && (!grouped || j->padded_ends));
}

static enum mx8_status make_quantized(struct mx8_vector *v, const struct one *c) {
    const struct row *r = c->row;
    int three = !strcmp(r->operation, "quantize_3d"), grouped = r->E > 0 && !three;
    int64_t batch = three ? r->E : 1;
    void *x = three ? add_tensor(v, "w", 0, r->dtype, 3, SHAPE(r->E, r->M, r->K))
                    : add_tensor(v, "x", 0, r->dtype, 2, SHAPE(r->M, r->K));
    if (!x) return MX8_OUT_OF_MEMORY;
    struct mx8_input_shape shape = {
        .batch = batch, .rows = r->M, .cols = r->K, .along_rows = want_cols(r) && !want_rows(r), .format = r->format};
    shape.unit = (int64_t)(r->group ? r->group / 32 : 1) * (r->tile ? r->tile : 1);
    mx8i_fill_matrix(x, r->dtype, &shape);
    struct mx8_quant_job j = {.src = x,
        .src_dtype = r->dtype,
        .batch = batch,
        .rows = r->M,
        .cols = r->K,
        .rule = c->rule,
        .format = r->format,
        .group = r->group ? r->group : 32,
        .tile = r->tile ? r->tile : 1};
    set_strides(j.src_stride, (int64_t)r->M * r->K, r->K, 1);
    if (grouped) {
        j.offsets = add_offsets(v, r, r->M - 10);
        j.n_groups = r->E;
        if (!j.offsets) return MX8_OUT_OF_MEMORY;
    }
    if (!add_codes(v, c, &j)) return MX8_OUT_OF_MEMORY;
    mx8i_reference_quantize(&j);
    return MX8_OK;
}

static enum mx8_status make_dequantized(struct mx8_vector *v, const struct row *r) {
    int64_t blocks = count_blocks(r->K);
    uint8_t *codes = add_tensor(v, "codes", 0, r->format, 2, SHAPE(r->M, r->K));
    uint8_t *scales = add_tensor(v, "scales", 0, MX8_F8_E8M0, 2, SHAPE(r->M, blocks));
    void *x = add_tensor(v, "x", 1, r->dtype, 2, SHAPE(r->M, r->K));
    if (!codes || !scales || !x) return MX8_OUT_OF_MEMORY;
    mx8i_fill_bytes(codes, (int64_t)r->M * r->K, 1);
    mx8i_fill_bytes(scales, r->M * blocks, 2);
    struct mx8_dequant_job j = {.dst = x,
        .dst_dtype = r->dtype,
        .rows = r->M,
        .cols = r->K,
        .dst_stride = {r->K, 1},
        .codes = codes,
        .code_stride = {r->K, 1},
        .scales = scales,
        .scale_stride = {blocks, 1},
        .format = r->format};
    mx8i_reference_dequantize(&j);
    return MX8_OK;
}

static enum mx8_status make_blocked(struct mx8_vector *v, const struct row *r) {
    int64_t E = r->layout == MX8_LAYOUT_PER_EXPERT ? r->E : 1, R = r->M, C = r->K;
    int64_t Rp = round_up(R, 128), Cp = round_up(C, 4);
    int grouped = r->layout == MX8_LAYOUT_M_GROUPS || r->layout == MX8_LAYOUT_K_GROUPS;
    struct mx8_layout_job j = {.E = E, .R = R, .C = C, .layout = r->layout};
    j.plain = r->layout == MX8_LAYOUT_PER_EXPERT ? add_tensor(v, "scales", 0, MX8_F8_E8M0, 3, SHAPE(E, R, C))
                                                 : add_tensor(v, "scales", 0, MX8_F8_E8M0, 2, SHAPE(R, C));
    if (!j.plain) return MX8_OUT_OF_MEMORY;
    mx8i_fill_bytes(j.plain, E * R * C, 3);
    set_strides(j.plain_stride, R * C, C, 1);
    if (grouped) {
        j.offsets = add_offsets(v, r, r->layout == MX8_LAYOUT_M_GROUPS ? R - 6 : C - 3);
        j.n_groups = r->E;
        if (!j.offsets) return MX8_OUT_OF_MEMORY;
    }
    if (r->layout == MX8_LAYOUT_PLAIN) j.blocked = add_tensor(v, "blocked", 1, MX8_F8_E8M0, 1, SHAPE(Rp * Cp));
    if (r->layout == MX8_LAYOUT_PER_EXPERT) j.blocked = add_tensor(v, "blocked", 1, MX8_F8_E8M0, 2, SHAPE(E, Rp * Cp));
    if (r->layout == MX8_LAYOUT_M_GROUPS)
        j.blocked = add_tensor(v, "blocked", 1, MX8_F8_E8M0, 2, SHAPE(R + 128 * r->E, Cp));
    if (r->layout == MX8_LAYOUT_K_GROUPS)
        j.blocked = add_tensor(v, "blocked", 1, MX8_F8_E8M0, 2, SHAPE(Rp, C + 4 * r->E));
    if (grouped) j.starts = add_tensor(v, "starts", 1, MX8_I64, 1, SHAPE(r->E + 1));
    if (!j.blocked || (grouped && !j.starts)) return MX8_OUT_OF_MEMORY;
    mx8i_reference_block_scales(&j);
    return MX8_OK;
}

static enum mx8_status make_padded(struct mx8_vector *v, const struct row *r) {
    struct mx8_input_shape shape = {.batch = 1, .rows = r->M, .cols = r->K, .format = E4M3};
    int64_t padded_rows = round_up(r->M + 32 * r->E, 32);
    float *x = add_tensor(v, "x", 0, MX8_F32, 2, SHAPE(r->M, r->K));
    int32_t *offsets = x ? add_offsets(v, r, r->M - 7) : NULL;
    float *padded = add_tensor(v, "padded", 1, MX8_F32, 2, SHAPE(padded_rows, r->K));
    int32_t *starts = add_tensor(v, "starts", 1, MX8_I32, 1, SHAPE(r->E));
    int32_t *ends = add_tensor(v, "ends", 1, MX8_I32, 1, SHAPE(r->E));
    if (!x || !offsets || !padded || !starts || !ends) return MX8_OUT_OF_MEMORY;
    mx8i_fill_matrix(x, MX8_F32, &shape);
    struct mx8_pad_job j = {.padded = padded,
        .x = x,
        .rows = r->M,
        .padded_rows = padded_rows,
        .cols = r->K,
        .elem_size = sizeof(float),
        .x_stride = r->K,
        .padded_stride = r->K,
        .offsets = offsets,
        .n_groups = r->E,
        .alignment = 32,
        .starts = starts,
        .ends = ends};
    mx8i_reference_pad_groups(&j);
    return MX8_OK;
}

static void name_case(struct mx8_vector *v, const struct one *c) {
    const struct row *r = c->row;
    int quantizes = !strncmp(r->operation, "quantize", 8);
    int n = snprintf(v->name, sizeof v->name, "%s", r->name);
    if (r->format)
        n += snprintf(v->name + n, sizeof v->name - (size_t)n, "-%s",
            r->format == E4M3   ? "e4m3"
            : r->format == E5M2 ? "e5m2"
                                : "e8m0");
    if (quantizes)
        snprintf(v->name + n, sizeof v->name - (size_t)n, "-%s-%s", mx8i_get_rule_name(c->rule),
            mx8_get_dtype_name(r->dtype));
}

enum mx8_status mx8i_make_vector(int32_t index, struct mx8_vector *out) {
    struct one cases[MAX_CASES];
    memset(out, 0, sizeof *out);
    if (index < 0 || index >= list_cases(cases))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_make_vector: index is %d, expected 0 to %d", (int)index,
            (int)list_cases(cases) - 1);
    const struct one *c = &cases[index];
    const struct row *r = c->row;
    out->operation = r->operation;
    out->options = (struct mx8_op_options){
        .scale_rule = c->rule, .scale_group = r->group, .tile_rows = r->tile, .format = r->format, .layout = r->layout};
    if (!strcmp(r->operation, "dequantize")) out->options.out_dtype = 1 + r->dtype;
    name_case(out, c);
    if (!strcmp(r->operation, "encode") || !strcmp(r->operation, "decode")) return make_elements(out, r);
    if (!strcmp(r->operation, "dequantize")) return make_dequantized(out, r);
    if (!strcmp(r->operation, "block_scales")) return make_blocked(out, r);
    if (!strcmp(r->operation, "group_pad")) return make_padded(out, r);
    return make_quantized(out, c);
}
