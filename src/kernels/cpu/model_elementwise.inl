/* Elementwise kernels: add, cast, scale and clamp. Two reads and a write, or one of each: memory is the limit. */
#include "kernels/cpu/model_common.inl"

MX8_INLINE void add_piece(void *y, const void *a, const void *b, int64_t first, int64_t n, int32_t dtype) {
    int64_t end = first + MODEL_PIECE < n ? first + MODEL_PIECE : n;
    for (int64_t i = first; i < end; i += MX8_VF) {
        put_vf(y, i, end, dtype, vf_add(get_vf(a, i, end, dtype), get_vf(b, i, end, dtype)));
    }
}

static enum mx8_status add(
    const struct mx8_exec *x, void *y, const void *a, const void *b, int32_t dtype_of_all, int64_t n) {
    int team = team_for(x, n);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t i = 0; i < n; i += MODEL_PIECE) BY_DTYPE(dtype_of_all, add_piece(y, a, b, i, n, dtype));
    return MX8_OK;
}

MX8_INLINE void cast_piece(void *y, int32_t y_dtype, const void *a, int64_t first, int64_t n, int32_t dtype) {
    int64_t end = first + MODEL_PIECE < n ? first + MODEL_PIECE : n;
    if (y_dtype == dtype) {
        size_t size = dtype == MX8_BF16 ? 2 : 4;
        memmove((char *)y + (size_t)first * size, (const char *)a + (size_t)first * size, (size_t)(end - first) * size);
        return;
    }
    for (int64_t i = first; i < end; i += MX8_VF) put_vf(y, i, end, y_dtype, get_vf(a, i, end, dtype));
}

static enum mx8_status cast(
    const struct mx8_exec *x, void *y, int32_t y_dtype, const void *a, int32_t a_dtype, int64_t n) {
    int team = team_for(x, n);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t i = 0; i < n; i += MODEL_PIECE) BY_DTYPE(a_dtype, cast_piece(y, y_dtype, a, i, n, dtype));
    return MX8_OK;
}

static enum mx8_status scale(const struct mx8_exec *x, float *y, const float *factor, float value, int64_t n) {
    int team = team_for(x, n);
    vf by = vf_set(factor ? *factor : value);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t first = 0; first < n; first += MODEL_PIECE) {
        int64_t end = first + MODEL_PIECE < n ? first + MODEL_PIECE : n;
        for (int64_t i = first; i < end; i += MX8_VF)
            put_vf(y, i, end, MX8_F32, vf_mul(get_vf(y, i, end, MX8_F32), by));
    }
    return MX8_OK;
}

/* NaN compares false and stays. */
MX8_INLINE void clamp_piece(const struct mx8_clamp_job *j, int64_t first, int32_t dtype) {
    int64_t end = first + MODEL_PIECE < j->n ? first + MODEL_PIECE : j->n;
    for (int64_t i = first; i < end; i++) {
        float v = f32_load_as(j->x, i, dtype);
        f32_store_as(j->y, i, dtype, v > j->limit ? j->limit : v < -j->limit ? -j->limit : v);
    }
}

static enum mx8_status clamp(const struct mx8_exec *x, const struct mx8_clamp_job *j) {
    int team = team_for(x, j->n);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t i = 0; i < j->n; i += MODEL_PIECE) BY_DTYPE(j->dtype, clamp_piece(j, i, dtype));
    return MX8_OK;
}

MX8_INLINE void clamp_backward_piece(const struct mx8_clamp_job *j, int64_t first, int32_t dtype) {
    int64_t end = first + MODEL_PIECE < j->n ? first + MODEL_PIECE : j->n;
    for (int64_t i = first; i < end; i++) {
        float v = f32_load_as(j->x, i, dtype), d = f32_load_as(j->dy, i, dtype);
        f32_store_as(j->dx, i, dtype, v > j->limit || v < -j->limit ? 0.0f : d);
    }
}

static enum mx8_status clamp_backward(const struct mx8_exec *x, const struct mx8_clamp_job *j) {
    int team = team_for(x, j->n);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t i = 0; i < j->n; i += MODEL_PIECE) BY_DTYPE(j->dtype, clamp_backward_piece(j, i, dtype));
    return MX8_OK;
}
