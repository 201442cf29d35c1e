/* Dtypes and tensor views. */
#include "mx8/tensor.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [MX8_F32] = {"f32", 4},
    [MX8_BF16] = {"bf16", 2},
    [MX8_F8_E4M3] = {"f8_e4m3", 1},
    [MX8_F8_E5M2] = {"f8_e5m2", 1},
    [MX8_F8_E8M0] = {"f8_e8m0", 1},
    [MX8_U8] = {"u8", 1},
    [MX8_I32] = {"i32", 4},
    [MX8_I64] = {"i64", 8},
    [MX8_F64] = {"f64", 8},
};

static int is_dtype(int32_t dtype) {
    return dtype >= 0 && dtype < (int32_t)(sizeof dtypes / sizeof dtypes[0]);
}

size_t mx8_get_dtype_size(int32_t dtype) {
    return is_dtype(dtype) ? dtypes[dtype].size : 0;
}

const char *mx8_get_dtype_name(int32_t dtype) {
    return is_dtype(dtype) ? dtypes[dtype].name : "unknown";
}

/* Absurd sizes end at the largest number: shapes come from files and callers, and signed overflow is undefined. */
static int64_t multiply(int64_t a, int64_t b) {
    int64_t product;
    if (!__builtin_mul_overflow(a, b, &product)) return product;
    return (a < 0) == (b < 0) ? INT64_MAX : INT64_MIN;
}

int64_t mx8_count_elements(const struct mx8_tensor *t) {
    int64_t count = 1;
    int32_t ndim = t->ndim < MX8_MAX_DIMS ? t->ndim : MX8_MAX_DIMS;
    for (int32_t i = 0; i < ndim; i++)
        if (t->shape[i] == 0) return 0; /* whatever the others say */
    for (int32_t i = 0; i < ndim; i++) count = multiply(count, t->shape[i]);
    return count;
}

struct mx8_tensor mx8_make_tensor(void *data, int32_t dtype, int32_t ndim, const int64_t *shape) {
    struct mx8_tensor t = {.data = data, .dtype = dtype, .ndim = ndim < MX8_MAX_DIMS ? ndim : MX8_MAX_DIMS};
    int64_t stride = 1;
    for (int32_t i = t.ndim - 1; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        stride = multiply(stride, shape[i]);
    }
    return t;
}
