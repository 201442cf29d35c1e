/* A view of memory with a dtype, a shape and strides. mx8 never owns what a view points to. */
#ifndef MX8_TENSOR_H
#define MX8_TENSOR_H

#include <stdint.h>
#include <stddef.h>
#include "mx8/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. The numbers are part of the ABI. Codes and scales are bytes for every consumer (no 8-bit float
 * type leaks into a compiler): F8_* says how the byte is to be read. */
enum mx8_dtype {
    MX8_F32 = 0,
    MX8_BF16 = 1,
    MX8_F8_E4M3 = 2, /* OCP OFP8 E4M3 (FN): max 448, NaN S.1111.111, no Inf */
    MX8_F8_E5M2 = 3,
    MX8_F8_E8M0 = 4, /* OCP MX v1.0 section 5.4.1: 2^(byte-127), 255 is NaN */
    MX8_U8 = 5,
    MX8_I32 = 6,
    MX8_I64 = 7,
    MX8_F64 = 8
};

#define MX8_MAX_DIMS 4

/* shape and stride count elements, outermost dimension first; a stride may be any value, 0 included for inputs.
 * An absent optional tensor is all zero (data NULL and ndim 0). */
struct mx8_tensor {
    void *data;
    int64_t shape[MX8_MAX_DIMS];
    int64_t stride[MX8_MAX_DIMS];
    int32_t dtype;
    int32_t ndim;
};

/* Bytes of one element of a dtype; 0 for a number that is no dtype. */
MX8_API size_t mx8_get_dtype_size(int32_t dtype);
/* "f32", "bf16", "f8_e4m3", ... ; "unknown" otherwise. Never NULL. */
MX8_API const char *mx8_get_dtype_name(int32_t dtype);
/* Number of elements; 1 for ndim 0, INT64_MAX when it does not fit. */
MX8_API int64_t mx8_count_elements(const struct mx8_tensor *t);
/* Fills a row-major view. shape has ndim entries, ndim <= MX8_MAX_DIMS (more is cut). A stride that
 * does not fit is INT64_MAX. */
MX8_API struct mx8_tensor mx8_make_tensor(void *data, int32_t dtype, int32_t ndim, const int64_t *shape);

#ifdef __cplusplus
}
#endif
#endif
