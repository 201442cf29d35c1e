/* What one call of each kernel is worth: floating-point operations, and the least bytes that it can move. */
#ifndef MX8_KERNELS_PROFILE_COSTS_H
#define MX8_KERNELS_PROFILE_COSTS_H

#include "kernels/profile.h"

struct cost {
    const char *kernel;
    enum mx8_profile_unit unit;
    double flops, bytes;
};

static double size_of(int32_t dtype) {
    return (double)mx8_get_dtype_size(dtype);
}
static struct cost move(const char *kernel, double bytes) {
    return (struct cost){kernel, MX8_PROFILE_MEMORY, 0, bytes};
}
/* bytes = elements * (passes) of a dtype */
static struct cost move_elements(const char *kernel, int32_t dtype, double elements, double passes) {
    return move(kernel, elements * passes * size_of(dtype));
}

static struct cost cost_quantize(const struct mx8_quant_job *j) {
    const double n = (double)j->batch * (double)j->rows * (double)j->cols, codes = 33.0 / 32.0;
    const int rows = j->row_codes != NULL, cols = j->col_codes != NULL;
    return move(rows && cols ? "quantize both" : rows ? "quantize rows" : "quantize columns",
        n * (size_of(j->src_dtype) + codes * (rows + cols)));
}
static struct cost cost_dequantize(const struct mx8_dequant_job *j) {
    return move("dequantize", (double)j->rows * (double)j->cols * (size_of(j->dst_dtype) + 33.0 / 32.0));
}
static struct cost cost_layout(const struct mx8_layout_job *j) {
    return move("scale layout", 2.0 * (double)j->E * (double)j->R * (double)j->C);
}
static struct cost cost_pad(const struct mx8_pad_job *j) {
    return move("group padding", 2.0 * (double)j->padded_rows * (double)j->cols * (double)j->elem_size);
}

static const char *const product_names[3][4] = {
    [MX8_GEMM_DENSE] = {"", "product f32", "product bf16", "product mxfp8"},
    [MX8_GEMM_M_GROUPS] = {"", "grouped product f32", "grouped product bf16", "grouped product mxfp8"},
    [MX8_GEMM_K_GROUPS] = {"", "grouped wgrad f32", "grouped wgrad bf16", "grouped wgrad mxfp8"},
};
static struct cost cost_gemm(const struct mx8_gemm_job *j) {
    const double M = (double)j->M, N = (double)j->N, K = (double)j->K;
    const int32_t a = j->a.dtype;
    const enum mx8_profile_unit unit = a == MX8_F32    ? MX8_PROFILE_F32
                                       : a == MX8_BF16 ? MX8_PROFILE_BF16
                                                       : MX8_PROFILE_MXFP8;
    const double experts = j->mode == MX8_GEMM_DENSE ? 1 : j->G, outputs = j->mode == MX8_GEMM_K_GROUPS ? experts : 1;
    return (struct cost){product_names[j->mode][unit], unit, 2 * M * N * K,
        (M * K + N * K * (j->mode == MX8_GEMM_M_GROUPS ? experts : 1)) * size_of(a) +
            M * N * outputs * size_of(j->c_dtype) * (j->accumulate ? 2 : 1)};
}
static struct cost cost_colsum(const struct mx8_colsum_job *j) {
    return move_elements("column sum", j->dtype, (double)j->M * (double)j->N, 1);
}
static struct cost cost_rmsnorm(const struct mx8_rmsnorm_job *j) {
    return move_elements("rmsnorm", j->dtype, (double)j->T * (double)j->D, 2 + (j->add != NULL) + (j->sum != NULL));
}
static struct cost cost_rmsnorm_backward(const struct mx8_rmsnorm_backward_job *j) {
    return move_elements("rmsnorm backward", j->dtype, (double)j->T * (double)j->D, 3 + (j->dres != NULL));
}
static struct cost cost_rope(const struct mx8_rope_job *j) {
    return move_elements("rope", j->dtype, (double)j->T * (double)j->H * (double)j->d, 2);
}
/* Half of the scores of every sequence (or chunk): two products forward, five backward. */
static struct cost cost_scores(const char *kernel, const struct mx8_attention_job *j, double products) {
    const double span = (double)(j->chunk > 0 && j->chunk < j->S ? j->chunk : j->S), heads = (double)j->H * (double)j->d;
    return (struct cost){kernel, j->dtype == MX8_BF16 ? MX8_PROFILE_BF16 : MX8_PROFILE_F32,
        products * (double)j->T * span * heads, (double)j->T * heads * 4 * size_of(j->dtype)};
}
static struct cost cost_attention(const struct mx8_attention_job *j) {
    return cost_scores("attention", j, 2);
}
static struct cost cost_attention_backward(const struct mx8_attention_job *j) {
    return cost_scores("attention backward", j, 5);
}
static struct cost cost_router(const struct mx8_router_job *j) {
    return move("router", (double)j->T * ((double)j->E * (size_of(j->dtype) + 4) + (double)j->k * 16));
}
static struct cost cost_router_backward(const struct mx8_router_job *j) {
    return move("router backward", (double)j->T * ((double)j->E * (size_of(j->dtype) + 4) + (double)j->k * 12));
}
static struct cost cost_permute(const struct mx8_permute_job *j) {
    return move_elements("permute", j->dtype, (double)j->T * (double)j->D, 2.0 * j->k);
}
static struct cost cost_permute_backward(const struct mx8_permute_job *j) {
    return move_elements("permute backward", j->dtype, (double)j->T * (double)j->D,
        j->k + 1 + (j->dres != NULL) + (j->dweights != NULL));
}
static struct cost cost_combine(const struct mx8_combine_job *j) {
    return move_elements("combine", j->dtype, (double)j->T * (double)j->D, j->k + 1 + (j->base != NULL));
}
static struct cost cost_combine_backward(const struct mx8_combine_job *j) {
    return move_elements(
        "combine backward", j->dtype, (double)j->T * (double)j->D, (double)j->k * (2 + (j->dweights != NULL)));
}
static struct cost cost_swiglu(const struct mx8_swiglu_job *j) {
    return move_elements("swiglu", j->dtype, (double)j->M * (double)j->F, 3);
}
static struct cost cost_swiglu_backward(const struct mx8_swiglu_job *j) {
    return move_elements("swiglu backward", j->dtype, (double)j->M * (double)j->F, 5);
}
static struct cost cost_embedding(const struct mx8_embedding_job *j) {
    return move_elements("embedding", j->dtype, (double)j->T * (double)j->D, 2);
}
static struct cost cost_embedding_backward(const struct mx8_embedding_job *j) {
    return move("embedding backward", (double)j->T * (double)j->D * (size_of(j->dtype) + 8));
}
static struct cost cost_cross_entropy(const struct mx8_cross_entropy_job *j) {
    return move_elements("cross entropy", j->dtype, (double)j->T * (double)j->V, j->grad ? 3 : 1);
}
static struct cost cost_adamw(const struct mx8_adamw_job *j) {
    return move("adamw", (double)j->n * (12 + 4 * size_of(j->moment_dtype) + (j->copy ? size_of(j->copy_dtype) : 0)));
}
static struct cost cost_adamw_quantize(const struct mx8_adamw_job *j) {
    return move("adamw and quantize", (double)j->n * (12 + 4 * size_of(j->moment_dtype) + 2 * 33.0 / 32.0));
}

#endif
