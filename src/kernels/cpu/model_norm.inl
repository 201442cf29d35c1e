/* RMSNorm: y = s * rstd * w with s = x (+ add), rstd = 1 / sqrt(mean(s^2) + eps).
 * Backward, with g = dy * w: dx = rstd * g - s * rstd^3 * mean(g * s) (+ dres); dw = sum over rows of dy * s * rstd.
 * Forward reads x once from memory and again from the first cache; backward reads dy and x twice, by columns for dw and
 * by rows for dx: no partial sums to store, and an order that no thread count changes. */
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

MX8_INLINE void norm_backward_row(const struct mx8_rmsnorm_backward_job *j, int64_t t, int32_t dtype) {
    int64_t D = j->D;
    const void *dy = row_of(j->dy, t, D, dtype), *x = row_of(j->x, t, D, dtype);
    const void *dres = j->dres ? row_of(j->dres, t, D, dtype) : NULL;
    void *dx = row_at(j->dx, t, D, dtype);
    vf dot = vf_set(0.0f);
    for (int64_t i = 0; i < D; i += MX8_VF) {
        vf g = vf_mul(get_vf(dy, i, D, dtype), get_vf(j->w, i, D, j->w_dtype));
        dot = vf_fma(g, get_vf(x, i, D, dtype), dot);
    }
    float rstd = j->rstd[t];
    vf along = vf_set(rstd * rstd * rstd * (vf_sum(dot) / (float)D));
    for (int64_t i = 0; i < D; i += MX8_VF) {
        vf g = vf_mul(get_vf(dy, i, D, dtype), get_vf(j->w, i, D, j->w_dtype));
        vf d = vf_fnma(get_vf(x, i, D, dtype), along, vf_mul(g, vf_set(rstd)));
        if (dres) d = vf_add(d, get_vf(dres, i, D, dtype));
        put_vf(dx, i, D, dtype, d);
    }
}

static enum mx8_status rmsnorm_backward(const struct mx8_exec *x, const struct mx8_rmsnorm_backward_job *j) {
    int team = team_for(x, j->T * j->D);
    if (j->dw) { /* first, because dx may lie where dy does */
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
        for (int64_t c = 0; c < j->D; c += COLUMN_BLOCK) {
            BY_DTYPE(j->dtype, sum_columns(j->dw, j->accumulate, j->dy, j->x, j->rstd, j->T, j->D, c, j->D, dtype));
        }
    }
    if (!j->dx) return MX8_OK;
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) BY_DTYPE(j->dtype, norm_backward_row(j, t, dtype));
    return MX8_OK;
}
