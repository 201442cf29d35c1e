/* One cell of a quantizer: largest magnitudes, scales, codes, in one or both orientations.
 *
 * Codes are gathered in small buffers, a row of the cell or 32 columns of 64 rows, and leave from there: that is where
 * edges are cut off and strides applied, and where a column gets its 64 bytes, a whole cache line, at once. Outputs
 * larger than the caches go past them, which spares reading each line before it is overwritten.
 *
 * bf16 is encoded in 16-bit lanes; a block that holds a subnormal, or a number whose code is one, takes the f32 way,
 * and so does counting saturated values. Both ways give the same bits. */
enum { CELL_COLS = 256, CELL_BLOCKS = CELL_COLS / MX8_BLOCK, CELL_MAX_ROWS = 256 };
enum { STRIP_COLS = 32, STRIP_ROWS = 64 };

/* One cell. `rows` and `cols` are those that exist, row_limit the codes that a column gets: padding rows included. */
struct cell {
    const void *src; /* element (0,0) */
    int64_t ld;
    int32_t dtype;
    int64_t rows, cols, row_limit;
    uint8_t *row_codes, *row_scales, *col_codes, *col_scales;
    int stream;
};

/* Bits of the largest magnitudes and the scale bytes they give, by [line of blocks][block]: for rows a line is a row
 * and has CELL_BLOCKS blocks, for columns a line is 32 rows and has CELL_COLS. */
struct scales {
    int32_t amax[CELL_MAX_ROWS * CELL_BLOCKS];
    uint8_t byte[CELL_MAX_ROWS * CELL_BLOCKS];
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

static void scale_bytes(struct scales *s, int64_t n, int32_t rule, struct f8_format f) {
    for (int64_t i = 0; i < n; i += MX8_VF) vi_store_u8(s->byte + i, compute_scales(vi_load(s->amax + i), rule, f));
}

/* Copies n bytes to places a stride apart. */
MX8_INLINE void scatter(uint8_t *to, int64_t stride, const uint8_t *from, int64_t n, int stream) {
    if (stride != 1)
        for (int64_t i = 0; i < n; i++) to[i * stride] = from[i];
    else if (stream)
        stream_bytes(to, from, n);
    else if (n == STRIP_ROWS)
        memcpy(to, from, STRIP_ROWS); /* known sizes are copied by vectors, others by calls or bytes */
    else if (n == CELL_COLS)
        memcpy(to, from, CELL_COLS);
    else
        memcpy(to, from, (size_t)n);
}

MX8_INLINE const uint16_t *halves_at(const struct cell *c, int64_t row, int64_t col) {
    return (const uint16_t *)c->src + row * c->ld + col;
}

/* ---- rows ---- */

/* Lane maxima of a block of 32 values in a row. */
MX8_INLINE vi block_amax(const struct cell *c, int32_t dtype, int64_t row, int64_t col) {
    if (dtype == MX8_BF16) {
        const vh no_sign = vh_set(0x7FFF);
        vh most = vh_and(vh_load(halves_at(c, row, col)), no_sign);
        for (int v = 2 * MX8_VF; v < MX8_BLOCK; v += 2 * MX8_VF)
            most = vh_max(most, vh_and(vh_load(halves_at(c, row, col + v)), no_sign));
        return vi_shl(vi_max(vh_even(most), vh_odd(most)), 16);
    }
    vi most = vi_set(0);
    for (int v = 0; v < MX8_BLOCK; v += MX8_VF)
        most = vi_max(most, magnitude_bits(vf_load_as(c->src, row * c->ld + col + v, dtype)));
    return most;
}

/* MX8_VF blocks at a time: their lane maxima, transposed, then the maximum of those vectors. */
MX8_INLINE void row_amax(const struct cell *c, int32_t dtype, int32_t *amax) {
    int64_t n = c->rows * CELL_BLOCKS, blocks = blocks_of(c->cols);
    for (int64_t b = 0; b < n; b += MX8_VF) {
        vf lanes[MX8_VF];
        for (int i = 0; i < MX8_VF; i++) {
            int64_t row = (b + i) / CELL_BLOCKS, block = (b + i) % CELL_BLOCKS;
            int exists = row < c->rows && block < blocks;
            lanes[i] = vf_from_bits(exists ? block_amax(c, dtype, row, block * MX8_BLOCK) : vi_set(0));
        }
        vf_transpose(lanes);
        vi most = vf_bits(lanes[0]);
        for (int i = 1; i < MX8_VF; i++) most = vi_max(most, vf_bits(lanes[i]));
        vi_store(amax + b, most);
    }
}

MX8_INLINE void encode_block(const struct cell *c, int32_t dtype, int64_t row, int64_t col, uint8_t byte,
    struct f8_format f, vi *clipped, uint8_t *to) {
    vi codes[MX8_BLOCK / MX8_VF];
    vf factor = invert_scales(vi_set(byte));
    for (int v = 0; v < MX8_BLOCK / MX8_VF; v++) {
        vf value = vf_mul(vf_load_as(c->src, row * c->ld + col + v * MX8_VF, dtype), factor);
        codes[v] = encode_values(value, f, clipped);
    }
    vi_store_u8_block(to, codes);
}

/* 1 unless some value has to take the f32 way. */
MX8_INLINE int encode_block_halves(const struct cell *c, int64_t row, int64_t col, uint8_t byte, struct f8_format f,
    uint8_t *to) {
    vh codes[MX8_BLOCK / (2 * MX8_VF)], missed = vh_set(0);
    struct half_scale scale = describe_block_scale(byte, f);
    for (int v = 0; v < MX8_BLOCK / (2 * MX8_VF); v++)
        codes[v] = encode_halves(vh_load(halves_at(c, row, col + v * 2 * MX8_VF)), scale, f, &missed);
    vh_store_u8_block(to, codes);
    return vh_is_zero(missed);
}

MX8_INLINE int64_t row_encode(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype, struct f8_format f,
    int count, const uint8_t *bytes) {
    vi clipped = vi_set(0);
    for (int64_t r = 0; r < c->rows; r++, bytes += CELL_BLOCKS) {
        uint8_t codes[CELL_COLS];
        for (int64_t at = 0; at < c->cols; at += MX8_BLOCK) {
            uint8_t byte = bytes[at / MX8_BLOCK];
            if (byte == 255)
                memset(codes + at, 0x7F, MX8_BLOCK);
            else if (dtype != MX8_BF16 || count || !encode_block_halves(c, r, at, byte, f, codes + at))
                encode_block(c, dtype, r, at, byte, f, count ? &clipped : NULL, codes + at);
        }
        scatter(c->row_codes + r * j->row_code_stride[1], j->row_code_stride[2], codes, c->cols, c->stream);
    }
    return sum_lanes(clipped);
}

MX8_INLINE int64_t quantize_rows(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype, struct f8_format f,
    int count) {
    struct scales s;
    int64_t blocks = blocks_of(c->cols);
    row_amax(c, dtype, s.amax);
    merge_amax(s.amax, c->rows, blocks, CELL_BLOCKS, j->tile, j->group / MX8_BLOCK);
    scale_bytes(&s, c->rows * CELL_BLOCKS, j->rule, f);
    for (int64_t r = 0; r < c->rows; r++)
        scatter(
            c->row_scales + r * j->row_scale_stride[1], j->row_scale_stride[2], s.byte + r * CELL_BLOCKS, blocks, 0);
    return row_encode(j, c, dtype, f, count, s.byte);
}

/* ---- columns ---- */

MX8_INLINE void col_amax(const struct cell *c, int32_t dtype, int32_t *amax) {
    enum { STEP = 2 * MX8_VF };
    for (int64_t r = 0; r < c->rows; r += MX8_BLOCK, amax += CELL_COLS) {
        for (int64_t at = 0; at < c->cols; at += STEP) {
            if (dtype == MX8_BF16) {
                uint16_t lanes[STEP];
                vh most = vh_set(0);
                for (int64_t i = r; i < r + MX8_BLOCK; i++)
                    most = vh_max(most, vh_and(vh_load(halves_at(c, i, at)), vh_set(0x7FFF)));
                vh_store(lanes, most);
                for (int v = 0; v < STEP; v += MX8_VF) vi_store(amax + at + v, vf_bits(vf_load_bf16(lanes + v)));
                continue;
            }
            for (int v = 0; v < STEP; v += MX8_VF) {
                vi most = vi_set(0);
                for (int64_t i = r; i < r + MX8_BLOCK; i++)
                    most = vi_max(most, magnitude_bits(vf_load_as(c->src, i * c->ld + at + v, dtype)));
                vi_store(amax + at + v, most);
            }
        }
    }
}

/* Codes of 32 columns by up to 64 rows, a column's together. */
struct strip {
    uint8_t code[STRIP_COLS][STRIP_ROWS];
};

/* Word w of a column is rows 4w to 4w+3 of the block. Sixteen-lane vectors take two neighbouring vectors of columns, so
 * that the matrix of words is square for the transposition. */
MX8_INLINE void strip_block(const struct cell *c, int32_t dtype, int64_t row, int64_t col, const uint8_t *bytes,
    struct f8_format f, vi *clipped, struct strip *s) {
    enum { WORDS = MX8_BLOCK / 4, SIDES = MX8_VF / WORDS };
    for (int64_t at = 0; at < STRIP_COLS; at += SIDES * MX8_VF) {
        vf words[MX8_VF];
        for (int i = 0; i < MX8_VF; i++) {
            int64_t from = at + i / WORDS * MX8_VF, r = row + i % WORDS * 4;
            vi scale = vi_load_u8(bytes + from), word = vi_set(0), over = vi_set(0);
            vf factor = invert_scales(scale);
            for (int q = 3; q >= 0; q--) {
                vf value = vf_mul(vf_load_as(c->src, (r + q) * c->ld + col + from, dtype), factor);
                word = vi_or(vi_shl(word, 8), encode_values(value, f, clipped ? &over : NULL));
            }
            words[i] = vf_from_bits(word);
            if (clipped) *clipped = vi_add(*clipped, vi_select(vi_eq(scale, vi_set(255)), vi_set(0), over));
        }
        vf_transpose(words);
        for (int i = 0; i < MX8_VF; i++)
            for (int side = 0; side < SIDES; side++)
                memcpy(s->code[at + side * MX8_VF + i] + row % STRIP_ROWS,
                    (const uint8_t *)&words[i] + side * MX8_BLOCK, MX8_BLOCK);
    }
}

/* The same in 16-bit lanes, for as many rows as MX8_VF words hold; `bytes` are the scales of the first of them. Two
 * rows make a 16-bit lane, two of those a word. 1 unless some value has to take the f32 way. */
MX8_INLINE int strip_halves(const struct cell *c, int64_t row, int64_t col, const uint8_t *bytes, struct f8_format f,
    struct strip *s) {
    enum { COLS = 2 * MX8_VF };
    vh missed = vh_set(0);
    for (int64_t at = 0; at < STRIP_COLS; at += COLS) {
        vf low[MX8_VF], high[MX8_VF];
        struct half_scale scale = {0};
        for (int w = 0; w < MX8_VF; w++) {
            int64_t r = row + 4 * w;
            vh pair[2] = {vh_set(0), vh_set(0)};
            if (r < c->rows) {
                if (r % MX8_BLOCK == 0)
                    scale = describe_half_scale(vh_load_u8(bytes + (r - row) / MX8_BLOCK * CELL_COLS + at), f);
                for (int q = 0; q < 2; q++) {
                    vh even = encode_halves(vh_load(halves_at(c, r + 2 * q, col + at)), scale, f, &missed);
                    vh odd = encode_halves(vh_load(halves_at(c, r + 2 * q + 1, col + at)), scale, f, &missed);
                    pair[q] = vh_or(even, vh_shl(odd, 8));
                }
            }
            low[w] = vf_from_bits(vh_zip_low(pair[0], pair[1]));
            high[w] = vf_from_bits(vh_zip_high(pair[0], pair[1]));
        }
        vf_transpose(low);
        vf_transpose(high);
        for (int i = 0; i < MX8_VF; i++) {
            uint8_t(*to)[STRIP_ROWS] = s->code + at + i / 4 * 8 + i % 4;
            memcpy(to[0] + row % STRIP_ROWS, &low[i], sizeof low[i]);
            memcpy(to[4] + row % STRIP_ROWS, &high[i], sizeof high[i]);
        }
    }
    return vh_is_zero(missed);
}

/* One column of a strip: NaN blocks and padding rows put right, then out. */
MX8_INLINE void store_col(const struct mx8_quant_job *j, const struct cell *c, int64_t row, int64_t col,
    const uint8_t *bytes, uint8_t *codes) {
    int64_t exist = smaller(STRIP_ROWS, c->rows - row);
    int64_t limit = smaller(blocks_of(exist) * MX8_BLOCK, c->row_limit - row);
    for (int64_t r = 0; r < exist; r += MX8_BLOCK) {
        if (bytes[r / MX8_BLOCK * CELL_COLS + col] != 255) continue;
        memset(codes + r, 0, MX8_BLOCK);
        memset(codes + r, 0x7F, (size_t)smaller(MX8_BLOCK, exist - r));
    }
    uint8_t *to = c->col_codes + row * j->col_code_stride[1] + col * j->col_code_stride[2];
    scatter(to, j->col_code_stride[1], codes, limit, c->stream);
}

MX8_INLINE int64_t col_encode(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype, struct f8_format f,
    int count, const uint8_t *bytes) {
    vi clipped = vi_set(0);
    for (int64_t row = 0; row < c->rows; row += STRIP_ROWS, bytes += STRIP_ROWS / MX8_BLOCK * CELL_COLS) {
        int64_t end = smaller(row + STRIP_ROWS, c->rows);
        for (int64_t col = 0; col < c->cols; col += STRIP_COLS) {
            struct strip s;
            int done = dtype == MX8_BF16 && !count;
            for (int64_t r = row; r < end && done; r += 4 * MX8_VF)
                done = strip_halves(c, r, col, bytes + (r - row) / MX8_BLOCK * CELL_COLS + col, f, &s);
            for (int64_t r = row; r < end && !done; r += MX8_BLOCK)
                strip_block(
                    c, dtype, r, col, bytes + (r - row) / MX8_BLOCK * CELL_COLS + col, f, count ? &clipped : NULL, &s);
            for (int64_t i = 0; i < smaller(STRIP_COLS, c->cols - col); i++)
                store_col(j, c, row, col + i, bytes, s.code[i]);
        }
    }
    return sum_lanes(clipped);
}

MX8_INLINE int64_t quantize_cols(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype, struct f8_format f,
    int count) {
    struct scales s;
    int64_t lines = blocks_of(c->rows);
    col_amax(c, dtype, s.amax);
    merge_amax(s.amax, lines, c->cols, CELL_COLS, j->group / MX8_BLOCK, j->col_tile);
    scale_bytes(&s, lines * CELL_COLS, j->rule, f);
    for (int64_t b = 0; b < lines; b++)
        scatter(c->col_scales + b * j->col_scale_stride[1], j->col_scale_stride[2], s.byte + b * CELL_COLS, c->cols, 0);
    return col_encode(j, c, dtype, f, count, s.byte);
}
