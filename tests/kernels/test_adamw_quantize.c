/* The update that makes codes against the steps one after the other, bit for bit: AdamW, rounding to bf16, and the
 * scalar reference quantizer of the whole. */
#include "model_testing.h"
#include "kernels/adamw_pieces.h"

/* batch x rows x cols; the CPU's pieces are 2^18 elements, whole matrices or 256 rows. */
static const int64_t shapes[][3] = {
    {0, 32, 32}, {2, 0, 64}, {1, 1, 32}, {1, 33, 40}, {1, 255, 64}, {1, 257, 64},
    {1, 600, 520},                 /* one piece, and two */
    {3, 40, 64}, {7, 150, 512},    /* three matrices a piece, and one left over */
    {2, 520, 544}, {1, 1100, 320}, /* pieces of rows, the last one short */
};
static const struct geometry {
    int32_t group, tile, col_tile;
} geometries[] = {{256, 1, 1}, {256, 32, 32}, {32, 1, 1}, {128, 128, 128}, {128, 1, 32}, {32, 32, 1}};

struct matrices {
    int64_t batch, rows, cols, n, padded, blocks, col_blocks;
};

static float draw_value(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

/* Six binades apart from block to block; row 0 to 31 of columns below 32 stay zero. */
static void fill_values(
    const struct matrices *x, void *data, int32_t dtype, uint32_t seed, double scale, int positive) {
    for (int64_t i = 0; i < x->n; i++) {
        const double v = (double)draw_value(&seed), size = ldexp(scale, (int)(i / 97 % 6));
        const int zero = i % x->cols < 32 && i / x->cols % x->rows < 32;
        set_value(data, dtype, i, zero ? 0 : size * (positive ? fabs(v) : v));
    }
}

struct codes {
    uint8_t *row, *row_scale, *col, *col_scale;
    int64_t *saturated;
};

static struct codes make_codes(const struct matrices *x) {
    struct codes c = {make_zeros(MX8_U8, x->n), make_zeros(MX8_U8, x->batch * x->rows * x->blocks),
        make_zeros(MX8_U8, x->batch * x->cols * x->padded), make_zeros(MX8_U8, x->batch * x->cols * x->col_blocks),
        make_zeros(MX8_I64, 1)};
    memset(c.row, 0xEE, (size_t)x->n);
    memset(c.col, 0xEE, (size_t)(x->batch * x->cols * x->padded));
    return c;
}

/* experts: the column scales of a block of rows lie side by side. */
static struct mx8_quant_job make_job(
    const struct matrices *x, const struct codes *c, const struct geometry *g, int experts) {
    struct mx8_quant_job j = {.batch = x->batch,
        .rows = x->rows,
        .cols = x->cols,
        .padded_rows = x->padded,
        .row_codes = c->row,
        .row_code_stride = {x->rows * x->cols, x->cols, 1},
        .row_scales = c->row_scale,
        .row_scale_stride = {x->rows * x->blocks, x->blocks, 1},
        .col_codes = c->col,
        .col_code_stride = {x->cols * x->padded, 1, x->padded},
        .col_scales = c->col_scale,
        .col_scale_stride = {x->cols * x->col_blocks, 1, x->col_blocks},
        .group = g->group,
        .tile = g->tile,
        .col_tile = g->col_tile,
        .format = MX8_F8_E4M3,
        .saturated = c->saturated};
    if (experts) j.col_scale_stride[1] = x->cols, j.col_scale_stride[2] = 1;
    return j;
}

static void free_codes(const struct codes *c) {
    void *owned[] = {c->row, c->row_scale, c->col, c->col_scale, c->saturated};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void check_codes(const char *what, const struct matrices *x, const struct codes *got, const struct codes *want) {
    const struct {
        const char *name;
        const void *got, *want;
        int64_t bytes;
    } part[] = {{"row codes", got->row, want->row, x->n},
        {"row scales", got->row_scale, want->row_scale, x->batch * x->rows * x->blocks},
        {"column codes", got->col, want->col, x->batch * x->cols * x->padded},
        {"column scales", got->col_scale, want->col_scale, x->batch * x->cols * x->col_blocks},
        {"clipped values", got->saturated, want->saturated, sizeof(int64_t)}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (memcmp(part[i].got, part[i].want, (size_t)part[i].bytes)) fail_msg("%s: %s differ", what, part[i].name);
}

static void check_shape(const struct mx8_kernels *k, const int64_t *shape, const struct geometry *g, int number) {
    const int64_t batch = shape[0], rows = shape[1], cols = shape[2], padded = (rows + 31) / 32 * 32;
    const struct matrices x = {batch, rows, cols, batch * rows * cols, padded, (cols + 31) / 32, padded / 32};
    const int32_t moment = both_dtypes[number % 2];
    const size_t moment_bytes = (size_t)x.n * mx8_get_dtype_size(moment), bytes = (size_t)x.n * sizeof(float);
    float factor = 0.37f, *p = make_zeros(MX8_F32, x.n), *grad = make_zeros(MX8_F32, x.n),
          *want_p = make_zeros(MX8_F32, x.n);
    void *m = make_zeros(moment, x.n), *v = make_zeros(moment, x.n), *want_m = make_zeros(moment, x.n),
         *want_v = make_zeros(moment, x.n);
    uint16_t *rounded = make_zeros(MX8_BF16, x.n);
    fill_values(&x, p, MX8_F32, 1, 0.02, 0);
    fill_values(&x, grad, MX8_F32, 2, 1e-3, 0);
    fill_values(&x, m, moment, 3, 1e-3, 0);
    fill_values(&x, v, moment, 4, 1e-6, 1);
    if (number % 3 == 1 && x.n > 40 * cols) grad[40 * cols + 7 % cols] = NAN; /* spreads over its blocks */
    struct codes got = make_codes(&x), want = make_codes(&x);
    struct mx8_quant_job codes = make_job(&x, &got, g, number % 2), whole = make_job(&x, &want, g, number % 2);
    codes.rule = whole.rule = number % 4; /* all of them */
    if (number % 5 == 2) codes.format = whole.format = MX8_F8_E5M2;
    const int64_t room = mx8i_size_largest_piece(&codes, MX8_ADAMW_PIECE);
    uint16_t *copy = make_zeros(MX8_BF16, room);
    const struct mx8_adamw_state state = {3e-3f, 1 - 0.9f * 0.9f, 1 - 0.95f * 0.95f, 0xDEADBEEF};
    struct mx8_adamw_job job = {.n = x.n,
        .lr = state.lr,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .bias1 = state.bias1,
        .bias2 = state.bias2,
        .grad_scale = &factor,
        .master = p,
        .m = m,
        .v = v,
        .grad = grad,
        .copy = copy,
        .copy_dtype = MX8_BF16,
        .moment_dtype = moment,
        .rounding = state.rounding,
        .first = ((uint64_t)1 << 32) - 21,
        .state = number % 2 ? &state : NULL};

    memcpy(want_p, p, bytes);
    memcpy(want_m, m, moment_bytes);
    memcpy(want_v, v, moment_bytes);
    struct mx8_adamw_job apart = job;
    apart.master = want_p;
    apart.m = want_m;
    apart.v = want_v;
    apart.copy = rounded;
    const struct span out[] = {{p, bytes}, {m, moment_bytes}, {v, moment_bytes}, {got.row, (size_t)x.n},
        {got.col, (size_t)(batch * cols * padded)}, {got.saturated, sizeof *got.saturated}};
    struct replay r;
    begin_replay(&r, k, out, 6);
    r.exec.threads = 1;
    assert_ok(k->adamw(&r.exec, &apart));
    whole.src = rounded;
    whole.src_dtype = MX8_BF16;
    whole.src_stride[0] = rows * cols;
    whole.src_stride[1] = cols;
    whole.src_stride[2] = 1;
    if (x.n) mx8i_reference_quantize(&whole);
    while (next_replay(&r)) assert_ok(k->adamw_quantize(&r.exec, &job, &codes));
    char what[128];
    snprintf(what, sizeof what, "%s, %dx%dx%d, group %d, tiles %d and %d, rule %d, moments in %s", k->name, (int)batch,
        (int)rows, (int)cols, g->group, g->tile, g->col_tile, codes.rule, mx8_get_dtype_name(moment));
    if (memcmp(p, want_p, bytes)) fail_msg("%s: weights differ", what);
    if (memcmp(m, want_m, moment_bytes) || memcmp(v, want_v, moment_bytes)) fail_msg("%s: moments differ", what);
    check_codes(what, &x, &got, &want);
    free_codes(&got);
    free_codes(&want);
    void *owned[] = {p, grad, want_p, m, v, want_m, want_v, rounded, copy};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void adamw_quantize(const struct mx8_kernels *k) {
    const int n_shapes = sizeof shapes / sizeof *shapes, n_geometries = sizeof geometries / sizeof *geometries;
    int number = 0;
    for (int s = 0; s < n_shapes; s++) {
        const int step = shapes[s][0] * shapes[s][1] * shapes[s][2] > 100000 ? 2 : 1; /* large ones with every second */
        for (int g = s % step; g < n_geometries; g += step) check_shape(k, shapes[s], &geometries[g], number++);
    }
}

static void test_adamw_quantize(void **state) {
    (void)state;
    for_every_isa(adamw_quantize);
}

/* Pieces cover every element once, end where 256 rows do, and fit the memory that is asked for. */
static void test_pieces(void **state) {
    (void)state;
    static const int64_t sizes[][4] = {{1, 1, 1, 100}, {1, 1000, 8, 100}, {3, 1000, 8, 7000}, {5, 100, 10, 2500},
        {2, 256, 100, 25600}, {2, 257, 100, 25600}, {4, 7, 9, 1 << 20}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct mx8_quant_job j = {.batch = sizes[i][0], .rows = sizes[i][1], .cols = sizes[i][2]};
        const int64_t most = sizes[i][3], all = j.batch * j.rows * j.cols, room = mx8i_size_largest_piece(&j, most);
        int64_t at = 0;
        while (at < all) {
            const struct mx8_piece p = mx8i_choose_piece(&j, at, most);
            const int64_t n = p.count * j.cols * (p.is_rows ? 1 : j.rows);
            assert_true(p.count > 0 && n <= room && (n <= most || p.count <= MX8_PIECE_ROWS));
            assert_int_equal(at, (p.entry * j.rows + p.row) * j.cols);
            assert_true(p.row % MX8_PIECE_ROWS == 0 && p.row + (p.is_rows ? p.count : 0) <= j.rows);
            at += n;
        }
        assert_int_equal(at, all);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw_quantize),
        cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
