/* Every code and every bf16 value against a second implementation that shares nothing with the first: it holds numbers
 * as integers on a fixed grid and searches the whole table of codes for the nearest one. */
#include "test.h"
#include "formats/elements.h"

#define GRID 45 /* numbers are multiples of 2^-45 here, below 2^17: exact for every float from 2^-22 on */

struct format {
    const char *name;
    int32_t dtype;
    int mantissa, bias;
    int last; /* largest finite code */
    uint8_t (*encode)(float value);
    float (*decode)(uint8_t code);
};

static const struct format formats[] = {
    {"e4m3", MX8_F8_E4M3, 3, 7, 0x7E, mx8_encode_e4m3, mx8_decode_e4m3},
    {"e5m2", MX8_F8_E5M2, 2, 15, 0x7B, mx8_encode_e5m2, mx8_decode_e5m2},
};
#define FORMAT_COUNT (sizeof formats / sizeof formats[0])

/* Magnitude of a code on the grid, by the definition of the format: (1.f or 0.f) * 2^(field - bias). The code after the
 * last one is the number that would follow if the format went on. */
static int64_t place_code(const struct format *f, int code) {
    int field = code >> f->mantissa, one = 1 << f->mantissa, fraction = code & (one - 1);
    int64_t whole = field > 0 ? one + fraction : fraction;
    return whole << (GRID - f->mantissa + (field > 0 ? field : 1) - f->bias);
}

/* Magnitude of a float on the grid; too large ones become 2^17, those below 2^-22 become 0 (half of the smallest code,
 * which still matters, is 2^-17). */
static int64_t place_float(uint32_t bits) {
    int field = (int)(bits >> 23 & 0xFF);
    int64_t whole = (bits & 0x7FFFFF) | (field > 0 ? 0x800000 : 0);
    if (field >= 127 + 17) return (int64_t)1 << (17 + GRID);
    if (field < 127 - 22) return 0;
    return whole << (field - 127 - 23 + GRID);
}

static uint8_t search_code(const struct format *f, uint32_t bits, int *clipped) {
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    int64_t x = place_float(bits), best_distance = INT64_MAX;
    int best = 0;
    *clipped = 0;
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return sign | 0x7F;
    for (int code = 0; code <= f->last + 1; code++) {
        int64_t distance = llabs(x - place_code(f, code));
        if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
            best = code;
            best_distance = distance;
        }
    }
    *clipped = best > f->last;
    return (uint8_t)(sign | (*clipped ? f->last : best));
}

static void check_encode(const struct format *f, uint32_t bits) {
    int clipped, want_clipped;
    float value = mx8i_make_float(bits);
    uint8_t got = mx8i_encode_element(value, f->dtype, &clipped), want = search_code(f, bits, &want_clipped);
    if (got != want || f->encode(value) != want || clipped != want_clipped)
        fail_msg("%s of float 0x%08X is 0x%02X (clipped %d), expected 0x%02X (%d)", f->name, bits, got, clipped, want,
            want_clipped);
}

static void decodes_every_code(void **state) {
    (void)state;
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        const struct format *f = &formats[i];
        for (int code = 0; code < 256; code++) {
            uint32_t bits = mx8i_get_float_bits(f->decode((uint8_t)code)), magnitude = bits & 0x7FFFFFFF;
            assert_int_equal(bits >> 31, code >> 7);
            assert_int_equal(mx8i_get_float_bits(mx8i_decode_element((uint8_t)code, f->dtype)), bits);
            if ((code & 0x7F) <= f->last)
                assert_true(place_float(magnitude) == place_code(f, code & 0x7F));
            else if (f->dtype == MX8_F8_E5M2 && (code & 0x7F) == 0x7C)
                assert_int_equal(magnitude, 0x7F800000);
            else
                assert_int_equal(magnitude, 0x7FC00000);
        }
    }
}

static void knows_the_landmarks(void **state) {
    (void)state;
    assert_true(mx8_decode_e4m3(0x7E) == 448.0f && mx8_decode_e4m3(0x38) == 1.0f && mx8_decode_e4m3(0x01) == 0x1p-9f);
    assert_true(
        mx8_decode_e5m2(0x7B) == 57344.0f && mx8_decode_e5m2(0x3C) == 1.0f && mx8_decode_e5m2(0x01) == 0x1p-16f);
    assert_int_equal(mx8_encode_e4m3(-480.0f), 0xFE);
    assert_int_equal(mx8_encode_e5m2(-1e6f), 0xFB);
    assert_int_equal(mx8_encode_e4m3(-0.0f), 0x80);
}

static void codes_survive_a_round_trip(void **state) {
    (void)state;
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        const struct format *f = &formats[i];
        for (int code = 0; code < 256; code++) {
            int want = code; /* but NaN has one code when encoding, and Inf is clipped */
            if ((code & 0x7F) > f->last) want = (code & 0x80) | 0x7F;
            if (f->dtype == MX8_F8_E5M2 && (code & 0x7F) == 0x7C) want = (code & 0x80) | f->last;
            assert_int_equal(f->encode(f->decode((uint8_t)code)), want);
        }
    }
}

static void rounds_every_bf16(void **state) {
    (void)state;
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        for (uint32_t bits = 0; bits < 65536; bits++) check_encode(&formats[i], bits << 16);
    }
}

static void rounds_floats_around_every_tie(void **state) {
    (void)state;
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        const struct format *f = &formats[i];
        for (int code = 0; code <= f->last; code++) {
            /* The midpoint of two neighbours has one bit more than they have: exact as a float. */
            double middle = (double)(place_code(f, code) + place_code(f, code + 1)) / 2 / 0x1p45;
            uint32_t bits = mx8i_get_float_bits((float)middle);
            for (uint32_t b = bits - 2; b <= bits + 2; b++) {
                check_encode(f, b);
                check_encode(f, b | 0x80000000);
            }
        }
    }
}

static void rounds_any_float(void **state) {
    (void)state;
    uint32_t bits = 0;
    for (int i = 0; i < 200000; i++) {
        bits = bits * 1664525u + 1013904223u;
        for (size_t k = 0; k < FORMAT_COUNT; k++) check_encode(&formats[k], bits);
    }
    for (uint32_t e = 0; e < 256; e++) {
        for (size_t k = 0; k < FORMAT_COUNT; k++) {
            check_encode(&formats[k], e << 23);
            check_encode(&formats[k], e << 23 | 1);
            check_encode(&formats[k], e << 23 | 0x807FFFFF);
        }
    }
}

static void decodes_every_scale(void **state) {
    (void)state;
    for (int byte = 0; byte < 255; byte++) {
        float scale = mx8_decode_e8m0((uint8_t)byte), inverse = mx8_invert_e8m0((uint8_t)byte);
        assert_int_equal(mx8i_get_float_bits(scale), byte > 0 ? (uint32_t)byte << 23 : 0x00400000u);
        assert_int_equal(mx8i_get_float_bits(inverse), byte < 254 ? (uint32_t)(254 - byte) << 23 : 0x00400000u);
        assert_true(scale * inverse == 1.0f);
    }
    assert_int_equal(mx8i_get_float_bits(mx8_decode_e8m0(255)), 0x7FC00000);
    assert_int_equal(mx8i_get_float_bits(mx8_invert_e8m0(255)), 0x7FC00000);
}

/* The two bf16 around a float are its upper half and the next one; which is nearer is seen in the lower half. */
static void check_bf16(uint32_t bits) {
    uint32_t below = bits >> 16, rest = bits & 0xFFFF;
    uint32_t want = rest > 0x8000 || (rest == 0x8000 && below % 2 == 1) ? below + 1 : below;
    if ((bits & 0x7FFFFFFF) > 0x7F800000) want = below | 0x40;
    uint16_t got = mx8_encode_bf16(mx8i_make_float(bits));
    if (got != want) fail_msg("bf16 of float 0x%08X is 0x%04X, expected 0x%04X", bits, got, want);
}

static void rounds_to_bf16(void **state) {
    (void)state;
    static const uint32_t rests[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    for (uint32_t upper = 0; upper < 65536; upper++) {
        for (size_t i = 0; i < sizeof rests / sizeof rests[0]; i++) check_bf16(upper << 16 | rests[i]);
        assert_int_equal(mx8i_get_float_bits(mx8_decode_bf16((uint16_t)upper)), upper << 16);
    }
    assert_int_equal(mx8_encode_bf16(mx8i_make_float(0x7F7FFFFF)), 0x7F80); /* overflow */
    assert_int_equal(mx8_encode_bf16(mx8i_make_float(0xFF800001)), 0xFFC0); /* a NaN that would be cut to Inf */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_every_code),
        cmocka_unit_test(knows_the_landmarks),
        cmocka_unit_test(codes_survive_a_round_trip),
        cmocka_unit_test(rounds_every_bf16),
        cmocka_unit_test(rounds_floats_around_every_tie),
        cmocka_unit_test(rounds_any_float),
        cmocka_unit_test(decodes_every_scale),
        cmocka_unit_test(rounds_to_bf16),
    };
    return cmocka_run_group_tests_name("formats.elements", tests, NULL, NULL);
}
