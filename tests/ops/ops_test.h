/* What the tests of the operators share: tensors that live until the end of a test, calls that allocate what infer asks
 * for, and comparisons. */
#ifndef MX8_TESTS_OPS_OPS_TEST_H
#define MX8_TESTS_OPS_OPS_TEST_H

#include "test.h"
#include <math.h>
#include "base/rng.h"
#include "guard.h"
#include "base/safetensors.h"
#include "ops/op_rows.h"

#define MAYBE __attribute__((unused)) static

static struct {
    struct {
        void *data;
        size_t size, alignment;
    } block[4096];
    int count;
    uint64_t seed;
    struct mx8_context *ctx;
} shelf;

/* Zeroed memory without a byte behind it (guard.h). */
MAYBE void *take_block(size_t size, size_t alignment) {
    assert_true(shelf.count < 4096);
    void *data = guard_allocate(size, alignment);
    memset(data, 0, size);
    shelf.block[shelf.count].data = data;
    shelf.block[shelf.count].size = size;
    shelf.block[shelf.count++].alignment = alignment;
    return data;
}
MAYBE void *take(size_t size) {
    return take_block(size, 1);
}
MAYBE void *take_aligned(size_t size) {
    return take_block(size, 64); /* workspaces */
}

MAYBE int open_shelf(void **state) {
    (void)state;
    shelf.seed = 1;
    return mx8_create_context(NULL, &shelf.ctx) == MX8_OK ? 0 : -1;
}

MAYBE int close_shelf(void **state) {
    (void)state;
    while (shelf.count > 0) {
        shelf.count--;
        guard_release(shelf.block[shelf.count].data, shelf.block[shelf.count].size, shelf.block[shelf.count].alignment);
    }
    mx8_destroy_context(shelf.ctx);
    return 0;
}

#define cmocka_shelf_test(f) cmocka_unit_test_setup_teardown(f, open_shelf, close_shelf)

/* ---- tensors ---- */

#define SHAPE(...)                                                                                                     \
    (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) {                                       \
        __VA_ARGS__                                                                                                    \
    }

MAYBE struct mx8_tensor new_tensor(int32_t dtype, int32_t ndim, const int64_t *shape) {
    struct mx8_tensor t = mx8_make_tensor(NULL, dtype, ndim, shape);
    t.data = take((size_t)mx8_count_elements(&t) * mx8_get_dtype_size(dtype));
    return t;
}

/* Element of a flat row-major index, whatever the strides. */
MAYBE char *locate(const struct mx8_tensor *t, int64_t index) {
    int64_t offset = 0;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        offset += index % t->shape[i] * t->stride[i];
        index /= t->shape[i];
    }
    return (char *)t->data + offset * (int64_t)mx8_get_dtype_size(t->dtype);
}

MAYBE double get(const struct mx8_tensor *t, int64_t index) {
    const void *p = locate(t, index);
    switch (t->dtype) {
    case MX8_F32:
        return (double)*(const float *)p;
    case MX8_F64:
        return *(const double *)p;
    case MX8_BF16:
        return (double)mx8_decode_bf16(*(const uint16_t *)p);
    case MX8_I32:
        return (double)*(const int32_t *)p;
    case MX8_I64:
        return (double)*(const int64_t *)p;
    default:
        return (double)*(const uint8_t *)p;
    }
}

MAYBE void put(const struct mx8_tensor *t, int64_t index, double value) {
    void *p = locate(t, index);
    switch (t->dtype) {
    case MX8_F32:
        *(float *)p = (float)value;
        break;
    case MX8_F64:
        *(double *)p = value;
        break;
    case MX8_BF16:
        *(uint16_t *)p = mx8_encode_bf16((float)value);
        break;
    case MX8_I32:
        *(int32_t *)p = (int32_t)value;
        break;
    default:
        *(uint8_t *)p = (uint8_t)value;
        break;
    }
}

MAYBE void fill(const struct mx8_tensor *t, double value) {
    for (int64_t i = 0; i < mx8_count_elements(t); i++) put(t, i, value);
}

/* Normal values, another stream each time. */
MAYBE struct mx8_tensor new_normal(int32_t dtype, double scale, int32_t ndim, const int64_t *shape) {
    struct mx8_tensor t = new_tensor(dtype, ndim, shape);
    uint64_t stream = ++shelf.seed;
    for (int64_t i = 0; i < mx8_count_elements(&t); i++) put(&t, i, scale * mx8i_random_normal(7, stream, (uint64_t)i));
    return t;
}

MAYBE struct mx8_tensor new_i32(int64_t count, const int32_t *values) {
    struct mx8_tensor t = new_tensor(MX8_I32, 1, &count);
    if (count > 0) memcpy(t.data, values, (size_t)count * sizeof *values);
    return t;
}

MAYBE struct mx8_tensor copy_tensor(const struct mx8_tensor *t) {
    struct mx8_tensor c = new_tensor(t->dtype, t->ndim, t->shape);
    for (int64_t i = 0; i < mx8_count_elements(t); i++)
        memcpy(locate(&c, i), locate(t, i), mx8_get_dtype_size(t->dtype));
    return c;
}

/* The same values stored with the last two dimensions' strides swapped. */
MAYBE struct mx8_tensor copy_transposed(const struct mx8_tensor *t) {
    struct mx8_tensor c = new_tensor(t->dtype, t->ndim, t->shape);
    c.stride[t->ndim - 1] = t->shape[t->ndim - 2];
    c.stride[t->ndim - 2] = 1;
    for (int64_t i = 0; i < mx8_count_elements(t); i++)
        memcpy(locate(&c, i), locate(t, i), mx8_get_dtype_size(t->dtype));
    return c;
}

MAYBE struct mx8_tensor cut(const struct mx8_tensor *t, int64_t start, int64_t rows) {
    struct mx8_tensor part = *t;
    part.data = (char *)t->data + start * t->stride[0] * (int64_t)mx8_get_dtype_size(t->dtype);
    part.shape[0] = rows;
    return part;
}

/* Matrix e of a batch. */
MAYBE struct mx8_tensor pick(const struct mx8_tensor *t, int64_t e) {
    struct mx8_tensor part = mx8_make_tensor(NULL, t->dtype, t->ndim - 1, t->shape + 1);
    part.data = (char *)t->data + e * t->stride[0] * (int64_t)mx8_get_dtype_size(t->dtype);
    for (int32_t i = 0; i < part.ndim; i++) part.stride[i] = t->stride[i + 1];
    return part;
}

/* ---- calls ---- */

/* Allocates the outputs that infer gives and the caller did not set, but those in `skip` (a bit mask), and runs. */
MAYBE enum mx8_status try_call(const char *name, int backward, struct mx8_op_call *call, unsigned skip) {
    const struct mx8_op *op = mx8_find_op(name);
    struct mx8_op_call inferred = *call;
    enum mx8_status status = mx8_infer_op(op, backward, &inferred);
    if (status != MX8_OK) return status;
    for (int i = 0; i < inferred.n_out; i++) {
        struct mx8_tensor *out = &inferred.out[i];
        if (skip >> i & 1 || !mx8i_is_present(out) || call->out[i].data) continue;
        struct mx8_tensor t = *out;
        t.data = take((size_t)mx8_count_elements(out) * mx8_get_dtype_size(out->dtype));
        memset(t.data, 0xA5, (size_t)mx8_count_elements(out) * mx8_get_dtype_size(out->dtype));
        call->out[i] = t;
    }
    call->workspace_size = inferred.workspace_size;
    call->workspace = inferred.workspace_size ? take_aligned(inferred.workspace_size) : NULL;
    return mx8_run_op(shelf.ctx, op, backward, call);
}

MAYBE void run_call(const char *name, int backward, struct mx8_op_call *call) {
    assert_ok(try_call(name, backward, call, 0));
}

/* ---- comparisons ---- */

/* 20 log10(|ref| / |ref - x|); infinite when equal, -1 when x has a NaN. */
MAYBE double find_sqnr(const struct mx8_tensor *ref, const struct mx8_tensor *x) {
    double signal = 0, noise = 0;
    assert_int_equal(mx8_count_elements(ref), mx8_count_elements(x));
    for (int64_t i = 0; i < mx8_count_elements(ref); i++) {
        double r = get(ref, i), d = r - get(x, i);
        if (isnan(d)) return -1;
        signal += r * r;
        noise += d * d;
    }
    return noise > 0 ? 10 * log10(signal / noise) : HUGE_VAL;
}

#define assert_sqnr(ref, x, least)                                                                                     \
    do {                                                                                                               \
        double sqnr_ = find_sqnr((ref), (x));                                                                          \
        if (!(sqnr_ >= (least)))                                                                                       \
            fail_msg("%s against %s: %.1f dB, expected at least %.1f", #x, #ref, sqnr_, (double)(least));              \
    } while (0)

MAYBE int is_equal(const struct mx8_tensor *a, const struct mx8_tensor *b) {
    if (mx8_count_elements(a) != mx8_count_elements(b) || a->dtype != b->dtype) return 0;
    for (int64_t i = 0; i < mx8_count_elements(a); i++)
        if (memcmp(locate(a, i), locate(b, i), mx8_get_dtype_size(a->dtype)) != 0) return 0;
    return 1;
}
#define assert_equal(a, b)                                                                                             \
    do {                                                                                                               \
        if (!is_equal((a), (b))) fail_msg("%s and %s differ", #a, #b);                                                 \
    } while (0)

MAYBE void assert_zero(const struct mx8_tensor *t) {
    for (int64_t i = 0; i < mx8_count_elements(t); i++) assert_true(get(t, i) == 0);
}

/* A tensor of a safetensors file; lives as long as the map. */
MAYBE struct mx8_tensor load(const struct mx8_safetensors *st, const char *prefix, const char *name) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", prefix, name);
    const struct mx8_st_entry *e = mx8i_find_tensor(st, key);
    if (!e) fail_msg("no tensor %s", key);
    struct mx8_tensor t = new_tensor(e->dtype, e->ndim, e->shape);
    memcpy(t.data, e->data, e->size);
    return t;
}

/* c (M,N) = a (M,K) b (N,K)^T in double; transposed operands are views. */
MAYBE struct mx8_tensor multiply(const struct mx8_tensor *a, const struct mx8_tensor *b) {
    struct mx8_tensor c = new_tensor(MX8_F64, SHAPE(a->shape[0], b->shape[0]));
    int64_t K = a->shape[1], N = b->shape[0];
    for (int64_t m = 0; m < a->shape[0]; m++) {
        for (int64_t n = 0; n < N; n++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++) sum += get(a, m * K + k) * get(b, n * K + k);
            *(double *)locate(&c, m * N + n) = sum;
        }
    }
    return c;
}

MAYBE struct mx8_tensor flip(const struct mx8_tensor *t) {
    struct mx8_tensor f = *t;
    f.shape[0] = t->shape[1];
    f.shape[1] = t->shape[0];
    f.stride[0] = t->stride[1];
    f.stride[1] = t->stride[0];
    return f;
}

#endif
