// Opening a CUDA device: properties, handles, memory functions, and the kernel table.
#include <stdio.h>
#include <string.h>
#include "backend.h"

const struct mx8_cuda_host *mx8i_cuda_host;

// Scratch of a context on the device: partial results of reductions, the GEMM's fp32 scales, cuBLASLt's workspace.
static const size_t SCRATCH_BYTES = (size_t)96 << 20;
static size_t scratch_size(int32_t threads) { (void)threads; return SCRATCH_BYTES; }

static enum mx8_status allocate(const struct mx8_exec *x, size_t bytes, void **out) {
    (void)x;
    *out = NULL;
    cudaError_t e = cudaMalloc(out, bytes ? bytes : 1);
    if (e == cudaSuccess) return MX8_OK;
    cudaGetLastError(); // the failure is reported here; it must not surface at the next launch
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    if (e != cudaErrorMemoryAllocation)
        return CUDA_FAIL(MX8_CUDA_ERROR, "cuda allocate: %s", cudaGetErrorString(e));
    return CUDA_FAIL(MX8_OUT_OF_MEMORY, "cuda allocate: %.2f GiB asked for, %.2f of %.2f GiB free", (double)bytes / 1073741824.0,
                     (double)free_bytes / 1073741824.0, (double)total / 1073741824.0);
}

static void release(const struct mx8_exec *x, void *p) { (void)x; cudaFree(p); }

// Other processes may hold a part of the card: what is free now, not what it has.
static int64_t get_free_memory(const struct mx8_exec *x) {
    (void)x;
    size_t free_bytes = 0, total = 0;
    if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess) return (int64_t)free_bytes;
    cudaGetLastError();
    return 0;
}

static enum mx8_status upload(const struct mx8_exec *x, void *dst, const void *src, size_t bytes) {
    // Pageable memory is staged before the call returns, so the caller may reuse src at once.
    CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, stream_of(x)), "upload");
    return MX8_OK;
}
static enum mx8_status download(const struct mx8_exec *x, void *dst, const void *src, size_t bytes) {
    CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, stream_of(x)), "download");
    CUDA_TRY(cudaStreamSynchronize(stream_of(x)), "download");
    return MX8_OK;
}
static enum mx8_status copy(const struct mx8_exec *x, void *dst, const void *src, size_t bytes) {
    CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream_of(x)), "copy");
    return MX8_OK;
}
static enum mx8_status copy_lines(const struct mx8_exec *x, void *dst, size_t dst_stride, const void *src,
                                  size_t src_stride, int64_t lines, size_t bytes) {
    if (lines <= 0 || !bytes) return MX8_OK;
    CUDA_TRY(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, bytes, (size_t)lines, cudaMemcpyDeviceToDevice,
                               stream_of(x)), "copy_lines");
    return MX8_OK;
}
static enum mx8_status fill(const struct mx8_exec *x, void *dst, int32_t byte, size_t bytes) {
    CUDA_TRY(cudaMemsetAsync(dst, byte, bytes, stream_of(x)), "fill");
    return MX8_OK;
}
static enum mx8_status synchronize(const struct mx8_exec *x) {
    CUDA_TRY(cudaStreamSynchronize(stream_of(x)), "synchronize");
    return MX8_OK;
}

static struct mx8_kernels make_table(const char *name) {
    struct mx8_kernels k;
    memset(&k, 0, sizeof k);
    k.name = name;
    k.scratch_size = scratch_size;
    k.allocate = allocate; k.release = release; k.get_free_memory = get_free_memory; k.upload = upload; k.download = download;
    k.copy = copy; k.copy_lines = copy_lines; k.fill = fill; k.synchronize = synchronize;
    k.mark = cuda_mark; k.read_marks = cuda_read_marks; k.release_timer = cuda_release_timer;
    k.make_stream = cuda_make_stream; k.begin_graph = cuda_begin_graph; k.end_graph = cuda_end_graph;
    k.launch_graph = cuda_launch_graph; k.release_graph = cuda_release_graph;
    k.quantize = cuda_quantize; k.count_wide_blocks = cuda_count_wide_blocks; k.dequantize = cuda_dequantize;
    k.block_scales = cuda_block_scales; k.unblock_scales = cuda_unblock_scales;
    k.pad_groups = cuda_pad_groups; k.unpad_groups = cuda_unpad_groups;
    k.gemm = cuda_gemm; k.colsum = cuda_colsum;
    k.rmsnorm = cuda_rmsnorm; k.rmsnorm_backward = cuda_rmsnorm_backward; k.rope = cuda_rope;
    k.attention_workspace = cuda_attention_workspace;
    k.attention = cuda_attention; k.attention_backward = cuda_attention_backward;
    k.router = cuda_router; k.router_backward = cuda_router_backward;
    k.permute = cuda_permute; k.permute_backward = cuda_permute_backward;
    k.combine = cuda_combine; k.combine_backward = cuda_combine_backward;
    k.swiglu = cuda_swiglu; k.swiglu_backward = cuda_swiglu_backward;
    k.clamp = cuda_clamp; k.clamp_backward = cuda_clamp_backward;
    k.embedding_workspace = cuda_embedding_workspace;
    k.embedding = cuda_embedding; k.embedding_backward = cuda_embedding_backward;
    k.cross_entropy = cuda_cross_entropy; k.adamw = cuda_adamw; k.adamw_quantize = cuda_adamw_quantize; k.fill_normal = cuda_fill_normal; k.quantize_from = cuda_quantize_from;
    k.quantize_swiglu_backward = cuda_quantize_swiglu_backward;
    k.rmsnorm_quantize = cuda_rmsnorm_quantize;
    k.add = cuda_add; k.cast = cuda_cast; k.scale = cuda_scale;
    k.sum_squares = cuda_sum_squares; k.sum = cuda_sum; k.clip_factor = cuda_clip_factor;
    k.check_finite = cuda_check_finite;
    return k;
}

static void close_backend(void *p) {
    cuda_backend *b = (cuda_backend *)p;
    if (!b) return;
    cuda_close_attention(b);
    if (b->lt) cublasLtDestroy(b->lt);
    if (b->stream) cudaStreamDestroy(b->stream);
    delete b;
}

static enum mx8_status find_device(int32_t ordinal, struct cudaDeviceProp *prop) {
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0) {
        cudaGetLastError();
        return CUDA_FAIL(MX8_UNSUPPORTED, "mx8_create_context: no CUDA device: %s", e == cudaSuccess ? "the driver lists none" : cudaGetErrorString(e));
    }
    if (ordinal < 0 || ordinal >= count)
        return CUDA_FAIL(MX8_INVALID_ARGUMENT, "mx8_create_context: ordinal is %d, expected 0 to %d", ordinal, count - 1);
    CUDA_TRY(cudaSetDevice(ordinal), "set device");
    CUDA_TRY(cudaGetDeviceProperties(prop, ordinal), "device properties");
    if (prop->major < 8)
        return CUDA_FAIL(MX8_UNSUPPORTED, "mx8_create_context: %s has compute capability %d.%d, expected 8.0 or newer", prop->name, prop->major, prop->minor);
    return MX8_OK;
}

extern "C" __attribute__((visibility("default"))) enum mx8_status
mx8_open_cuda(const struct mx8_cuda_host *host, int32_t ordinal, const struct mx8_kernels **kernels, void **backend,
              struct mx8_cuda_info *info, void (**close)(void *backend)) {
    static const struct mx8_kernels sm90 = make_table("cuda-sm90"), generic = make_table("cuda-sm80");
    mx8i_cuda_host = host;
    struct cudaDeviceProp prop;
    enum mx8_status s = find_device(ordinal, &prop);
    if (s != MX8_OK) return s;
    cuda_backend *b = new cuda_backend();
    b->ordinal = ordinal;
    b->capability = prop.major * 10 + prop.minor;
    b->sm_count = prop.multiProcessorCount;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&b->encode_map, 12000, cudaEnableDefault, &found) != cudaSuccess)
        b->encode_map = NULL; // an old driver: the sm_90 path is not taken
    cudaGetLastError();
    if (cublasLtCreate(&b->lt) != CUBLAS_STATUS_SUCCESS) {
        close_backend(b);
        return CUDA_FAIL(MX8_LIBRARY_ERROR, "mx8_create_context: cuBLASLt does not start on %s", prop.name);
    }
    char attention[96];
    s = cuda_open_attention(b, attention, sizeof attention);
    if (s != MX8_OK) {
        close_backend(b);
        return s;
    }
    const bool fast = b->capability == 90 && b->encode_map;
    *kernels = fast ? &sm90 : &generic;
    *backend = b;
    *close = close_backend;
    snprintf(info->name, sizeof info->name, "%.63s", prop.name);
    info->capability = b->capability;
    info->sm_count = b->sm_count;
    cudaMemGetInfo(&info->free_memory, &info->total_memory);
    snprintf(info->reason, sizeof info->reason, "%.60s, compute capability %d.%d: %s; attention: %s", prop.name, prop.major, prop.minor,
             fast ? "FP8 tensor-core path for scale groups of 256, exact path for others" : "exact path (no wgmma)", attention);
    return MX8_OK;
}
