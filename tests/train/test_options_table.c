/* The option table and what a job makes of it. */
#include "train/job_testing.h"
#include <math.h>
#include "train/resolve.h"

/* Resolves flags; the options are closed again, so that only the job's own fields may be looked at. */
static enum mx8_status resolve(const char *const *flags, struct mx8_job *job, struct lines *notes) {
    struct mx8_options o;
    struct lines unused = {.used = 0};
    struct mx8_log log = {keep_line, notes ? notes : &unused};
    assert_ok(parse(&o, flags));
    enum mx8_status status = mx8i_resolve_job(&o, job, &log);
    mx8i_close_options(&o);
    return status;
}

#define RESOLVE(job, ...) resolve((const char *const[]){__VA_ARGS__, NULL}, job, NULL)

static void test_defaults(void **state) {
    (void)state;
    struct mx8_options o;
    struct mx8_job job;
    assert_ok(parse(&o, (const char *const[]){NULL}));
    for (int32_t i = 0; i < o.count; i++) {
        const struct mx8_option *option = &o.table[i];
        assert_string_equal(mx8i_get_text(&o, option->key), option->value);
        assert_true(strlen(option->help) > 0 && strlen(option->help) < 200);
        if (option->type == MX8_OPT_INT) assert_true(mx8i_get_int(&o, option->key) != INT64_MIN);
        if (option->type == MX8_OPT_FLOAT) assert_false(isnan(mx8i_get_float(&o, option->key)));
        for (int32_t j = 0; j < i; j++) assert_string_not_equal(option->key, o.table[j].key);
    }
    assert_ok(mx8i_resolve_job(&o, &job, NULL));
    assert_string_equal(job.config.flavor, "demo");
    assert_string_equal(job.recipe.name, "bf16");
    assert_string_equal(job.dataset_path, "/usr/include");
    assert_int_equal(job.dataset_bytes, 8 << 20);
    assert_int_equal(job.accumulation, 1);
    assert_int_equal(job.model.ac_mode, MX8_AC_EVERY_N);
    assert_int_equal(job.model.ac_every, 2);
    assert_int_equal(job.steps, 10000);
    assert_true(job.model.seq_len == 256 && job.local_batch_size == 8 && job.model.batch == 8);
    mx8i_close_options(&o);
}

static void test_help_names_every_key(void **state) {
    (void)state;
    struct mx8_options o;
    char *text = NULL;
    size_t size = 0;
    assert_ok(parse(&o, (const char *const[]){NULL}));
    FILE *out = open_memstream(&text, &size);
    mx8i_print_options(&o, out, NULL, 100);
    fclose(out);
    for (int32_t i = 0; i < o.count; i++)
        if (!strstr(text, o.table[i].key)) fail_msg("no help for %s", o.table[i].key);
    assert_non_null(strstr(text, MX8_MARK_ONLY));
    free(text);
    mx8i_close_options(&o);
}

#define SEED                                                                                                           \
    "--parallelism.tensor_parallel_degree=1", "--model.converters=mx", "--mx.recipe_name=mxfp8_cublas",                \
        "--mx.filter_fqns=output,router.gate,wk,wv", "--mx.moe_fqns_prototype=experts",                                \
        "--model.print-after-conversion", "--metrics.log_freq=10", "--training.steps=100", "--compile.enable",         \
        "--training.seq_len=8192"

static void test_seed_command_line(void **state) {
    (void)state;
    struct mx8_job job;
    struct lines notes = {.used = 0};
    assert_status(RESOLVE(&job, "--parallelism.data_parallel_shard_degree=2", SEED), MX8_UNSUPPORTED);
    assert_message("mpirun -n 2 mx8 train");
    assert_ok(resolve((const char *const[]){SEED, NULL}, &job, &notes));
    assert_non_null(strstr(notes.text, "compile.enable"));
    assert_string_equal(job.recipe.name, "mxfp8_moe");
    assert_string_equal(job.recipe.filter_fqns, "output,router.gate,wk,wv");
    assert_string_equal(job.recipe.expert_fqns, "experts");
    assert_true(job.recipe.convert_linear && job.recipe.convert_experts && !job.recipe.exact);
    assert_int_equal(job.recipe.scale_rule, MX8_SCALE_RCEIL);
    assert_int_equal(job.recipe.scale_group, 32);
    assert_int_equal(job.model.seq_len, 8192);
    assert_int_equal(job.steps, 100);
    assert_int_equal(job.log_freq, 10);
    assert_true(job.print_after_conversion && job.compile);
    assert_ok(RESOLVE(&job, "--parallelism.data_parallel_shard_degree=-1", SEED));
}

static const char *find_other_value(const struct mx8_option *option) {
    if (option->type == MX8_OPT_BOOL) return strcmp(option->value, "true") ? "true" : "false";
    if (option->type == MX8_OPT_INT) return "2";
    if (option->type == MX8_OPT_CHOICE) return strrchr(option->choices, '|') + 1;
    return "something";
}

static void test_unsupported_values_are_errors(void **state) {
    (void)state;
    int tried = 0;
    for (int32_t i = 0; i < mx8i_option_count; i++) {
        const struct mx8_option *option = &mx8i_option_table[i];
        struct mx8_options o;
        struct mx8_job job;
        if (strncmp(option->help, MX8_MARK_ONLY, strlen(MX8_MARK_ONLY))) continue;
        assert_ok(parse(&o, (const char *const[]){NULL}));
        if (*option->value)
            assert_ok(mx8i_set_option(&o, option->key, option->value, "test")); /* said, it is harmless */
        assert_ok(mx8i_resolve_job(&o, &job, NULL));
        assert_ok(mx8i_set_option(&o, option->key, find_other_value(option), "test"));
        assert_status(mx8i_resolve_job(&o, &job, NULL), MX8_UNSUPPORTED);
        assert_message(option->key);
        mx8i_close_options(&o);
        tried++;
    }
    assert_true(tried > 10);
}

static void test_idle_values_are_harmless(void **state) {
    (void)state;
    struct mx8_options o;
    struct mx8_job job;
    int tried = 0;
    assert_ok(parse(&o, (const char *const[]){NULL}));
    for (int32_t i = 0; i < mx8i_option_count; i++) {
        const struct mx8_option *option = &mx8i_option_table[i];
        if (strncmp(option->help, MX8_MARK_IDLE, strlen(MX8_MARK_IDLE))) continue;
        assert_ok(mx8i_set_option(&o, option->key, find_other_value(option), "test"));
        tried++;
    }
    assert_true(tried > 30);
    assert_ok(mx8i_resolve_job(&o, &job, NULL));
    mx8i_close_options(&o);
}

static void test_unknown_key_gets_a_suggestion(void **state) {
    (void)state;
    struct mx8_options o;
    assert_status(parse(&o, (const char *const[]){"--training.step=3", NULL}), MX8_INVALID_ARGUMENT);
    assert_message("training.steps");
    mx8i_close_options(&o);
}

static void test_architecture_overrides(void **state) {
    (void)state;
    struct mx8_job job;
    assert_ok(RESOLVE(&job, "--model.flavor=debugmodel", "--model.dim=64", "--model.n_layers=3", "--model.n_heads=8",
        "--model.n_kv_heads=2", "--model.vocab_size=320", "--model.multiple_of=16", "--model.ffn_dim_multiplier=1.5",
        "--model.norm_eps=1e-6", "--model.rope_theta=10000", "--model.depth_init=false",
        "--model.attn_mask_type=block_causal", "--model.every_n_layers_nope=2", "--model.fixed_attn_block_size=64",
        "--model.interleave_moe_layer_step=1"));
    assert_true(
        job.config.dim == 64 && job.config.n_layers == 3 && job.config.n_heads == 8 && job.config.n_kv_heads == 2);
    assert_true(job.config.vocab_size == 320 && job.config.multiple_of == 16 && job.config.ffn_dim_multiplier == 1.5);
    assert_true(job.config.norm_eps == 1e-6 && job.config.rope_theta == 10000 && job.config.depth_init == 0);
    assert_true(job.config.attn_mask == MX8_MASK_DOCUMENT && job.config.every_n_layers_nope == 2);
    assert_true(job.config.fixed_attn_block_size == 64 && job.config.interleave_moe_layer_step == 1);

    assert_ok(RESOLVE(&job, "--moe.num_experts=6", "--moe.num_shared_experts=0", "--moe.top_k=2",
        "--moe.score_func=softmax", "--moe.route_norm", "--moe.route_scale=2.5", "--moe.score_before_experts=false",
        "--moe.load_balance_coeff=none", "--moe.auto_scale_hidden_dim=false", "--model.n_kv_heads=none",
        "--model.ffn_dim_multiplier=none"));
    assert_true(job.config.num_experts == 6 && job.config.num_shared_experts == 0 && job.config.top_k == 2);
    assert_true(job.config.score_func == MX8_SCORE_SOFTMAX && job.config.route_norm && job.config.route_scale == 2.5);
    assert_true(!job.config.score_before_experts && isnan(job.config.load_balance_coeff));
    assert_true(!job.config.auto_scale_hidden_dim && job.config.n_kv_heads == job.config.n_heads);
    assert_true(job.config.ffn_dim_multiplier == 0);

    assert_status(RESOLVE(&job, "--model.flavor=nothing"), MX8_INVALID_ARGUMENT);
    assert_message("debugmodel");
}

static void test_recipes(void **state) {
    (void)state;
    static const struct {
        const char *flags[4], *name;
        int32_t linear, experts, exact, wgrad_hp;
    } cases[] = {
        {{NULL}, "bf16", 0, 0, 0, 0},
        {{"--training.mixed_precision_param=float32"}, "f32", 0, 0, 0, 0},
        {{"--model.converters=mx"}, "mxfp8_dense", 1, 0, 0, 0},
        {{"--model.converters=mx", "--mx.moe_fqns_prototype=experts"}, "mxfp8_moe", 1, 1, 0, 0},
        {{"--model.converters=quantize.grouped_mm.mx"}, "mxfp8_experts", 0, 1, 0, 0},
        {{"--model.converters=quantize.linear.mx,quantize.grouped_mm.mx", "--quantize.linear.mx.fqns=wq,wo",
             "--quantize.grouped_mm.mx.recipe_name=mxfp8_rceil_wgrad_with_hp"},
            "mxfp8_moe", 1, 1, 0, 1},
        {{"--model.converters=mx", "--mx.recipe_name=mxfp8_emulated"}, "mxfp8_dense", 1, 0, 1, 0},
        {{"--model.converters=mx", "--mx.recipe_name=mxfp8", "--mx.wgrad_hp"}, "mxfp8_dense", 1, 0, 0, 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mx8_job job;
        assert_ok(resolve(cases[i].flags, &job, NULL));
        assert_string_equal(job.recipe.name, cases[i].name);
        assert_true(job.recipe.convert_linear == cases[i].linear && job.recipe.convert_experts == cases[i].experts);
        assert_true(job.recipe.exact == cases[i].exact && job.recipe.wgrad_hp == cases[i].wgrad_hp);
        assert_string_equal(job.recipe.filter_fqns, cases[i].linear ? "output" : "");
        assert_string_equal(job.recipe.linear_fqns, i == 5 ? "wq,wo" : "");
        assert_string_equal(job.recipe.expert_fqns, cases[i].experts ? "experts" : "");
    }
}

static void test_recipe_details(void **state) {
    (void)state;
    struct mx8_job job;
    struct lines notes = {.used = 0};
    assert_ok(resolve((const char *const[]){"--model.converters=mx", "--mx.scale_rule=floor", "--mx.scale_group=128",
                          "--mx.weight_scale_group=256", "--mx.weight_tile_rows=32", "--mx.format=e5m2", NULL},
        &job, &notes));
    assert_true(job.recipe.scale_rule == MX8_SCALE_FLOOR && job.recipe.scale_group == 128);
    assert_true(job.recipe.weight_scale_group == 256 && job.recipe.weight_tile_rows == 32);
    assert_int_equal(job.recipe.format, MX8_F8_E5M2);
    assert_non_null(strstr(notes.text, "warning"));
}

/* Flags that contradict each other or the machine: status, and a word of the message. */
static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *flags[4];
        enum mx8_status status;
        const char *message;
    } cases[] = {
        {{"--model.converters=float8"}, MX8_UNSUPPORTED, "float8"},
        {{"--model.converters=mxx"}, MX8_INVALID_ARGUMENT, "mxx"},
        {{"--mx.recipe_name=mxfp4"}, MX8_INVALID_ARGUMENT, "mxfp8_cublas_rceil"},
        {{"--model.converters=quantize.grouped_mm.mx", "--quantize.grouped_mm.mx.fqns="}, MX8_INVALID_ARGUMENT,
            "empty"},
        {{"--parallelism.tensor_parallel_degree=2"}, MX8_UNSUPPORTED, "tensor_parallel_degree"},
        {{"--parallelism.data_parallel_shard_degree=0"}, MX8_INVALID_ARGUMENT, "at least 1"},
        {{"--training.global_batch_size=12"}, MX8_INVALID_ARGUMENT, "multiple"},
        {{"--training.global_batch_size=4"}, MX8_INVALID_ARGUMENT, "multiple"},
        {{"--training.global_batch_size=0"}, MX8_INVALID_ARGUMENT, "multiple"},
        {{"--training.max_norm=0"}, MX8_INVALID_ARGUMENT, "max_norm"},
        {{"--optimizer.beta1=1"}, MX8_INVALID_ARGUMENT, "below 1"},
        {{"--training.dataset=c4_test"}, MX8_UNSUPPORTED, "downloads nothing"},
        {{"--training.dataset=pile"}, MX8_INVALID_ARGUMENT, "pile"},
        {{"--training.dataset=shards"}, MX8_INVALID_ARGUMENT, "dataset_path"},
        {{"--training.seq_len=1000000", "--training.local_batch_size=1000000"}, MX8_INVALID_ARGUMENT, "2^31"},
        {{"--activation_checkpoint.selective_ac_option=ops"}, MX8_INVALID_ARGUMENT, "or op"},
        {{"--activation_checkpoint.selective_ac_option=0"}, MX8_INVALID_ARGUMENT, ">= 1"},
        {{"--checkpoint.keep_latest_k=1"}, MX8_INVALID_ARGUMENT, "at least 2"},
        {{"--checkpoint.load_step=5"}, MX8_INVALID_ARGUMENT, "checkpoint.enable is off"},
        {{"--checkpoint.exclude_from_loading=optimizer,weights"}, MX8_INVALID_ARGUMENT, "\"weights\""},
        {{"--model.n_heads=7"}, MX8_INVALID_ARGUMENT, "model.n_heads"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mx8_job job;
        assert_status(resolve(cases[i].flags, &job, NULL), cases[i].status);
        assert_message(cases[i].message);
    }
    struct mx8_job job;
    assert_ok(RESOLVE(&job, "--training.global_batch_size=32"));
    assert_int_equal(job.accumulation, 4);
    assert_ok(RESOLVE(&job, "--activation_checkpoint.mode=none"));
    assert_int_equal(job.model.ac_mode, MX8_AC_NONE);
    assert_ok(RESOLVE(&job, "--activation_checkpoint.selective_ac_option=op"));
    assert_int_equal(job.model.ac_mode, MX8_AC_OPS);
    assert_ok(RESOLVE(&job, "--training.dataset=c4_test", "--training.dataset_path=/tmp"));
    assert_int_equal(job.dataset_bytes, 0);
    assert_ok(RESOLVE(&job, "--checkpoint.exclude_from_loading=optimizer,dataloader"));
    assert_int_equal(job.checkpoint.exclude, MX8_EXCLUDE_OPTIMIZER | MX8_EXCLUDE_DATALOADER);
    assert_true(!job.checkpoint.enable && job.checkpoint.load_step == -1 && job.checkpoint.keep == 10);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    assert_status(RESOLVE(&job, "--training.steps=1"), MX8_INVALID_ARGUMENT);
    assert_message("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
}

/* Settings of what is not switched on are told; those that another option switches on or off by its name are not. */
static void test_idle_settings(void **state) {
    (void)state;
    static const struct {
        const char *flags[4], *note;
    } cases[] = {
        {{"--mx.moe_fqns_prototype=experts"},
            "mx.moe_fqns_prototype is set, but model.converters is not: nothing is conv"},
        {{"--validation.dataset_path=x"},
            "validation.dataset_path is set, but validation.enable is not: nothing is vali"},
        {{"--checkpoint.interval=7"}, "checkpoint.interval is set, but checkpoint.enable is not: nothing is saved"},
        {{"--mx.moe_fqns_prototype=experts", "--model.converters=mx"}, NULL},
        {{"--mx.moe_fqns_prototype=experts", "--model.converters="}, NULL},
        {{"--validation.dataset_path=x", "--validation.no-enable"}, NULL},
        {{"--checkpoint.interval=7", "--checkpoint.enable"}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx8_job job;
        struct lines notes = {.used = 0};
        assert_ok(resolve(cases[i].flags, &job, &notes));
        if (cases[i].note)
            assert_non_null(strstr(notes.text, cases[i].note));
        else
            assert_null(strstr(notes.text, "is set, but"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_settings),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_help_names_every_key),
        cmocka_unit_test(test_seed_command_line),
        cmocka_unit_test(test_unsupported_values_are_errors),
        cmocka_unit_test(test_idle_values_are_harmless),
        cmocka_unit_test(test_unknown_key_gets_a_suggestion),
        cmocka_unit_test(test_architecture_overrides),
        cmocka_unit_test(test_recipes),
        cmocka_unit_test(test_recipe_details),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
