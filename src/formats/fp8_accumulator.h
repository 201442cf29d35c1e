/* Hopper's FP8 tensor core in integers, bit for bit: what one wgmma k32 step of e4m3 keeps of its sum, and how the fast
 * matrix product adds such sums up. Measured on an H200: the model gave all of 49,152 random results. A step is
 *   1. E = the largest exponent among the accumulator and the 32 products, a product's being exponent(a) + exponent(b);
 *   2. accumulator and products are cut to 13 fraction bits relative to 2^E, toward zero, and summed exactly;
 *   3. the sum is normalised and cut to 13 fraction bits, toward zero.
 * Not known: which exponent a subnormal code brings into 1. Here it is the normalised one. NaN codes are left out. */
#ifndef MX8_FORMATS_FP8_ACCUMULATOR_H
#define MX8_FORMATS_FP8_ACCUMULATOR_H

#include <math.h>
#include <stdint.h>
#include "mx8/formats.h"

#define FP8_FRACTION 13
#define FP8_STEP     32
#define FP8_PROMOTE  256 /* what the fast path sums in the tensor core before the sum goes to fp32 */

/* significand * 2^(exponent - 3), |significand| in 8..15; zero has an exponent below that of any product. */
struct fp8_value {
    int8_t significand, exponent;
};

/* mantissa * 2^(exponent - FP8_FRACTION), |mantissa| in 2^13 .. 2^14 - 1, or 0. */
struct fp8_sum {
    int32_t mantissa, exponent;
};

static inline struct fp8_value fp8_split(uint8_t code) {
    int field = code >> 3 & 15, significand = code & 7, exponent = field - 7;
    if (field > 0) {
        significand += 8;
    } else {
        if (significand == 0) return (struct fp8_value){0, -64};
        for (exponent = -6; significand < 8; exponent--) significand *= 2;
    }
    return (struct fp8_value){(int8_t)(code & 0x80 ? -significand : significand), (int8_t)exponent};
}

static inline int32_t fp8_cut(int32_t value, int places) {
    if (places > 31) return 0;
    return value < 0 ? -(int32_t)((uint32_t)-value >> places) : (int32_t)((uint32_t)value >> places);
}

/* One instruction: sum += a . b over n <= FP8_STEP products. */
static inline void fp8_add_products(
    struct fp8_sum *sum, const struct fp8_value *a, const struct fp8_value *b, int64_t n) {
    int largest = sum->mantissa ? sum->exponent : -128;
    for (int64_t i = 0; i < n; i++) {
        int exponent = a[i].exponent + b[i].exponent;
        if (exponent > largest) largest = exponent;
    }
    /* A product of two significands has 6 fraction bits; 7 more make 13. */
    int32_t total = sum->mantissa ? fp8_cut(sum->mantissa, largest - sum->exponent) : 0;
    for (int64_t i = 0; i < n; i++)
        total += fp8_cut(a[i].significand * b[i].significand * 128, largest - a[i].exponent - b[i].exponent);

    *sum = (struct fp8_sum){0, largest};
    if (total == 0) return;
    uint32_t magnitude = (uint32_t)(total < 0 ? -total : total);
    int top = 31 - __builtin_clz(magnitude);
    magnitude = top > FP8_FRACTION ? magnitude >> (top - FP8_FRACTION) : magnitude << (FP8_FRACTION - top);
    sum->mantissa = total < 0 ? -(int32_t)magnitude : (int32_t)magnitude;
    sum->exponent = largest + top - FP8_FRACTION;
}

/* One element of the product: a and b of length K, scale bytes of both per 32 products, equal inside each `promote`
 * products, which is how many are summed before the sum goes to fp32. */
static inline float fp8_multiply(const struct fp8_value *a, const struct fp8_value *b, int64_t K, int64_t promote,
    const uint8_t *a_scales, const uint8_t *b_scales) {
    float total = 0;
    for (int64_t from = 0; from < K; from += promote) {
        int64_t to = from + promote < K ? from + promote : K;
        struct fp8_sum sum = {0, 0};
        for (int64_t k = from; k < to; k += FP8_STEP)
            fp8_add_products(&sum, a + k, b + k, to - k < FP8_STEP ? to - k : FP8_STEP);
        float part = ldexpf((float)sum.mantissa, sum.exponent - FP8_FRACTION);
        float scale = mx8_decode_e8m0(a_scales[from / MX8_BLOCK]) * mx8_decode_e8m0(b_scales[from / MX8_BLOCK]);
        total = from == 0 ? part * scale : fmaf(part, scale, total);
    }
    return total;
}

#endif
