// What the CUDA backend keeps per context, and what it needs from the program that opened it. libmx8_cuda.so exports
// mx8_open_cuda, and mx8_check_cudnn_graphs for tests; the CPU program never links to CUDA.
#ifndef MX8_KERNELS_CUDA_BACKEND_H
#define MX8_KERNELS_CUDA_BACKEND_H

#include <stddef.h>
#include <stdint.h>
#include "kernels/kernels.h"

// Failing goes through the opener, so that mx8_get_last_error() is one message per thread for the whole program.
struct mx8_cuda_host {
    enum mx8_status (*fail)(enum mx8_status status, const char *format, ...);
};

struct mx8_cuda_info {
    char name[64];
    int32_t capability; // 90 for sm_90
    int32_t sm_count;
    size_t total_memory, free_memory;
    char reason[256];
};

#ifdef __cplusplus
extern "C" {
#endif
// kernels: the table; backend: what goes to mx8_exec.backend; close: what releases it.
typedef enum mx8_status (*mx8_open_cuda_function)(const struct mx8_cuda_host *host, int32_t ordinal,
                                                  const struct mx8_kernels **kernels, void **backend,
                                                  struct mx8_cuda_info *info, void (**close)(void *backend));
#ifdef __cplusplus
}

#include <cuda.h>
#include <cuda_runtime.h>
#include <cublasLt.h>

typedef CUresult (*encode_map_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                        const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                        CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

struct cuda_backend {
    int ordinal, capability, sm_count;
    cublasLtHandle_t lt;
    cudaStream_t stream; // NULL until asked for
    encode_map_function encode_map; // cuTensorMapEncodeTiled, found through cudart: no link to libcuda
    struct attention_library *attention; // attention_cudnn.cu; NULL: own kernels only
};

extern const struct mx8_cuda_host *mx8i_cuda_host;
#define CUDA_FAIL(status, ...) mx8i_cuda_host->fail((status), __VA_ARGS__)
#define CUDA_TRY(call, what)                                                                                    \
    do {                                                                                                        \
        cudaError_t error_ = (call);                                                                            \
        if (error_ != cudaSuccess)                                                                              \
            return CUDA_FAIL(error_ == cudaErrorMemoryAllocation ? MX8_OUT_OF_MEMORY : MX8_CUDA_ERROR,          \
                             "cuda %s: %s", what, cudaGetErrorString(error_));                                  \
    } while (0)
// After a launch: configuration errors only; nothing waits for the device.
#define CUDA_LAUNCHED(what) do { CUDA_TRY(cudaGetLastError(), what); return MX8_OK; } while (0)

static inline cudaStream_t stream_of(const struct mx8_exec *x) { return (cudaStream_t)x->stream; }
static inline const cuda_backend *backend_of(const struct mx8_exec *x) { return (const cuda_backend *)x->backend; }

// Two-stage launch helper: enough blocks of `threads` for n items, at most `limit` (kernels stride over the rest).
static inline unsigned blocks_for(int64_t n, int threads, int64_t limit = 1 << 20) {
    int64_t b = (n + threads - 1) / threads;
    return (unsigned)(b < 1 ? 1 : b > limit ? limit : b);
}

// The entries of the table, one file per family. Names are the table's with a prefix.
#define KERNEL(name, job) enum mx8_status cuda_##name(const struct mx8_exec *x, const struct job *j)
KERNEL(quantize, mx8_quant_job);
KERNEL(dequantize, mx8_dequant_job);
KERNEL(block_scales, mx8_layout_job);
KERNEL(unblock_scales, mx8_layout_job);
KERNEL(pad_groups, mx8_pad_job);
KERNEL(unpad_groups, mx8_pad_job);
KERNEL(gemm, mx8_gemm_job);
KERNEL(colsum, mx8_colsum_job);
KERNEL(rmsnorm, mx8_rmsnorm_job);
KERNEL(rmsnorm_backward, mx8_rmsnorm_backward_job);
KERNEL(rope, mx8_rope_job);
KERNEL(attention, mx8_attention_job);
KERNEL(attention_backward, mx8_attention_job);
KERNEL(router, mx8_router_job);
KERNEL(router_backward, mx8_router_job);
KERNEL(permute, mx8_permute_job);
KERNEL(permute_backward, mx8_permute_job);
KERNEL(combine, mx8_combine_job);
KERNEL(combine_backward, mx8_combine_job);
KERNEL(swiglu, mx8_swiglu_job);
KERNEL(swiglu_backward, mx8_swiglu_job);
KERNEL(clamp, mx8_clamp_job);
KERNEL(clamp_backward, mx8_clamp_job);
KERNEL(embedding, mx8_embedding_job);
KERNEL(embedding_backward, mx8_embedding_job);
KERNEL(cross_entropy, mx8_cross_entropy_job);
KERNEL(adamw, mx8_adamw_job);
KERNEL(fill_normal, mx8_normal_job);
#undef KERNEL
// graph.cu
enum mx8_status cuda_mark(const struct mx8_exec *x, void **timer, int64_t index);
enum mx8_status cuda_read_marks(const struct mx8_exec *x, void *timer, int64_t count, double *seconds);
void cuda_release_timer(const struct mx8_exec *x, void *timer);
enum mx8_status cuda_make_stream(const struct mx8_exec *x, void **stream);
enum mx8_status cuda_begin_graph(const struct mx8_exec *x);
enum mx8_status cuda_end_graph(const struct mx8_exec *x, void **graph);
enum mx8_status cuda_launch_graph(const struct mx8_exec *x, void *graph);
void cuda_release_graph(const struct mx8_exec *x, void *graph);
enum mx8_status cuda_count_wide_blocks(const struct mx8_exec *x, const struct mx8_quant_job *j, int64_t *count); // gaps.cu
size_t cuda_attention_workspace(const struct mx8_attention_job *j, int32_t backward, int32_t threads);
size_t cuda_embedding_workspace(const struct mx8_embedding_job *j);
enum mx8_status cuda_add(const struct mx8_exec *x, void *y, const void *a, const void *b, int32_t dtype, int64_t n);
enum mx8_status cuda_cast(const struct mx8_exec *x, void *y, int32_t y_dtype, const void *a, int32_t a_dtype, int64_t n);
enum mx8_status cuda_scale(const struct mx8_exec *x, float *y, const float *factor, float value, int64_t n);
enum mx8_status cuda_sum_squares(const struct mx8_exec *x, double *out, const float *a, int64_t n);
enum mx8_status cuda_sum(const struct mx8_exec *x, double *out, const float *a, int64_t n);
enum mx8_status cuda_clip_factor(const struct mx8_exec *x, float *factor, float *norm, const double *sum_squares, float max_norm);
enum mx8_status cuda_check_finite(const struct mx8_exec *x, int32_t *flag, const void *a, int32_t dtype, int64_t n);
// quantize.cu's fast form; UNSUPPORTED without a message when the job is not for it.
enum mx8_status cuda_quantize_fused(const struct mx8_exec *x, const struct mx8_quant_job *j);
// attention.cu's first choice; UNSUPPORTED without a message when the job is not for it. text: which one it is, and why.
enum mx8_status cuda_open_attention(struct cuda_backend *b, char *text, size_t text_size);
void cuda_close_attention(struct cuda_backend *b);
enum mx8_status cuda_attention_cudnn(const struct mx8_exec *x, const struct mx8_attention_job *j, int32_t backward);
size_t cuda_attention_cudnn_workspace(const struct mx8_attention_job *j, int32_t backward);
enum mx8_status cuda_rmsnorm_quantize(const struct mx8_exec *x, const struct mx8_rmsnorm_job *j, const struct mx8_quant_job *codes);
enum mx8_status cuda_quantize_from(const struct mx8_exec *x, const struct mx8_quant_source *s, const struct mx8_quant_job *j);
enum mx8_status cuda_adamw_quantize(const struct mx8_exec *x, const struct mx8_adamw_job *a, const struct mx8_quant_job *j);
enum mx8_status cuda_quantize_swiglu_backward(const struct mx8_exec *x, const struct mx8_swiglu_job *s,
                                              const struct mx8_quant_job *dgate, const struct mx8_quant_job *dup);
// GEMM paths: gemm.cu chooses. Each returns UNSUPPORTED without a message when the job is not for it.
enum mx8_status cuda_gemm_sm90(const struct mx8_exec *x, const struct mx8_gemm_job *j);
enum mx8_status cuda_gemm_bias_sm90(const struct mx8_exec *x, const struct mx8_gemm_job *j); // its choice, for jobs with a bias
enum mx8_status cuda_gemm_lt(const struct mx8_exec *x, const struct mx8_gemm_job *j);
enum mx8_status cuda_gemm_mma(const struct mx8_exec *x, const struct mx8_gemm_job *j);
enum mx8_status cuda_gemm_simt(const struct mx8_exec *x, const struct mx8_gemm_job *j);
#endif
#endif
