/* Permute and combine, forward and backward, against plain references; empty experts, top_k 1 to 3, aliased outputs. */
#include "model_testing.h"

struct permute_case { int64_t T, D; int32_t k, weighted, based; };
static const struct permute_case cases[] = {
    {0, 8, 1, 0, 0},   {1, 1, 1, 1, 1},   {33, 65, 1, 0, 1}, {33, 65, 2, 1, 0},
    {33, 64, 3, 1, 1}, {7, 128, 2, 0, 0}, {200, 96, 2, 1, 1}, {5, 1000, 3, 0, 1},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* Slots sorted by a hash of the slot: an arbitrary permutation. */
static void make_order(int64_t slots, int32_t *order, int32_t *positions) {
    int64_t p = 0;
    for (int64_t residue = 0; residue < 7; residue++) {
        for (int64_t s = 0; s < slots; s++) {
            if (s * 5 % 7 != residue) continue;
            order[p] = (int32_t)s;
            positions[s] = (int32_t)p++;
        }
    }
}

struct fixture {
    int64_t T, D, slots;
    int32_t k, dtype;
    int32_t *order, *positions;
    float *weights, *dweights;
    void *tokens, *rows, *base, *out_tokens, *out_rows;
};

static struct fixture open_fixture(const struct permute_case *c, int32_t dtype) {
    struct fixture f = {.T = c->T, .D = c->D, .slots = c->T * c->k, .k = c->k, .dtype = dtype};
    f.order = make_zeros(MX8_I32, f.slots);
    f.positions = make_zeros(MX8_I32, f.slots);
    make_order(f.slots, f.order, f.positions);
    f.weights = c->weighted ? make_normal(MX8_F32, f.slots, 1, 1.0) : NULL;
    f.dweights = make_normal(MX8_F32, f.slots, 2, 1.0);
    f.tokens = make_normal(dtype, f.T * f.D, 3, 1.0);
    f.rows = make_normal(dtype, f.slots * f.D, 4, 1.0);
    f.base = c->based ? make_normal(dtype, f.T * f.D, 5, 1.0) : NULL;
    f.out_tokens = make_normal(dtype, f.T * f.D, 6, 1.0);
    f.out_rows = make_normal(dtype, f.slots * f.D, 7, 1.0);
    return f;
}

static void close_fixture(struct fixture *f) {
    void *owned[] = {f->order, f->positions, f->weights, f->dweights, f->tokens, f->rows, f->base,
        f->out_tokens, f->out_rows};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static double weight_of(const struct fixture *f, int64_t slot) { return f->weights ? (double)f->weights[slot] : 1; }

/* Expert rows from token rows: permute forward, and combine backward. */
static void check_spread(const struct fixture *f) {
    double *want = make_reference(f->slots * f->D);
    for (int64_t i = 0; i < f->slots * f->D; i++) {
        int64_t slot = f->order[i / f->D];
        want[i] = value_at(f->tokens, f->dtype, slot / f->k * f->D + i % f->D) * weight_of(f, slot);
    }
    check_values("rows", f->out_rows, f->dtype, want, f->slots * f->D, f->weights ? 1e-6 : 0, 0);
    free(want);
}

/* Token rows from expert rows: combine forward, and permute backward. */
static void check_gathered(const struct fixture *f, const void *out, const double *base) {
    double *want = make_reference(f->T * f->D);
    for (int64_t i = 0; i < f->T * f->D; i++) {
        want[i] = base ? base[i] : 0;
        for (int32_t s = 0; s < f->k; s++) {
            int64_t slot = i / f->D * f->k + s;
            want[i] += value_at(f->rows, f->dtype, f->positions[slot] * f->D + i % f->D) * weight_of(f, slot);
        }
    }
    check_values("tokens", out, f->dtype, want, f->T * f->D, 1e-6, 1e-6);
    free(want);
}

static void check_dweights(const struct fixture *f) {
    double *want = make_reference(f->slots);
    for (int64_t s = 0; s < f->slots; s++) {
        if (!f->weights) {
            want[s] = (double)f->dweights[s];
            continue;
        }
        for (int64_t i = 0; i < f->D; i++) {
            double token = value_at(f->tokens, f->dtype, s / f->k * f->D + i);
            want[s] += value_at(f->rows, f->dtype, f->positions[s] * f->D + i) * token;
        }
    }
    check_values("dweights", f->dweights, MX8_F32, want, f->slots, 1e-6, 1e-5);
    free(want);
}

static double *base_values(const struct fixture *f, const void *base) {
    double *out = base ? make_reference(f->T * f->D) : NULL;
    for (int64_t i = 0; base && i < f->T * f->D; i++) out[i] = value_at(base, f->dtype, i);
    return out;
}

/* alias: the base is the output itself. */
static void check_case(const struct mx8_kernels *k, const struct permute_case *c, int32_t dtype, int alias) {
    struct fixture f = open_fixture(c, dtype);
    size_t e = mx8_get_dtype_size(dtype), token_bytes = (size_t)(f.T * f.D) * e;
    size_t row_bytes = (size_t)(f.slots * f.D) * e;
    const void *base = alias && f.base ? f.out_tokens : f.base;
    double *base_value = base_values(&f, base);
    struct mx8_permute_job permute = {.T = f.T, .D = f.D, .k = f.k, .dtype = dtype, .x = f.tokens, .order = f.order,
        .positions = f.positions, .weights = f.weights, .rows = f.out_rows, .drows = f.rows, .dres = base,
        .dx = f.out_tokens, .dweights = f.dweights};
    struct mx8_combine_job combine = {.T = f.T, .D = f.D, .k = f.k, .dtype = dtype, .rows = f.rows, .base = base,
        .order = f.order, .positions = f.positions, .weights = f.weights, .y = f.out_tokens, .dy = f.tokens,
        .drows = f.out_rows, .dweights = f.dweights};
    struct span token_span = {f.out_tokens, token_bytes}, row_span = {f.out_rows, row_bytes};
    struct span weight_span = {f.dweights, (size_t)f.slots * 4};
    void *before = malloc(token_bytes + 1);
    assert_non_null(before);
    memcpy(before, f.out_tokens, token_bytes);
    struct replay r;

    begin_replay(&r, k, &row_span, 1);
    while (next_replay(&r)) assert_ok(k->permute(&r.exec, &permute));
    check_spread(&f);
    begin_replay(&r, k, (struct span[]){token_span, weight_span}, 2);
    while (next_replay(&r)) assert_ok(k->permute_backward(&r.exec, &permute));
    check_gathered(&f, f.out_tokens, base_value);
    check_dweights(&f);

    memcpy(f.out_tokens, before, token_bytes);
    memset(f.out_rows, 0x55, row_bytes);
    for (int64_t s = 0; f.weights && s < f.slots; s++) f.dweights[s] = 3;
    begin_replay(&r, k, &token_span, 1);
    while (next_replay(&r)) assert_ok(k->combine(&r.exec, &combine));
    check_gathered(&f, f.out_tokens, base_value);
    begin_replay(&r, k, (struct span[]){row_span, weight_span}, 2);
    while (next_replay(&r)) assert_ok(k->combine_backward(&r.exec, &combine));
    check_spread(&f);
    check_dweights(&f);
    free(before);
    free(base_value);
    close_fixture(&f);
}

static void every_case(const struct mx8_kernels *k) {
    for (int i = 0; i < N_CASES; i++) {
        for (int a = 0; a < 4; a++) check_case(k, &cases[i], both_dtypes[a % 2], a / 2);
    }
}

static void test_cases(void **state) {
    (void)state;
    for_every_isa(every_case);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
