/* The tensor table: names, offsets, initial moments; and which tensors a recipe converts. */
#include "model_helpers.h"

static struct mx8_param_table build(const struct mx8_model_config *c) {
    struct mx8_param_table t;
    assert_ok(mx8i_build_params(c, 64, &t));
    return t;
}

static void test_names_and_shapes(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    c.interleave_moe_layer_step = 2;
    c.num_shared_experts = 2;
    struct mx8_param_table t = build(&c);
    static const struct {
        const char *name;
        int64_t shape[3];
    } cases[] = {
        {"tok_embeddings.weight", {96, 64}},
        {"layers.0.attention_norm.weight", {64}},
        {"layers.0.attention.wq.weight", {64, 64}},
        {"layers.0.attention.wk.weight", {32, 64}},
        {"layers.0.attention.wv.weight", {32, 64}},
        {"layers.0.attention.wo.weight", {64, 64}},
        {"layers.0.ffn_norm.weight", {64}},
        {"layers.0.feed_forward.w1.weight", {192, 64}},
        {"layers.0.feed_forward.w2.weight", {64, 192}},
        {"layers.0.feed_forward.w3.weight", {192, 64}},
        {"layers.1.moe.router.gate.weight", {4, 64}},
        {"layers.1.moe.experts.w1", {4, 64, 64}},
        {"layers.1.moe.experts.w2", {4, 64, 64}},
        {"layers.1.moe.experts.w3", {4, 64, 64}},
        {"layers.1.moe.shared_experts.w1.weight", {128, 64}},
        {"layers.1.moe.shared_experts.w2.weight", {64, 128}},
        {"layers.1.moe.shared_experts.w3.weight", {128, 64}},
        {"norm.weight", {64}},
        {"output.weight", {96, 64}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct mx8_param *p = mx8i_find_param(&t, cases[i].name);
        if (!p) fail_msg("%s is not in the table", cases[i].name);
        for (int32_t d = 0; d < 3; d++) assert_int_equal(p->shape[d], cases[i].shape[d]);
    }
    assert_null(mx8i_find_param(&t, "layers.0.moe.router.gate.weight"));
    assert_int_equal(t.count, 3 + 9 + 13);
    assert_int_equal(t.buffer_count, 1);
    assert_string_equal(t.buffer[0].name, "layers.1.moe.expert_bias");
    mx8i_free_params(&t);
}

/* Tensors follow each other without overlap, and their counts are those of the counting formula. */
static void test_offsets_and_counts(void **state) {
    (void)state;
    static const char *const presets[] = {"debugmodel", "seed-a", "17bx128e", "demo"};
    for (size_t n = 0; n < sizeof presets / sizeof presets[0]; n++) {
        struct mx8_model_config c;
        assert_ok(mx8i_find_preset(presets[n], &c, NULL, NULL));
        struct mx8_param_table t = build(&c);
        int64_t total = 0;
        double flops = 0;
        size_t end = 0;
        for (int64_t i = 0; i < t.count; i++) {
            assert_true(t.param[i].at >= end && t.param[i].at % 64 == 0);
            end = t.param[i].at + (size_t)t.param[i].count;
            total += t.param[i].count;
            flops += t.param[i].flops_share;
        }
        assert_true(end <= t.elements);
        assert_int_equal(total, mx8i_count_model(&c, 64).total);
        double attention = 12.0 * (double)(c.n_layers * c.dim) * 64 / mx8i_count_model(&c, 64).flops_per_token;
        assert_true(fabs(flops + attention - 1) < 1e-9);
        mx8i_free_params(&t);
    }
}

static void test_init_moments(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    c.dim = 128;
    struct subject s = make_subject(&c, "f32", (struct mx8_model_options){.batch = 1, .seq_len = 8}, 1);
    static const struct {
        const char *name;
        double std, most;
    } cases[] = {
        {"tok_embeddings.weight", 1, 10},
        {"layers.1.attention.wq.weight", 0.02, 0.2},
        {"layers.0.attention.wo.weight", 0.02 / 1.4142135623730951, 0.2},
        {"layers.1.attention.wo.weight", 0.01, 0.1},
        {"layers.1.moe.experts.w1", 0.02, 0.2},
        {"layers.1.moe.experts.w3", 0.01, 0.1},
        {"layers.1.moe.shared_experts.w2.weight", 0.01, 0.1},
        {"layers.1.moe.router.gate.weight", 0.01, 0.1},
        /* cut at three standard deviations: 0.98658 of the plain normal's */
        {"output.weight", 0.98658 / 11.313708498984761, 3 / 11.313708498984761},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct mx8_param *p = mx8i_find_param(mx8i_get_params(s.m), cases[i].name);
        const float *x = mx8i_get_masters(s.m) + p->at;
        double sum = 0, squares = 0, most = 0;
        for (int64_t j = 0; j < p->count; j++) {
            sum += (double)x[j];
            squares += (double)x[j] * (double)x[j];
            most = fmax(most, fabs((double)x[j]));
        }
        double n = (double)p->count, std = sqrt(squares / n), error = cases[i].std / sqrt(2 * n);
        if (fabs(std - cases[i].std) > 5 * error) fail_msg("%s: std %g, expected %g", p->name, std, cases[i].std);
        if (fabs(sum / n) > 5 * cases[i].std / sqrt(n)) fail_msg("%s: mean %g", p->name, sum / n);
        if (most > cases[i].most) fail_msg("%s: largest %g, expected at most %g", p->name, most, cases[i].most);
    }
    const struct mx8_param *norm = mx8i_find_param(mx8i_get_params(s.m), "layers.0.ffn_norm.weight");
    for (int64_t j = 0; j < norm->count; j++) assert_true(mx8i_get_masters(s.m)[norm->at + (size_t)j] == 1.0f);
    free_subject(&s);
}

static int is_converted(const struct mx8_param_table *t, const char *name) {
    const struct mx8_param *p = mx8i_find_param(t, name);
    if (!p) fail_msg("no tensor %s", name);
    assert_int_equal(p->mxfp8, p->row_codes != SIZE_MAX);
    return p->mxfp8;
}

static void test_seed_filter(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct mx8_param_table t = build(&c);
    struct mx8_recipe r = make_recipe("mxfp8_moe");
    assert_ok(mx8i_apply_recipe(&t, &r));
    static const char *const yes[] = {"layers.0.attention.wq.weight", "layers.1.attention.wo.weight",
        "layers.0.moe.shared_experts.w1.weight", "layers.0.moe.shared_experts.w2.weight",
        "layers.0.moe.shared_experts.w3.weight", "layers.0.moe.experts.w1", "layers.1.moe.experts.w2",
        "layers.1.moe.experts.w3"};
    static const char *const no[] = {"tok_embeddings.weight", "output.weight", "norm.weight",
        "layers.0.attention.wk.weight", "layers.0.attention.wv.weight", "layers.0.moe.router.gate.weight",
        "layers.0.attention_norm.weight"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) assert_true(is_converted(&t, yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) assert_false(is_converted(&t, no[i]));

    r = make_recipe("mxfp8_dense");
    assert_ok(mx8i_apply_recipe(&t, &r));
    assert_true(is_converted(&t, "layers.0.moe.shared_experts.w1.weight"));
    assert_false(is_converted(&t, "layers.0.moe.experts.w1"));
    r = make_recipe("bf16");
    assert_ok(mx8i_apply_recipe(&t, &r));
    assert_int_equal(t.code_bytes, 0);
    mx8i_free_params(&t);
}

/* "experts" is part of "shared_experts": as a filter it keeps the shared linears out; it does not stop the routed
 * experts, which follow their own list, and as that list's entry it does not convert the shared ones. */
static void test_experts_substring(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct mx8_param_table t = build(&c);
    struct mx8_recipe r = make_recipe("mxfp8_moe");
    snprintf(r.filter_fqns, sizeof r.filter_fqns, " output , router.gate,experts ,");
    assert_ok(mx8i_apply_recipe(&t, &r));
    assert_false(is_converted(&t, "layers.0.moe.shared_experts.w1.weight"));
    assert_true(is_converted(&t, "layers.0.moe.experts.w1"));
    assert_true(is_converted(&t, "layers.0.attention.wk.weight"));
    r.convert_linear = 0;
    assert_ok(mx8i_apply_recipe(&t, &r));
    assert_false(is_converted(&t, "layers.0.moe.shared_experts.w1.weight"));
    assert_true(is_converted(&t, "layers.1.moe.experts.w3"));
    /* the later spelling: an include list */
    r = make_recipe("mxfp8_dense");
    r.filter_fqns[0] = 0;
    snprintf(r.linear_fqns, sizeof r.linear_fqns, "attention.wo,layers.1.moe.shared_experts");
    assert_ok(mx8i_apply_recipe(&t, &r));
    assert_true(is_converted(&t, "layers.0.attention.wo.weight"));
    assert_true(is_converted(&t, "layers.1.moe.shared_experts.w2.weight"));
    assert_false(is_converted(&t, "layers.0.moe.shared_experts.w2.weight"));
    assert_false(is_converted(&t, "output.weight"));
    mx8i_free_params(&t);
}

static void test_bad_recipes(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct mx8_param_table t = build(&c);
    struct mx8_recipe r = make_recipe("mxfp8_moe");
    snprintf(r.filter_fqns, sizeof r.filter_fqns, "output,router.gate,wx");
    assert_status(mx8i_apply_recipe(&t, &r), MX8_INVALID_ARGUMENT);
    assert_message("\"wx\"");
    snprintf(r.filter_fqns, sizeof r.filter_fqns, "output,weight"); /* module names end before ".weight" */
    assert_status(mx8i_apply_recipe(&t, &r), MX8_INVALID_ARGUMENT);
    assert_message("\"weight\"");

    r = make_recipe("mxfp8_moe");
    snprintf(r.expert_fqns, sizeof r.expert_fqns, "shared_experts");
    assert_status(mx8i_apply_recipe(&t, &r), MX8_INVALID_ARGUMENT);
    assert_message("shared_experts");

    r = make_recipe("mxfp8_dense");
    snprintf(r.filter_fqns, sizeof r.filter_fqns, "output,moe,attention");
    assert_status(mx8i_apply_recipe(&t, &r), MX8_INVALID_ARGUMENT);
    assert_message("converts nothing");
    r = make_recipe("mxfp8_moe");
    r.convert_linear = 0;
    r.expert_fqns[0] = 0;
    assert_status(mx8i_apply_recipe(&t, &r), MX8_INVALID_ARGUMENT);
    assert_message("converts nothing");

    r = make_recipe("mxfp8_dense");
    snprintf(r.filter_fqns, sizeof r.filter_fqns, "output"); /* the router of four experts is in */
    assert_status(mx8i_apply_recipe(&t, &r), MX8_INVALID_ARGUMENT);
    assert_message("layers.0.moe.router.gate.weight (4, 64)");
    mx8i_free_params(&t);

    c.multiple_of = 1; /* experts 85 wide */
    t = build(&c);
    r = make_recipe("mxfp8_moe");
    r.convert_linear = 0;
    assert_status(mx8i_apply_recipe(&t, &r), MX8_INVALID_ARGUMENT);
    assert_message("layers.0.moe.experts.w1 (85, 64)");
    mx8i_free_params(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names_and_shapes),
        cmocka_unit_test(test_offsets_and_counts), cmocka_unit_test(test_init_moments),
        cmocka_unit_test(test_seed_filter), cmocka_unit_test(test_experts_substring),
        cmocka_unit_test(test_bad_recipes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
