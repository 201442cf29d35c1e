/* The number formats, one value at a time: bit exact, portable, slow. Every fast path is tested against these.
 * Sources: OCP 8-bit Floating Point Specification (OFP8) v1.0; OCP Microscaling Formats (MX) v1.0 sections 5.2, 5.4,
 * 6.3; torchao 2026-08 for the corners that the specifications leave open (docs/formats.md lists them). */
#ifndef MX8_FORMATS_H
#define MX8_FORMATS_H

#include "mx8/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MX8_BLOCK 32 /* elements that share a scale (OCP MX v1.0 section 5.2) */

/* How the shared exponent follows from a block's largest magnitude. Zero is the default. */
enum mx8_scale_rule {
    MX8_SCALE_RCEIL = 0, /* smallest power of two with amax / scale <= 448: nothing saturates */
    MX8_SCALE_FLOOR = 1, /* floor(log2(amax)) - 8, OCP MX v1.0 section 6.3: values up to 512 saturate to 448 */
    MX8_SCALE_CEIL = 2,  /* ceil(log2(amax)) - 8 */
    MX8_SCALE_EVEN = 3   /* amax rounded to the element's mantissa first, then FLOOR */
};

/* float -> bf16, round to nearest even; NaN stays a quiet NaN with its sign; overflow gives Inf. */
MX8_API uint16_t mx8_encode_bf16(float value);
MX8_API float mx8_decode_bf16(uint16_t bits);

/* float -> e4m3 (FN), round to nearest even, saturating: |x| > 448 and Inf give 0x7E / 0xFE, NaN gives 0x7F / 0xFF.
 * Results below 2^-6 are subnormal, not flushed. */
MX8_API uint8_t mx8_encode_e4m3(float value);
MX8_API float mx8_decode_e4m3(uint8_t code);

/* float -> e5m2, round to nearest even, saturating to 57344; NaN gives 0x7F / 0xFF. Decoding knows Inf (0x7C). */
MX8_API uint8_t mx8_encode_e5m2(float value);
MX8_API float mx8_decode_e5m2(uint8_t code);

/* e8m0 -> float: 2^(byte-127); byte 0 is 2^-127 (a float subnormal, not zero), byte 255 is NaN. */
MX8_API float mx8_decode_e8m0(uint8_t byte);
/* The factor that values are multiplied by before the 8-bit cast: the value of byte 254 - b, exact; NaN for 255. */
MX8_API float mx8_invert_e8m0(uint8_t byte);

/* Scale byte of a block from its largest magnitude amax >= 0, for elements of `format` (MX8_F8_E4M3 or MX8_F8_E5M2).
 * A non-finite amax gives 255 in every rule, amax 0 gives 0. Integer arithmetic on the float's bits only. */
MX8_API uint8_t mx8_compute_scale(float amax, int32_t rule, int32_t format);

#ifdef __cplusplus
}
#endif
#endif
