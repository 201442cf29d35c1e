/* The option table: flags, TOML files, precedence, messages and help. */
#include "scratch.h"
#include <math.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"

static const struct mx8_option table[] = {
    {.key = "job.config_file", .type = MX8_OPT_TEXT, .value = "", .help = "TOML file to read."},
    {.key = "model.flavor", .type = MX8_OPT_TEXT, .value = "debugmodel", .help = "Preset."},
    {.key = "model.converters", .type = MX8_OPT_LIST, .value = "", .help = "Converters."},
    {.key = "model.print_after_conversion", .type = MX8_OPT_BOOL, .value = "false", .help = "Print the table."},
    {.key = "training.steps", .type = MX8_OPT_INT, .value = "100", .min = 1, .max = 1000, .help = "Steps."},
    {.key = "training.seed", .type = MX8_OPT_INT, .value = "none", .choices = "none|auto", .help = "Seed."},
    {.key = "training.big", .type = MX8_OPT_INT, .value = "1", .min = 1, .max = 1e18, .help = ""},
    {.key = "training.max_norm",
        .type = MX8_OPT_FLOAT,
        .value = "1.0",
        .min = 0,
        .max = 10,
        .help = "Clip.",
        .alias = "training.clip training.max-grad-norm"},
    {.key = "optimizer.lr", .type = MX8_OPT_FLOAT, .value = "8e-4", .choices = "auto", .help = "Learning rate."},
    {.key = "optimizer.fused",
        .type = MX8_OPT_BOOL,
        .value = "true",
        .help = "One long line of help that has to be "
                "wrapped because it does not fit into the columns that were asked for."},
    {.key = "router.score", .type = MX8_OPT_CHOICE, .value = "sigmoid", .choices = "sigmoid|softmax", .help = "Score."},
    {.key = "quantize.linear.mx.filter_fqns", .type = MX8_OPT_LIST, .value = "output, router.gate", .help = "Names."},
    {.key = "verbose", .type = MX8_OPT_BOOL, .value = "", .help = "Say more."},
};

static struct mx8_options o;
static const char *rest[2];
static int rest_count;

static int open_table(void **state) {
    (void)state;
    return mx8i_open_options(table, sizeof table / sizeof table[0], &o);
}

static int close_table(void **state) {
    (void)state;
    mx8i_close_options(&o);
    return 0;
}

/* Parses words separated by blanks; "~" stands for a blank inside a word. */
static enum mx8_status parse(const char *line) {
    char copy[1024], *argv[32];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        for (char *c = word; *c; c++)
            if (*c == '~') *c = ' ';
        argv[argc++] = word;
    }
    static char kept[1024]; /* rest points into it */
    memcpy(kept, copy, sizeof kept);
    for (int i = 0; i < argc; i++) argv[i] = kept + (argv[i] - copy);
    return mx8i_parse_flags(&o, argc, argv, "job.config_file", rest, &rest_count, 2);
}

static void join(void *user, const char *text) {
    char *joined = user;
    sprintf(joined + strlen(joined), "[%s]", text);
}

static void expect_list(const char *key, int count, const char *expected) {
    char joined[200] = "";
    assert_int_equal(mx8i_get_list(&o, key, join, joined), count);
    assert_int_equal(mx8i_get_list(&o, key, NULL, NULL), count);
    assert_string_equal(joined, expected);
}

static void test_defaults(void **state) {
    (void)state;
    assert_string_equal(mx8i_get_text(&o, "model.flavor"), "debugmodel");
    assert_int_equal(mx8i_get_int(&o, "training.steps"), 100);
    assert_true(mx8i_get_int(&o, "training.seed") == INT64_MIN);
    assert_true(mx8i_get_float(&o, "optimizer.lr") == 8e-4);
    assert_int_equal(mx8i_get_bool(&o, "optimizer.fused"), 1);
    assert_int_equal(mx8i_get_bool(&o, "verbose"), 0);
    expect_list("model.converters", 0, "");
    expect_list("quantize.linear.mx.filter_fqns", 2, "[output][router.gate]");
    for (int i = 0; i < o.count; i++) {
        assert_false(mx8i_is_set(&o, table[i].key));
        assert_string_equal(o.value[i].source, "default");
    }
}

static void test_flags(void **state) {
    (void)state;
    assert_ok(
        parse("train --training.steps 7 --model.print-after-conversion file --optimizer.no-fused "
              "--optimizer.lr=auto --training.max-grad_norm=2 --model.converters=mx,~float8~, --training.seed -5"));
    assert_int_equal(rest_count, 2);
    assert_string_equal(rest[0], "train");
    assert_string_equal(rest[1], "file"); /* a boolean takes no word */
    assert_int_equal(mx8i_get_int(&o, "training.steps"), 7);
    assert_int_equal(mx8i_get_bool(&o, "model.print-after_conversion"), 1);
    assert_int_equal(mx8i_get_bool(&o, "optimizer.fused"), 0);
    assert_true(isnan(mx8i_get_float(&o, "optimizer.lr")));
    assert_string_equal(mx8i_get_text(&o, "optimizer.lr"), "auto");
    assert_true(mx8i_get_float(&o, "training.clip") == 2 && mx8i_get_float(&o, "training.max_norm") == 2);
    assert_int_equal(mx8i_get_int(&o, "training.seed"), -5);
    expect_list("model.converters", 2, "[mx][float8]");
    assert_true(mx8i_is_set(&o, "training.steps") && !mx8i_is_set(&o, "model.flavor"));
}

static void test_flag_forms(void **state) {
    (void)state;
    static const struct {
        const char *line, *key, *text;
    } rows[] = {
        {"--training.steps=1 --training.steps 2", "training.steps", "2"}, /* the last wins */
        {"--training.steps=1_000", "training.steps", "1_000"},
        {"--training.big=0x10", "training.big", "0x10"},
        {"--optimizer.no_fused", "optimizer.fused", "false"},
        {"--optimizer.no-fused --optimizer.fused", "optimizer.fused", "true"},
        {"--optimizer.fused=False", "optimizer.fused", "false"},
        {"--optimizer.fused=1", "optimizer.fused", "true"},
        {"--no-verbose", "verbose", "false"},
        {"--verbose -- --x", "verbose", "true"},
        {"--router.score=softmax", "router.score", "softmax"},
        {"--model.flavor=a=b", "model.flavor", "a=b"},
        {"--model.flavor=", "model.flavor", ""},
        {"--model.flavor=--x", "model.flavor", "--x"},
        {"--model.flavor -", "model.flavor", "-"},
        {"--optimizer.lr inf", "optimizer.lr", "inf"},
        {"--optimizer.lr 1", "optimizer.lr", "1"},
        {"--training.max_norm 10", "training.max_norm", "10"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_ok(parse(rows[i].line));
        if (strcmp(mx8i_get_text(&o, rows[i].key), rows[i].text) != 0)
            fail_msg("%s: \"%s\", expected \"%s\"", rows[i].line, mx8i_get_text(&o, rows[i].key), rows[i].text);
    }
    assert_ok(parse("--training.steps=1_000 --training.big=0x10"));
    assert_int_equal(mx8i_get_int(&o, "training.steps"), 1000);
    assert_int_equal(mx8i_get_int(&o, "training.big"), 16);
    assert_ok(parse("a -- --verbose"));
    assert_string_equal(rest[1], "--verbose");
}

static void test_flag_errors(void **state) {
    (void)state;
    static const struct {
        const char *line, *message;
    } rows[] = {
        {"--training.stesp=3", "command line: training.stesp: no such option, did you mean \"training.steps\"?"},
        {"--trainin.steps=3", "no such section \"trainin\", did you mean \"training.steps\"?"},
        {"--optimzer.betas=3", "no such section \"optimzer\", did you mean \"optimizer\"?"},
        {"--zzz.yyyyyyyyyyyyyyy=3", "no such section \"zzz\""},
        {"--optimizer.no-lr", "no such option, did you mean \"optimizer.lr\"?"},
        {"--=3", "no such option"},
        {"--training.steps", "command line: --training.steps has no value, expected an integer from 1 to 1000"},
        {"--training.steps --verbose", "has no value"},
        {"--training.steps=1e3", "command line: training.steps: \"1e3\", expected an integer from 1 to 1000"},
        {"--training.steps=", "\"\", expected an integer"},
        {"--training.steps=0", "expected an integer from 1 to 1000"},
        {"--training.steps=1001", "expected an integer from 1 to 1000"},
        {"--training.steps=none", "expected an integer"},
        {"--training.seed=non", "expected an integer or none or auto"},
        {"--training.seed=9223372036854775808", "expected an integer"},
        {"--training.big=0", "expected an integer >= 1"},
        {"--training.max_norm=-0.1", "expected a number from 0 to 10"},
        {"--training.max_norm=nan", "expected a number"},
        {"--training.clip=abc", "training.max_norm: \"abc\""},
        {"--optimizer.lr=1x", "expected a number or auto"},
        {"--optimizer.fused=maybe", "expected true or false"},
        {"--optimizer.no-fused=true", "takes no value"},
        {"--router.score=relu", "router.score: \"relu\", expected one of sigmoid or softmax"},
        {"a b c", "unexpected \"c\""},
        {"a b --verbose false", "write --verbose=false"},
        {"--job.config_file=/nonexistent.toml", "/nonexistent.toml"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (parse(rows[i].line) == MX8_OK) fail_msg("accepted: %s", rows[i].line);
        if (!strstr(mx8_get_last_error(), rows[i].message))
            fail_msg("%s: message \"%s\", expected \"%s\"", rows[i].line, mx8_get_last_error(), rows[i].message);
    }
    char line[600] = "--"; /* keys longer than any buffer */
    memset(line + 2, 'k', 500);
    assert_status(parse(line), MX8_INVALID_ARGUMENT);
    line[300] = '.';
    assert_status(parse(line), MX8_INVALID_ARGUMENT);
}

static const char *write_toml(const char *text) {
    return scratch_write("t.toml", text, strlen(text));
}

static void test_toml_values(void **state) {
    (void)state;
    const char *path = write_toml("verbose = true\n"
                                  "[training]\nsteps = 0x20\nseed = \"auto\"\nclip = 3\n"
                                  "[optimizer]\nlr = 3e-5\nfused = false\n[router]\nscore = 'softmax'\n"
                                  "[quantize.linear.mx]\nfilter-fqns = [\"wk\", 'wv', 3]\n"
                                  "[model]\nconverters = \"mx, x\"\n[empty]\n");
    assert_ok(mx8i_parse_toml_file(&o, path));
    assert_int_equal(mx8i_get_bool(&o, "verbose"), 1);
    assert_string_equal(mx8i_get_text(&o, "training.steps"), "32");
    assert_string_equal(mx8i_get_text(&o, "training.seed"), "auto");
    assert_true(mx8i_get_float(&o, "training.max_norm") == 3);
    assert_string_equal(mx8i_get_text(&o, "optimizer.lr"), "3e-05");
    assert_int_equal(mx8i_get_bool(&o, "optimizer.fused"), 0);
    assert_string_equal(mx8i_get_text(&o, "router.score"), "softmax");
    expect_list("quantize.linear.mx.filter_fqns", 3, "[wk][wv][3]");
    expect_list("model.converters", 2, "[mx][x]");
    assert_int_equal(mx8i_is_set(&o, "model.flavor"), 0);
    assert_string_equal(o.value[4].source, path);
}

/* A list as long as its file: every item once, in order, empty and negative ones too. */
static void test_long_list(void **state) {
    (void)state;
    enum { ITEMS = 20000 };
    char *text = malloc(64 + 16 * ITEMS), *expected = malloc(64 + 16 * ITEMS);
    int size = sprintf(text, "[model]\nconverters = ["), wanted = 0;
    for (int i = 0; i < ITEMS; i++) {
        size += sprintf(text + size, i % 3 ? "\"w%d\"," : "-%d,", i);
        wanted += sprintf(expected + wanted, i % 3 ? "w%d," : i ? "-%d," : "%d,", i);
    }
    sprintf(text + size, "'', %lld]\n", (long long)INT64_MIN);
    sprintf(expected + wanted, ",%lld", (long long)INT64_MIN);
    assert_ok(mx8i_parse_toml_file(&o, write_toml(text)));
    assert_string_equal(mx8i_get_text(&o, "model.converters"), expected);
    assert_int_equal(mx8i_get_list(&o, "model.converters", NULL, NULL), ITEMS + 1);
    free(text);
    free(expected);
}

static void test_floats_keep_their_bits(void **state) {
    (void)state;
    static const char *const texts[] = {"0.1", "1.0", "5e-324", "1.7976931348623157e308", "0.30000000000000004", "inf"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "optimizer.lr = %s", texts[i]);
        assert_ok(mx8i_parse_toml_file(&o, write_toml(text)));
        assert_true(mx8i_get_float(&o, "optimizer.lr") == strtod(texts[i], NULL));
    }
}

static void test_precedence(void **state) {
    (void)state;
    const char *path = write_toml("training.steps = 5\nmodel.flavor = 'toml'\n");
    char line[700];
    snprintf(line, sizeof line, "--training.steps 9 --job.config-file /nonexistent --job.config_file=%s", path);
    assert_ok(parse(line)); /* the flag wins though the file is named later; the last file is the one */
    assert_int_equal(mx8i_get_int(&o, "training.steps"), 9);
    assert_string_equal(mx8i_get_text(&o, "model.flavor"), "toml");
    assert_string_equal(mx8i_get_text(&o, "job.config_file"), path);
    assert_string_equal(o.value[1].source, path);
    assert_string_equal(o.value[4].source, "command line");
    assert_ok(mx8i_set_option(&o, "model.flavor", o.value[1].text, o.value[1].source));
    assert_string_equal(mx8i_get_text(&o, "model.flavor"), "toml"); /* a value may be set from itself */
    assert_status(mx8i_set_option(&o, "model.flavour", "x", "environment"), MX8_INVALID_ARGUMENT);
    assert_message("environment: model.flavour: no such option, did you mean \"model.flavor\"?");
}

static void test_toml_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"a=", "t.toml:1:3: expected a value"},
        {"\n[training]\nstep = 1", "t.toml:3: training.step: no such option, did you mean \"training.steps\"?"},
        {"[trainig]\nsteps = 1", "t.toml:2: trainig.steps: no such section \"trainig\""},
        {"[training]\nsteps = 'x'", "t.toml:2: training.steps: a string x, expected an integer from 1 to 1000"},
        {"[training]\nsteps = '5'", "a string 5, expected an integer"},
        {"[training]\nsteps = 5.0", "a float, expected an integer"},
        {"[training]\nsteps = 2000", "t.toml:2: training.steps: \"2000\", expected an integer from 1 to 1000"},
        {"[training]\nsteps = [1]", "an array, expected an integer"},
        {"[training.steps]\nx = 1", "t.toml:1: training.steps: a table, expected"},
        {"[training]\nmax_norm = nan", "expected a number"},
        {"[model]\nflavor = 3", "an integer, expected a text"},
        {"[model]\nflavor = \"a\\u0000b\"", "expected a text"},
        {"[model]\nprint_after_conversion = 1", "an integer, expected true or false"},
        {"[model]\nconverters = ['a,b']", "an array, expected a list"},
        {"[model]\nconverters = [['a']]", "an array, expected a list"},
        {"[router]\nscore = 'relu'", "t.toml:2: router.score: \"relu\", expected one of sigmoid or softmax"},
        {"[[training]]\nsteps = 1", "t.toml:1: training: no such option"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (mx8i_parse_toml_file(&o, write_toml(rows[i].text)) == MX8_OK) fail_msg("accepted: %s", rows[i].text);
        if (!strstr(mx8_get_last_error(), rows[i].message))
            fail_msg("%s: message \"%s\", expected \"%s\"", rows[i].text, mx8_get_last_error(), rows[i].message);
    }
}

static void test_table_defects(void **state) {
    (void)state;
    static const struct mx8_option wrong = {.key = "a.b", .type = MX8_OPT_INT, .value = "x"};
    struct mx8_options other;
    assert_status(mx8i_open_options(&wrong, 1, &other), MX8_INTERNAL);
    assert_message("a.b");
    mx8i_close_options(&other);
}

static void test_out_of_memory(void **state) {
    (void)state;
    char line[700];
    snprintf(line, sizeof line, "--verbose --job.config_file=%s", write_toml("model.converters=['a','b']"));
    for (int n = 1, done = 0; !done; n++) {
        mx8i_fail_allocation(n, 0);
        struct mx8_options kept = o;
        enum mx8_status status = mx8i_open_options(table, sizeof table / sizeof table[0], &o);
        if (status == MX8_OK) status = parse(line);
        mx8i_fail_allocation(0, 0);
        mx8i_close_options(&o);
        o = kept;
        done = status == MX8_OK;
        assert_true(done || status == MX8_OUT_OF_MEMORY);
    }
}

static void test_help(void **state) {
    (void)state;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    mx8i_print_options(&o, out, "optimizer", 50);
    fclose(out);
    assert_string_equal(text, "[optimizer]\n"
                              "  --optimizer.lr NUMBER|auto (default: 8e-4)\n"
                              "      Learning rate.\n"
                              "  --optimizer.fused | --optimizer.no_fused (default: true)\n"
                              "      One long line of help that has to be wrapped\n"
                              "      because it does not fit into the columns\n"
                              "      that were asked for.\n");
    free(text);
    out = open_memstream(&text, &size);
    mx8i_print_options(&o, out, NULL, 80);
    fclose(out);
    for (int i = 0; i < o.count; i++) assert_non_null(strstr(text, table[i].key));
    assert_non_null(strstr(text, "[quantize.linear.mx]\n"));
    assert_non_null(strstr(text, "  --router.score sigmoid|softmax (default: sigmoid)\n"));
    assert_non_null(strstr(text, "Also written as: training.clip training.max-grad-norm"));
    free(text);
    out = open_memstream(&text, &size);
    mx8i_print_options(&o, out, "quantize", 80);
    fclose(out);
    assert_memory_equal(text, "[quantize.linear.mx]\n", 21);
    free(text);
    out = open_memstream(&text, &size);
    mx8i_print_options(&o, out, "quant", 80); /* the beginning of a section's name is no section */
    fclose(out);
    assert_int_equal(size, 0);
    free(text);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_table, close_table)
    const struct CMUnitTest tests[] = {
        TEST(test_defaults),
        TEST(test_flags),
        TEST(test_flag_forms),
        TEST(test_flag_errors),
        TEST(test_toml_values),
        TEST(test_long_list),
        TEST(test_floats_keep_their_bits),
        TEST(test_precedence),
        TEST(test_toml_errors),
        TEST(test_table_defects),
        TEST(test_out_of_memory),
        TEST(test_help),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
