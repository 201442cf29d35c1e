/* Inputs and outputs of every row of the operator table, in order. `?` marks an optional one (a zeroed tensor). Model
 * code fills struct mx8_op_call by these positions; the schema text of each row says the same to the outside.
 *
 * Shapes. T tokens (rows), Mp(M) = roundup(M, 32), with groups Mp(M,G) = roundup(M + A G, A), A = options.alignment (32). Scales are uint8 (e8m0).
 * hp means bf16 or f32. Codes are stored row-major with unit inner stride unless stated.
 *
 *  quantize_rows   (x (M,K))                       -> (codes (M,K), scales (M,K/32))
 *  quantize_cols   (x (M,K), offsets? (G))         -> (codes (K,Mp), scales (K,Mp/32), ends? (G) i32)
 *                  without offsets codes are (K,M) and scales (K,ceil(M/32)), ends is absent
 *  quantize_both   (x, offsets?)                   -> (row_codes, row_scales, col_codes, col_scales, ends?)
 *  quantize_3d     (w (E,N,K))                     -> (codes (E,N,K) strides (N*K,1,N), scales (E,N/32,K))
 *  dequantize      (codes (..,K), scales (..,K/32)) -> x (..,K)
 *  block_scales    (scales, offsets?)              -> (blocked, starts (G+1) i64)      starts absent without groups
 *  unblock_scales  (blocked, offsets?, like)       -> scales     `like`: data-less tensor giving the plain shape
 *  group_pad       (x (M,K), offsets (G))          -> (padded (roundup(M+G*A,A),K), starts (G), ends (G))
 *        backward  (dpadded, starts, offsets, like x) -> dx
 *  group_unpad     (padded, starts, offsets, like x (M,K)) -> x
 *
 *  linear          (x (M,K)?, w (N,K)?, bias? (N), xq?, xs?, wq?, ws?) -> y (M,N)
 *                  MXFP8: row codes of x and of w are taken where given (xq (M,K), xs (M,K/32), wq (N,K), ws (N,K/32)),
 *                  else made in the workspace. x or w may be absent when its codes are given.
 *        backward  (dy (M,N), x?, w?, dyq?, dys?, dyq_t? (N,Mp), dys_t? (N,Mp/32), xq_t? (K,Mp), xs_t? (K,Mp/32),
 *                   wq_t? (K,N), ws_t? (K,N/32)) -> (dx? (M,K), dw? (N,K) f32 or hp, dbias? (N) f32)
 *  grouped_linear  (x? (M,K), w? (E,N,K), offsets (E), bias? (N), xq?, xs?, wq? (E,N,K), ws? (E,N,K/32)) -> y (M,N)
 *        backward  (dy, x?, w?, offsets, dyq?, dys?, dyq_t? (N,Mp(M,E)), dys_t?, ends? (E), xq_t? (K,Mp(M,E)), xs_t?,
 *                   wq_t? (E,N,K) strides (N*K,1,N), ws_t? (E,N/32,K)) -> (dx?, dw? (E,N,K), dbias? (N) f32)
 *                  Rows at and past offsets[E-1] of y and dx are zero and of x and dy never read. bias is one vector
 *                  shared by all experts (torchao's contract). `ends` are the padded ends that quantize_cols or _both
 *                  gave for these offsets.
 *
 *  embedding       (tokens (T) i32, w (V,D))       -> y (T,D)
 *        backward  (dy, tokens)  options.seq_len unused; out dw (V,D) f32 (shape given by the caller's output)
 *  rmsnorm         (x (T,D), w (D), add? (T,D))    -> (y, rstd (T) f32, sum? (T,D))
 *        backward  (dy, x, w, rstd, dres?)         -> (dx, dw? (D) f32)     x is `sum` when add was given
 *  rope            (x (T,H*d), table (S,d/2,2) f32) -> y       options.n_heads; y may alias x
 *        backward  (dy, table)                     -> dx
 *  attention       (q (T,H*d), k (T,KV*d), v, doc? (T) i32) -> (o (T,H*d), lse (T,H) f32)
 *        backward  (do, q, k, v, o, lse, doc?)     -> (dq, dk, dv)
 *  router          (logits (T,E), bias? (E) f32)   -> (scores (T,E) f32, indices (T,k) i32, weights (T,k) f32,
 *                                                      order (T*k) i32, positions (T,k) i32, offsets (E) i32)
 *        backward  (dweights (T,k) f32, scores, indices, weights) -> dlogits (T,E)
 *  permute         (x (T,D), order (T*k), positions (T,k), weights? (T,k)) -> rows (T*k,D)
 *        backward  (drows, x?, order, positions, weights?, dres?) -> (dx (T,D), dweights? (T,k))
 *  combine         (rows (T*k,D), order, positions, weights?, base? (T,D)) -> y (T,D)
 *        backward  (dy, rows?, order, positions, weights?) -> (drows, dweights?)
 *  swiglu          (gate (M,F), up (M,F))          -> h (M,F)
 *        backward  (dh, gate, up)                  -> (dgate, dup)
 *  lm_head_loss    (h (T,D), w? (V,D), targets (T) i32, wq?, ws?) -> loss (1) f64   sum over targets >= 0, times
 *                                                                    options.loss_scale (0: 1 / number of rows T)
 *        backward  (h, w?, targets, wq?, ws?, wq_t?, ws_t?) -> (loss (1) f64, dh (T,D), dw? (V,D) f32)
 *                  The gradient of the same loss; logits exist only chunk_rows rows at a time, in the dtype of h.
 *  add             (a, b)                          -> y
 *  clamp           (x (M,F))                       -> y (M,F)
 *        backward  (dy, x)                         -> dx
 *  swiglu_quantize (gate (M,F), up, offsets?)      -> (row_codes? (M,F), row_scales?, col_codes? (F,Mp), col_scales?, ends?)
 *  permute_quantize (x (T,D), order (T*k), positions (T,k), weights?, offsets?) -> the same of rows (T*k,D)
 *  rmsnorm_quantize (x (T,D), w (D), add? (T,D))   -> (y, rstd (T) f32, sum? (T,D), codes (T,D), scales (T,D/32))
 *  quantize_experts (w (E,N,K))                    -> (row_codes (E,N,K), row_scales (E,N,K/32), codes, scales as quantize_3d)
 *  swiglu_backward_quantize (dh (M,F), gate, up, offsets?) -> (dgate's row_codes? (M,F), row_scales?, col_codes? (F,Mp), col_scales?, dup's)
 *
 * options.accumulate adds into dw, dbias and the rmsnorm and embedding weight gradients. Weight gradients are f32 unless
 * the caller's output says bf16. */
#ifndef MX8_OPS_ROWS_H
#define MX8_OPS_ROWS_H

#include "mx8/ops.h"
#include "kernels/kernels.h"

enum mx8_row { /* index of a row in the table */
    MX8_OP_QUANTIZE_ROWS, MX8_OP_QUANTIZE_COLS, MX8_OP_QUANTIZE_BOTH, MX8_OP_QUANTIZE_3D, MX8_OP_DEQUANTIZE,
    MX8_OP_BLOCK_SCALES, MX8_OP_UNBLOCK_SCALES, MX8_OP_GROUP_PAD, MX8_OP_GROUP_UNPAD,
    MX8_OP_LINEAR, MX8_OP_GROUPED_LINEAR,
    MX8_OP_EMBEDDING, MX8_OP_RMSNORM, MX8_OP_ROPE, MX8_OP_ATTENTION, MX8_OP_ROUTER, MX8_OP_PERMUTE, MX8_OP_COMBINE,
    MX8_OP_SWIGLU, MX8_OP_LM_HEAD_LOSS, MX8_OP_ADD, MX8_OP_CLAMP, MX8_OP_SWIGLU_QUANTIZE, MX8_OP_PERMUTE_QUANTIZE,
    MX8_OP_RMSNORM_QUANTIZE, MX8_OP_QUANTIZE_EXPERTS, MX8_OP_SWIGLU_BACKWARD_QUANTIZE,
    MX8_OP_COUNT
};

/* Rows that hold the padded groups of M rows in G groups: the bound that needs no look at the offsets. */
int64_t mx8i_padded_rows(int64_t M, int32_t G, int64_t alignment);

#endif
