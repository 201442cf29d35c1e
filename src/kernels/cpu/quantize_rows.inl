/* Rows whose scales are not tied to other rows': a run of eight blocks at a time, the scales of the next run found
 * before the codes of this one are made, so that the processor has something to do while it waits for either. Runs that
 * are short, have a block that is hard, or leave to places a stride apart are done by encode_odd_run. */
enum { RUN_BLOCKS = 8, RUN = RUN_BLOCKS * MX8_BLOCK, AHEAD = 4096 /* bytes read ahead */ };
enum { MEND_BLOCKS = 4 /* whose codes are looked at before they are stored */ };

/* A prefetch that stays where it is written: compilers gather them, and the loads behind a burst of them wait. */
MX8_INLINE void prefetch_here(const void *p) {
    __builtin_prefetch(p);
    __asm__ volatile("" ::: "memory");
}

/* Reads up to eight blocks from element `at` on and finds the upper halves of their largest magnitudes. Halves of
 * floats go to `to`. With col_amax the columns' are wanted too. */
MX8_INLINE vh read_blocks(
    const struct cell *c, int32_t dtype, int64_t at, int64_t blocks, uint16_t *to, uint16_t *col_amax) {
    vh most[MX8_VF];
#pragma GCC unroll 16
    for (int i = 0; i < MX8_VF; i++) {
        vh value[VB_HALVES];
        most[i] = vh_set(0);
        if (i >= blocks) continue;
        cut_halves(c->src, at + i * MX8_BLOCK, dtype, value);
#pragma GCC unroll 2
        for (int v = 0; v < VB_HALVES; v++) {
            int64_t lane = i * MX8_BLOCK + v * 2 * MX8_VF;
            vh magnitude = vh_and(value[v], vh_set(0x7FFF));
            if (dtype != MX8_BF16) vh_store(to + lane, value[v]);
            if (col_amax) vh_store(col_amax + lane, vh_max(magnitude, vh_load(col_amax + lane)));
            most[i] = v ? vh_max(most[i], magnitude) : magnitude;
        }
    }
    return vh_max_each(most);
}

/* Where a run's halves are, or go. */
MX8_INLINE uint16_t *halves_of_run(const struct cell *c, int64_t row, int64_t col, int in_scratch, uint16_t *local) {
    return in_scratch ? c->scratch + row * c->spread + col : local;
}

/* Whether reading runs for both orientations prefetches what it will read, as it does for one. If not, the lines were
 * prefetched while the cell before was encoded. */
MX8_INLINE int reads_ahead(const struct cell *c) {
    return c->dtype == MX8_BF16 && c->packed;
}

/* One run, whatever it is like: up to eight blocks from column `col` on. */
static __attribute__((noinline)) void encode_odd_run(const struct mx8_quant_job *j, const struct cell *c,
    struct f8_format f, int64_t row, int64_t col, uint16_t *col_amax, int64_t *clipped) {
    const int64_t *stride = j->row_code_stride, *scale_stride = j->row_scale_stride;
    const int64_t at = row * c->ld + col, blocks = smaller(RUN_BLOCKS, blocks_of(c->cols - col));
    const int is_bf16 = c->dtype == MX8_BF16;
    uint16_t local[RUN], offset[MX8_BLOCK] = {0}, *to = halves_of_run(c, row, col, col_amax != NULL, local);
    uint8_t byte[MX8_BLOCK], ordered[MX8_BLOCK];
    vh_store(offset, is_bf16 ? read_blocks(c, MX8_BF16, at, blocks, NULL, col_amax)
                             : read_blocks(c, MX8_F32, at, blocks, to, col_amax));
    for (int64_t b = 0; b < blocks && !is_bf16 && j->rule == MX8_SCALE_RCEIL; b++)
        settle_amax(offset + b, (const float *)c->src + at + b * MX8_BLOCK, c->ld, 1, MX8_BLOCK, f);
    merge_amax(offset, 1, blocks, RUN_BLOCKS, 1, j->group / MX8_BLOCK);
    int hard = find_scales(offset, byte, MX8_BLOCK, j->rule, f);
    scatter(c->row_scales + row * scale_stride[1] + col / MX8_BLOCK * scale_stride[2], scale_stride[2], byte, blocks);
    const uint16_t *from = is_bf16 ? (const uint16_t *)c->src + at : to;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t in_run = b * MX8_BLOCK, begin = col + in_run;
        vb codes =
            encode_block_again(c, at + in_run, from + in_run, offset[b], byte[b], f, clipped != NULL || hard, clipped);
        vb_store_lanes(ordered, codes);
        scatter(c->row_codes + row * stride[1] + begin * stride[2], stride[2], ordered,
            smaller(MX8_BLOCK, c->cols - begin));
    }
}

/* Those of a few blocks' codes that are not as they should be, once more; the blocks begin at element `at`. */
static __attribute__((noinline)) void mend_codes(const struct cell *c, struct f8_format f, int64_t at,
    const uint16_t *from, const uint16_t *offset, const uint8_t *byte, vb *codes) {
    for (int i = 0; i < MEND_BLOCKS; i++)
        codes[i] = encode_block_again(c, at + i * MX8_BLOCK, from + i * MX8_BLOCK, offset[i], byte[i], f, 0, NULL);
}

/* A run among the whole ones of some rows. */
struct run_place {
    int64_t row, col, at; /* at: the source's element */
    uint8_t *codes, *scales;
};

/* The codes of a run from its halves, while lines from `ahead` on are prefetched, unless it is NULL. They are right
 * before they leave: a line that went past the caches would have to come back from memory, and one run in forty of
 * normally distributed values has a code to mend. */
MX8_INLINE void encode_whole_run(const struct cell *c, int32_t dtype, struct f8_format f, const struct half_masks *k,
    int stream, const struct run_place *p, const uint16_t *from, const uint16_t *offset, const char *ahead) {
    const int64_t size = dtype == MX8_BF16 ? 64 : 128;
#pragma GCC unroll 2
    for (int first = 0; first < RUN_BLOCKS; first += MEND_BLOCKS) {
        vb codes[MEND_BLOCKS], least = vb_set(255);
#pragma GCC unroll 4
        for (int i = 0; i < MEND_BLOCKS; i++) {
            struct halves h = load_halves(from + (first + i) * MX8_BLOCK, k);
            for (int64_t b = 0; b < size && ahead; b += 64) prefetch_here(ahead + (first + i) * size + b);
            vh taken = vh_set(offset[first + i]), same[2] = {taken, taken};
            codes[i] = encode_halves(&h, same, f, k, &least);
        }
        if (__builtin_expect(may_miss(least, f), 0)) {
            vb mended[MEND_BLOCKS]; /* of its own, so that `codes` stays in registers */
            mend_codes(
                c, f, p->at + first * MX8_BLOCK, from + first * MX8_BLOCK, offset + first, p->scales + first, mended);
            for (int i = 0; i < MEND_BLOCKS; i++) codes[i] = mended[i];
        }
#pragma GCC unroll 4
        for (int i = 0; i < MEND_BLOCKS; i++) {
            if (stream)
                vb_stream_lanes(p->codes + (first + i) * MX8_BLOCK, codes[i]);
            else
                vb_store_lanes(p->codes + (first + i) * MX8_BLOCK, codes[i]);
        }
    }
}

MX8_INLINE struct run_place first_run(const struct mx8_quant_job *j, const struct cell *c, int64_t row) {
    return (struct run_place){
        row, 0, row * c->ld, c->row_codes + row * j->row_code_stride[1], c->row_scales + row * j->row_scale_stride[1]};
}

/* Of rows that have `cols` columns of whole runs. */
MX8_INLINE void step_run(const struct mx8_quant_job *j, const struct cell *c, int64_t cols, struct run_place *p) {
    p->col += RUN;
    p->at += RUN;
    p->codes += RUN;
    p->scales += RUN_BLOCKS;
    if (p->col == cols) *p = first_run(j, c, p->row + 1);
}

/* Finds the scales of a run; whether encode_odd_run has to take it: that of the float settle_amax looks for, too, is so
 * small that its block is hard. */
MX8_INLINE int find_run_scales(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype, struct f8_format f,
    struct scale_rule rule, const struct run_place *p, uint16_t *halves, uint16_t *offset, uint16_t *col_amax) {
    vh hard = vh_set(0), made, bytes[2];
    vh amax = read_blocks(c, dtype, p->at, RUN_BLOCKS, halves, col_amax ? col_amax + p->col : NULL);
    if (j->group > MX8_BLOCK) {
        vh_store(offset, amax);
        merge_amax(offset, 1, RUN_BLOCKS, RUN_BLOCKS, 1, j->group / MX8_BLOCK);
        amax = vh_load(offset);
    }
    bytes[0] = bytes[1] = compute_scales(amax, rule, f, &made, &hard);
    vh_store(offset, made);
    vb_store_first8(p->scales, vb_pack(bytes));
    return !vh_is_zero(hard);
}

/* The whole runs of rows from `row` to `end`: those of the first `cols` columns, at least one. */
MX8_INLINE void encode_whole_runs(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype,
    struct f8_format f, int64_t row, int64_t end, int64_t cols, uint16_t *col_amax) {
    const struct half_masks k = keep_masks(make_masks(f));
    const struct scale_rule rule = describe_rule(j->rule, f);
    const int64_t n = (end - row) * (cols / RUN);
    const int stream = c->stream_rows;
    uint16_t local[2][RUN], offset[2][MX8_BLOCK];
    struct run_place now = first_run(j, c, row), next = now;
    for (int64_t i = 0, odd = 0, odd_next; i <= n; i++, odd = odd_next) {
        const int which = i & 1;
        odd_next = 0;
        if (i < n) {
            uint16_t *to =
                dtype == MX8_BF16 ? NULL : halves_of_run(c, next.row, next.col, col_amax != NULL, local[which]);
            odd_next = find_run_scales(j, c, dtype, f, rule, &next, to, offset[which], col_amax);
            step_run(j, c, cols, &next);
        }
        if (i == 0) continue;
        const uint16_t *from = dtype == MX8_BF16 ? (const uint16_t *)c->src + now.at
                                                 : halves_of_run(c, now.row, now.col, col_amax != NULL, local[!which]);
        const char *source = (const char *)c->src + now.at * (dtype == MX8_BF16 ? 2 : 4);
        if (__builtin_expect(odd != 0, 0))
            encode_odd_run(j, c, f, now.row, now.col, col_amax ? col_amax + now.col : NULL, NULL);
        else
            encode_whole_run(c, dtype, f, &k, stream, &now, from, offset[!which],
                col_amax && !reads_ahead(c) ? NULL : source + AHEAD);
        step_run(j, c, cols, &now);
    }
}

/* Rows from `row` to `end` of a cell. Whoever counts clipped values has all of them encoded in f32. */
MX8_INLINE void encode_runs(const struct mx8_quant_job *j, const struct cell *c, int32_t dtype, struct f8_format f,
    int64_t row, int64_t end, uint16_t *col_amax, int64_t *clipped) {
    int plain = !clipped && j->row_code_stride[2] == 1 && j->row_scale_stride[2] == 1;
    int64_t whole = plain ? c->cols / RUN * RUN : 0;
    if (whole > 0 && row < end) encode_whole_runs(j, c, dtype, f, row, end, whole, col_amax);
    for (int64_t r = row; r < end; r++)
        for (int64_t col = whole; col < c->cols; col += RUN)
            encode_odd_run(j, c, f, r, col, col_amax ? col_amax + col : NULL, clipped);
}
