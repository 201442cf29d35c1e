/* The kernel table: one struct of function pointers that each backend fills. Operators (src/ops) check shapes and
 * dtypes, then call these with raw pointers; a kernel never validates, allocates, synchronises or reads device data on
 * the host. All sizes are int64_t elements, all strides elements. A size of 0 is legal everywhere and does nothing.
 *
 * Pointers are device pointers of the backend (host pointers on the CPU). `dtype` fields are enum mx8_dtype; a data
 * pointer described by one is bf16 or f32 unless stated. Arithmetic is fp32 inside; results are rounded once when
 * stored. Deterministic: the same inputs give the same bits, whatever the thread count.
 *
 * Letters: T tokens, D model dim, F ffn dim, E experts, H heads, V vocabulary, M N K of a matrix product, G groups. */
#ifndef MX8_KERNELS_KERNELS_H
#define MX8_KERNELS_KERNELS_H

#include <stdint.h>
#include <stddef.h>
#include "mx8/status.h"
#include "mx8/tensor.h"
#include "formats/jobs.h" /* quantize, dequantize, layout and padding jobs */

struct mx8_kernels;
struct mx8_profile;

/* Where and how a kernel runs. */
struct mx8_exec {
    const struct mx8_kernels *k;
    void *stream;         /* CUDA */
    int32_t threads;      /* CPU: OpenMP threads to use, >= 1 */
    int32_t ordinal;      /* CUDA device, -1 on the CPU */
    void *scratch;        /* k->scratch_size(threads) bytes, 4096-aligned, owned by the context; contents undefined */
    size_t scratch_bytes;
    void *backend;        /* what the backend keeps per context (CUDA handles, device properties); NULL on the CPU */
    struct mx8_profile *profile; /* kernels/profile.h: times every call of the table; NULL: none */
    int64_t *fast_products; /* gemm adds 1 when FP8 tensor cores multiply codes; NULL: nobody counts */
};

/* ---- matrix products ---- */

/* Logical matrix (L lines, K contraction): element (l,k) of group g at data[g*gs + l*ls + k*ks]. dtype F32, BF16,
 * F8_E4M3 or F8_E5M2; with an F8 dtype the scale of (l,k) is scales[g*sgs + l*sls + (k/32)*sks]. */
struct mx8_matrix {
    const void *data; int32_t dtype; int64_t ls, ks, gs;
    const uint8_t *scales; int64_t sls, sks, sgs;
    int32_t scale_group, tile; /* what the quantizer was told: a backend may use the coarser geometry; 0: unknown */
};

enum mx8_gemm_mode {
    MX8_GEMM_DENSE,    /* C (M,N) = A (M,K) B(N,K)^T */
    MX8_GEMM_M_GROUPS, /* rows of A and C in groups: C[r] = A[r] B_g^T; rows past the last end: zero (accumulate: kept) */
    MX8_GEMM_K_GROUPS  /* C_g (M,N) = A[:, range g] B[:, range g]^T; an empty group gives zero (or leaves C: accumulate) */
};

/* C = A B^T (+ bias) (+ C). fp32 accumulation; bias (N) of bias_dtype, added once, may be NULL. In K_GROUPS the ranges
 * are [ends[g-1], ends[g]) in k; F8 operands need starts that are multiples of 32 (padded ends of the quantizer). */
struct mx8_gemm_job {
    enum mx8_gemm_mode mode;
    int64_t M, N, K; int32_t G; const int32_t *offsets;
    struct mx8_matrix a, b;
    void *c; int32_t c_dtype; int64_t c_ls, c_gs; int32_t accumulate; /* accumulate: c is F32 or BF16, read and added */
    const void *bias; int32_t bias_dtype;
    int32_t padding; /* K_GROUPS of F8 operands: what every range's length is a multiple of; 0: 32 */
    int32_t exact;  /* use dequantized operands in high precision even where a faster path exists */
};

/* out (N) [+]= sum over rows of x (M,N): bias gradients. F32 output. With n_groups > 0 only rows before the last end. */
struct mx8_colsum_job {
    float *out; const void *x; int32_t dtype; int64_t M, N, ls; int32_t accumulate; const int32_t *offsets; int32_t n_groups;
};

/* ---- model kernels ---- */

/* y = (x + add) * rstd * w, rstd = 1 / sqrt(mean((x + add)^2) + eps). add and sum may be NULL; sum receives x + add
 * (rounded to dtype; the norm is of the rounded value). All (T,D) row-major of dtype; w (D) of w_dtype; rstd (T) f32. */
struct mx8_rmsnorm_job {
    int64_t T, D; int32_t dtype, w_dtype; float eps;
    const void *x, *add, *w; void *y, *sum; float *rstd;
};
/* dx = dnorm/dx * dy + dres (dres may be NULL and may be dx itself); dw (D) f32 += (accumulate) or = . */
struct mx8_rmsnorm_backward_job {
    int64_t T, D; int32_t dtype, w_dtype;
    const void *dy, *x, *w, *dres; const float *rstd; void *dx; float *dw; int32_t accumulate;
};

/* Rotates pairs (2i, 2i+1) of each head: x (T, H, d) row stride ls; table (S, d/2, 2) f32 holds cos, sin of position
 * t % S. inverse = 1 turns the other way (backward). y may be x. */
struct mx8_rope_job {
    int64_t T, H, d, S; int32_t dtype, inverse; const void *x; void *y; int64_t x_ls, y_ls; const float *table;
};

/* Causal attention with grouped heads over B = T/S sequences: query head h uses kv head h / (H/KV). o (T,H*d),
 * lse (T,H) f32 natural log. Row strides are given; heads are contiguous inside a row. doc (T) int32, may be NULL: key j is
 * visible to query i (same sequence, j <= i) iff doc[i] == doc[j] and, with chunk > 0, i/chunk == j/chunk (positions in
 * the sequence). A position always sees itself. */
struct mx8_attention_job {
    int64_t T, S, H, KV, d; int32_t dtype; float scale; int64_t chunk; const int32_t *doc;
    const void *q, *k, *v; int64_t q_ls, k_ls, v_ls, o_ls;
    void *o; float *lse;                            /* forward writes, backward reads */
    const void *dout; void *dq, *dk, *dv; int64_t do_ls, dq_ls, dk_ls, dv_ls; /* backward */
    void *workspace;  /* attention_workspace() bytes */
};

/* scores = sigmoid or softmax of logits (T,E) in f32; the top_k largest of scores + bias (bias (E) f32, may be NULL; ties:
 * lowest index), in falling order; weights = their scores without bias, normalised (route_norm: / (sum + 1e-20)) and times
 * route_scale. Slots s = t*k + j sorted stably by expert: order[p] = s, positions[s] = p, offsets (E) = cumulative ends.
 * NaN logits: NaN sorts as the largest value so that routing stays defined. */
struct mx8_router_job {
    int64_t T, E; int32_t k, score_func, route_norm, dtype; float route_scale;
    const void *logits; const float *bias;
    float *scores, *weights; int32_t *indices, *order, *positions, *offsets; /* forward */
    const float *dweights; void *dlogits;                                    /* backward: reads scores, weights, indices */
};

/* rows[p] = x[order[p]/k] (* weights[order[p]] when weights is given; product in f32). rows (T*k, D). */
struct mx8_permute_job {
    int64_t T, D; int32_t k, dtype; const void *x; const int32_t *order, *positions; const float *weights; void *rows;
    /* backward: dx[t] = sum over j of drows[positions[t,j]] (* weight) + dres (may be NULL, may be dx); with weights also
     * dweights[t,j] = drows[p] . x[t] */
    const void *drows, *dres; void *dx; float *dweights;
};

/* y[t] = base[t] + sum over j (in order) of rows[positions[t,j]] (* weights[t,j]); base may be NULL, may be y. */
struct mx8_combine_job {
    int64_t T, D; int32_t k, dtype; const void *rows, *base; const int32_t *order, *positions; const float *weights; void *y;
    /* backward: drows[p] = dy[order[p]/k] (* weight); with weights also dweights[t,j] = dy[t] . rows[p] */
    const void *dy; void *drows; float *dweights;
};

/* h = silu(gate) * up, (M,F) row strides given. backward: dgate, dup from dh; may overwrite gate and up. */
struct mx8_swiglu_job {
    int64_t M, F; int32_t dtype; const void *gate, *up; void *h; const void *dh; void *dgate, *dup;
    int64_t gate_ls, up_ls, h_ls, dh_ls, dgate_ls, dup_ls;
};

/* y = x where |x| <= limit, else limit with the sign of x; NaN stays. backward: dx = dy where |x| <= limit, else 0. All
 * contiguous, n elements; y may be x, dx may be dy. */
struct mx8_clamp_job { int64_t n; int32_t dtype; float limit; const void *x; void *y; const void *dy; void *dx; };

/* y[t] = w[tokens[t]]; backward dw (V,D) f32 += sum of dy[t] over t in rising order. Tokens outside [0,V) read as 0. */
struct mx8_embedding_job {
    int64_t T, V, D; const int32_t *tokens; const void *w; int32_t w_dtype; void *y; int32_t dtype;
    const void *dy; float *dw; void *workspace; /* backward: embedding_workspace() bytes */
};

/* Over rows of logits (T,V), row stride ls: losses[t] = log(sum(exp(l))) - l[target] in f32 (0 where target < 0), and
 * when grad: logits become (softmax - onehot) * scale in place (0 rows where target < 0). */
struct mx8_cross_entropy_job {
    int64_t T, V, ls; int32_t dtype, grad; float scale; void *logits; const int32_t *targets; float *losses;
    struct mx8_row_softmax *rows; /* (T), may be NULL: what quantize_from makes the gradient of, instead of grad */
};
/* The gradient's row: element v is exp(l[v] - max) * factor, and `hit` at the target; all zero where target < 0. */
struct mx8_row_softmax { float max, factor, hit; int32_t target; };

/* What a quantizer reads where no matrix is stored: values made as they are read and rounded to the job's src_dtype, so
 * that the codes are those of the stored matrix. j->src and its strides are not used. */
enum mx8_quant_source_kind { MX8_FROM_SWIGLU, MX8_FROM_PERMUTE, MX8_FROM_SOFTMAX, MX8_FROM_FLOATS };
struct mx8_quant_source {
    enum mx8_quant_source_kind kind;
    const void *a, *b; int64_t a_ls, b_ls;           /* swiglu: gate, up; permute: x; softmax: logits; floats: f32 values */
    int64_t a_bs;                                    /* floats: from one matrix of the job's batch to the next */
    const int32_t *order; const float *weights; int32_t k; /* permute: row p is x[order[p]/k] (* weights[order[p]]) */
    const struct mx8_row_softmax *rows;              /* softmax */
};

/* AdamW with decoupled decay: g = grad * *grad_scale; m, v, master updated; copy (dtype copy_dtype, may be NULL) gets the
 * rounded weight. bias1 = 1 - beta1^t, bias2 likewise. grad_scale is a device pointer (clip factor), may be NULL.
 * p *= 1 - lr*wd;  p -= lr/bias1 * m / (sqrt(v)/sqrt(bias2) + eps)  (PyTorch's order of operations).
 * moment_dtype BF16: m and v are stored rounded at random (formats/stochastic.h) after the f32 values have made p; element
 * i takes the bits of (rounding, first + i), the low half for m, the high half for v. */
struct mx8_adamw_state { float lr, bias1, bias2; uint32_t rounding; };
struct mx8_adamw_job {
    int64_t n; float lr, beta1, beta2, eps, weight_decay, bias1, bias2; const float *grad_scale;
    float *master; void *m, *v; const float *grad; void *copy; int32_t copy_dtype;
    const struct mx8_adamw_state *state; /* device, may be NULL: read in place of the four values (CUDA graphs) */
    int32_t moment_dtype; uint32_t rounding; uint64_t first;
};

/* out[i] = std * inverse normal distribution function(low + width * u[first + i]), u the uniforms of a Philox stream
 * (base/normal.h): initial weights, the same bits on every device. */
struct mx8_normal_job {
    float *out; int64_t n; uint64_t seed, stream, first; double std, low, width;
};

/* Binades below a shared scale from which on a block loses more than 0.1 dB: docs/numerics.md. */
#define MX8_WIDE_GAP 11

struct mx8_kernels {
    const char *name;                                      /* "cpu-avx2", "cuda-sm90" */
    size_t (*scratch_size)(int32_t threads);
    /* device memory; plain memory on the CPU */
    enum mx8_status (*allocate)(const struct mx8_exec *x, size_t bytes, void **out);
    void (*release)(const struct mx8_exec *x, void *p);
    int64_t (*get_free_memory)(const struct mx8_exec *x); /* bytes that can be allocated now, whoever has the rest; 0 unknown */
    enum mx8_status (*upload)(const struct mx8_exec *x, void *dst, const void *host_src, size_t bytes);
    enum mx8_status (*download)(const struct mx8_exec *x, void *host_dst, const void *src, size_t bytes); /* waits */
    enum mx8_status (*copy)(const struct mx8_exec *x, void *dst, const void *src, size_t bytes);
    /* `lines` times `bytes`; a line starts that many bytes after the one before. Strides at least `bytes`. */
    enum mx8_status (*copy_lines)(const struct mx8_exec *x, void *dst, size_t dst_stride, const void *src,
                                  size_t src_stride, int64_t lines, size_t bytes);
    enum mx8_status (*fill)(const struct mx8_exec *x, void *dst, int32_t byte, size_t bytes);
    enum mx8_status (*synchronize)(const struct mx8_exec *x);
    /* Moments at which all that was asked for before is done. *timer (NULL at first) grows with the largest index; reading
     * waits and gives seconds after mark 0. */
    enum mx8_status (*mark)(const struct mx8_exec *x, void **timer, int64_t index);
    enum mx8_status (*read_marks)(const struct mx8_exec *x, void *timer, int64_t count, double *seconds);
    void (*release_timer)(const struct mx8_exec *x, void *timer); /* accepts NULL */

    enum mx8_status (*quantize)(const struct mx8_exec *x, const struct mx8_quant_job *j);
    /* After quantize: *count (device) += blocks of 32, in each orientation that the job wrote, whose own scale (of their
     * largest value that is not zero, by the job's rule) is more than 2^MX8_WIDE_GAP below the finite scale they share. */
    enum mx8_status (*count_wide_blocks)(const struct mx8_exec *x, const struct mx8_quant_job *j, int64_t *count);
    enum mx8_status (*dequantize)(const struct mx8_exec *x, const struct mx8_dequant_job *j);
    enum mx8_status (*block_scales)(const struct mx8_exec *x, const struct mx8_layout_job *j);
    enum mx8_status (*unblock_scales)(const struct mx8_exec *x, const struct mx8_layout_job *j);
    enum mx8_status (*pad_groups)(const struct mx8_exec *x, const struct mx8_pad_job *j);
    enum mx8_status (*unpad_groups)(const struct mx8_exec *x, const struct mx8_pad_job *j);
    enum mx8_status (*gemm)(const struct mx8_exec *x, const struct mx8_gemm_job *j);
    enum mx8_status (*colsum)(const struct mx8_exec *x, const struct mx8_colsum_job *j);

    enum mx8_status (*rmsnorm)(const struct mx8_exec *x, const struct mx8_rmsnorm_job *j);
    enum mx8_status (*rmsnorm_backward)(const struct mx8_exec *x, const struct mx8_rmsnorm_backward_job *j);
    enum mx8_status (*rope)(const struct mx8_exec *x, const struct mx8_rope_job *j);
    size_t (*attention_workspace)(const struct mx8_attention_job *j, int32_t backward, int32_t threads);
    enum mx8_status (*attention)(const struct mx8_exec *x, const struct mx8_attention_job *j);
    enum mx8_status (*attention_backward)(const struct mx8_exec *x, const struct mx8_attention_job *j);
    enum mx8_status (*router)(const struct mx8_exec *x, const struct mx8_router_job *j);
    enum mx8_status (*router_backward)(const struct mx8_exec *x, const struct mx8_router_job *j);
    enum mx8_status (*permute)(const struct mx8_exec *x, const struct mx8_permute_job *j);
    enum mx8_status (*permute_backward)(const struct mx8_exec *x, const struct mx8_permute_job *j);
    enum mx8_status (*combine)(const struct mx8_exec *x, const struct mx8_combine_job *j);
    enum mx8_status (*combine_backward)(const struct mx8_exec *x, const struct mx8_combine_job *j);
    enum mx8_status (*swiglu)(const struct mx8_exec *x, const struct mx8_swiglu_job *j);
    enum mx8_status (*swiglu_backward)(const struct mx8_exec *x, const struct mx8_swiglu_job *j);
    enum mx8_status (*clamp)(const struct mx8_exec *x, const struct mx8_clamp_job *j);
    enum mx8_status (*clamp_backward)(const struct mx8_exec *x, const struct mx8_clamp_job *j);
    size_t (*embedding_workspace)(const struct mx8_embedding_job *j);
    enum mx8_status (*embedding)(const struct mx8_exec *x, const struct mx8_embedding_job *j);
    enum mx8_status (*embedding_backward)(const struct mx8_exec *x, const struct mx8_embedding_job *j);
    enum mx8_status (*cross_entropy)(const struct mx8_exec *x, const struct mx8_cross_entropy_job *j);
    enum mx8_status (*adamw)(const struct mx8_exec *x, const struct mx8_adamw_job *j);
    /* adamw, and both orientations of codes of the new weights: those that cast to bf16 and quantize give after it, bit for
     * bit. master is j's batch x rows x cols, contiguous; j has no groups, and its src, src_dtype and src_stride are not
     * used. a->copy is memory for mx8i_size_largest_piece(j, MX8_ADAMW_PIECE) bf16 elements (pieces.h): what they hold
     * afterwards is undefined. */
    enum mx8_status (*adamw_quantize)(
        const struct mx8_exec *x, const struct mx8_adamw_job *a, const struct mx8_quant_job *j);
    enum mx8_status (*fill_normal)(const struct mx8_exec *x, const struct mx8_normal_job *j);

    /* y[i] = round(a[i] + b[i]) ; y may be a or b. y = cast(x). Contiguous. */
    enum mx8_status (*add)(const struct mx8_exec *x, void *y, const void *a, const void *b, int32_t dtype, int64_t n);
    enum mx8_status (*cast)(const struct mx8_exec *x, void *y, int32_t y_dtype, const void *a, int32_t a_dtype, int64_t n);
    /* y[i] *= *factor (device pointer) or value when factor is NULL; F32. */
    enum mx8_status (*scale)(const struct mx8_exec *x, float *y, const float *factor, float value, int64_t n);
    /* *out (f64) += sum of x[i]^2, x F32, over fixed blocks in a fixed order. */
    enum mx8_status (*sum_squares)(const struct mx8_exec *x, double *out, const float *a, int64_t n);
    /* *out (f64) += sum of a[i], F32, in a fixed order. */
    enum mx8_status (*sum)(const struct mx8_exec *x, double *out, const float *a, int64_t n);
    /* factor = min(1, max_norm / (sqrt(sum_squares) + 1e-6)); norm = sqrt. Device pointers. */
    enum mx8_status (*clip_factor)(const struct mx8_exec *x, float *factor, float *norm, const double *sum_squares, float max_norm);
    /* *flag (device int32) = 1 if any of a[0..n) is NaN or Inf; untouched otherwise. */
    enum mx8_status (*check_finite)(const struct mx8_exec *x, int32_t *flag, const void *a, int32_t dtype, int64_t n);

    /* What only some backends have: NULL, or UNSUPPORTED without a message for a job that they do not take. */
    enum mx8_status (*quantize_from)(
        const struct mx8_exec *x, const struct mx8_quant_source *s, const struct mx8_quant_job *j);
    /* Codes of swiglu_backward's dgate and dup, which are not stored: of s only gate, up, dh and their sizes are read, of
     * the jobs everything but src and its strides. Both have both orientations, and the same options and groups;
     * padded_ends may be NULL in one of them. */
    enum mx8_status (*quantize_swiglu_backward)(const struct mx8_exec *x, const struct mx8_swiglu_job *s,
        const struct mx8_quant_job *dgate, const struct mx8_quant_job *dup);
    /* rmsnorm, and the row codes of its y; j->src and its strides are not used. */
    enum mx8_status (*rmsnorm_quantize)(
        const struct mx8_exec *x, const struct mx8_rmsnorm_job *n, const struct mx8_quant_job *j);
    /* A stream of the context's own, released with it: graphs cannot be recorded on the default stream. NULL: no graphs. */
    enum mx8_status (*make_stream)(const struct mx8_exec *x, void **stream);
    /* What is asked for between begin and end is recorded, not done; launching does it. NULL: no graphs here. */
    enum mx8_status (*begin_graph)(const struct mx8_exec *x);
    enum mx8_status (*end_graph)(const struct mx8_exec *x, void **graph); /* NULL after a failure; ends the recording */
    enum mx8_status (*launch_graph)(const struct mx8_exec *x, void *graph);
    void (*release_graph)(const struct mx8_exec *x, void *graph);
};

/* A context is an exec plus what it owns; operators reach the table through it. */
struct mx8_context {
    struct mx8_exec exec;
    char backend_name[32];
    char backend_reason[256];
    void *(*allocate)(void *user, size_t size, size_t alignment);
    void (*release)(void *user, void *pointer);
    void *user;
    int64_t *saturated;  /* device counter that quantizers add to when set; owned by whoever set it */
    int32_t counts_gaps; /* with `saturated`: wide blocks are counted too, in saturated[1] */
    int64_t products, fast_products; /* MXFP8 products of operators: all, and those that FP8 tensor cores took */
};

/* src/kernels/cpu/dispatch.c. isa NULL: environment MX8_ISA, else the best. `reason` receives one line. */
enum mx8_status mx8i_find_cpu_kernels(const char *isa, const struct mx8_kernels **out, char *reason, size_t reason_size);

#endif
