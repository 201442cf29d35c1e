/* Cross entropy over rows of logits: loss = log(sum(exp(l - max))) + max - l[target]; in place, the gradient
 * (exp(l - max) / sum - onehot) * scale. Three passes over a row (maximum, sum, gradient); a row of 200,000 bf16 logits
 * stays in the second-level cache between them. The sum runs in f32 lanes over LOSS_PIECE logits, then in double. */
#include "kernels/cpu/model_common.inl"

enum { LOSS_PIECE = 2048 };

MX8_INLINE float row_max(const void *l, int64_t V, int32_t dtype) {
    vf max = vf_set(-INFINITY);
    for (int64_t i = 0; i + MX8_VF <= V; i += MX8_VF) max = vf_max(vf_load_as(l, i, dtype), max);
    float best = vf_max_all(max);
    for (int64_t i = V / MX8_VF * MX8_VF; i < V; i++) {
        float v = f32_load_as(l, i, dtype);
        if (v > best) best = v;
    }
    return best;
}

/* Lanes past the end would count as exp(0 - max): they are masked out. */
MX8_INLINE double row_exp_sum(const void *l, float max, int64_t V, int32_t dtype) {
    double total = 0;
    for (int64_t first = 0; first < V; first += LOSS_PIECE) {
        int64_t end = first + LOSS_PIECE < V ? first + LOSS_PIECE : V;
        vf sum = vf_set(0.0f);
        for (int64_t i = first; i < end; i += MX8_VF) {
            vf e = vf_exp(vf_sub(get_vf(l, i, end, dtype), vf_set(max)));
            sum = vf_add(sum, i + MX8_VF <= end ? e : vf_select(vm_first(vf_lanes(i, end)), e, vf_set(0.0f)));
        }
        total += (double)vf_sum(sum);
    }
    return total;
}

MX8_INLINE void cross_entropy_row(const struct mx8_cross_entropy_job *j, int64_t t, int32_t dtype) {
    void *l = row_at(j->logits, t, j->ls, dtype);
    int64_t V = j->V, target = j->targets[t];
    if (target < 0 || target >= V) {
        j->losses[t] = 0.0f;
        if (j->rows) j->rows[t] = (struct mx8_row_softmax){.target = -1};
        if (j->grad) memset(l, 0, (size_t)V * (dtype == MX8_BF16 ? 2 : 4));
        return;
    }
    float max = row_max(l, V, dtype), hit = f32_load_as(l, target, dtype);
    double sum = row_exp_sum(l, max, V, dtype);
    j->losses[t] = (float)(log(sum) + (double)max - (double)hit);
    const float factor = (float)((double)j->scale / sum);
    const float at_hit = (float)((exp((double)hit - (double)max) / sum - 1.0) * (double)j->scale);
    if (j->rows) j->rows[t] = (struct mx8_row_softmax){max, factor, at_hit, (int32_t)target};
    if (!j->grad) return;
    for (int64_t i = 0; i < V; i += MX8_VF) {
        vf p = vf_exp(vf_sub(get_vf(l, i, V, dtype), vf_set(max)));
        put_vf(l, i, V, dtype, vf_mul(p, vf_set(factor)));
    }
    f32_store_as(l, target, dtype, at_hit);
}

static enum mx8_status cross_entropy(const struct mx8_exec *x, const struct mx8_cross_entropy_job *j) {
    int team = team_for(x, j->T * j->V);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) BY_DTYPE(j->dtype, cross_entropy_row(j, t, dtype));
    return MX8_OK;
}
