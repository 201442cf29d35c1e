/* Typed entry points for the quantizers, scale layouts and group padding: thin forms of the operator table's rows.
 *
 * Common to all: codes are MX8_F8_E4M3 (or MX8_F8_E5M2 with options->format), scales are MX8_F8_E8M0; X is bf16 or f32
 * with any strides; options may be NULL (all defaults). A NaN or Inf in a block gives scale byte 255 and NaN codes for
 * the whole block; a block of zeros gives scale byte 0 and signed zeros. Inputs and outputs may not overlap. Any size
 * may be 0. Errors: INVALID_ARGUMENT naming the tensor, what it has and what was expected. Source: OCP MX v1.0 section
 * 6.3 and, for corners, torchao's to_mx of 2026-08. Blocks at the end of an axis that is no multiple of 32 are short:
 * they behave as if zeros followed. Plain functions need no workspace. */
#ifndef MX8_QUANT_H
#define MX8_QUANT_H

#include "mx8/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1x32 blocks along K. x (M,K); codes (M,K); scales (M, ceil(K/32)). */
MX8_API enum mx8_status mx8_quantize_rows(struct mx8_context *ctx, const struct mx8_tensor *codes,
    const struct mx8_tensor *scales, const struct mx8_tensor *x, const struct mx8_op_options *options);

/* 32x1 blocks along M, stored transposed. x (M,K); codes (K,M); scales (K, ceil(M/32)). */
MX8_API enum mx8_status mx8_quantize_cols(struct mx8_context *ctx, const struct mx8_tensor *codes,
    const struct mx8_tensor *scales, const struct mx8_tensor *x, const struct mx8_op_options *options);

/* Both of the above from one read of x; the bits are those of the two separate calls. */
MX8_API enum mx8_status mx8_quantize_both(struct mx8_context *ctx, const struct mx8_tensor *row_codes,
    const struct mx8_tensor *row_scales, const struct mx8_tensor *col_codes, const struct mx8_tensor *col_scales,
    const struct mx8_tensor *x, const struct mx8_op_options *options);

/* Expert weights w (E,N,K) in 32x1 blocks along N: codes of shape (E,N,K) with strides exactly (N*K, 1, N), scales
 * (E, ceil(N/32), K) row-major. This is the right operand of the input gradient (contraction over N contiguous). */
MX8_API enum mx8_status mx8_quantize_3d(struct mx8_context *ctx, const struct mx8_tensor *codes,
    const struct mx8_tensor *scales, const struct mx8_tensor *w, const struct mx8_op_options *options);

/* codes (..., K) and scales (..., ceil(K/32)) back to bf16 or f32, blocks along the last axis. Scale byte 255 gives
 * NaN. The product code * 2^(byte-127) is rounded once to the output dtype (exact in f32, and in bf16 when normal). */
MX8_API enum mx8_status mx8_dequantize(struct mx8_context *ctx, const struct mx8_tensor *x,
    const struct mx8_tensor *codes, const struct mx8_tensor *scales, const struct mx8_op_options *options);

/* Plain scales to the 128x4 blocked layout that Blackwell's tensor cores and cuBLAS read, and back. options->layout
 * picks the variant; offsets (G) int32 is needed by the group variants and absent otherwise (NULL or zeroed).
 *   PLAIN      scales (R,C)    -> (roundup(R,128) * roundup(C,4)) bytes
 *   M_GROUPS   scales (R,C)    -> (R + 128 * G, roundup(C,4)): an upper bound, so no host synchronisation
 *   K_GROUPS   scales (R,C)    -> (roundup(R,128), C + 4 * G)
 *   PER_EXPERT scales (E,R,C)  -> (E, roundup(R,128) * roundup(C,4))
 * `starts` (G+1) int64, may be NULL: first row or column of each group in the output. Unused bytes are zero. */
MX8_API enum mx8_status mx8_block_scales(struct mx8_context *ctx, const struct mx8_tensor *blocked,
    const struct mx8_tensor *starts, const struct mx8_tensor *scales, const struct mx8_tensor *offsets,
    const struct mx8_op_options *options);
MX8_API enum mx8_status mx8_unblock_scales(struct mx8_context *ctx, const struct mx8_tensor *scales,
    const struct mx8_tensor *blocked, const struct mx8_tensor *offsets, const struct mx8_op_options *options);

/* x (M,K) with groups ending at offsets (G) int32 -> padded (roundup(M + G*A, A), K): group g copied to row starts[g],
 * group sizes rounded up to A = options->alignment (0: 32), every other row zero. starts, ends (G) int32; ends are
 * cumulative. Empty groups take no rows. Rows of x at and past offsets[G-1] are not copied. No host synchronisation. */
MX8_API enum mx8_status mx8_pad_groups(struct mx8_context *ctx, const struct mx8_tensor *padded,
    const struct mx8_tensor *starts, const struct mx8_tensor *ends, const struct mx8_tensor *x,
    const struct mx8_tensor *offsets, const struct mx8_op_options *options);
/* The reverse; rows of x (M,K) at and past offsets[G-1] become zero. */
MX8_API enum mx8_status mx8_unpad_groups(struct mx8_context *ctx, const struct mx8_tensor *x,
    const struct mx8_tensor *padded, const struct mx8_tensor *starts, const struct mx8_tensor *offsets,
    const struct mx8_op_options *options);

#ifdef __cplusplus
}
#endif
#endif
