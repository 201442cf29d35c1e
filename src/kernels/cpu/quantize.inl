/* Quantizers: 1x32 blocks along rows, 32x1 blocks along columns, or both from one read of the source.
 *
 * The source is cut into cells of 256 columns and as many rows as scales may tie together (at least 64, or the group or
 * tile). A cell is all that a thread needs: it reads the largest magnitude of every block, merges them where a group or
 * tile shares its scale, then reads the cell again, out of L1 or L2, to write the codes (quantize_cell.inl). Cells at
 * an edge, and sources whose columns are not contiguous, are first copied to scratch as f32 with zeros around, so that
 * the inner loops only know whole blocks.
 *
 * Bytes moved: 2 (bf16) or 4 (f32) in, 1 + 1/32 out for each orientation. 2026-12-01, bf16 4160x5120, share of a copy's
 * bandwidth for the same bytes, one thread: AMD EPYC (AVX2) rows 0.5, columns 0.35, both 0.3; Xeon (AVX-512) 0.43,
 * 0.38, 0.30, and 0.49, 0.45, 0.33 with 16 threads. */
#include "kernels/cpu/quantize_block.inl"
#include <omp.h>

#include "kernels/cpu/quantize_cell.inl"

enum { CELL_SCRATCH = CELL_COLS * CELL_MAX_ROWS * 4 }; /* bytes, of a thread */
enum { BAND_CELLS = 4 };
enum { STREAM_CODES = 16 << 20 }; /* outputs from here on would not stay in the last cache anyway */

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
            to[r * CELL_COLS + i] = f32_load_as(j->src, from + i * j->src_stride[2], j->src_dtype);
        for (int64_t i = exist; i < cols; i++) to[r * CELL_COLS + i] = 0.0f;
    }
    c->src = to;
    c->ld = CELL_COLS;
    c->dtype = MX8_F32;
}

static struct cell find_cell(const struct mx8_quant_job *j, const struct span *s, int64_t row, int64_t col,
    int64_t cell_rows, float *scratch) {
    int64_t r = s->start + row, p = s->padded + row;
    int64_t first = s->batch * j->src_stride[0] + r * j->src_stride[1] + col * j->src_stride[2];
    struct cell c = {
        .src = (const char *)j->src + first * (int64_t)dtype_size(j->src_dtype),
        .ld = j->src_stride[1],
        .dtype = j->src_dtype,
        .rows = smaller(cell_rows, s->rows - row),
        .cols = smaller(CELL_COLS, j->cols - col),
        .row_limit = s->row_limit - row,
        .stream = j->batch * j->rows * j->cols > STREAM_CODES,
    };
    const int64_t *rc = j->row_code_stride, *rs = j->row_scale_stride;
    const int64_t *cc = j->col_code_stride, *cs = j->col_scale_stride;
    if (j->row_codes) {
        c.row_codes = j->row_codes + s->batch * rc[0] + r * rc[1] + col * rc[2];
        c.row_scales = j->row_scales + s->batch * rs[0] + r * rs[1] + col / MX8_BLOCK * rs[2];
    }
    if (j->col_codes) {
        c.col_codes = j->col_codes + s->batch * cc[0] + p * cc[1] + col * cc[2];
        c.col_scales = j->col_scales + s->batch * cs[0] + p / MX8_BLOCK * cs[1] + col * cs[2];
    }
    int whole = c.cols % MX8_BLOCK == 0 && (c.rows % MX8_BLOCK == 0 || !j->col_codes) && j->src_stride[2] == 1;
    if (!whole) gather_cell(j, &c, first, scratch);
    return c;
}

/* Returns how many values saturated: in the row orientation where there is one. */
MX8_INLINE int64_t quantize_cell_as(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype,
    struct f8_format f, int count) {
    int64_t in_rows = c->row_codes ? quantize_rows(j, c, dtype, f, count) : 0;
    int64_t in_cols = c->col_codes ? quantize_cols(j, c, dtype, f, count) : 0;
    return c->row_codes ? in_rows : in_cols;
}

/* e4m3 with nothing to count is compiled for its constants; RCEIL and CEIL never saturate. */
static int64_t quantize_cell(const struct mx8_quant_job *j, const struct cell *c) {
    int count = j->saturated != NULL && (j->rule == MX8_SCALE_FLOOR || j->rule == MX8_SCALE_EVEN);
    if (j->format != MX8_F8_E5M2 && !count) {
        struct f8_format f = f8_describe(MX8_F8_E4M3);
        return c->dtype == MX8_F32 ? quantize_cell_as(j, c, MX8_F32, f, 0) : quantize_cell_as(j, c, MX8_BF16, f, 0);
    }
    struct f8_format f = f8_describe(j->format);
    return c->dtype == MX8_F32 ? quantize_cell_as(j, c, MX8_F32, f, 1) : quantize_cell_as(j, c, MX8_BF16, f, 1);
}

/* ---- the job ---- */

/* A thread's share of all cells: an equal range of their order batch, group, row, column. */
struct share {
    int64_t begin, end, passed; /* cells; `passed` lie in earlier spans */
    float *scratch;
};

static int64_t cells_across(const struct mx8_quant_job *j) { return (j->cols + CELL_COLS - 1) / CELL_COLS; }

static int64_t cell_rows_of(const struct mx8_quant_job *j) {
    return larger(STRIP_ROWS, larger(j->row_codes ? j->tile : 1, j->col_codes ? j->group : 1));
}

static int64_t cells_in(const struct mx8_quant_job *j, int64_t rows) {
    return (rows + cell_rows_of(j) - 1) / cell_rows_of(j) * cells_across(j);
}

/* Columns are stored far apart, each in pages of its own: cells are taken in bands of a few across, downwards, so that
 * a band's pages stay in the TLB. */
static int64_t quantize_span(const struct mx8_quant_job *j, const struct span *s, struct share *share) {
    int64_t cells = cells_in(j, s->rows), across = cells_across(j), cell_rows = cell_rows_of(j), clipped = 0;
    int64_t first = larger(0, share->begin - share->passed), last = smaller(cells, share->end - share->passed);
    int64_t band = j->col_codes ? BAND_CELLS : across;
    for (int64_t i = first; i < last; i++) {
        int64_t left = i / (band * (cells / across)) * band, in_band = i % (band * (cells / across));
        int64_t width = smaller(band, across - left), row = in_band / width, col = left + in_band % width;
        struct cell c = find_cell(j, s, row * cell_rows, col * CELL_COLS, cell_rows, share->scratch);
        clipped += quantize_cell(j, &c);
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

static int64_t count_cells(const struct mx8_quant_job *j) {
    int64_t start = 0, cells = 0;
    for (int32_t g = 0; g < larger(j->n_groups, 1); g++) {
        cells += cells_in(j, group_end(j, g) - start);
        start = group_end(j, g);
    }
    return cells * j->batch;
}

static int64_t quantize_share(const struct mx8_quant_job *j, struct share *share) {
    int64_t clipped = 0, length = col_length(j);
    for (int64_t b = 0; b < j->batch; b++) {
        int64_t start = 0, padded = 0;
        for (int32_t g = 0; g < larger(j->n_groups, 1); g++) {
            int64_t end = group_end(j, g);
            struct span s = {b, start, end - start, padded, length - padded};
            clipped += quantize_span(j, &s, share);
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
    int64_t cells = count_cells(&j), clipped = 0;
#pragma omp parallel num_threads(x->threads) reduction(+ : clipped) if (cells > 2)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        struct share share = {
            .begin = cells * thread / threads,
            .end = cells * (thread + 1) / threads,
            .scratch = (float *)x->scratch + thread * (CELL_SCRATCH / 4),
        };
        clipped += quantize_share(&j, &share);
        stream_fence();
    }
    for (int64_t b = 0; b < j.batch; b++) clear_rest(x, &j, b);
    if (j.saturated) *j.saturated += clipped;
    return MX8_OK;
}
