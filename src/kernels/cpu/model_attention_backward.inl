/* Attention backward. Probabilities are recomputed from the saved log-sum-exp; with delta = sum(dout * o) of a row,
 *     p = e^(s - lse), dp = dout v^T, ds = p (dp - delta);   dv = p^T dout, dk = scale ds^T q, dq = scale ds k.
 * Two sweeps, because neither needs more than its tile: keys outside for dk and dv, over every head of the group in
 * order; queries outside for dq. That recomputes s and dp once more (7 products instead of 5), and in exchange every
 * tile of every head is a task of its own, with nothing shared, nothing atomic, and one order of every sum. */

/* delta of every (token, head), into the front of the workspace. */
static void row_terms(const struct mx8_exec *x, const struct mx8_attention_job *j, float *delta) {
    int team = team_for(x, j->T * j->H * j->d);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) {
        for (int64_t h = 0; h < j->H; h++) {
            const void *o = head_of(j->o, t, j->o_ls, h, j->d, j->dtype);
            const void *g = head_of(j->dout, t, j->do_ls, h, j->d, j->dtype);
            BY_DTYPE(j->dtype, delta[t * j->H + h] = dot_rows(o, g, j->d, dtype));
        }
    }
}

/* Scores (x[0]) become probabilities and products dp (x[1]) become ds. lse and delta belong to the outer columns, or,
 * when by_column is 0, to the inner rows, `step` apart. */
MX8_INLINE void score_gradients(struct attention_space *w, int64_t rows, struct attention_columns cols,
    const float *lse, const float *delta, int64_t step, int by_column) {
    for (int64_t k = 0; k < rows; k++) {
        float *x = w->x[0] + k * OUTER, *dx = w->x[1] + k * OUTER;
        vf row_lse = vf_set(by_column ? 0.0f : lse[k * step]), row_delta = vf_set(by_column ? 0.0f : delta[k * step]);
        for (int64_t c = cols.lo; c < cols.hi; c += MX8_VF) {
            if (by_column) {
                row_lse = vf_load(lse + c);
                row_delta = vf_load(delta + c);
            }
            vf p = exp_or_zero(vf_sub(vf_load(x + c), row_lse));
            vf_store(x + c, p);
            vf_store(dx + c, vf_mul(p, vf_sub(vf_load(dx + c), row_delta)));
        }
    }
}

/* x[0] and x[1] for the pair of tiles that the space holds. */
MX8_INLINE void score_products(struct attention_space *w, int64_t rows, struct attention_columns cols, int64_t d) {
    for (int i = 0; i < 2; i++) {
        tile_product(w->x[i] + cols.lo, OUTER, w->inner[i], w->ld, 1, w->outer[i] + cols.lo, OUTER, rows,
            cols.hi - cols.lo, d, 0);
    }
}

/* sum[which] += x[which]^T inner[from]. */
MX8_INLINE void add_products(
    struct attention_space *w, int which, int from, int64_t rows, struct attention_columns cols) {
    tile_product(w->sum[which] + cols.lo * w->ld, w->ld, w->x[which] + cols.lo, 1, OUTER, w->inner[from], w->ld,
        cols.hi - cols.lo, w->width, rows, 1);
}

/* dk and dv of the keys that start at `key`. */
MX8_INLINE void attend_keys(const struct mx8_attention_job *j, struct attention_space *w, const float *delta,
    int64_t sequence, int64_t kv, int64_t key, int32_t dtype) {
    int64_t start = sequence * j->S, d = j->d, group = j->H / j->KV;
    const int32_t *doc = j->doc ? j->doc + start : NULL;
    struct attention_range keys = range_at(doc, key, attention_least(OUTER, j->S - key));
    int64_t end = j->S; /* no query from here on sees a key of the tile */
    if (j->chunk > 0) end = attention_least(end, ((key + keys.n - 1) / j->chunk + 1) * j->chunk);
    load_outer(w->outer[0], head_of(j->k, start + key, j->k_ls, kv, d, dtype), j->k_ls, keys.n, d, 1.0f, dtype);
    load_outer(w->outer[1], head_of(j->v, start + key, j->v_ls, kv, d, dtype), j->v_ls, keys.n, d, 1.0f, dtype);
    number_chunks(w, j->chunk, key);
    for (int i = 0; i < 2; i++) memset(w->sum[i], 0, (size_t)(OUTER * w->ld) * sizeof(float));
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        for (int64_t query = key / INNER * INNER; query < end; query += INNER) {
            int64_t t = start + query;
            struct attention_range queries = range_at(doc, query, attention_least(INNER, j->S - query));
            struct attention_columns cols = visible_columns(j, &queries, &keys, 0);
            if (cols.lo >= cols.hi) continue;
            load_inner(w->inner[0], w->ld, head_of(j->q, t, j->q_ls, h, d, dtype), j->q_ls, queries.n, d, j->scale,
                dtype);
            load_inner(w->inner[1], w->ld, head_of(j->dout, t, j->do_ls, h, d, dtype), j->do_ls, queries.n, d, 1.0f,
                dtype);
            score_products(w, queries.n, cols, d);
            if (cols.partly) hide_scores(j, w, doc, &keys, &queries, cols, 0);
            score_gradients(w, queries.n, cols, j->lse + t * j->H + h, delta + t * j->H + h, j->H, 0);
            add_products(w, 0, 1, queries.n, cols);
            add_products(w, 1, 0, queries.n, cols); /* scale is in the queries */
        }
    }
    void *dv = row_at(row_at(j->dv, start + key, j->dv_ls, dtype), kv, d, dtype);
    void *dk = row_at(row_at(j->dk, start + key, j->dk_ls, dtype), kv, d, dtype);
    store_sum(dv, j->dv_ls, w->sum[0], w->ld, keys.n, d, NULL, 1.0f, dtype);
    store_sum(dk, j->dk_ls, w->sum[1], w->ld, keys.n, d, NULL, 1.0f, dtype);
}

/* dq of the queries that start at `query`. */
MX8_INLINE void attend_queries(const struct mx8_attention_job *j, struct attention_space *w, const float *delta,
    int64_t sequence, int64_t h, int64_t query, int32_t dtype) {
    int64_t start = sequence * j->S, kv = h / (j->H / j->KV), d = j->d, t = start + query;
    const int32_t *doc = j->doc ? j->doc + start : NULL;
    const void *k_head = head_of(j->k, start, j->k_ls, kv, d, dtype);
    const void *v_head = head_of(j->v, start, j->v_ls, kv, d, dtype);
    struct attention_range queries = range_at(doc, query, attention_least(OUTER, j->S - query));
    load_outer(w->outer[0], head_of(j->q, t, j->q_ls, h, d, dtype), j->q_ls, queries.n, d, j->scale, dtype);
    load_outer(w->outer[1], head_of(j->dout, t, j->do_ls, h, d, dtype), j->do_ls, queries.n, d, 1.0f, dtype);
    number_chunks(w, j->chunk, query);
    memset(w->sum[1], 0, (size_t)(OUTER * w->ld) * sizeof(float));
    for (int64_t r = 0; r < OUTER; r++) {
        w->row[0][r] = r < queries.n ? j->lse[(t + r) * j->H + h] : 0.0f;
        w->row[1][r] = r < queries.n ? delta[(t + r) * j->H + h] : 0.0f;
    }
    for (int64_t key = first_key(j, query); key < query + queries.n; key += INNER) {
        struct attention_range keys = range_at(doc, key, attention_least(INNER, j->S - key));
        struct attention_columns cols = visible_columns(j, &queries, &keys, 1);
        if (cols.lo >= cols.hi) continue;
        load_inner(w->inner[0], w->ld, row_of(k_head, key, j->k_ls, dtype), j->k_ls, keys.n, d, 1.0f, dtype);
        load_inner(w->inner[1], w->ld, row_of(v_head, key, j->v_ls, dtype), j->v_ls, keys.n, d, 1.0f, dtype);
        score_products(w, keys.n, cols, d);
        if (cols.partly) hide_scores(j, w, doc, &queries, &keys, cols, 1);
        score_gradients(w, keys.n, cols, w->row[0], w->row[1], 0, 1);
        add_products(w, 1, 0, keys.n, cols);
    }
    void *dq = row_at(row_at(j->dq, t, j->dq_ls, dtype), h, d, dtype);
    store_sum(dq, j->dq_ls, w->sum[1], w->ld, queries.n, d, NULL, j->scale, dtype);
}

static enum mx8_status attention_backward(const struct mx8_exec *x, const struct mx8_attention_job *j) {
    if (j->T == 0) return MX8_OK;
    int64_t tiles = count_pieces(j->S, OUTER), B = j->T / j->S;
    int64_t key_tasks = B * j->KV * tiles, query_tasks = B * j->H * tiles;
    size_t thread_floats = attention_thread_floats(j->d);
    float *delta = j->workspace, *spaces = delta + count_pieces(j->T * j->H, 16) * 16;
    int team = team_for(x, j->T * j->H * j->d);
    row_terms(x, j, delta);
#pragma omp parallel num_threads(team) if (team > 1)
    {
        struct attention_space w = attention_space_at(spaces + (size_t)omp_get_thread_num() * thread_floats, j->d);
#pragma omp for schedule(dynamic) nowait
        for (int64_t i = 0; i < key_tasks; i++) {
            int64_t head = i / tiles, key = i % tiles * OUTER; /* the longest first */
            BY_DTYPE(j->dtype, attend_keys(j, &w, delta, head / j->KV, head % j->KV, key, dtype));
        }
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < query_tasks; i++) {
            int64_t head = i / tiles, query = (tiles - 1 - i % tiles) * OUTER;
            BY_DTYPE(j->dtype, attend_queries(j, &w, delta, head / j->H, head % j->H, query, dtype));
        }
    }
    return MX8_OK;
}
