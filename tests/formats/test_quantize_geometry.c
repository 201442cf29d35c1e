/* Geometries: groups of rows, scale groups, tiles, both orientations, strides, padding, the saturation counter. Whole
 * output buffers, poison between the lines included, are compared with buffers filled by the definition. */
#include "fixtures.h"
#include "formats/elements.h"
#include "formats/jobs.h"

#define POISON       0xA5
#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

struct shape {
    int64_t rows, cols;
    int32_t n_groups, ends[6];
};

static const struct shape shapes[] = {
    {.rows = 0, .cols = 0},
    {.rows = 0, .cols = 40},
    {.rows = 3, .cols = 0},
    {.rows = 1, .cols = 1},
    {.rows = 31, .cols = 33},
    {.rows = 33, .cols = 31},
    {.rows = 64, .cols = 96},
    {.rows = 130, .cols = 257},
    {.rows = 257, .cols = 70},
    {.rows = 96, .cols = 64, .n_groups = 3, .ends = {32, 64, 96}},
    {.rows = 50, .cols = 40, .n_groups = 1, .ends = {50}},
    {.rows = 150, .cols = 70, .n_groups = 4, .ends = {1, 34, 97, 150}},
    {.rows = 90, .cols = 33, .n_groups = 4, .ends = {0, 40, 40, 90}}, /* first and middle group empty */
    {.rows = 90, .cols = 33, .n_groups = 3, .ends = {31, 70, 70}},    /* last one empty, 20 rows behind */
    {.rows = 20, .cols = 33, .n_groups = 3, .ends = {0, 0, 0}},       /* all empty, 20 rows behind */
    {.rows = 300, .cols = 130, .n_groups = 6, .ends = {0, 129, 130, 130, 290, 299}}, /* longer than a scale group */
    {.rows = 0, .cols = 33, .n_groups = 2, .ends = {0, 0}},
};

static const struct geometry {
    int32_t group, tile;
} geometries[] = {{0, 0}, {32, 1}, {128, 1}, {256, 1}, {32, 32}, {128, 32}, {256, 32}, {128, 128}, {256, 128}};

/* A case and what it needs: source and outputs with gaps between lines. */
struct run {
    struct shape shape;
    struct mx8_quant_job job;
    size_t row_codes, row_scales, col_codes, col_scales; /* bytes */
    int32_t padded_ends[6];
    int64_t saturated;
};

static int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static uint32_t draw(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Values over 24 binades, many zeros, now and then one that is not finite. */
static float draw_value(uint32_t *state, int wild) {
    uint32_t kind = draw(state) % 4096;
    if (kind < 200) return draw(state) % 2 ? 0.0f : -0.0f;
    if (wild && kind == 4095) return mx8i_make_float(0x7FC00000);
    if (wild && kind == 4094) return mx8i_make_float(0xFF800000);
    return mx8i_make_float((draw(state) << 31) | (115 + draw(state) % 24) << 23 | (draw(state) & 0x7FFFFF));
}

/* Column codes are stored transposed, (cols, padded rows); column scales too. `transposed` turns the source around, so
 * that its inner stride is not 1. */
static struct run make_run(const struct shape *shape, const struct geometry *g, int32_t dtype, int transposed) {
    int64_t rows = shape->rows, cols = shape->cols, blocks = round_up(cols, 32) / 32;
    int64_t padded = round_up(rows + 32 * shape->n_groups, 32), pitch = padded + 5;
    struct run run = {.shape = *shape,
        .row_codes = (size_t)(rows * (cols + 3)),
        .row_scales = (size_t)(rows * (blocks + 1)),
        .col_codes = (size_t)(cols * pitch),
        .col_scales = (size_t)(cols * (padded / 32 + 1))};
    int64_t lines = transposed ? cols : rows, length = (transposed ? rows : cols) + 2;
    uint32_t random = (uint32_t)(rows * 31 + cols + g->group);
    void *source = make_bytes((size_t)(lines * length) * sizeof(float));
    for (int64_t i = 0; i < lines * length; i++) {
        float value = draw_value(&random, rows > 100);
        if (dtype == MX8_F32)
            ((float *)source)[i] = value;
        else
            ((uint16_t *)source)[i] = mx8_encode_bf16(value);
    }
    run.job = (struct mx8_quant_job){.src = source,
        .src_dtype = dtype,
        .batch = 1,
        .rows = rows,
        .cols = cols,
        .src_stride = {0, transposed ? 1 : length, transposed ? length : 1},
        .row_codes = make_bytes(run.row_codes),
        .row_code_stride = {0, cols + 3, 1},
        .row_scales = make_bytes(run.row_scales),
        .row_scale_stride = {0, blocks + 1, 1},
        .col_codes = make_bytes(run.col_codes),
        .col_code_stride = {0, 1, pitch},
        .col_scales = make_bytes(run.col_scales),
        .col_scale_stride = {0, 1, padded / 32 + 1},
        .n_groups = shape->n_groups,
        .padded_rows = padded,
        .rule = MX8_SCALE_FLOOR,
        .format = MX8_F8_E4M3,
        .group = g->group,
        .tile = g->tile};
    return run;
}

/* Pointers into the run itself: it must not move from here on. */
static void quantize(struct run *run) {
    if (run->shape.n_groups > 0) {
        run->job.offsets = run->shape.ends;
        run->job.padded_ends = run->padded_ends;
    }
    run->job.saturated = &run->saturated;
    mx8i_reference_quantize(&run->job);
}

static void drop_run(struct run *run) {
    free((void *)(uintptr_t)run->job.src);
    free(run->job.row_codes);
    free(run->job.row_scales);
    free(run->job.col_codes);
    free(run->job.col_scales);
}

static float read_value(const struct mx8_quant_job *j, int64_t r, int64_t c) {
    int64_t at = r * j->src_stride[1] + c * j->src_stride[2];
    if (j->src_dtype == MX8_F32) return ((const float *)j->src)[at];
    return mx8_decode_bf16(((const uint16_t *)j->src)[at]);
}

/* Scale byte of all (r,c) of a rectangle; the definition: no number larger, and 255 as soon as one is not finite. */
static uint8_t define_byte(const struct mx8_quant_job *j, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    float amax = 0;
    for (int64_t r = r0; r < r1; r++) {
        for (int64_t c = c0; c < c1; c++) {
            float value = read_value(j, r, c), magnitude = value < 0 ? -value : value;
            if (!(magnitude <= mx8i_make_float(0x7F7FFFFF))) return 255;
            if (magnitude > amax) amax = magnitude;
        }
    }
    return mx8_compute_scale(amax, j->rule, j->format);
}

static uint8_t define_code(const struct mx8_quant_job *j, int64_t r, int64_t c, uint8_t byte, int64_t *clipped) {
    if (byte == 255) return 0x7F;
    float scaled = read_value(j, r, c) * mx8_invert_e8m0(byte);
    if (scaled > 464.0f || scaled < -464.0f) ++*clipped;
    return mx8_encode_e4m3(scaled);
}

/* Where a row lies: its group's rows [start, end) and the group's first padded row. */
struct place {
    int64_t start, end, padded;
};

static struct place find_group(const struct shape *s, int64_t r) {
    struct place p = {0, s->rows, 0};
    for (int32_t g = 0; g < s->n_groups; g++) {
        p.end = s->ends[g];
        if (r < p.end) return p;
        p.padded += round_up(p.end - p.start, 32);
        p.start = p.end;
    }
    return p;
}

/* Outputs as jobs.h defines them. Poison stays in the gaps between lines only. */
struct outputs {
    uint8_t *row_codes, *row_scales, *col_codes, *col_scales;
    int64_t row_clipped;
};

static struct outputs prepare_outputs(const struct run *run) {
    const struct mx8_quant_job *j = &run->job;
    struct outputs o = {make_bytes(run->row_codes), make_bytes(run->row_scales), make_bytes(run->col_codes),
        make_bytes(run->col_scales), 0};
    int64_t blocks = round_up(j->cols, 32) / 32;
    for (int64_t r = 0; r < j->rows; r++) {
        for (int64_t c = 0; c < j->cols; c++) o.row_codes[r * j->row_code_stride[1] + c] = 0;
        for (int64_t c = 0; c < blocks; c++) o.row_scales[r * j->row_scale_stride[1] + c] = 0;
    }
    for (int64_t c = 0; c < j->cols; c++) {
        for (int64_t r = 0; r < j->padded_rows; r++) o.col_codes[c * j->col_code_stride[2] + r] = 0;
        for (int64_t r = 0; r < j->padded_rows / 32; r++) o.col_scales[c * j->col_scale_stride[2] + r] = 0;
    }
    return o;
}

static struct outputs define_outputs(const struct run *run) {
    const struct mx8_quant_job *j = &run->job;
    const struct shape *s = &run->shape;
    int64_t last = s->n_groups > 0 ? s->ends[s->n_groups - 1] : s->rows, ignored = 0;
    int64_t group = j->group ? j->group : 32, tile = j->tile ? j->tile : 1;
    struct outputs o = prepare_outputs(run);
    uint8_t byte = 0;
    for (int64_t r = 0; r < last; r++) {
        struct place p = find_group(s, r);
        int64_t tile_row = p.start + (r - p.start) / tile * tile;
        for (int64_t c = 0; c < j->cols; c++) {
            if (c % group == 0)
                byte = define_byte(j, tile_row, smaller(tile_row + tile, p.end), c, smaller(c + group, j->cols));
            o.row_scales[r * j->row_scale_stride[1] + c / 32] = byte;
            o.row_codes[r * j->row_code_stride[1] + c] = define_code(j, r, c, byte, &o.row_clipped);
        }
    }
    for (int64_t c = 0; c < j->cols; c++) {
        for (int64_t r = 0; r < last; r++) {
            struct place p = find_group(s, r);
            int64_t padded_row = p.padded + r - p.start, tile_col = c / tile * tile;
            if ((r - p.start) % group == 0)
                byte = define_byte(j, r, smaller(r + group, p.end), tile_col, smaller(tile_col + tile, j->cols));
            o.col_scales[c * j->col_scale_stride[2] + padded_row / 32] = byte;
            o.col_codes[c * j->col_code_stride[2] + padded_row] = define_code(j, r, c, byte, &ignored);
        }
    }
    return o;
}

static void check_same(const char *what, const struct run *run, const uint8_t *got, const uint8_t *want, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (got[i] != want[i])
            fail_msg("%s of %lldx%lld in %d groups, scale group %d, tile %d: 0x%02X at byte %zu, expected 0x%02X", what,
                (long long)run->shape.rows, (long long)run->shape.cols, run->shape.n_groups, run->job.group,
                run->job.tile, got[i], i, want[i]);
    }
}

static void check_run(struct run *run) {
    quantize(run);
    struct outputs o = define_outputs(run);
    check_same("row codes", run, run->job.row_codes, o.row_codes, run->row_codes);
    check_same("row scales", run, run->job.row_scales, o.row_scales, run->row_scales);
    check_same("column codes", run, run->job.col_codes, o.col_codes, run->col_codes);
    check_same("column scales", run, run->job.col_scales, o.col_scales, run->col_scales);
    assert_int_equal(run->saturated, o.row_clipped);
    free(o.row_codes);
    free(o.row_scales);
    free(o.col_codes);
    free(o.col_scales);
}

static void follows_the_definition(void **state) {
    (void)state;
    for (int s = 0; s < COUNT(shapes); s++) {
        for (int g = 0; g < COUNT(geometries); g++) {
            struct run run = make_run(&shapes[s], &geometries[g], g % 2 ? MX8_BF16 : MX8_F32, s % 3 == 0);
            check_run(&run);
            drop_run(&run);
        }
    }
}

/* One orientation left out leaves the other alone, and counts for itself. */
static void orientations_are_independent(void **state) {
    (void)state;
    for (int s = 0; s < COUNT(shapes); s++) {
        struct run both = make_run(&shapes[s], &geometries[6], MX8_BF16, 0), rows = both, cols = both;
        quantize(&both);
        rows.job.row_codes = make_bytes(rows.row_codes);
        rows.job.row_scales = make_bytes(rows.row_scales);
        rows.job.col_codes = rows.job.col_scales = NULL;
        quantize(&rows);
        cols.job.col_codes = make_bytes(cols.col_codes);
        cols.job.col_scales = make_bytes(cols.col_scales);
        cols.job.row_codes = cols.job.row_scales = NULL;
        quantize(&cols);
        check_same("row codes alone", &rows, rows.job.row_codes, both.job.row_codes, both.row_codes);
        check_same("row scales alone", &rows, rows.job.row_scales, both.job.row_scales, both.row_scales);
        check_same("column codes alone", &cols, cols.job.col_codes, both.job.col_codes, both.col_codes);
        check_same("column scales alone", &cols, cols.job.col_scales, both.job.col_scales, both.col_scales);
        assert_int_equal(rows.saturated, both.saturated);
        rows.job.src = cols.job.src = NULL;
        drop_run(&rows);
        drop_run(&cols);
        drop_run(&both);
    }
}

static void padded_ends_are_multiples_of_32(void **state) {
    (void)state;
    static const int32_t want[] = {0, 160, 192, 192, 352, 384};
    struct run run = make_run(&shapes[15], &geometries[0], MX8_F32, 0);
    quantize(&run);
    assert_memory_equal(run.padded_ends, want, sizeof want);
    drop_run(&run);
}

/* Square tiles: one tensor serves both contractions. The row tensor, dequantized, is the column tensor transposed. */
static void square_tiles_agree(void **state) {
    (void)state;
    static const struct geometry squares[] = {{32, 32}, {128, 128}};
    static const struct shape sizes[] = {{.rows = 64, .cols = 96}, {.rows = 257, .cols = 130}, {.rows = 33, .cols = 70},
        {.rows = 90, .cols = 70, .n_groups = 1, .ends = {90}}};
    for (int g = 0; g < COUNT(squares); g++) {
        for (int s = 0; s < COUNT(sizes); s++) {
            struct run run = make_run(&sizes[s], &squares[g], MX8_F32, 0);
            const struct mx8_quant_job *j = &run.job;
            quantize(&run);
            for (int64_t r = 0; r < j->rows; r++) {
                for (int64_t c = 0; c < j->cols; c++) {
                    assert_int_equal(
                        j->row_codes[r * j->row_code_stride[1] + c], j->col_codes[c * j->col_code_stride[2] + r]);
                    assert_int_equal(j->row_scales[r * j->row_scale_stride[1] + c / 32],
                        j->col_scales[c * j->col_scale_stride[2] + r / 32]);
                }
            }
            drop_run(&run);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_definition),
        cmocka_unit_test(orientations_are_independent),
        cmocka_unit_test(padded_ends_are_multiples_of_32),
        cmocka_unit_test(square_tiles_agree),
    };
    return cmocka_run_group_tests_name("formats.quantize_geometry", tests, NULL, NULL);
}
