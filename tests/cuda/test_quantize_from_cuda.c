/* Quantizers of values that are made on the way: the codes of SwiGLU's hidden rows, of its gradients and of tokens in
 * their experts' order, against the stored values and the quantizer, byte by byte, counters included. Where the kernel
 * declines a job, it must have written nothing. */
#include "cuda_test.h"

enum { COLUMNS = 1, ROWS = 2 };
enum source { SWIGLU, GATHER, GATHER_SCORED, SOURCES };
static const char *const source_names[] = {"swiglu", "permute", "permute with scores"};

/* rows x cols in groups; k: slots of a token, for the permuting sources. */
static const struct shape {
    int64_t rows, cols;
    int32_t n_groups, ends[6];
} shapes[] = {
    {256, 256, 0, {0}},
    {1, 8, 0, {0}},
    {255, 264, 0, {0}},
    {300, 40, 0, {0}},
    {2048, 2880, 0, {0}},
    {9000, 1032, 0, {0}}, /* several tiles a CTA */
    {512, 256, 2, {256, 512}},
    {600, 520, 5, {0, 300, 300, 301, 590}}, /* empty groups, one of a row, rows behind the last */
    {700, 512, 4, {7, 7, 650, 700}},
    {9000, 1288, 6, {2000, 2000, 2500, 6001, 8960, 9000}},
    {64, 64, 3, {0, 0, 0}},
};
static const struct geometry {
    int32_t group, tile, col_tile, padding;
} geometries[] = {{256, 1, 1, 32}, {256, 1, 32, 128}, {256, 32, 32, 256}, {128, 1, 1, 128}, {32, 1, 1, 32}};

static uint16_t *draw_values(int64_t n, uint32_t seed) {
    uint16_t *values = malloc((size_t)n * sizeof *values + 16);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t r = draw(&seed);
        values[i] = (uint16_t)(draw(&seed) % 4000 == 0 ? 0x7FC0 : (r & 0x807F) | (118 + r / 256 % 14) << 7);
    }
    return values;
}

struct outputs {
    struct mx8_quant_job job;
    size_t size[6]; /* of row codes, row scales, column codes, column scales, ends, counter */
};

/* Of `batch` matrices of a shape. */
static struct outputs make_outputs(const struct shape *s, int64_t batch, const struct geometry *g, int sides,
    int32_t rule, const int32_t *offsets) {
    const int64_t blocks = (s->cols + 31) / 32,
                  padded = s->n_groups ? (s->rows + g->padding * (s->n_groups + 1) - 1) / g->padding * g->padding
                                       : (s->rows + 31) / 32 * 32,
                  pitch = (padded + 15) / 16 * 16;
    struct outputs o = {.job = {.src_dtype = MX8_BF16,
                            .batch = batch,
                            .rows = s->rows,
                            .cols = s->cols,
                            .src_stride = {s->rows * s->cols, s->cols, 1},
                            .offsets = offsets,
                            .n_groups = s->n_groups,
                            .padded_rows = padded,
                            .rule = rule,
                            .format = MX8_F8_E4M3,
                            .group = g->group,
                            .tile = g->tile,
                            .col_tile = g->col_tile,
                            .padding = g->padding}};
    if (sides & ROWS) {
        o.job.row_codes = make_buffer(o.size[0] = (size_t)(batch * s->rows * s->cols), CUDA_POISON);
        o.job.row_scales = make_buffer(o.size[1] = (size_t)(batch * s->rows * blocks), CUDA_POISON);
        o.job.row_code_stride[0] = s->rows * s->cols;
        o.job.row_scale_stride[0] = s->rows * blocks;
        o.job.row_code_stride[1] = s->cols;
        o.job.row_code_stride[2] = o.job.row_scale_stride[2] = 1;
        o.job.row_scale_stride[1] = blocks;
    }
    if (sides & COLUMNS) {
        o.job.col_codes = make_buffer(o.size[2] = (size_t)(batch * s->cols * pitch), CUDA_POISON);
        o.job.col_scales = make_buffer(o.size[3] = (size_t)(batch * s->cols * (padded / 32)), CUDA_POISON);
        o.job.col_code_stride[0] = s->cols * pitch;
        o.job.col_scale_stride[0] = s->cols * (padded / 32);
        o.job.col_code_stride[1] = o.job.col_scale_stride[1] = 1;
        o.job.col_code_stride[2] = pitch;
        o.job.col_scale_stride[2] = padded / 32;
    }
    if (s->n_groups) o.job.padded_ends = make_buffer(o.size[4] = (size_t)s->n_groups * sizeof(int32_t), CUDA_POISON);
    o.job.saturated = make_buffer(o.size[5] = sizeof(int64_t), 0);
    return o;
}

static void compare_outputs(const struct outputs *made, const struct outputs *stored, const char *name) {
    static const char *const what[] = {"row codes", "row scales", "column codes", "column scales", "ends", "counter"};
    const struct mx8_quant_job *a = &made->job, *b = &stored->job;
    const void *const got[] = {a->row_codes, a->row_scales, a->col_codes, a->col_scales, a->padded_ends, a->saturated};
    const void *const want[] = {b->row_codes, b->row_scales, b->col_codes, b->col_scales, b->padded_ends, b->saturated};
    for (int i = 0; i < 6; i++) {
        if (!made->size[i]) continue;
        void *bytes = fetch_buffer(want[i], made->size[i], what[i]);
        expect_buffer(name, what[i], got[i], bytes, made->size[i]);
        free(bytes);
    }
}

static int run_case(
    enum source kind, const struct shape *s, const struct geometry *g, int sides, int32_t rule, int32_t k) {
    const struct mx8_kernels *kernels = cuda.exec.k;
    char name[160];
    snprintf(name, sizeof name,
        "%s, %lldx%lld in %d groups, group %d, tiles %d and %d, padding %d, sides %d, rule %d, k %d",
        source_names[kind], (long long)s->rows, (long long)s->cols, s->n_groups, g->group, g->tile, g->col_tile,
        g->padding, sides, rule, k);
    rewind_buffers();
    const int64_t tokens = kind == SWIGLU ? s->rows : s->rows / k, n = s->rows * s->cols;
    uint16_t *a = draw_values(tokens * s->cols, 1), *b = draw_values(n, 2);
    void *da = copy_to_device(a, (size_t)(tokens * s->cols) * 2), *db = copy_to_device(b, (size_t)n * 2),
         *values = make_buffer((size_t)n * 2, 0);
    int32_t *order = malloc((size_t)s->rows * sizeof *order), *positions = malloc((size_t)s->rows * sizeof *positions);
    float *weights = malloc((size_t)s->rows * sizeof *weights);
    assert_true(order && positions && weights);
    uint32_t random = 3;
    for (int32_t i = 0; i < s->rows; i++) order[i] = i;
    for (int32_t i = (int32_t)s->rows - 1; i > 0;
         i--) { /* any order: who sits where does not matter to the quantizer */
        const int32_t j = (int32_t)(draw(&random) % (uint32_t)(i + 1)), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (int32_t i = 0; i < s->rows; i++) positions[order[i]] = i;
    for (int32_t i = 0; i < s->rows; i++) weights[i] = (float)(draw(&random) % 1000) / 999.0f;
    const size_t slots = (size_t)s->rows * 4;
    int32_t *dorder = copy_to_device(order, slots), *dpositions = copy_to_device(positions, slots);
    float *dweights = kind == GATHER_SCORED ? copy_to_device(weights, slots) : NULL;
    int32_t *offsets = s->n_groups ? copy_to_device(s->ends, (size_t)s->n_groups * sizeof(int32_t)) : NULL;

    struct outputs stored = make_outputs(s, 1, g, sides, rule, offsets), made = make_outputs(s, 1, g, sides, rule, offsets);
    if (kind == SWIGLU) {
        const struct mx8_swiglu_job j = {.M = s->rows,
            .F = s->cols,
            .dtype = MX8_BF16,
            .gate = da,
            .up = db,
            .h = values,
            .gate_ls = s->cols,
            .up_ls = s->cols,
            .h_ls = s->cols};
        assert_ok(kernels->swiglu(&cuda.exec, &j));
    } else {
        const struct mx8_permute_job j = {.T = tokens,
            .D = s->cols,
            .k = k,
            .dtype = MX8_BF16,
            .x = da,
            .order = dorder,
            .positions = dpositions,
            .weights = dweights,
            .rows = values};
        assert_ok(kernels->permute(&cuda.exec, &j));
    }
    stored.job.src = values;
    assert_ok(kernels->quantize(&cuda.exec, &stored.job));
    const struct mx8_quant_source source = {.kind = kind == SWIGLU ? MX8_FROM_SWIGLU : MX8_FROM_PERMUTE,
        .a = da,
        .b = db,
        .a_ls = s->cols,
        .b_ls = s->cols,
        .order = dorder,
        .weights = dweights,
        .k = k};
    const enum mx8_status status = kernels->quantize_from(&cuda.exec, &source, &made.job);
    if (status != MX8_UNSUPPORTED) {
        assert_ok(status);
        compare_outputs(&made, &stored, name);
    }
    free(a);
    free(b);
    free(order);
    free(positions);
    free(weights);
    return status == MX8_OK;
}

static void test_made_codes_are_stored_codes(void **state) {
    (void)state;
    NEEDS_CUDA();
    int taken = 0, cases = 0;
    for (int kind = 0; kind < SOURCES; kind++)
        for (int s = 0; s < COUNT(shapes); s++)
            for (int g = 0; g < COUNT(geometries); g++)
                for (int sides = COLUMNS; sides <= (ROWS | COLUMNS); sides++) {
                    if (is_left_out()) continue;
                    const int32_t rule = (s + g) % 3 == 2 ? MX8_SCALE_FLOOR : MX8_SCALE_RCEIL;
                    const int32_t k = shapes[s].rows % 2 == 0 && kind != SWIGLU ? 2 : 1;
                    taken += run_case(kind, &shapes[s], &geometries[g], sides, rule, k);
                    cases++;
                }
    print_message("%d of %d cases taken\n", taken, cases);
    /* On Hopper: groups of 256 on every side (3 of 5 geometries), and rows alone in the other two. */
    if (cuda.info.capability == 90 && !getenv("MX8_TEST_STRIDE"))
        assert_int_equal(taken, SOURCES * COUNT(shapes) * (3 * 3 + 2));
}

/* f32 on its way through bf16: every kind of number, among them those that round up to Inf or down to nothing. */
static float *draw_floats(int64_t n) {
    static const uint32_t odd[] = {0x7FC00000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x80000001, 0x0000FFFF, 0x3F808000};
    float *values = malloc((size_t)n * sizeof *values + 16);
    assert_non_null(values);
    uint32_t seed = 5;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t r = draw(&seed),
                       bits = draw(&seed) % 3000 == 0 ? odd[r % COUNT(odd)] : (r & 0x807FFFFF) | (118 + r / 65536 % 14) << 23;
        memcpy(&values[i], &bits, sizeof bits);
    }
    return values;
}

static int run_floats_case(
    const struct shape *s, int64_t batch, const struct geometry *g, int sides, int32_t rule) {
    const struct mx8_kernels *kernels = cuda.exec.k;
    char name[160];
    snprintf(name, sizeof name, "floats, %lld of %lldx%lld, group %d, tiles %d and %d, sides %d, rule %d",
        (long long)batch, (long long)s->rows, (long long)s->cols, g->group, g->tile, g->col_tile, sides, rule);
    rewind_buffers();
    const int64_t n = s->rows * s->cols * batch;
    float *floats = draw_floats(n);
    void *device = copy_to_device(floats, (size_t)n * sizeof *floats), *values = make_buffer((size_t)n * 2, 0);
    free(floats);
    struct outputs stored = make_outputs(s, batch, g, sides, rule, NULL),
                   made = make_outputs(s, batch, g, sides, rule, NULL);
    stored.job.src = values;
    assert_ok(kernels->cast(&cuda.exec, values, MX8_BF16, device, MX8_F32, n));
    assert_ok(kernels->quantize(&cuda.exec, &stored.job));
    const struct mx8_quant_source source = {
        .kind = MX8_FROM_FLOATS, .a = device, .a_ls = s->cols, .a_bs = s->rows * s->cols};
    const enum mx8_status status = kernels->quantize_from(&cuda.exec, &source, &made.job);
    if (status == MX8_UNSUPPORTED) return 0;
    assert_ok(status);
    compare_outputs(&made, &stored, name);
    return 1;
}

static void test_codes_of_floats(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct {
        struct shape shape;
        int64_t batch;
    } matrices[] = {{{256, 256, 0, {0}}, 1}, {{1, 8, 0, {0}}, 3}, {{255, 264, 0, {0}}, 2}, {{300, 40, 0, {0}}, 1},
        {{2048, 2880, 0, {0}}, 1}, {{800, 1288, 0, {0}}, 7}, {{9000, 1032, 0, {0}}, 1}, {{256, 512, 0, {0}}, 130}};
    int taken = 0, cases = 0;
    for (int s = 0; s < COUNT(matrices); s++)
        for (int g = 0; g < COUNT(geometries); g++)
            for (int sides = COLUMNS; sides <= (ROWS | COLUMNS); sides++) {
                if (is_left_out()) continue;
                taken += run_floats_case(&matrices[s].shape, matrices[s].batch, &geometries[g], sides,
                    (s + g + sides) % (MX8_SCALE_EVEN + 1));
                cases++;
            }
    print_message("%d of %d cases taken\n", taken, cases);
    if (cuda.info.capability == 90 && !getenv("MX8_TEST_STRIDE")) /* as above */
        assert_int_equal(taken, COUNT(matrices) * (3 * 3 + 2));
}

/* SwiGLU's gradients: operands with NaN, Inf, rows and columns of zeros, and a row stride of their own. */
enum { GRADIENTS = 2, OPERANDS = 3 };

static uint16_t *draw_operand(const struct shape *s, int64_t pitch, int operand) {
    uint16_t *values = draw_values(s->rows * pitch, 21 + (uint32_t)operand);
    for (int64_t r = 0; operand == 0 && r < s->rows; r++)
        for (int64_t c = 0; c < s->cols; c++)
            if (r / 32 % 9 == 1 || c / 8 % 37 == 1) values[r * pitch + c] = (uint16_t)(r % 2 << 15);
    if (operand == 0) values[s->rows / 2 * pitch + s->cols / 2] = 0x7F80;
    if (operand == 1) values[s->rows / 3 * pitch + s->cols / 3] = 0xFF80;
    return values;
}

static int run_gradient_case(const struct shape *s, const struct geometry *g, int sides, int32_t rule) {
    const struct mx8_kernels *kernels = cuda.exec.k;
    char name[160];
    snprintf(name, sizeof name,
        "swiglu backward, %lldx%lld in %d groups, group %d, tiles %d and %d, padding %d, rule %d", (long long)s->rows,
        (long long)s->cols, s->n_groups, g->group, g->tile, g->col_tile, g->padding, rule);
    rewind_buffers();
    void *operands[OPERANDS], *values[GRADIENTS];
    int64_t pitch[OPERANDS];
    for (int o = 0; o < OPERANDS; o++) {
        pitch[o] = s->cols + 8 * o;
        uint16_t *host = draw_operand(s, pitch[o], o);
        operands[o] = copy_to_device(host, (size_t)(s->rows * pitch[o]) * 2);
        free(host);
    }
    for (int i = 0; i < GRADIENTS; i++) values[i] = make_buffer((size_t)(s->rows * s->cols) * 2, 0);
    int32_t *offsets = s->n_groups ? copy_to_device(s->ends, (size_t)s->n_groups * sizeof(int32_t)) : NULL;
    const struct mx8_swiglu_job job = {.M = s->rows,
        .F = s->cols,
        .dtype = MX8_BF16,
        .dh = operands[0],
        .gate = operands[1],
        .up = operands[2],
        .dh_ls = pitch[0],
        .gate_ls = pitch[1],
        .up_ls = pitch[2],
        .dgate = values[0],
        .dup = values[1],
        .dgate_ls = s->cols,
        .dup_ls = s->cols};
    assert_ok(kernels->swiglu_backward(&cuda.exec, &job));
    struct outputs stored[GRADIENTS], made[GRADIENTS];
    for (int i = 0; i < GRADIENTS; i++) {
        stored[i] = make_outputs(s, 1, g, sides, rule, offsets);
        made[i] = make_outputs(s, 1, g, sides, rule, offsets);
        stored[i].job.src = values[i];
        stored[i].job.saturated = stored[0].job.saturated; /* both count into the first one's */
        made[i].job.saturated = made[0].job.saturated;
        assert_ok(kernels->quantize(&cuda.exec, &stored[i].job));
    }
    made[1].job.padded_ends = NULL;
    made[1].size[4] = 0;
    struct mx8_swiglu_job source = job;
    source.dgate = source.dup = NULL;
    const enum mx8_status status = kernels->quantize_swiglu_backward(&cuda.exec, &source, &made[0].job, &made[1].job);
    if (status == MX8_UNSUPPORTED) return 0;
    assert_ok(status);
    for (int i = 0; i < GRADIENTS; i++) compare_outputs(&made[i], &stored[i], name);
    for (int i = 0; i < GRADIENTS; i++)
        made[i].job.saturated = NULL; /* again, over what is there, and without counting */
    assert_ok(kernels->quantize_swiglu_backward(&cuda.exec, &source, &made[0].job, &made[1].job));
    for (int i = 0; i < GRADIENTS; i++) {
        made[i].size[5] = 0;
        compare_outputs(&made[i], &stored[i], name);
    }
    return 1;
}

static void test_gradient_codes(void **state) {
    (void)state;
    NEEDS_CUDA();
    /* More tiles than clusters fit at once, so that each makes several; a last column of tiles with one CTA's half, or
     * less. */
    static const struct shape more[] = {{5000, 2184, 0, {0}}, {4096, 1152, 0, {0}}, {777, 136, 3, {256, 512, 777}},
        {3000, 1280, 6, {1, 300, 1500, 1999, 2000, 2990}}};
    int taken = 0, cases = 0;
    for (int s = 0; s < COUNT(shapes) + COUNT(more); s++)
        for (int g = 0; g < COUNT(geometries); g++) {
            if (is_left_out()) continue;
            const struct shape *shape = s < COUNT(shapes) ? &shapes[s] : &more[s - COUNT(shapes)];
            taken += run_gradient_case(shape, &geometries[g], ROWS | COLUMNS, (s + g) % (MX8_SCALE_EVEN + 1));
            cases++;
        }
    print_message("%d of %d cases taken\n", taken, cases);
    /* On Hopper: groups of 256. */
    if (cuda.info.capability == 90 && !getenv("MX8_TEST_STRIDE")) assert_int_equal(taken, cases / 5 * 3);
    assert_int_equal(
        run_gradient_case(&shapes[0], &geometries[0], ROWS, MX8_SCALE_RCEIL), 0); /* declined: both or nothing */
}

static void test_norm_codes(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const int64_t sizes[][2] = {{1, 8}, {7, 264}, {300, 5120}, {33, 2880}, {5, 16384}, {64, 1032}};
    const struct mx8_kernels *k = cuda.exec.k;
    int taken = 0, cases = 0;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int way = 0; way < 12; way++, cases++) {
            rewind_buffers();
            const int64_t T = sizes[s][0], D = sizes[s][1], n = T * D;
            const int32_t group = way % 3 == 0   ? 32
                                  : way % 3 == 1 ? 128
                                                 : 256,
                          with_sum = way / 3 % 2, w_dtype = way / 6 ? MX8_F32 : MX8_BF16;
            uint16_t *x = draw_values(n, 11), *add = draw_values(n, 12);
            uint8_t *w = make_host((size_t)D * 4, 0x3F); /* 0.75 in f32, 0.747 in bf16 */
            struct mx8_rmsnorm_job norm = {.T = T,
                .D = D,
                .dtype = MX8_BF16,
                .w_dtype = w_dtype,
                .eps = 1e-5f,
                .x = copy_to_device(x, (size_t)n * 2),
                .add = with_sum ? copy_to_device(add, (size_t)n * 2) : NULL,
                .w = copy_to_device(w, (size_t)D * 4)};
            const struct shape shape = {T, D, 0, {0}};
            const struct geometry geometry = {group, 1, 1, 32};
            const int32_t rule = way % 2 ? MX8_SCALE_FLOOR : MX8_SCALE_RCEIL;
            struct outputs out[2];
            void *stored[2][3];
            const size_t size[3] = {(size_t)n * 2, (size_t)T * 4, with_sum ? (size_t)n * 2 : 0};
            enum mx8_status status = MX8_OK;
            for (int side = 0; side < 2; side++) {
                out[side] = make_outputs(&shape, 1, &geometry, ROWS, rule, NULL);
                for (int i = 0; i < 3; i++) stored[side][i] = make_buffer(size[i], CUDA_POISON);
                norm.y = stored[side][0];
                norm.rstd = stored[side][1];
                norm.sum = with_sum ? stored[side][2] : NULL;
                out[side].job.src = norm.y;
                if (side) {
                    status = k->rmsnorm_quantize(&cuda.exec, &norm, &out[side].job);
                } else {
                    assert_ok(k->rmsnorm(&cuda.exec, &norm));
                    assert_ok(k->quantize(&cuda.exec, &out[side].job));
                }
            }
            if (status != MX8_UNSUPPORTED) {
                assert_ok(status);
                taken++;
                compare_outputs(&out[1], &out[0], "rmsnorm_quantize");
                for (int i = 0; i < 3; i++) {
                    void *want = fetch_buffer(stored[0][i], size[i], "norm");
                    expect_buffer("rmsnorm_quantize",
                        i == 0   ? "y"
                        : i == 1 ? "rstd"
                                 : "sum",
                        stored[1][i], want, size[i]);
                    free(want);
                }
            }
            free(x);
            free(add);
            free(w);
        }
    print_message("%d of %d norms taken\n", taken, cases);
    if (cuda.info.capability == 90) assert_int_equal(taken, cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {cuda_unit_test(test_made_codes_are_stored_codes),
        cuda_unit_test(test_codes_of_floats), cuda_unit_test(test_gradient_codes), cuda_unit_test(test_norm_codes)};
    return cmocka_run_group_tests(tests, open_cuda, close_cuda);
}
