/* Quantizers: 1x32 blocks along rows, 32x1 blocks along columns, or both from one read of the source.
 *
 * The source is cut into cells. Rows alone whose scales are not tied together go through in runs of eight blocks
 * (quantize_rows.inl). Else a cell is 128 rows of all columns where there are up to 2048, because memory is read
 * fastest where rows are not cut; of longer rows it is 128 or 256 rows of some, because codes of columns are written
 * fastest in long pieces (FLOAT_COLS: an exception). Floats are read to scratch as halves, a few rows at a time, while
 * the cell before is encoded (quantize_strip.inl). bf16 is read twice where it lies, for the largest magnitudes and for
 * the codes, the second time from the caches; the cell that follows is only prefetched meanwhile, unless row codes are
 * made in the first reading and it can do that itself. Cells at an edge, and sources whose columns are not contiguous,
 * are first copied as f32 with zeros around, so that the inner loops only know whole blocks.
 *
 * Bytes moved: 2 (bf16) or 4 (f32) in, 1 + 1/32 out for each orientation. docs/cpu.md has the measured rates and what
 * holds them back. */
#include "kernels/cpu/quantize_block.inl"
#include <omp.h>

#include "kernels/cpu/quantize_cell.inl"
#include "kernels/cpu/quantize_rows.inl"
#include "kernels/cpu/quantize_strip.inl"

/* Bytes of a thread's scratch: a cell as f32, and two as halves, a line more to a row. */
enum { CELL_FLOATS = CELL_VALUES * 4, HALVES = CELL_VALUES / 8 * 9, CELL_SCRATCH = CELL_FLOATS + 4 * HALVES };
enum { LEAST_ROWS = 64, LEAST_COLS = 256 };   /* of a cell; scales tie together as many columns */
enum { WHOLE_ROWS = 128, WHOLE_COLS = 2048 }; /* rows up to here are not cut */
enum { LONG_COLS = 1024 };                    /* of longer rows of floats; of bf16 it is LEAST_COLS */
/* The best of what was measured where either instruction set is at home (docs/cpu.md): rows of a cell of long rows of
 * bf16, and the most columns of one of floats when column codes alone are made. */
#if defined(MX8_ISA_AVX512)
enum { LONG_ROWS = 128, FLOAT_COLS = 512 };
#else
enum { LONG_ROWS = 256, FLOAT_COLS = WHOLE_COLS };
#endif
enum { ROW_CELL_COLS = 4096 };   /* cells of rows alone, whose scales are not tied to other rows' */
enum { STREAM_CODES = 1 << 20 }; /* outputs from here on would not stay in the last cache anyway */

/* ---- cells ---- */

/* One group of rows of one batch entry, or all rows: where it begins in the source and in the column orientation. */
struct span {
    int64_t batch, start, rows, padded, row_limit; /* row_limit: column codes from `padded` on */
};

/* A cell whose edges are not whole blocks, or whose columns are not contiguous, as f32 with zeros around. */
static void copy_cell(const struct mx8_quant_job *j, struct cell *c, float *to) {
    int64_t rows = blocks_of(c->rows) * MX8_BLOCK, cols = blocks_of(c->cols) * MX8_BLOCK;
    for (int64_t r = 0; r < rows; r++) {
        int64_t exist = r < c->rows ? c->cols : 0;
        for (int64_t i = 0; i < exist; i++)
            to[r * c->pitch + i] = f32_load_as(c->src, r * c->ld + i * j->src_stride[2], j->src_dtype);
        for (int64_t i = exist; i < cols; i++) to[r * c->pitch + i] = 0.0f;
    }
    c->src = to;
    c->ld = c->pitch;
    c->dtype = MX8_F32;
}

/* How a job's source is cut. */
struct grid {
    int64_t rows, cols, across; /* of a cell; cells from left to right */
    int runs;                   /* rows alone, whose scales are not tied to other rows' */
};

static int64_t count_whole(const struct mx8_quant_job *j, int64_t rows, int64_t cols) {
    return (j->rows + rows - 1) / rows * j->batch * ((j->cols + cols - 1) / cols);
}

/* Four cells for a thread, if need be lower and narrower ones. */
static struct grid choose_grid(const struct mx8_quant_job *j, int64_t threads) {
    const int64_t tied = larger(j->row_codes ? j->tile : 1, j->col_codes ? j->group : 1);
    const int64_t least = larger(LEAST_ROWS, tied), line = blocks_of(j->cols) * MX8_BLOCK;
    const int is_bf16 = j->src_dtype == MX8_BF16;
    struct grid g = {
        .rows = is_bf16 && line > WHOLE_COLS ? LONG_ROWS : WHOLE_ROWS, .cols = is_bf16 ? LEAST_COLS : LONG_COLS};
    if (line > 0 && line <= WHOLE_COLS && count_whole(j, least, line) >= 4 * threads) g.cols = line;
    if (!is_bf16 && !j->row_codes) g.cols = smaller(g.cols, FLOAT_COLS);
    while (g.rows > least && count_whole(j, g.rows, g.cols) < 4 * threads) g.rows /= 2;
    g.rows = larger(g.rows, least);
    while (g.cols > LEAST_COLS && count_whole(j, g.rows, g.cols) < 4 * threads) g.cols /= 2;
    if (!j->col_codes && j->tile == 1) {
        int64_t cols = larger(MX8_BLOCK, smaller(ROW_CELL_COLS, line));
        g = (struct grid){.rows = ROW_CELL_COLS / cols, .cols = cols, .runs = 1};
    }
    g.across = (j->cols + g.cols - 1) / g.cols;
    return g;
}

/* A span's cell: where it begins, in rows of the span and columns. */
struct place {
    int64_t row, col;
};

/* The i-th cell of a span, from left to right: memory is read as it lies. */
static struct place find_place(const struct grid *g, int64_t i) {
    return (struct place){i / g->across * g->rows, i % g->across * g->cols};
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

/* A cell as it lies in memory. */
static struct cell find_cell(
    const struct mx8_quant_job *j, const struct span *s, const struct grid *g, struct place at) {
    int64_t first = source_at(j, s, at);
    struct cell c = {
        .src = (const char *)j->src + first * (int64_t)dtype_size(j->src_dtype),
        .ld = j->src_stride[1],
        .dtype = j->src_dtype,
        .rows = smaller(g->rows, s->rows - at.row),
        .cols = smaller(g->cols, j->cols - at.col),
        .row_limit = s->row_limit - at.row,
        .height = g->rows,
        .pitch = g->cols,
        .packed = g->across == 1 && j->src_stride[1] == j->cols,
    };
    find_outputs(j, s, at, &c);
    return c;
}

/* The inner loops want whole blocks and contiguous columns. */
static int is_whole(const struct mx8_quant_job *j, const struct grid *g, const struct cell *c) {
    return c->cols % MX8_BLOCK == 0 && (c->rows % MX8_BLOCK == 0 || g->runs) && j->src_stride[2] == 1;
}

/* ---- cells one after the other ---- */

/* What a thread holds: the cell that is encoded and the one that is read. */
struct pipe {
    struct cell cell[2];
    struct scales row, col[2];
    uint16_t *halves[2];
    float *copy; /* of a cell that is not whole */
    int at, full;
    int64_t clipped;
};

static int is_counting(const struct mx8_quant_job *j) { /* RCEIL and CEIL never saturate */
    return j->saturated != NULL && (j->rule == MX8_SCALE_FLOOR || j->rule == MX8_SCALE_EVEN);
}

MX8_INLINE void encode_cell_as(
    const struct mx8_quant_job *j, const struct cell *c, struct f8_format f, struct pipe *p, struct reader *next) {
    int count = is_counting(j);
    struct encoder e = {.f = f, .exact = count, .row_clipped = count ? &p->clipped : NULL};
    if (!j->row_codes) e.col_clipped = e.row_clipped;
    if (j->row_codes && j->tile > 1) {
        find_row_scales(j, c, f, &p->row);
        e.row = &p->row;
        e.exact |= p->row.hard;
    }
    if (j->col_codes) {
        find_col_scales(j, c, f, &p->col[p->at]);
        e.col = &p->col[p->at];
        e.exact |= e.col->hard;
    }
    if (!j->col_codes)
        encode_strips(j, c, &e, (struct strip_kind){f, 1, 0, 0}, next);
    else if (e.row)
        encode_strips(j, c, &e, (struct strip_kind){f, 1, 1, 0}, next);
    else if (c->dtype == MX8_F32)
        encode_strips(j, c, &e, (struct strip_kind){f, 0, 1, 2}, next); /* a block of floats is two lines */
    else
        encode_strips(j, c, &e, (struct strip_kind){f, 0, 1, 1}, next);
}

/* Encodes the cell that has been read and reads `next` meanwhile, which may be NULL. */
static void encode_cell(const struct mx8_quant_job *j, struct pipe *p, const struct cell *next) {
    struct reader r = {.cell = next, .col = &p->col[!p->at], .clipped = is_counting(j) ? &p->clipped : NULL};
    if (next) start_reader(j, &r);
    if (p->full && j->format != MX8_F8_E5M2)
        encode_cell_as(j, &p->cell[p->at], f8_describe(MX8_F8_E4M3), p, &r);
    else if (p->full)
        encode_cell_as(j, &p->cell[p->at], f8_describe(MX8_F8_E5M2), p, &r);
    read_rest(j, &r);
    p->full = next != NULL;
    p->at = !p->at;
}

static void push_cell(const struct mx8_quant_job *j, const struct grid *g, struct pipe *p, const struct cell *c) {
    int whole = is_whole(j, g, c);
    if (!whole && p->full) encode_cell(j, p, NULL); /* its source may lie where the copy goes */
    struct cell *to = &p->cell[!p->at];
    *to = *c;
    if (!whole) copy_cell(j, to, p->copy);
    place_halves(to, p->halves[!p->at]);
    encode_cell(j, p, to);
}

/* Rows alone, whose scales are not tied. */
static int64_t quantize_runs(const struct mx8_quant_job *j, const struct grid *g, struct cell c, float *copy) {
    struct f8_format e4m3 = f8_describe(MX8_F8_E4M3), e5m2 = f8_describe(MX8_F8_E5M2);
    int64_t clipped = 0, *count = is_counting(j) ? &clipped : NULL;
    if (!is_whole(j, g, &c)) copy_cell(j, &c, copy);
    if (j->format != MX8_F8_E5M2 && c.dtype == MX8_BF16)
        encode_runs(j, &c, MX8_BF16, e4m3, 0, c.rows, NULL, count);
    else if (j->format != MX8_F8_E5M2)
        encode_runs(j, &c, MX8_F32, e4m3, 0, c.rows, NULL, count);
    else if (c.dtype == MX8_BF16)
        encode_runs(j, &c, MX8_BF16, e5m2, 0, c.rows, NULL, count);
    else
        encode_runs(j, &c, MX8_F32, e5m2, 0, c.rows, NULL, count);
    return clipped;
}

/* ---- the job ---- */

/* A thread's share of all cells: an equal range of their order batch, group, row, column. */
struct share {
    int64_t begin, end, passed; /* cells; `passed` lie in earlier spans */
    struct pipe pipe;
};

static int64_t cells_in(const struct grid *g, int64_t rows) {
    return (rows + g->rows - 1) / g->rows * g->across;
}

static void quantize_span(
    const struct mx8_quant_job *j, const struct span *s, const struct grid *g, struct share *share) {
    int64_t cells = cells_in(g, s->rows);
    int64_t first = larger(0, share->begin - share->passed), last = smaller(cells, share->end - share->passed);
    for (int64_t i = first; i < last; i++) {
        struct cell c = find_cell(j, s, g, find_place(g, i));
        if (g->runs)
            share->pipe.clipped += quantize_runs(j, g, c, share->pipe.copy);
        else
            push_cell(j, g, &share->pipe, &c);
    }
    share->passed += cells;
}

/* Codes that the column orientation has for each column. */
static int64_t col_length(const struct mx8_quant_job *j) {
    return j->n_groups == 0 ? larger(j->rows, j->padded_rows) : j->padded_rows;
}

static int64_t group_end(const struct mx8_quant_job *j, int32_t g) {
    return j->n_groups > 0 ? j->offsets[g] : j->rows;
}

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
    int64_t length = col_length(j);
    for (int64_t b = 0; b < j->batch; b++) {
        int64_t start = 0, padded = 0;
        for (int32_t g = 0; g < larger(j->n_groups, 1); g++) {
            int64_t end = group_end(j, g);
            struct span s = {b, start, end - start, padded, length - padded};
            quantize_span(j, &s, grid, share);
            padded = padded_end_of(j, padded, end - start);
            start = end;
        }
    }
    if (share->pipe.full) encode_cell(j, &share->pipe, NULL);
    return share->pipe.clipped;
}

/* Zeros for a rectangle of bytes, most often with rows contiguous: the column orientation as it is stored. */
static void clear_bytes(
    const struct mx8_exec *x, uint8_t *bytes, int64_t rows, int64_t row_stride, int64_t cols, int64_t col_stride) {
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

/* Rows alone whose blocks lie one behind the other are one long row, without short runs at the end of each. */
static void join_rows(struct mx8_quant_job *j) {
    const int64_t *from = j->src_stride, *codes = j->row_code_stride, *scales = j->row_scale_stride;
    if (j->col_codes || j->tile > 1 || j->n_groups > 0 || j->cols % j->group != 0) return;
    if (from[2] != 1 || codes[2] != 1 || scales[2] != 1) return;
    if (from[1] != j->cols || codes[1] != j->cols || scales[1] != j->cols / MX8_BLOCK) return;
    j->cols *= j->rows;
    j->rows = 1;
}

static enum mx8_status quantize(const struct mx8_exec *x, const struct mx8_quant_job *job) {
    struct mx8_quant_job j = *job;
    j.group = (int32_t)larger(j.group, MX8_BLOCK);
    j.tile = (int32_t)larger(j.tile, 1);
    j.col_tile = j.col_tile > 0 ? j.col_tile : j.tile;
    j.padding = (int32_t)larger(j.padding, MX8_BLOCK);
    join_rows(&j);
    struct grid grid = choose_grid(&j, x->threads);
    int64_t cells = count_cells(&j, &grid), clipped = 0;
#pragma omp parallel num_threads(x->threads) reduction(+ : clipped) if (cells > 2)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        char *scratch = (char *)x->scratch + thread * CELL_SCRATCH;
        struct share share;
        share.begin = cells * thread / threads;
        share.end = cells * (thread + 1) / threads;
        share.passed = share.pipe.clipped = share.pipe.at = share.pipe.full = 0;
        share.pipe.copy = (float *)(void *)scratch;
        share.pipe.halves[0] = (uint16_t *)(void *)(scratch + CELL_FLOATS);
        share.pipe.halves[1] = share.pipe.halves[0] + grid.rows * (grid.cols + MX8_BLOCK);
        clipped += quantize_share(&j, &grid, &share);
        stream_fence();
    }
    for (int64_t b = 0; b < j.batch; b++) clear_rest(x, &j, b);
    if (j.saturated) *j.saturated += clipped;
    return MX8_OK;
}
