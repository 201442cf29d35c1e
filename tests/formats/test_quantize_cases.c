/* Quantizing by hand: small inputs whose bytes can be worked out on paper, and dequantizing everything there is. */
#include <math.h>
#include "test.h"
#include "formats/elements.h"
#include "formats/jobs.h"

#define POISON       0xA5
#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* By hand: 300 ones with a 448 at 5, an 896 at 200 and 2^-20 from 256 on; the scale group's largest value decides. */
static void scale_groups_by_hand(void **state) {
    (void)state;
    static const struct {
        int32_t group;
        uint8_t scales[10];
    } table[] = {{32, {127, 119, 119, 119, 119, 119, 128, 119, 99, 99}},
        {128, {127, 127, 127, 127, 128, 128, 128, 128, 99, 99}},
        {256, {128, 128, 128, 128, 128, 128, 128, 128, 99, 99}}};
    float x[300];
    uint8_t codes[300], scales[10];
    for (int i = 0; i < 300; i++) x[i] = i < 256 ? 1.0f : 0x1p-20f;
    x[5] = 448.0f;
    x[200] = -896.0f;
    for (int t = 0; t < COUNT(table); t++) {
        struct mx8_quant_job job = {.src = x,
            .src_dtype = MX8_F32,
            .batch = 1,
            .rows = 1,
            .cols = 300,
            .src_stride = {300, 300, 1},
            .row_codes = codes,
            .row_code_stride = {300, 300, 1},
            .row_scales = scales,
            .row_scale_stride = {10, 10, 1},
            .rule = MX8_SCALE_RCEIL,
            .format = MX8_F8_E4M3,
            .group = table[t].group};
        mx8i_reference_quantize(&job);
        assert_memory_equal(scales, table[t].scales, sizeof scales);
        assert_int_equal(codes[200], 0xFE);
        assert_int_equal(codes[5], table[t].group == 256 ? 0x76 : 0x7E);
        assert_int_equal(codes[299], 0x78);
    }
}

/* A stored line that has no room for padding: nothing is written behind `rows`. */
static void lines_without_room(void **state) {
    (void)state;
    float x[33 * 2];
    uint8_t codes[2 * 33 + 1], scales[2 * 2 + 1];
    for (int i = 0; i < 66; i++) x[i] = i < 64 ? 1.0f : 448.0f;
    memset(codes, POISON, sizeof codes);
    memset(scales, POISON, sizeof scales);
    struct mx8_quant_job job = {.src = x,
        .src_dtype = MX8_F32,
        .batch = 1,
        .rows = 33,
        .cols = 2,
        .src_stride = {66, 2, 1},
        .col_codes = codes,
        .col_code_stride = {66, 1, 33},
        .col_scales = scales,
        .col_scale_stride = {4, 1, 2},
        .padded_rows = 33,
        .rule = MX8_SCALE_RCEIL,
        .format = MX8_F8_E4M3};
    mx8i_reference_quantize(&job);
    for (int i = 0; i < 66; i++) assert_int_equal(codes[i], i % 33 < 32 ? 0x78 : 0x7E);
    for (int i = 0; i < 4; i++) assert_int_equal(scales[i], i % 2 ? 127 : 119);
    assert_int_equal(codes[66], POISON);
    assert_int_equal(scales[4], POISON);
}

/* Each of a batch of matrices is quantized as if alone. */
static void batches_are_independent(void **state) {
    (void)state;
    enum { B = 3, ROWS = 40, COLS = 35 };
    float x[B * ROWS * COLS];
    uint8_t codes[B * ROWS * COLS], scales[B * 2 * COLS], one_codes[ROWS * COLS], one_scales[2 * COLS];
    for (int i = 0; i < B * ROWS * COLS; i++) x[i] = (float)(i * 37 % 101 - 50) * (float)(1 + i % 7);
    struct mx8_quant_job job = {.src = x,
        .src_dtype = MX8_F32,
        .batch = B,
        .rows = ROWS,
        .cols = COLS,
        .src_stride = {ROWS * COLS, COLS, 1},
        .col_codes = codes,
        .col_code_stride = {ROWS * COLS, 1, ROWS},
        .col_scales = scales,
        .col_scale_stride = {2 * COLS, COLS, 1},
        .padded_rows = ROWS,
        .format = MX8_F8_E4M3};
    mx8i_reference_quantize(&job);
    for (int b = 0; b < B; b++) {
        struct mx8_quant_job one = job;
        one.batch = 1;
        one.src = x + b * ROWS * COLS;
        one.col_codes = one_codes;
        one.col_scales = one_scales;
        mx8i_reference_quantize(&one);
        assert_memory_equal(codes + b * ROWS * COLS, one_codes, sizeof one_codes);
        assert_memory_equal(scales + b * 2 * COLS, one_scales, sizeof one_scales);
    }
}

/* What FLOOR clips: scaled values above 464 in e4m3, from 61440 on in e5m2. Blocks of NaN do not count. */
static void counts_clipped_values(void **state) {
    (void)state;
    static const struct {
        int32_t format;
        float unit;
        float value[8];
        int clipped;
    } table[] = {{MX8_F8_E4M3, 1.0f, {511, -448, 449, 464, -465, 480, -511, 256}, 4},
        {MX8_F8_E4M3, 0x1p-40f, {511, -448, 449, 464, -465, 480, -511, 256}, 4},
        {MX8_F8_E5M2, 1.0f, {65535, 57344, -57345, 61439, 61440, -61440, 1, 0}, 3}};
    for (int t = 0; t < COUNT(table); t++) {
        float x[64] = {0};
        uint8_t codes[64], scales[2];
        int64_t saturated = 100;
        for (int i = 0; i < 8; i++) x[i] = x[32 + i] = table[t].value[i] * table[t].unit;
        x[40] = mx8i_make_float(0x7F800000);
        struct mx8_quant_job job = {.src = x,
            .src_dtype = MX8_F32,
            .batch = 1,
            .rows = 1,
            .cols = 64,
            .src_stride = {64, 64, 1},
            .row_codes = codes,
            .row_code_stride = {64, 64, 1},
            .row_scales = scales,
            .row_scale_stride = {2, 2, 1},
            .rule = MX8_SCALE_FLOOR,
            .format = table[t].format,
            .saturated = &saturated};
        mx8i_reference_quantize(&job);
        assert_int_equal(saturated, 100 + table[t].clipped);
        assert_int_equal(scales[1], 255);
        for (int i = 32; i < 64; i++) assert_int_equal(codes[i], 0x7F);
    }
}

/* Every code with every scale, at the end of a short block. The double product is exact; what a float cannot hold is
 * Inf, and bf16 rounds once, where it is subnormal. */
static void dequantizes_every_pair(void **state) {
    (void)state;
    enum { COLS = 37 };
    uint8_t codes[COLS], scales[2];
    float wide[COLS];
    uint16_t narrow[COLS];
    for (int n = 0; n < 2 * 256 * 256; n++) {
        int32_t format = n % 2 ? MX8_F8_E4M3 : MX8_F8_E5M2;
        memset(codes, n % 2 ? 0x38 : 0x3C, sizeof codes);
        codes[36] = (uint8_t)(n >> 1);
        scales[0] = 127;
        scales[1] = (uint8_t)(n >> 9);
        struct mx8_dequant_job job = {.dst = wide,
            .dst_dtype = MX8_F32,
            .rows = 1,
            .cols = COLS,
            .dst_stride = {COLS, 1},
            .codes = codes,
            .code_stride = {COLS, 1},
            .scales = scales,
            .scale_stride = {2, 1},
            .format = format};
        mx8i_reference_dequantize(&job);
        job.dst = narrow;
        job.dst_dtype = MX8_BF16;
        mx8i_reference_dequantize(&job);
        double product = (double)mx8i_decode_element(codes[36], format) * (double)mx8_decode_e8m0(scales[1]);
        assert_true(wide[31] == 1.0f && narrow[31] == 0x3F80);
        if (isnan(product)) {
            assert_true(isnan(wide[36]) && (narrow[36] & 0x7FFF) > 0x7F80);
        } else {
            assert_int_equal(mx8i_get_float_bits(wide[36]), mx8i_get_float_bits((float)product));
            assert_int_equal(narrow[36], mx8_encode_bf16((float)product));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_groups_by_hand),
        cmocka_unit_test(lines_without_room),
        cmocka_unit_test(batches_are_independent),
        cmocka_unit_test(counts_clipped_values),
        cmocka_unit_test(dequantizes_every_pair),
    };
    return cmocka_run_group_tests_name("formats.quantize_cases", tests, NULL, NULL);
}
