/* One kernel table. isa_<isa>.c defines the instruction set and includes this file; every kernel below is a static
 * function named as its entry, so a table is whole by construction and nothing but the table is exported. */
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/gemm.inl"
#include "kernels/cpu/quantize.inl"
#include "kernels/cpu/dequantize.inl"
#include "kernels/cpu/colsum.inl"
#include "kernels/cpu/model_norm.inl"
#include "kernels/cpu/model_rope.inl"
#include "kernels/cpu/model_attention.inl"
#include "kernels/cpu/model_router.inl"
#include "kernels/cpu/model_permute.inl"
#include "kernels/cpu/model_swiglu.inl"
#include "kernels/cpu/model_embedding.inl"
#include "kernels/cpu/model_loss.inl"
#include "kernels/cpu/model_optimizer.inl"
#include "kernels/cpu/model_elementwise.inl"

/* One size fits every kernel that asks for scratch; only the quantizers' part grows with the threads. */
static size_t scratch_size(int32_t threads) {
    size_t gemm_bytes = gemm_scratch_bytes(), quantize_bytes = (size_t)threads * CELL_SCRATCH;
    return gemm_bytes > quantize_bytes ? gemm_bytes : quantize_bytes;
}

const struct mx8_kernels MX8_ISA_TABLE = {
    .name = MX8_ISA_NAME,
    .scratch_size = scratch_size,
    .allocate = mx8i_cpu_allocate,
    .release = mx8i_cpu_release,
    .get_free_memory = mx8i_cpu_get_free_memory,
    .upload = mx8i_cpu_copy,
    .download = mx8i_cpu_copy,
    .copy = mx8i_cpu_copy,
    .copy_lines = mx8i_cpu_copy_lines,
    .fill = mx8i_cpu_fill,
    .synchronize = mx8i_cpu_synchronize,
    .mark = mx8i_cpu_mark,
    .read_marks = mx8i_cpu_read_marks,
    .release_timer = mx8i_cpu_release_timer,

    .quantize = quantize,
    .count_wide_blocks = mx8i_cpu_count_wide_blocks,
    .dequantize = dequantize,
    .block_scales = mx8i_cpu_block_scales,
    .unblock_scales = mx8i_cpu_unblock_scales,
    .pad_groups = mx8i_cpu_pad_groups,
    .unpad_groups = mx8i_cpu_unpad_groups,
    .gemm = gemm,
    .colsum = colsum,

    .rmsnorm = rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .rope = rope,
    .attention_workspace = attention_workspace,
    .attention = attention,
    .attention_backward = attention_backward,
    .router = router,
    .router_backward = router_backward,
    .permute = permute,
    .permute_backward = permute_backward,
    .combine = combine,
    .combine_backward = combine_backward,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .clamp = clamp,
    .clamp_backward = clamp_backward,
    .embedding_workspace = embedding_workspace,
    .embedding = embedding,
    .embedding_backward = embedding_backward,
    .cross_entropy = cross_entropy,
    .adamw = adamw,
    .adamw_quantize = adamw_quantize,
    .fill_normal = mx8i_cpu_fill_normal,
    .add = add,
    .cast = cast,
    .scale = scale,
    .sum_squares = sum_squares,
    .sum = sum,
    .clip_factor = clip_factor,
    .check_finite = check_finite,
};
