/* SwiGLU: h = gate * sigmoid(gate) * up, in f32, rounded once.
 * Backward, with s = sigmoid(gate): dup = dh * gate * s, dgate = dh * up * s * (1 + gate * (1 - s)). */
#include "kernels/cpu/model_common.inl"

MX8_INLINE void swiglu_row(const struct mx8_swiglu_job *j, int64_t r, int32_t dtype) {
    const void *gate = row_of(j->gate, r, j->gate_ls, dtype), *up = row_of(j->up, r, j->up_ls, dtype);
    void *h = row_at(j->h, r, j->h_ls, dtype);
    for (int64_t i = 0; i < j->F; i += MX8_VF) {
        vf g = get_vf(gate, i, j->F, dtype);
        put_vf(h, i, j->F, dtype, vf_mul(vf_mul(g, sigmoid(g)), get_vf(up, i, j->F, dtype)));
    }
}

static enum mx8_status swiglu(const struct mx8_exec *x, const struct mx8_swiglu_job *j) {
    int team = team_for(x, j->M * j->F);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t r = 0; r < j->M; r++) BY_DTYPE(j->dtype, swiglu_row(j, r, dtype));
    return MX8_OK;
}

MX8_INLINE void swiglu_backward_row(const struct mx8_swiglu_job *j, int64_t r, int32_t dtype) {
    const void *gate = row_of(j->gate, r, j->gate_ls, dtype), *up = row_of(j->up, r, j->up_ls, dtype);
    const void *dh = row_of(j->dh, r, j->dh_ls, dtype);
    void *dgate = row_at(j->dgate, r, j->dgate_ls, dtype), *dup = row_at(j->dup, r, j->dup_ls, dtype);
    vf one = vf_set(1.0f);
    for (int64_t i = 0; i < j->F; i += MX8_VF) {
        vf g = get_vf(gate, i, j->F, dtype), u = get_vf(up, i, j->F, dtype), d = get_vf(dh, i, j->F, dtype);
        vf s = sigmoid(g), slope = vf_mul(s, vf_fma(g, vf_sub(one, s), one));
        put_vf(dgate, i, j->F, dtype, vf_mul(vf_mul(d, u), slope));
        put_vf(dup, i, j->F, dtype, vf_mul(d, vf_mul(g, s)));
    }
}

static enum mx8_status swiglu_backward(const struct mx8_exec *x, const struct mx8_swiglu_job *j) {
    int team = team_for(x, j->M * j->F);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t r = 0; r < j->M; r++) BY_DTYPE(j->dtype, swiglu_backward_row(j, r, dtype));
    return MX8_OK;
}
