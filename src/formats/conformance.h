/* Conformance vectors: inputs, options, and what the oracle makes of them, for any implementation of MXFP8 to be held
 * against. docs/conformance.md is the format that they are published in. Inputs are made of integers and powers of two
 * alone, so that every machine makes the same. */
#ifndef MX8_FORMATS_CONFORMANCE_H
#define MX8_FORMATS_CONFORMANCE_H

#include "mx8/ops.h"

#define MX8_VECTOR_TENSORS 6

struct mx8_vector_tensor {
    const char *name;
    int32_t is_output;
    struct mx8_tensor view; /* row-major; view.data is owned by the vector */
    size_t size;            /* bytes */
};

struct mx8_vector {
    char name[80];
    const char *operation; /* a row of the operator table, or "encode" and "decode" of single values */
    struct mx8_op_options options;
    int32_t n;
    struct mx8_vector_tensor tensor[MX8_VECTOR_TENSORS]; /* inputs in the operator's order, then outputs */
};

int32_t mx8i_count_vectors(void);
/* Inputs and expected outputs of a case, index in [0, count). Release it in every case. */
enum mx8_status mx8i_make_vector(int32_t index, struct mx8_vector *out);
void mx8i_release_vector(struct mx8_vector *v);
/* Names that the published files use: "rceil" of a scale rule, "m_groups" of a scale layout. */
const char *mx8i_get_rule_name(int32_t rule);
const char *mx8i_get_layout_name(int32_t layout);

#endif
