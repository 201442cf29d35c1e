/* CUDA scale layouts, group padding and dequantization against the scalar reference, bit for bit. */
#include "cuda_test.h"
#include "formats/jobs.h"

static const struct layout_case {
    int32_t layout;
    int64_t E, R, C;
    int32_t n_groups, ends[6];
} layout_cases[] = {
    {MX8_LAYOUT_PLAIN, 1, 0, 5, 0, {0}},
    {MX8_LAYOUT_PLAIN, 1, 1, 1, 0, {0}},
    {MX8_LAYOUT_PLAIN, 1, 128, 4, 0, {0}},
    {MX8_LAYOUT_PLAIN, 1, 129, 5, 0, {0}},
    {MX8_LAYOUT_PLAIN, 1, 300, 90, 0, {0}},
    {MX8_LAYOUT_PER_EXPERT, 3, 130, 7, 0, {0}},
    {MX8_LAYOUT_PER_EXPERT, 2, 256, 8, 0, {0}},
    {MX8_LAYOUT_M_GROUPS, 1, 300, 9, 4, {0, 129, 129, 290}},
    {MX8_LAYOUT_M_GROUPS, 1, 300, 8, 3, {128, 256, 300}},
    {MX8_LAYOUT_M_GROUPS, 1, 40, 3, 2, {0, 0}},
    {MX8_LAYOUT_K_GROUPS, 1, 130, 40, 5, {0, 3, 8, 8, 33}},
    {MX8_LAYOUT_K_GROUPS, 1, 256, 16, 1, {16}},
};

static int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

static size_t count_blocked(const struct layout_case *c) {
    int64_t rows = round_up(c->R, 128), cols = round_up(c->C, 4);
    if (c->layout == MX8_LAYOUT_M_GROUPS) return (size_t)((c->R + 128 * (int64_t)c->n_groups) * cols);
    if (c->layout == MX8_LAYOUT_K_GROUPS) return (size_t)(rows * (c->C + 4 * (int64_t)c->n_groups));
    return (size_t)(c->E * rows * cols);
}

/* Both directions, with a gap after every line. */
static void check_layout(const struct layout_case *c, int number) {
    char name[64];
    snprintf(name, sizeof name, "layout case %d", number);
    int64_t pitch = c->C + 3;
    size_t plain_size = (size_t)(c->E * c->R * pitch), blocked_size = count_blocked(c),
           starts_size = (size_t)(c->n_groups + 1) * 8;
    uint8_t *plain = make_host(plain_size, 0), *blocked = make_host(blocked_size, CUDA_POISON),
            *back = make_host(plain_size, CUDA_POISON);
    int64_t *starts = make_host(starts_size, CUDA_POISON);
    uint32_t random = (uint32_t)number;
    for (size_t i = 0; i < plain_size; i++) plain[i] = (uint8_t)draw(&random);
    struct mx8_layout_job host = {.plain = plain,
        .blocked = blocked,
        .E = c->E,
        .R = c->R,
        .C = c->C,
        .layout = c->layout,
        .offsets = c->ends,
        .n_groups = c->n_groups,
        .starts = starts,
        .plain_stride = {c->R * pitch, pitch, 1}};
    struct mx8_layout_job to = host;
    rewind_buffers();
    to.plain = copy_to_device(plain, plain_size);
    to.blocked = make_buffer(blocked_size, CUDA_POISON);
    to.offsets = copy_to_device(c->ends, sizeof c->ends);
    to.starts = make_buffer(starts_size, CUDA_POISON);
    assert_ok(cuda.exec.k->block_scales(&cuda.exec, &to));
    mx8i_reference_block_scales(&host);
    expect_buffer(name, "blocked", to.blocked, blocked, blocked_size);
    expect_buffer(name, "starts", to.starts, starts, starts_size);

    struct mx8_layout_job from = to;
    from.plain = make_buffer(plain_size, CUDA_POISON);
    assert_ok(cuda.exec.k->unblock_scales(&cuda.exec, &from));
    host.plain = back;
    mx8i_reference_unblock_scales(&host);
    expect_buffer(name, "plain", from.plain, back, plain_size);
    free(plain);
    free(blocked);
    free(back);
    free(starts);
}

static void layouts_match_the_reference(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int i = 0; i < COUNT(layout_cases); i++) check_layout(&layout_cases[i], i);
}

static const struct pad_case {
    int64_t rows, cols, pitch;
    size_t elem_size;
    int32_t alignment, n_groups, ends[5];
} pad_cases[] = {
    {0, 16, 16, 2, 32, 2, {0, 0}},
    {1, 1, 1, 1, 32, 1, {1}},
    {90, 33, 40, 2, 32, 4, {0, 40, 40, 90}},
    {300, 64, 64, 2, 128, 4, {1, 129, 257, 290}},
    {300, 64, 72, 4, 128, 3, {0, 300, 300}},
    {50, 100, 100, 1, 32, 3, {0, 0, 0}},
    {64, 12, 12, 4, 1, 2, {31, 64}},
    {700, 256, 256, 2, 128, 5, {255, 383, 427, 427, 682}},
};

static void check_pad(const struct pad_case *c, int number) {
    char name[64];
    snprintf(name, sizeof name, "pad case %d", number);
    int64_t padded_rows = c->rows + (int64_t)c->n_groups * c->alignment, padded_pitch = c->pitch + 8;
    size_t x_size = (size_t)(c->rows * c->pitch) * c->elem_size,
           padded_size = (size_t)(padded_rows * padded_pitch) * c->elem_size;
    uint8_t *x = make_host(x_size, 0), *padded = make_host(padded_size, CUDA_POISON),
            *back = make_host(x_size, CUDA_POISON);
    int32_t starts[5], ends[5];
    size_t ends_size = (size_t)c->n_groups * 4;
    uint32_t random = (uint32_t)number;
    for (size_t i = 0; i < x_size; i++) x[i] = (uint8_t)draw(&random);
    struct mx8_pad_job host = {.padded = padded,
        .x = x,
        .rows = c->rows,
        .padded_rows = padded_rows,
        .cols = c->cols,
        .elem_size = c->elem_size,
        .x_stride = c->pitch,
        .padded_stride = padded_pitch,
        .offsets = c->ends,
        .n_groups = c->n_groups,
        .alignment = c->alignment,
        .starts = starts,
        .ends = ends};
    struct mx8_pad_job d = host;
    rewind_buffers();
    d.x = copy_to_device(x, x_size);
    d.padded = make_buffer(padded_size, CUDA_POISON);
    d.offsets = copy_to_device(c->ends, sizeof c->ends);
    d.starts = make_buffer(ends_size, CUDA_POISON);
    d.ends = make_buffer(ends_size, CUDA_POISON);
    assert_ok(cuda.exec.k->pad_groups(&cuda.exec, &d));
    mx8i_reference_pad_groups(&host);
    expect_buffer(name, "padded", d.padded, padded, padded_size);
    expect_buffer(name, "starts", d.starts, starts, ends_size);
    expect_buffer(name, "ends", d.ends, ends, ends_size);

    d.x = make_buffer(x_size, CUDA_POISON);
    assert_ok(cuda.exec.k->unpad_groups(&cuda.exec, &d));
    host.x = back;
    mx8i_reference_unpad_groups(&host);
    expect_buffer(name, "unpadded", d.x, back, x_size);
    free(x);
    free(padded);
    free(back);
}

static void padding_matches_the_reference(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int i = 0; i < COUNT(pad_cases); i++) check_pad(&pad_cases[i], i);
}

/* Which NaN comes out is left open: any becomes the same one. */
static void settle_nans(void *values, int32_t dtype, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (dtype == MX8_F32) {
            uint32_t *bits = (uint32_t *)values + i;
            if ((*bits & 0x7FFFFFFFu) > 0x7F800000u) *bits = 0x7FC00000u;
        } else {
            uint16_t *bits = (uint16_t *)values + i;
            if ((*bits & 0x7FFF) > 0x7F80) *bits = 0x7FC0;
        }
    }
}

/* Every code under every scale byte, and a ragged matrix that is read and written with strides. */
static void check_dequantize(int64_t rows, int64_t cols, int64_t pitch, int32_t format, int32_t dtype, int transposed) {
    size_t element = dtype == MX8_F32 ? 4 : 2, size = (size_t)(rows * pitch) * element;
    int64_t blocks = round_up(cols, 32) / 32, lines = transposed ? cols : rows, length = (transposed ? rows : cols) + 5;
    uint8_t *codes = make_host((size_t)(lines * length), 0), *scales = make_host((size_t)(rows * blocks), 0),
            *want = make_host(size, 0);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) codes[transposed ? c * length + r : r * length + c] = (uint8_t)(c + r / 256);
        for (int64_t b = 0; b < blocks; b++) scales[r * blocks + b] = (uint8_t)(r + 7 * (b / 8));
    }
    struct mx8_dequant_job host = {.dst = want,
        .dst_dtype = dtype,
        .rows = rows,
        .cols = cols,
        .dst_stride = {pitch, 1},
        .codes = codes,
        .code_stride = {transposed ? 1 : length, transposed ? length : 1},
        .scales = scales,
        .scale_stride = {blocks, 1},
        .format = format};
    struct mx8_dequant_job d = host;
    rewind_buffers();
    d.dst = make_buffer(size, 0);
    d.codes = copy_to_device(codes, (size_t)(lines * length));
    d.scales = copy_to_device(scales, (size_t)(rows * blocks));
    assert_ok(cuda.exec.k->dequantize(&cuda.exec, &d));
    mx8i_reference_dequantize(&host);
    void *got = fetch_buffer(d.dst, size, "dequantized");
    settle_nans(got, dtype, rows * pitch);
    settle_nans(want, dtype, rows * pitch);
    expect_same_bytes("dequantize", dtype == MX8_F32 ? "f32" : "bf16", got, want, size);
    free(got);
    free(codes);
    free(scales);
    free(want);
}

static void dequantizing_matches_the_reference(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int i = 0; i < 8; i++) {
        int32_t format = i & 1 ? MX8_F8_E5M2 : MX8_F8_E4M3, dtype = i & 2 ? MX8_BF16 : MX8_F32;
        check_dequantize(256, 256, 256, format, dtype, i & 4);
        check_dequantize(77, 45, 48, format, dtype, i & 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cuda_unit_test(layouts_match_the_reference),
        cuda_unit_test(padding_matches_the_reference),
        cuda_unit_test(dequantizing_matches_the_reference),
    };
    return cmocka_run_group_tests_name("cuda.layout", tests, open_cuda, close_cuda);
}
