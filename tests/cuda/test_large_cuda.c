/* More than 2^31 elements in one tensor: quantizers and products on CUDA. The source repeats a few rows, so that every
 * part of a result is known from a small run of the same kernel; the last rows are others. Skipped where memory is
 * short. */
#include <math.h>
#include "cuda_test.h"
#include "formats/jobs.h"

enum { PART = 256, OTHER = 1 }; /* rows that repeat; the last so many are of another kind */

static void *large[16];
static int n_large;

static void *allocate(size_t bytes) {
    void *p = NULL;
    assert_true(n_large < COUNT(large));
    assert_ok(cuda.exec.k->allocate(&cuda.exec, bytes, &p));
    large[n_large++] = p;
    return p;
}

static void release_all(void) {
    while (n_large > 0) cuda.exec.k->release(&cuda.exec, large[--n_large]);
}

static int needs(double gib) {
    if ((double)cuda.exec.k->get_free_memory(&cuda.exec) > gib * 1073741824.0) return 1;
    print_message("skipped, %.0f GiB of device memory are needed\n", gib);
    return 0;
}

/* PART rows of `line` bytes `parts` times, then the same of the other kind. */
static void repeat_rows(uint8_t *to, const void *first, const void *other, size_t line, int64_t parts) {
    const struct mx8_exec *x = &cuda.exec;
    const size_t part = PART * line;
    assert_ok(x->k->copy(x, to, first, part));
    for (int64_t done = 1; done < parts; done *= 2) {
        const int64_t more = done < parts - done ? done : parts - done;
        assert_ok(x->k->copy(x, to + (size_t)done * part, to, (size_t)more * part));
    }
    assert_ok(x->k->copy(x, to + (size_t)parts * part, other, part));
}

static void expect_slice(const char *what, const uint8_t *device, const void *want, size_t bytes) {
    uint8_t *got = make_host(bytes, 0);
    assert_ok(cuda.exec.k->download(&cuda.exec, got, device, bytes));
    expect_same_bytes(what, "slice", got, want, bytes);
    free(got);
}

/* PART x cols of bf16. */
static uint16_t *make_source(int64_t cols, uint32_t seed) {
    uint16_t *source = make_host((size_t)(PART * cols) * sizeof *source, 0);
    for (int64_t i = 0; i < PART * cols; i++)
        source[i] = mx8_encode_bf16(ldexpf((float)(draw(&seed) & 0xFFFF) / 32768.0f - 1, (int)(draw(&seed) % 5)));
    return source;
}

/* ---- quantizers ---- */

enum { Q_COLS = 4096, Q_PARTS = 2049, Q_ROWS = (Q_PARTS + OTHER) * PART }; /* 2,149,580,800 values */

/* Row and column codes of PART rows, from the scalar reference. */
struct small_codes {
    uint8_t *row, *row_scale, *col, *col_scale;
};

static struct small_codes quantize_part(const uint16_t *source, int32_t group, int32_t col_tile) {
    const size_t n = (size_t)PART * Q_COLS;
    struct small_codes c = {make_host(n, 0), make_host(n / 32, 0), make_host(n, 0), make_host(n / 32, 0)};
    struct mx8_quant_job j = {.src = source,
        .src_dtype = MX8_BF16,
        .batch = 1,
        .rows = PART,
        .cols = Q_COLS,
        .src_stride = {0, Q_COLS, 1},
        .row_codes = c.row,
        .row_code_stride = {0, Q_COLS, 1},
        .row_scales = c.row_scale,
        .row_scale_stride = {0, Q_COLS / 32, 1},
        .col_codes = c.col,
        .col_code_stride = {0, 1, PART},
        .col_scales = c.col_scale,
        .col_scale_stride = {0, 1, PART / 32},
        .padded_rows = PART,
        .rule = MX8_SCALE_RCEIL,
        .format = MX8_F8_E4M3,
        .group = group,
        .tile = 1,
        .col_tile = col_tile};
    mx8i_reference_quantize(&j);
    return c;
}

static void free_codes(struct small_codes *c) {
    free(c->row);
    free(c->row_scale);
    free(c->col);
    free(c->col_scale);
}

/* Rows [part * PART, ...) of all four results. */
static void check_part(const struct mx8_quant_job *j, const struct small_codes *want, int64_t part) {
    const size_t row = (size_t)(part * PART);
    char what[80];
    snprintf(what, sizeof what, "rows %zu to %zu, group %d", row, row + PART, (int)j->group);
    expect_slice(what, j->row_codes + row * Q_COLS, want->row, (size_t)PART * Q_COLS);
    expect_slice(what, j->row_scales + row * (Q_COLS / 32), want->row_scale, (size_t)PART * Q_COLS / 32);
    static const size_t columns[] = {0, 1, 2047, 4091, 4092, 4093, 4095}; /* line 4092 holds element 2^31 */
    for (int i = 0; i < COUNT(columns); i++) {
        const size_t c = columns[i];
        expect_slice(what, j->col_codes + c * Q_ROWS + row, want->col + c * PART, PART);
        expect_slice(what, j->col_scales + c * (Q_ROWS / 32) + row / 32, want->col_scale + c * (PART / 32), PART / 32);
    }
}

static void check_quantizer(
    const uint16_t *first, const uint16_t *other, const void *src, int32_t group, int32_t tile) {
    const size_t n = (size_t)Q_ROWS * Q_COLS;
    struct mx8_quant_job j = {.src = src,
        .src_dtype = MX8_BF16,
        .batch = 1,
        .rows = Q_ROWS,
        .cols = Q_COLS,
        .src_stride = {0, Q_COLS, 1},
        .row_codes = allocate(n),
        .row_code_stride = {0, Q_COLS, 1},
        .row_scales = allocate(n / 32),
        .row_scale_stride = {0, Q_COLS / 32, 1},
        .col_codes = allocate(n),
        .col_code_stride = {0, 1, Q_ROWS},
        .col_scales = allocate(n / 32),
        .col_scale_stride = {0, 1, Q_ROWS / 32},
        .padded_rows = Q_ROWS,
        .rule = MX8_SCALE_RCEIL,
        .format = MX8_F8_E4M3,
        .group = group,
        .tile = 1,
        .col_tile = tile};
    assert_ok(cuda.exec.k->quantize(&cuda.exec, &j));
    struct small_codes a = quantize_part(first, group, tile), b = quantize_part(other, group, tile);
    static const int64_t parts[] = {0, 1, 1023, 1024, 2047, 2048};
    for (int i = 0; i < COUNT(parts); i++) check_part(&j, &a, parts[i]);
    check_part(&j, &b, Q_PARTS);
    free_codes(&a);
    free_codes(&b);
    for (int i = 0; i < 4; i++) cuda.exec.k->release(&cuda.exec, large[--n_large]);
}

static void test_quantize_both(void **state) {
    (void)state;
    NEEDS_CUDA();
    if (!needs(10)) skip();
    uint16_t *first = make_source(Q_COLS, 5), *other = make_source(Q_COLS, 77);
    const size_t line = Q_COLS * sizeof *first;
    uint8_t *src = allocate((size_t)Q_ROWS * line), *parts = allocate(2 * PART * line);
    assert_ok(cuda.exec.k->upload(&cuda.exec, parts, first, PART * line));
    assert_ok(cuda.exec.k->upload(&cuda.exec, parts + PART * line, other, PART * line));
    repeat_rows(src, parts, parts + PART * line, line, Q_PARTS);
    check_quantizer(first, other, src, 256, 32);
    check_quantizer(first, other, src, 32, 1);
    free(first);
    free(other);
    release_all();
}

/* ---- products ---- */

enum { G_N = 8192, G_K = 256, G_PARTS = 1025, G_ROWS = (G_PARTS + OTHER) * PART }; /* 2,151,677,952 outputs */

/* Codes of `lines` x G_K on the device. */
static struct mx8_matrix quantize_operand(int64_t lines, int32_t group, int32_t tile, uint32_t seed) {
    struct mx8_matrix m = {
        .dtype = MX8_F8_E4M3, .ls = G_K, .ks = 1, .sls = G_K / 32, .sks = 1, .scale_group = group, .tile = tile};
    uint8_t *codes = allocate((size_t)(lines * G_K)), *scales = allocate((size_t)(lines * G_K / 32));
    uint16_t *source = make_host((size_t)(lines * G_K) * 2, 0), *part = make_source(G_K, seed);
    uint8_t *src = allocate((size_t)(lines * G_K) * 2);
    for (int64_t i = 0; i < lines * G_K; i++) source[i] = part[(i + i / (PART * G_K) * 37) % (PART * G_K)];
    assert_ok(cuda.exec.k->upload(&cuda.exec, src, source, (size_t)(lines * G_K) * 2));
    struct mx8_quant_job j = {.src = src,
        .src_dtype = MX8_BF16,
        .batch = 1,
        .rows = lines,
        .cols = G_K,
        .src_stride = {0, G_K, 1},
        .row_codes = codes,
        .row_code_stride = {0, G_K, 1},
        .row_scales = scales,
        .row_scale_stride = {0, G_K / 32, 1},
        .rule = MX8_SCALE_RCEIL,
        .format = MX8_F8_E4M3,
        .group = group,
        .tile = tile};
    assert_ok(cuda.exec.k->quantize(&cuda.exec, &j));
    assert_ok(cuda.exec.k->synchronize(&cuda.exec));
    free(source);
    free(part);
    m.data = codes;
    m.scales = scales;
    return m;
}

/* PART rows of A by B. */
static uint8_t *multiply_part(const struct mx8_gemm_job *large_job, struct mx8_matrix a) {
    const size_t bytes = (size_t)PART * G_N * mx8_get_dtype_size(large_job->c_dtype);
    struct mx8_gemm_job j = *large_job;
    j.a = a;
    j.M = PART;
    j.c = allocate(bytes);
    uint8_t *host = make_host(bytes, 0);
    assert_ok(cuda.exec.k->gemm(&cuda.exec, &j));
    assert_ok(cuda.exec.k->download(&cuda.exec, host, j.c, bytes));
    return host;
}

static void check_product(int32_t c_dtype, int32_t group, int32_t b_tile) {
    const size_t width = mx8_get_dtype_size(c_dtype), part = (size_t)PART * G_N * width;
    const struct mx8_matrix first = quantize_operand(PART, group, 1, 3), other = quantize_operand(PART, group, 1, 1234);
    struct mx8_gemm_job j = {.mode = MX8_GEMM_DENSE,
        .M = G_ROWS,
        .N = G_N,
        .K = G_K,
        .a = first,
        .b = quantize_operand(G_N, group, b_tile, 9),
        .c_dtype = c_dtype,
        .c_ls = G_N};
    uint8_t *codes = allocate((size_t)G_ROWS * G_K), *scales = allocate((size_t)G_ROWS * G_K / 32);
    repeat_rows(codes, first.data, other.data, G_K, G_PARTS);
    repeat_rows(scales, first.scales, other.scales, G_K / 32, G_PARTS);
    uint8_t *want = multiply_part(&j, first), *want_other = multiply_part(&j, other);
    j.a.data = codes;
    j.a.scales = scales;
    j.c = allocate((size_t)G_ROWS * G_N * width);
    assert_ok(cuda.exec.k->gemm(&cuda.exec, &j));
    static const int64_t parts[] = {0, 511, 512, 1023, 1024};
    for (int i = 0; i <= COUNT(parts); i++) {
        const int64_t at = i < COUNT(parts) ? parts[i] : G_PARTS;
        char what[80];
        snprintf(what, sizeof what, "rows %lld, C %s, group %d", (long long)(at * PART), mx8_get_dtype_name(c_dtype),
            (int)group);
        expect_slice(what, (uint8_t *)j.c + (size_t)at * part, i < COUNT(parts) ? want : want_other, part);
    }
    free(want);
    free(want_other);
    release_all();
}

static void test_products(void **state) {
    (void)state;
    NEEDS_CUDA();
    if (!needs(11)) skip();
    check_product(MX8_BF16, 256, 32); /* Hopper's path, where there is one */
    check_product(MX8_F32, 256, 32);
    check_product(MX8_BF16, 32, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cuda_unit_test(test_quantize_both), cuda_unit_test(test_products)};
    return cmocka_run_group_tests_name("cuda.large", tests, open_cuda, close_cuda);
}
