/* Inputs of conformance vectors: every corner that a quantizer can get wrong, from integer arithmetic alone. */
#ifndef MX8_FORMATS_CONFORMANCE_INPUTS_H
#define MX8_FORMATS_CONFORMANCE_INPUTS_H

#include <stdint.h>

struct mx8_input_shape {
    int64_t batch, rows, cols;
    int32_t along_rows; /* blocks run down the rows */
    int32_t format;     /* whose corners: MX8_F8_E4M3 or MX8_F8_E5M2 */
    int64_t unit;       /* blocks that share a scale: about one of them is special, the others are ordinary */
};

/* Single values for encoding: each code's value, the middle to the next, its neighbours, both signs; then special ones.
 */
int64_t mx8i_count_element_inputs(void);
void mx8i_fill_element_inputs(float *out);
/* Blocks of 32 along the given axis, each of another kind: zeros, NaN, Inf, largest values at the rules' corners, ties,
 * subnormals, wide ranges, ordinary numbers. dtype f32 or bf16. */
void mx8i_fill_matrix(void *out, int32_t dtype, const struct mx8_input_shape *shape);
void mx8i_fill_bytes(uint8_t *out, int64_t n, uint64_t stream);
/* Cumulative ends: the second group is empty, the last one ends at `extent`. */
void mx8i_fill_offsets(int32_t *out, int32_t groups, int64_t extent);

#endif
