/* AdamW, and what clipping needs. The update reads four floats and writes three and a copy for each weight: memory is
 * the limit, so each product and sum is rounded by itself, in PyTorch's order, and every instruction set gives the same
 * bits. */
#include "formats/stochastic.h"
#include "kernels/adamw_pieces.h"
#include "kernels/cpu/model_common.inl"

/* mx8i_make_rounding_bits of elements `first`, first + 1, ... */
MX8_INLINE vi make_rounding_bits(uint32_t salt, uint64_t first) {
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vi h = vi_add(vi_set((int32_t)(uint32_t)first), vi_load(lanes));
    h = vi_add(vi_mul(h, vi_set((int32_t)MX8_HASH_SPREAD)), vi_set((int32_t)salt));
    h = vi_mul(vi_xor(h, vi_shr(h, 16)), vi_set((int32_t)MX8_HASH_FIRST));
    h = vi_mul(vi_xor(h, vi_shr(h, 13)), vi_set((int32_t)MX8_HASH_SECOND));
    return vi_xor(h, vi_shr(h, 16));
}

/* What mx8i_round_bf16_randomly leaves, as floats that storing as bf16 does not change. */
MX8_INLINE vf round_randomly(vf v, vi noise) {
    vi sum = vi_and(vi_add(vf_bits(v), noise), vi_set(-65536));
    return vf_select(vf_is_nan(v), v, vf_from_bits(sum));
}

MX8_INLINE void adamw_piece(
    const struct mx8_adamw_job *j, float grad_scale, int64_t first, int32_t dtype, int32_t moment) {
    int64_t end = first + MODEL_PIECE < j->n ? first + MODEL_PIECE : j->n;
    vf decay = vf_set(1.0f - j->lr * j->weight_decay), step = vf_set(j->lr / j->bias1), root2 = vf_set(sqrtf(j->bias2));
    vf beta1 = vf_set(j->beta1), rest1 = vf_set(1.0f - j->beta1);
    vf beta2 = vf_set(j->beta2), rest2 = vf_set(1.0f - j->beta2);
    for (int64_t i = first; i < end; i += MX8_VF) {
        vf g = vf_mul(get_vf(j->grad, i, end, MX8_F32), vf_set(grad_scale));
        vf m = vf_add(vf_mul(beta1, get_vf(j->m, i, end, moment)), vf_mul(rest1, g));
        vf v = vf_add(vf_mul(beta2, get_vf(j->v, i, end, moment)), vf_mul(vf_mul(rest2, g), g));
        vf denominator = vf_add(vf_div(vf_sqrt(v), root2), vf_set(j->eps));
        vf p = vf_mul(get_vf(j->master, i, end, MX8_F32), decay);
        p = vf_sub(p, vf_div(vf_mul(step, m), denominator));
        if (moment == MX8_BF16) {
            vi bits = make_rounding_bits(j->rounding, j->first + (uint64_t)i);
            m = round_randomly(m, vi_and(bits, vi_set(0xFFFF)));
            v = round_randomly(v, vi_shr(bits, 16));
        }
        put_vf(j->m, i, end, moment, m);
        put_vf(j->v, i, end, moment, v);
        put_vf(j->master, i, end, MX8_F32, p);
        if (j->copy) put_vf(j->copy, i, end, dtype, p);
    }
}

static enum mx8_status adamw(const struct mx8_exec *x, const struct mx8_adamw_job *given) {
    struct mx8_adamw_job with_state = *given;
    const struct mx8_adamw_job *j = &with_state;
    if (given->state) {
        with_state.lr = given->state->lr;
        with_state.bias1 = given->state->bias1;
        with_state.bias2 = given->state->bias2;
        with_state.rounding = given->state->rounding;
    }
    int team = team_for(x, j->n);
    float grad_scale = j->grad_scale ? *j->grad_scale : 1.0f;
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t i = 0; i < j->n; i += MODEL_PIECE) {
        if (j->moment_dtype == MX8_BF16)
            BY_DTYPE(j->copy_dtype, adamw_piece(j, grad_scale, i, dtype, MX8_BF16));
        else
            BY_DTYPE(j->copy_dtype, adamw_piece(j, grad_scale, i, dtype, MX8_F32));
    }
    return MX8_OK;
}

/* Elements of a piece: what is rounded, 512 KiB, stays in a cache until it is quantized. */
enum { ADAMW_PIECE = 1 << 18 };

static enum mx8_status adamw_quantize(
    const struct mx8_exec *x, const struct mx8_adamw_job *a, const struct mx8_quant_job *j) {
    return mx8i_adamw_by_pieces(x, a, j, adamw, quantize, ADAMW_PIECE);
}

/* Sums in double over a fixed number of slabs, whatever the thread count; inside a slab eight lanes, on every
 * instruction set, so that all of them give the same bits. */
enum { SUM_SLABS = 64, SUM_LANES = 8 };

MX8_INLINE double sum_slab(const float *a, int64_t first, int64_t end, int squared) {
    double lane[SUM_LANES] = {0};
    int64_t whole = first + (end - first) / SUM_LANES * SUM_LANES;
    for (int64_t i = first; i < whole; i += SUM_LANES) {
        for (int k = 0; k < SUM_LANES; k++) {
            double v = (double)a[i + k];
            lane[k] += squared ? v * v : v;
        }
    }
    for (int64_t i = whole; i < end; i++) lane[i - whole] += squared ? (double)a[i] * (double)a[i] : (double)a[i];
    for (int half = SUM_LANES / 2; half > 0; half /= 2) {
        for (int k = 0; k < half; k++) lane[k] += lane[k + half];
    }
    return lane[0];
}

MX8_INLINE void sum_slabs(const struct mx8_exec *x, double *out, const float *a, int64_t n, int squared) {
    int team = team_for(x, n);
    double part[SUM_SLABS] = {0};
    int64_t slab = count_pieces(count_pieces(n, SUM_SLABS), MODEL_PIECE) * MODEL_PIECE;
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int s = 0; s < SUM_SLABS; s++) {
        int64_t first = s * slab < n ? s * slab : n, end = first + slab < n ? first + slab : n;
        part[s] = squared ? sum_slab(a, first, end, 1) : sum_slab(a, first, end, 0);
    }
    for (int s = 0; s < SUM_SLABS; s++) *out += part[s];
}

static enum mx8_status sum_squares(const struct mx8_exec *x, double *out, const float *a, int64_t n) {
    sum_slabs(x, out, a, n, 1);
    return MX8_OK;
}

static enum mx8_status sum(const struct mx8_exec *x, double *out, const float *a, int64_t n) {
    sum_slabs(x, out, a, n, 0);
    return MX8_OK;
}

/* A NaN norm gives a NaN factor: a check of the norm must not be fooled by a step that looks clipped. */
static enum mx8_status clip_factor(
    const struct mx8_exec *x, float *factor, float *norm, const double *squares, float max_norm) {
    (void)x;
    *norm = (float)sqrt(*squares);
    float ratio = max_norm / (*norm + 1e-6f);
    *factor = ratio > 1.0f ? 1.0f : ratio;
    return MX8_OK;
}

/* All exponent bits set: NaN or Inf. */
MX8_INLINE int piece_is_finite(const void *a, int64_t first, int64_t n, int32_t dtype) {
    int64_t end = first + MODEL_PIECE < n ? first + MODEL_PIECE : n;
    vi exponent = vi_set(0x7F800000), largest = vi_set(0);
    for (int64_t i = first; i < end; i += MX8_VF) {
        largest = vi_max(largest, vi_and(vf_bits(get_vf(a, i, end, dtype)), exponent));
    }
    return !vm_any(vi_eq(largest, exponent));
}

static enum mx8_status check_finite(
    const struct mx8_exec *x, int32_t *flag, const void *a, int32_t dtype_of_a, int64_t n) {
    int team = team_for(x, n), bad = 0;
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1) reduction(| : bad)
    for (int64_t i = 0; i < n; i += MODEL_PIECE) BY_DTYPE(dtype_of_a, bad |= !piece_is_finite(a, i, n, dtype));
    if (bad) *flag = 1;
    return MX8_OK;
}
