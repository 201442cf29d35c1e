// Attention as a graph of cuDNN operations, in the form that its fused engines recognise: products, the softmax written
// out as reductions and pointwise steps, the causal mask as a comparison of row and column numbers. Only the tensors
// with an id of cudnn_id are memory. Shapes are (B, H, S, d); with KV < H the products take KV heads where they
// are given them, and gradients of keys and values are summed over the heads of a group.
#include "attention_cudnn.cuh"

using namespace cudnn;

namespace attention {

// Heads of `heads` in rows that are ls apart; `turned`: as (d, S).
static struct tensor heads_of(
    struct graph *g, int64_t id, const struct cudnn_shape &s, int64_t heads, int64_t ls, bool turned = false) {
    const int64_t dim[4] = {s.B, heads, s.S, s.d}, stride[4] = {s.S * ls, s.d, ls, 1};
    const int64_t turned_dim[4] = {s.B, heads, s.d, s.S}, turned_stride[4] = {s.S * ls, s.d, 1, ls};
    return turned ? outer(g, id, turned_dim, turned_stride, BFLOAT16) : outer(g, id, dim, stride, BFLOAT16);
}

// One number a row and head, f32.
static struct tensor rows_of(struct graph *g, int64_t id, const struct cudnn_shape &s) {
    const int64_t dim[4] = {s.B, s.H, s.S, 1}, stride[4] = {s.H * s.S, s.S, 1, 1};
    return outer(g, id, dim, stride, FLOAT);
}

static struct tensor scores(struct graph *g, const struct cudnn_shape &s, int type = FLOAT) {
    return inner(g, s.B, s.H, s.S, s.S, type);
}

static struct tensor hide_later_keys(struct graph *g, const struct cudnn_shape &s, const tensor &x) {
    const struct tensor row = scores(g, s, INT32), col = scores(g, s, INT32), visible = scores(g, s, BOOLEAN),
                        hidden = scalar(g, ID_HIDDEN), y = scores(g, s);
    apply(g, "row number", GEN_INDEX, row, x, NULL, NULL, FLOAT, 2);
    apply(g, "column number", GEN_INDEX, col, x, NULL, NULL, FLOAT, 3);
    apply(g, "row >= column", CMP_GE, visible, row, &col, NULL, BOOLEAN);
    apply(g, "mask", BINARY_SELECT, y, x, &hidden, &visible);
    return y;
}

void describe_forward(struct graph *g, const struct cudnn_shape &s) {
    const struct tensor q = heads_of(g, ID_Q, s, s.H, s.q_ls), k = heads_of(g, ID_K, s, s.KV, s.k_ls, true),
                        v = heads_of(g, ID_V, s, s.KV, s.v_ls), o = heads_of(g, ID_O, s, s.H, s.o_ls),
                        stats = rows_of(g, ID_STATS, s), scale = scalar(g, ID_SCALE);
    const struct tensor product = scores(g, s), scaled = scores(g, s);
    multiply(g, "q k", q, k, product);
    apply(g, "scale", MUL, scaled, product, &scale);
    const struct tensor masked = hide_later_keys(g, s, scaled);
    const struct tensor max = inner(g, s.B, s.H, s.S, 1), less = scores(g, s), e = scores(g, s),
                        sum = inner(g, s.B, s.H, s.S, 1), log = inner(g, s.B, s.H, s.S, 1), p = scores(g, s, BFLOAT16);
    reduce(g, "maximum", MAXIMUM, masked, max);
    apply(g, "less maximum", SUB, less, masked, &max);
    apply(g, "exponential", EXP, e, less);
    reduce(g, "sum", SUM, e, sum);
    apply(g, "logarithm", LOG, log, sum);
    apply(g, "log-sum-exp", ADD, stats, max, &log);
    apply(g, "quotient", DIV, p, e, &sum);
    multiply(g, "p v", p, v, o);
}

// to (KV heads) = x^T y, where x is (S, S) scores; with fewer key heads than heads, summed over each group.
static void multiply_into_keys(struct graph *g, const char *what, const struct cudnn_shape &s, const tensor &x,
    const tensor &y, const tensor &to) {
    const int64_t dim[4] = {s.B, s.H, s.S, s.S}, stride[4] = {s.H * s.S * s.S, s.S * s.S, 1, s.S};
    const struct tensor turned = inner_strided(g, dim, stride, BFLOAT16);
    reshape(g, what, x, turned);
    if (s.H == s.KV) {
        multiply(g, what, turned, y, to);
        return;
    }
    const struct tensor all = inner(g, s.B, s.H, s.S, s.d, BFLOAT16);
    multiply(g, what, turned, y, all);
    reduce(g, what, SUM, all, to);
}

// row_terms = sum(dout * o)
static void add_up_rows(struct graph *g, const struct cudnn_shape &s, const tensor &dout, const tensor &row_terms) {
    const int64_t dim[4] = {s.B, s.H, s.S, s.d}, stride[4] = {s.H * s.S * s.d, s.S * s.d, s.H * s.d, 1};
    const struct tensor o = heads_of(g, ID_O, s, s.H, s.o_ls), one = scalar(g, ID_ONE),
                        product = inner_strided(g, dim, stride, FLOAT), sum = inner(g, s.B, s.H, s.S, 1);
    apply(g, "dout o", MUL, product, dout, &o);
    reduce(g, "row terms", SUM, product, sum);
    apply(g, "row terms once", MUL, row_terms, sum, &one);
}

void describe_backward(struct graph *g, const struct cudnn_shape &s) {
    const struct tensor q = heads_of(g, ID_Q, s, s.H, s.q_ls), k = heads_of(g, ID_K, s, s.KV, s.k_ls, true),
                        v = heads_of(g, ID_V, s, s.KV, s.v_ls, true), dout = heads_of(g, ID_DO, s, s.H, s.do_ls),
                        dq = heads_of(g, ID_DQ, s, s.H, s.dq_ls), dk = heads_of(g, ID_DK, s, s.KV, s.dk_ls),
                        dv = heads_of(g, ID_DV, s, s.KV, s.dv_ls), stats = rows_of(g, ID_STATS, s),
                        row_terms = rows_of(g, ID_ROW_TERMS, s), scale = scalar(g, ID_SCALE);
    add_up_rows(g, s, dout, row_terms);
    const struct tensor product = scores(g, s), scaled = scores(g, s), less = scores(g, s);
    multiply(g, "q k", q, k, product);
    apply(g, "scale", MUL, scaled, product, &scale);
    apply(g, "less log-sum-exp", SUB, less, scaled, &stats);
    const struct tensor masked = hide_later_keys(g, s, less), p = scores(g, s);
    apply(g, "probabilities", EXP, p, masked);
    multiply_into_keys(g, "dv", s, p, dout, dv);
    const struct tensor dp = scores(g, s), centred = scores(g, s), ds = scores(g, s), scaled_ds = scores(g, s);
    multiply(g, "dout v", dout, v, dp);
    apply(g, "dp less row terms", SUB, centred, dp, &row_terms);
    apply(g, "ds", MUL, ds, centred, &p);
    apply(g, "scale ds", MUL, scaled_ds, ds, &scale);
    multiply_into_keys(g, "dk", s, scaled_ds, q, dk);
    const int64_t dim[4] = {s.B, s.KV, s.S, s.d}, stride[4] = {s.S * s.k_ls, s.d, s.k_ls, 1};
    const struct tensor keys = inner_strided(g, dim, stride, BFLOAT16);
    reshape(g, "keys", k, keys);
    if (!s.any_order) {
        multiply(g, "dq", scaled_ds, keys, dq);
        return;
    }
    const int64_t sum_dim[4] = {s.B, s.H, s.S, s.d}, sum_stride[4] = {s.H * s.S * s.d, s.S * s.d, s.d, 1};
    const struct tensor sum = outer(g, ID_DQ_SUM, sum_dim, sum_stride, FLOAT);
    multiply(g, "dq", scaled_ds, keys, sum);
    apply(g, "dq rounded", IDENTITY, dq, sum);
}

} // namespace attention
