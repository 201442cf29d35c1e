/* Attention forward: for each (sequence, head, tile of queries) the keys pass by in tiles, with the running maximum m
 * and denominator l of the online softmax (Milakov and Gimelshein 2018; Dao et al. 2022):
 *     m' = max(m, s)    l' = l e^(m-m') + sum e^(s-m')    o' = o e^(m-m') + e^(s-m') v
 * and in the end o / l and lse = m + ln l. 2 d FMAs a visible pair; k and v are read once a tile of OUTER queries.
 * Tasks differ in length (causal), so they are handed out dynamically: each writes rows of its own, and the results do
 * not depend on who runs it. One core of an EPYC with AVX2, bf16, S 2048, d 128: 73 GFLOP/s forward, 56 backward
 * (2026-12-01; 2 and 5 products of the visible pairs). */
#include "kernels/cpu/model_attention_tiles.inl"

static size_t attention_workspace(const struct mx8_attention_job *j, int32_t backward, int32_t threads) {
    size_t row_terms = backward ? ((size_t)(j->T * j->H) * sizeof(float) + 63) / 64 * 64 : 0;
    return row_terms + (size_t)threads * attention_thread_floats(j->d) * sizeof(float);
}

/* One step of the online softmax down the columns [lo, hi) of the scores, which become probabilities; w->row holds the
 * maximum, the denominator, and the factor that earlier sums are to be multiplied by. */
MX8_INLINE void softmax_step(struct attention_space *w, int64_t keys, struct attention_columns cols) {
    for (int64_t c = cols.lo; c < cols.hi; c += MX8_VF) {
        float *score = w->x[0] + c;
        vf old = vf_load(w->row[0] + c), max = old, sum = vf_set(0.0f);
        for (int64_t k = 0; k < keys; k++) max = vf_max(max, vf_load(score + k * OUTER));
        for (int64_t k = 0; k < keys; k++) {
            vf p = exp_or_zero(vf_sub(vf_load(score + k * OUTER), max));
            vf_store(score + k * OUTER, p);
            sum = vf_add(sum, p);
        }
        vf rescale = exp_or_zero(vf_sub(old, max));
        vf_store(w->row[0] + c, max);
        vf_store(w->row[1] + c, vf_fma(vf_load(w->row[1] + c), rescale, sum));
        vf_store(w->row[2] + c, rescale);
    }
}

MX8_INLINE void rescale_sums(struct attention_space *w, struct attention_columns cols) {
    for (int64_t r = cols.lo; r < cols.hi; r++) {
        if (w->row[2][r] == 1.0f) continue;
        float *sum = w->sum[0] + r * w->ld;
        for (int64_t i = 0; i < w->width; i += MX8_VF)
            vf_store(sum + i, vf_mul(vf_load(sum + i), vf_set(w->row[2][r])));
    }
}

MX8_INLINE void attend(const struct mx8_attention_job *j, struct attention_space *w, int64_t sequence, int64_t h,
    int64_t query, int32_t dtype) {
    int64_t start = sequence * j->S, kv = h / (j->H / j->KV), d = j->d;
    const int32_t *doc = j->doc ? j->doc + start : NULL;
    const void *k_head = head_of(j->k, start, j->k_ls, kv, d, dtype);
    const void *v_head = head_of(j->v, start, j->v_ls, kv, d, dtype);
    const void *q = head_of(j->q, start + query, j->q_ls, h, d, dtype);
    struct attention_range queries = range_at(doc, query, attention_least(OUTER, j->S - query));
    load_outer(w->outer[0], q, j->q_ls, queries.n, d, j->scale, dtype);
    number_chunks(w, j->chunk, query);
    memset(w->sum[0], 0, (size_t)(OUTER * w->ld) * sizeof(float));
    for (int i = 0; i < OUTER; i++) {
        w->row[0][i] = -1e30f; /* finite, so that a row that has seen nothing yet rescales by e^0 */
        w->row[1][i] = 0.0f;
    }
    for (int64_t key = first_key(j, query); key < query + queries.n; key += INNER) {
        struct attention_range keys = range_at(doc, key, attention_least(INNER, j->S - key));
        struct attention_columns cols = visible_columns(j, &queries, &keys, 1);
        if (cols.lo >= cols.hi) continue;
        load_inner(w->inner[0], w->ld, row_of(k_head, key, j->k_ls, dtype), j->k_ls, keys.n, d, 1.0f, dtype);
        load_inner(w->inner[1], w->ld, row_of(v_head, key, j->v_ls, dtype), j->v_ls, keys.n, d, 1.0f, dtype);
        tile_product(w->x[0] + cols.lo, OUTER, w->inner[0], w->ld, 1, w->outer[0] + cols.lo, OUTER, keys.n,
            cols.hi - cols.lo, d, 0);
        if (cols.partly) hide_scores(j, w, doc, &queries, &keys, cols, 1);
        softmax_step(w, keys.n, cols);
        rescale_sums(w, cols);
        tile_product(w->sum[0] + cols.lo * w->ld, w->ld, w->x[0] + cols.lo, 1, OUTER, w->inner[1], w->ld,
            cols.hi - cols.lo, w->width, keys.n, 1);
    }
    for (int64_t r = 0; r < queries.n; r++) {
        j->lse[(start + query + r) * j->H + h] = w->row[0][r] + logf(w->row[1][r]);
        w->row[2][r] = 1.0f / w->row[1][r];
    }
    void *o = row_at(row_at(j->o, start + query, j->o_ls, dtype), h, d, dtype);
    store_sum(o, j->o_ls, w->sum[0], w->ld, queries.n, d, w->row[2], 0.0f, dtype);
}

static enum mx8_status attention(const struct mx8_exec *x, const struct mx8_attention_job *j) {
    if (j->T == 0) return MX8_OK;
    int64_t tiles = count_pieces(j->S, OUTER), tasks = j->T / j->S * j->H * tiles;
    size_t thread_floats = attention_thread_floats(j->d);
    int team = team_for(x, j->T * j->H * j->d);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        struct attention_space w =
            attention_space_at((float *)j->workspace + (size_t)omp_get_thread_num() * thread_floats, j->d);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < tasks; i++) {
            int64_t head = i / tiles, query = (tiles - 1 - i % tiles) * OUTER; /* the longest first */
            BY_DTYPE(j->dtype, attend(j, &w, head / j->H, head % j->H, query, dtype));
        }
    }
    return MX8_OK;
}

#include "kernels/cpu/model_attention_backward.inl"
