/* Rows whose scales are not tied to other rows': a run of eight blocks at a time, the scales of the next run found
 * before the codes of this one are made, so that the processor has something to do while it waits for either. */
enum { RUN_BLOCKS = 8, RUN = RUN_BLOCKS * MX8_BLOCK, AHEAD = 4096 /* bytes read ahead */ };
enum { MEND_BLOCKS = 4 /* whose codes are looked at before they are stored */ };

struct run {
    uint16_t halves[RUN];
    uint16_t offset[MX8_BLOCK]; /* first largest magnitudes; room for a vector */
    uint8_t byte[MX8_BLOCK];
    const uint16_t *from; /* halves, or the source where it has them */
    int64_t row, col, blocks;
    int hard;
};

/* Reads `blocks` blocks and finds the upper halves of their largest magnitudes. With col_amax the cell's columns are
 * wanted too: halves of floats go to its scratch. */
MX8_INLINE vh read_run(const struct cell *c, int32_t dtype, int64_t blocks, uint16_t *col_amax, struct run *r) {
    int64_t at = r->row * c->ld + r->col, size = dtype == MX8_BF16 ? 2 : 4;
    vh most[MX8_VF];
    uint16_t *to = dtype == MX8_BF16 ? NULL : col_amax ? c->scratch + r->row * c->spread + r->col : r->halves;
    r->from = to ? to : (const uint16_t *)c->src + at;
#pragma GCC unroll 16
    for (int i = 0; i < MX8_VF; i++) {
        vh value[VB_HALVES];
        most[i] = vh_set(0);
        if (i >= blocks) continue;
        cut_halves(c->src, at + i * MX8_BLOCK, dtype, value);
        for (int b = 0; b < MX8_BLOCK * size && !col_amax; b += 64)
            __builtin_prefetch((const char *)c->src + (at + i * MX8_BLOCK) * size + AHEAD + b);
#pragma GCC unroll 2
        for (int v = 0; v < VB_HALVES; v++) {
            int64_t lane = i * MX8_BLOCK + v * 2 * MX8_VF;
            vh magnitude = vh_and(value[v], vh_set(0x7FFF));
            if (to) vh_store(to + lane, value[v]);
            if (col_amax) vh_store(col_amax + r->col + lane, vh_max(magnitude, vh_load(col_amax + r->col + lane)));
            most[i] = v ? vh_max(most[i], magnitude) : magnitude;
        }
    }
    return vh_max_each(most);
}

/* Reads a run and finds its scales. Blocks past the last one have none. */
MX8_INLINE void prepare_run(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype, struct f8_format f,
    uint16_t *col_amax, struct run *r) {
    int64_t at = r->row * c->ld + r->col;
    int settle = dtype != MX8_BF16 && j->rule == MX8_SCALE_RCEIL;
    r->blocks = smaller(RUN_BLOCKS, blocks_of(c->cols - r->col));
    vh amax = r->blocks == RUN_BLOCKS ? read_run(c, dtype, RUN_BLOCKS, col_amax, r)
                                      : read_run(c, dtype, r->blocks, col_amax, r);
    if (settle || j->group > MX8_BLOCK) {
        vh_store(r->offset, amax);
        for (int64_t b = 0; b < r->blocks && settle; b++)
            settle_amax(r->offset + b, (const float *)c->src + at + b * MX8_BLOCK, c->ld, 1, MX8_BLOCK, f);
        merge_amax(r->offset, 1, r->blocks, RUN_BLOCKS, 1, j->group / MX8_BLOCK);
        amax = vh_load(r->offset);
    }
    vh offset, hard = vh_set(0), bytes[2];
    bytes[0] = bytes[1] = compute_scales(amax, j->rule, f, &offset, &hard);
    vh_store(r->offset, offset);
    vb_store_lanes(r->byte, vb_pack(bytes));
    r->hard = !vh_is_zero(hard);
}

/* Every block of a run once more, and wherever its codes belong. */
static __attribute__((noinline)) void encode_run_again(const struct mx8_quant_job *j, const struct cell *c,
    struct f8_format f, int exact, int64_t *clipped, const struct run *r) {
    int64_t step = j->row_code_stride[2];
    for (int64_t b = 0; b < r->blocks; b++) {
        vb least = vb_set(255);
        uint8_t ordered[MX8_BLOCK];
        struct halves h = load_halves(r->from + b * MX8_BLOCK, f);
        vh same[2] = {vh_set(r->offset[b]), vh_set(r->offset[b])};
        vb codes = encode_halves(&h, same, f, &least);
        int64_t col = r->col + b * MX8_BLOCK;
        if (exact || r->hard || is_missed(&h, least, f))
            codes = encode_block(c->src, r->row * c->ld + col, c->dtype, r->byte[b], f, clipped);
        vb_store_lanes(ordered, codes);
        scatter(c->row_codes + r->row * j->row_code_stride[1] + col * step, step, ordered,
            smaller(MX8_BLOCK, c->cols - col));
    }
}

/* Those of a few blocks' codes that are not as they should be, once more. */
static __attribute__((noinline)) void mend_codes(
    const struct cell *c, struct f8_format f, const struct run *r, int first, int n, vb *codes) {
    for (int i = 0; i < n; i++) {
        vb least = vb_set(255);
        struct halves h = load_halves(r->from + (first + i) * MX8_BLOCK, f);
        vh same[2] = {vh_set(r->offset[first + i]), vh_set(r->offset[first + i])};
        encode_halves(&h, same, f, &least);
        if (!is_missed(&h, least, f)) continue;
        int64_t at = r->row * c->ld + r->col + (first + i) * MX8_BLOCK;
        codes[i] = encode_block(c->src, at, c->dtype, r->byte[first + i], f, NULL);
    }
}

/* The codes of a whole run. They are right before they leave: a line that went past the caches would have to come back
 * from memory, and one run in forty of normally distributed values has a code to mend. */
MX8_INLINE void encode_whole_run(const struct cell *c, struct f8_format f, const struct run *r, uint8_t *to) {
    const uint16_t *from = r->from;
    const int stream = c->stream_rows;
    for (int first = 0; first < RUN_BLOCKS; first += MEND_BLOCKS) {
        vb codes[MEND_BLOCKS], least = vb_set(255);
#pragma GCC unroll 4
        for (int i = 0; i < MEND_BLOCKS; i++) {
            struct halves h = load_halves(from + (first + i) * MX8_BLOCK, f);
            vh offset = vh_set(r->offset[first + i]), same[2] = {offset, offset};
            codes[i] = encode_halves(&h, same, f, &least);
        }
        if (may_miss(least, f)) mend_codes(c, f, r, first, MEND_BLOCKS, codes);
#pragma GCC unroll 4
        for (int i = 0; i < MEND_BLOCKS; i++) {
            if (stream)
                vb_stream_lanes(to + (first + i) * MX8_BLOCK, codes[i]);
            else
                vb_store_lanes(to + (first + i) * MX8_BLOCK, codes[i]);
        }
    }
}

MX8_INLINE void encode_run(const struct mx8_quant_job *j, const struct cell *c, struct f8_format f, int exact,
    int64_t *clipped, const struct run *r) {
    int plain = r->blocks == RUN_BLOCKS && j->row_code_stride[2] == 1 && c->cols - r->col >= RUN;
    scatter(c->row_scales + r->row * j->row_scale_stride[1] + r->col / MX8_BLOCK * j->row_scale_stride[2],
        j->row_scale_stride[2], r->byte, r->blocks);
    if (!plain || exact || r->hard)
        encode_run_again(j, c, f, exact, clipped, r);
    else
        encode_whole_run(c, f, r, c->row_codes + r->row * j->row_code_stride[1] + r->col);
}

/* The place of the run that follows; 0 if that is in row `end`. */
MX8_INLINE int next_run(const struct cell *c, const struct run *r, int64_t end, struct run *next) {
    next->row = r->row;
    next->col = r->col + RUN;
    if (next->col < c->cols) return 1;
    next->col = 0;
    next->row++;
    return next->row < end;
}

/* Rows from `row` to `end` of a cell. */
MX8_INLINE void encode_runs(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype, struct f8_format f,
    int64_t row, int64_t end, uint16_t *col_amax, int64_t *clipped) {
    struct run run[2];
    int i = 0, more = row < end;
    run[0].row = row;
    run[0].col = 0;
    if (more) prepare_run(j, c, dtype, f, col_amax, &run[0]);
    while (more) {
        more = next_run(c, &run[i], end, &run[!i]);
        if (more) prepare_run(j, c, dtype, f, col_amax, &run[!i]);
        encode_run(j, c, f, clipped != NULL, clipped, &run[i]);
        i = !i;
    }
}
