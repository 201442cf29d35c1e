/* Column sums, for bias gradients: out (N) [+]= sum over rows of x (M,N). */
#include "kernels/cpu/model_common.inl"

static enum mx8_status colsum(const struct mx8_exec *x, const struct mx8_colsum_job *j) {
    int64_t rows = j->M;
    if (j->n_groups > 0 && j->offsets[j->n_groups - 1] < rows) rows = j->offsets[j->n_groups - 1];
    int team = team_for(x, rows * j->N);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t c = 0; c < j->N; c += COLUMN_BLOCK) {
        BY_DTYPE(j->dtype, sum_columns(j->out, j->accumulate, j->x, NULL, NULL, rows, j->N, c, j->ls, dtype));
    }
    return MX8_OK;
}
