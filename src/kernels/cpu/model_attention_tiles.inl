/* Tiles of attention, shared by forward and backward.
 *
 * Everything is built from one picture. An outer tile of up to OUTER rows (queries, or keys) is packed transposed,
 * d x OUTER; inner tiles of up to INNER rows pass by it, row-major, inner x d. Two products do all the work:
 *     x   (inner x OUTER)  = inner tile (inner x d) * outer tile (d x OUTER)        scores and their gradients
 *     sum (OUTER x d)     += x^T (OUTER x inner) * inner tile (inner x d)           what the outer rows receive
 * In both the left operand is broadcast and the right one is read as vectors, so a tile is never transposed in the
 * inner loop, and the softmax runs down columns: no horizontal sums. Forward: outer queries, inner keys and values.
 * Backward: outer keys, inner queries and output gradients for dk and dv; then outer queries, inner keys and values for
 * dq. Memory is O(tile) a thread; tiles that the mask hides whole are skipped. */
#include "kernels/cpu/model_common.inl"

/* Rows of the register block: two vectors wide, so 12, 24 and 6 accumulators. */
#if defined(MX8_ISA_AVX512)
enum { BLOCK_ROWS = 12 };
#elif defined(MX8_ISA_AVX2)
enum { BLOCK_ROWS = 6 };
#else
enum { BLOCK_ROWS = 3 };
#endif
enum { OUTER = 96, INNER = 48 }; /* multiples of BLOCK_ROWS and of the vector; outer ranges are trimmed to INNER */

/* c (rows x vectors) = or += a b; element (r,k) of a at a[r*a_rs + k*a_ks]. */
MX8_INLINE void block_product(float *c, int64_t c_ls, const float *a, int64_t a_rs, int64_t a_ks, const float *b,
    int64_t b_ls, int64_t depth, int vectors, int accumulate) {
    vf acc[BLOCK_ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < BLOCK_ROWS; r++) {
        for (int v = 0; v < vectors; v++) acc[r][v] = accumulate ? vf_load(c + r * c_ls + v * MX8_VF) : vf_set(0.0f);
    }
    for (int64_t k = 0; k < depth; k++) {
        vf right[2];
        for (int v = 0; v < vectors; v++) right[v] = vf_load(b + k * b_ls + v * MX8_VF);
#pragma GCC unroll 12
        for (int r = 0; r < BLOCK_ROWS; r++) {
            vf left = vf_set(a[r * a_rs + k * a_ks]);
            for (int v = 0; v < vectors; v++) acc[r][v] = vf_fma(left, right[v], acc[r][v]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < BLOCK_ROWS; r++) {
        for (int v = 0; v < vectors; v++) vf_store(c + r * c_ls + v * MX8_VF, acc[r][v]);
    }
}

/* The same for a whole tile. Rows round up to BLOCK_ROWS and columns to the vector: buffers have the room, and what
 * lands there is never read. The depth is exact. One copy serves every caller: inlined,
 * it would be most of the code. */
static __attribute__((noinline)) void tile_product(float *c, int64_t c_ls, const float *a, int64_t a_rs, int64_t a_ks,
    const float *b, int64_t b_ls, int64_t rows, int64_t cols, int64_t depth, int accumulate) {
    for (int64_t n = 0; n < cols; n += 2 * MX8_VF) {
        int one = cols - n <= MX8_VF;
        for (int64_t m = 0; m < rows; m += BLOCK_ROWS) {
            float *to = c + m * c_ls + n;
            const float *from = a + m * a_rs;
            if (one)
                block_product(to, c_ls, from, a_rs, a_ks, b + n, b_ls, depth, 1, accumulate);
            else
                block_product(to, c_ls, from, a_rs, a_ks, b + n, b_ls, depth, 2, accumulate);
        }
    }
}

/* What one thread works in. */
struct attention_space {
    float *outer[2]; /* width x OUTER: outer rows, transposed */
    float *inner[2]; /* INNER x ld */
    float *x[2];     /* INNER x OUTER: scores, their gradients */
    float *sum[2];   /* OUTER x ld */
    float *row[3];   /* OUTER: maximum, denominator and rescaling; or log-sum-exp and row term */
    int32_t *chunk;  /* OUTER: chunk number of each outer position */
    int64_t width;   /* d rounded up to the vector */
    int64_t ld;      /* width + 16: an odd number of cache lines for the usual d, so that columns use all sets */
};

MX8_INLINE int64_t attention_width(int64_t d) { return (d + MX8_VF - 1) / MX8_VF * MX8_VF; }

/* For the widest vector, so that every table asks for the same: operators say how much before a table is chosen. */
MX8_INLINE size_t attention_thread_floats(int64_t d) {
    int64_t width = (d + 15) / 16 * 16, ld = width + 16;
    return (size_t)(2 * width * OUTER + 2 * INNER * ld + 2 * INNER * OUTER + 2 * OUTER * ld + 4 * OUTER);
}

static struct attention_space attention_space_at(float *p, int64_t d) {
    struct attention_space w = {.width = attention_width(d)};
    w.ld = (w.width + 15) / 16 * 16 + 16;
    for (int i = 0; i < 2; i++) {
        w.outer[i] = p;
        w.inner[i] = w.outer[i] + w.width * OUTER;
        w.x[i] = w.inner[i] + INNER * w.ld;
        w.sum[i] = w.x[i] + INNER * OUTER;
        p = w.sum[i] + OUTER * w.ld;
    }
    for (int i = 0; i < 3; i++, p += OUTER) w.row[i] = p;
    w.chunk = (int32_t *)(void *)p;
    return w;
}

/* Head h of token t, in rows of stride ls. */
MX8_INLINE const void *head_of(const void *rows, int64_t t, int64_t ls, int64_t h, int64_t d, int32_t dtype) {
    return row_of(row_of(rows, t, ls, dtype), h, d, dtype);
}

/* Rows of one head as f32 times factor, row-major; columns up to the vector are zero. */
MX8_INLINE void load_inner(
    float *to, int64_t ld, const void *rows, int64_t ls, int64_t n, int64_t d, float factor, int32_t dtype) {
    for (int64_t r = 0; r < n; r++) {
        const void *from = row_of(rows, r, ls, dtype);
        for (int64_t i = 0; i < d; i += MX8_VF) {
            vf_store(to + r * ld + i, vf_mul(get_vf(from, i, d, dtype), vf_set(factor)));
        }
    }
}

/* The same transposed; columns past n are zero. */
MX8_INLINE void load_outer(float *to, const void *rows, int64_t ls, int64_t n, int64_t d, float factor, int32_t dtype) {
    for (int64_t r = 0; r < OUTER; r += MX8_VF) {
        for (int64_t i = 0; i < d; i += MX8_VF) {
            vf square[MX8_VF];
            for (int64_t k = 0; k < MX8_VF; k++) {
                square[k] = vf_set(0.0f);
                if (r + k < n) square[k] = vf_mul(get_vf(row_of(rows, r + k, ls, dtype), i, d, dtype), vf_set(factor));
            }
            if (r < n) vf_transpose(square);
            for (int64_t k = 0; k < MX8_VF; k++) vf_store(to + (i + k) * OUTER + r, square[k]);
        }
    }
}

MX8_INLINE void store_sum(void *rows, int64_t ls, const float *sum, int64_t ld, int64_t n, int64_t d,
    const float *factors, float factor, int32_t dtype) {
    for (int64_t r = 0; r < n; r++) {
        void *to = row_at(rows, r, ls, dtype);
        vf by = vf_set(factors ? factors[r] : factor);
        for (int64_t i = 0; i < d; i += MX8_VF) put_vf(to, i, d, dtype, vf_mul(vf_load(sum + r * ld + i), by));
    }
}

/* ---- masks ---- */

/* Positions [first, first + n) of a sequence, and the range of their document numbers. */
struct attention_range {
    int64_t first, n;
    int32_t doc_min, doc_max;
};

/* doc: of the sequence, or NULL. */
static struct attention_range range_at(const int32_t *doc, int64_t first, int64_t n) {
    struct attention_range r = {.first = first, .n = n};
    if (!doc) return r;
    r.doc_min = r.doc_max = doc[first];
    for (int64_t i = first + 1; i < first + n; i++) {
        if (doc[i] < r.doc_min) r.doc_min = doc[i];
        if (doc[i] > r.doc_max) r.doc_max = doc[i];
    }
    return r;
}

/* The range of outer columns that an inner tile can touch at all, lo in steps of INNER, hi too or the tile's end; empty
 * when the pair is hidden. */
struct attention_columns {
    int64_t lo, hi;
    int partly; /* some pair inside is hidden */
};

MX8_INLINE struct attention_columns visible_columns(const struct mx8_attention_job *j,
    const struct attention_range *queries, const struct attention_range *keys, int outer_is_queries) {
    struct attention_columns c = {.hi = outer_is_queries ? queries->n : keys->n};
    int64_t last_query = queries->first + queries->n - 1, last_key = keys->first + keys->n - 1;
    if (keys->first > last_query || keys->doc_min > queries->doc_max || keys->doc_max < queries->doc_min) c.hi = 0;
    if (j->chunk > 0 && last_key / j->chunk < queries->first / j->chunk) c.hi = 0;
    if (outer_is_queries && keys->first > queries->first) c.lo = (keys->first - queries->first) / INNER * INNER;
    if (!outer_is_queries && last_query - keys->first + 1 < c.hi) c.hi = last_query - keys->first + 1;
    c.partly = last_key > queries->first || (j->chunk > 0 && keys->first / j->chunk != last_query / j->chunk) ||
               keys->doc_min != keys->doc_max || queries->doc_min != queries->doc_max;
    return c;
}

/* Chunk numbers of an outer tile's positions. */
MX8_INLINE void number_chunks(struct attention_space *w, int64_t chunk, int64_t first) {
    for (int64_t c = 0; chunk > 0 && c < OUTER; c++) w->chunk[c] = (int32_t)((first + c) / chunk);
}

/* Hidden scores become -Inf. */
MX8_INLINE void hide_scores(const struct mx8_attention_job *j, const struct attention_space *w, const int32_t *doc,
    const struct attention_range *outer, const struct attention_range *inner, struct attention_columns cols,
    int outer_is_queries) {
    static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int64_t c = cols.lo; c < cols.hi; c += MX8_VF) {
        vi at = vi_add(vi_load(lane), vi_set((int32_t)(outer->first + c)));
        vi outer_doc = doc ? vi_load_part(doc + outer->first + c, vf_lanes(c, outer->n)) : vi_set(0);
        for (int64_t k = 0; k < inner->n; k++) {
            int32_t p = (int32_t)(inner->first + k);
            float *score = w->x[0] + k * OUTER + c;
            vm seen = outer_is_queries ? vi_gt(at, vi_set(p - 1)) : vi_gt(vi_set(p + 1), at);
            if (j->chunk > 0) seen = vm_and(seen, vi_eq(vi_load(w->chunk + c), vi_set((int32_t)(p / j->chunk))));
            if (doc) seen = vm_and(seen, vi_eq(outer_doc, vi_set(doc[p])));
            vf_store(score, vf_select(seen, vf_load(score), vf_set(-INFINITY)));
        }
    }
}

/* e^x where 0 will do below the normal numbers: hidden scores are many, and subnormal arithmetic is slow. */
MX8_INLINE vf exp_or_zero(vf x) {
    vf least = vf_set(-87.0f);
    return vf_select(vf_lt(x, least), vf_set(0.0f), vf_exp_normal(vf_max(least, x)));
}

/* First inner key that a query tile can see, in steps of INNER: chunks hide what lies before. */
MX8_INLINE int64_t first_key(const struct mx8_attention_job *j, int64_t query) {
    int64_t start = j->chunk > 0 ? query / j->chunk * j->chunk : 0;
    return start / INNER * INNER;
}

MX8_INLINE int64_t attention_least(int64_t a, int64_t b) { return a < b ? a : b; }
