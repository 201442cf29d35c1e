/* What the reference quantizers need of one value beyond the public functions: the format as an argument, and whether
 * a value was clipped. */
#ifndef MX8_FORMATS_ELEMENTS_H
#define MX8_FORMATS_ELEMENTS_H

#include <stdint.h>
#include <string.h>
#include "mx8/formats.h"

static inline uint32_t mx8i_get_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float mx8i_make_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* format is MX8_F8_E4M3 or MX8_F8_E5M2. *clipped = 1 when a number (Inf included, NaN not) lies above the largest
 * finite one even after rounding, else 0: e4m3 clips above 464 (464 itself is a tie that goes down to 448), e5m2 from
 * 61440 on. */
uint8_t mx8i_encode_element(float value, int32_t format, int *clipped);
float mx8i_decode_element(uint8_t code, int32_t format);

#endif
