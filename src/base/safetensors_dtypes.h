/* The dtype names that safetensors files use, shared by the reader and the writer. */
#ifndef MX8_BASE_SAFETENSORS_DTYPES_H
#define MX8_BASE_SAFETENSORS_DTYPES_H
#include <stddef.h>
#include <stdint.h>

#define MX8_ST_MAX_HEADER ((size_t)100 * 1000 * 1000) /* the limit of the format's own library */
#define MX8_ST_MAX_DIMS   8

int32_t mx8i_find_st_dtype(const char *name);      /* -1: not one that mx8 reads */
const char *mx8i_get_st_dtype_name(int32_t dtype); /* NULL: no dtype */
/* Bytes of a tensor. 0 and *size, or -1 when a length is negative or the product overflows. */
int mx8i_compute_st_size(int32_t dtype, int32_t ndim, const int64_t *shape, size_t *size);
#endif
