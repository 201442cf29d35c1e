/* One kernel table. isa_<isa>.c defines the instruction set and includes this file; every kernel below is a static
 * function named as its entry, so a table is whole by construction and nothing but the table is exported. */
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/simd.h"

#if __has_include("kernels/cpu/quantize.inl")
#include "kernels/cpu/quantize.inl"
#define HAVE_QUANTIZE(f) f
#else
#define HAVE_QUANTIZE(f) NULL
#endif
#if __has_include("kernels/cpu/gemm.inl")
#include "kernels/cpu/gemm.inl"
#define HAVE_GEMM(f) f
#else
#define HAVE_GEMM(f) NULL
#endif
#if __has_include("kernels/cpu/colsum.inl")
#include "kernels/cpu/colsum.inl"
#define HAVE_COLSUM(f) f
#else
#define HAVE_COLSUM(f) NULL
#endif
#if __has_include("kernels/cpu/model_norm.inl")
#include "kernels/cpu/model_norm.inl"
#define HAVE_NORM(f) f
#else
#define HAVE_NORM(f) NULL
#endif
#if __has_include("kernels/cpu/model_rope.inl")
#include "kernels/cpu/model_rope.inl"
#define HAVE_ROPE(f) f
#else
#define HAVE_ROPE(f) NULL
#endif
#if __has_include("kernels/cpu/model_attention.inl")
#include "kernels/cpu/model_attention.inl"
#define HAVE_ATTENTION(f) f
#else
#define HAVE_ATTENTION(f) NULL
#endif
#if __has_include("kernels/cpu/model_router.inl")
#include "kernels/cpu/model_router.inl"
#define HAVE_ROUTER(f) f
#else
#define HAVE_ROUTER(f) NULL
#endif
#if __has_include("kernels/cpu/model_permute.inl")
#include "kernels/cpu/model_permute.inl"
#define HAVE_PERMUTE(f) f
#else
#define HAVE_PERMUTE(f) NULL
#endif
#if __has_include("kernels/cpu/model_swiglu.inl")
#include "kernels/cpu/model_swiglu.inl"
#define HAVE_SWIGLU(f) f
#else
#define HAVE_SWIGLU(f) NULL
#endif
#if __has_include("kernels/cpu/model_embedding.inl")
#include "kernels/cpu/model_embedding.inl"
#define HAVE_EMBEDDING(f) f
#else
#define HAVE_EMBEDDING(f) NULL
#endif
#if __has_include("kernels/cpu/model_loss.inl")
#include "kernels/cpu/model_loss.inl"
#define HAVE_LOSS(f) f
#else
#define HAVE_LOSS(f) NULL
#endif
#if __has_include("kernels/cpu/model_optimizer.inl") && __has_include("kernels/cpu/model_elementwise.inl")
#include "kernels/cpu/model_optimizer.inl"
#include "kernels/cpu/model_elementwise.inl"
#define HAVE_ELEMENTWISE(f) f
#else
#define HAVE_ELEMENTWISE(f) NULL
#endif

#if !__has_include("kernels/cpu/gemm.inl")
static size_t scratch_size(int32_t threads) { return (size_t)threads << 20; }
#endif

const struct mx8_kernels MX8_ISA_TABLE = {
    .name = MX8_ISA_NAME,
    .scratch_size = scratch_size,
    .allocate = mx8i_cpu_allocate,
    .release = mx8i_cpu_release,
    .upload = mx8i_cpu_copy,
    .download = mx8i_cpu_copy,
    .copy = mx8i_cpu_copy,
    .fill = mx8i_cpu_fill,
    .synchronize = mx8i_cpu_synchronize,

    .quantize = HAVE_QUANTIZE(quantize),
    .dequantize = HAVE_QUANTIZE(dequantize),
    .block_scales = mx8i_cpu_block_scales,
    .unblock_scales = mx8i_cpu_unblock_scales,
    .pad_groups = mx8i_cpu_pad_groups,
    .unpad_groups = mx8i_cpu_unpad_groups,
    .gemm = HAVE_GEMM(gemm),
    .colsum = HAVE_COLSUM(colsum),

    .rmsnorm = HAVE_NORM(rmsnorm),
    .rmsnorm_backward = HAVE_NORM(rmsnorm_backward),
    .rope = HAVE_ROPE(rope),
    .attention_workspace = HAVE_ATTENTION(attention_workspace),
    .attention = HAVE_ATTENTION(attention),
    .attention_backward = HAVE_ATTENTION(attention_backward),
    .router = HAVE_ROUTER(router),
    .router_backward = HAVE_ROUTER(router_backward),
    .permute = HAVE_PERMUTE(permute),
    .permute_backward = HAVE_PERMUTE(permute_backward),
    .combine = HAVE_PERMUTE(combine),
    .combine_backward = HAVE_PERMUTE(combine_backward),
    .swiglu = HAVE_SWIGLU(swiglu),
    .swiglu_backward = HAVE_SWIGLU(swiglu_backward),
    .embedding_workspace = HAVE_EMBEDDING(embedding_workspace),
    .embedding = HAVE_EMBEDDING(embedding),
    .embedding_backward = HAVE_EMBEDDING(embedding_backward),
    .cross_entropy = HAVE_LOSS(cross_entropy),
    .adamw = HAVE_ELEMENTWISE(adamw),
    .add = HAVE_ELEMENTWISE(add),
    .cast = HAVE_ELEMENTWISE(cast),
    .scale = HAVE_ELEMENTWISE(scale),
    .sum_squares = HAVE_ELEMENTWISE(sum_squares),
    .sum = HAVE_ELEMENTWISE(sum),
    .clip_factor = HAVE_ELEMENTWISE(clip_factor),
    .check_finite = HAVE_ELEMENTWISE(check_finite),
};
