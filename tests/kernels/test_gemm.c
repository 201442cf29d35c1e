/* The matrix product against sums in double, with the error bound of an fp32 sum of K products:
 * |error| <= (K + 4) 2^-24 (sum |a||b| + |bias| + |old C|), and half a unit of the output where that is bf16. The same
 * bits with 1, 2, 3 and 7 threads. What no group covers is poisoned with NaN, as is C before. */
#include "model_testing.h"

enum layout { ALONG_K, ALONG_LINES, APART, N_LAYOUTS };

struct gemm_case {
    enum mx8_gemm_mode mode;
    int64_t M, N, K;
    int32_t G;
    const int32_t *offsets;
    int32_t a_dtype, b_dtype, c_dtype, bias_dtype; /* bias_dtype < 0: no bias */
    int a_layout, b_layout, accumulate;
};

/* (groups, lines, K) values and, for the 8-bit formats, scales. There is no room behind the elements. */
struct operand {
    struct mx8_matrix m;
    void *data;
    uint8_t *scales;
};

static int is_f8(int32_t dtype) { return dtype == MX8_F8_E4M3 || dtype == MX8_F8_E5M2; }

static struct operand make_operand(
    int32_t dtype, int layout, int64_t groups, int64_t lines, int64_t K, uint64_t stream) {
    int64_t step = layout == APART ? 3 : 1, blocks = (K + 31) / 32;
    struct mx8_matrix m = {.dtype = dtype, .gs = lines * K * step, .sgs = lines * blocks};
    m.ks = layout == ALONG_LINES ? lines : step;
    m.ls = layout == ALONG_LINES ? 1 : K * step;
    m.sls = layout == ALONG_LINES ? 1 : blocks;
    m.sks = layout == ALONG_LINES ? lines : 1;
    struct operand o = {.m = m};
    int64_t n = groups * m.gs;
    if (is_f8(dtype)) {
        o.data = make_zeros(MX8_U8, n);
        o.scales = make_zeros(MX8_U8, groups * m.sgs);
        for (int64_t i = 0; i < n; i++) {
            double u = mx8i_random_uniform(3, stream, (uint64_t)i);
            uint8_t code = (uint8_t)(u * 123), sign = mx8i_random_uniform(4, stream, (uint64_t)i) < 0.5 ? 0x80 : 0;
            ((uint8_t *)o.data)[i] = code | sign;
        }
        for (int64_t i = 0; i < groups * m.sgs; i++)
            o.scales[i] = (uint8_t)(120 + 12 * mx8i_random_uniform(5, stream, (uint64_t)i));
    } else {
        o.data = make_normal(dtype, n, stream, 1.0);
    }
    o.m.data = o.data;
    o.m.scales = o.scales;
    return o;
}

static double get_value(const struct operand *o, int64_t g, int64_t l, int64_t k) {
    int64_t at = g * o->m.gs + l * o->m.ls + k * o->m.ks;
    if (!is_f8(o->m.dtype)) return value_at(o->data, o->m.dtype, at);
    uint8_t code = ((const uint8_t *)o->data)[at], byte = o->scales[g * o->m.sgs + l * o->m.sls + k / 32 * o->m.sks];
    float value = o->m.dtype == MX8_F8_E4M3 ? mx8_decode_e4m3(code) : mx8_decode_e5m2(code);
    return (double)value * (double)mx8_decode_e8m0(byte);
}

/* NaN where nothing may be read: lines (or steps of k) from `from` on. */
static void poison(struct operand *o, int64_t lines, int64_t K, int64_t from, int by_lines) {
    for (int64_t l = by_lines ? from : 0; l < lines; l++)
        for (int64_t k = by_lines ? 0 : from; k < K; k++) {
            int64_t at = l * o->m.ls + k * o->m.ks;
            if (is_f8(o->m.dtype)) ((uint8_t *)o->data)[at] = 0x7F;
            else set_value(o->data, o->m.dtype, at, (double)NAN);
        }
}

/* C with its rows apart, in `groups` matrices; `old` keeps what it held. */
struct result {
    void *c, *old;
    int64_t ls, gs, n;
};

static struct result make_result(const struct gemm_case *c, int64_t groups) {
    struct result r = {.ls = c->N + 3, .gs = c->M * (c->N + 3) + 5};
    r.n = groups * r.gs;
    r.c = make_normal(c->c_dtype, r.n, 9, 4.0);
    for (int64_t i = 0; i < r.n && !c->accumulate; i++) set_value(r.c, c->c_dtype, i, (double)NAN);
    r.old = make_zeros(c->c_dtype, r.n);
    memcpy(r.old, r.c, (size_t)r.n * mx8_get_dtype_size(c->c_dtype));
    return r;
}

/* Bounds of row m's group: which B it meets and which k it sums. Rows past the last group have none: returns 0. */
static int find_range(const struct gemm_case *c, int64_t g, int64_t m, int64_t *b_group, int64_t *first, int64_t *end) {
    *b_group = 0;
    *first = 0;
    *end = c->K;
    if (c->mode == MX8_GEMM_K_GROUPS) {
        *first = g ? c->offsets[g - 1] : 0;
        *end = c->offsets[g];
    } else if (c->mode == MX8_GEMM_M_GROUPS) {
        while (*b_group < c->G && m >= c->offsets[*b_group]) ++*b_group;
        return *b_group < c->G;
    }
    return 1;
}

static double worst; /* largest error of an f32 result, as a fraction of its bound */

static void check_element(const struct gemm_case *c, const struct operand *a, const struct operand *b, const void *bias,
    const struct result *r, int64_t g, int64_t m, int64_t n) {
    int64_t at = g * r->gs + m * r->ls + n, b_group, first, end;
    double sum = 0, size = 0, got = value_at(r->c, c->c_dtype, at), old = value_at(r->old, c->c_dtype, at);
    if (!find_range(c, g, m, &b_group, &first, &end)) {
        if (c->accumulate ? got != old : got != 0) fail_msg("row %lld past the groups holds %g", (long long)m, got);
        return;
    }
    for (int64_t k = first; k < end; k++) {
        double p = get_value(a, 0, m, k) * get_value(b, b_group, n, k);
        sum += p;
        size += fabs(p);
    }
    double extra[2] = {bias ? value_at(bias, c->bias_dtype, n) : 0, c->accumulate ? old : 0};
    for (int i = 0; i < 2; i++) {
        sum += extra[i];
        size += fabs(extra[i]);
    }
    double bound = (double)(end - first + 4) * 0x1p-24 * size, error = fabs(got - sum);
    if (c->c_dtype == MX8_BF16)
        bound += (fabs(sum) + bound) * 0x1p-8;
    else if (error > 0 && error / bound > worst)
        worst = error / bound;
    if (isnan(sum) ? isnan(got) : error <= bound) return;
    fail_msg("mode %d %lldx%lldx%lld %s*%s->%s: element (%lld,%lld,%lld) is %.9g, expected %.9g within %g",
        (int)c->mode, (long long)c->M, (long long)c->N, (long long)c->K, mx8_get_dtype_name(c->a_dtype),
        mx8_get_dtype_name(c->b_dtype), mx8_get_dtype_name(c->c_dtype), (long long)g, (long long)m, (long long)n, got,
        sum, bound);
}

/* Every element of C, or some hundred of a large one, and the gaps between its rows. */
static void check_result(const struct gemm_case *c, const struct operand *a, const struct operand *b, const void *bias,
    const struct result *r, int64_t groups) {
    int64_t stride = c->M * c->N > 20000 ? 97 : 1;
    for (int64_t g = 0; g < groups; g++) {
        for (int64_t i = 0; i < c->M * c->N; i += stride) check_element(c, a, b, bias, r, g, i / c->N, i % c->N);
        for (int64_t m = 0; m < c->M; m++)
            for (int64_t n = c->N; n < r->ls; n++) {
                int64_t at = g * r->gs + m * r->ls + n;
                double old = value_at(r->old, c->c_dtype, at), now = value_at(r->c, c->c_dtype, at);
                assert_true(isnan(old) ? isnan(now) : old == now);
            }
    }
}

static void run_case(const struct mx8_kernels *k, const struct gemm_case *c) {
    int by_rows = c->mode == MX8_GEMM_M_GROUPS, by_k = c->mode == MX8_GEMM_K_GROUPS;
    int64_t groups = by_k ? c->G : 1, end = c->G ? c->offsets[c->G - 1] : 0;
    struct operand a = make_operand(c->a_dtype, c->a_layout, 1, c->M, c->K, 1);
    struct operand b = make_operand(c->b_dtype, c->b_layout, by_rows ? c->G : 1, c->N, c->K, 2);
    if (by_rows) poison(&a, c->M, c->K, end, 1);
    if (by_k) poison(&a, c->M, c->K, end, 0);
    void *bias = c->bias_dtype < 0 ? NULL : make_normal(c->bias_dtype, c->N, 3, 3.0);
    struct result r = make_result(c, groups);
    struct mx8_gemm_job job = {.mode = c->mode,
        .M = c->M,
        .N = c->N,
        .K = c->K,
        .G = c->G,
        .offsets = c->offsets,
        .a = a.m,
        .b = b.m,
        .c = r.c,
        .c_dtype = c->c_dtype,
        .c_ls = r.ls,
        .c_gs = r.gs,
        .accumulate = c->accumulate,
        .bias = bias,
        .bias_dtype = c->bias_dtype};
    struct replay replay;
    begin_replay(&replay, k, &(struct span){r.c, (size_t)r.n * mx8_get_dtype_size(c->c_dtype)}, 1);
    while (next_replay(&replay)) assert_ok(k->gemm(&replay.exec, &job));
    check_result(c, &a, &b, bias, &r, groups);
    void *owned[] = {a.data, a.scales, b.data, b.scales, bias, r.c, r.old};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

/* Spreads dtypes, layouts, bias and accumulation over the cases: the n-th case takes the n-th mixture. */
static void mix(struct gemm_case *c, int n) {
    static const int32_t dtypes[] = {MX8_BF16, MX8_F32, MX8_F8_E4M3, MX8_F8_E5M2};
    c->a_dtype = dtypes[n % 4];
    c->b_dtype = dtypes[n / 2 % 3];
    c->c_dtype = both_dtypes[n / 3 % 2];
    c->a_layout = n / 5 % N_LAYOUTS;
    c->b_layout = n / 7 % N_LAYOUTS;
    c->accumulate = n % 5 == 0;
    c->bias_dtype = n % 3 == 0 ? both_dtypes[n % 2] : -1;
}

static void dense_sizes(const struct mx8_kernels *k) {
    static const int64_t sizes[] = {0, 1, 31, 32, 33, 65, 130};
    int n = 0;
    for (int m = 0; m < 7; m++)
        for (int i = 0; i < 7; i++)
            for (int l = 0; l < 7; l++) {
                struct gemm_case c = {.mode = MX8_GEMM_DENSE, .M = sizes[m], .N = sizes[i], .K = sizes[l]};
                mix(&c, n++);
                run_case(k, &c);
            }
}

static void dense_mixtures(const struct mx8_kernels *k) {
    for (int n = 0; n < 105; n++) {
        struct gemm_case c = {.mode = MX8_GEMM_DENSE, .M = 32 + n % 9, .N = 63, .K = 64 + n % 3 * 5};
        mix(&c, n);
        run_case(k, &c);
    }
}

/* Several blocks of each dimension: steps of k, blocks of rows and of columns. */
static void dense_blocks(const struct mx8_kernels *k) {
    static const int64_t sizes[][3] = {{70, 90, 600}, {1300, 40, 270}, {20, 2100, 270}, {300, 530, 260}, {3, 5, 1000},
        {2880, 33, 32}, {31, 2880, 33}, {33, 31, 2880}};
    for (int i = 0; i < 8; i++)
        for (int n = 0; n < 4; n++) {
            struct gemm_case c = {.mode = MX8_GEMM_DENSE, .M = sizes[i][0], .N = sizes[i][1], .K = sizes[i][2]};
            mix(&c, i + 5 * n);
            run_case(k, &c);
        }
}

static const int32_t ragged[] = {0, 32, 32, 160, 192}, single[] = {96}, none[] = {0, 0, 0};
static const int32_t odd[] = {1, 1, 34, 65, 100, 100};
static int32_t many[40]; /* more groups than any block of threads or rows */

struct groups { int32_t G; const int32_t *offsets; int64_t extent; int aligned; };
static const struct groups group_sets[] = {
    {5, ragged, 192, 1}, {5, ragged, 230, 1}, {1, single, 96, 1}, {3, none, 40, 1}, {6, odd, 100, 0}, {6, odd, 131, 0},
    {40, many, 700, 1},  {0, NULL, 33, 1},
};
enum { N_GROUP_SETS = sizeof group_sets / sizeof *group_sets };

static void m_groups(const struct mx8_kernels *k) {
    for (int i = 0; i < N_GROUP_SETS; i++)
        for (int n = 0; n < 12; n++) {
            const struct groups *g = &group_sets[i];
            struct gemm_case c = {.mode = MX8_GEMM_M_GROUPS,
                .M = g->extent,
                .N = 40 + n,
                .K = n % 4 ? 64 : 45,
                .G = g->G,
                .offsets = g->offsets};
            mix(&c, i + n * N_GROUP_SETS);
            run_case(k, &c);
        }
}

static void k_groups(const struct mx8_kernels *k) {
    for (int i = 0; i < N_GROUP_SETS; i++)
        for (int n = 0; n < 12; n++) {
            const struct groups *g = &group_sets[i];
            struct gemm_case c = {.mode = MX8_GEMM_K_GROUPS, .M = 30 + n, .N = 50 - n, .K = g->extent, .G = g->G,
                .offsets = g->offsets};
            mix(&c, i + n * N_GROUP_SETS);
            if (!g->aligned) c.a_dtype = c.b_dtype = both_dtypes[n % 2]; /* scales are per 32 steps of k */
            if (c.a_layout == APART) c.a_layout = ALONG_LINES;
            run_case(k, &c);
        }
}

/* A NaN code, and a NaN scale, reach exactly the elements whose sums they are in. */
static void nan_codes(const struct mx8_kernels *k) {
    for (int layout = 0; layout < N_LAYOUTS; layout++) {
        struct operand a = make_operand(MX8_F8_E4M3, layout, 1, 20, 64, 1),
                       b = make_operand(MX8_F8_E4M3, layout, 1, 20, 64, 2);
        float *c = make_zeros(MX8_F32, 400);
        ((uint8_t *)a.data)[3 * a.m.ls + 40 * a.m.ks] = 0xFF;
        b.scales[7 * b.m.sls + b.m.sks] = 255;
        struct mx8_gemm_job job = {.mode = MX8_GEMM_DENSE, .M = 20, .N = 20, .K = 64, .a = a.m, .b = b.m, .c = c,
            .c_dtype = MX8_F32, .c_ls = 20};
        struct replay r;
        begin_replay(&r, k, &(struct span){c, 1600}, 1);
        while (next_replay(&r)) assert_ok(k->gemm(&r.exec, &job));
        for (int i = 0; i < 400; i++) assert_int_equal(isnan(c[i]) != 0, i / 20 == 3 || i % 20 == 7);
        void *owned[] = {a.data, a.scales, b.data, b.scales, c};
        for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    }
}

static void test_dense(void **state) {
    (void)state;
    for_every_isa(dense_sizes);
    for_every_isa(dense_mixtures);
    for_every_isa(dense_blocks);
}

static void test_m_groups(void **state) {
    (void)state;
    for_every_isa(m_groups);
}

static void test_k_groups(void **state) {
    (void)state;
    for_every_isa(k_groups);
}

static void test_nan(void **state) {
    (void)state;
    for_every_isa(nan_codes);
}

static int fill_many(void **state) {
    (void)state;
    for (int i = 0; i < 40; i++) many[i] = i / 2 * 32 + (i % 2 && i > 8 ? 32 : 0);
    return 0;
}

static int print_worst(void **state) {
    (void)state;
    print_message("largest error of an f32 result: %.3f of its bound\n", worst);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_m_groups),
        cmocka_unit_test(test_k_groups),
        cmocka_unit_test(test_nan),
    };
    return cmocka_run_group_tests(tests, fill_many, print_worst);
}
