/* Embedding: rows of w by token. Backward cuts dw into blocks of columns; each block sees every token in rising order,
 * so that the sums have one order without sorting the tokens and without a workspace. */
#include "kernels/cpu/model_common.inl"

MX8_INLINE int token_is_known(const struct mx8_embedding_job *j, int64_t t) {
    return j->tokens[t] >= 0 && j->tokens[t] < j->V;
}

static enum mx8_status embedding(const struct mx8_exec *x, const struct mx8_embedding_job *j) {
    int team = team_for(x, j->T * j->D);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) {
        void *y = row_at(j->y, t, j->D, j->dtype);
        const void *w = token_is_known(j, t) ? row_of(j->w, j->tokens[t], j->D, j->w_dtype) : NULL;
        for (int64_t i = 0; i < j->D; i += MX8_VF) {
            put_vf(y, i, j->D, j->dtype, w ? get_vf(w, i, j->D, j->w_dtype) : vf_set(0.0f));
        }
    }
    return MX8_OK;
}

static size_t embedding_workspace(const struct mx8_embedding_job *j) {
    (void)j;
    return 0;
}

enum { EMBEDDING_COLUMNS = 64 };

MX8_INLINE void add_token_columns(const struct mx8_embedding_job *j, int64_t first, int32_t dtype) {
    int64_t end = first + EMBEDDING_COLUMNS < j->D ? first + EMBEDDING_COLUMNS : j->D;
    for (int64_t t = 0; t < j->T; t++) {
        if (!token_is_known(j, t)) continue;
        float *dw = j->dw + j->tokens[t] * j->D;
        const void *dy = row_of(j->dy, t, j->D, dtype);
        for (int64_t i = first; i < end; i += MX8_VF) {
            put_vf(dw, i, end, MX8_F32, vf_add(get_vf(dw, i, end, MX8_F32), get_vf(dy, i, end, dtype)));
        }
    }
}

static enum mx8_status embedding_backward(const struct mx8_exec *x, const struct mx8_embedding_job *j) {
    int team = team_for(x, j->T * j->D);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t c = 0; c < j->D; c += EMBEDDING_COLUMNS) BY_DTYPE(j->dtype, add_token_columns(j, c, dtype));
    return MX8_OK;
}
