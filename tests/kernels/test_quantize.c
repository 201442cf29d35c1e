/* Quantizers and dequantizer: every instruction set and thread count gives the bytes of the scalar reference, in the
 * outputs, in the gaps between them and behind them. */
#include "model_testing.h"

enum source_layout { ROW_MAJOR, PITCHED, TRANSPOSED, EVERY_SECOND };
enum output_layout { STORED, LOGICAL, GAPPED }; /* columns stored transposed; as the source lies; nothing contiguous */
enum { ROWS = 1, COLS = 2, BOTH = 3 };

struct quant_case {
    int64_t batch, rows, cols;
    int orientation, source, output;
    int32_t group, tile, n_groups;
    const int32_t *offsets;
    int32_t col_tile, padding;
};

static const int32_t ragged[] = {33, 33, 70, 70, 101}, whole[] = {32, 96, 128}, nothing[] = {0, 0}, one[] = {1};
static const int32_t many[] = {1,  2,  2,  5,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                               23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 67, 68, 69, 70, 71, 72, 73, 74};
static const struct quant_case cases[] = {
    {1, 0, 40, BOTH, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
    {1, 40, 0, BOTH, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
    {0, 40, 40, BOTH, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
    {1, 1, 1, BOTH, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
    {1, 31, 33, BOTH, ROW_MAJOR, STORED, 32, 1, 0, NULL, 0, 0},
    {1, 32, 32, BOTH, ROW_MAJOR, STORED, 32, 1, 0, NULL, 0, 0},
    {1, 33, 31, BOTH, ROW_MAJOR, LOGICAL, 0, 0, 0, NULL, 0, 0},
    {1, 64, 256, BOTH, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
    {1, 96, 544, BOTH, PITCHED, STORED, 0, 0, 0, NULL, 0, 0},
    {1, 65, 288, ROWS, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
    {1, 67, 64, ROWS, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
    {2, 21, 480, ROWS, ROW_MAJOR, STORED, 32, 1, 0, NULL, 0, 0},
    {1, 21, 480, ROWS, PITCHED, STORED, 32, 1, 0, NULL, 0, 0},
    {1, 21, 512, ROWS, ROW_MAJOR, STORED, 256, 1, 0, NULL, 0, 0},
    {1, 21, 320, ROWS, ROW_MAJOR, STORED, 256, 1, 0, NULL, 0, 0},
    {1, 129, 288, COLS, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
    {3, 96, 64, COLS, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
    {2, 45, 70, BOTH, PITCHED, GAPPED, 0, 0, 0, NULL, 0, 0},
    {1, 64, 96, BOTH, TRANSPOSED, STORED, 0, 0, 0, NULL, 0, 0},
    {2, 50, 50, BOTH, EVERY_SECOND, LOGICAL, 0, 0, 0, NULL, 0, 0},
    {1, 300, 520, BOTH, ROW_MAJOR, STORED, 128, 1, 0, NULL, 0, 0},
    {1, 300, 520, BOTH, ROW_MAJOR, STORED, 256, 1, 0, NULL, 0, 0},
    {1, 300, 520, BOTH, ROW_MAJOR, STORED, 256, 32, 0, NULL, 0, 0},
    {1, 130, 290, BOTH, PITCHED, GAPPED, 128, 128, 0, NULL, 0, 0},
    {1, 256, 256, BOTH, ROW_MAJOR, STORED, 256, 128, 0, NULL, 0, 0},
    {1, 70, 70, BOTH, ROW_MAJOR, STORED, 32, 32, 0, NULL, 0, 0},
    {1, 110, 96, BOTH, ROW_MAJOR, STORED, 0, 0, 5, ragged, 0, 0},
    {1, 140, 96, BOTH, ROW_MAJOR, STORED, 0, 0, 3, whole, 0, 0},
    {1, 110, 300, BOTH, PITCHED, GAPPED, 256, 32, 5, ragged, 0, 0},
    {1, 20, 40, BOTH, ROW_MAJOR, STORED, 0, 0, 2, nothing, 0, 0},
    {1, 1, 64, BOTH, ROW_MAJOR, STORED, 0, 0, 1, one, 0, 0},
    {1, 80, 33, BOTH, ROW_MAJOR, STORED, 0, 0, 40, many, 0, 0},
    {1, 110, 96, BOTH, ROW_MAJOR, STORED, 0, 0, 5, ragged, 0, 128},
    {1, 110, 290, BOTH, ROW_MAJOR, GAPPED, 256, 1, 5, ragged, 32, 256},
    {1, 300, 520, BOTH, ROW_MAJOR, STORED, 256, 128, 0, NULL, 1, 128},
    {1, 300, 520, COLS, ROW_MAJOR, STORED, 256, 1, 0, NULL, 32, 0},
    {1, 80, 288, COLS, ROW_MAJOR, LOGICAL, 128, 1, 40, many, 0, 0},
    {1, 80, 288, ROWS, TRANSPOSED, GAPPED, 128, 1, 40, many, 0, 0},
};
enum { N_CASES = sizeof cases / sizeof *cases, POISON = 0xA5 };

/* Floats around one exponent per block of source memory, with mantissas that often lie on a tie; some blocks hold
 * zeros, subnormals, the largest floats, NaN or Inf. */
static float make_value(int64_t i) {
    uint32_t word[4], block[4];
    mx8i_philox(5, 1, (uint64_t)i, word);
    mx8i_philox(5, 2, (uint64_t)(i / 37), block);
    static const uint32_t keep[] = {0x7FFFFF, 0x780000, 0x7C0000, 0x700000, 0x7C0001, 0x600001, 0, 0x7FFFFF};
    uint32_t kind = block[0] % 16, exponent = 20 + block[1] % 200 - word[0] % 19;
    uint32_t bits = (word[1] & 1) << 31 | exponent << 23 | (word[2] & keep[word[3] % 8]);
    if (kind == 0) bits &= 0x80000000;                                           /* zeros of both signs */
    if (kind == 1) bits &= 0x803FFFFF;                                           /* subnormals */
    if (kind == 2 && word[3] % 11 == 0) bits = 0x7F7FFFFF - (word[2] & 0xFFFFF); /* up to the largest float */
    if (kind == 3 && word[3] % 29 == 0) bits |= 0x7F800001;                      /* NaN */
    if (kind == 4 && word[3] % 29 == 0) bits = (bits & 0x80000000) | 0x7F800000; /* Inf */
    if (kind == 5) bits = (bits & 0x80000000) | (0x04600000 + word[2] % 3);      /* around 448 * 2^-127 */
    if (kind == 6) bits = (bits & 0x80000000) | (0x07E00000 + word[2] % 3);      /* the same of e5m2 */
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* What models hold: a few binades around 2^-3, now and then far below or zero. No block needs a special case, so this
 * is what a kernel's quick ways see. */
static float make_plain_value(int64_t i) {
    uint32_t word[4];
    mx8i_philox(5, 3, (uint64_t)i, word);
    uint32_t exponent = 124 - word[0] % (word[1] % 16 ? 6 : 22), bits = exponent << 23 | (word[2] & 0x7FFFFF);
    if (word[3] % 4 == 0) bits &= 0xFFF80000; /* ties */
    if (word[3] % 64 == 1) bits = 0;
    bits |= (word[1] & 0x10000) << 15;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void *make_source(int32_t dtype, int64_t n, int plain) {
    void *data = make_zeros(dtype, n);
    for (int64_t i = 0; i < n; i++) {
        float value = plain ? make_plain_value(i) : make_value(i);
        if (dtype == MX8_F32) ((float *)data)[i] = value;
        else ((uint16_t *)data)[i] = mx8_encode_bf16(value);
    }
    return data;
}

/* Strides of a (B,R,C) array: row-major or with columns outermost inside a batch entry, `step` between neighbours. */
static int64_t set_strides(
    int64_t stride[3], int64_t B, int64_t R, int64_t C, int transposed, int64_t step, int64_t gap) {
    int64_t inner = (transposed ? R : C) * step + gap;
    stride[transposed ? 1 : 2] = step;
    stride[transposed ? 2 : 1] = inner;
    stride[0] = (transposed ? C : R) * inner + gap;
    return B * stride[0];
}

static int64_t set_source(struct mx8_quant_job *j, int layout) {
    if (layout == TRANSPOSED) return set_strides(j->src_stride, j->batch, j->rows, j->cols, 1, 1, 0);
    return set_strides(
        j->src_stride, j->batch, j->rows, j->cols, 0, layout == EVERY_SECOND ? 2 : 1, layout != ROW_MAJOR);
}

/* The four outputs and what else a job writes, each poisoned and with a guard. */
struct outputs {
    struct span span[5];
    int32_t ends[64];
};

static int64_t round_up_to_block(int64_t n) { return (n + 31) / 32 * 32; }

static void set_outputs(struct mx8_quant_job *j, const struct quant_case *c, struct outputs *o) {
    int64_t blocks = round_up_to_block(j->cols) / 32, lines = round_up_to_block(j->padded_rows) / 32;
    int64_t step = c->output == GAPPED ? 3 : 1, gap = c->output == GAPPED ? 5 : 0;
    int transposed = c->output == STORED;
    int64_t size[4] = {
        set_strides(j->row_code_stride, j->batch, j->rows, j->cols, 0, step, gap),
        set_strides(j->row_scale_stride, j->batch, j->rows, blocks, 0, step, gap),
        set_strides(j->col_code_stride, j->batch, j->padded_rows, j->cols, transposed, step, gap),
        set_strides(j->col_scale_stride, j->batch, lines, j->cols, transposed, step, gap),
    };
    for (int i = 0; i < 4; i++) {
        o->span[i] = (struct span){make_zeros(MX8_U8, size[i]), (size_t)size[i]};
        assert_non_null(o->span[i].data);
        memset(o->span[i].data, POISON, (size_t)size[i]);
    }
    memset(o->ends, POISON, sizeof o->ends);
    o->span[4] = (struct span){o->ends, sizeof o->ends};
    j->row_codes = c->orientation & ROWS ? o->span[0].data : NULL;
    j->row_scales = c->orientation & ROWS ? o->span[1].data : NULL;
    j->col_codes = c->orientation & COLS ? o->span[2].data : NULL;
    j->col_scales = c->orientation & COLS ? o->span[3].data : NULL;
    j->padded_ends = c->n_groups ? o->ends : NULL;
}

static void free_outputs(struct outputs *o) {
    for (int i = 0; i < 4; i++) free(o->span[i].data);
}

static const char *describe(const struct quant_case *c, const struct mx8_quant_job *j) {
    static char text[160];
    int at = c >= cases && c < cases + N_CASES ? (int)(c - cases) : -1;
    snprintf(text, sizeof text, "case %d, %s, rule %d, %s", at, mx8_get_dtype_name(j->src_dtype),
        (int)j->rule, mx8_get_dtype_name(j->format ? j->format : MX8_F8_E4M3));
    return text;
}

static void check_case(const struct mx8_kernels *k, const struct quant_case *c, int32_t dtype, int32_t rule,
    int32_t format, int plain) {
    struct mx8_quant_job want = {.batch = c->batch,
        .rows = c->rows,
        .cols = c->cols,
        .src_dtype = dtype,
        .rule = rule,
        .format = format,
        .group = c->group,
        .tile = c->tile,
        .offsets = c->offsets,
        .n_groups = c->n_groups,
        .col_tile = c->col_tile,
        .padding = c->padding};
    want.padded_rows = round_up_to_block(c->rows) + (c->padding > 32 ? c->padding : 32) * c->n_groups;
    if (c->output == LOGICAL && c->n_groups == 0) want.padded_rows = c->rows; /* no room for padding */
    void *source = make_source(dtype, set_source(&want, c->source), plain);
    want.src = source;
    struct mx8_quant_job got = want;
    struct outputs expected, actual;
    int64_t saturated = 7, saturated_expected = 7;
    set_outputs(&want, c, &expected);
    set_outputs(&got, c, &actual);
    want.saturated = &saturated_expected;
    got.saturated = &saturated;
    mx8i_reference_quantize(&want);

    struct replay r;
    begin_replay(&r, k, actual.span, 5);
    while (next_replay(&r)) {
        saturated = 7;
        assert_ok(k->quantize(&r.exec, &got));
        if (saturated != saturated_expected)
            fail_msg("%s: %lld values saturated, expected %lld", describe(c, &got), (long long)saturated,
                (long long)saturated_expected);
    }
    for (int i = 0; i < 5; i++) {
        const uint8_t *a = actual.span[i].data, *e = expected.span[i].data;
        for (size_t at = 0; at < expected.span[i].bytes; at++)
            if (a[at] != e[at])
                fail_msg("%s %s: output %d byte %zu is 0x%02x, expected 0x%02x", k->name, describe(c, &got), i, at,
                    a[at], e[at]);
    }
    free_outputs(&expected);
    free_outputs(&actual);
    free(source);
}

static void quantize_cases(const struct mx8_kernels *k) {
    static const int32_t formats[] = {0, MX8_F8_E4M3, MX8_F8_E5M2};
    for (int i = 0; i < N_CASES; i++)
        for (int32_t rule = 0; rule < 4; rule++)
            for (int d = 0; d < 2; d++)
                check_case(k, &cases[i], both_dtypes[d], rule, formats[(i + rule) % 3], (i + rule + d) % 2);
}

/* Outputs so large that kernels write them past the caches; the last strip of rows is half a strip. Rows that are read
 * whole, as long as a kernel does so, and of odd length; rows that are just too long; long ones, in strips of every
 * height: 256, 64 and 32 rows, or tied together; and a change of height behind an odd number of strips. */
static void large_output(const struct mx8_kernels *k) {
    static const struct quant_case large[] = {{1, 2080, 2048, BOTH, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
        {1, 330, 1103, BOTH, PITCHED, STORED, 0, 0, 0, NULL, 0, 0},
        {1, 270, 2049, COLS, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
        {1, 608, 2400, BOTH, PITCHED, STORED, 256, 1, 0, NULL, 0, 0},
        {1, 608, 2400, BOTH, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0},
        {1, 992, 1088, COLS, ROW_MAJOR, STORED, 0, 0, 0, NULL, 0, 0}};
    const int n = sizeof large / sizeof *large;
    for (int i = 0; i < n; i++) check_case(k, &large[i], both_dtypes[(i + 1) % 2], MX8_SCALE_RCEIL, MX8_F8_E4M3, i != 1);
    check_case(k, &large[n - 2], MX8_BF16, MX8_SCALE_FLOOR, MX8_F8_E5M2, 0);
}

/* Every bf16 pattern, each in a block whose largest magnitude is 448, so that the factor is 1 or near it. */
static void every_bf16(const struct mx8_kernels *k) {
    enum { N = 65536, WIDTH = 32, PER_BLOCK = 31 };
    int64_t rows = (N + PER_BLOCK - 1) / PER_BLOCK;
    uint16_t *x = make_zeros(MX8_BF16, rows * WIDTH);
    for (int64_t i = 0; i < N; i++) {
        uint16_t bits = (uint16_t)i;
        x[i / PER_BLOCK * WIDTH + 1 + i % PER_BLOCK] = (bits & 0x7FFF) > 0x43E0 ? 0 : bits;
    }
    for (int64_t r = 0; r < rows; r++) x[r * WIDTH] = 0x43E0;
    for (int32_t format = MX8_F8_E4M3; format <= MX8_F8_E5M2; format++) {
        uint8_t *codes = make_zeros(MX8_U8, rows * WIDTH), *scales = make_zeros(MX8_U8, rows);
        struct mx8_quant_job j = {.src = x, .src_dtype = MX8_BF16, .batch = 1, .rows = rows, .cols = WIDTH,
            .src_stride = {0, WIDTH, 1}, .row_codes = codes, .row_code_stride = {0, WIDTH, 1}, .row_scales = scales,
            .row_scale_stride = {0, 1, 1}, .padded_rows = rows, .format = format};
        struct replay r;
        begin_replay(&r, k, (struct span[]){{codes, (size_t)(rows * WIDTH)}, {scales, (size_t)rows}}, 2);
        while (next_replay(&r)) assert_ok(k->quantize(&r.exec, &j));
        for (int64_t i = 0; i < rows * WIDTH; i++) {
            float value = mx8_decode_bf16(x[i]) * mx8_invert_e8m0(scales[i / WIDTH]);
            uint8_t expected = format == MX8_F8_E5M2 ? mx8_encode_e5m2(value) : mx8_encode_e4m3(value);
            if (codes[i] != expected) fail_msg("bf16 0x%04x gave 0x%02x, expected 0x%02x", x[i], codes[i], expected);
        }
        free(codes);
        free(scales);
    }
    free(x);
}

static int same_value(const void *a, const void *b, int32_t dtype, int64_t i) {
    double left = value_at(a, dtype, i), right = value_at(b, dtype, i);
    return isnan(left) ? isnan(right) : left == right && signbit(left) == signbit(right);
}

static void check_dequantize(const struct mx8_kernels *k, int64_t rows, int64_t cols, int gapped, int32_t dtype,
    int32_t format) {
    int64_t blocks = (cols + 31) / 32, step = gapped ? 2 : 1;
    struct mx8_dequant_job j = {.dst_dtype = dtype,
        .rows = rows,
        .cols = cols,
        .format = format,
        .dst_stride = {cols * step + gapped, step},
        .code_stride = {cols * step, step},
        .scale_stride = {blocks * step, step}};
    int64_t n = rows * (cols * step + gapped);
    uint8_t *codes = make_zeros(MX8_U8, rows * cols * step), *scales = make_zeros(MX8_U8, rows * blocks * step);
    void *got = make_zeros(dtype, n), *want = make_zeros(dtype, n);
    for (int64_t i = 0; i < rows * cols * step; i++) codes[i] = (uint8_t)(i * 7 + i / 256);
    for (int64_t i = 0; i < rows * blocks * step; i++) scales[i] = (uint8_t)(i * 85 + i / 3);
    j.codes = codes;
    j.scales = scales;
    j.dst = want;
    mx8i_reference_dequantize(&j);
    j.dst = got;
    struct replay r;
    begin_replay(&r, k, &(struct span){got, (size_t)n * mx8_get_dtype_size(dtype)}, 1);
    while (next_replay(&r)) assert_ok(k->dequantize(&r.exec, &j));
    for (int64_t i = 0; i < n; i++)
        if (!same_value(got, want, dtype, i))
            fail_msg("%s dequantize %lldx%lld to %s: element %lld is %g, expected %g", k->name, (long long)rows,
                (long long)cols, mx8_get_dtype_name(dtype), (long long)i, value_at(got, dtype, i),
                value_at(want, dtype, i));
    free(codes);
    free(scales);
    free(got);
    free(want);
}

static void dequantize_cases(const struct mx8_kernels *k) {
    static const int64_t shapes[][2] = {{0, 5}, {5, 0}, {1, 1}, {3, 31}, {256, 32}, {300, 64}, {17, 300}, {600, 33}};
    for (int i = 0; i < 8; i++)
        for (int variant = 0; variant < 8; variant++)
            check_dequantize(k, shapes[i][0], shapes[i][1], variant & 1, both_dtypes[variant / 2 % 2],
                variant & 4 ? MX8_F8_E5M2 : MX8_F8_E4M3);
}

static void test_quantize(void **state) {
    (void)state;
    for_every_isa(quantize_cases);
}

static void test_large_output(void **state) {
    (void)state;
    for_every_isa(large_output);
}

static void test_every_bf16(void **state) {
    (void)state;
    for_every_isa(every_bf16);
}

static void test_dequantize(void **state) {
    (void)state;
    for_every_isa(dequantize_cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_large_output),
        cmocka_unit_test(test_every_bf16),
        cmocka_unit_test(test_dequantize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
