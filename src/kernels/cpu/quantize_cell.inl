/* One cell of a quantizer: largest magnitudes, scales, codes, in one or both orientations.
 *
 * The arithmetic is on 16-bit lanes. bf16 is taken as it is; floats are cut to their upper half, made odd where that
 * lost something, which no rule for scales and no rounding to a code can tell from the float itself, with the one
 * exception that settle_amax deals with. A block with numbers too small for this, or whose saturated values are to be
 * counted, is encoded from the source in f32. Both ways give the same bits.
 *
 * Where columns are wanted the first pass copies the cell's halves to scratch, closely packed: the lines of a source
 * whose rows are a power of two apart meet in few sets of the caches and would be gone when the codes are made. Codes
 * leave from registers, whole cache lines at a time, and past the caches where the output is larger than those; 64 rows
 * of a column are a line. While a cell is encoded the next one is prefetched. */
enum { CELL_COLS = 256, CELL_MAX_ROWS = 256, CELL_ENTRIES = CELL_MAX_ROWS * CELL_COLS / MX8_BLOCK };
enum { STRIP_ROWS = 64, STRIP_COLS = 64, GATHER_ROWS = 8, GATHER_BLOCKS = 4 };

/* One cell. `rows` and `cols` are those that exist, row_limit the codes that a column gets: padding rows included. */
struct cell {
    const void *src; /* element (0,0) */
    int64_t ld;
    int32_t dtype;
    int64_t rows, cols, row_limit;
    int64_t pitch;          /* columns of a whole cell: of scratch, and of the scales of columns */
    const uint16_t *halves; /* the values as 16 bits, and how far its rows are apart */
    int64_t halves_ld;
    const char *next; /* element (0,0) of the cell that follows, `next_ld` bytes a row; NULL: none */
    int64_t next_ld;
    uint8_t *row_codes, *row_scales, *col_codes, *col_scales;
    int stream_rows, stream_cols; /* codes go past the caches */
};

/* Bits of the largest magnitudes and the scale bytes they give, by [line of blocks][block]: for rows a line is a row
 * and has a block for every 32 columns of the pitch, for columns a line is 32 rows and has the pitch's columns. */
struct scales {
    int32_t amax[CELL_ENTRIES];
    uint8_t byte[CELL_ENTRIES];
    int hard; /* some block is NaN, or so small that halves cannot have its codes */
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t blocks_of(int64_t n) { return (n + MX8_BLOCK - 1) / MX8_BLOCK; }

/* Gives every rectangle of down x across entries of a (lines, width) array its maximum. */
static void merge_amax(int32_t *amax, int64_t lines, int64_t width, int64_t pitch, int64_t down, int64_t across) {
    if (down <= 1 && across <= 1) return;
    for (int64_t l = 0; l < lines; l += down) {
        int32_t *top = amax + l * pitch;
        int64_t l_end = smaller(l + down, lines);
        for (int64_t a = l + 1; a < l_end; a++)
            for (int64_t i = 0; i < width; i++) top[i] = amax[a * pitch + i] > top[i] ? amax[a * pitch + i] : top[i];
        for (int64_t i = 0; i < width && across > 1; i += across) {
            int64_t end = smaller(i + across, width);
            int32_t most = 0;
            for (int64_t b = i; b < end; b++) most = top[b] > most ? top[b] : most;
            for (int64_t b = i; b < end; b++) top[b] = most;
        }
        for (int64_t a = l + 1; a < l_end; a++) memcpy(amax + a * pitch, top, (size_t)width * sizeof *top);
    }
}

/* With `pairs`, amax becomes what encode_halves takes from magnitudes. */
MX8_INLINE void find_scales(struct scales *s, int64_t n, int32_t rule, struct f8_format f, int pairs) {
    const vi zero = vi_set(0), one = vi_set(1), last = vi_set(half_bias(f)), nan = vi_set(255);
    vi hard = zero;
    for (int64_t i = 0; i < n; i += MX8_VF) {
        vi amax = vi_load(s->amax + i), byte = compute_scales(amax, rule, f);
        vi some = vi_select(vi_gt(amax, zero), one, zero);
        hard = vi_or(hard, vi_or(vi_select(vi_gt(byte, last), zero, some), vi_select(vi_eq(byte, nan), one, zero)));
        vi_store_u8(s->byte + i, byte);
        if (pairs) vi_store(s->amax + i, pair_offset(byte, f));
    }
    s->hard = vm_any(vi_gt(hard, zero));
}

static int32_t exact_amax(const struct cell *c, int64_t row, int64_t col, int64_t rows, int64_t cols) {
    uint32_t most = 0;
    for (int64_t r = row; r < row + rows; r++)
        for (int64_t i = col; i < col + cols; i++) {
            uint32_t bits = f32_bits(((const float *)c->src)[r * c->ld + i]) & 0x7FFFFFFF;
            most = bits > most ? bits : most;
        }
    return (int32_t)most;
}

/* RCEIL treats one float unlike its neighbours (f.rounded), and cutting makes it one of them: blocks whose largest
 * magnitude may be it are read again. Lines are `down` rows and blocks `across` columns large. */
static void settle_amax(const struct cell *c, int32_t *amax, int64_t lines, int64_t width, int64_t pitch, int64_t down,
    int64_t across, struct f8_format f) {
    const int32_t suspect = (int32_t)((uint32_t)f.rounded >> 16 << 16 | 1 << 16);
    for (int64_t l = 0; l < lines; l++)
        for (int64_t i = 0; i < width; i++)
            if (amax[l * pitch + i] == suspect)
                amax[l * pitch + i] = exact_amax(c, l * down, i * across, down, across);
}

/* Copies n bytes to places a stride apart. */
MX8_INLINE void scatter(uint8_t *to, int64_t stride, const uint8_t *from, int64_t n) {
    if (stride == 1) {
        memcpy(to, from, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++) to[i * stride] = from[i];
}

MX8_INLINE void prefetch_next(const struct cell *c, int32_t dtype, int64_t row, int64_t col) {
    const char *at = c->next + row * c->next_ld + col * (dtype == MX8_BF16 ? 2 : 4);
    if (!c->next) return;
    __builtin_prefetch(at);
    if (dtype != MX8_BF16) __builtin_prefetch(at + 64);
}

/* 32 values as halves. */
MX8_INLINE void cut_halves(const struct cell *c, int32_t dtype, int64_t row, int64_t col, vh *to) {
    for (int v = 0; v < VB_HALVES; v++) {
        int64_t at = row * c->ld + col + v * 2 * MX8_VF;
        if (dtype == MX8_BF16) {
            to[v] = vh_load((const uint16_t *)c->src + at);
            continue;
        }
        const float *p = (const float *)c->src + at;
        to[v] = vh_round_odd(vf_bits(vf_load(p)), vf_bits(vf_load(p + MX8_VF)));
    }
}

/* Lanes of bf16 magnitudes as bits of floats. */
MX8_INLINE void store_amax(int32_t *amax, const vh *most) {
    uint16_t lanes[MX8_BLOCK];
    for (int v = 0; v < VB_HALVES; v++) vh_store(lanes + v * 2 * MX8_VF, most[v]);
    for (int v = 0; v < MX8_BLOCK; v += MX8_VF) vi_store(amax + v, vf_bits(vf_load_bf16(lanes + v)));
}

/* Some rows of `across` blocks to scratch and the largest magnitudes of their columns. */
MX8_INLINE void gather_blocks(const struct cell *c, int32_t dtype, int64_t row, int64_t end, int64_t col, int across,
    uint16_t *to, int32_t *amax) {
    vh most[GATHER_BLOCKS][VB_HALVES], value[VB_HALVES];
    for (int b = 0; b < across; b++)
        for (int v = 0; v < VB_HALVES; v++) most[b][v] = vh_set(0);
    for (int64_t r = row; r < end; r++) {
        for (int b = 0; b < across; b++) {
            cut_halves(c, dtype, r, col + b * MX8_BLOCK, value);
            for (int v = 0; v < VB_HALVES; v++) {
                vh_store(to + r * c->pitch + col + b * MX8_BLOCK + v * 2 * MX8_VF, value[v]);
                most[b][v] = vh_max(most[b][v], vh_and(value[v], vh_set(0x7FFF)));
            }
        }
    }
    for (int b = 0; b < across; b++) store_amax(amax + b * MX8_BLOCK, most[b]);
}

/* The cell's halves to scratch and, on the way, the largest magnitudes of its columns. Without columns to write, rows
 * that do not exist are not there to be read either. */
MX8_INLINE void gather_halves(const struct cell *c, int32_t dtype, uint16_t *to, int32_t *amax) {
    int64_t cols = blocks_of(c->cols) * MX8_BLOCK, rows = c->col_codes ? blocks_of(c->rows) * MX8_BLOCK : c->rows;
    for (int64_t row = 0; row < rows; row += MX8_BLOCK, amax += c->pitch) {
        int64_t end = smaller(row + MX8_BLOCK, rows), col = 0;
        for (; col + GATHER_BLOCKS * MX8_BLOCK <= cols; col += GATHER_BLOCKS * MX8_BLOCK)
            gather_blocks(c, dtype, row, end, col, GATHER_BLOCKS, to, amax + col);
        for (; col < cols; col += MX8_BLOCK) gather_blocks(c, dtype, row, end, col, 1, to, amax + col);
    }
}

/* ---- rows ---- */

/* MX8_VF blocks at a time; those past an edge are some other block's, and nobody asks for them. */
MX8_INLINE void row_amax(const struct cell *c, int32_t *amax) {
    int64_t pitch = c->pitch / MX8_BLOCK, n = c->rows * pitch, blocks = blocks_of(c->cols), row = 0, block = 0;
    for (int64_t e = 0; e < n; e += MX8_VF) {
        vh most[MX8_VF];
        for (int i = 0; i < MX8_VF; i++) {
            int64_t from = row < c->rows && block < blocks ? row * c->halves_ld + block * MX8_BLOCK : 0;
            most[i] = vh_and(vh_load(c->halves + from), vh_set(0x7FFF));
            for (int v = 2 * MX8_VF; v < MX8_BLOCK; v += 2 * MX8_VF)
                most[i] = vh_max(most[i], vh_and(vh_load(c->halves + from + v), vh_set(0x7FFF)));
            if (++block == pitch) {
                block = 0;
                row++;
            }
        }
        vi_store(amax + e, vi_shl(vh_max_each(most), 16));
    }
}

/* One block of a row from the source, in f32. */
static __attribute__((noinline)) vb encode_block(const struct cell *c, int64_t row, int64_t col, uint8_t byte,
    struct f8_format f, int64_t *clipped) {
    uint8_t codes[MX8_BLOCK];
    vi over = vi_set(0);
    if (byte == 255) return vb_set(0x7F);
    for (int v = 0; v < MX8_BLOCK; v += MX8_VF) {
        vf value = vf_mul(vf_load_as(c->src, row * c->ld + col + v, c->dtype), invert_scales(vi_set(byte)));
        vi_store_u8(codes + v, encode_values(value, f, &over));
    }
    if (clipped) *clipped += sum_lanes(over);
    return vb_load_lanes(codes);
}

/* A block's codes to their place in a row. */
MX8_INLINE void store_block(const struct mx8_quant_job *j, const struct cell *c, int64_t row, int64_t col, vb codes) {
    int64_t step = j->row_code_stride[2];
    uint8_t *to = c->row_codes + row * j->row_code_stride[1] + col * step, ordered[MX8_BLOCK];
    if (step == 1 && c->cols - col >= MX8_BLOCK) {
        if (c->stream_rows)
            vb_stream_lanes(to, codes);
        else
            vb_store_lanes(to, codes);
        return;
    }
    vb_store_lanes(ordered, codes);
    scatter(to, step, ordered, smaller(MX8_BLOCK, c->cols - col));
}

/* What a cell's codes are made from. */
struct encoder {
    struct f8_format f;
    int exact;                    /* everything in f32 */
    int64_t *clipped;             /* rows: counts, where that is wanted */
    const struct scales *row, *col;
};

/* Row codes of the 32 values in `h`. */
MX8_INLINE void encode_row_block(const struct mx8_quant_job *j, const struct cell *c, const struct encoder *e,
    const struct halves *h, int64_t row, int64_t col) {
    int64_t at = row * (c->pitch / MX8_BLOCK) + col / MX8_BLOCK;
    vb least = vb_set(255);
    vh offset[VB_HALVES];
    for (int v = 0; v < VB_HALVES; v++) offset[v] = vh_from_pairs(vi_set(e->row->amax[at]));
    vb codes = encode_halves(h, offset, e->f, &least);
    if (e->exact || is_missed(least, e->f)) codes = encode_block(c, row, col, e->row->byte[at], e->f, e->clipped);
    store_block(j, c, row, col, codes);
}

MX8_INLINE void row_encode(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype,
    const struct encoder *e) {
    for (int64_t r = 0; r < c->rows; r++) {
        const uint16_t *halves = c->halves + r * c->halves_ld;
        for (int64_t at = 0; at < c->cols; at += MX8_BLOCK) {
            struct halves h = load_halves(halves + at, e->f);
            prefetch_next(c, dtype, r, at);
            encode_row_block(j, c, e, &h, r, at);
        }
    }
}

/* s->amax becomes offsets. */
MX8_INLINE void find_row_scales(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype, struct f8_format f,
    struct scales *s) {
    int64_t blocks = blocks_of(c->cols), pitch = c->pitch / MX8_BLOCK;
    row_amax(c, s->amax);
    if (dtype != MX8_BF16 && j->rule == MX8_SCALE_RCEIL)
        settle_amax(c, s->amax, c->rows, blocks, pitch, 1, MX8_BLOCK, f);
    merge_amax(s->amax, c->rows, blocks, pitch, j->tile, j->group / MX8_BLOCK);
    find_scales(s, c->rows * pitch, j->rule, f, 1);
    for (int64_t r = 0; r < c->rows; r++)
        scatter(c->row_scales + r * j->row_scale_stride[1], j->row_scale_stride[2], s->byte + r * pitch, blocks);
}

/* ---- columns ---- */

/* A row of 32 columns from the source, in f32; `bytes` are the scales of these columns. NaN blocks get their code, a
 * row that does not exist none. */
static __attribute__((noinline)) vb encode_across(const struct cell *c, int64_t row, int64_t col, const uint8_t *bytes,
    struct f8_format f, int64_t *clipped) {
    uint8_t codes[MX8_BLOCK];
    vi total = vi_set(0);
    for (int v = 0; v < MX8_BLOCK; v += MX8_VF) {
        vi scale = vi_load_u8(bytes + v), over = vi_set(0);
        vm nan = vi_eq(scale, vi_set(255));
        vf value = vf_mul(vf_load_as(c->src, row * c->ld + col + v, c->dtype), invert_scales(scale));
        vi code = encode_values(value, f, &over);
        total = vi_add(total, vi_select(nan, vi_set(0), over));
        vi_store_u8(codes + v, vi_select(nan, vi_set(row < c->rows ? 0x7F : 0), code));
    }
    if (clipped) *clipped += sum_lanes(total);
    return vb_load_lanes(codes);
}

/* Those of eight rows that are not as they should be, once more. */
static __attribute__((noinline)) void encode_missed(const struct cell *c, const struct encoder *e, int64_t row,
    int64_t col, const uint8_t *bytes, const vh *offset, vb *rows) {
    for (int i = 0; i < GATHER_ROWS; i++) {
        vb least = vb_set(255);
        struct halves h = load_halves(c->halves + (row + i) * c->halves_ld + col, e->f);
        encode_halves(&h, offset, e->f, &least);
        if (e->exact || is_missed(least, e->f))
            rows[i] = encode_across(c, row + i, col, bytes, e->f, e->row ? NULL : e->clipped);
    }
}

/* Codes of a strip: [32 columns][eight rows][vector of vb_gather8]. */
struct strip {
    vb group[STRIP_COLS / MX8_BLOCK][STRIP_ROWS / GATHER_ROWS][8];
};

/* One block's rows of a strip, and their row codes on the way if these are wanted: two vectors of a row, a cache line,
 * one after the other. */
MX8_INLINE void encode_strip_block(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype,
    const struct encoder *e, int64_t row, int64_t col, int64_t across, const uint8_t *bytes, struct strip *s) {
    vh offset[STRIP_COLS / MX8_BLOCK][VB_HALVES];
    for (int64_t h = 0; h < across; h++)
        for (int v = 0; v < VB_HALVES; v++)
            offset[h][v] = half_offset(vh_load_u8(bytes + h * MX8_BLOCK + v * 2 * MX8_VF), e->f);
    for (int64_t r = row; r < row + MX8_BLOCK; r += GATHER_ROWS) {
        vb rows[STRIP_COLS / MX8_BLOCK][GATHER_ROWS], least[STRIP_COLS / MX8_BLOCK] = {vb_set(255), vb_set(255)};
        for (int i = 0; i < GATHER_ROWS; i++) {
            const uint16_t *from = c->halves + (r + i) * c->halves_ld + col;
            for (int64_t h = 0; h < across; h++) {
                struct halves values = load_halves(from + h * MX8_BLOCK, e->f);
                rows[h][i] = encode_halves(&values, offset[h], e->f, &least[h]);
                prefetch_next(c, dtype, r + i, col + h * MX8_BLOCK);
                if (e->row && r + i < c->rows) encode_row_block(j, c, e, &values, r + i, col + h * MX8_BLOCK);
            }
        }
        for (int64_t h = 0; h < across; h++) {
            if (e->exact || is_missed(least[h], e->f))
                encode_missed(c, e, r, col + h * MX8_BLOCK, bytes + h * MX8_BLOCK, offset[h], rows[h]);
            vb_gather8(rows[h]);
            memcpy(s->group[h][r % STRIP_ROWS / GATHER_ROWS], rows[h], sizeof rows[h]);
        }
    }
}

/* 32 columns of a strip to where they belong. */
MX8_INLINE void store_cols(const struct mx8_quant_job *j, const struct cell *c, int64_t row, int64_t col,
    int64_t blocks, vb (*group)[8]) {
    int64_t limit = smaller(blocks * MX8_BLOCK, c->row_limit - row), step = j->col_code_stride[1];
    int64_t cols = smaller(MX8_BLOCK, c->cols - col), plain = step == 1 && limit == STRIP_ROWS;
    uint8_t *to = c->col_codes + row * step + col * j->col_code_stride[2];
    for (int i = 0; i < 8; i++) {
        vb out[STRIP_ROWS / MX8_BLOCK][4];
        for (int64_t b = 0; b < blocks; b++) vb_join4(&group[b * MX8_BLOCK / GATHER_ROWS][i], 8, out[b]);
        for (int q = 0; q < 4; q++) {
            int column = vb_lane(vb_position(i, q));
            uint8_t *at = to + column * j->col_code_stride[2], codes[STRIP_ROWS];
            if (column >= cols) continue;
            if (plain && c->stream_cols) {
                vb_stream(at, out[0][q]);
                vb_stream(at + MX8_BLOCK, out[1][q]);
            } else if (plain) {
                vb_store(at, out[0][q]);
                vb_store(at + MX8_BLOCK, out[1][q]);
            } else {
                for (int64_t b = 0; b < blocks; b++) vb_store(codes + b * MX8_BLOCK, out[b][q]);
                scatter(at, step, codes, limit);
            }
        }
    }
}

MX8_INLINE void strip_encode(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype,
    const struct encoder *e) {
    const uint8_t *bytes = e->col->byte;
    for (int64_t row = 0; row < c->rows; row += STRIP_ROWS, bytes += STRIP_ROWS / MX8_BLOCK * c->pitch) {
        int64_t blocks = blocks_of(smaller(STRIP_ROWS, c->rows - row));
        for (int64_t col = 0; col < c->cols; col += STRIP_COLS) {
            struct strip s;
            int64_t across = blocks_of(smaller(STRIP_COLS, c->cols - col));
            for (int64_t b = 0; b < blocks; b++)
                encode_strip_block(
                    j, c, dtype, e, row + b * MX8_BLOCK, col, across, bytes + b * c->pitch + col, &s);
            for (int64_t h = 0; h < across; h++) store_cols(j, c, row, col + h * MX8_BLOCK, blocks, s.group[h]);
        }
    }
}

/* The scales of a column lie together, or those of a line do. */
static void store_col_scales(const struct mx8_quant_job *j, const struct cell *c, int64_t lines, const uint8_t *bytes) {
    int64_t step = j->col_scale_stride[1], line = j->col_scale_stride[2];
    for (int64_t l = 0; l < lines && line == 1; l++)
        memcpy(c->col_scales + l * step, bytes + l * c->pitch, (size_t)c->cols);
    for (int64_t i = 0; i < c->cols && line != 1; i++)
        for (int64_t l = 0; l < lines; l++) c->col_scales[i * line + l * step] = bytes[l * c->pitch + i];
}

/* s->amax holds the largest magnitudes. */
MX8_INLINE void find_col_scales(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype, struct f8_format f,
    struct scales *s) {
    int64_t lines = blocks_of(c->rows);
    if (dtype != MX8_BF16 && j->rule == MX8_SCALE_RCEIL)
        settle_amax(c, s->amax, lines, c->cols, c->pitch, MX8_BLOCK, 1, f);
    merge_amax(s->amax, lines, c->cols, c->pitch, j->group / MX8_BLOCK, j->col_tile);
    find_scales(s, lines * c->pitch, j->rule, f, 0);
    store_col_scales(j, c, lines, s->byte);
}
