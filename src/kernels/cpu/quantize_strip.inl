/* Codes of a cell's columns once its scales are known, and of its rows where these share scales.
 *
 * Codes leave from registers, whole cache lines at a time, and past the caches where the output is larger than those:
 * 64 columns of a row are a line, and 64 rows of a column, of which up to four leave together. Meanwhile lines of the
 * next cell are prefetched, as many as are encoded; where it goes to scratch, it is read between the strips, some rows
 * at a time. */
enum { GATHER_ROWS = 8 };

/* What a cell's codes are made from. */
struct encoder {
    struct f8_format f;
    int exact;                          /* everything in f32 */
    int64_t *row_clipped, *col_clipped; /* counts, where that is wanted */
    const struct scales *row, *col;
};

/* Codes of a strip: for 32 columns, and then for the next 32, `lines` times eight rows as vb_gather8 has them. A strip
 * that is not as high as it could be lies closer together, and takes less of the first-level cache. */
struct strip {
    vb (*group)[8];
    int64_t lines;
};
MX8_INLINE vb *strip_group(const struct strip *s, int64_t block, int64_t line) {
    return s->group[block * s->lines + line];
}

/* A cell that is read while another one is encoded. */
struct reader {
    const struct cell *cell; /* NULL: none */
    int64_t row, step;       /* rows before it have been read; how many are at a time, 1 to 32 */
    struct scales *col;      /* largest magnitudes so far */
    int64_t *clipped;
    const char *line; /* of those that are read next, the one to prefetch; `left` lines from it to the row's end */
    int64_t left;
};

static int64_t count_lines(const struct cell *c) {
    return c->cols * (int64_t)dtype_size(c->dtype) / 64;
}

static void restart_lines(struct reader *r) {
    const struct cell *c = r->cell;
    r->line = r->row < c->rows ? (const char *)c->src + r->row * c->ld * (int64_t)dtype_size(c->dtype) : NULL;
    r->left = count_lines(c);
}

/* bf16 is only prefetched, then read at once: two cells in the second-level cache. */
static int reads_at_once(const struct cell *c) {
    return c->dtype == MX8_BF16;
}

/* As many rows at a time as the encoder takes blocks between two calls of read_some. */
static void start_reader(const struct mx8_quant_job *j, struct reader *r) {
    r->step = reads_at_once(r->cell) ? MX8_BLOCK : 1;
    while (r->step < MX8_BLOCK && 2 * r->step * r->cell->cols <= STRIP_COLS * MX8_BLOCK) r->step *= 2;
    restart_lines(r);
    if (j->row_codes && j->tile == 1 && reads_ahead(r->cell)) r->line = NULL;
}

/* The next n lines of the rows to come, to prefetch one by one; where there are none, lines that are there already.
 * Behind a row's end they are the row's own tail, or nobody's: a hint may be wrong. */
MX8_INLINE const char *take_lines(struct reader *r, int n, const void *otherwise) {
    const char *line = r->line;
    if (!line) return otherwise;
    r->line += n * 64;
    r->left -= n;
    if (r->left > 0) return line;
    const struct cell *c = r->cell;
    r->line += c->ld * (int64_t)dtype_size(c->dtype) - (count_lines(c) - r->left) * 64;
    r->left = count_lines(c);
    return line;
}

/* Reads the rows from r->row on: with a job that wants them, their codes are made at once, as long as they share no
 * scales. */
MX8_INLINE void read_rows_as(const struct mx8_quant_job *j, struct reader *r, int32_t dtype, struct f8_format f) {
    const struct cell *c = r->cell;
    uint16_t *amax = r->col->amax + r->row / MX8_BLOCK * c->pitch;
    if (r->row % MX8_BLOCK == 0) memset(amax, 0, (size_t)c->pitch * sizeof *amax);
    int64_t end = r->row + r->step, rows = j->row_codes && j->tile == 1;
    if (rows) encode_runs(j, c, dtype, f, r->row, smaller(end, c->rows), amax, r->clipped);
    if (!rows || end > c->rows) gather_rows(c, dtype, r->row, r->step, amax);
    r->row = end;
}

static __attribute__((noinline)) void read_rows(const struct mx8_quant_job *j, struct reader *r) {
    struct f8_format e4m3 = f8_describe(MX8_F8_E4M3), e5m2 = f8_describe(MX8_F8_E5M2);
    if (j->format != MX8_F8_E5M2 && r->cell->dtype == MX8_BF16)
        read_rows_as(j, r, MX8_BF16, e4m3);
    else if (j->format != MX8_F8_E5M2)
        read_rows_as(j, r, MX8_F32, e4m3);
    else if (r->cell->dtype == MX8_BF16)
        read_rows_as(j, r, MX8_BF16, e5m2);
    else
        read_rows_as(j, r, MX8_F32, e5m2);
}

static int64_t rows_to_read(const struct cell *c) {
    return blocks_of(c->rows) * MX8_BLOCK;
}

/* The next rows, and a start on those after them. */
static void read_some(const struct mx8_quant_job *j, struct reader *r) {
    if (!r->cell || reads_at_once(r->cell) || r->row >= rows_to_read(r->cell)) return;
    read_rows(j, r);
    restart_lines(r);
}

static void read_rest(const struct mx8_quant_job *j, struct reader *r) {
    while (r->cell && r->row < rows_to_read(r->cell)) read_rows(j, r);
    r->line = NULL;
}

/* Eight rows of a block once more, those in f32 that are not as they should be. */
static __attribute__((noinline)) void encode_cols_again(const struct cell *c, const struct encoder *e, int64_t row,
    int64_t col, const uint8_t *bytes, const vh *offset, vb *to) {
    struct half_masks k = make_masks(e->f);
    vb codes[GATHER_ROWS];
    for (int64_t i = 0; i < GATHER_ROWS; i++) {
        vb least = vb_set(255);
        struct halves h = load_halves(halves_at(c, row + i, col), &k);
        codes[i] = encode_halves(&h, offset, e->f, &k, &least);
        if (!e->exact && !is_missed(&h, least, e->f)) continue;
        codes[i] = vb_set(0);
        if (row + i < c->rows)
            codes[i] = encode_across(c->src, (row + i) * c->ld + col, c->dtype, bytes, e->f, e->col_clipped);
    }
    vb_gather8(to, codes);
}

/* Row codes of eight rows of a block, those that exist, wherever they belong. */
static __attribute__((noinline)) void encode_rows_again(
    const struct mx8_quant_job *j, const struct cell *c, const struct encoder *e, int64_t row, int64_t col) {
    const int64_t *stride = j->row_code_stride;
    const int64_t first = col / MX8_BLOCK * c->height, end = smaller(row + GATHER_ROWS, c->rows);
    for (int64_t r = row; r < end; r++) {
        uint8_t ordered[MX8_BLOCK];
        vb codes = encode_block_again(c, r * c->ld + col, halves_at(c, r, col), e->row->amax[first + r],
            e->row->byte[first + r], e->f, e->exact, e->row_clipped);
        vb_store_lanes(ordered, codes);
        scatter(c->row_codes + r * stride[1] + col * stride[2], stride[2], ordered, smaller(MX8_BLOCK, c->cols - col));
    }
}

/* Column codes of eight rows of a block, in registers from the source to `to`; whether some may be wrong. `fetch` lines
 * from `ahead` on are prefetched for each row. */
MX8_INLINE int encode_eight(const uint16_t *from, int64_t spread, const vh *offset, struct f8_format f,
    const struct half_masks *k, const char *ahead, int fetch, vb *to) {
    vb codes[GATHER_ROWS], least = vb_set(255);
#pragma GCC unroll 8
    for (int i = 0; i < GATHER_ROWS; i++) {
        struct halves values = load_halves(from + i * spread, k);
        for (int l = 0; l < fetch; l++) prefetch_here(ahead + (i * fetch + l) * 64);
        codes[i] = encode_halves(&values, offset, f, k, &least);
    }
    vb_gather8(to, codes);
    return may_miss(least, f);
}

/* Row codes of eight rows of `across` blocks, to memory. Two blocks of a row are a cache line, and leave one after the
 * other. */
MX8_INLINE void encode_eight_rows(const struct mx8_quant_job *j, const struct cell *c, const struct encoder *e,
    struct f8_format f, int64_t row, int64_t col, int across, const char *ahead) {
    vb least[2] = {vb_set(255), vb_set(255)};
    int plain = j->row_code_stride[2] == 1 && c->rows - row >= GATHER_ROWS && c->cols - col >= across * MX8_BLOCK;
    const uint16_t *row_offset = e->row->amax + col / MX8_BLOCK * c->height + row;
    const uint16_t *from = halves_at(c, row, col);
    uint8_t *to = c->row_codes + row * j->row_code_stride[1] + col * j->row_code_stride[2];
    const struct half_masks k = make_masks(f);
    for (int i = 0; i < GATHER_ROWS && plain; i++, from += c->spread, to += j->row_code_stride[1]) {
#pragma GCC unroll 2
        for (int h = 0; h < across; h++) {
            struct halves values = load_halves(from + h * MX8_BLOCK, &k);
            prefetch_here(ahead + (i * across + h) * 64);
            vh factor = vh_set(row_offset[h * c->height + i]), same[2] = {factor, factor};
            vb codes = encode_halves(&values, same, f, &k, &least[h]);
            if (c->stream_rows)
                vb_stream_lanes(to + h * MX8_BLOCK, codes);
            else
                vb_store_lanes(to + h * MX8_BLOCK, codes);
        }
    }
    for (int h = 0; h < across; h++)
        if (!plain || e->exact || may_miss(least[h], f)) encode_rows_again(j, c, e, row, col + h * MX8_BLOCK);
}

enum { BLOCK_STEPS = 8, STRIP_STEPS = STRIP_COLS / MX8_BLOCK * BLOCK_STEPS };

/* The at-th four columns of a strip: which ones, and their codes, as many vectors each as there are blocks. */
MX8_INLINE int find_column(int at, int q) {
    return at / BLOCK_STEPS * MX8_BLOCK + vb_lane(vb_position(at % BLOCK_STEPS, q));
}
MX8_INLINE void join_columns(const struct strip *s, int at, int64_t blocks, vb (*codes)[4]) {
#pragma GCC unroll 8
    for (int64_t b = 0; b < blocks; b++)
        vb_join4(strip_group(s, at / BLOCK_STEPS, b * MX8_BLOCK / GATHER_ROWS) + at % BLOCK_STEPS, 8, codes[b]);
}

/* A strip whose codes are still to be stored. That is done a few columns at a time while the next strip is encoded,
 * because memory takes lines of so many columns slower than they could be stored. */
struct drain {
    struct strip strip;
    vb scales[STRIP_STEPS]; /* one for a step: of four columns, eight bytes a column */
    uint8_t *to, *scales_to;
    int64_t stride, scale_stride;
    int left, stream; /* steps: STRIP_STEPS for two blocks of columns */
    int blocks, due;  /* of rows: 2, 4 or 8; the next step when there are as many */
};

/* Four columns of a strip, one whole column after the other: memory takes long pieces faster, and faster still where
 * something is between them. */
MX8_INLINE void drain_columns(struct drain *d, int blocks, int stream) {
    const int at = STRIP_STEPS - d->left--;
    const int64_t first = find_column(at, 0); /* the others are as far behind it as in the first four */
    vb codes[STRIP_ROWS / MX8_BLOCK][4];
    join_columns(&d->strip, at, blocks, codes);
    uint8_t *first_to = d->to + first * d->stride, *first_scales = d->scales_to + first * d->scale_stride;
    const char *scales = (const char *)&d->scales[at];
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        uint8_t *to = first_to + find_column(0, q) * d->stride;
        memcpy(first_scales + find_column(0, q) * d->scale_stride, scales + q * 8, (size_t)blocks);
#pragma GCC unroll 8
        for (int b = 0; b < blocks; b++) {
            if (stream)
                vb_stream(to + b * MX8_BLOCK, codes[b][q]);
            else
                vb_store(to + b * MX8_BLOCK, codes[b][q]);
        }
    }
}

/* A function of its own, so that the loops around it have the registers. */
static __attribute__((noinline)) void drain_step(struct drain *d) {
    if (d->blocks == 8 && d->stream)
        drain_columns(d, 8, 1);
    else if (d->blocks == 4 && d->stream)
        drain_columns(d, 4, 1);
    else if (d->blocks == 8)
        drain_columns(d, 8, 0);
    else if (d->blocks == 4)
        drain_columns(d, 4, 0);
    else
        drain_columns(d, 2, d->stream);
}

/* Called twice for eight rows of a strip, and done when a strip of the same height is. */
MX8_INLINE void drain_some(struct drain *d) {
    if (d->left <= 0 || (d->due += 2) < d->blocks) return;
    d->due = 0;
    drain_step(d);
}

static void drain_rest(struct drain *d) {
    while (d->left > 0) drain_some(d);
}

/* What the strips of a cell have in common, so that compilers can make a loop for each: whether codes of its rows and
 * of its columns are made, and how many lines are prefetched for each block of column codes; row codes prefetch one. */
struct strip_kind {
    struct f8_format f;
    int rows, cols, fetch;
};

/* 32 rows of `across` blocks, `line` times eight rows below the strip's first. */
MX8_INLINE void encode_strip_block(const struct mx8_quant_job *j, const struct cell *c, const struct encoder *e,
    struct strip_kind kind, int64_t row, int64_t col, int across, struct reader *next, struct drain *drain,
    const struct strip *s, int64_t line) {
    const struct f8_format f = kind.f;
    const int rows = kind.rows, cols = kind.cols, fetch = kind.fetch;
    vh offset[STRIP_COLS / MX8_BLOCK][VB_HALVES];
    const struct half_masks k = keep_masks(make_masks(f));
    const int64_t first = row / MX8_BLOCK * c->pitch + col;
    const uint16_t *from = halves_at(c, row, col);
#pragma GCC unroll 2
    for (int h = 0; h < across && cols; h++)
#pragma GCC unroll 2
        for (int v = 0; v < VB_HALVES; v++)
            offset[h][v] = vh_load(e->col->amax + first + h * MX8_BLOCK + v * 2 * MX8_VF);
    for (int64_t r = row; r < row + MX8_BLOCK; r += GATHER_ROWS, line++, from += GATHER_ROWS * c->spread) {
        drain_some(drain);
        if (rows) encode_eight_rows(j, c, e, f, r, col, across, take_lines(next, GATHER_ROWS * across, from));
        for (int h = 0; h < across && cols; h++) {
            const char *ahead = fetch > 0 ? take_lines(next, GATHER_ROWS * fetch, from) : NULL;
            vb *to = strip_group(s, h, line);
            int missed = encode_eight(from + h * MX8_BLOCK, c->spread, offset[h], f, &k, ahead, fetch, to);
            if (__builtin_expect(e->exact || missed, 0))
                encode_cols_again(c, e, r, col + h * MX8_BLOCK, e->col->byte + first + h * MX8_BLOCK, offset[h], to);
        }
        drain_some(drain);
    }
}

/* A strip that has one block of rows or of columns, is cut short, or whose columns are not contiguous. */
static void store_cols(const struct mx8_quant_job *j, const struct cell *c, int64_t row, int64_t col, int64_t blocks,
    const uint8_t *bytes, const struct strip *s) {
    int64_t limit = smaller(blocks * MX8_BLOCK, c->row_limit - row), step = j->col_code_stride[1];
    int64_t stride = j->col_code_stride[2], cols = smaller(STRIP_COLS, c->cols - col);
    uint8_t *to = c->col_codes + row * step + col * stride, codes[STRIP_ROWS];
    uint8_t *scales = c->col_scales + row / MX8_BLOCK * j->col_scale_stride[1] + col * j->col_scale_stride[2];
    for (int64_t b = 0; b < blocks; b++)
        scatter(scales + b * j->col_scale_stride[1], j->col_scale_stride[2], bytes + b * c->pitch, cols);
    for (int at = 0; at < STRIP_STEPS; at++) {
        vb out[STRIP_ROWS / MX8_BLOCK][4];
        if (at / BLOCK_STEPS * MX8_BLOCK >= cols) break;
        join_columns(s, at, blocks, out);
        for (int q = 0; q < 4; q++) {
            int column = find_column(at, q);
            if (column >= cols) continue;
            for (int64_t b = 0; b < blocks; b++) vb_store(codes + b * MX8_BLOCK, out[b][q]);
            scatter(to + column * stride, step, codes, limit);
        }
    }
}

/* Stores a strip and its scales, or has them stored later. */
static void finish_strip(const struct mx8_quant_job *j, const struct cell *c, int64_t row, int64_t col, int64_t blocks,
    const uint8_t *bytes, const struct strip *s, struct drain *d) {
    drain_rest(d);
    bytes += row / MX8_BLOCK * c->pitch + col;
    if (j->col_code_stride[1] != 1 || j->col_scale_stride[1] != 1 || blocks == 1 ||
        c->row_limit - row < blocks * MX8_BLOCK || c->cols - col < STRIP_COLS) {
        store_cols(j, c, row, col, blocks, bytes, s);
        return;
    }
    d->strip = *s;
    d->to = c->col_codes + row + col * j->col_code_stride[2];
    d->scales_to = c->col_scales + row / MX8_BLOCK + col * j->col_scale_stride[2];
    d->stride = j->col_code_stride[2];
    d->scale_stride = j->col_scale_stride[2];
    d->left = STRIP_STEPS;
    d->stream = c->stream_cols;
    d->blocks = (int)blocks;
    d->due = 0;
    for (int h = 0; h < STRIP_COLS / MX8_BLOCK; h++) {
        vb lines[8];
        for (int b = 0; b < 8; b++)
            lines[b] = b < blocks ? vb_load_lanes(bytes + b * c->pitch + h * MX8_BLOCK) : vb_set(0);
        vb_gather8(d->scales + h * BLOCK_STEPS, lines);
    }
}

/* Blocks of rows of the next strip: a power of two. */
static int64_t choose_height(const struct cell *c, int64_t row) {
    int64_t blocks = STRIP_ROWS / MX8_BLOCK;
    while (blocks > 1 && blocks > blocks_of(c->rows - row)) blocks /= 2;
    return blocks;
}

MX8_INLINE void encode_strips(const struct mx8_quant_job *j, const struct cell *c, const struct encoder *e,
    struct strip_kind kind, struct reader *next) {
    vb group[2 * STRIP_COLS / MX8_BLOCK * STRIP_ROWS / GATHER_ROWS][8];
    struct drain drain = {.left = 0};
    for (int64_t row = 0, blocks; row < c->rows; row += blocks * MX8_BLOCK) {
        blocks = choose_height(c, row);
        const int64_t lines = blocks * MX8_BLOCK / GATHER_ROWS;
        struct strip strip[2] = {{&group[0], lines}, {&group[STRIP_COLS / MX8_BLOCK * lines], lines}}, *s = strip;
        drain_rest(&drain); /* its codes lie where these strips' go */
        for (int64_t col = 0; col < c->cols; col += STRIP_COLS) {
            int across = (int)blocks_of(smaller(STRIP_COLS, c->cols - col));
            for (int64_t b = 0; b < blocks; b++) {
                const int64_t line = b * MX8_BLOCK / GATHER_ROWS;
                if (across == 2)
                    encode_strip_block(j, c, e, kind, row + b * MX8_BLOCK, col, 2, next, &drain, s, line);
                else
                    encode_strip_block(j, c, e, kind, row + b * MX8_BLOCK, col, 1, next, &drain, s, line);
                read_some(j, next);
            }
            if (!kind.cols) continue;
            finish_strip(j, c, row, col, blocks, e->col->byte, s, &drain);
            s = s == strip ? strip + 1 : strip;
        }
    }
    drain_rest(&drain);
}
