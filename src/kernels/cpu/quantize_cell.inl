/* What the quantizers read: cells, their largest magnitudes and scales.
 *
 * The arithmetic is on 16-bit lanes. bf16 is taken as it is; floats are cut to their upper half, made odd where that
 * lost something, which no rule for scales and no rounding to a code can tell from the float itself, with the one
 * exception that settle_amax deals with. A block with numbers too small for this, or whose saturated values are to be
 * counted, is encoded from the source in f32. Both ways give the same bits.
 *
 * Halves of floats go to scratch in the first pass, closely packed: the lines of a source whose rows are a power of two
 * apart meet in few sets of the caches, and twice as many would be gone when the codes are made. bf16 is its own half
 * and is read a second time where it lies. */
enum { CELL_VALUES = 262144, CELL_ENTRIES = CELL_VALUES / MX8_BLOCK }; /* at most */

/* One cell. `rows` and `cols` are those that exist, row_limit the codes that a column gets: padding rows included. */
struct cell {
    const void *src; /* element (0,0) */
    int64_t ld;
    int32_t dtype;
    int64_t rows, cols, row_limit;
    int64_t height, pitch;  /* rows and columns of a whole cell */
    uint16_t *scratch;      /* halves of floats, rows `spread` apart; NULL for bf16 */
    const uint16_t *halves; /* scratch, or the source */
    int64_t spread;
    uint8_t *row_codes, *row_scales, *col_codes, *col_scales;
    int stream_rows, stream_cols; /* codes go past the caches */
    int packed;                   /* the row below each row lies right behind it, and belongs to the cell */
};

/* Scales of blocks by [line of blocks][block]: for rows a line is 32 columns and has the height's rows, for columns a
 * line is 32 rows and has the pitch's columns. The upper halves of largest magnitudes become what encode_halves takes.
 */
struct scales {
    uint16_t amax[CELL_ENTRIES];
    uint8_t byte[CELL_ENTRIES];
    int hard; /* some block is NaN, or so small that halves cannot have its codes */
};

enum { STRIP_ROWS = 256, STRIP_COLS = 64 }; /* at most */

/* Rows of scratch are a line more than a cell's columns apart, and so not in the same sets of the cache. */
static void place_halves(struct cell *c, uint16_t *scratch) {
    int has_them = c->dtype == MX8_BF16;
    c->scratch = has_them ? NULL : scratch;
    c->halves = has_them ? (const uint16_t *)c->src : scratch;
    c->spread = has_them ? c->ld : c->pitch + 32;
}
MX8_INLINE const uint16_t *halves_at(const struct cell *c, int64_t row, int64_t col) {
    return c->halves + row * c->spread + col;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static int64_t blocks_of(int64_t n) {
    return (n + MX8_BLOCK - 1) / MX8_BLOCK;
}

/* Gives every rectangle of down x across entries of a (lines, width) array its maximum. */
static void merge_amax(uint16_t *amax, int64_t lines, int64_t width, int64_t pitch, int64_t down, int64_t across) {
    if (down <= 1 && across <= 1) return;
    for (int64_t l = 0; l < lines; l += down) {
        uint16_t *top = amax + l * pitch;
        int64_t l_end = smaller(l + down, lines);
        for (int64_t a = l + 1; a < l_end; a++)
            for (int64_t i = 0; i < width; i++) top[i] = amax[a * pitch + i] > top[i] ? amax[a * pitch + i] : top[i];
        for (int64_t i = 0; i < width && across > 1; i += across) {
            int64_t end = smaller(i + across, width);
            uint16_t most = 0;
            for (int64_t b = i; b < end; b++) most = top[b] > most ? top[b] : most;
            for (int64_t b = i; b < end; b++) top[b] = most;
        }
        for (int64_t a = l + 1; a < l_end; a++) memcpy(amax + a * pitch, top, (size_t)width * sizeof *top);
    }
}

/* n entries; whole vectors are read and written. amax becomes offsets. */
MX8_INLINE int find_scales(uint16_t *amax, uint8_t *byte, int64_t n, int32_t rule, struct f8_format f) {
    const struct scale_rule described = describe_rule(rule, f);
    vh hard = vh_set(0);
    for (int64_t i = 0; i < n; i += MX8_BLOCK) {
        vh bytes[VB_HALVES], offset;
#pragma GCC unroll 2
        for (int v = 0; v < VB_HALVES; v++) {
            uint16_t *at = amax + i + v * 2 * MX8_VF;
            bytes[v] = compute_scales(vh_load(at), described, f, &offset, &hard);
            vh_store(at, offset);
        }
        vb_store_lanes(byte + i, vb_pack(bytes));
    }
    return !vh_is_zero(hard);
}

static uint32_t exact_amax(const float *src, int64_t ld, int64_t rows, int64_t cols) {
    uint32_t most = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            uint32_t bits = f32_bits(src[r * ld + i]) & 0x7FFFFFFF;
            most = bits > most ? bits : most;
        }
    return most;
}

/* RCEIL rounds one float down that its neighbours round up (f.rounded), and cutting makes it one of them: blocks whose
 * largest magnitude may be it are read again, and where it is, get the half below, which is rounded down. */
MX8_INLINE int is_suspect(uint16_t amax, struct f8_format f) {
    return amax == (f.rounded >> 16 | 1);
}

MX8_INLINE void settle_amax(
    uint16_t *amax, const float *src, int64_t ld, int64_t rows, int64_t cols, struct f8_format f) {
    if (is_suspect(*amax, f) && exact_amax(src, ld, rows, cols) == (uint32_t)f.rounded) (*amax)--;
}

/* Copies n bytes to places a stride apart. */
MX8_INLINE void scatter(uint8_t *to, int64_t stride, const uint8_t *from, int64_t n) {
    if (stride == 1) {
        memcpy(to, from, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++) to[i * stride] = from[i];
}

/* 32 values as halves. */
MX8_INLINE void cut_halves(const void *src, int64_t at, int32_t dtype, vh *to) {
#pragma GCC unroll 2
    for (int v = 0; v < VB_HALVES; v++, at += 2 * MX8_VF) {
        if (dtype == MX8_BF16) {
            to[v] = vh_load((const uint16_t *)src + at);
            continue;
        }
        const float *p = (const float *)src + at;
        to[v] = vh_round_odd(vf_bits(vf_load(p)), vf_bits(vf_load(p + MX8_VF)));
    }
}

/* ---- the first pass ---- */

enum { READ_BLOCKS = 4, SWEEP_ROWS = 8 };

/* A few rows of `across` blocks, floats to scratch; the largest magnitudes of their columns on top of those in
 * col_amax. */
MX8_INLINE void gather_blocks(
    const struct cell *c, int32_t dtype, int64_t row, int64_t rows, int64_t col, int across, uint16_t *col_amax) {
    vh most[READ_BLOCKS][VB_HALVES];
    for (int b = 0; b < across; b++)
        for (int v = 0; v < VB_HALVES; v++) most[b][v] = vh_load(col_amax + b * MX8_BLOCK + v * 2 * MX8_VF);
    for (int64_t r = row; r < row + rows; r++) {
        for (int b = 0; b < across; b++) {
            uint16_t *to = dtype == MX8_BF16 ? NULL : c->scratch + r * c->spread + col + b * MX8_BLOCK;
            vh value[VB_HALVES];
            cut_halves(c->src, r * c->ld + col + b * MX8_BLOCK, dtype, value);
            for (int v = 0; v < VB_HALVES; v++) {
                if (to) vh_store(to + v * 2 * MX8_VF, value[v]);
                most[b][v] = vh_max(most[b][v], vh_and(value[v], vh_set(0x7FFF)));
            }
        }
    }
    for (int b = 0; b < across; b++)
        for (int v = 0; v < VB_HALVES; v++) vh_store(col_amax + b * MX8_BLOCK + v * 2 * MX8_VF, most[b][v]);
}

MX8_INLINE void gather_rows(const struct cell *c, int32_t dtype, int64_t row, int64_t rows, uint16_t *col_amax) {
    const int64_t cols = blocks_of(c->cols) * MX8_BLOCK, end = row + rows;
    for (; row < end; row += SWEEP_ROWS) {
        const int64_t n = smaller(SWEEP_ROWS, end - row);
        int64_t col = 0;
        for (; col + READ_BLOCKS * MX8_BLOCK <= cols; col += READ_BLOCKS * MX8_BLOCK)
            gather_blocks(c, dtype, row, n, col, READ_BLOCKS, col_amax + col);
        for (; col < cols; col += MX8_BLOCK) gather_blocks(c, dtype, row, n, col, 1, col_amax + col);
    }
}

/* The largest magnitudes of a cell's rows, where rows share scales: columns stand in for rows. */
static void find_row_amax(const struct cell *c, uint16_t *amax) {
    int64_t blocks = blocks_of(c->cols), rows = blocks_of(c->rows) * MX8_BLOCK;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t row = 0; row < rows; row += MX8_VF) {
            vh each[MX8_VF];
            for (int i = 0; i < MX8_VF; i++) {
                const uint16_t *from = halves_at(c, row + i, b * MX8_BLOCK);
                each[i] = vh_and(vh_load(from), vh_set(0x7FFF));
                for (int v = 1; v < VB_HALVES; v++)
                    each[i] = vh_max(each[i], vh_and(vh_load(from + v * 2 * MX8_VF), vh_set(0x7FFF)));
            }
            vh_store_lower(amax + b * c->height + row, vh_max_each(each));
        }
}

/* ---- scales ---- */

static void store_row_scales(const struct mx8_quant_job *j, const struct cell *c, const uint8_t *bytes) {
    int64_t step = j->row_scale_stride[2], blocks = blocks_of(c->cols);
    for (int64_t r = 0; r < c->rows; r++) {
        uint8_t *to = c->row_scales + r * j->row_scale_stride[1];
        for (int64_t b = 0; b < blocks; b++) to[b * step] = bytes[b * c->height + r];
    }
}

MX8_INLINE void find_row_scales(
    const struct mx8_quant_job *j, const struct cell *c, struct f8_format f, struct scales *s) {
    int64_t blocks = blocks_of(c->cols), rows = blocks_of(c->rows) * MX8_BLOCK;
    find_row_amax(c, s->amax);
    for (int64_t b = 0; b < blocks && c->dtype != MX8_BF16 && j->rule == MX8_SCALE_RCEIL; b++)
        for (int64_t r = 0; r < c->rows; r++)
            settle_amax(
                s->amax + b * c->height + r, (const float *)c->src + r * c->ld + b * MX8_BLOCK, c->ld, 1, MX8_BLOCK, f);
    merge_amax(s->amax, blocks, c->rows, c->height, j->group / MX8_BLOCK, j->tile);
    s->hard = 0;
    for (int64_t b = 0; b < blocks; b++)
        s->hard |= find_scales(s->amax + b * c->height, s->byte + b * c->height, rows, j->rule, f);
    store_row_scales(j, c, s->byte);
}

MX8_INLINE void find_col_scales(
    const struct mx8_quant_job *j, const struct cell *c, struct f8_format f, struct scales *s) {
    int64_t lines = blocks_of(c->rows), cols = blocks_of(c->cols) * MX8_BLOCK;
    for (int64_t l = 0; l < lines && c->dtype != MX8_BF16 && j->rule == MX8_SCALE_RCEIL; l++)
        for (int64_t i = 0; i < c->cols; i++)
            settle_amax(
                s->amax + l * c->pitch + i, (const float *)c->src + l * MX8_BLOCK * c->ld + i, c->ld, MX8_BLOCK, 1, f);
    merge_amax(s->amax, lines, c->cols, c->pitch, j->group / MX8_BLOCK, j->col_tile);
    s->hard = 0;
    for (int64_t l = 0; l < lines; l++)
        s->hard |= find_scales(s->amax + l * c->pitch, s->byte + l * c->pitch, cols, j->rule, f);
}

/* ---- one block in f32 ---- */

/* 32 values of a row from the source; `byte` is their scale. */
static __attribute__((noinline)) vb encode_block(
    const void *src, int64_t at, int32_t dtype, uint8_t byte, struct f8_format f, int64_t *clipped) {
    uint8_t codes[MX8_BLOCK];
    vi over = vi_set(0);
    if (byte == 255) return vb_set(0x7F);
    for (int v = 0; v < MX8_BLOCK; v += MX8_VF) {
        vf value = vf_mul(vf_load_as(src, at + v, dtype), invert_scales(vi_set(byte)));
        vi_store_u8(codes + v, encode_values(value, f, &over));
    }
    if (clipped) *clipped += sum_lanes(over);
    return vb_load_lanes(codes);
}

/* 32 values of a row that has halves, too, again: those in f32 whose codes halves cannot have, or all. */
MX8_INLINE vb encode_block_again(const struct cell *c, int64_t at, const uint16_t *from, uint16_t offset, uint8_t byte,
    struct f8_format f, int exact, int64_t *clipped) {
    const struct half_masks k = make_masks(f);
    vb least = vb_set(255);
    struct halves h = load_halves(from, &k);
    vh same[2] = {vh_set(offset), vh_set(offset)};
    vb codes = encode_halves(&h, same, f, &k, &least);
    return exact || is_missed(&h, least, f) ? encode_block(c->src, at, c->dtype, byte, f, clipped) : codes;
}

/* The same, where every value has a scale of its own: NaN blocks get their code. */
static __attribute__((noinline)) vb encode_across(
    const void *src, int64_t at, int32_t dtype, const uint8_t *bytes, struct f8_format f, int64_t *clipped) {
    uint8_t codes[MX8_BLOCK];
    vi total = vi_set(0);
    for (int v = 0; v < MX8_BLOCK; v += MX8_VF) {
        vi scale = vi_load_u8(bytes + v), over = vi_set(0);
        vm nan = vi_eq(scale, vi_set(255));
        vf value = vf_mul(vf_load_as(src, at + v, dtype), invert_scales(scale));
        vi code = encode_values(value, f, &over);
        total = vi_add(total, vi_select(nan, vi_set(0), over));
        vi_store_u8(codes + v, vi_select(nan, vi_set(0x7F), code));
    }
    if (clipped) *clipped += sum_lanes(total);
    return vb_load_lanes(codes);
}
