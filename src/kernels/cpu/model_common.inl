/* What the model kernels share. Bodies take the dtype as a constant (BY_DTYPE), so that loads and stores cost nothing
 * to choose; they are called from inside the parallel loop, because the compiler moves that loop's body into a function
 * of its own before it would propagate a constant into it. */
#ifndef MX8_KERNELS_CPU_MODEL_COMMON_INL
#define MX8_KERNELS_CPU_MODEL_COMMON_INL

#include <math.h>

/* Runs `call` with `dtype` a constant. */
#define BY_DTYPE(value, call)               \
    do {                                    \
        if ((value) == MX8_BF16) {          \
            enum { dtype = MX8_BF16 };      \
            call;                           \
        } else {                            \
            enum { dtype = MX8_F32 };       \
            call;                           \
        }                                   \
    } while (0)

/* Threads for a loop that visits `work` elements: waking a team costs some microseconds, so tiny loops stay alone.
 * Every loop writes what it writes whoever runs it: the choice cannot be seen in the results. */
MX8_INLINE int team_for(const struct mx8_exec *x, int64_t work) { return work < 16384 ? 1 : x->threads; }

/* Elementwise loops are cut into pieces of this many elements. */
enum { MODEL_PIECE = 4096 };

MX8_INLINE int64_t count_pieces(int64_t n, int64_t piece) { return (n + piece - 1) / piece; }

/* The vector at element i of n, the last one short. */
MX8_INLINE vf get_vf(const void *p, int64_t i, int64_t n, int32_t dtype) {
    return i + MX8_VF <= n ? vf_load_as(p, i, dtype) : vf_load_part_as(p, i, dtype, (int)(n - i));
}

MX8_INLINE void put_vf(void *p, int64_t i, int64_t n, int32_t dtype, vf v) {
    if (i + MX8_VF <= n)
        vf_store_as(p, i, dtype, v);
    else
        vf_store_part_as(p, i, dtype, v, (int)(n - i));
}

/* Row r of a matrix with row stride ls. */
MX8_INLINE const void *row_of(const void *p, int64_t r, int64_t ls, int32_t dtype) {
    return (const char *)p + r * ls * (dtype == MX8_BF16 ? 2 : 4);
}

MX8_INLINE void *row_at(void *p, int64_t r, int64_t ls, int32_t dtype) {
    return (char *)p + r * ls * (dtype == MX8_BF16 ? 2 : 4);
}

/* What storing as dtype and loading again gives. */
MX8_INLINE vf round_as(vf v, int32_t dtype) {
    if (dtype != MX8_BF16) return v;
    vi u = vf_bits(v), half = vi_add(vi_set(0x7FFF), vi_and(vi_shr(u, 16), vi_set(1)));
    vf rounded = vf_from_bits(vi_and(vi_add(u, half), vi_set(-65536)));
    return vf_select(vf_is_nan(v), v, rounded);
}

MX8_INLINE float dot_rows(const void *a, const void *b, int64_t n, int32_t dtype) {
    vf sum = vf_set(0.0f);
    for (int64_t i = 0; i < n; i += MX8_VF) sum = vf_fma(get_vf(a, i, n, dtype), get_vf(b, i, n, dtype), sum);
    return vf_sum(sum);
}

/* 1 / (1 + e^-x). */
MX8_INLINE vf sigmoid(vf x) { return vf_div(vf_set(1.0f), vf_add(vf_set(1.0f), vf_exp(vf_neg(x)))); }

/* Columns that one call of sum_columns adds up, and rows whose sum is kept in registers before it joins the total: the
 * two levels keep the rounding error of long columns small, and the order does not depend on who runs which block. */
enum { COLUMN_BLOCK = 4 * MX8_VF, COLUMN_ROWS = 128 };

/* out[c] [+]= sum over rows of a[r,c], or of a[r,c] * (b[r,c] * factor[r]) when b is given, for the block of columns
 * that starts at c0. Row strides are ls. */
MX8_INLINE void sum_columns(float *out, int accumulate, const void *a, const void *b, const float *factor, int64_t rows,
    int64_t cols, int64_t c0, int64_t ls, int32_t dtype) {
    vf total[4];
    for (int v = 0; v < 4; v++) total[v] = vf_set(0.0f);
    for (int64_t r0 = 0; r0 < rows; r0 += COLUMN_ROWS) {
        int64_t end = r0 + COLUMN_ROWS < rows ? r0 + COLUMN_ROWS : rows;
        vf part[4];
        for (int v = 0; v < 4; v++) part[v] = vf_set(0.0f);
        for (int64_t r = r0; r < end; r++) {
            for (int v = 0; v < 4; v++) {
                int64_t c = c0 + v * MX8_VF;
                if (c >= cols) break;
                vf x = get_vf(row_of(a, r, ls, dtype), c, cols, dtype);
                if (b) x = vf_mul(x, vf_mul(get_vf(row_of(b, r, ls, dtype), c, cols, dtype), vf_set(factor[r])));
                part[v] = vf_add(part[v], x);
            }
        }
        for (int v = 0; v < 4; v++) total[v] = vf_add(total[v], part[v]);
    }
    for (int v = 0; v < 4; v++) {
        int64_t c = c0 + v * MX8_VF;
        if (c >= cols) break;
        if (accumulate) total[v] = vf_add(total[v], get_vf(out, c, cols, MX8_F32));
        put_vf(out, c, cols, MX8_F32, total[v]);
    }
}

#endif
