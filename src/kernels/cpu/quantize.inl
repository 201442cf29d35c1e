/* Quantizers: 1x32 blocks along rows, 32x1 blocks along columns, or both from one read of the source.
 *
 * The source is cut into cells of 256 columns and as many rows as scales may tie together (at least 64, or the group or
 * tile); where rows alone are wanted and no rows share scales, cells are few rows of 2048 columns, which the hardware
 * reads ahead. A cell is all that a thread needs: it reads the largest magnitude of every block, merges them where a
 * group or tile shares its scale, then makes the codes (quantize_cell.inl). Cells at an edge, and sources whose columns
 * are not contiguous, are first copied to scratch as f32 with zeros around, so that the inner loops only know whole
 * blocks.
 *
 * Bytes moved: 2 (bf16) or 4 (f32) in, 1 + 1/32 out for each orientation. 2026-12-01, AMD EPYC (Zen 3) shared with
 * other work, AVX2, one thread, bf16, bench/run_cpu --only quantizer, share of a copy's bandwidth for the same bytes:
 * rows 0.45 to 0.65, columns 0.3 to 0.4, both 0.2 to 0.3; docs/cpu.md says what holds them back. */
#include "kernels/cpu/quantize_block.inl"
#include <omp.h>

#include "kernels/cpu/quantize_cell.inl"

enum { CELL_FLOATS = CELL_COLS * CELL_MAX_ROWS * 4, CELL_SCRATCH = CELL_FLOATS / 2 * 3 }; /* bytes, of a thread */
enum { ROW_CELL_COLS = 2048, ROW_CELL_ROWS = 8 }; /* cells of rows alone, whose scales are not tied to other rows' */
enum { BAND_COLS = 1024 };
enum { STREAM_CODES = 1 << 20 }; /* outputs from here on would not stay in the last cache anyway */

/* ---- cells ---- */

/* One group of rows of one batch entry, or all rows: where it begins in the source and in the column orientation. */
struct span {
    int64_t batch, start, rows, padded, row_limit; /* row_limit: column codes from `padded` on */
};

/* A cell whose edges are not whole blocks, or whose columns are not contiguous, as f32 with zeros around. */
static void gather_cell(const struct mx8_quant_job *j, struct cell *c, int64_t first, float *to) {
    int64_t rows = blocks_of(c->rows) * MX8_BLOCK, cols = blocks_of(c->cols) * MX8_BLOCK;
    for (int64_t r = 0; r < rows; r++) {
        int64_t exist = r < c->rows ? c->cols : 0;
        const int64_t from = first + r * j->src_stride[1];
        for (int64_t i = 0; i < exist; i++)
            to[r * c->pitch + i] = f32_load_as(j->src, from + i * j->src_stride[2], j->src_dtype);
        for (int64_t i = exist; i < cols; i++) to[r * c->pitch + i] = 0.0f;
    }
    c->src = to;
    c->ld = c->pitch;
    c->dtype = MX8_F32;
}

/* How a job's source is cut. */
struct grid {
    int64_t rows, cols, across; /* of a cell; cells from left to right */
};

static struct grid choose_grid(const struct mx8_quant_job *j) {
    struct grid g = {larger(STRIP_ROWS, larger(j->row_codes ? j->tile : 1, j->col_codes ? j->group : 1)), CELL_COLS, 0};
    if (!j->col_codes && j->tile == 1) g = (struct grid){ROW_CELL_ROWS, ROW_CELL_COLS, 0};
    g.across = (j->cols + g.cols - 1) / g.cols;
    return g;
}

/* A span's cell: where it begins, in rows of the span and columns. */
struct place {
    int64_t row, col;
};

/* The i-th cell of a span. Columns are stored far apart, each in pages of its own: cells are taken in bands of some
 * across, downwards, so that a band's pages stay in the TLB. */
static struct place find_place(const struct mx8_quant_job *j, const struct grid *g, int64_t rows, int64_t i) {
    int64_t down = (rows + g->rows - 1) / g->rows, band = j->col_codes ? BAND_COLS / g->cols : g->across;
    int64_t left = i / (band * down) * band, in_band = i % (band * down), width = smaller(band, g->across - left);
    return (struct place){in_band / width * g->rows, (left + in_band % width) * g->cols};
}

static int64_t source_at(const struct mx8_quant_job *j, const struct span *s, struct place p) {
    return s->batch * j->src_stride[0] + (s->start + p.row) * j->src_stride[1] + p.col * j->src_stride[2];
}

/* Vectors of codes can go past the caches when their addresses are multiples of a vector. */
static int may_stream(const struct mx8_quant_job *j, const uint8_t *codes, int64_t line_stride) {
    return j->batch * j->rows * j->cols >= STREAM_CODES && ((uintptr_t)codes | (uintptr_t)line_stride) % MX8_BLOCK == 0;
}

static void find_outputs(const struct mx8_quant_job *j, const struct span *s, struct place at, struct cell *c) {
    const int64_t *rc = j->row_code_stride, *rs = j->row_scale_stride;
    const int64_t *cc = j->col_code_stride, *cs = j->col_scale_stride;
    int64_t r = s->start + at.row, p = s->padded + at.row;
    if (j->row_codes) {
        c->row_codes = j->row_codes + s->batch * rc[0] + r * rc[1] + at.col * rc[2];
        c->row_scales = j->row_scales + s->batch * rs[0] + r * rs[1] + at.col / MX8_BLOCK * rs[2];
        c->stream_rows = may_stream(j, c->row_codes, rc[1]);
    }
    if (j->col_codes) {
        c->col_codes = j->col_codes + s->batch * cc[0] + p * cc[1] + at.col * cc[2];
        c->col_scales = j->col_scales + s->batch * cs[0] + p / MX8_BLOCK * cs[1] + at.col * cs[2];
        c->stream_cols = may_stream(j, c->col_codes, cc[2]);
    }
}

/* The cell as the inner loops want it: whole blocks, contiguous columns. */
static struct cell find_cell(const struct mx8_quant_job *j, const struct span *s, const struct grid *g, struct place at,
    float *scratch) {
    int64_t first = source_at(j, s, at);
    struct cell c = {
        .src = (const char *)j->src + first * (int64_t)dtype_size(j->src_dtype),
        .ld = j->src_stride[1],
        .dtype = j->src_dtype,
        .rows = smaller(g->rows, s->rows - at.row),
        .cols = smaller(g->cols, j->cols - at.col),
        .row_limit = s->row_limit - at.row,
        .pitch = g->cols,
    };
    find_outputs(j, s, at, &c);
    int whole = c.cols % MX8_BLOCK == 0 && (c.rows % MX8_BLOCK == 0 || !j->col_codes) && j->src_stride[2] == 1;
    if (!whole) gather_cell(j, &c, first, scratch);
    return c;
}

/* Returns how many values saturated, if `count`: in the row orientation where there is one. */
MX8_INLINE int64_t quantize_cell_as(const struct mx8_quant_job *j, struct cell *c, int32_t dtype, struct f8_format f,
    int count, uint16_t *scratch) {
    struct scales row, col;
    int64_t clipped = 0;
    struct encoder e = {.f = f, .exact = count, .clipped = count ? &clipped : NULL};
    c->halves = c->src;
    c->halves_ld = c->ld;
    if (dtype != MX8_BF16 || c->col_codes) {
        gather_halves(c, dtype, scratch, col.amax);
        c->halves = scratch;
        c->halves_ld = c->pitch;
    }
    if (c->row_codes) {
        find_row_scales(j, c, dtype, f, &row);
        e.row = &row;
        e.exact |= row.hard;
    }
    if (c->col_codes) {
        find_col_scales(j, c, dtype, f, &col);
        e.col = &col;
        e.exact |= col.hard;
    }
    if (!c->col_codes)
        row_encode(j, c, dtype, &e);
    else
        strip_encode(j, c, dtype, &e);
    return clipped;
}

/* e4m3 is compiled for its constants; RCEIL and CEIL never saturate. */
static int64_t quantize_cell(const struct mx8_quant_job *j, struct cell *c, uint16_t *scratch) {
    int count = j->saturated != NULL && (j->rule == MX8_SCALE_FLOOR || j->rule == MX8_SCALE_EVEN);
    struct f8_format e4m3 = f8_describe(MX8_F8_E4M3), other = f8_describe(j->format);
    if (j->format != MX8_F8_E5M2)
        return c->dtype == MX8_F32 ? quantize_cell_as(j, c, MX8_F32, e4m3, count, scratch)
                                   : quantize_cell_as(j, c, MX8_BF16, e4m3, count, scratch);
    return c->dtype == MX8_F32 ? quantize_cell_as(j, c, MX8_F32, other, count, scratch)
                               : quantize_cell_as(j, c, MX8_BF16, other, count, scratch);
}

/* ---- the job ---- */

/* A thread's share of all cells: an equal range of their order batch, group, row, column. */
struct share {
    int64_t begin, end, passed; /* cells; `passed` lie in earlier spans */
    float *scratch;
};

static int64_t cells_in(const struct grid *g, int64_t rows) { return (rows + g->rows - 1) / g->rows * g->across; }

static int64_t quantize_span(const struct mx8_quant_job *j, const struct span *s, const struct grid *g,
    struct share *share) {
    int64_t cells = cells_in(g, s->rows), clipped = 0, size = (int64_t)dtype_size(j->src_dtype);
    int64_t first = larger(0, share->begin - share->passed), last = smaller(cells, share->end - share->passed);
    for (int64_t i = first; i < last; i++) {
        struct cell c = find_cell(j, s, g, find_place(j, g, s->rows, i), share->scratch);
        if (i + 1 < last && j->src_stride[2] == 1) {
            c.next = (const char *)j->src + source_at(j, s, find_place(j, g, s->rows, i + 1)) * size;
            c.next_ld = j->src_stride[1] * size;
        }
        clipped += quantize_cell(j, &c, (uint16_t *)(share->scratch + CELL_FLOATS / 4));
    }
    share->passed += cells;
    return clipped;
}

/* Codes that the column orientation has for each column. */
static int64_t col_length(const struct mx8_quant_job *j) {
    return j->n_groups == 0 ? larger(j->rows, j->padded_rows) : j->padded_rows;
}

static int64_t group_end(const struct mx8_quant_job *j, int32_t g) { return j->n_groups > 0 ? j->offsets[g] : j->rows; }

static int64_t padded_end_of(const struct mx8_quant_job *j, int64_t padded, int64_t rows) {
    return padded + (rows + j->padding - 1) / j->padding * j->padding;
}

static int64_t count_cells(const struct mx8_quant_job *j, const struct grid *grid) {
    int64_t start = 0, cells = 0;
    for (int32_t g = 0; g < larger(j->n_groups, 1); g++) {
        cells += cells_in(grid, group_end(j, g) - start);
        start = group_end(j, g);
    }
    return cells * j->batch;
}

static int64_t quantize_share(const struct mx8_quant_job *j, const struct grid *grid, struct share *share) {
    int64_t clipped = 0, length = col_length(j);
    for (int64_t b = 0; b < j->batch; b++) {
        int64_t start = 0, padded = 0;
        for (int32_t g = 0; g < larger(j->n_groups, 1); g++) {
            int64_t end = group_end(j, g);
            struct span s = {b, start, end - start, padded, length - padded};
            clipped += quantize_span(j, &s, grid, share);
            padded = padded_end_of(j, padded, end - start);
            start = end;
        }
    }
    return clipped;
}

/* Zeros for a rectangle of bytes, most often with rows contiguous: the column orientation as it is stored. */
static void clear_bytes(const struct mx8_exec *x, uint8_t *bytes, int64_t rows, int64_t row_stride, int64_t cols,
    int64_t col_stride) {
    if (rows <= 0 || cols <= 0) return;
    int by_cols = row_stride == 1;
    int64_t lines = by_cols ? cols : rows, line_stride = by_cols ? col_stride : row_stride;
    int64_t n = by_cols ? rows : cols, step = by_cols ? row_stride : col_stride;
#pragma omp parallel for num_threads(x->threads) schedule(static) if (lines * n > 65536)
    for (int64_t l = 0; l < lines; l++) {
        uint8_t *line = bytes + l * line_stride;
        if (step == 1) memset(line, 0, (size_t)n);
        for (int64_t i = 0; i < n && step != 1; i++) line[i * step] = 0;
    }
}

/* Rows [from, to) of the column orientation become zero; both are multiples of 32, or the end. */
static void clear_cols(
    const struct mx8_exec *x, const struct mx8_quant_job *j, int64_t batch, int64_t from, int64_t to) {
    const int64_t *cc = j->col_code_stride, *cs = j->col_scale_stride;
    uint8_t *codes = j->col_codes + batch * cc[0], *scales = j->col_scales + batch * cs[0];
    clear_bytes(x, codes + from * cc[1], to - from, cc[1], j->cols, cc[2]);
    clear_bytes(x, scales + blocks_of(from) * cs[1], blocks_of(to) - blocks_of(from), cs[1], j->cols, cs[2]);
}

static void clear_rows(const struct mx8_exec *x, const struct mx8_quant_job *j, int64_t batch, int64_t from) {
    const int64_t *rc = j->row_code_stride, *rs = j->row_scale_stride;
    uint8_t *codes = j->row_codes + batch * rc[0], *scales = j->row_scales + batch * rs[0];
    clear_bytes(x, codes + from * rc[1], j->rows - from, rc[1], j->cols, rc[2]);
    clear_bytes(x, scales + from * rs[1], j->rows - from, rs[1], blocks_of(j->cols), rs[2]);
}

/* What no block covers: padding rows behind a group's last block, the column orientation behind the last group, and
 * rows of the source past it. Writes the padded ends on the way. */
static void clear_rest(const struct mx8_exec *x, const struct mx8_quant_job *j, int64_t batch) {
    int64_t start = 0, padded = 0, length = col_length(j);
    for (int32_t g = 0; g < larger(j->n_groups, 1); g++) {
        int64_t filled = padded + blocks_of(group_end(j, g) - start) * MX8_BLOCK;
        padded = padded_end_of(j, padded, group_end(j, g) - start);
        if (j->col_codes) clear_cols(x, j, batch, smaller(filled, length), smaller(padded, length));
        if (j->padded_ends && j->n_groups > 0) j->padded_ends[g] = (int32_t)padded;
        start = group_end(j, g);
    }
    if (j->col_codes) clear_cols(x, j, batch, smaller(padded, length), length);
    if (j->row_codes) clear_rows(x, j, batch, start);
}

static enum mx8_status quantize(const struct mx8_exec *x, const struct mx8_quant_job *job) {
    struct mx8_quant_job j = *job;
    j.group = (int32_t)larger(j.group, MX8_BLOCK);
    j.tile = (int32_t)larger(j.tile, 1);
    j.col_tile = j.col_tile > 0 ? j.col_tile : j.tile;
    j.padding = (int32_t)larger(j.padding, MX8_BLOCK);
    struct grid grid = choose_grid(&j);
    int64_t cells = count_cells(&j, &grid), clipped = 0;
#pragma omp parallel num_threads(x->threads) reduction(+ : clipped) if (cells > 2)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        struct share share = {
            .begin = cells * thread / threads,
            .end = cells * (thread + 1) / threads,
            .scratch = (float *)x->scratch + thread * (CELL_SCRATCH / 4),
        };
        clipped += quantize_share(&j, &grid, &share);
        stream_fence();
    }
    for (int64_t b = 0; b < j.batch; b++) clear_rest(x, &j, b);
    if (j.saturated) *j.saturated += clipped;
    return MX8_OK;
}
