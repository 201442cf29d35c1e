/* The scale of a block: which power of two its values are divided by. Integer arithmetic on the bits of amax, so that
 * vector units and GPUs can give the same byte.
 *
 * With amax = (1 + m/2^23) * 2^(e-127) and the element's largest power of two 2^E (e4m3: 8, e5m2: 15) the byte is
 *     FLOOR  e - E
 *     CEIL   e - E + (m > 0)
 *     RCEIL  e - E + (m > 0.75 * 2^23)   both formats end at 1.75 * 2^E
 *     EVEN   e' - E, e' the exponent after half a unit of the element's last mantissa bit was added to amax
 * and not below 0. A subnormal amax has e = 0 and ends at 0 in every rule. torchao computes RCEIL in floats, as
 * amax * fp32(1/448) rounded up to a power of two; over all floats that differs from the line above for one value, the
 * successor of 448 * 2^-127, whose product is rounded down to 2^-127. That one follows torchao; so does its e5m2 twin.
 */
#include "formats/elements.h"

#define MANTISSA_MASK  0x7FFFFFu
#define THREE_QUARTERS 0x600000u

static const struct limits {
    int exponent;     /* E */
    int mantissa;     /* bits */
    uint32_t rounded; /* the float whose product with 1 / largest is rounded down to 2^-127 */
} e4m3 = {8, 3, 0x04600001u}, e5m2 = {15, 2, 0x07E00001u};

uint8_t mx8_compute_scale(float amax, int32_t rule, int32_t format) {
    const struct limits *f = format == MX8_F8_E5M2 ? &e5m2 : &e4m3;
    uint32_t bits = mx8i_get_float_bits(amax) & 0x7FFFFFFFu;
    if (bits >> 23 == 255) return 255;
    if (rule == MX8_SCALE_EVEN) {
        bits += 1u << (22 - f->mantissa);
        if (bits >> 23 == 255) return 255; /* rounded up to Inf: the block becomes NaN, as in torchao */
    }

    int byte = (int)(bits >> 23) - f->exponent;
    uint32_t mantissa = bits & MANTISSA_MASK;
    if (rule == MX8_SCALE_CEIL) byte += mantissa > 0;
    if (rule == MX8_SCALE_RCEIL) byte += mantissa > THREE_QUARTERS && bits != f->rounded;
    return (uint8_t)(byte > 0 ? byte : 0);
}
