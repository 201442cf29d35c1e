/* Presets, sizes and counts against torchtitan's, and configurations that must not pass. */
#include <math.h>
#include "test.h"
#include "model/config.h"

static struct mx8_model_config find(const char *name) {
    struct mx8_model_config c;
    assert_ok(mx8i_find_preset(name, &c, NULL, NULL));
    assert_ok(mx8i_check_config(&c));
    return c;
}

/* Printed by torchtitan at start (dense includes the embedding), and its FLOPs per token. */
static void test_counts(void **state) {
    (void)state;
    static const struct {
        const char *preset;
        int64_t seq_len, dense, sparse, active, flops;
    } cases[] = {
        {"seed-a", 8192, 2194826240, 754995200, 2698163200, 10988697600},
        {"seed-b", 2048, 2572375040, 9060024320, 4585968640, 22315530240},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx8_model_config c = find(cases[i].preset);
        struct mx8_model_counts n = mx8i_count_model(&c, cases[i].seq_len);
        assert_int_equal(n.dense, cases[i].dense);
        assert_int_equal(n.sparse, cases[i].sparse);
        assert_int_equal(n.total, cases[i].dense + cases[i].sparse);
        assert_int_equal(n.active, cases[i].active);
        assert_int_equal((int64_t)n.flops_per_token, cases[i].flops);
    }
}

static void test_published_sizes(void **state) {
    (void)state;
    struct mx8_model_config scout = find("17bx16e"), maverick = find("17bx128e"), demo = find("demo");
    assert_true(fabs((double)mx8i_count_model(&scout, 8192).total / 1e9 - 107.77) < 0.005);
    assert_true(fabs((double)mx8i_count_model(&maverick, 8192).total / 1e9 - 400.7) < 0.05);
    assert_true(fabs(mx8i_count_model(&scout, 8192).flops_per_token / 1e9 - 121.0) < 0.05);
    assert_in_range(mx8i_count_model(&demo, 256).total, 4000000, 6000000);
    assert_int_equal(mx8i_get_expert_hidden(&demo), 256);
}

static void test_hidden_sizes(void **state) {
    (void)state;
    struct mx8_model_config seed = find("seed-a"), debug = find("debugmodel");
    assert_int_equal(mx8i_get_expert_hidden(&seed), 8192); /* 20480 -> 13653 -> 16383 -> 8191 -> 8192 */
    assert_int_equal(mx8i_get_dense_hidden(&seed), 16384);
    assert_int_equal(mx8i_get_expert_hidden(&debug), 512);
    assert_int_equal(mx8i_get_dense_hidden(&debug), 768);
    debug.auto_scale_hidden_dim = 0;
    assert_int_equal(mx8i_get_expert_hidden(&debug), 768);
    debug.auto_scale_hidden_dim = 1;
    debug.top_k = 2;
    assert_int_equal(mx8i_get_expert_hidden(&debug), 256);
}

static void test_interleaving(void **state) {
    (void)state;
    struct mx8_model_config debug = find("debugmodel"), seed = find("seed-b");
    for (int64_t i = 0; i < 6; i++) {
        assert_int_equal(mx8i_is_moe_layer(&debug, i), i % 2);
        assert_true(mx8i_is_moe_layer(&seed, i));
    }
}

static void test_preset_shapes(void **state) {
    (void)state;
    struct mx8_model_config c;
    int64_t seq_len, batch;
    assert_ok(mx8i_find_preset("seed-b", &c, &seq_len, &batch));
    assert_int_equal(seq_len, 2048);
    assert_int_equal(batch, 8);
    assert_string_equal(c.flavor, "seed-b");
    assert_status(mx8i_find_preset("llama5", &c, NULL, NULL), MX8_INVALID_ARGUMENT);
    assert_message("llama5");
    assert_message("17bx128e_irope");
    char names[256]; /* every name that is listed is one */
    snprintf(names, sizeof names, "%s", mx8i_list_presets());
    for (char *name = strtok(names, ", "); name; name = strtok(NULL, ", ")) find(name);
    c = find("debugmodel_irope");
    assert_int_equal(c.every_n_layers_nope, 4);
    assert_int_equal(c.fixed_attn_block_size, 256);
    assert_int_equal(c.attn_mask, MX8_MASK_DOCUMENT);
}

/* One wrong field each; the message names it. */
static void test_bad_configs(void **state) {
    (void)state;
    static const struct {
        size_t at;
        int64_t value;
        const char *message;
    } cases[] = {
        {offsetof(struct mx8_model_config, dim), 0, "model.dim is 0"},
        {offsetof(struct mx8_model_config, n_layers), -3, "model.n_layers is -3"},
        {offsetof(struct mx8_model_config, n_heads), 7, "model.n_heads is 7"},
        {offsetof(struct mx8_model_config, n_kv_heads), 3, "model.n_kv_heads is 3"},
        {offsetof(struct mx8_model_config, n_heads), 256, "model.dim / model.n_heads is 1"},
        {offsetof(struct mx8_model_config, vocab_size), INT64_C(1) << 40, "model.vocab_size"},
        {offsetof(struct mx8_model_config, multiple_of), 0, "model.multiple_of"},
        {offsetof(struct mx8_model_config, interleave_moe_layer_step), 0, "model.interleave_moe_layer_step"},
        {offsetof(struct mx8_model_config, every_n_layers_nope), 1, "model.every_n_layers_nope is 1"},
        {offsetof(struct mx8_model_config, num_experts), 0, "moe.num_experts is 0"},
        {offsetof(struct mx8_model_config, top_k), 9, "moe.top_k is 9"},
        {offsetof(struct mx8_model_config, num_shared_experts), -1, "moe.num_shared_experts is -1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx8_model_config c = find("debugmodel");
        memcpy((char *)&c + cases[i].at, &cases[i].value, sizeof cases[i].value);
        if (cases[i].value == 256) c.n_kv_heads = 256;
        assert_status(mx8i_check_config(&c), MX8_INVALID_ARGUMENT);
        assert_message(cases[i].message);
    }
    struct mx8_model_config c = find("debugmodel");
    c.load_balance_coeff = -1;
    assert_status(mx8i_check_config(&c), MX8_INVALID_ARGUMENT);
    assert_message("load_balance_coeff");
    c = find("debugmodel");
    c.route_scale = NAN;
    assert_status(mx8i_check_config(&c), MX8_INVALID_ARGUMENT);
    assert_message("route_scale");
    c = find("debugmodel");
    c.ffn_dim_multiplier = 1e-9;
    assert_status(mx8i_check_config(&c), MX8_INVALID_ARGUMENT);
    assert_message("ffn_dim_multiplier");
    c = find("debugmodel");
    c.force_balance = c.route_norm = 1;
    assert_status(mx8i_check_config(&c), MX8_UNSUPPORTED);
    c = find("debugmodel");
    c.load_balance_coeff = NAN; /* none: legal */
    assert_ok(mx8i_check_config(&c));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts), cmocka_unit_test(test_published_sizes),
        cmocka_unit_test(test_hidden_sizes), cmocka_unit_test(test_interleaving), cmocka_unit_test(test_preset_shapes),
        cmocka_unit_test(test_bad_configs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
