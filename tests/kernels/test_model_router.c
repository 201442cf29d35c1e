/* The router: scores, selection, weights and the stable sort against plain references; ties, NaN, empty experts; the
 * gradient against central differences. */
#include "model_testing.h"

struct route_case { int64_t T, E; int32_t k, score_func, norm, biased; };
static const struct route_case cases[] = {
    {0, 4, 1, 0, 0, 0},  {1, 1, 1, 0, 0, 0},   {1, 3, 3, 1, 1, 0},    {33, 8, 2, 0, 1, 1},  {33, 8, 2, 1, 0, 1},
    {65, 16, 1, 0, 0, 1}, {70, 33, 5, 0, 1, 0}, {70, 33, 5, 1, 1, 1}, {900, 4, 2, 0, 0, 0}, {40, 128, 8, 1, 1, 0},
};
enum { N_CASES = sizeof cases / sizeof *cases };

struct routing {
    int64_t T, E;
    int32_t k;
    void *logits, *dlogits;
    float *bias, *scores, *weights, *dweights;
    int32_t *indices, *order, *positions, *offsets;
};

static struct routing open_routing(int64_t T, int64_t E, int32_t k, int32_t dtype, int biased) {
    return (struct routing){.T = T, .E = E, .k = k, .logits = make_normal(dtype, T * E, 1, 1.5),
        .dlogits = make_normal(dtype, T * E, 9, 1.0), .bias = biased ? make_normal(MX8_F32, E, 2, 0.3) : NULL,
        .scores = make_zeros(MX8_F32, T * E), .weights = make_zeros(MX8_F32, T * k),
        .dweights = make_normal(MX8_F32, T * k, 3, 1.0), .indices = make_zeros(MX8_I32, T * k),
        .order = make_zeros(MX8_I32, T * k), .positions = make_zeros(MX8_I32, T * k),
        .offsets = make_zeros(MX8_I32, E)};
}

static void close_routing(struct routing *r) {
    void *owned[] = {r->logits, r->dlogits, r->bias, r->scores, r->weights, r->dweights, r->indices, r->order,
        r->positions, r->offsets};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static struct mx8_router_job job_of(const struct routing *r, int32_t dtype, int32_t score_func, int32_t norm) {
    return (struct mx8_router_job){.T = r->T, .E = r->E, .k = r->k, .score_func = score_func, .route_norm = norm,
        .dtype = dtype, .route_scale = 2.5f, .logits = r->logits, .bias = r->bias, .scores = r->scores,
        .weights = r->weights, .indices = r->indices, .order = r->order, .positions = r->positions,
        .offsets = r->offsets, .dweights = r->dweights, .dlogits = r->dlogits};
}

static void run_router(const struct mx8_kernels *k, const struct routing *g, const struct mx8_router_job *job) {
    size_t slots = (size_t)(g->T * g->k) * 4;
    struct replay r;
    begin_replay(&r, k, (struct span[]){{g->scores, (size_t)(g->T * g->E) * 4}, {g->weights, slots},
        {g->indices, slots}, {g->order, slots}, {g->positions, slots}, {g->offsets, (size_t)g->E * 4}}, 6);
    while (next_replay(&r)) assert_ok(k->router(&r.exec, job));
}

static void reference_scores(const double *logits, int64_t E, int32_t score_func, double *scores) {
    double max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < E; e++) max = logits[e] > max ? logits[e] : max;
    for (int64_t e = 0; e < E; e++) sum += exp(logits[e] - max);
    for (int64_t e = 0; e < E; e++) {
        scores[e] = score_func == MX8_SCORE_SOFTMAX ? exp(logits[e] - max) / sum : 1 / (1 + exp(-logits[e]));
    }
}

static void reference_weights(const double *scores, const int32_t *chosen, int32_t k, int norm, double *weights) {
    double sum = 0;
    for (int32_t s = 0; s < k; s++) sum += scores[chosen[s]];
    for (int32_t s = 0; s < k; s++) weights[s] = scores[chosen[s]] / (norm ? sum + 1e-20 : 1) * 2.5;
}

/* The choice is checked on the kernel's own scores: what it ranks is exactly scores + bias in f32. */
static void check_choice(const struct routing *g) {
    for (int64_t t = 0; t < g->T; t++) {
        const float *scores = g->scores + t * g->E;
        int taken[256] = {0};
        for (int32_t s = 0; s < g->k; s++) {
            int64_t best = -1;
            float best_rank = 0;
            for (int64_t e = 0; e < g->E; e++) {
                float rank = scores[e] + (g->bias ? g->bias[e] : 0);
                if (taken[e] || (best >= 0 && !(rank > best_rank || (isnan(rank) && !isnan(best_rank))))) continue;
                if (best >= 0 && isnan(best_rank)) continue;
                best = e;
                best_rank = rank;
            }
            assert_int_equal(g->indices[t * g->k + s], best);
            taken[best] = 1;
        }
    }
}

static void check_sort(const struct routing *g) {
    int64_t p = 0;
    for (int64_t e = 0; e < g->E; e++) {
        for (int64_t s = 0; s < g->T * g->k; s++) {
            if (g->indices[s] != e) continue;
            assert_int_equal(g->order[p], s);
            assert_int_equal(g->positions[s], p);
            p++;
        }
        assert_int_equal(g->offsets[e], p);
    }
    assert_int_equal(p, g->T * g->k);
}

static void check_case(const struct mx8_kernels *k, const struct route_case *c, int32_t dtype) {
    struct routing g = open_routing(c->T, c->E, c->k, dtype, c->biased);
    struct mx8_router_job job = job_of(&g, dtype, c->score_func, c->norm);
    run_router(k, &g, &job);
    int64_t n = c->T * c->E, slots = c->T * c->k;
    double *logits = make_reference(n), *scores = make_reference(n), *weights = make_reference(slots);
    for (int64_t i = 0; i < n; i++) logits[i] = value_at(g.logits, dtype, i);
    for (int64_t t = 0; t < c->T; t++) {
        reference_scores(logits + t * c->E, c->E, c->score_func, scores + t * c->E);
        reference_weights(scores + t * c->E, g.indices + t * c->k, c->k, c->norm, weights + t * c->k);
    }
    check_values("scores", g.scores, MX8_F32, scores, n, 2e-6, 0);
    check_values("weights", g.weights, MX8_F32, weights, slots, 4e-6, 0);
    check_choice(&g);
    check_sort(&g);

    /* d sum(w dw) / d logits by central differences, the choice held fixed */
    double *want = make_reference(n), *row = make_reference(c->E), *w = make_reference(c->k);
    for (int64_t i = 0; i < n; i++) {
        int64_t t = i / c->E;
        double at = logits[i], side[2] = {0, 0};
        for (int up = 0; up < 2; up++) {
            logits[i] = at + (up ? 1e-5 : -1e-5);
            reference_scores(logits + t * c->E, c->E, c->score_func, row);
            reference_weights(row, g.indices + t * c->k, c->k, c->norm, w);
            for (int32_t s = 0; s < c->k; s++) side[up] += w[s] * (double)g.dweights[t * c->k + s];
        }
        logits[i] = at;
        want[i] = (side[1] - side[0]) / 2e-5;
    }
    struct replay r;
    begin_replay(&r, k, (struct span[]){{g.dlogits, (size_t)n * mx8_get_dtype_size(dtype)}}, 1);
    while (next_replay(&r)) assert_ok(k->router_backward(&r.exec, &job));
    check_values("dlogits", g.dlogits, dtype, want, n, 1e-5, 2e-6);
    void *owned[] = {logits, scores, weights, want, row, w};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    close_routing(&g);
}

static void every_case(const struct mx8_kernels *k) {
    for (int i = 0; i < N_CASES; i++) {
        for (int a = 0; a < 2; a++) check_case(k, &cases[i], both_dtypes[a]);
    }
}

static void test_cases(void **state) {
    (void)state;
    for_every_isa(every_case);
}

/* Equal logits: the lowest indices win, everything lands on the first experts and the others stay empty. */
static void ties(const struct mx8_kernels *k) {
    struct routing g = open_routing(20, 9, 3, MX8_F32, 0);
    for (int64_t i = 0; i < g.T * g.E; i++) ((float *)g.logits)[i] = 0.25f;
    struct mx8_router_job job = job_of(&g, MX8_F32, MX8_SCORE_SIGMOID, 1);
    run_router(k, &g, &job);
    for (int64_t s = 0; s < g.T * g.k; s++) assert_int_equal(g.indices[s], s % 3);
    for (int64_t e = 0; e < g.E; e++) assert_int_equal(g.offsets[e], e < 3 ? 20 * (e + 1) : 60);
    check_sort(&g);
    close_routing(&g);
}

/* NaN and infinite logits: every slot still gets an expert of its own, NaN first. */
static void not_finite(const struct mx8_kernels *k) {
    for (int32_t score_func = 0; score_func < 2; score_func++) {
        struct routing g = open_routing(12, 6, 2, MX8_F32, 1);
        float *logits = g.logits;
        for (int64_t t = 0; t < g.T; t++) logits[t * g.E + t % g.E] = t % 2 ? NAN : INFINITY;
        logits[1 * g.E + 5] = NAN;
        for (int64_t e = 0; e < g.E; e++) logits[11 * g.E + e] = NAN;
        for (int64_t e = 0; e < g.E; e++) logits[10 * g.E + e] = -INFINITY;
        struct mx8_router_job job = job_of(&g, MX8_F32, score_func, 0);
        run_router(k, &g, &job);
        check_choice(&g);
        check_sort(&g);
        if (score_func == MX8_SCORE_SIGMOID) {
            assert_int_equal(g.indices[2], 1);
            assert_int_equal(g.indices[3], 5);
            assert_int_equal(g.indices[6], 3);
            assert_true(isnan(g.weights[6]) && !isnan(g.weights[7]));
        }
        assert_int_equal(g.indices[22], 0);
        assert_int_equal(g.indices[23], 1);
        close_routing(&g);
    }
}

static void test_ties(void **state) {
    (void)state;
    for_every_isa(ties);
}

static void test_not_finite(void **state) {
    (void)state;
    for_every_isa(not_finite);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
