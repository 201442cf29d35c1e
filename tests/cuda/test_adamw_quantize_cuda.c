/* The update that makes codes: on the device against AdamW, cast and quantizer one after the other on the device, and
 * against the CPU's, byte by byte. Outputs are poisoned, and so is scratch; what the kernel does not take goes by
 * pieces. */
#include "pairs.h"
#include "kernels/adamw_pieces.h"

static const struct shape {
    int64_t batch, rows, cols;
} shapes[] = {
    {1, 256, 256}, {1, 1, 8},                               /* less than a tile in both directions */
    {1, 33, 40}, {1, 255, 264}, {1, 257, 512}, {3, 40, 64}, /* tiles end with a matrix */
    {2, 512, 520}, {5, 300, 776}, {1, 9000, 1032},          /* several tiles a CTA */
    {4, 1000, 2056}, {0, 32, 32}, {1, 300, 36},             /* no multiple of 8: by pieces */
};
static const struct geometry {
    int32_t group, tile, col_tile;
} geometries[] = {{256, 1, 1}, {256, 32, 32}, {256, 1, 32}, {32, 1, 1}, {128, 128, 128}};
enum variant { PLAIN, NAN_GRADIENT, ZERO_WEIGHTS, STATE_IN_MEMORY, EXPERTS, UNALIGNED, VARIANTS };
static const char *const variant_names[] = {
    "plain", "a NaN gradient", "zero weights", "scalars in memory", "experts' scales", "off the 16-byte boundary"};

enum part { MASTER, FIRST, SECOND, ROW, ROW_SCALE, COL, COL_SCALE, SATURATED, PARTS };
static const char *const part_names[] = {
    "weights", "first moment", "second moment", "row codes", "row scales", "column codes", "column scales", "counter"};

/* One update: inputs on the host, and a set of arrays that it works on. */
struct problem {
    struct shape shape;
    struct geometry geometry;
    enum variant variant;
    int32_t rule, moment, shift; /* shift: elements off the boundary */
    int64_t n, padded, blocks, col_blocks, pitch;
    void *start[PARTS], *grad; /* host */
    size_t size[PARTS];
    struct mx8_adamw_state state;
    float factor;
};

static void fill(void *data, int32_t dtype, int64_t n, uint32_t seed, double scale, int positive) {
    for (int64_t i = 0; i < n; i++) {
        const double v = ((double)draw(&seed) / 8388608.0 - 1) * ldexp(scale, (int)(i / 97 % 6));
        const float value = (float)(positive ? fabs(v) : v);
        if (dtype == MX8_F32)
            ((float *)data)[i] = value;
        else
            ((uint16_t *)data)[i] = mx8_encode_bf16(value);
    }
}

static struct problem make_problem(
    const struct shape *s, const struct geometry *g, enum variant variant, int32_t rule, int32_t moment) {
    struct problem p = {.shape = *s,
        .geometry = *g,
        .variant = variant,
        .rule = rule,
        .moment = moment,
        .shift = variant == UNALIGNED,
        .n = s->batch * s->rows * s->cols,
        .padded = (s->rows + 31) / 32 * 32,
        .blocks = (s->cols + 31) / 32,
        .state = {3e-3f, 1 - 0.9f * 0.9f, 1 - 0.95f * 0.95f, 0xDEADBEEF},
        .factor = 0.37f};
    p.col_blocks = p.padded / 32;
    p.pitch = (p.padded + 15) / 16 * 16;
    const size_t values = (size_t)(p.n + p.shift), moments = values * mx8_get_dtype_size(moment);
    const size_t lines = (size_t)(s->batch * s->cols);
    const size_t sizes[PARTS] = {values * 4, moments, moments, (size_t)p.n, (size_t)(s->batch * s->rows * p.blocks),
        lines * (size_t)p.pitch, lines * (size_t)p.col_blocks, sizeof(int64_t)};
    for (int i = 0; i < PARTS; i++) p.start[i] = make_host(p.size[i] = sizes[i], i == SATURATED ? 0 : CUDA_POISON);
    p.grad = make_host(values * 4, 0);
    const int64_t n = p.n + p.shift;
    if (variant != ZERO_WEIGHTS) {
        fill(p.start[MASTER], MX8_F32, n, 1, 0.02, 0);
        fill(p.grad, MX8_F32, n, 2, 1e-3, 0);
        fill(p.start[FIRST], moment, n, 3, 1e-3, 0);
        fill(p.start[SECOND], moment, n, 4, 1e-6, 1);
    } else {
        for (int i = MASTER; i <= SECOND; i++) memset(p.start[i], 0, p.size[i]);
    }
    if (variant == NAN_GRADIENT && n > 0) ((float *)p.grad)[n / 2] = NAN;
    return p;
}

static void free_problem(struct problem *p) {
    for (int i = 0; i < PARTS; i++) free(p->start[i]);
    free(p->grad);
}

/* at: the arrays, on either side. */
static struct mx8_adamw_job make_update(const struct problem *p, void *const at[PARTS], const void *grad, void *copy,
    const float *factor, const struct mx8_adamw_state *state) {
    const size_t shift = (size_t)p->shift, moment = shift * mx8_get_dtype_size(p->moment);
    struct mx8_adamw_job j = {.n = p->n,
        .lr = p->state.lr,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .bias1 = p->state.bias1,
        .bias2 = p->state.bias2,
        .grad_scale = factor,
        .master = (float *)at[MASTER] + shift,
        .m = (uint8_t *)at[FIRST] + moment,
        .v = (uint8_t *)at[SECOND] + moment,
        .grad = (const float *)grad + shift,
        .copy = copy,
        .copy_dtype = MX8_BF16,
        .moment_dtype = p->moment,
        .rounding = p->state.rounding,
        .first = ((uint64_t)1 << 32) - 21};
    if (p->variant != STATE_IN_MEMORY) return j;
    j.state = state;
    j.lr = j.bias1 = j.bias2 = NAN;
    j.rounding = 0;
    return j;
}

static struct mx8_quant_job make_quant(const struct problem *p, void *const at[PARTS]) {
    const int64_t rows = p->shape.rows, cols = p->shape.cols;
    struct mx8_quant_job j = {.batch = p->shape.batch,
        .rows = rows,
        .cols = cols,
        .padded_rows = p->padded,
        .row_codes = at[ROW],
        .row_code_stride = {rows * cols, cols, 1},
        .row_scales = at[ROW_SCALE],
        .row_scale_stride = {rows * p->blocks, p->blocks, 1},
        .col_codes = at[COL],
        .col_code_stride = {cols * p->pitch, 1, p->pitch},
        .col_scales = at[COL_SCALE],
        .col_scale_stride = {cols * p->col_blocks, 1, p->col_blocks},
        .rule = p->rule,
        .format = MX8_F8_E4M3,
        .group = p->geometry.group,
        .tile = p->geometry.tile,
        .col_tile = p->geometry.col_tile,
        .saturated = at[SATURATED]};
    if (p->variant == EXPERTS) j.col_scale_stride[1] = cols, j.col_scale_stride[2] = 1;
    return j;
}

static void put_on_device(const struct problem *p, void *at[PARTS]) {
    for (int i = 0; i < PARTS; i++) at[i] = copy_to_device(p->start[i], p->size[i]);
}

/* AdamW, cast, quantizer of the whole. */
static void run_apart(const struct problem *p, void *const at[PARTS], const struct mx8_adamw_job *update) {
    const struct mx8_kernels *k = cuda.exec.k;
    struct mx8_quant_job codes = make_quant(p, at);
    struct mx8_adamw_job plain = *update;
    uint16_t *rounded = make_buffer((size_t)p->n * 2, CUDA_POISON);
    plain.copy = NULL;
    assert_ok(k->adamw(&cuda.exec, &plain));
    assert_ok(k->cast(&cuda.exec, rounded, MX8_BF16, plain.master, MX8_F32, p->n));
    codes.src = rounded;
    codes.src_dtype = MX8_BF16;
    codes.src_stride[0] = p->shape.rows * p->shape.cols;
    codes.src_stride[1] = p->shape.cols;
    codes.src_stride[2] = 1;
    assert_ok(k->quantize(&cuda.exec, &codes));
}

/* NaN has many bit patterns, and a CPU keeps another one of them than a GPU. */
static int is_same(const struct problem *p, int part, const void *got, const void *want) {
    if (p->variant != NAN_GRADIENT || part > SECOND) return memcmp(got, want, p->size[part]) == 0;
    if (part != MASTER && p->moment == MX8_BF16) {
        const uint16_t *a = got, *b = want;
        for (size_t i = 0; i < p->size[part] / 2; i++)
            if (a[i] != b[i] && !((a[i] & 0x7FFF) > 0x7F80 && (b[i] & 0x7FFF) > 0x7F80)) return 0;
        return 1;
    }
    const uint32_t *a = got, *b = want;
    for (size_t i = 0; i < p->size[part] / 4; i++)
        if (a[i] != b[i] && !((a[i] & 0x7FFFFFFF) > 0x7F800000 && (b[i] & 0x7FFFFFFF) > 0x7F800000)) return 0;
    return 1;
}

static void run_case(struct problem *p) {
    char name[192];
    snprintf(name, sizeof name, "%lldx%lldx%lld, group %d, tiles %d and %d, rule %d, moments in %s, %s",
        (long long)p->shape.batch, (long long)p->shape.rows, (long long)p->shape.cols, p->geometry.group,
        p->geometry.tile, p->geometry.col_tile, p->rule, mx8_get_dtype_name(p->moment), variant_names[p->variant]);
    rewind_buffers();
    void *apart[PARTS], *together[PARTS];
    put_on_device(p, apart);
    put_on_device(p, together);
    const void *grad = copy_to_device(p->grad, (size_t)(p->n + p->shift) * 4);
    const float *factor = copy_to_device(&p->factor, sizeof p->factor);
    const struct mx8_adamw_state *state = copy_to_device(&p->state, sizeof p->state);
    struct mx8_adamw_job update = make_update(p, apart, grad, NULL, factor, state);
    run_apart(p, apart, &update);

    const struct mx8_quant_job codes = make_quant(p, together);
    const size_t room = (size_t)mx8i_size_largest_piece(&codes, MX8_ADAMW_PIECE) * 2;
    update = make_update(p, together, grad, make_buffer(room, CUDA_POISON), factor, state);
    assert_ok(cuda.exec.k->fill(&cuda.exec, cuda.exec.scratch, CUDA_POISON, cuda.exec.scratch_bytes));
    assert_ok(cuda.exec.k->adamw_quantize(&cuda.exec, &update, &codes));
    void *copy = fetch_buffer(update.copy, room, "what is rounded"); /* for its guards */

    const struct mx8_quant_job host_codes = make_quant(p, p->start);
    void *host_copy = make_host(room, CUDA_POISON);
    const struct mx8_adamw_job host = make_update(p, p->start, p->grad, host_copy, &p->factor, &p->state);
    assert_ok(cpu.k->adamw_quantize(&cpu, &host, &host_codes));
    for (int i = 0; i < PARTS; i++) {
        void *got = fetch_buffer(together[i], p->size[i], name), *want = fetch_buffer(apart[i], p->size[i], name);
        expect_same_bytes(name, part_names[i], got, want, p->size[i]);
        if (!is_same(p, i, got, p->start[i])) fail_msg("%s: %s are not the CPU's", name, part_names[i]);
        free(got);
        free(want);
    }
    free(copy);
    free(host_copy);
}

static void test_adamw_quantize(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int s = 0; s < COUNT(shapes); s++)
        for (int g = 0; g < COUNT(geometries); g++)
            for (int v = 0; v < VARIANTS; v++) {
                const int is_large = shapes[s].batch * shapes[s].rows * shapes[s].cols > 1000000;
                if ((is_large && (g + v) % 6) || is_left_out()) continue;
                const int32_t moment = (s + g / 2 + v) % 2 ? MX8_BF16 : MX8_F32, rule = (s + 2 * g + v) % 4;
                struct problem p = make_problem(&shapes[s], &geometries[g], (enum variant)v, rule, moment);
                run_case(&p);
                free_problem(&p);
            }
}

/* Recorded, and launched twice: two updates, and the codes of the second. */
static void test_in_a_graph(void **state) {
    (void)state;
    NEEDS_CUDA();
    const struct mx8_kernels *k = cuda.exec.k;
    struct problem p = make_problem(
        &(struct shape){2, 512, 520}, &(struct geometry){256, 1, 32}, STATE_IN_MEMORY, MX8_SCALE_FLOOR, MX8_F32);
    struct mx8_exec x = cuda.exec;
    void *direct[PARTS], *recorded[PARTS], *graph = NULL;
    rewind_buffers();
    put_on_device(&p, direct);
    put_on_device(&p, recorded);
    const void *grad = copy_to_device(p.grad, (size_t)p.n * 4);
    const struct mx8_adamw_state *scalars = copy_to_device(&p.state, sizeof p.state);
    const struct mx8_quant_job codes = make_quant(&p, direct), others = make_quant(&p, recorded);
    void *copy = make_buffer((size_t)mx8i_size_largest_piece(&codes, MX8_ADAMW_PIECE) * 2, CUDA_POISON);
    const struct mx8_adamw_job update = make_update(&p, direct, grad, copy, NULL, scalars),
                               other = make_update(&p, recorded, grad, copy, NULL, scalars);
    for (int i = 0; i < 2; i++) assert_ok(k->adamw_quantize(&x, &update, &codes));
    assert_ok(k->synchronize(&x)); /* the other stream does not wait for this one */
    assert_ok(k->make_stream(&x, &x.stream));
    assert_ok(k->begin_graph(&x));
    assert_ok(k->adamw_quantize(&x, &other, &others));
    assert_ok(k->end_graph(&x, &graph));
    for (int i = 0; i < 2; i++) assert_ok(k->launch_graph(&x, graph));
    assert_ok(k->synchronize(&x));
    for (int i = 0; i < PARTS; i++) {
        void *want = fetch_buffer(direct[i], p.size[i], part_names[i]);
        expect_buffer("recorded", part_names[i], recorded[i], want, p.size[i]);
        free(want);
    }
    k->release_graph(&x, graph);
    free_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cuda_unit_test(test_adamw_quantize),
        cuda_unit_test(test_in_a_graph),
    };
    return cmocka_run_group_tests_name("cuda adamw and quantize", tests, open_both, close_both);
}
