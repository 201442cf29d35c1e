/* Rotary position embedding, interleaved pairs: (x0, x1) becomes (x0 c - x1 s, x0 s + x1 c) in f32, rounded once. The
 * products are rounded before the addition, as PyTorch's complex product does, so that every instruction set agrees.
 * The table's (cos, sin) pairs lie as the elements do: a vector of it holds cos in even lanes and sin in odd ones. */
#include "kernels/cpu/model_common.inl"

MX8_INLINE void rotate_head(void *y, const void *x, const float *table, int64_t d, int inverse, int32_t dtype) {
    static const float forward[16] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
    static const float backward[16] = {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1};
    vf sign = vf_load(inverse ? backward : forward);
    for (int64_t i = 0; i < d; i += MX8_VF) {
        vf v = get_vf(x, i, d, dtype), angle = get_vf(table, i, d, MX8_F32);
        vf turned = vf_mul(vf_swap_pairs(v), vf_mul(vf_odd(angle), sign));
        put_vf(y, i, d, dtype, vf_add(vf_mul(v, vf_even(angle)), turned));
    }
}

static enum mx8_status rope(const struct mx8_exec *x, const struct mx8_rope_job *j) {
    int team = team_for(x, j->T * j->H * j->d);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) {
        const float *table = j->table + t % j->S * j->d;
        const void *from = row_of(j->x, t, j->x_ls, j->dtype);
        void *to = row_at(j->y, t, j->y_ls, j->dtype);
        for (int64_t h = 0; h < j->H; h++) {
            BY_DTYPE(j->dtype,
                rotate_head(row_at(to, h, j->d, dtype), row_of(from, h, j->d, dtype), table, j->d, j->inverse, dtype));
        }
    }
    return MX8_OK;
}
