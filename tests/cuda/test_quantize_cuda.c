/* CUDA quantizers against the scalar reference: whole output buffers, bit for bit, poison between the lines and around
 * the buffers included. Small jobs meet the reference itself; large ones, which cost the reference seconds, meet the
 * generic kernels that the small ones have checked. */
#include "cuda_test.h"
#include "formats/jobs.h"

struct shape {
    int64_t rows, cols;
    int32_t n_groups, ends[9];
    int64_t batch; /* 0: 1 */
};

static const struct shape shapes[] = {
    {.rows = 0, .cols = 40},
    {.rows = 3, .cols = 0},
    {.rows = 1, .cols = 1},
    {.rows = 31, .cols = 33},
    {.rows = 33, .cols = 16},
    {.rows = 64, .cols = 96},
    {.rows = 130, .cols = 257},
    {.rows = 256, .cols = 256},
    {.rows = 257, .cols = 264},
    {.rows = 300, .cols = 528},
    {.rows = 513, .cols = 320},
    {.rows = 40, .cols = 1040},
    {.rows = 160, .cols = 96, .batch = 3},
    {.rows = 256, .cols = 512, .batch = 2},
    {.rows = 90, .cols = 288, .batch = 2},
    {.rows = 96, .cols = 64, .n_groups = 3, .ends = {32, 64, 96}},
    {.rows = 50, .cols = 40, .n_groups = 1, .ends = {50}},
    {.rows = 150, .cols = 72, .n_groups = 4, .ends = {1, 34, 97, 150}},
    {.rows = 90, .cols = 33, .n_groups = 4, .ends = {0, 40, 40, 90}}, /* first and middle group empty */
    {.rows = 90, .cols = 48, .n_groups = 3, .ends = {31, 70, 70}},    /* last one empty, 20 rows behind */
    {.rows = 20, .cols = 32, .n_groups = 3, .ends = {0, 0, 0}},       /* all empty, 20 rows behind */
    {.rows = 700, .cols = 272, .n_groups = 6, .ends = {0, 129, 130, 130, 690, 699}}, /* longer than a scale group */
    {.rows = 1100, .cols = 256, .n_groups = 8, .ends = {44, 45, 172, 300, 429, 429, 1000, 1024}},
    {.rows = 520, .cols = 512, .n_groups = 2, .ends = {256, 512}},
    {.rows = 0, .cols = 40, .n_groups = 2, .ends = {0, 0}},
};

static const struct geometry {
    int32_t group, tile, col_tile, padding;
} geometries[] = {
    {0, 0, 0, 0},
    {32, 1, 1, 32},
    {32, 1, 1, 128},
    {128, 1, 1, 128},
    {256, 1, 1, 128},
    {256, 1, 32, 128},
    {256, 32, 1, 32},
    {256, 32, 32, 128},
    {256, 32, 32, 32},
    {128, 32, 32, 32},
    {128, 1, 32, 128},
    {32, 32, 32, 32},
    {128, 128, 128, 128},
    {256, 128, 128, 32},
    {256, 1, 128, 128},
};

/* What the fast kernels want, and what they must leave to the generic ones. */
enum layout { ALIGNED, GAPS, ODD, TRANSPOSED, LAYOUTS };
static const char *const layout_names[] = {"aligned", "with gaps", "odd", "transposed"};
enum sides { BOTH, ROWS_ONLY, COLS_ONLY, SIDES };
static const char *const side_names[] = {"both sides", "rows", "columns"};
enum values { NORMAL, WILD, TINY, HUGE_VALUES };

struct plan {
    struct shape shape;
    struct geometry geometry;
    enum layout layout;
    enum sides sides;
    enum values values;
    int32_t dtype, rule, format;
};

/* A job on the host, and how many bytes stand behind each pointer. */
struct run {
    struct mx8_quant_job job;
    size_t source, row_codes, row_scales, col_codes, col_scales;
    int32_t padded_ends[9];
    int64_t saturated;
    char name[256];
};

static int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

static float make_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Values over 24 binades, many zeros. WILD: now and then one that is not finite, and stretches of zeros. */
static float draw_value(uint32_t *state, enum values values, int64_t at) {
    uint32_t kind = draw(state) % 8192, exponent = 115 + draw(state) % 24, sign = draw(state) << 31,
             mantissa = draw(state) & 0x7FFFFF;
    if (kind < 200) return draw(state) % 2 ? 0.0f : -0.0f;
    if (values == WILD && kind == 8191) return make_float(0x7FC00000);
    if (values == WILD && kind == 8190) return make_float(0xFF800000);
    if (values == WILD && at / 1500 % 5 == 3) return make_float(sign);
    if (values == TINY) exponent = draw(state) % 12;
    if (values == HUGE_VALUES) exponent = 254 - draw(state) % 3;
    return make_float(sign | exponent << 23 | mantissa);
}

static void *make_source(const struct plan *p, int64_t elements, size_t *bytes) {
    *bytes = (size_t)elements * (p->dtype == MX8_F32 ? 4 : 2);
    void *source = make_host(*bytes, 0);
    uint32_t random = (uint32_t)(p->shape.rows * 31 + p->shape.cols + p->geometry.group + p->rule);
    for (int64_t i = 0; i < elements; i++) {
        float value = draw_value(&random, p->values, i);
        if (p->dtype == MX8_F32)
            ((float *)source)[i] = value;
        else
            ((uint16_t *)source)[i] = mx8_encode_bf16(value);
    }
    return source;
}

/* Column codes are stored transposed, each expert after the other; so are column scales but for those of experts, which
 * are (blocks, columns). ODD pitches fit no vector access. */
static void prepare_run(const struct plan *p, struct run *run) {
    const struct shape *s = &p->shape;
    int64_t rows = s->rows, cols = s->cols, batch = s->batch > 0 ? s->batch : 1, blocks = round_up(cols, 32) / 32;
    int64_t padding = p->geometry.padding ? p->geometry.padding : 32;
    int64_t padded = s->n_groups > 0     ? round_up(rows + padding * s->n_groups, padding)
                     : p->layout == GAPS ? round_up(rows, 32)
                                         : rows;
    int64_t odd = p->layout == ODD ? 3 : 0, gap = p->layout == GAPS ? 16 : 0;
    int64_t row_pitch = round_up(cols, 16) + gap + odd, scale_pitch = blocks + odd + gap / 16;
    int64_t col_pitch = round_up(padded, 16) + gap + odd, col_scale_pitch = round_up(padded, 32) / 32 + odd + gap / 16;
    int64_t length = p->layout == TRANSPOSED ? rows + 2 : round_up(cols, 8) + gap + odd,
            lines = p->layout == TRANSPOSED ? cols : rows;
    memset(run, 0, sizeof *run);
    snprintf(run->name, sizeof run->name,
        "%lldx%lldx%lld in %d groups, group %d, tiles %d and %d, padding %d, %s, %s, rule %d, %s, %s, values %d",
        (long long)batch, (long long)rows, (long long)cols, s->n_groups, p->geometry.group, p->geometry.tile,
        p->geometry.col_tile, p->geometry.padding, layout_names[p->layout], side_names[p->sides], p->rule,
        p->dtype == MX8_F32 ? "f32" : "bf16", p->format == MX8_F8_E5M2 ? "e5m2" : "e4m3", p->values);
    run->row_codes = p->sides == COLS_ONLY ? 0 : (size_t)(batch * rows * row_pitch);
    run->row_scales = p->sides == COLS_ONLY ? 0 : (size_t)(batch * rows * scale_pitch);
    run->col_codes = p->sides == ROWS_ONLY ? 0 : (size_t)(batch * cols * col_pitch);
    run->col_scales = p->sides == ROWS_ONLY ? 0 : (size_t)(batch * cols * col_scale_pitch);
    run->job = (struct mx8_quant_job){.src = make_source(p, batch * lines * length, &run->source),
        .src_dtype = p->dtype,
        .batch = batch,
        .rows = rows,
        .cols = cols,
        .src_stride = {lines * length, p->layout == TRANSPOSED ? 1 : length, p->layout == TRANSPOSED ? length : 1},
        .row_codes = p->sides == COLS_ONLY ? NULL : make_host(run->row_codes, CUDA_POISON),
        .row_code_stride = {rows * row_pitch, row_pitch, 1},
        .row_scales = p->sides == COLS_ONLY ? NULL : make_host(run->row_scales, CUDA_POISON),
        .row_scale_stride = {rows * scale_pitch, scale_pitch, 1},
        .col_codes = p->sides == ROWS_ONLY ? NULL : make_host(run->col_codes, CUDA_POISON),
        .col_code_stride = {cols * col_pitch, 1, col_pitch},
        .col_scales = p->sides == ROWS_ONLY ? NULL : make_host(run->col_scales, CUDA_POISON),
        .col_scale_stride = {cols * col_scale_pitch, batch > 1 ? cols : 1, batch > 1 ? 1 : col_scale_pitch},
        .offsets = s->n_groups > 0 ? s->ends : NULL,
        .n_groups = s->n_groups,
        .padded_rows = padded,
        .padded_ends = s->n_groups > 0 ? run->padded_ends : NULL,
        .rule = p->rule,
        .format = p->format,
        .group = p->geometry.group,
        .tile = p->geometry.tile,
        .col_tile = p->geometry.col_tile,
        .padding = p->geometry.padding,
        .saturated = &run->saturated};
}

static void drop_run(struct run *run) {
    free((void *)(uintptr_t)run->job.src);
    free(run->job.row_codes);
    free(run->job.row_scales);
    free(run->job.col_codes);
    free(run->job.col_scales);
}

/* The same job with device pointers; outputs poisoned, the counter at zero. */
static struct mx8_quant_job move_to_device(const struct run *run) {
    struct mx8_quant_job d = run->job;
    d.src = copy_to_device(d.src, run->source);
    if (d.row_codes) {
        d.row_codes = make_buffer(run->row_codes, CUDA_POISON);
        d.row_scales = make_buffer(run->row_scales, CUDA_POISON);
    }
    if (d.col_codes) {
        d.col_codes = make_buffer(run->col_codes, CUDA_POISON);
        d.col_scales = make_buffer(run->col_scales, CUDA_POISON);
    }
    if (d.offsets) {
        d.offsets = copy_to_device(d.offsets, (size_t)d.n_groups * sizeof(int32_t));
        d.padded_ends = make_buffer((size_t)d.n_groups * sizeof(int32_t), CUDA_POISON);
    }
    d.saturated = make_buffer(sizeof(int64_t), 0);
    return d;
}

static void compare_run(const struct run *run, const struct mx8_quant_job *d) {
    if (d->row_codes) {
        expect_buffer(run->name, "row scales", d->row_scales, run->job.row_scales, run->row_scales);
        expect_buffer(run->name, "row codes", d->row_codes, run->job.row_codes, run->row_codes);
    }
    if (d->col_codes) {
        expect_buffer(run->name, "column scales", d->col_scales, run->job.col_scales, run->col_scales);
        expect_buffer(run->name, "column codes", d->col_codes, run->job.col_codes, run->col_codes);
    }
    if (d->padded_ends)
        expect_buffer(
            run->name, "padded ends", d->padded_ends, run->padded_ends, (size_t)d->n_groups * sizeof(int32_t));
    expect_buffer(run->name, "saturated", d->saturated, &run->saturated, sizeof run->saturated);
}

static void check_plan(const struct plan *p) {
    if (is_left_out()) return;
    struct run run;
    prepare_run(p, &run);
    rewind_buffers();
    struct mx8_quant_job d = move_to_device(&run);
    assert_ok(cuda.exec.k->quantize(&cuda.exec, &d));
    mx8i_reference_quantize(&run.job);
    compare_run(&run, &d);
    drop_run(&run);
}

/* Every shape in every geometry. Layout and sides turn with the shape, so that each geometry meets all of them. */
static void geometries_match_the_reference(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int s = 0; s < COUNT(shapes); s++) {
        for (int g = 0; g < COUNT(geometries); g++) {
            for (int layout = 0; layout < LAYOUTS; layout++) {
                struct plan p = {.shape = shapes[s],
                    .geometry = geometries[g],
                    .layout = layout,
                    .values = WILD,
                    .sides = (enum sides)((s + g + layout) % SIDES),
                    .dtype = MX8_BF16,
                    .rule = MX8_SCALE_FLOOR,
                    .format = MX8_F8_E4M3};
                check_plan(&p);
            }
        }
    }
}

/* The layout that the fast kernels take, with each side alone and with both. */
static void sides_match_the_reference(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int s = 0; s < COUNT(shapes); s++) {
        for (int g = 0; g < COUNT(geometries); g++) {
            for (int sides = 0; sides < SIDES; sides++) {
                struct plan p = {.shape = shapes[s],
                    .geometry = geometries[g],
                    .layout = s % 2 ? GAPS : ALIGNED,
                    .values = NORMAL,
                    .sides = (enum sides)sides,
                    .dtype = MX8_BF16,
                    .rule = MX8_SCALE_RCEIL,
                    .format = MX8_F8_E4M3};
                check_plan(&p);
            }
        }
    }
}

static void rules_formats_and_values_match_the_reference(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct shape few[] = {
        {.rows = 257, .cols = 264}, {.rows = 150, .cols = 72, .n_groups = 4, .ends = {1, 34, 97, 150}}};
    static const enum values all[] = {NORMAL, WILD, TINY, HUGE_VALUES};
    static const int some[] = {1, 3, 4, 5, 7};
    for (int rule = 0; rule < 4; rule++) {
        for (int i = 0; i < 2 * 2 * 4 * COUNT(some); i++) {
            struct plan p = {.shape = few[i & 1],
                .geometry = geometries[some[i / 16]],
                .layout = ALIGNED,
                .values = all[i / 4 % 4],
                .sides = BOTH,
                .dtype = MX8_BF16,
                .rule = rule,
                .format = i & 2 ? MX8_F8_E5M2 : MX8_F8_E4M3};
            check_plan(&p);
            p.dtype = MX8_F32;
            check_plan(&p);
        }
    }
}

/* The one amax where RCEIL follows torchao's rounding, in f32 (no bf16 number comes near it). */
static void rceil_corner_matches_the_reference(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const uint32_t bits[] = {0x04600000, 0x04600001, 0x04600002, 0x07E00001, 0x00000001, 0x7F7FFFFF};
    float source[32 * COUNT(bits)] = {0};
    for (int i = 0; i < COUNT(bits); i++) source[32 * i + i] = make_float(bits[i]);
    uint8_t codes[sizeof source / 4], scales[COUNT(bits)];
    for (int rule = 0; rule < 4; rule++) {
        struct mx8_quant_job j = {.src = source,
            .batch = 1,
            .rows = COUNT(bits),
            .cols = 32,
            .src_stride = {0, 32, 1},
            .row_codes = codes,
            .row_code_stride = {0, 32, 1},
            .row_scales = scales,
            .row_scale_stride = {0, 1, 1},
            .rule = rule,
            .format = MX8_F8_E4M3};
        mx8i_reference_quantize(&j);
        rewind_buffers();
        struct mx8_quant_job d = j;
        d.src = copy_to_device(source, sizeof source);
        d.row_codes = make_buffer(sizeof codes, CUDA_POISON);
        d.row_scales = make_buffer(sizeof scales, CUDA_POISON);
        assert_ok(cuda.exec.k->quantize(&cuda.exec, &d));
        expect_buffer("corner", "scales", d.row_scales, scales, sizeof scales);
        expect_buffer("corner", "codes", d.row_codes, codes, sizeof codes);
    }
}

/* The source again with an odd pitch, which no fast kernel takes. */
static const void *spread_source(const struct run *run, int64_t *pitch) {
    const struct mx8_quant_job *j = &run->job;
    int64_t lines = j->batch * j->rows;
    *pitch = j->src_stride[1] + 1;
    uint16_t *copy = make_host((size_t)(lines * *pitch) * 2, 0);
    for (int64_t r = 0; r < lines; r++)
        memcpy(copy + r * *pitch, (const uint16_t *)j->src + r * j->src_stride[1], (size_t)j->cols * 2);
    const void *device = copy_to_device(copy, (size_t)(lines * *pitch) * 2);
    free(copy);
    return device;
}

/* Takes the place of the reference: outputs of the generic kernels become the host's. */
static void take_outputs(struct run *run, const struct mx8_quant_job *d) {
    struct {
        uint8_t **host;
        const uint8_t *device;
        size_t size;
        const char *name;
    } all[] = {{&run->job.row_codes, d->row_codes, run->row_codes, "row codes"},
        {&run->job.row_scales, d->row_scales, run->row_scales, "row scales"},
        {&run->job.col_codes, d->col_codes, run->col_codes, "column codes"},
        {&run->job.col_scales, d->col_scales, run->col_scales, "column scales"}};
    for (int i = 0; i < COUNT(all); i++) {
        if (!all[i].device) continue;
        free(*all[i].host);
        *all[i].host = fetch_buffer(all[i].device, all[i].size, all[i].name);
    }
    int64_t *saturated = fetch_buffer(d->saturated, sizeof *saturated, "saturated");
    run->saturated = *saturated;
    free(saturated);
    if (!d->padded_ends) return;
    int32_t *ends = fetch_buffer(d->padded_ends, (size_t)d->n_groups * sizeof *ends, "padded ends");
    memcpy(run->padded_ends, ends, (size_t)d->n_groups * sizeof *ends);
    free(ends);
}

/* Many more tiles than multiprocessors, so that a persistent kernel goes round its ring several times. */
static void large_jobs_match_the_generic_kernels(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct shape large[] = {
        {.rows = 8192, .cols = 2048},
        {.rows = 4100, .cols = 2888, .n_groups = 8, .ends = {700, 700, 828, 1900, 2500, 3333, 3334, 4090}},
        {.rows = 2048, .cols = 1024, .batch = 4},
    };
    for (int s = 0; s < COUNT(large); s++) {
        for (int g = 1; g < COUNT(geometries); g++) {
            if (is_left_out()) continue;
            struct plan p = {.shape = large[s],
                .geometry = geometries[g],
                .layout = ALIGNED,
                .values = WILD,
                .sides = g == 5 ? BOTH : (enum sides)(g % SIDES),
                .dtype = MX8_BF16,
                .rule = MX8_SCALE_FLOOR,
                .format = MX8_F8_E4M3};
            struct run run;
            prepare_run(&p, &run);
            rewind_buffers();
            struct mx8_quant_job generic = move_to_device(&run), fast = generic;
            int64_t pitch;
            generic.src = spread_source(&run, &pitch);
            generic.src_stride[0] = run.job.rows * pitch;
            generic.src_stride[1] = pitch;
            assert_ok(cuda.exec.k->quantize(&cuda.exec, &generic));
            take_outputs(&run, &generic);
            rewind_buffers();
            fast = move_to_device(&run);
            assert_ok(cuda.exec.k->quantize(&cuda.exec, &fast));
            compare_run(&run, &fast);
            drop_run(&run);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cuda_unit_test(geometries_match_the_reference),
        cuda_unit_test(sides_match_the_reference),
        cuda_unit_test(rules_formats_and_values_match_the_reference),
        cuda_unit_test(rceil_corner_matches_the_reference),
        cuda_unit_test(large_jobs_match_the_generic_kernels),
    };
    return cmocka_run_group_tests_name("cuda.quantize", tests, open_cuda, close_cuda);
}
