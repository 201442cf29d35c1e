/* The scalar reference against bytes made by torchao itself. */
#include "fixtures.h"
#include "formats/jobs.h"

static const char *const rule_names[] = {"rceil", "floor", "ceil", "even"}; /* by enum mx8_scale_rule */
static const char *const type_names[] = {"f32", "bf16"};                    /* by enum mx8_dtype */

static struct mx8_quant_job describe(const struct mx8_st_entry *x, int32_t rule, int32_t format) {
    int64_t rows = x->shape[x->ndim - 2], cols = x->shape[x->ndim - 1];
    return (struct mx8_quant_job){.src = x->data,
        .src_dtype = x->dtype,
        .batch = x->ndim == 3 ? x->shape[0] : 1,
        .rows = rows,
        .cols = cols,
        .src_stride = {rows * cols, cols, 1},
        .padded_rows = rows,
        .rule = rule,
        .format = format,
        .group = 32,
        .tile = 1};
}

static void check_rows(const char *name, int32_t rule, int32_t format) {
    const struct mx8_st_entry *x = get_fixture("%s.x", name);
    const char *suffix = format == MX8_F8_E5M2 ? ".e5m2" : "";
    const struct mx8_st_entry *q = get_fixture("%s.%s%s.q", name, rule_names[rule], suffix);
    const struct mx8_st_entry *s = get_fixture("%s.%s%s.s", name, rule_names[rule], suffix);
    int64_t cols = x->shape[1], blocks = s->shape[1];
    assert_true(blocks == cols / MX8_BLOCK);

    uint8_t *codes = make_bytes(q->size), *scales = make_bytes(s->size);
    struct mx8_quant_job job = describe(x, rule, format);
    job.row_codes = codes;
    job.row_code_stride[1] = cols;
    job.row_code_stride[2] = 1;
    job.row_scales = scales;
    job.row_scale_stride[1] = blocks;
    job.row_scale_stride[2] = 1;
    mx8i_reference_quantize(&job);
    check_bytes(s, scales);
    check_codes(q, codes, format);
    free(codes);
    free(scales);
}

static void rows_in_every_rule(void **state) {
    (void)state;
    static const char *const kinds[] = {"normal", "heavy", "outlier", "wide", "sweep", "special"};
    for (int type = 0; type < 2; type++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            char name[64];
            snprintf(name, sizeof name, "%s.%s", type_names[type], kinds[k]);
            for (int32_t rule = 0; rule < 4; rule++) check_rows(name, rule, MX8_F8_E4M3);
        }
    }
}

static void rows_in_e5m2(void **state) {
    (void)state;
    static const char *const kinds[] = {"normal", "heavy", "outlier", "wide"};
    for (int type = 0; type < 2; type++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            char name[64];
            snprintf(name, sizeof name, "%s.%s", type_names[type], kinds[k]);
            check_rows(name, MX8_SCALE_RCEIL, MX8_F8_E5M2);
            check_rows(name, MX8_SCALE_FLOOR, MX8_F8_E5M2);
        }
    }
}

/* Codes and scales are torchao's own, so that this stands apart from quantizing. */
static void dequantized_values(void **state) {
    (void)state;
    static const char *const kinds[] = {"normal", "heavy", "outlier", "wide"};
    for (int32_t dtype = MX8_F32; dtype <= MX8_BF16; dtype++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            for (int32_t rule = MX8_SCALE_RCEIL; rule <= MX8_SCALE_FLOOR; rule++) {
                const char *type = type_names[dtype], *mode = rule_names[rule];
                const struct mx8_st_entry *q = get_fixture("%s.%s.%s.q", type, kinds[k], mode);
                const struct mx8_st_entry *s = get_fixture("%s.%s.%s.s", type, kinds[k], mode);
                const struct mx8_st_entry *want = get_fixture("%s.%s.%s.dq", type, kinds[k], mode);
                void *values = make_bytes(want->size);
                struct mx8_dequant_job job = {.dst = values,
                    .dst_dtype = dtype,
                    .rows = q->shape[0],
                    .cols = q->shape[1],
                    .dst_stride = {q->shape[1], 1},
                    .codes = q->data,
                    .code_stride = {q->shape[1], 1},
                    .scales = s->data,
                    .scale_stride = {s->shape[1], 1},
                    .format = MX8_F8_E4M3};
                mx8i_reference_dequantize(&job);
                check_bytes(want, values);
                free(values);
            }
        }
    }
}

/* Blocks along M, stored transposed: codes (K,M), scales (K,M/32). */
static void columns(void **state) {
    (void)state;
    const struct mx8_st_entry *x = get_fixture("col.x");
    int64_t M = x->shape[0];
    for (int32_t rule = MX8_SCALE_RCEIL; rule <= MX8_SCALE_FLOOR; rule++) {
        const struct mx8_st_entry *q = get_fixture("col.%s.q", rule_names[rule]);
        const struct mx8_st_entry *s = get_fixture("col.%s.s", rule_names[rule]);
        uint8_t *codes = make_bytes(q->size), *scales = make_bytes(s->size);
        struct mx8_quant_job job = describe(x, rule, MX8_F8_E4M3);
        job.col_codes = codes;
        job.col_code_stride[1] = 1;
        job.col_code_stride[2] = M;
        job.col_scales = scales;
        job.col_scale_stride[1] = 1;
        job.col_scale_stride[2] = M / MX8_BLOCK;
        mx8i_reference_quantize(&job);
        check_bytes(s, scales);
        check_codes(q, codes, MX8_F8_E4M3);
        free(codes);
        free(scales);
    }
}

/* The seed's operator: w (E,N,K) in blocks along N, codes with strides (N*K, 1, N), scales (E,N/32,K). */
static void expert_weights(void **state) {
    (void)state;
    const struct mx8_st_entry *w = get_fixture("w3d.x");
    int64_t N = w->shape[1], K = w->shape[2];
    for (int32_t rule = MX8_SCALE_RCEIL; rule <= MX8_SCALE_FLOOR; rule++) {
        const struct mx8_st_entry *q = get_fixture("w3d.%s.q_kn", rule_names[rule]);
        const struct mx8_st_entry *s = get_fixture("w3d.%s.s", rule_names[rule]);
        uint8_t *codes = make_bytes(q->size), *scales = make_bytes(s->size);
        struct mx8_quant_job job = describe(w, rule, MX8_F8_E4M3);
        job.col_codes = codes;
        job.col_code_stride[0] = N * K;
        job.col_code_stride[1] = 1;
        job.col_code_stride[2] = N;
        job.col_scales = scales;
        job.col_scale_stride[0] = N / MX8_BLOCK * K;
        job.col_scale_stride[1] = K;
        job.col_scale_stride[2] = 1;
        mx8i_reference_quantize(&job);
        check_bytes(s, scales);
        check_codes(q, codes, MX8_F8_E4M3);
        free(codes);
        free(scales);
    }
}

/* Every tensor of the file is used above: 2 types x 4 kinds with x, 4 rules, 2 e5m2 rules and 2 dequantized ones; 2 x 2
 * with x and 4 rules; two of one x and two rules. */
static void no_fixture_is_left_over(void **state) {
    (void)state;
    assert_int_equal(fixtures.count, 2 * 4 * (1 + 4 * 2 + 2 * 2 + 2) + 2 * 2 * (1 + 4 * 2) + 2 * (1 + 2 * 2));
}

static int open_quantize(void **state) {
    (void)state;
    return open_fixtures("quantize.safetensors");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_in_every_rule),
        cmocka_unit_test(rows_in_e5m2),
        cmocka_unit_test(dequantized_values),
        cmocka_unit_test(columns),
        cmocka_unit_test(expert_weights),
        cmocka_unit_test(no_fixture_is_left_over),
    };
    return cmocka_run_group_tests_name("formats.quantize_oracle", tests, open_quantize, close_fixtures);
}
