/* bf16, e4m3, e5m2 and e8m0, one value at a time, in integer arithmetic on the bits of a float. */
#include "formats/elements.h"

#define FLOAT_SIGN     0x80000000u
#define FLOAT_INF      0x7F800000u
#define FLOAT_BIAS     127
#define FLOAT_MANTISSA 23

/* An 8-bit float: sign, exponent, mantissa. Codes are without the sign. */
struct element {
    int mantissa, bias;
    uint8_t largest; /* code of the largest finite value */
    uint8_t nan;     /* the NaN that encoding gives */
};

static const struct element e4m3 = {.mantissa = 3, .bias = 7, .largest = 0x7E, .nan = 0x7F};
static const struct element e5m2 = {.mantissa = 2, .bias = 15, .largest = 0x7B, .nan = 0x7F};

static uint32_t shift_right_to_even(uint32_t value, int shift) {
    uint32_t half = 1u << (shift - 1), odd = (value >> shift) & 1u;
    return (value + half - 1u + odd) >> shift;
}

/* Exponent and mantissa of a float's magnitude are one number that counts through all floats in order; so are those of
 * a code. In the normal range they differ by the bias and by mantissa bits to be rounded off, and a carry out of the
 * mantissa steps into the next exponent by itself. Below it the mantissa, its leading one made visible, is shifted
 * further by the missing exponents; a carry there gives the smallest normal code. */
static uint8_t encode(float value, const struct element *f, int *clipped) {
    uint32_t bits = mx8i_get_float_bits(value), magnitude = bits & ~FLOAT_SIGN, code = 0;
    uint8_t sign = (uint8_t)((bits & FLOAT_SIGN) >> 24);
    int exponent = (int)(magnitude >> FLOAT_MANTISSA), drop = FLOAT_MANTISSA - f->mantissa;
    int smallest_normal = FLOAT_BIAS - f->bias + 1; /* as a float's exponent field */

    *clipped = 0;
    if (magnitude > FLOAT_INF) return sign | f->nan;
    if (exponent >= smallest_normal) {
        code = shift_right_to_even(magnitude - ((uint32_t)(FLOAT_BIAS - f->bias) << FLOAT_MANTISSA), drop);
    } else if (drop + smallest_normal - exponent <= FLOAT_MANTISSA + 1) { /* else below half of the smallest code */
        uint32_t whole = (magnitude & 0x7FFFFFu) | 0x800000u;
        code = shift_right_to_even(whole, drop + smallest_normal - exponent);
    }
    if (code > f->largest) {
        *clipped = 1;
        code = f->largest;
    }
    return (uint8_t)(sign | code);
}

/* magnitude = mantissa * 2^exponent, built exactly: 8-bit formats lie well inside the normal floats. */
static float decode(uint8_t code, const struct element *f) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    int field = (code & 0x7F) >> f->mantissa;
    uint32_t fraction = code & ((1u << f->mantissa) - 1u);

    if (field > 0) {
        uint32_t exponent = (uint32_t)(field + FLOAT_BIAS - f->bias);
        return mx8i_make_float(sign | exponent << FLOAT_MANTISSA | fraction << (FLOAT_MANTISSA - f->mantissa));
    }
    float unit = mx8i_make_float((uint32_t)(FLOAT_BIAS + 1 - f->bias - f->mantissa) << FLOAT_MANTISSA);
    float magnitude = (float)fraction * unit;
    return mx8i_make_float(sign | mx8i_get_float_bits(magnitude));
}

uint8_t mx8i_encode_element(float value, int32_t format, int *clipped) {
    return encode(value, format == MX8_F8_E5M2 ? &e5m2 : &e4m3, clipped);
}

float mx8i_decode_element(uint8_t code, int32_t format) {
    return format == MX8_F8_E5M2 ? mx8_decode_e5m2(code) : mx8_decode_e4m3(code);
}

uint8_t mx8_encode_e4m3(float value) {
    int clipped;
    return encode(value, &e4m3, &clipped);
}

float mx8_decode_e4m3(uint8_t code) {
    /* The top exponent holds numbers but for its last code, the NaN. */
    if ((code & 0x7F) == 0x7F) return mx8i_make_float((uint32_t)(code & 0x80u) << 24 | 0x7FC00000u);
    return decode(code, &e4m3);
}

uint8_t mx8_encode_e5m2(float value) {
    int clipped;
    return encode(value, &e5m2, &clipped);
}

float mx8_decode_e5m2(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    if ((code & 0x7F) == 0x7C) return mx8i_make_float(sign | FLOAT_INF);
    if ((code & 0x7F) > 0x7C) return mx8i_make_float(sign | 0x7FC00000u);
    return decode(code, &e5m2);
}

uint16_t mx8_encode_bf16(float value) {
    uint32_t bits = mx8i_get_float_bits(value);
    if ((bits & ~FLOAT_SIGN) > FLOAT_INF) return (uint16_t)(bits >> 16 | 0x40u);
    /* The sign bit is out of reach of a carry: Inf has a mantissa of zero and rounds to itself. */
    return (uint16_t)shift_right_to_even(bits, 16);
}

float mx8_decode_bf16(uint16_t bits) {
    return mx8i_make_float((uint32_t)bits << 16);
}

float mx8_decode_e8m0(uint8_t byte) {
    if (byte == 255) return mx8i_make_float(0x7FC00000u);
    return mx8i_make_float(byte ? (uint32_t)byte << FLOAT_MANTISSA : 0x00400000u); /* 2^-127 is a float subnormal */
}

float mx8_invert_e8m0(uint8_t byte) {
    return mx8_decode_e8m0(byte == 255 ? 255 : (uint8_t)(254 - byte));
}
