/* CUDA model kernels against the CPU's, job by job. What only moves or rounds single products and sums must agree to
 * the bit; sums in another order and exponentials within f32 rounding, bf16 results within a unit. */
#include "pairs.h"

static const int32_t dtypes[] = {MX8_F32, MX8_BF16};

static const char *describe(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *describe(const char *format, ...) {
    static char text[200];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return text;
}

/* ---- norm ---- */

static const struct {
    int64_t T, D;
} norm_shapes[] = {
    {0, 64},
    {1, 1},
    {1, 65},
    {3, 32},
    {37, 65},
    {33, 2880},
    {17, 5120},
    {700, 128},
    {3, 8192},
    {2, 16392},
    {2, 33000},
    {5, 4099},
};

static void test_rmsnorm(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(norm_shapes) * 8; c++) {
        const int64_t T = norm_shapes[c / 8].T, D = norm_shapes[c / 8].D;
        const int32_t dtype = dtypes[c & 1], w_dtype = dtypes[c >> 1 & 1], has_add = c >> 2 & 1;
        const char *what =
            describe("T %d, D %d, add %d, w %s", (int)T, (int)D, (int)has_add, mx8_get_dtype_name(w_dtype));
        begin_case();
        struct pair *x = make_normal(dtype, T * D, 2), *w = make_normal(w_dtype, D, 1), *y = make_output(dtype, T * D);
        struct pair *rstd = make_output(MX8_F32, T), *add = has_add ? make_normal(dtype, T * D, 1) : NULL;
        struct pair *sum = has_add ? make_output(dtype, T * D) : NULL;
        struct mx8_rmsnorm_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_rmsnorm_job){T, D, dtype, w_dtype, 1e-5f, side_of(x, s), side_of(add, s), side_of(w, s),
                side_of(y, s), side_of(sum, s), side_of(rstd, s)};
        const double rounding = 2e-6 + 3e-10 * (double)D; /* the CPU's few lanes add up long rows */
        RUN(rmsnorm, &j[side]);
        CLOSE(what, y, rounding, 1e-7);
        CLOSE(what, rstd, rounding, 0);
        EXACT(what, sum);
        if (!has_add) continue;
        for (int s = CPU; s < SIDES; s++) j[s].sum = side_of(x, s); /* in place */
        RUN(rmsnorm, &j[side]);
        CLOSE(what, y, rounding, 1e-7);
        EXACT(what, x);
    }
}

static void test_rmsnorm_backward(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(norm_shapes) * 8; c++) {
        const int64_t T = norm_shapes[c / 8].T, D = norm_shapes[c / 8].D;
        const int32_t dtype = dtypes[c & 1], w_dtype = dtypes[c >> 1 & 1], more = c >> 2 & 1;
        const char *what = describe("T %d, D %d, dres and accumulate %d", (int)T, (int)D, (int)more);
        begin_case();
        struct pair *x = make_normal(dtype, T * D, 2), *w = make_normal(w_dtype, D, 1),
                    *dy = make_normal(dtype, T * D, 1);
        struct pair *rstd = make_output(MX8_F32, T), *dw = make_normal(MX8_F32, D, 1),
                    *dx = make_normal(dtype, T * D, 1);
        for (int64_t t = 0; t < T; t++) set_value(rstd, t, 0.4 + 0.01 * (double)(t % 17));
        struct mx8_rmsnorm_backward_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_rmsnorm_backward_job){T, D, dtype, w_dtype, side_of(dy, s), side_of(x, s), side_of(w, s),
                more ? side_of(dx, s) : NULL, side_of(rstd, s), side_of(dx, s), side_of(dw, s), more};
        RUN(rmsnorm_backward, &j[side]);
        CLOSE(what, dx, 2e-6, 1e-5);
        CLOSE(what, dw, 4e-6, 2e-5 + 1e-6 * sqrt((double)T));
        for (int s = CPU; s < SIDES; s++) j[s].dx = NULL; /* dw alone */
        RUN(rmsnorm_backward, &j[side]);
        CLOSE(what, dw, 4e-6, 2e-5 + 1e-6 * sqrt((double)T));
    }
}

static void test_colsum(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct {
        int64_t M, N, gap;
        int32_t n_groups, ends[3];
    } shapes[] = {
        {0, 7, 0, 0, {0}},
        {1, 1, 0, 0, {0}},
        {33, 65, 3, 0, {0}},
        {1000, 264, 8, 0, {0}},
        {5000, 31, 0, 3, {7, 7, 4099}},
        {700, 2880, 0, 2, {0, 0, 0}},
        {20000, 8, 0, 0, {0}},
    };
    for (int c = 0; c < COUNT(shapes) * 4; c++) {
        const int64_t M = shapes[c / 4].M, N = shapes[c / 4].N, ls = N + shapes[c / 4].gap;
        const int32_t dtype = dtypes[c & 1], accumulate = c >> 1 & 1, n_groups = shapes[c / 4].n_groups;
        const char *what = describe("M %d, N %d, accumulate %d", (int)M, (int)N, (int)accumulate);
        begin_case();
        struct pair *x = make_normal(dtype, M * ls, 1), *out = make_normal(MX8_F32, N, 1),
                    *ends = n_groups ? make_output(MX8_I32, n_groups) : NULL;
        for (int g = 0; g < n_groups; g++) set_value(ends, g, shapes[c / 4].ends[g]);
        struct mx8_colsum_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_colsum_job){
                side_of(out, s), side_of(x, s), dtype, M, N, ls, accumulate, side_of(ends, s), n_groups};
        RUN(colsum, &j[side]);
        CLOSE(what, out, 4e-6, 1e-5 + 2e-6 * sqrt((double)M));
    }
}

/* ---- rope, swiglu ---- */

static void test_rope(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct {
        int64_t T, H, d, S, gap;
    } shapes[] = {
        {0, 1, 8, 4, 0},
        {1, 1, 2, 1, 0},
        {12, 3, 6, 4, 1},
        {40, 5, 64, 8, 0},
        {66, 40, 128, 33, 8},
        {9, 70, 96, 9, 5},
    };
    for (int c = 0; c < COUNT(shapes) * 8; c++) {
        const int64_t T = shapes[c / 8].T, H = shapes[c / 8].H, d = shapes[c / 8].d, S = shapes[c / 8].S,
                      ls = H * d + shapes[c / 8].gap;
        const int32_t dtype = dtypes[c & 1], inverse = c >> 1 & 1, in_place = c >> 2 & 1;
        const char *what =
            describe("T %d, H %d, d %d, inverse %d, in place %d", (int)T, (int)H, (int)d, (int)inverse, (int)in_place);
        begin_case();
        struct pair *x = make_normal(dtype, T * ls, 1), *y = in_place ? x : make_output(dtype, T * H * d),
                    *table = make_normal(MX8_F32, S * d, 1);
        struct mx8_rope_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_rope_job){
                T, H, d, S, dtype, inverse, side_of(x, s), side_of(y, s), ls, in_place ? ls : H * d, side_of(table, s)};
        RUN(rope, &j[side]);
        EXACT(what, y);
    }
}

static void test_swiglu(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct {
        int64_t M, F, gap;
    } shapes[] = {{0, 8, 0}, {1, 1, 0}, {7, 65, 0}, {33, 2880, 8}, {5, 8192, 0}, {9, 5000, 1}};
    for (int c = 0; c < COUNT(shapes) * 2; c++) {
        const int64_t M = shapes[c / 2].M, F = shapes[c / 2].F, ls = 2 * F + shapes[c / 2].gap;
        const int32_t dtype = dtypes[c & 1];
        const char *what = describe("M %d, F %d", (int)M, (int)F);
        begin_case();
        struct pair *x = make_normal(dtype, M * ls, 3), *h = make_output(dtype, M * F),
                    *dh = make_normal(dtype, M * F, 1);
        if (M > 1) set_value(x, 0, -200);
        struct mx8_swiglu_job j[SIDES];
        for (int s = CPU; s < SIDES; s++) {
            char *gate = side_of(x, s), *up = gate + (size_t)F * mx8_get_dtype_size(dtype);
            j[s] = (struct mx8_swiglu_job){
                M, F, dtype, gate, up, side_of(h, s), side_of(dh, s), gate, up, ls, ls, F, F, ls, ls};
        }
        RUN(swiglu, &j[side]);
        CLOSE(what, h, 2e-6, 1e-30);
        RUN(swiglu_backward, &j[side]); /* in place */
        CLOSE(what, x, 5e-6, 1e-6);
    }
}

static void test_clamp(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const int64_t sizes[] = {0, 1, 7, 8, 65, 4096, 100003};
    for (int c = 0; c < COUNT(sizes) * 4; c++) {
        const int64_t n = sizes[c / 4];
        const int32_t dtype = dtypes[c & 1], in_place = c >> 1 & 1;
        const char *what = describe("n %d, in place %d", (int)n, (int)in_place);
        begin_case();
        struct pair *x = make_normal(dtype, n, 2), *dy = make_normal(dtype, n, 1);
        struct pair *y = in_place ? x : make_output(dtype, n), *dx = in_place ? dy : make_output(dtype, n);
        if (n > 7) set_value(x, 5, 1.5), set_value(x, 6, -1.5); /* on the limit */
        struct mx8_clamp_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_clamp_job){
                n, dtype, 1.5f, side_of(x, s), side_of(y, s), side_of(dy, s), side_of(dx, s)};
        RUN(clamp_backward, &j[side]);
        EXACT(what, dx);
        RUN(clamp, &j[side]);
        EXACT(what, y);
    }
}

/* ---- router, permute, combine ---- */

static const struct {
    int64_t T, E;
    int32_t k;
} router_shapes[] = {
    {0, 8, 2},
    {1, 1, 1},
    {5, 3, 3},
    {700, 8, 1},
    {3000, 128, 8},
    {333, 33, 2},
    {65, 256, 4},
    {40, 300, 40},
    {9, 1024, 1},
};

static void test_router(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(router_shapes) * 8; c++) {
        const int64_t T = router_shapes[c / 8].T, E = router_shapes[c / 8].E;
        const int32_t k = router_shapes[c / 8].k, dtype = dtypes[c & 1], softmax = c >> 1 & 1, norm = c >> 2 & 1;
        const char *what =
            describe("T %d, E %d, k %d, softmax %d, norm %d", (int)T, (int)E, (int)k, (int)softmax, (int)norm);
        begin_case();
        struct pair *logits = make_normal(dtype, T * E, 2), *bias = norm ? make_normal(MX8_F32, E, 0.5) : NULL;
        for (int64_t t = 0; t < T; t++) {
            for (int64_t e = 0; e < E && t % 5 == 1; e++) set_value(logits, t * E + e, e % 3 ? 0.5 : 1); /* ties */
            if (t % 7 == 2) set_value(logits, t * E + t % E, NAN);
        }
        struct pair *scores = make_output(MX8_F32, T * E), *weights = make_output(MX8_F32, T * k),
                    *indices = make_output(MX8_I32, T * k);
        struct pair *order = make_output(MX8_I32, T * k), *positions = make_output(MX8_I32, T * k),
                    *offsets = make_output(MX8_I32, E);
        struct pair *dweights = make_normal(MX8_F32, T * k, 1), *dlogits = make_output(dtype, T * E);
        struct mx8_router_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_router_job){T, E, k, softmax ? MX8_SCORE_SOFTMAX : MX8_SCORE_SIGMOID, norm, dtype, 1.5f,
                side_of(logits, s), side_of(bias, s), side_of(scores, s), side_of(weights, s), side_of(indices, s),
                side_of(order, s), side_of(positions, s), side_of(offsets, s), side_of(dweights, s),
                side_of(dlogits, s)};
        RUN(router, &j[side]);
        CLOSE(what, scores, 3e-6, 1e-30);
        EXACT(what, indices);
        EXACT(what, order);
        EXACT(what, positions);
        EXACT(what, offsets);
        CLOSE(what, weights, 6e-6, 1e-30);
        RUN(router_backward, &j[side]);
        CLOSE(what, dlogits, 1e-6, 1e-7);
    }
}

/* All slots to one expert of many, and more slots than one tile of the sort holds. */
static void test_router_skew(void **state) {
    (void)state;
    NEEDS_CUDA();
    begin_case();
    const int64_t T = 70001, E = 16;
    struct pair *logits = make_normal(MX8_BF16, T * E, 1), *scores = make_output(MX8_F32, T * E),
                *weights = make_output(MX8_F32, T);
    struct pair *indices = make_output(MX8_I32, T), *order = make_output(MX8_I32, T),
                *positions = make_output(MX8_I32, T), *offsets = make_output(MX8_I32, E);
    for (int64_t t = 0; t < T; t++)
        if (t % 100) set_value(logits, t * E + 5, 30);
    struct mx8_router_job j[SIDES];
    for (int s = CPU; s < SIDES; s++)
        j[s] = (struct mx8_router_job){.T = T,
            .E = E,
            .k = 1,
            .dtype = MX8_BF16,
            .route_scale = 1,
            .logits = side_of(logits, s),
            .scores = side_of(scores, s),
            .weights = side_of(weights, s),
            .indices = side_of(indices, s),
            .order = side_of(order, s),
            .positions = side_of(positions, s),
            .offsets = side_of(offsets, s)};
    RUN(router, &j[side]);
    EXACT("skew", indices);
    EXACT("skew", order);
    EXACT("skew", positions);
    EXACT("skew", offsets);
}

static const struct {
    int64_t T, D;
    int32_t k;
} permute_shapes[] = {{0, 8, 1}, {1, 65, 1}, {1, 1, 3}, {50, 65, 2}, {130, 256, 1}, {33, 2880, 3}, {40, 5120, 8}};

/* A permutation of n slots and its inverse. */
static void shuffle(struct pair *order, struct pair *positions) {
    uint32_t random = 3;
    for (int64_t i = 0; i < order->n; i++) set_value(order, i, (double)i);
    for (int64_t i = order->n - 1; i > 0; i--) {
        int64_t other = draw(&random) % (uint32_t)(i + 1);
        double a = get_value(order, order->at[CPU], i), b = get_value(order, order->at[CPU], other);
        set_value(order, i, b);
        set_value(order, other, a);
    }
    for (int64_t i = 0; i < order->n; i++)
        set_value(positions, (int64_t)get_value(order, order->at[CPU], i), (double)i);
}

static void test_permute(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(permute_shapes) * 4; c++) {
        const int64_t T = permute_shapes[c / 4].T, D = permute_shapes[c / 4].D;
        const int32_t k = permute_shapes[c / 4].k, dtype = dtypes[c & 1], weighted = c >> 1 & 1;
        const char *what = describe("T %d, D %d, k %d, weights %d", (int)T, (int)D, (int)k, (int)weighted);
        begin_case();
        struct pair *x = make_normal(dtype, T * D, 1), *order = make_output(MX8_I32, T * k),
                    *positions = make_output(MX8_I32, T * k);
        struct pair *weights = weighted ? make_normal(MX8_F32, T * k, 1) : NULL,
                    *dweights = make_output(MX8_F32, T * k);
        struct pair *rows = make_output(dtype, T * k * D), *drows = make_normal(dtype, T * k * D, 1),
                    *dx = make_normal(dtype, T * D, 1);
        shuffle(order, positions);
        struct mx8_permute_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_permute_job){T, D, k, dtype, side_of(x, s), side_of(order, s), side_of(positions, s),
                side_of(weights, s), side_of(rows, s), side_of(drows, s), NULL, side_of(dx, s), side_of(dweights, s)};
        RUN(permute, &j[side]);
        EXACT(what, rows);
        RUN(permute_backward, &j[side]);
        EXACT(what, dx);
        CLOSE(what, dweights, 4e-6, 2e-6 * sqrt((double)D) + 1e-6);
        for (int s = CPU; s < SIDES; s++)
            j[s].dx = side_of(x, s), j[s].dres = side_of(x, s); /* dx replaces x and adds it */
        RUN(permute_backward, &j[side]);
        EXACT(what, x);
        CLOSE(what, dweights, 4e-6, 2e-6 * sqrt((double)D) + 1e-6);
    }
}

static void test_combine(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(permute_shapes) * 8; c++) {
        const int64_t T = permute_shapes[c / 8].T, D = permute_shapes[c / 8].D;
        const int32_t k = permute_shapes[c / 8].k, dtype = dtypes[c & 1], weighted = c >> 1 & 1, based = c >> 2 & 1;
        const char *what =
            describe("T %d, D %d, k %d, weights %d, base %d", (int)T, (int)D, (int)k, (int)weighted, (int)based);
        begin_case();
        struct pair *rows = make_normal(dtype, T * k * D, 1), *order = make_output(MX8_I32, T * k),
                    *positions = make_output(MX8_I32, T * k);
        struct pair *weights = weighted ? make_normal(MX8_F32, T * k, 1) : NULL,
                    *dweights = make_output(MX8_F32, T * k);
        struct pair *y = make_normal(dtype, T * D, 1), *dy = make_normal(dtype, T * D, 1);
        shuffle(order, positions);
        struct mx8_combine_job j[SIDES];
        for (int s = CPU; s < SIDES; s++) /* base is y, drows replaces rows */
            j[s] = (struct mx8_combine_job){T, D, k, dtype, side_of(rows, s), based ? side_of(y, s) : NULL,
                side_of(order, s), side_of(positions, s), side_of(weights, s), side_of(y, s), side_of(dy, s),
                side_of(rows, s), side_of(dweights, s)};
        RUN(combine, &j[side]);
        EXACT(what, y);
        RUN(combine_backward, &j[side]);
        EXACT(what, rows);
        CLOSE(what, dweights, 4e-6, 2e-6 * sqrt((double)D) + 1e-6);
    }
}

/* ---- embedding, loss ---- */

static void test_embedding(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct {
        int64_t T, V, D;
        int32_t low, high;
    } shapes[] = {
        {0, 10, 8, 0, 10},
        {1, 1, 1, 0, 1},
        {300, 257, 65, -3, 260},
        {5000, 257, 64, 0, 257},
        {900, 202048, 24, 0, 202048},
        {700, 50, 5120, 7, 8},
        {2500, 70000, 8, 69990, 70010},
    };
    for (int c = 0; c < COUNT(shapes) * 4; c++) {
        const int64_t T = shapes[c / 4].T, V = shapes[c / 4].V, D = shapes[c / 4].D;
        const int32_t dtype = dtypes[c & 1], w_dtype = dtypes[c >> 1 & 1];
        const char *what = describe("T %d, V %d, D %d, w %s", (int)T, (int)V, (int)D, mx8_get_dtype_name(w_dtype));
        begin_case();
        struct pair *tokens = make_integers(T, shapes[c / 4].low, shapes[c / 4].high),
                    *w = make_normal(w_dtype, V * D, 1), *y = make_output(dtype, T * D);
        struct pair *dy = make_normal(dtype, T * D, 1), *dw = make_normal(MX8_F32, V * D, 1);
        struct mx8_embedding_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_embedding_job){T, V, D, side_of(tokens, s), side_of(w, s), w_dtype, side_of(y, s), dtype,
                side_of(dy, s), side_of(dw, s), NULL};
        struct pair *space =
            make_space(cpu.k->embedding_workspace(&j[CPU]), cuda.exec.k->embedding_workspace(&j[CUDA]));
        for (int s = CPU; s < SIDES; s++) j[s].workspace = side_of(space, s);
        RUN(embedding, &j[side]);
        EXACT(what, y);
        RUN(embedding_backward, &j[side]);
        EXACT(what, dw);
    }
}

static void test_cross_entropy(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct {
        int64_t T, V, gap;
    } shapes[] = {{0, 8, 0}, {3, 1, 0}, {40, 257, 0}, {6, 1000, 3}, {3, 40000, 0}, {2, 202048, 0}, {2, 9001, 7}};
    for (int c = 0; c < COUNT(shapes) * 4; c++) {
        const int64_t T = shapes[c / 4].T, V = shapes[c / 4].V, ls = V + shapes[c / 4].gap;
        const int32_t dtype = dtypes[c & 1], grad = c >> 1 & 1;
        const char *what = describe("T %d, V %d, grad %d", (int)T, (int)V, (int)grad);
        begin_case();
        struct pair *logits = make_normal(dtype, T * ls, 4), *targets = make_integers(T, 0, (int32_t)V),
                    *losses = make_output(MX8_F32, T);
        if (T > 2) set_value(targets, 1, -100);
        if (T > 3) set_value(logits, 2 * ls + V / 2, -INFINITY);
        if (T > 5) set_value(targets, 5, (double)V);
        struct mx8_cross_entropy_job j[SIDES];
        for (int s = CPU; s < SIDES; s++)
            j[s] = (struct mx8_cross_entropy_job){
                T, V, ls, dtype, grad, 0.25f, side_of(logits, s), side_of(targets, s), side_of(losses, s), NULL};
        RUN(cross_entropy, &j[side]);
        CLOSE(what, losses, 1e-6, 4e-6);
        CLOSE(what, logits, 4e-6, 1e-8);
    }
}

/* ---- optimizer, elementwise ---- */

static const int64_t lengths[] = {0, 1, 31, 33, 4099, 300000};

/* Codes of a gradient that was never stored: those of the stored one, byte for byte. */
static void test_quantize_softmax(void **state) {
    (void)state;
    NEEDS_CUDA();
    if (cuda.info.capability != 90) skip();
    static const struct { int64_t T, V; } sizes[] = {{256, 256}, {512, 1024}, {37, 264}, {300, 2088}, {1024, 20208}};
    for (int c = 0; c < COUNT(sizes) * 3; c++) {
        const int64_t T = sizes[c / 3].T, V = sizes[c / 3].V, ls = (V + 7) / 8 * 8, padded = (T + 31) / 32 * 32,
                      blocks = (V + 31) / 32;
        const int32_t rule = c % 3 == 2 ? MX8_SCALE_FLOOR : MX8_SCALE_RCEIL, col_tile = c % 3 == 1 ? 32 : 1;
        begin_case();
        const struct mx8_kernels *k = cuda.exec.k;
        struct pair *logits = make_normal(MX8_BF16, T * ls, 3), *targets = make_integers(T, -1, (int32_t)V);
        const size_t n[4] = {(size_t)(T * V), (size_t)(T * blocks), (size_t)(V * padded), (size_t)(V * padded / 32)};
        float *losses = make_buffer((size_t)T * 4, 0);
        struct mx8_row_softmax *rows = make_buffer((size_t)T * sizeof *rows, 0);
        int64_t *saturated = make_buffer(2 * sizeof *saturated, 0);
        uint8_t *out[2][4];
        for (int i = 0; i < 8; i++) out[i / 4][i % 4] = make_buffer(n[i % 4], CUDA_POISON);
        begin_cpu_run();
        begin_cuda_run();
        assert_ok(k->fill(&cuda.exec, saturated, 0, 2 * sizeof *saturated));
        struct mx8_cross_entropy_job loss = {.T = T,
            .V = V,
            .ls = ls,
            .dtype = MX8_BF16,
            .scale = 1.0f / 512,
            .rows = rows,
            .logits = logits->at[CUDA],
            .targets = targets->at[CUDA],
            .losses = losses};
        struct mx8_quant_job j = {.src = logits->at[CUDA],
            .src_dtype = MX8_BF16,
            .batch = 1,
            .rows = T,
            .cols = V,
            .src_stride = {T * ls, ls, 1},
            .row_code_stride = {0, V, 1},
            .row_scale_stride = {0, blocks, 1},
            .col_code_stride = {0, 1, padded},
            .col_scale_stride = {0, 1, padded / 32},
            .padded_rows = padded,
            .rule = rule,
            .format = MX8_F8_E4M3,
            .group = 256,
            .tile = 1,
            .col_tile = col_tile};
        for (int way = 0; way < 2; way++) {
            j.row_codes = out[way][0], j.row_scales = out[way][1], j.col_codes = out[way][2],
            j.col_scales = out[way][3];
            j.saturated = saturated + way;
            loss.grad = way;
            loss.rows = way ? NULL : rows;
            assert_ok(k->cross_entropy(&cuda.exec, &loss));
            const struct mx8_quant_source source = {
                .kind = MX8_FROM_SOFTMAX, .a = logits->at[CUDA], .a_ls = ls, .rows = rows};
            if (way == 0) j.src = NULL;
            assert_ok(way ? k->quantize(&cuda.exec, &j) : k->quantize_from(&cuda.exec, &source, &j));
            j.src = logits->at[CUDA];
        }
        int64_t counts[2];
        assert_ok(k->download(&cuda.exec, counts, saturated, sizeof counts));
        assert_int_equal(counts[0], counts[1]);
        for (int i = 0; i < 4; i++) {
            uint8_t *made = fetch_buffer(out[0][i], n[i], "quantize_from"),
                    *stored = fetch_buffer(out[1][i], n[i], "quantize");
            expect_same_bytes("quantize_from",
                describe("%s, T %d", (const char *[]){"row codes", "row scales", "column codes", "column scales"}[i],
                    (int)T),
                made, stored, n[i]);
            free(made);
            free(stored);
        }
    }
}

static void test_adamw(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(lengths) * 8; c++) {
        const int64_t n = lengths[c / 8];
        const int32_t copy_dtype = dtypes[c & 1], more = c >> 1 & 1, moment_dtype = dtypes[c >> 2 & 1];
        const char *what = describe(
            "n %d, moments in %s, grad_scale and copy %d", (int)n, mx8_get_dtype_name(moment_dtype), (int)more);
        begin_case();
        struct pair *master = make_normal(MX8_F32, n, 1), *m = make_normal(moment_dtype, n, 0.1),
                    *v = make_normal(moment_dtype, n, 0.1), *grad = make_normal(MX8_F32, n, 1);
        struct pair *grad_scale = more ? make_normal(MX8_F32, 1, 1) : NULL,
                    *copy = more ? make_output(copy_dtype, n) : NULL;
        for (int64_t i = 0; i < n; i++) set_value(v, i, fabs(get_value(v, v->at[CPU], i)));
        struct pair *scalars = make_output(MX8_F32, 4); /* struct mx8_adamw_state: the same four numbers from memory */
        for (int i = 0; i < 4; i++) set_value(scalars, i, (double)(float[]){3e-4f, 0.271f, 0.142625f, 1.2345f}[i]);
        uint32_t rounding;
        memcpy(&rounding, (float *)scalars->at[CPU] + 3, sizeof rounding);
        struct mx8_adamw_job j[SIDES];
        for (int s = CPU; s < SIDES; s++) {
            j[s] = (struct mx8_adamw_job){.n = n, .lr = 3e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                .weight_decay = 0.1f, .bias1 = 0.271f, .bias2 = 0.142625f, .grad_scale = side_of(grad_scale, s),
                .master = side_of(master, s), .m = side_of(m, s), .v = side_of(v, s), .grad = side_of(grad, s),
                .copy = side_of(copy, s), .copy_dtype = copy_dtype, .moment_dtype = moment_dtype, .rounding = rounding,
                .first = ((uint64_t)1 << 32) - 21}; /* the low word wraps inside */
            if (!more) continue;
            j[s].state = side_of(scalars, s);
            j[s].lr = j[s].bias1 = j[s].bias2 = NAN;
            j[s].rounding = 0;
        }
        RUN(adamw, &j[side]);
        EXACT(what, master);
        EXACT(what, m);
        EXACT(what, v);
        EXACT(what, copy);
        if (n < 3) continue;
        for (int s = CPU; s < SIDES; s++) { /* off the wide packs' boundary */
            j[s].n = n - 1;
            j[s].first++;
            j[s].master++;
            j[s].grad++;
            j[s].m = (uint8_t *)j[s].m + mx8_get_dtype_size(moment_dtype);
            j[s].v = (uint8_t *)j[s].v + mx8_get_dtype_size(moment_dtype);
            if (j[s].copy) j[s].copy = (uint8_t *)j[s].copy + mx8_get_dtype_size(copy_dtype);
        }
        RUN(adamw, &j[side]);
        EXACT(what, master);
        EXACT(what, m);
        EXACT(what, v);
        EXACT(what, copy);
    }
}

static void test_fill_normal(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(lengths) * 3; c++) {
        const int64_t n = lengths[c / 3];
        const char *what = describe("n %d, %s", (int)n, c % 3 ? "truncated" : "whole");
        begin_case();
        struct pair *out = make_output(MX8_F32, n);
        struct mx8_normal_job j[SIDES];
        for (int s = CPU; s < SIDES; s++) /* low 1e-12: the far tail */
            j[s] = (struct mx8_normal_job){
                side_of(out, s), n, 42, 0x123456789ABCDEFull, ((uint64_t)1 << 33) - 7, 0.02, 0.00135, 1 - 2 * 0.00135};
        for (int s = CPU; s < SIDES; s++) {
            if (c % 3 == 0) j[s].low = 0, j[s].width = 1;
            if (c % 3 == 1) j[s].low = 0, j[s].width = 1e-9;
        }
        RUN(fill_normal, &j[side]);
        EXACT(what, out);
    }
}

/* Marks are in order, and time passes between them. */
static void test_marks(void **state) {
    (void)state;
    NEEDS_CUDA();
    begin_case();
    const struct mx8_kernels *k = cuda.exec.k;
    enum { MARKS = 600, BYTES = 1 << 26 };
    void *timer = NULL, *space = make_buffer(BYTES, 0);
    double seconds[MARKS];
    for (int i = 0; i < MARKS; i++) {
        assert_ok(k->mark(&cuda.exec, &timer, i));
        assert_ok(k->fill(&cuda.exec, space, i, BYTES));
    }
    assert_ok(k->read_marks(&cuda.exec, timer, MARKS, seconds));
    assert_true(seconds[0] == 0);
    for (int i = 1; i < MARKS; i++) assert_true(seconds[i] > seconds[i - 1]);
    assert_int_equal(k->read_marks(&cuda.exec, timer, 100000, seconds), MX8_INVALID_ARGUMENT);
    k->release_timer(&cuda.exec, timer);
    k->release_timer(&cuda.exec, NULL);
}

/* A recorded sum of squares runs when it is launched, as often as it is. */
static void test_graph(void **state) {
    (void)state;
    NEEDS_CUDA();
    begin_case();
    const struct mx8_kernels *k = cuda.exec.k;
    struct mx8_exec x = cuda.exec;
    void *graph = NULL;
    enum { N = 1000 };
    float host[N];
    for (int i = 0; i < N; i++) host[i] = 2;
    float *a = make_buffer(sizeof host, 0);
    double *sum = make_buffer(sizeof *sum, 0), got = -1;
    assert_int_equal(k->begin_graph(&x), MX8_UNSUPPORTED); /* the default stream */
    assert_ok(k->synchronize(&x)); /* the other stream does not wait for this one */
    assert_ok(k->make_stream(&x, &x.stream));
    assert_ok(k->upload(&x, a, host, sizeof host));
    assert_ok(k->synchronize(&x));
    assert_ok(k->begin_graph(&x));
    assert_ok(k->fill(&x, sum, 0, sizeof *sum));
    assert_ok(k->sum_squares(&x, sum, a, N));
    assert_ok(k->end_graph(&x, &graph));
    assert_ok(k->download(&x, &got, sum, sizeof got));
    assert_true(got == 0);
    for (int i = 0; i < 3; i++) {
        assert_ok(k->launch_graph(&x, graph));
        assert_ok(k->download(&x, &got, sum, sizeof got));
        assert_true(got == 4.0 * N);
    }
    k->release_graph(&x, graph);
    k->release_graph(&x, NULL);
}

static void test_elementwise(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(lengths) * 4; c++) {
        const int64_t n = lengths[c / 4];
        const int32_t dtype = dtypes[c & 1], other = dtypes[c >> 1 & 1];
        const char *what = describe("n %d", (int)n);
        begin_case();
        struct pair *a = make_normal(dtype, n, 1), *b = make_normal(dtype, n, 1), *y = make_output(dtype, n),
                    *as = make_output(other, n);
        RUN(add, side_of(y, side), side_of(a, side), side_of(b, side), dtype, n);
        EXACT(what, y);
        RUN(add, side_of(a, side), side_of(a, side), side_of(b, side), dtype, n);
        EXACT(what, a);
        RUN(cast, side_of(as, side), other, side_of(a, side), dtype, n);
        EXACT(what, as);
        if (dtype != MX8_F32) continue;
        struct pair *factor = make_normal(MX8_F32, 1, 1);
        RUN(scale, side_of(a, side), side_of(factor, side), 0, n);
        EXACT(what, a);
        RUN(scale, side_of(a, side), NULL, 0.3f, n);
        EXACT(what, a);
        if (n < 2) continue;
        RUN(scale, (float *)side_of(a, side) + 1, NULL, 3.0f, n - 1); /* off the 16-byte boundary */
        EXACT(what, a);
    }
}

static void test_sums(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(lengths) * 2; c++) {
        const int64_t n = lengths[c / 2], shift = c & 1 && n > 0;
        const char *what = describe("n %d, shift %d", (int)n, (int)shift);
        begin_case();
        struct pair *a = make_normal(MX8_F32, n, 1e20), *squares = make_normal(MX8_F64, 1, 1),
                    *total = make_normal(MX8_F64, 1, 1);
        struct pair *factor = make_output(MX8_F32, 1), *norm = make_output(MX8_F32, 1);
        RUN(sum_squares, side_of(squares, side), (float *)side_of(a, side) + shift, n - shift);
        CLOSE(what, squares, 1e-13, 0);
        RUN(sum, side_of(total, side), (float *)side_of(a, side) + shift, n - shift);
        CLOSE(what, total, 1e-12, 1e20 * 1e-12);
        for (double limit = 1; limit < 1e25; limit *= 1e24) {
            RUN(clip_factor, side_of(factor, side), side_of(norm, side), side_of(squares, side), (float)limit);
            CLOSE(what, factor, 2e-7, 0);
            CLOSE(what, norm, 2e-7, 0);
        }
        set_value(squares, 0, NAN);
        RUN(clip_factor, side_of(factor, side), side_of(norm, side), side_of(squares, side), 1.0f);
        EXACT(what, factor);
    }
}

static void test_check_finite(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int c = 0; c < COUNT(lengths) * 2; c++) {
        const int64_t n = lengths[c / 2];
        const int32_t dtype = dtypes[c & 1];
        static const double values[] = {3.3e38, NAN, INFINITY, -INFINITY};
        for (int v = 0; v < COUNT(values) && n > 0; v++) {
            begin_case();
            struct pair *a = make_normal(dtype, n, 1), *flag = make_integers(1, 0, 1);
            set_value(a, n * v / 4, values[v]);
            RUN(check_finite, side_of(flag, side), side_of(a, side), dtype, n);
            EXACT(describe("n %d, value %g", (int)n, values[v]), flag);
            assert_int_equal((int)get_value(flag, flag->got, 0), v > 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cuda_unit_test(test_rmsnorm),
        cuda_unit_test(test_rmsnorm_backward),
        cuda_unit_test(test_colsum),
        cuda_unit_test(test_rope),
        cuda_unit_test(test_swiglu),
        cuda_unit_test(test_clamp),
        cuda_unit_test(test_router),
        cuda_unit_test(test_router_skew),
        cuda_unit_test(test_permute),
        cuda_unit_test(test_combine),
        cuda_unit_test(test_embedding),
        cuda_unit_test(test_cross_entropy),
        cuda_unit_test(test_quantize_softmax),
        cuda_unit_test(test_adamw),
        cuda_unit_test(test_fill_normal),
        cuda_unit_test(test_marks),
        cuda_unit_test(test_graph),
        cuda_unit_test(test_elementwise),
        cuda_unit_test(test_sums),
        cuda_unit_test(test_check_finite),
    };
    return cmocka_run_group_tests_name("cuda model kernels", tests, open_both, close_both);
}
