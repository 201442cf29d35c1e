/* Expert load, the balancing rule, and forced balance. */
#include "model_helpers.h"
#include "model/internal.h"

static const struct mx8_model_options small = {.batch = 2, .seq_len = 16};

/* bias += d - mean(d), d = coeff * sign(mean - count), from the loads of two microbatches together. */
static void test_bias_rule(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    c.load_balance_coeff = 0.25;
    struct subject s = make_subject(&c, "bf16", small, 1);
    int32_t *ids = make_tokens(2 * s.T, c.vocab_size, 31);
    run_step(&s, ids, NULL);
    run_step(&s, ids + 2 * s.T, NULL);
    double want[2][4];
    for (int64_t layer = 0; layer < 2; layer++) {
        int64_t n[4], total = 0;
        assert_ok(mx8i_get_expert_load(s.m, layer, n));
        for (int e = 0; e < 4; e++) total += n[e];
        assert_int_equal(total, 2 * s.T);
        double d[4], mean = 0;
        for (int e = 0; e < 4; e++) {
            d[e] = 0.25 * ((4 * n[e] < total) - (4 * n[e] > total));
            mean += d[e] / 4;
        }
        for (int e = 0; e < 4; e++) want[layer][e] = d[e] - mean;
    }
    assert_ok(mx8i_update_expert_bias(s.m));
    for (int64_t layer = 0; layer < 2; layer++) {
        const float *bias = mx8i_get_buffers(s.m) + mx8i_get_params(s.m)->buffer[layer].at;
        int64_t n[4];
        for (int e = 0; e < 4; e++) assert_true((double)bias[e] == want[layer][e]);
        assert_ok(mx8i_get_expert_load(s.m, layer, n));
        for (int e = 0; e < 4; e++) assert_int_equal(n[e], 0);
    }
    int64_t n[4];
    assert_status(mx8i_get_expert_load(s.m, 2, n), MX8_INVALID_ARGUMENT);
    assert_message("expected 0 to 1");
    free(ids);
    free_subject(&s);
}

static void test_no_bias(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    c.load_balance_coeff = (double)NAN;
    struct subject s = make_subject(&c, "bf16", small, 1);
    int32_t *ids = make_tokens(s.T, c.vocab_size, 32);
    int64_t n[4];
    assert_int_equal(mx8i_get_params(s.m)->buffer_count, 0);
    run_step(&s, ids, NULL);
    assert_ok(mx8i_update_expert_bias(s.m));
    assert_ok(mx8i_get_expert_load(s.m, 0, n));
    for (int e = 0; e < 4; e++) assert_int_equal(n[e], 0);
    free(ids);
    free_subject(&s);
}

/* Slot t * k + j goes to expert (t * k + j) % E; its weight is that expert's score. */
static void test_forced_balance(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    c.force_balance = 1;
    c.top_k = 3;
    c.route_scale = 2;
    struct subject s = make_subject(&c, "f32", small, 1);
    int32_t *ids = make_tokens(s.T, c.vocab_size, 33);
    assert_true(isfinite(run_step(&s, ids, NULL)));
    const struct mx8_routing *r = &s.m->layer[1].a.routing;
    const float *scores = r->scores.data, *weights = r->weights.data;
    const int32_t *order = r->order.data, *positions = r->positions.data;
    for (int64_t slot = 0; slot < s.T * 3; slot++) {
        assert_true(weights[slot] == 2 * scores[slot / 3 * 4 + slot % 4]);
        assert_int_equal(order[positions[slot]], slot);
    }
    int64_t n[4];
    assert_ok(mx8i_get_expert_load(s.m, 1, n));
    for (int e = 0; e < 4; e++) assert_int_equal(n[e], s.T * 3 / 4);
    free(ids);
    free_subject(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bias_rule), cmocka_unit_test(test_no_bias), cmocka_unit_test(test_forced_balance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
