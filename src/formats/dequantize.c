/* Codes and scales back to numbers. */
#include "formats/elements.h"
#include "formats/jobs.h"

/* A code has at most 4 significant bits and the smallest product is 2^-16 * 2^-127 (e5m2), so the float product is
 * exact unless it overflows to Inf, and the store to bf16 is the only rounding. Which NaN comes out is left open. */
void mx8i_reference_dequantize(const struct mx8_dequant_job *j) {
    for (int64_t r = 0; r < j->rows; r++) {
        for (int64_t c = 0; c < j->cols; c++) {
            uint8_t code = j->codes[r * j->code_stride[0] + c * j->code_stride[1]];
            uint8_t byte = j->scales[r * j->scale_stride[0] + c / MX8_BLOCK * j->scale_stride[1]];
            float value = mx8i_decode_element(code, j->format) * mx8_decode_e8m0(byte);
            int64_t at = r * j->dst_stride[0] + c * j->dst_stride[1];
            if (j->dst_dtype == MX8_F32)
                ((float *)j->dst)[at] = value;
            else
                ((uint16_t *)j->dst)[at] = mx8_encode_bf16(value);
        }
    }
}
