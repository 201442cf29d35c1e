/* Router, permutations, embedding and loss on CUDA and on the CPU, job by job. What only moves or
 * rounds single products and sums must agree to the bit; sums in another order and exponentials within f32 rounding,
 * bf16 results within a unit. */
#include "model_pairs.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cuda_unit_test(test_router),
        cuda_unit_test(test_router_skew),
        cuda_unit_test(test_permute),
        cuda_unit_test(test_combine),
        cuda_unit_test(test_embedding),
        cuda_unit_test(test_cross_entropy),
        cuda_unit_test(test_quantize_softmax),
    };
    return cmocka_run_group_tests_name("cuda routing and loss", tests, open_both, close_both);
}
