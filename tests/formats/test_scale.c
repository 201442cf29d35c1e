/* The scale rules: against their definitions in exact double arithmetic, and against the corners that torchao's own
 * tests fix. */
#include <math.h>
#include "test.h"
#include "formats/elements.h"
#include "formats/jobs.h"

static const struct format {
    int32_t dtype;
    int exponent, mantissa;
    uint32_t rounded; /* torchao's one exception to RCEIL: successor of largest * 2^-127 */
} formats[] = {{MX8_F8_E4M3, 8, 3, 0x04600001}, {MX8_F8_E5M2, 15, 2, 0x07E00001}};
#define FORMAT_COUNT (sizeof formats / sizeof formats[0])

static const int32_t rules[] = {MX8_SCALE_RCEIL, MX8_SCALE_FLOOR, MX8_SCALE_CEIL, MX8_SCALE_EVEN};
static const char *const rule_names[] = {"RCEIL", "FLOOR", "CEIL", "EVEN"};

/* Mantissas at and around the places where some rule turns. */
static const uint32_t mantissas[] = {0, 1, 2, 0x3FFFFF, 0x400000, 0x5FFFFF, 0x600000, 0x600001, 0x600002, 0x6FFFFF,
    0x700000, 0x77FFFF, 0x780000, 0x780001, 0x7FFFFF};
#define MANTISSA_COUNT (sizeof mantissas / sizeof mantissas[0])

/* Doubles hold every float, and every limit below, exactly. */
static int define_scale(double amax, int32_t rule, const struct format *f) {
    double up = rule == MX8_SCALE_RCEIL ? 1.75 : 1.0;
    double even = rule == MX8_SCALE_EVEN ? 1.0 - ldexp(1.0, -f->mantissa - 2) : 1.0;
    int byte;
    if (rule == MX8_SCALE_RCEIL || rule == MX8_SCALE_CEIL) {
        for (byte = 0; amax > ldexp(up, byte - 127 + f->exponent); byte++) continue;
        return byte;
    }
    for (byte = 0; amax >= ldexp(even, byte + 1 - 127 + f->exponent); byte++) continue;
    return byte + f->exponent < 255 ? byte : 255; /* EVEN rounded amax up to 2^128 */
}

static void follows_the_definitions(void **state) {
    (void)state;
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        const struct format *f = &formats[i];
        for (size_t k = 0; k < 4; k++) {
            for (uint32_t n = 0; n < 255 * MANTISSA_COUNT; n++) {
                uint32_t bits = (uint32_t)(n / MANTISSA_COUNT) << 23 | mantissas[n % MANTISSA_COUNT];
                float amax = mx8i_make_float(bits);
                int want = define_scale((double)amax, rules[k], f), got = mx8_compute_scale(amax, rules[k], f->dtype);
                if (rules[k] == MX8_SCALE_RCEIL && bits == f->rounded) want = 0;
                if (got != want) fail_msg("%s, 0x%08X: byte %d, expected %d", rule_names[k], bits, got, want);
            }
        }
    }
}

static void rises_with_amax(void **state) {
    (void)state;
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        for (size_t k = 0; k < 4; k++) {
            int last = 0;
            for (uint32_t bits = 0; bits <= 0x7FFFFFFF; bits += 10007) {
                int byte = mx8_compute_scale(mx8i_make_float(bits), rules[k], formats[i].dtype);
                if (byte < last) fail_msg("%s falls from %d to %d at 0x%08X", rule_names[k], last, byte, bits);
                last = byte;
            }
            assert_int_equal(last, 255);
        }
    }
}

static void not_finite_gives_255(void **state) {
    (void)state;
    static const uint32_t bits[] = {0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFC00000};
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        for (size_t k = 0; k < 4; k++) {
            assert_int_equal(mx8_compute_scale(0.0f, rules[k], formats[i].dtype), 0);
            for (size_t n = 0; n < sizeof bits / sizeof bits[0]; n++)
                assert_int_equal(mx8_compute_scale(mx8i_make_float(bits[n]), rules[k], formats[i].dtype), 255);
        }
    }
}

/* torchao's table of float to e8m0 conversions, moved from amax / 448 to amax: x -> 448 x. */
static void converts_like_the_rceil_table(void **state) {
    (void)state;
    static const struct {
        uint32_t bits;
        int byte;
    } table[] = {{0, 0}, {1, 0}, {0x007FFFFF, 0}, {0x00800000, 0}, {0x04600000, 0}, {0x04600001, 0}, {0x04600002, 1},
        {0x04DFFFFF, 1}, {0x04E00000, 1}, {0x04E00001, 2}, {0x23E00000, 63}, {0x23E00001, 64}, {0x43DFFFFF, 127},
        {0x43E00000, 127}, {0x43E00001, 128}, {0x63E00000, 191}, {0x63E00001, 192}, {0x7F600000, 246},
        {0x7F600001, 247}, {0x7F7FFFFF, 247}, {0x7F800000, 255}, {0x7FC00000, 255}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        assert_int_equal(
            mx8_compute_scale(mx8i_make_float(table[i].bits), MX8_SCALE_RCEIL, MX8_F8_E4M3), table[i].byte);
}

static void even_rounds_amax_first(void **state) {
    (void)state;
    static const struct {
        uint32_t bits;
        int32_t format;
        int byte;
    } table[] = {{0x43F7FFFF, MX8_F8_E4M3, 127}, {0x43F80000, MX8_F8_E4M3, 128}, /* 496 is half way from 480 to 512 */
        {0x476FFFFF, MX8_F8_E5M2, 127}, {0x47700000, MX8_F8_E5M2, 128},          /* 61440 */
        {0x7F77FFFF, MX8_F8_E4M3, 246}, {0x7F780000, MX8_F8_E4M3, 255}, /* rounds up to Inf: torchao's second corner */
        {0x7F6FFFFF, MX8_F8_E5M2, 239}, {0x7F700000, MX8_F8_E5M2, 255}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        assert_int_equal(
            mx8_compute_scale(mx8i_make_float(table[i].bits), MX8_SCALE_EVEN, table[i].format), table[i].byte);
}

static void rceil_never_saturates(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x7F800000; bits += 4099) {
        for (size_t i = 0; i < FORMAT_COUNT; i++) {
            float amax = mx8i_make_float(bits);
            int clipped;
            float factor = mx8_invert_e8m0(mx8_compute_scale(amax, MX8_SCALE_RCEIL, formats[i].dtype));
            mx8i_encode_element(amax * factor, formats[i].dtype, &clipped);
            assert_false(clipped);
        }
    }
}

/* Blocks that every torchao backend must quantize alike. `one` stands at position 5, `rest` everywhere else; codes are
 * expected at the same places. Values are float bits, rounded to bf16 in the bf16 run. */
struct block {
    const char *name;
    uint32_t one, rest;
    int32_t dtype, rule; /* -1: any of f32 and bf16, of RCEIL and FLOOR */
    int byte, one_code, rest_code;
};
#define ANY   (-1)
#define F32   MX8_F32
#define BF16  MX8_BF16
#define RCEIL MX8_SCALE_RCEIL
#define FLOOR MX8_SCALE_FLOOR

static const struct block blocks[] = {
    {"zero", 0, 0, ANY, ANY, 0, 0x00, 0x00},
    {"minus zero", 0x80000000, 0, ANY, ANY, 0, 0x80, 0x00},
    {"smallest normal", 0x00800000, 0x00800000, ANY, ANY, 0, 0x40, 0x40},
    {"one Inf", 0x7F800000, 0x3F800000, ANY, ANY, 255, 0x7F, 0x7F},
    {"one -Inf", 0xFF800000, 0xBF800000, ANY, ANY, 255, 0x7F, 0x7F},
    {"one NaN", 0x7FC00000, 0x3F800000, ANY, ANY, 255, 0x7F, 0x7F},
    {"all NaN", 0xFFC00000, 0x7FC00000, ANY, ANY, 255, 0x7F, 0x7F},
    {"448", 0x43E00000, 0xC3E00000, ANY, ANY, 127, 0x7E, 0xFE},
    {"largest f32", 0x7F7FFFFF, 0xFF7FFFFF, F32, FLOOR, 246, 0x7E, 0xFE},
    {"largest f32", 0x7F7FFFFF, 0xFF7FFFFF, F32, RCEIL, 247, 0x78, 0xF8},
    {"largest bf16", 0x7F7F0000, 0xFF7F0000, BF16, FLOOR, 246, 0x7E, 0xFE},
    {"largest bf16", 0x7F7F0000, 0xFF7F0000, BF16, RCEIL, 247, 0x78, 0xF8},
    {"smallest bf16 subnormal", 0x00010000, 0x80010000, ANY, ANY, 0, 0x08, 0x88},
    {"smallest f32 subnormal", 0x00000001, 0x80000001, F32, ANY, 0, 0x00, 0x80},
    {"ones and a subnormal", 0x00010000, 0x3F800000, ANY, ANY, 119, 0x00, 0x78},
    {"ones and a negative subnormal", 0x80010000, 0x3F800000, ANY, ANY, 119, 0x80, 0x78},
    {"largest and ones", 0x7F7F0000, 0x3F800000, ANY, FLOOR, 246, 0x7E, 0x00},
    {"largest and ones", 0x7F7F0000, 0x3F800000, ANY, RCEIL, 247, 0x78, 0x00},
    {"3.5 + ulp", 0x40600001, 0x40600001, F32, RCEIL, 121, 0x76, 0x76},
    {"3.5 + ulp", 0x40600001, 0x40600001, F32, FLOOR, 120, 0x7E, 0x7E},
    {"3.5 + ulp, rounded", 0x40600001, 0x40600001, BF16, ANY, 120, 0x7E, 0x7E},
    {"512 - ulp", 0x43FFFFFF, 0x43FFFFFF, F32, FLOOR, 127, 0x7E, 0x7E},
    {"512 - ulp", 0x43FFFFFF, 0x43FFFFFF, F32, RCEIL, 128, 0x78, 0x78},
    {"512 - ulp, rounded", 0x43FFFFFF, 0x43FFFFFF, BF16, ANY, 128, 0x78, 0x78},
    {"480", 0x43F00000, 0xC3F00000, ANY, FLOOR, 127, 0x7E, 0xFE},
    {"480", 0x43F00000, 0xC3F00000, ANY, RCEIL, 128, 0x77, 0xF7},
};

static void check_block(const struct block *b, int32_t dtype, int32_t rule) {
    float wide[MX8_BLOCK];
    uint16_t narrow[MX8_BLOCK];
    uint8_t codes[MX8_BLOCK], byte = 1;
    for (int i = 0; i < MX8_BLOCK; i++) {
        wide[i] = mx8i_make_float(i == 5 ? b->one : b->rest);
        narrow[i] = mx8_encode_bf16(wide[i]);
    }
    struct mx8_quant_job job = {.src = dtype == MX8_F32 ? (void *)wide : (void *)narrow,
        .src_dtype = dtype,
        .batch = 1,
        .rows = 1,
        .cols = MX8_BLOCK,
        .src_stride = {32, 32, 1},
        .row_codes = codes,
        .row_code_stride = {32, 32, 1},
        .row_scales = &byte,
        .row_scale_stride = {1, 1, 1},
        .rule = rule,
        .format = MX8_F8_E4M3,
        .group = 32,
        .tile = 1};
    mx8i_reference_quantize(&job);

    const char *name = dtype == MX8_F32 ? "f32" : "bf16";
    if (byte != b->byte) fail_msg("%s, %s, %s: byte %d", b->name, name, rule_names[rule], byte);
    for (int i = 0; i < MX8_BLOCK; i++) {
        if (codes[i] != (i == 5 ? b->one_code : b->rest_code))
            fail_msg("%s, %s, %s: code 0x%02X at %d", b->name, name, rule_names[rule], codes[i], i);
    }
}

static void quantizes_the_shared_corners(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        for (int32_t dtype = MX8_F32; dtype <= MX8_BF16; dtype++) {
            for (int32_t rule = RCEIL; rule <= FLOOR; rule++) {
                if (blocks[i].dtype != ANY && blocks[i].dtype != dtype) continue;
                if (blocks[i].rule == ANY || blocks[i].rule == rule) check_block(&blocks[i], dtype, rule);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_definitions),
        cmocka_unit_test(rises_with_amax),
        cmocka_unit_test(not_finite_gives_255),
        cmocka_unit_test(converts_like_the_rceil_table),
        cmocka_unit_test(even_rounds_amax_first),
        cmocka_unit_test(rceil_never_saturates),
        cmocka_unit_test(quantizes_the_shared_corners),
    };
    return cmocka_run_group_tests_name("formats.scale", tests, NULL, NULL);
}
