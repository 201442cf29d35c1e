/* Open weights: every family out and in again without a bit changed, layouts against plain index formulas, what a
 * config.json may say, and files that do not fit. tests/python/test_families.py does the same with `transformers`. */
#include <math.h>
#include "base/scratch.h"
#include "families.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/safetensors.h"
#include "model/hf.h"
#include "mx8/quant.h"

static const struct mx8_model_options small = {.batch = 1, .seq_len = 12};
static const struct mx8_log silent;

static struct mx8_model_config make_mixtral(void) {
    struct mx8_model_config c = make_qwen3();
    c.qk_norm = MX8_QK_NORM_NONE;
    c.dense_layers[0] = 0;
    return c;
}

static const struct {
    const char *name;
    struct mx8_model_config (*make)(void);
} cases[] = {{"llama4", make_llama4}, {"qwen3_moe", make_qwen3}, {"olmoe", make_olmoe}, {"mixtral", make_mixtral}};
enum { CASES = 4 };

/* A model's weights in a file of torchtitan's names, and the file opened. */
static const char *save_model(struct subject *s, const char *name, int32_t dtype) {
    const char *path = scratch_path(name);
    assert_ok(mx8i_save_weights(s->m, path, dtype));
    return path;
}

static void export_to(const struct mx8_weights *w, const char *name, const char *family, int32_t dtype, size_t shard) {
    const struct mx8_export_options o = {
        .family = family ? mx8i_find_hf_family(family) : NULL, .dtype = dtype, .shard_bytes = shard};
    assert_ok(mx8i_export_weights(w, scratch_path(name), &o, &silent));
}

static void assert_same_weights(const struct mx8_weights *a, const struct mx8_weights *b, int32_t dtype) {
    assert_int_equal(a->params.count, b->params.count);
    for (int64_t i = 0; i < a->params.count; i++) {
        const struct mx8_param *p = &a->params.param[i];
        size_t bytes = (size_t)p->count * mx8_get_dtype_size(dtype);
        uint8_t *x = malloc(bytes), *y = malloc(bytes);
        assert_ok(mx8i_read_weights(a, p, 0, p->count, dtype, x));
        const int64_t cut = p->count / 3; /* in two parts, cut inside a row */
        assert_ok(mx8i_read_weights(b, p, 0, cut, dtype, y));
        assert_ok(mx8i_read_weights(b, p, cut, p->count - cut, dtype, y + (size_t)cut * mx8_get_dtype_size(dtype)));
        if (memcmp(x, y, bytes)) fail_msg("%s differs", p->name);
        free(x);
        free(y);
    }
}

static void test_round_trips(void **state) {
    (void)state;
    const int32_t dtypes[] = {MX8_F32, MX8_BF16};
    for (int i = 0; i < CASES * 2; i++) {
        struct mx8_model_config c = cases[i / 2].make();
        const int32_t dtype = dtypes[i % 2];
        struct subject s = make_subject(&c, "f32", small, 1);
        struct mx8_weights first, theirs, ours;
        char hf[64], back[64], file[64];
        snprintf(hf, sizeof hf, "hf-%d", i);
        snprintf(back, sizeof back, "back-%d", i);
        snprintf(file, sizeof file, "first-%d.safetensors", i);
        assert_ok(mx8i_open_weights(save_model(&s, file, dtype), &c, &first));
        assert_int_equal(mx8i_get_weights_dtype(&first), dtype);
        export_to(&first, hf, cases[i / 2].name, dtype, i % 2 ? 20000 : 0);
        assert_ok(mx8i_open_weights(scratch_path(hf), NULL, &theirs));
        assert_int_equal(theirs.n_files > 2, i % 2);
        assert_string_equal(theirs.family->name, cases[i / 2].name);
        assert_ok(mx8i_compare_configs("round trip", &c, &theirs.config));
        assert_int_equal(mx8i_get_weights_dtype(&theirs), dtype);
        assert_same_weights(&first, &theirs, dtype);
        export_to(&theirs, back, NULL, dtype, 0);
        assert_ok(mx8i_open_weights(scratch_path(back), NULL, &ours)); /* its metadata tells the architecture */
        assert_null(ours.family);
        assert_same_weights(&first, &ours, dtype);

        float logits[2][12 * 64]; /* and through a model's memory */
        int32_t *ids = make_tokens(12, c.vocab_size, 5);
        assert_ok(mx8i_load_weights(s.m, scratch_path(file), NULL));
        assert_ok(mx8i_compute_logits(s.m, ids, 12, 0, logits[0]));
        assert_ok(mx8i_init_weights(s.m, 99));
        assert_ok(mx8i_load_open_weights(s.m, scratch_path(hf), NULL));
        assert_ok(mx8i_compute_logits(s.m, ids, 12, 0, logits[1]));
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        free(ids);
        mx8i_close_weights(&first);
        mx8i_close_weights(&theirs);
        mx8i_close_weights(&ours);
        free_subject(&s);
    }
}

static const float *find_values(const struct mx8_safetensors *st, const char *name, int64_t count) {
    const struct mx8_st_entry *e = mx8i_find_tensor(st, name);
    if (!e) fail_msg("no %s", name);
    assert_int_equal(e->size, (size_t)count * sizeof(float));
    return e->data;
}

static const float *get_master(struct subject *s, const char *name) {
    const struct mx8_param *p = mx8i_find_param(mx8i_get_params(s->m), name);
    if (!p) fail_msg("no tensor %s", name);
    return mx8i_get_masters(s->m) + p->at;
}

/* Index formulas, as the families' own code reads the tensors. */
static void test_layouts(void **state) {
    (void)state;
    struct mx8_model_config llama = make_llama4(), qwen = make_qwen3();
    const int64_t D = 32, F = 24, d = 16;
    struct subject s = make_subject(&llama, "f32", small, 1), q = make_subject(&qwen, "f32", small, 1);
    struct mx8_weights w;
    struct mx8_safetensors st;
    assert_ok(mx8i_open_weights(save_model(&s, "layout.safetensors", MX8_F32), &llama, &w));
    export_to(&w, "layout-llama4", "llama4", MX8_F32, 0);
    mx8i_close_weights(&w);
    assert_ok(mx8i_open_safetensors(scratch_path("layout-llama4/model.safetensors"), &st));
    const float *gate_up = find_values(&st, "model.layers.1.feed_forward.experts.gate_up_proj", 4 * D * 2 * F);
    const float *down = find_values(&st, "model.layers.1.feed_forward.experts.down_proj", 4 * F * D);
    const float *w1 = get_master(&s, "layers.1.moe.experts.w1"), *w2 = get_master(&s, "layers.1.moe.experts.w2");
    const float *w3 = get_master(&s, "layers.1.moe.experts.w3");
    for (int64_t i = 0; i < 4 * D * F; i++) {
        const int64_t e = i / (D * F), k = i / F % D, f = i % F;
        assert_true(gate_up[(e * D + k) * 2 * F + f] == w1[(e * F + f) * D + k]);
        assert_true(gate_up[(e * D + k) * 2 * F + F + f] == w3[(e * F + f) * D + k]);
        assert_true(down[(e * F + f) * D + k] == w2[(e * D + k) * F + f]);
    }
    mx8i_close_safetensors(&st);

    assert_ok(mx8i_open_weights(save_model(&q, "layout2.safetensors", MX8_F32), &qwen, &w));
    export_to(&w, "layout-qwen3", "qwen3_moe", MX8_F32, 0);
    mx8i_close_weights(&w);
    assert_ok(mx8i_open_safetensors(scratch_path("layout-qwen3/model.safetensors"), &st));
    const float *wk = get_master(&q, "layers.2.attention.wk.weight"),
                *wo = get_master(&q, "layers.2.attention.wo.weight");
    const float *k_proj = find_values(&st, "model.layers.2.self_attn.k_proj.weight", 2 * d * D);
    for (int64_t i = 0; i < 2 * d * D; i++) { /* the pair (2i, 2i + 1) of ours is (i, i + d/2) there */
        const int64_t h = i / (d * D), n = i / D % d, k = i % D;
        assert_true(k_proj[(h * d + n % 2 * (d / 2) + n / 2) * D + k] == wk[(h * d + n) * D + k]);
    }
    assert_memory_equal(find_values(&st, "model.layers.2.self_attn.o_proj.weight", D * 64), wo, (size_t)(D * 64) * 4);
    assert_memory_equal(find_values(&st, "model.layers.2.self_attn.v_proj.weight", 2 * d * D),
        get_master(&q, "layers.2.attention.wv.weight"), (size_t)(2 * d * D) * 4);
    const float *up = find_values(&st, "model.layers.2.mlp.experts.3.up_proj.weight", F * D);
    assert_memory_equal(up, get_master(&q, "layers.2.moe.experts.w3") + 3 * F * D, (size_t)(F * D) * 4);
    mx8i_close_safetensors(&st);
    free_subject(&s);
    free_subject(&q);
}

#define LLAMA4                                                                                                         \
    "\"architectures\": [\"Llama4ForCausalLM\"], \"vocab_size\": 64, \"hidden_size\": 32, "                            \
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 24, "    \
    "\"num_experts_per_tok\": 1, \"num_local_experts\": 4"
#define MIXTRAL                                                                                                        \
    "\"architectures\": [\"MixtralForCausalLM\"], \"vocab_size\": 64, \"hidden_size\": 32, "                           \
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"intermediate_size\": 24, \"num_experts_per_tok\": 2, "    \
    "\"num_local_experts\": 4"
#define QWEN3                                                                                                          \
    "\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 64, \"hidden_size\": 32, "                          \
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 24, "    \
    "\"moe_intermediate_size\": 16, \"num_experts_per_tok\": 2, \"num_experts\": 4"

static struct mx8_model_config read_config(const char *text) {
    struct mx8_hf_config hf;
    assert_ok(mx8i_read_hf_config("config.json", text, &hf));
    mx8i_release(hf.idle);
    return hf.config;
}

static void test_configurations(void **state) {
    (void)state;
    struct mx8_model_config c = read_config("{" LLAMA4 "}"); /* the class's defaults */
    assert_true(c.head_dim == 128 && c.dense_hidden == 16384 && c.expert_hidden == 24 && c.rope_theta == 500000);
    assert_true(c.qk_norm == MX8_QK_NORM_L2 && c.attn_temperature == 0.1 && c.fixed_attn_block_size == 8192);
    for (int i = 0; i < 4; i++) assert_int_equal(mx8i_uses_rope(&c, i), i != 3);
    c = read_config("{" LLAMA4 ", \"no_rope_layers\": [1, 0, 1, 0], \"moe_layers\": [1, 2], \"use_qk_norm\": false, "
                    "\"attn_temperature_tuning\": false, \"unheard_of\": null, \"eos_token_id\": [1, 2]}");
    for (int i = 0; i < 4; i++) {
        assert_int_equal(mx8i_uses_rope(&c, i), i % 2 == 0);
        assert_int_equal(mx8i_is_moe_layer(&c, i), i == 1 || i == 2);
    }
    assert_true(c.qk_norm == MX8_QK_NORM_NONE && c.attn_temperature == 0);
    c = read_config("{" LLAMA4 ", \"no_rope_layers\": [1, 1, 1, 1], \"layer_types\": [\"full_attention\", "
                    "\"full_attention\", \"full_attention\", \"full_attention\"]}");
    assert_true(mx8i_uses_rope(&c, 0) && mx8i_uses_rope(&c, 3) && c.fixed_attn_block_size >= INT32_MAX);
    c = read_config("{\"architectures\": [\"Llama4ForConditionalGeneration\"], \"text_config\": {" LLAMA4 "}}");
    assert_int_equal(c.dim, 32);
    /* RoPE in the newer spelling */
    c = read_config(
        "{" MIXTRAL ", \"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 1234.5, \"factor\": 8, "
        "\"low_freq_factor\": 1, \"high_freq_factor\": 4, \"original_max_position_embeddings\": 77}}");
    assert_true(c.rope_theta == 1234.5 && c.rope_factor == 8 && c.rope_original_len == 77 && c.n_kv_heads == 4);
    c = read_config("{" MIXTRAL ", \"rope_theta\": 10, \"rope_scaling\": {\"type\": \"default\"}}");
    assert_true(c.rope_theta == 10 && c.rope_factor == 0);
    c = read_config("{" QWEN3 ", \"mlp_only_layers\": [0, 3], \"decoder_sparse_step\": 1}");
    for (int i = 0; i < 4; i++) assert_int_equal(mx8i_is_moe_layer(&c, i), i == 1 || i == 2);
    assert_int_equal(mx8i_get_dense_hidden(&c), 24);
}

static void test_refused_configurations(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"[]", "no JSON object"},
        {"{\"a\": 1, \"a\": 2}", "no JSON object"},
        {"{}", "\"architectures\" is missing"},
        {"{\"architectures\": [\"GPT2LMHeadModel\"]}", "\"GPT2LMHeadModel\", expected one of"},
        {"{" MIXTRAL ", \"sliding_window\": 4096}", "\"sliding_window\" is 4096"},
        {"{" MIXTRAL ", \"tie_word_embeddings\": true}", "\"tie_word_embeddings\" is true"},
        {"{" MIXTRAL ", \"hidden_act\": \"gelu\"}", "\"hidden_act\" is \"gelu\""},
        {"{" MIXTRAL ", \"quantization_config\": {}}", "quantization_config"},
        {"{" MIXTRAL ", \"softcap\": 30}", "\"softcap\" is 30, expected a key that mx8 knows"},
        {"{" MIXTRAL ", \"rope_scaling\": {\"rope_type\": \"yarn\"}}", "\"yarn\""},
        {"{" MIXTRAL ", \"rope_scaling\": {\"rope_type\": \"llama3\"}}", "factor"},
        {"{" MIXTRAL ", \"head_dim\": \"wide\"}", "\"head_dim\" is \"wide\", expected a whole number"},
        {"{" MIXTRAL ", \"head_dim\": 5}", "head_dim is 5, expected an even number"},
        {"{\"architectures\": [\"MixtralForCausalLM\"]}", "\"vocab_size\" is missing"},
        {"{" QWEN3 ", \"attention_bias\": true}", "attention_bias"},
        {"{" QWEN3 ", \"use_sliding_window\": true}", "use_sliding_window"},
        {"{" QWEN3 ", \"norm_topk_prob\": 1}", "\"norm_topk_prob\" is 1"},
        {"{" QWEN3 ", \"mlp_only_layers\": [9]}", "model.dense_layers is \"9\""},
        {"{" LLAMA4 ", \"no_rope_layers\": [0, 1]}", "\"no_rope_layers\" is no list of 4 items"},
        {"{" LLAMA4 ", \"no_rope_layers\": [1, 0, 0, 1]}", "no_rope_layers"},
        {"{" LLAMA4 ", \"no_rope_layers\": [0, 0, 0, 0]}", "no_rope_layers"},
        {"{" LLAMA4 ", \"layer_types\": [\"full_attention\", \"chunked_attention\", \"chunked_attention\", "
         "\"full_attention\"]}",
            "of both kinds"},
        {"{" LLAMA4 ", \"layer_types\": [\"sliding_attention\", \"a\", \"a\", \"a\"]}", "sliding_attention"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct mx8_hf_config hf;
        if (mx8i_read_hf_config("there/config.json", bad[i].text, &hf) == MX8_OK) fail_msg("read: %s", bad[i].text);
        mx8i_release(hf.idle);
        assert_message("there/config.json");
        assert_message(bad[i].message);
    }
    /* what a family cannot say */
    static const struct {
        const char *family;
        struct mx8_model_config (*make)(void);
        const char *message;
    } worse[] = {{"mixtral", make_qwen3, "model.hidden_dim is 40"}, {"llama4", make_qwen3, "model.qk_norm"},
        {"qwen3_moe", make_clamped, "model.qk_norm"}, {"olmoe", make_llama4, "olmoe"},
        {"mixtral", make_clamped, "model.clip_qkv"}};
    for (size_t i = 0; i < sizeof worse / sizeof worse[0]; i++) {
        struct mx8_model_config c = worse[i].make();
        char *text;
        const struct mx8_hf_family *f = mx8i_find_hf_family(worse[i].family);
        if (mx8i_write_hf_config(f, &c, MX8_F32, NULL, &text) == MX8_OK) fail_msg("%s said it", worse[i].family);
        assert_null(text);
        assert_message(i == 3 ? "OlmoeForCausalLM" : worse[i].message);
    }
}

/* One safetensors file of f32 tensors (name, rows, cols). */
struct simple {
    const char *name;
    int64_t rows, cols;
    int32_t dtype;
};

static void write_simple(const char *path, const struct simple *t, int64_t n) {
    struct mx8_st_entry e[64];
    struct mx8_st_writer w;
    for (int64_t i = 0; i < n; i++) {
        e[i] = (struct mx8_st_entry){.name = (char *)(uintptr_t)t[i].name,
            .dtype = t[i].dtype,
            .ndim = t[i].cols ? 2 : 1,
            .shape = {t[i].rows, t[i].cols}};
        e[i].size = (size_t)(t[i].rows * (t[i].cols ? t[i].cols : 1)) * mx8_get_dtype_size(t[i].dtype);
    }
    assert_ok(mx8i_begin_safetensors(path, e, n, NULL, &w));
    void *zeros = calloc(1, 1 << 20);
    for (int64_t i = 0; i < n; i++) assert_ok(mx8i_write_tensor(&w, zeros, e[i].size));
    free(zeros);
    assert_ok(mx8i_commit_safetensors(&w));
}

#define ONE_LAYER                                                                                                      \
    "{\"architectures\": [\"MixtralForCausalLM\"], \"vocab_size\": 8, \"hidden_size\": 4, "                            \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"intermediate_size\": 6, \"num_experts_per_tok\": 1, "     \
    "\"num_local_experts\": 1}"
#define LAYER "model.layers.0."

static void test_refused_tensors(void **state) {
    (void)state;
    static const struct simple whole[] = {{"model.embed_tokens.weight", 8, 4, 0}, {"lm_head.weight", 8, 4, 0},
        {"model.norm.weight", 4, 0, 0}, {LAYER "input_layernorm.weight", 4, 0, 0},
        {LAYER "post_attention_layernorm.weight", 4, 0, 0}, {LAYER "self_attn.q_proj.weight", 4, 4, 0},
        {LAYER "self_attn.k_proj.weight", 4, 4, 0}, {LAYER "self_attn.v_proj.weight", 4, 4, 0},
        {LAYER "self_attn.o_proj.weight", 4, 4, 0}, {LAYER "block_sparse_moe.gate.weight", 1, 4, 0},
        {LAYER "block_sparse_moe.experts.0.w1.weight", 6, 4, 0},
        {LAYER "block_sparse_moe.experts.0.w2.weight", 4, 6, 0},
        {LAYER "block_sparse_moe.experts.0.w3.weight", 6, 4, MX8_BF16},
        {LAYER "self_attn.rotary_emb.inv_freq", 1, 0, 0}};
    enum { N = sizeof whole / sizeof whole[0] };
    struct simple t[N + 1];
    struct mx8_weights w;
    char path[300], folder[256];
    snprintf(folder, sizeof folder, "%s", scratch_path("refused"));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(mx8i_make_folders(folder));
    assert_status(mx8i_open_weights(folder, NULL, &w), MX8_IO_ERROR);
    assert_message("neither model.safetensors nor");
    scratch_write("refused/config.json", ONE_LAYER, strlen(ONE_LAYER));
    write_simple(path, whole, N);
    assert_ok(mx8i_open_weights(folder, NULL, &w));
    assert_int_equal(mx8i_get_weights_dtype(&w), MX8_F32);
    mx8i_close_weights(&w);

    const struct {
        int at;
        struct simple becomes;
        const char *message;
    } bad[] = {{1, {"lm_tail.weight", 8, 4, 0}, "lm_head.weight is missing; lm_tail.weight is left over"},
        {5, {LAYER "self_attn.q_proj.weight", 4, 5, 0}, "q_proj.weight has shape (4, 5), expected (4, 4)"},
        {2, {"model.norm.weight", 4, 0, MX8_I32}, "model.norm.weight is i32, expected one of f32 bf16"},
        {13, {LAYER "self_attn.q_proj.bias", 4, 0, 0}, "q_proj.bias is left over"},
        {10, {LAYER "block_sparse_moe.experts.1.w1.weight", 6, 4, 0}, "experts.0.w1.weight is missing"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memcpy(t, whole, sizeof whole);
        t[bad[i].at] = bad[i].becomes;
        write_simple(path, t, N);
        assert_status(mx8i_open_weights(folder, NULL, &w), MX8_FORMAT_ERROR);
        assert_message(folder);
        assert_message(bad[i].message);
    }
    /* shards: a file outside, one that is not there, a tensor in two of them */
    static const char *const index[] = {"{\"weight_map\": {\"a\": \"../x.safetensors\"}}",
        "{\"weight_map\": {\"a\": \"gone.safetensors\"}}",
        "{\"weight_map\": {\"a\": \"model.safetensors\", \"b\": \"two.safetensors\"}}", "{\"weight_map\": {}}", "{"};
    static const char *const messages[] = {
        "has no file beside", "gone.safetensors", "two files hold", "names no file", "weight_map"};
    write_simple(path, whole, N);
    write_simple(scratch_path("refused/two.safetensors"), whole, 2);
    for (int i = 0; i < 5; i++) {
        scratch_write("refused/model.safetensors.index.json", index[i], strlen(index[i]));
        assert_true(mx8i_open_weights(folder, NULL, &w) != MX8_OK);
        assert_message(messages[i]);
    }
    /* a file that does not say what it is */
    assert_status(mx8i_open_weights(path, NULL, &w), MX8_UNSUPPORTED);
    assert_message("--model.flavor");
}

static void test_expert_bias(void **state) {
    (void)state;
    struct mx8_model_config c = make_llama4();
    c.load_balance_coeff = 1e-3;
    struct subject s = make_subject(&c, "f32", small, 1);
    struct mx8_weights w, back;
    struct mx8_export_options o = {.family = mx8i_find_hf_family("llama4"), .dtype = MX8_F32};
    assert_ok(mx8i_open_weights(save_model(&s, "bias0.safetensors", MX8_F32), &c, &w));
    assert_ok(mx8i_export_weights(&w, scratch_path("bias0"), &o, &silent)); /* all zero: nothing is lost */
    mx8i_close_weights(&w);
    mx8i_get_buffers(s.m)[1] = 0.25f;
    assert_ok(mx8i_open_weights(save_model(&s, "bias1.safetensors", MX8_F32), &c, &w));
    assert_status(mx8i_export_weights(&w, scratch_path("bias1"), &o, &silent), MX8_UNSUPPORTED);
    assert_message("layers.1.moe.expert_bias is not zero");
    assert_int_equal(mx8i_is_folder(scratch_path("bias1")), 0);
    o.drop_expert_bias = 1;
    assert_ok(mx8i_export_weights(&w, scratch_path("bias1"), &o, &silent));
    assert_status(mx8i_export_weights(&w, scratch_path("bias1"), &o, &silent), MX8_INVALID_ARGUMENT);
    assert_message("expected a new folder or an empty one");
    o.family = NULL;
    assert_ok(mx8i_export_weights(&w, scratch_path("bias2"), &o, &silent));
    mx8i_close_weights(&w);
    float bias[4];
    int32_t found;
    assert_ok(mx8i_open_weights(scratch_path("bias2"), NULL, &back));
    assert_ok(mx8i_read_weights_bias(&back, &back.params.buffer[0], bias, &found));
    assert_true(found && bias[0] == 0 && bias[1] == 0.25f && bias[3] == 0);
    mx8i_close_weights(&back);
    free_subject(&s);
}

/* Codes and scales are those of mx8_quantize_rows, and read back as their product. */
static void test_mxfp8(void **state) {
    (void)state;
    struct mx8_model_config c = make_qwen3();
    c.dim = c.expert_hidden = c.dense_hidden = 64;
    struct subject s = make_subject(&c, "f32", small, 1);
    struct mx8_weights w, codes;
    const struct mx8_recipe recipe = {.name = "mxfp8",
        .convert_linear = 1,
        .convert_experts = 1,
        .filter_fqns = "output,router.gate",
        .expert_fqns = "experts"};
    const struct mx8_export_options o = {.dtype = MX8_BF16, .mxfp8 = &recipe, .ctx = s.ctx};
    assert_ok(mx8i_open_weights(save_model(&s, "mxfp8.safetensors", MX8_F32), &c, &w));
    assert_ok(mx8i_export_weights(&w, scratch_path("mxfp8"), &o, &silent));
    assert_ok(mx8i_open_weights(scratch_path("mxfp8"), NULL, &codes));
    int converted = 0;
    for (int64_t i = 0; i < w.params.count; i++) {
        const struct mx8_param *p = &w.params.param[i];
        const int64_t K = p->shape[p->ndim - 1], rows = p->count / K;
        const struct mx8_st_entry *e = mx8i_find_tensor(&codes.file[0], p->name);
        float *x = malloc((size_t)p->count * 4), *got = malloc((size_t)p->count * 4);
        uint8_t *want = malloc((size_t)p->count), *scales = malloc((size_t)p->count / 32 + 1);
        assert_ok(mx8i_read_weights(&w, p, 0, p->count, MX8_F32, x));
        assert_ok(mx8i_read_weights(&codes, p, 0, p->count, MX8_F32, got));
        const int is_code = e->dtype == MX8_F8_E4M3;
        converted += is_code;
        assert_int_equal(is_code, p->ndim == 3 || p->kind == MX8_PARAM_LINEAR);
        if (is_code) {
            char name[128];
            snprintf(name, sizeof name, "%s.scale", p->name);
            const int64_t shape[2] = {rows, K}, scale_shape[2] = {rows, K / 32};
            struct mx8_tensor in = mx8_make_tensor(x, MX8_F32, 2, shape),
                              out = mx8_make_tensor(want, MX8_F8_E4M3, 2, shape);
            struct mx8_tensor sc = mx8_make_tensor(scales, MX8_F8_E8M0, 2, scale_shape);
            assert_ok(mx8_quantize_rows(s.ctx, &out, &sc, &in, &(struct mx8_op_options){0}));
            assert_memory_equal(e->data, want, (size_t)p->count);
            assert_memory_equal(mx8i_find_tensor(&codes.file[0], name)->data, scales, (size_t)p->count / 32);
        }
        for (int64_t n = 0; n < p->count; n++) {
            const float v = is_code ? mx8_decode_e4m3(want[n]) * mx8_decode_e8m0(scales[n / K * (K / 32) + n % K / 32])
                                    : mx8_decode_bf16(mx8_encode_bf16(x[n]));
            if (got[n] != v) fail_msg("%s[%d] is %g, expected %g", p->name, (int)n, (double)got[n], (double)v);
        }
        free(x), free(got), free(want), free(scales);
    }
    assert_int_equal(converted, 3 * 4 + 3 * 3);
    export_to(&codes, "mxfp8-hf", "qwen3_moe", MX8_BF16, 0); /* dequantized on the way */
    mx8i_close_weights(&w);
    mx8i_close_weights(&codes);
    free_subject(&s);
}

/* Every allocation may fail; nothing may be leaked (ASan looks) or left half written. */
static void test_out_of_memory(void **state) {
    (void)state;
    struct mx8_model_config c = make_llama4();
    c.n_layers = 2;
    c.every_n_layers_nope = 0;
    struct subject s = make_subject(&c, "f32", small, 1);
    char path[512]; /* scratch_path's own does not last */
    int64_t failed = 0;
    snprintf(path, sizeof path, "%s", save_model(&s, "memory.safetensors", MX8_F32));
    for (int64_t n = 1;; n += n < 40 ? 1 : 17) {
        char folder[64];
        struct mx8_weights w;
        snprintf(folder, sizeof folder, "memory-%d", (int)n);
        const struct mx8_export_options o = {
            .family = mx8i_find_hf_family("llama4"), .dtype = MX8_BF16, .shard_bytes = 9000};
        mx8i_fail_allocation(n, 1);
        enum mx8_status status = mx8i_open_weights(path, &c, &w);
        if (status == MX8_OK) {
            status = mx8i_export_weights(&w, scratch_path(folder), &o, &silent);
            mx8i_close_weights(&w);
        }
        mx8i_fail_allocation(0, 0);
        if (status == MX8_OK) break;
        if (status != MX8_OUT_OF_MEMORY && !strstr(mx8_get_last_error(), "allocate memory"))
            fail_msg("allocation %d: %s", (int)n, mx8_get_last_error());
        strcat(folder, "/config.json");
        assert_int_equal(mx8i_is_file(scratch_path(folder)), 0);
        failed++;
    }
    assert_true(failed > 30);
    free_subject(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trips), cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_configurations), cmocka_unit_test(test_refused_configurations),
        cmocka_unit_test(test_refused_tensors), cmocka_unit_test(test_expert_bias), cmocka_unit_test(test_mxfp8),
        cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
