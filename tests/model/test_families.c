/* The options that Llama 4, Qwen3, OLMoE and Mixtral need beyond torchtitan's model: gradients of whole models against
 * central differences of their own loss, what must not change the bits, and configurations in and out of JSON.
 * tests/python/test_families.py compares the same models with `transformers`. */
#include "families.h"
#include "base/memory.h"

static const struct mx8_model_options small = {.batch = 2, .seq_len = 12};

/* Norm weights off one, so that a forgotten weight is seen. */
static void disturb_norms(struct subject *s) {
    const struct mx8_param_table *t = mx8i_get_params(s->m);
    for (int64_t i = 0; i < t->count; i++) {
        const struct mx8_param *p = &t->param[i];
        float *w = mx8i_get_masters(s->m) + p->at;
        for (int64_t n = 0; n < p->count; n++) {
            if (p->kind == MX8_PARAM_NORM)
                w[n] = 1 + 0.3f * (float)mx8i_random_normal(3, 50 + (uint64_t)i, (uint64_t)n);
            else if (p->kind == MX8_PARAM_LINEAR || p->kind == MX8_PARAM_EXPERT)
                w[n] *= 5; /* attention far from uniform */
            else if (p->kind == MX8_PARAM_ROUTER)
                w[n] *= 40; /* no choice so close that a small step changes it */
        }
    }
    assert_ok(mx8i_refresh_weights(s->m, 0));
}

static double find_loss(struct subject *s, const int32_t *ids) {
    double loss = 0;
    assert_ok(mx8i_forward(s->m, ids, ids + s->T, NULL, 1.0f / (float)s->T, &loss, NULL));
    return loss;
}

/* Loss along w + h d for both signs; w is put back. */
static double differentiate(
    struct subject *s, const struct mx8_param *p, const float *d, double h, const int32_t *ids) {
    float *w = mx8i_get_masters(s->m) + p->at, *kept = malloc((size_t)p->count * sizeof *kept);
    double side[2];
    memcpy(kept, w, (size_t)p->count * sizeof *kept);
    for (int i = 0; i < 2; i++) {
        for (int64_t n = 0; n < p->count; n++) w[n] = kept[n] + (float)(i ? -h : h) * d[n];
        assert_ok(mx8i_refresh_weights(s->m, 0));
        side[i] = find_loss(s, ids);
    }
    memcpy(w, kept, (size_t)p->count * sizeof *kept);
    assert_ok(mx8i_refresh_weights(s->m, 0));
    free(kept);
    return (side[0] - side[1]) / (2 * h);
}

/* Along the gradient itself the slope is its length; along random directions it is the product. The latter finds what
 * the former cannot: a gradient that lacks some of its elements. */
static void check_tensor(struct subject *s, const char *family, const struct mx8_param *p, const int32_t *ids) {
    const int kinked = mx8i_get_config(s->m)->clip_qkv > 0; /* a step must not carry many values across the limit */
    const float *g = mx8i_get_gradients(s->m) + p->at;
    float *d = malloc((size_t)p->count * sizeof *d);
    double length = 0, product, slope;
    for (int64_t n = 0; n < p->count; n++) length += (double)g[n] * (double)g[n];
    length = sqrt(length);
    if (!(length > 3e-4)) fail_msg("%s: the gradient of %s is %g long, which shows nothing", family, p->name, length);
    for (int trial = 0; trial < 3; trial++) {
        double norm = 0;
        product = 0;
        for (int64_t n = 0; n < p->count; n++) {
            d[n] = trial ? (float)mx8i_random_normal(11, (uint64_t)trial, (uint64_t)n) : (float)((double)g[n] / length);
            norm += (double)d[n] * (double)d[n];
        }
        for (int64_t n = 0; n < p->count; n++) {
            d[n] = (float)((double)d[n] / sqrt(norm));
            product += (double)g[n] * (double)d[n];
        }
        slope = differentiate(s, p, d, fmin(5e-4 / length, kinked ? 4e-4 : 5e-3), ids);
        if (!(fabs(slope - product) <= (kinked ? 2e-2 * length + 2e-4 : 4e-3 * length + 5e-5)))
            fail_msg("%s: %s, direction %d: slope %g, expected %g (gradient %g long)", family, p->name, trial, slope,
                product, length);
    }
    free(d);
}

static void test_gradients_agree_with_differences(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        struct mx8_model_config c = families[f]();
        struct subject s = make_subject(&c, "f32", small, 1);
        int32_t *ids = make_tokens(s.T, c.vocab_size, 1);
        disturb_norms(&s);
        run_step(&s, ids, NULL);
        const struct mx8_param_table *t = mx8i_get_params(s.m);
        for (int64_t i = 0; i < t->count; i++) check_tensor(&s, family_names[f], &t->param[i], ids);
        free(ids);
        free_subject(&s);
    }
}

/* Recomputed layers, other thread counts and gradients added up in two halves: the same bits, or the same but for
 * order. */
static void test_what_changes_no_bit(void **state) {
    (void)state;
    static const char *const recipes[] = {"f32", "bf16", "mxfp8_moe"};
    for (int i = 0; i < FAMILIES * 3; i++) {
        struct mx8_model_config c = families[i / 3]();
        c.dim = c.expert_hidden = c.dense_hidden = 64; /* MXFP8 wants multiples of 32 */
        struct subject plain = make_subject(&c, recipes[i % 3], small, 1);
        int32_t *ids = make_tokens(plain.T, c.vocab_size, 2);
        double loss = run_step(&plain, ids, NULL);
        for (int n = 0; n < 2; n++) {
            struct mx8_model_options o = small;
            o.ac_mode = n ? MX8_AC_FULL : MX8_AC_NONE;
            struct subject s = make_subject(&c, recipes[i % 3], o, n ? 1 : 3);
            assert_true(run_step(&s, ids, NULL) == loss);
            assert_same_gradients(plain.m, s.m);
            assert_true(isfinite(loss));
            free_subject(&s);
        }
        free(ids);
        free_subject(&plain);
    }
}

/* Each option alone must change the loss: an option that is read and not obeyed would pass everything else. */
static void test_options_are_obeyed(void **state) {
    (void)state;
#define FIELD(field) offsetof(struct mx8_model_config, field)
    static const struct {
        int family;
        size_t at, size;
        double number;
        int64_t integer;
        const char *text;
    } cases[] = {
        {0, FIELD(qk_norm), sizeof(int32_t), 0, MX8_QK_NORM_NONE, NULL},
        {0, FIELD(nope_layer_offset), sizeof(int64_t), 0, 0, NULL},
        {0, FIELD(attn_temperature), sizeof(double), 0, 0, NULL},
        {0, FIELD(attn_temperature_floor), sizeof(int64_t), 0, 5, NULL},
        {0, FIELD(rope_factor), sizeof(double), 0, 0, NULL},
        {0, FIELD(rope_low_freq), sizeof(double), 2.5, 0, NULL},
        {0, FIELD(rope_high_freq), sizeof(double), 1.5, 0, NULL},
        {0, FIELD(rope_original_len), sizeof(int64_t), 0, 40, NULL},
        {1, FIELD(qk_norm), sizeof(int32_t), 0, MX8_QK_NORM_L2, NULL},
        {2, FIELD(qk_norm), sizeof(int32_t), 0, MX8_QK_NORM_HEAD, NULL},
        {2, FIELD(clip_qkv), sizeof(double), 0, 0, NULL},
        {3, FIELD(clip_qkv), sizeof(double), 0.9, 0, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double loss[2];
        for (int n = 0; n < 2; n++) {
            struct mx8_model_config c = families[cases[i].family]();
            char *field = (char *)&c + cases[i].at;
            if (n && cases[i].size == sizeof(int32_t))
                *(int32_t *)field = (int32_t)cases[i].integer;
            else if (n && (cases[i].number != 0 || cases[i].at == FIELD(clip_qkv) ||
                              cases[i].at == FIELD(rope_factor) || cases[i].at == FIELD(attn_temperature)))
                *(double *)field = cases[i].number;
            else if (n)
                *(int64_t *)field = cases[i].integer;
            struct subject s = make_subject(&c, "f32", small, 1);
            int32_t *ids = make_tokens(s.T, c.vocab_size, 3);
            disturb_norms(&s);
            loss[n] = find_loss(&s, ids);
            free(ids);
            free_subject(&s);
        }
        if (!(fabs(loss[0] - loss[1]) > 1e-6)) fail_msg("case %d changes nothing: loss %.9g", (int)i, loss[0]);
    }
}

static void test_configurations_in_json(void **state) {
    (void)state;
    const char *names = mx8i_list_presets();
    char name[32];
    int count = 0;
    for (const char *at = names; sscanf(at, "%31[^,]", name) == 1; count++) {
        struct mx8_model_config c, back;
        assert_ok(mx8i_find_preset(name, &c, NULL, NULL));
        assert_ok(mx8i_check_config(&c));
        if (count % 2) snprintf(c.dense_layers, sizeof c.dense_layers, "0,1");
        char *text = mx8i_format_config(&c);
        assert_non_null(text);
        assert_ok(mx8i_parse_config("there", text, &back));
        char *again = mx8i_format_config(&back);
        assert_string_equal(again, text);
        assert_string_equal(back.flavor, name);
        assert_int_equal(isnan(back.load_balance_coeff), isnan(c.load_balance_coeff));
        assert_int_equal(mx8i_count_model(&back, 64).total, mx8i_count_model(&c, 64).total);
        mx8i_release(text);
        mx8i_release(again);
        at += strlen(name);
        if (!*at) break;
        at += 2;
    }
    assert_true(count >= 13);
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"[]", "no JSON object"},
        {"{\"model.dim\": 64", "no JSON object"},
        {"{\"model.dimm\": 64}", "model.dimm"},
        {"{\"model.dim\": \"64\"}", "\"model.dim\" is \"64\""},
        {"{\"moe.score_func\": \"tanh\"}", "sigmoid|softmax"},
        {"{\"model.dim\": 64}", "model.n_layers is 0"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct mx8_model_config c;
        assert_true(mx8i_parse_config("there", bad[i].text, &c) != MX8_OK);
        assert_message("there");
        assert_message(bad[i].message);
    }
}

/* Published sizes, in billions of parameters: all, and those that a token meets. */
static void test_open_models(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double total, active;
    } cases[] = {{"llama4-scout", 107.77, 17.17}, {"llama4-maverick", 400.71, 17.18}, {"qwen3-30b-a3b", 30.53, 3.35},
        {"olmoe-1b-7b", 6.92, 1.28}, {"mixtral-8x7b", 46.70, 12.88}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx8_model_config c;
        assert_ok(mx8i_find_preset(cases[i].name, &c, NULL, NULL));
        struct mx8_model_counts n = mx8i_count_model(&c, 4096);
        if (fabs((double)n.total / 1e9 - cases[i].total) > 0.006 ||
            fabs((double)n.active / 1e9 - cases[i].active) > 0.006)
            fail_msg("%s: %.3f total, %.3f active", cases[i].name, (double)n.total / 1e9, (double)n.active / 1e9);
        struct mx8_param_table t;
        assert_ok(mx8i_build_params(&c, 4096, &t));
        int64_t sum = 0;
        for (int64_t p = 0; p < t.count; p++) sum += t.param[p].count;
        assert_int_equal(sum, n.total);
        mx8i_free_params(&t);
    }
}

static void test_bad_configurations(void **state) {
    (void)state;
    struct mx8_model_config c;
#define BAD(text, ...)                                                                                                 \
    do {                                                                                                               \
        c = make_llama4();                                                                                             \
        __VA_ARGS__;                                                                                                   \
        assert_status(mx8i_check_config(&c), MX8_INVALID_ARGUMENT);                                                    \
        assert_message(text);                                                                                          \
    } while (0)
    BAD("model.head_dim is 15", c.head_dim = 15);
    BAD("model.qk_norm", c.qk_norm = 4);
    BAD("model.clip_qkv", c.clip_qkv = (double)NAN);
    BAD("attn_temperature_floor 0", c.attn_temperature_floor = 0);
    BAD("rope_scaling_factor is 0.5", c.rope_factor = 0.5);
    BAD("high_freq_factor 0.5", c.rope_high_freq = 0.5);
    BAD("rope_original_len 0", c.rope_original_len = 0);
    BAD("model.dense_layers is \"3\"", c.dense_layers[0] = '3'; c.dense_layers[1] = 0);
    BAD("model.dense_layers is \"1,\"", memcpy(c.dense_layers, "1,", 3));
    BAD("model.dense_layers is \"x\"", memcpy(c.dense_layers, "x", 2));
    BAD("moe.hidden_dim", c.expert_hidden = -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients_agree_with_differences),
        cmocka_unit_test(test_what_changes_no_bit), cmocka_unit_test(test_options_are_obeyed),
        cmocka_unit_test(test_configurations_in_json), cmocka_unit_test(test_open_models),
        cmocka_unit_test(test_bad_configurations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
