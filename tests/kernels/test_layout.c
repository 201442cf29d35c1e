/* Scale layouts, group padding and the memory functions: every table and thread count gives the bytes of the reference,
 * guards included, and the way back restores what was there. */
#include "model_testing.h"

enum { POISON = 0xA5 };

static const int32_t ragged[] = {3, 3, 130, 300}, aligned[] = {128, 256, 256}, none[] = {0, 0},
                     small[] = {1, 2, 5, 5, 9};

struct layout_case {
    int32_t layout;
    int64_t E, R, C;
    int32_t n_groups;
    const int32_t *offsets;
};

static const struct layout_case layout_cases[] = {
    {MX8_LAYOUT_PLAIN, 1, 0, 5, 0, NULL},           {MX8_LAYOUT_PLAIN, 1, 5, 0, 0, NULL},
    {MX8_LAYOUT_PLAIN, 1, 1, 1, 0, NULL},           {MX8_LAYOUT_PLAIN, 1, 128, 4, 0, NULL},
    {MX8_LAYOUT_PLAIN, 1, 129, 5, 0, NULL},         {MX8_LAYOUT_PLAIN, 1, 300, 33, 0, NULL},
    {MX8_LAYOUT_PER_EXPERT, 3, 96, 6, 0, NULL},     {MX8_LAYOUT_PER_EXPERT, 0, 96, 6, 0, NULL},
    {MX8_LAYOUT_M_GROUPS, 1, 300, 7, 4, ragged},    {MX8_LAYOUT_M_GROUPS, 1, 320, 8, 4, ragged},
    {MX8_LAYOUT_M_GROUPS, 1, 256, 4, 3, aligned},   {MX8_LAYOUT_M_GROUPS, 1, 20, 4, 2, none},
    {MX8_LAYOUT_K_GROUPS, 1, 150, 9, 5, small},     {MX8_LAYOUT_K_GROUPS, 1, 64, 12, 5, small},
    {MX8_LAYOUT_K_GROUPS, 1, 130, 300, 4, ragged},
};
enum { N_LAYOUT_CASES = sizeof layout_cases / sizeof *layout_cases };

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

static int64_t blocked_size(const struct layout_case *c) {
    if (c->layout == MX8_LAYOUT_M_GROUPS) return (c->R + 128 * c->n_groups) * round_up(c->C, 4);
    if (c->layout == MX8_LAYOUT_K_GROUPS) return round_up(c->R, 128) * (c->C + 4 * c->n_groups);
    return c->E * round_up(c->R, 128) * round_up(c->C, 4);
}

static uint8_t *make_poisoned(int64_t n) {
    uint8_t *p = make_zeros(MX8_U8, n);
    memset(p, POISON, (size_t)n);
    return p;
}

/* One case with plain scales contiguous or apart. */
static void check_layout(const struct mx8_kernels *k, const struct layout_case *c, int64_t step) {
    int64_t plain_size = c->E * c->R * c->C * step, size = blocked_size(c);
    struct mx8_layout_job j = {.E = c->E, .R = c->R, .C = c->C, .layout = c->layout, .offsets = c->offsets,
        .n_groups = c->n_groups, .plain_stride = {c->R * c->C * step, c->C * step, step}};
    uint8_t *plain = make_poisoned(plain_size), *back = make_poisoned(plain_size),
            *back_want = make_poisoned(plain_size);
    uint8_t *got = make_poisoned(size), *want = make_poisoned(size);
    int64_t starts[8] = {0}, starts_want[8] = {0};
    for (int64_t i = 0; i < plain_size; i++) plain[i] = (uint8_t)(1 + i % 251);

    j.plain = plain;
    j.blocked = want;
    j.starts = starts_want;
    mx8i_reference_block_scales(&j);
    j.blocked = got;
    j.starts = starts;
    struct replay r;
    begin_replay(&r, k, (struct span[]){{got, (size_t)size}, {starts, sizeof starts}}, 2);
    while (next_replay(&r)) assert_ok(k->block_scales(&r.exec, &j));
    assert_memory_equal(got, want, (size_t)size);
    assert_memory_equal(starts, starts_want, sizeof starts);

    j.plain = back_want;
    mx8i_reference_unblock_scales(&j);
    j.plain = back;
    begin_replay(&r, k, &(struct span){back, (size_t)plain_size}, 1);
    while (next_replay(&r)) assert_ok(k->unblock_scales(&r.exec, &j));
    assert_memory_equal(back, back_want, (size_t)plain_size);
    for (int64_t i = 0; i < plain_size && c->n_groups == 0; i += step) assert_int_equal(back[i], plain[i]);
    uint8_t *owned[] = {plain, back, back_want, got, want};
    for (int i = 0; i < 5; i++) free(owned[i]);
}

static void layouts(const struct mx8_kernels *k) {
    for (int i = 0; i < N_LAYOUT_CASES; i++) {
        check_layout(k, &layout_cases[i], 1);
        check_layout(k, &layout_cases[i], 3);
    }
}

struct pad_case {
    int64_t rows, cols;
    size_t elem_size;
    int32_t alignment, n_groups;
    const int32_t *offsets;
    int64_t gap; /* elements between rows */
};

static const struct pad_case pad_cases[] = {
    {300, 5, 2, 32, 4, ragged, 0}, {310, 5, 2, 32, 4, ragged, 3},  {310, 64, 4, 128, 4, ragged, 0},
    {256, 3, 1, 128, 3, aligned, 0}, {20, 7, 2, 32, 2, none, 1},   {9, 33, 2, 1, 5, small, 0},
    {9, 0, 2, 32, 5, small, 0},    {0, 4, 2, 32, 2, none, 0},
};
enum { N_PAD_CASES = sizeof pad_cases / sizeof *pad_cases };

static void check_pad(const struct mx8_kernels *k, const struct pad_case *c) {
    struct mx8_pad_job j = {.rows = c->rows,
        .cols = c->cols,
        .elem_size = c->elem_size,
        .offsets = c->offsets,
        .n_groups = c->n_groups,
        .alignment = c->alignment,
        .x_stride = c->cols + c->gap,
        .padded_stride = c->cols + c->gap};
    j.padded_rows = round_up(c->rows + c->n_groups * c->alignment, c->alignment);
    int64_t x_size = c->rows * j.x_stride * (int64_t)c->elem_size;
    int64_t padded_size = j.padded_rows * j.padded_stride * (int64_t)c->elem_size;
    uint8_t *x = make_poisoned(x_size), *back = make_poisoned(x_size), *back_want = make_poisoned(x_size);
    uint8_t *got = make_poisoned(padded_size), *want = make_poisoned(padded_size);
    int32_t bounds[16] = {0}, bounds_want[16] = {0};
    for (int64_t i = 0; i < x_size; i++) x[i] = (uint8_t)(i * 31 + 7);

    j.x = x;
    j.padded = want;
    j.starts = bounds_want;
    j.ends = bounds_want + 8;
    mx8i_reference_pad_groups(&j);
    j.padded = got;
    j.starts = bounds;
    j.ends = bounds + 8;
    struct replay r;
    begin_replay(&r, k, (struct span[]){{got, (size_t)padded_size}, {bounds, sizeof bounds}}, 2);
    while (next_replay(&r)) assert_ok(k->pad_groups(&r.exec, &j));
    assert_memory_equal(got, want, (size_t)padded_size);
    assert_memory_equal(bounds, bounds_want, sizeof bounds);

    j.x = back_want;
    mx8i_reference_unpad_groups(&j);
    j.x = back;
    begin_replay(&r, k, &(struct span){back, (size_t)x_size}, 1);
    while (next_replay(&r)) assert_ok(k->unpad_groups(&r.exec, &j));
    assert_memory_equal(back, back_want, (size_t)x_size);
    uint8_t *owned[] = {x, back, back_want, got, want};
    for (int i = 0; i < 5; i++) free(owned[i]);
}

static void padding(const struct mx8_kernels *k) {
    for (int i = 0; i < N_PAD_CASES; i++) check_pad(k, &pad_cases[i]);
}

/* Lines of one byte, of odd and of whole length, few and enough for several threads; what lies between them stays. */
static void check_lines(const struct mx8_exec *x, const uint8_t *from, uint8_t *to) {
    static const struct {
        int64_t lines;
        size_t bytes, from_stride, to_stride;
    } cases[] = {{0, 5, 5, 5}, {3, 0, 1, 1}, {1, 33, 33, 40}, {37, 1, 1, 3}, {31, 32, 32, 96}, {5000, 301, 305, 320}, {7, 64, 64, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t from_stride = cases[i].from_stride, to_stride = cases[i].to_stride;
        memset(to, POISON, (size_t)cases[i].lines * to_stride + 1);
        assert_ok(x->k->copy_lines(x, to, to_stride, from, from_stride, cases[i].lines, cases[i].bytes));
        for (size_t line = 0; line < (size_t)cases[i].lines; line++) {
            for (size_t b = 0; b < to_stride; b++) {
                assert_int_equal(to[line * to_stride + b], b < cases[i].bytes ? from[line * from_stride + b] : POISON);
            }
        }
        assert_int_equal(to[(size_t)cases[i].lines * to_stride], POISON);
    }
}

/* Long enough for several pieces, and no whole number of them. */
static void memory(const struct mx8_kernels *k) {
    enum { SIZE = 3 * 1024 * 1024 + 17 };
    struct mx8_exec x = {.k = k, .threads = 3, .ordinal = -1};
    void *a = NULL, *b = NULL, *nothing = NULL;
    assert_ok(k->allocate(&x, SIZE + 1, &a));
    assert_ok(k->allocate(&x, SIZE + 1, &b));
    assert_ok(k->allocate(&x, 0, &nothing));
    assert_int_equal((uintptr_t)a % 4096, 0);
    assert_ok(k->fill(&x, a, 0x17, SIZE));
    for (int64_t i = 0; i < SIZE; i++) assert_int_equal(((uint8_t *)a)[i], 0x17);
    for (int64_t i = 0; i < SIZE; i++) ((uint8_t *)a)[i] = (uint8_t)(i * 13 + i / 999);
    ((uint8_t *)b)[SIZE] = POISON;
    assert_ok(k->copy(&x, b, a, SIZE));
    assert_memory_equal(a, b, SIZE);
    assert_int_equal(((uint8_t *)b)[SIZE], POISON);
    check_lines(&x, a, b);
    assert_ok(k->fill(&x, b, 0, 0));
    assert_ok(k->upload(&x, b, "mx8", 4));
    assert_ok(k->download(&x, a, b, 4));
    assert_string_equal(a, "mx8");
    assert_ok(k->synchronize(&x));
    k->release(&x, a);
    k->release(&x, b);
    k->release(&x, nothing);
    k->release(&x, NULL);

    mx8i_fail_allocation(1, 0);
    assert_status(k->allocate(&x, 4096, &a), MX8_OUT_OF_MEMORY);
    mx8i_fail_allocation(0, 0);
    assert_null(a);
}

static void test_layouts(void **state) {
    (void)state;
    for_every_isa(layouts);
}

static void test_padding(void **state) {
    (void)state;
    for_every_isa(padding);
}

static void test_memory(void **state) {
    (void)state;
    for_every_isa(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
