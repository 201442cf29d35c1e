/* RMSNorm: y = s * rstd * w with s = x (+ add), rstd = 1 / sqrt(mean(s^2) + eps).
 * Backward, with g = dy * w: dx = rstd * g - s * rstd^3 * mean(g * s) (+ dres); dw = sum over rows of dy * s * rstd.
 * Both read x, and backward dy, once from memory and again from the first cache. Rows of dw are summed in parts of
 * COLUMN_ROWS, as sum_columns does it, which go to scratch and are added in order: no thread count changes it. */
#include "kernels/cpu/model_common.inl"

MX8_INLINE void norm_row(const struct mx8_rmsnorm_job *j, int64_t t, int32_t dtype) {
    int64_t D = j->D;
    const void *x = row_of(j->x, t, D, dtype), *add = j->add ? row_of(j->add, t, D, dtype) : NULL;
    void *sum = j->sum ? row_at(j->sum, t, D, dtype) : NULL, *y = row_at(j->y, t, D, dtype);
    vf squares = vf_set(0.0f);
    for (int64_t i = 0; i < D; i += MX8_VF) {
        vf v = get_vf(x, i, D, dtype);
        if (add) v = round_as(vf_add(v, get_vf(add, i, D, dtype)), dtype);
        if (sum) put_vf(sum, i, D, dtype, v);
        squares = vf_fma(v, v, squares);
    }
    float rstd = 1.0f / sqrtf(vf_sum(squares) / (float)D + j->eps);
    if (j->rstd) j->rstd[t] = rstd;
    for (int64_t i = 0; i < D; i += MX8_VF) { /* from sum where there is one: it may have replaced x */
        vf v = get_vf(sum ? sum : x, i, D, dtype);
        if (add && !sum) v = round_as(vf_add(v, get_vf(add, i, D, dtype)), dtype);
        put_vf(y, i, D, dtype, vf_mul(vf_mul(v, vf_set(rstd)), get_vf(j->w, i, D, j->w_dtype)));
    }
}

static enum mx8_status rmsnorm(const struct mx8_exec *x, const struct mx8_rmsnorm_job *j) {
    int team = team_for(x, j->T * j->D);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) BY_DTYPE(j->dtype, norm_row(j, t, dtype));
    return MX8_OK;
}

/* With `part`, what the row adds to dw goes there. */
MX8_INLINE void norm_backward_row(const struct mx8_rmsnorm_backward_job *j, int64_t t, float *part, int32_t dtype) {
    int64_t D = j->D;
    const void *dy = row_of(j->dy, t, D, dtype), *x = row_of(j->x, t, D, dtype);
    const void *dres = j->dres ? row_of(j->dres, t, D, dtype) : NULL;
    void *dx = j->dx ? row_at(j->dx, t, D, dtype) : NULL;
    float rstd = j->rstd[t];
    vf dot = vf_set(0.0f), by = vf_set(rstd);
    for (int64_t i = 0; i < D; i += MX8_VF) {
        vf d = get_vf(dy, i, D, dtype), v = get_vf(x, i, D, dtype);
        dot = vf_fma(vf_mul(d, get_vf(j->w, i, D, j->w_dtype)), v, dot);
        if (part) put_vf(part, i, D, MX8_F32, vf_add(get_vf(part, i, D, MX8_F32), vf_mul(d, vf_mul(v, by))));
    }
    if (!dx) return;
    vf along = vf_set(rstd * rstd * rstd * (vf_sum(dot) / (float)D));
    for (int64_t i = 0; i < D; i += MX8_VF) {
        vf g = vf_mul(get_vf(dy, i, D, dtype), get_vf(j->w, i, D, j->w_dtype));
        vf d = vf_fnma(get_vf(x, i, D, dtype), along, vf_mul(g, by));
        if (dres) d = vf_add(d, get_vf(dres, i, D, dtype));
        put_vf(dx, i, D, dtype, d);
    }
}

/* Parts [first, first + n) of the rows, each to its line of `parts`. dx may lie where dy does: a row is read first. */
static void norm_backward_parts(
    const struct mx8_rmsnorm_backward_job *j, int64_t first, int64_t n, float *parts, int team) {
#pragma omp parallel for schedule(dynamic) num_threads(team) if (team > 1)
    for (int64_t p = 0; p < n; p++) {
        int64_t row = (first + p) * COLUMN_ROWS, end = row + COLUMN_ROWS < j->T ? row + COLUMN_ROWS : j->T;
        float *part = parts + p * j->D;
        memset(part, 0, (size_t)j->D * sizeof *part);
        for (int64_t t = row; t < end; t++) BY_DTYPE(j->dtype, norm_backward_row(j, t, part, dtype));
    }
}

/* dw needs the parts of all rows, as many at a time as scratch holds beside the total. */
static void norm_backward_sums(const struct mx8_exec *x, const struct mx8_rmsnorm_backward_job *j, int team) {
    float *total = x->scratch, *parts = total + j->D;
    int64_t D = j->D, count = count_pieces(j->T, COLUMN_ROWS);
    int64_t room = (int64_t)(x->scratch_bytes / sizeof *total) / D - 1;
    memset(total, 0, (size_t)D * sizeof *total);
    for (int64_t first = 0; first < count; first += room) {
        int64_t n = count - first < room ? count - first : room;
        norm_backward_parts(j, first, n, parts, team);
        for (int64_t p = 0; p < n; p++)
            for (int64_t i = 0; i < D; i++) total[i] += parts[p * D + i];
    }
    for (int64_t i = 0; i < D; i++) j->dw[i] = j->accumulate ? total[i] + j->dw[i] : total[i];
}

static enum mx8_status rmsnorm_backward(const struct mx8_exec *x, const struct mx8_rmsnorm_backward_job *j) {
    int team = team_for(x, j->T * j->D), fits = j->D > 0 && x->scratch_bytes / sizeof(float) / 2 >= (size_t)j->D;
    if (j->dw && fits) {
        norm_backward_sums(x, j, team);
        return MX8_OK;
    }
    if (j->dw) { /* first, because dx may lie where dy does */
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
        for (int64_t c = 0; c < j->D; c += COLUMN_BLOCK) {
            BY_DTYPE(j->dtype, sum_columns(j->dw, j->accumulate, j->dy, j->x, j->rstd, j->T, j->D, c, j->D, dtype));
        }
    }
    if (!j->dx) return MX8_OK;
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) BY_DTYPE(j->dtype, norm_backward_row(j, t, NULL, dtype));
    return MX8_OK;
}
