/* Router: scores of every expert, the top_k of them, and the slots sorted stably by expert. Scores are computed in
 * parallel; the sort is a counting sort over T * k integers, too small to be worth a second order to defend. */
#include "kernels/cpu/model_common.inl"

MX8_INLINE void sigmoid_scores(float *scores, const void *logits, int64_t E, int32_t dtype) {
    for (int64_t e = 0; e < E; e += MX8_VF) put_vf(scores, e, E, MX8_F32, sigmoid(get_vf(logits, e, E, dtype)));
}

/* A NaN logit makes the whole row NaN, as in PyTorch. */
MX8_INLINE void softmax_scores(float *scores, const void *logits, int64_t E, int32_t dtype) {
    float max = -INFINITY;
    for (int64_t e = 0; e < E; e++) {
        float l = f32_load_as(logits, e, dtype);
        if (l > max) max = l;
    }
    vf sum = vf_set(0.0f);
    for (int64_t e = 0; e < E; e += MX8_VF) {
        vf p = vf_exp(vf_sub(get_vf(logits, e, E, dtype), vf_set(max)));
        if (e + MX8_VF > E) p = vf_select(vm_first(vf_lanes(e, E)), p, vf_set(0.0f));
        put_vf(scores, e, E, MX8_F32, p);
        sum = vf_add(sum, p);
    }
    vf total = vf_set(vf_sum(sum));
    for (int64_t e = 0; e < E; e += MX8_VF) put_vf(scores, e, E, MX8_F32, vf_div(get_vf(scores, e, E, MX8_F32), total));
}

/* The order of selection: larger first, NaN before every number, the lower index among equals. */
MX8_INLINE int ranks_before(float a, int64_t at_a, float b, int64_t at_b) {
    int a_is_nan = a != a, b_is_nan = b != b;
    if (a_is_nan || b_is_nan) return a_is_nan != b_is_nan ? a_is_nan : at_a < at_b;
    return a != b ? a > b : at_a < at_b;
}

/* The expert that follows `last` in the order of selection; last < 0 asks for the first. */
MX8_INLINE int64_t next_expert(const float *scores, const float *bias, int64_t E, int64_t last) {
    float edge = last < 0 ? 0.0f : scores[last] + (bias ? bias[last] : 0.0f), best = 0.0f;
    int64_t found = -1;
    for (int64_t e = 0; e < E; e++) {
        float rank = scores[e] + (bias ? bias[e] : 0.0f);
        if (last >= 0 && !ranks_before(edge, last, rank, e)) continue;
        if (found >= 0 && !ranks_before(rank, e, best, found)) continue;
        best = rank;
        found = e;
    }
    return found;
}

MX8_INLINE void route_token(const struct mx8_router_job *j, int64_t t, int32_t dtype) {
    float *scores = j->scores + t * j->E, *weights = j->weights + t * j->k, total = 0.0f;
    int32_t *chosen = j->indices + t * j->k;
    const void *logits = row_of(j->logits, t, j->E, dtype);
    if (j->score_func == MX8_SCORE_SOFTMAX)
        softmax_scores(scores, logits, j->E, dtype);
    else
        sigmoid_scores(scores, logits, j->E, dtype);
    for (int32_t s = 0; s < j->k; s++) {
        chosen[s] = (int32_t)next_expert(scores, j->bias, j->E, s ? chosen[s - 1] : -1);
        weights[s] = scores[chosen[s]];
        total += weights[s];
    }
    for (int32_t s = 0; s < j->k; s++) {
        if (j->route_norm) weights[s] /= total + 1e-20f;
        weights[s] *= j->route_scale;
    }
}

/* offsets serve as the counters: the number of each expert's slots, then its next free place, which ends as its end. */
MX8_INLINE void sort_slots(const struct mx8_router_job *j) {
    int64_t slots = j->T * j->k;
    int32_t start = 0;
    memset(j->offsets, 0, (size_t)j->E * sizeof *j->offsets);
    for (int64_t s = 0; s < slots; s++) j->offsets[j->indices[s]]++;
    for (int64_t e = 0; e < j->E; e++) {
        int32_t count = j->offsets[e];
        j->offsets[e] = start;
        start += count;
    }
    for (int64_t s = 0; s < slots; s++) {
        int32_t p = j->offsets[j->indices[s]]++;
        j->order[p] = (int32_t)s;
        j->positions[s] = p;
    }
}

static enum mx8_status router(const struct mx8_exec *x, const struct mx8_router_job *j) {
    int team = team_for(x, j->T * j->E * (j->k + 1));
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) BY_DTYPE(j->dtype, route_token(j, t, dtype));
    sort_slots(j);
    return MX8_OK;
}

/* With s the chosen scores and c = route_scale: w = c s, or with route_norm w = c s / S, S = sum(s) + 1e-20, so that
 * ds_j = c (dw_j / S - sum(dw s) / S^2). Sigmoid: dl = ds s (1 - s); softmax: dl_e = s_e (ds_e - sum(ds s)). Experts
 * that were not chosen have ds = 0. */
MX8_INLINE void route_token_backward(const struct mx8_router_job *j, int64_t t, int32_t dtype) {
    const float *scores = j->scores + t * j->E, *dw = j->dweights + t * j->k;
    const int32_t *chosen = j->indices + t * j->k;
    void *dlogits = row_at(j->dlogits, t, j->E, dtype);
    int softmax = j->score_func == MX8_SCORE_SOFTMAX;
    float total = 0.0f, along = 0.0f, pull = 0.0f;
    for (int32_t s = 0; s < j->k; s++) {
        total += scores[chosen[s]];
        along += dw[s] * scores[chosen[s]];
    }
    float inverse = j->route_norm ? 1.0f / (total + 1e-20f) : 1.0f;
    float shared = j->route_norm ? along * inverse * inverse : 0.0f;
    if (softmax) pull = j->route_scale * (along * inverse - total * shared); /* sum(ds s) */
    for (int64_t e = 0; e < j->E; e++) f32_store_as(dlogits, e, dtype, -scores[e] * pull);
    for (int32_t s = 0; s < j->k; s++) {
        float score = scores[chosen[s]], ds = j->route_scale * (dw[s] * inverse - shared);
        f32_store_as(dlogits, chosen[s], dtype, softmax ? score * (ds - pull) : ds * score * (1.0f - score));
    }
}

static enum mx8_status router_backward(const struct mx8_exec *x, const struct mx8_router_job *j) {
    int team = team_for(x, j->T * j->E);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t t = 0; t < j->T; t++) BY_DTYPE(j->dtype, route_token_backward(j, t, dtype));
    return MX8_OK;
}
