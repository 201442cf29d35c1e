/* Permute gathers token rows into expert order; combine adds expert rows back to their tokens. Each output row is owned
 * by one thread and its terms are added in slot order, so nothing is atomic. Slot s = t*k + j belongs to token t;
 * order[p] is the slot of expert row p and positions[s] the row of a slot. */
#include "kernels/cpu/model_common.inl"

MX8_INLINE void scale_row(void *y, const void *x, float weight, int64_t D, int32_t dtype) {
    for (int64_t i = 0; i < D; i += MX8_VF) put_vf(y, i, D, dtype, vf_mul(get_vf(x, i, D, dtype), vf_set(weight)));
}

MX8_INLINE void copy_row(void *y, const void *x, int64_t D, int32_t dtype) {
    memcpy(y, x, (size_t)D * (dtype == MX8_BF16 ? 2 : 4));
}

/* y = sum over j of rows[positions[j]] (* weights[j]) (+ base, before the sum or after it). */
MX8_INLINE void gather_sum(void *y, const void *rows, const int32_t *positions, const float *weights, int32_t k,
    const void *base, int base_first, int64_t D, int32_t dtype) {
    for (int64_t i = 0; i < D; i += MX8_VF) {
        vf sum = base && base_first ? get_vf(base, i, D, dtype) : vf_set(0.0f);
        for (int32_t s = 0; s < k; s++) {
            vf v = get_vf(row_of(rows, positions[s], D, dtype), i, D, dtype);
            sum = weights ? vf_fma(v, vf_set(weights[s]), sum) : vf_add(sum, v);
        }
        if (base && !base_first) sum = vf_add(sum, get_vf(base, i, D, dtype));
        put_vf(y, i, D, dtype, sum);
    }
}

static enum mx8_status permute(const struct mx8_exec *x, const struct mx8_permute_job *j) {
    int team = team_for(x, j->T * j->k * j->D);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t p = 0; p < j->T * j->k; p++) {
        int32_t slot = j->order[p];
        void *row = row_at(j->rows, p, j->D, j->dtype);
        const void *token = row_of(j->x, slot / j->k, j->D, j->dtype);
        if (j->weights)
            BY_DTYPE(j->dtype, scale_row(row, token, j->weights[slot], j->D, dtype));
        else
            copy_row(row, token, j->D, j->dtype);
    }
    return MX8_OK;
}

MX8_INLINE void permute_backward_token(const struct mx8_permute_job *j, int64_t t, int32_t dtype) {
    const int32_t *positions = j->positions + t * j->k;
    const float *weights = j->weights ? j->weights + t * j->k : NULL;
    for (int32_t s = 0; weights && j->dweights && s < j->k; s++) { /* before dx, which may replace x */
        const void *drow = row_of(j->drows, positions[s], j->D, dtype);
        j->dweights[t * j->k + s] = dot_rows(drow, row_of(j->x, t, j->D, dtype), j->D, dtype);
    }
    if (!j->dx) return;
    const void *dres = j->dres ? row_of(j->dres, t, j->D, dtype) : NULL;
    gather_sum(row_at(j->dx, t, j->D, dtype), j->drows, positions, weights, j->k, dres, 0, j->D, dtype);
}

static enum mx8_status permute_backward(const struct mx8_exec *x, const struct mx8_permute_job *j) {
    int team = team_for(x, j->T * j->k * j->D);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) BY_DTYPE(j->dtype, permute_backward_token(j, t, dtype));
    return MX8_OK;
}

MX8_INLINE void combine_token(const struct mx8_combine_job *j, int64_t t, int32_t dtype) {
    const float *weights = j->weights ? j->weights + t * j->k : NULL;
    const void *base = j->base ? row_of(j->base, t, j->D, dtype) : NULL;
    gather_sum(row_at(j->y, t, j->D, dtype), j->rows, j->positions + t * j->k, weights, j->k, base, 1, j->D, dtype);
}

static enum mx8_status combine(const struct mx8_exec *x, const struct mx8_combine_job *j) {
    int team = team_for(x, j->T * j->k * j->D);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) BY_DTYPE(j->dtype, combine_token(j, t, dtype));
    return MX8_OK;
}

MX8_INLINE void combine_backward_row(const struct mx8_combine_job *j, int64_t p, int32_t dtype) {
    int32_t slot = j->order[p];
    const void *dy = row_of(j->dy, slot / j->k, j->D, dtype);
    if (j->weights && j->dweights) { /* before drows, which may replace rows */
        j->dweights[slot] = dot_rows(dy, row_of(j->rows, p, j->D, dtype), j->D, dtype);
    }
    if (!j->drows) return;
    void *drow = row_at(j->drows, p, j->D, dtype);
    if (j->weights)
        scale_row(drow, dy, j->weights[slot], j->D, dtype);
    else
        copy_row(drow, dy, j->D, dtype);
}

static enum mx8_status combine_backward(const struct mx8_exec *x, const struct mx8_combine_job *j) {
    int team = team_for(x, j->T * j->k * j->D);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t p = 0; p < j->T * j->k; p++) BY_DTYPE(j->dtype, combine_backward_row(j, p, dtype));
    return MX8_OK;
}
