/* Ids against those of `tokenizers` and tiktoken (tests/data/make_tokenizers.py), decoding, and files that are refused.
 */
#include "train/job_testing.h"
#include <jansson.h>
#include "base/file.h"
#include "base/memory.h"
#include "train/tokenizer.h"

static struct mx8_tokenizer *open_named(const char *name, int special_as_text) {
    struct mx8_tokenizer_options options = {.bos = "none", .eos = "none", .special_as_text = special_as_text};
    struct mx8_tokenizer *t;
    assert_ok(mx8i_open_tokenizer(name, &options, &t));
    return t;
}

static uint8_t *expand_text(const json_t *spec, size_t *size) {
    const char *hex = json_string_value(json_array_get(spec, 0));
    size_t unit = strlen(hex) / 2, times = (size_t)json_integer_value(json_array_get(spec, 1));
    uint8_t *text = malloc(unit * times + 1);
    for (size_t i = 0; i < unit * times; i++) {
        char pair[3] = {hex[2 * (i % unit)], hex[2 * (i % unit) + 1], 0};
        text[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    *size = unit * times;
    return text;
}

static void expect_ids(const char *name, size_t index, const json_t *expected, const struct mx8_tokens *got) {
    size_t count = json_array_size(expected);
    for (size_t i = 0; i < count && i < (size_t)got->count; i++)
        if (json_integer_value(json_array_get(expected, i)) != got->id[i])
            fail_msg("%s, text %zu: id %zu is %d, expected %lld", name, index, i, got->id[i],
                (long long)json_integer_value(json_array_get(expected, i)));
    if (count != (size_t)got->count)
        fail_msg("%s, text %zu: %lld ids, expected %zu", name, index, (long long)got->count, count);
}

/* Every text twice by the same encoder: the second time out of the cache. */
static void check_cases(const char *name, const char *file, int special_as_text) {
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer/%s", MX8_TEST_DATA, file);
    json_t *cases = json_load_file(MX8_TEST_DATA "/tokenizer/cases.json", 0, NULL);
    assert_non_null(cases);
    const json_t *texts = json_object_get(cases, "texts"), *ids = json_object_get(json_object_get(cases, "ids"), name);
    assert_true(json_array_size(texts) > 150);
    assert_int_equal(json_array_size(ids), json_array_size(texts));
    struct mx8_tokenizer *t = open_named(path, special_as_text);
    struct mx8_encoder *e;
    struct mx8_tokens got = {0};
    assert_ok(mx8i_open_encoder(t, &e));
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < json_array_size(texts); i++) {
            size_t size;
            uint8_t *text = expand_text(json_array_get(texts, i), &size);
            got.count = 0;
            assert_ok(mx8i_encode_text(e, text, size, &got));
            expect_ids(name, i, json_array_get(ids, i), &got);
            free(text);
        }
    }
    assert_true(mx8i_count_replaced(e) > 100);
    mx8i_release(got.id);
    mx8i_close_encoder(e);
    mx8i_close_tokenizer(t);
    json_decref(cases);
}

static int lacks_pcre2(const char *file) {
    struct mx8_tokenizer *t;
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer/%s", MX8_TEST_DATA, file);
    if (mx8i_open_tokenizer(path, NULL, &t) == MX8_OK) {
        mx8i_close_tokenizer(t);
        return 0;
    }
    return strstr(mx8_get_last_error(), "libpcre2-dev") != NULL;
}

static void test_ids(void **state) {
    (void)state;
    static const struct {
        const char *name, *file;
        int special_as_text;
    } rows[] = {{"gpt2", "gpt2.json", 0}, {"prefix", "prefix.json", 0}, {"llama3", "llama3.json", 0},
        {"plain", "llama3.json", 1}, {"qwen", "qwen.json", 0}, {"parts", "parts.json", 0},
        {"inverted", "inverted.json", 0}, {"ranks", "ranks.model", 0}};
    if (lacks_pcre2("gpt2.json")) skip();
    for (size_t i = 0; i < COUNT(rows); i++) check_cases(rows[i].name, rows[i].file, rows[i].special_as_text);
}

/* Without repairs, and where no split drops anything, the tokens' bytes are the text's. */
static void test_round_trip(void **state) {
    (void)state;
    static const char text[] = "<|begin|>Straße 漢字 😀\n\tint x = 0x1F;  \r\n\x01 done<|end|>";
    static const char *const files[] = {"gpt2.json", "llama3.json", "qwen.json", "ranks.model"};
    if (lacks_pcre2("gpt2.json")) skip();
    for (size_t i = 0; i < COUNT(files); i++) {
        char path[512], back[256];
        size_t used = 0, size;
        snprintf(path, sizeof path, "%s/tokenizer/%s", MX8_TEST_DATA, files[i]);
        struct mx8_tokenizer *t = open_named(path, 0);
        struct mx8_encoder *e;
        struct mx8_tokens got = {0};
        assert_ok(mx8i_open_encoder(t, &e));
        assert_ok(mx8i_encode_text(e, text, sizeof text - 1, &got));
        for (int64_t j = 0; j < got.count; j++) {
            const uint8_t *bytes = mx8i_get_token(t, got.id[j], &size, NULL);
            assert_true(used + size <= sizeof back);
            memcpy(back + used, bytes, size);
            used += size;
        }
        assert_int_equal(used, sizeof text - 1);
        assert_memory_equal(back, text, used);
        assert_int_equal(mx8i_count_replaced(e), 0);
        mx8i_release(got.id);
        mx8i_close_encoder(e);
        mx8i_close_tokenizer(t);
    }
}

static void test_bytes(void **state) {
    (void)state;
    static const uint8_t text[] = {0, 'a', 0xFF, 0xC3};
    struct mx8_tokenizer *t;
    struct mx8_encoder *e;
    struct mx8_tokens got = {0};
    size_t size;
    int special;
    assert_ok(mx8i_open_tokenizer("bytes", NULL, &t));
    assert_int_equal(mx8i_count_vocabulary(t), 258);
    assert_int_equal(mx8i_get_bos(t), 256);
    assert_int_equal(mx8i_get_eos(t), 257);
    assert_string_equal(mx8i_get_tokenizer_hash(t), "bytes");
    assert_ok(mx8i_open_encoder(t, &e));
    assert_ok(mx8i_encode_text(e, text, sizeof text, &got));
    assert_int_equal(got.count, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(got.id[i], text[i]);
    assert_non_null(mx8i_get_token(t, 257, &size, &special));
    assert_int_equal(special, 1);
    assert_null(mx8i_get_token(t, 258, &size, &special));
    assert_null(mx8i_get_token(t, -1, &size, NULL));
    mx8i_release(got.id);
    mx8i_close_encoder(e);
    mx8i_close_tokenizer(t);
}

static void test_marks(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_tokenizer *t;
    char *text;
    size_t size;
    if (lacks_pcre2("gpt2.json")) skip();
    assert_ok(mx8i_read_file(MX8_TEST_DATA "/tokenizer/llama3.json", 1 << 20, &text, &size));
    write_file(in_folder(&f, "tokenizer.json"), text, size);
    mx8i_release(text);
    assert_ok(mx8i_open_tokenizer(f.path, NULL, &t)); /* none of the usual names */
    assert_int_equal(mx8i_get_eos(t), -1);
    mx8i_close_tokenizer(t);

    static const char config[] = "{\"bos_token\": {\"content\": \"<|begin|>\"}, \"eos_token\": \"<|end|>\"}";
    write_file(in_folder(&f, "tokenizer_config.json"), config, sizeof config - 1);
    assert_ok(mx8i_open_tokenizer(f.path, NULL, &t));
    assert_int_equal(mx8i_get_bos(t), mx8i_find_token(t, "<|begin|>"));
    assert_int_equal(mx8i_get_eos(t), mx8i_find_token(t, "<|end|>"));
    assert_true(mx8i_get_eos(t) > 900);
    mx8i_close_tokenizer(t);

    struct mx8_tokenizer_options options = {.bos = "none", .eos = "<|stop|>"};
    assert_status(mx8i_open_tokenizer(f.path, &options, &t), MX8_INVALID_ARGUMENT);
    assert_message("<|stop|>");
    options.eos = "e";
    assert_ok(mx8i_open_tokenizer(f.path, &options, &t));
    assert_int_equal(mx8i_get_bos(t), -1);
    mx8i_close_tokenizer(t);
    write_file(in_folder(&f, "tokenizer_config.json"), "{,", 2);
    assert_status(mx8i_open_tokenizer(f.path, NULL, &t), MX8_FORMAT_ERROR);
    assert_message("tokenizer_config.json: line 1");

    assert_ok(mx8i_open_tokenizer(MX8_TEST_DATA "/tokenizer/ranks.model", NULL, &t)); /* Llama 3's special tokens */
    int32_t first = (int32_t)mx8i_count_vocabulary(t) - 256;
    assert_int_equal(mx8i_get_bos(t), first);
    assert_int_equal(mx8i_get_eos(t), first + 1);
    assert_int_equal(mx8i_find_token(t, "<|eot_id|>"), first + 9);
    assert_int_equal(mx8i_find_token(t, "<|reserved_special_token_250|>"), first + 255);
    mx8i_close_tokenizer(t);
    remove_folder(&f);
}

#define MODEL(more) "\"model\":{\"type\":\"BPE\"," more "\"vocab\":{\"a\":0},\"merges\":[]}"
#define BYTES       "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false},"

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
        enum mx8_status status;
    } rows[] = {
        {"{\"model\":", "line 1", MX8_FORMAT_ERROR},
        {"{}", "\"vocab\"", MX8_FORMAT_ERROR},
        {"{\"model\":{\"type\":\"Unigram\"}}", "Unigram", MX8_UNSUPPORTED},
        {"{\"model\":{\"type\":\"WordPiece\"}}", "WordPiece", MX8_UNSUPPORTED},
        {"{" MODEL("\"byte_fallback\":true,") "}", "byte_fallback", MX8_UNSUPPORTED},
        {"{" MODEL("\"dropout\":0.1,") "}", "dropout", MX8_UNSUPPORTED},
        {"{" MODEL("\"continuing_subword_prefix\":\"##\",") "}", "continuing_subword_prefix", MX8_UNSUPPORTED},
        {"{" MODEL("\"end_of_word_suffix\":\"</w>\",") "}", "end_of_word_suffix", MX8_UNSUPPORTED},
        {"{\"normalizer\":{\"type\":\"Lowercase\"}," MODEL("") "}", "Lowercase", MX8_UNSUPPORTED},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\"}," MODEL("") "}", "Metaspace", MX8_UNSUPPORTED},
        {"{" MODEL("") "}", "ByteLevel", MX8_UNSUPPORTED},
        {"{" BYTES MODEL("") "}", "byte 0x00", MX8_UNSUPPORTED},
        {"{" BYTES "\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "id of \"a\"", MX8_FORMAT_ERROR},
        {"{" BYTES "\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", "id 1 stands twice", MX8_FORMAT_ERROR},
        {"", "no tokens", MX8_FORMAT_ERROR},
        {"YQ== 0\nYg==\n", "line 2", MX8_FORMAT_ERROR},
        {"YQ== 0\nY!== 1\n", "line 2", MX8_FORMAT_ERROR},
        {"YQ== 0\nYg== 0\n", "line 2: rank 0", MX8_FORMAT_ERROR},
        {"YQ== 65547\n", "rank below 65547", MX8_FORMAT_ERROR}, /* more holes than a file of 11 bytes may have */
        {"YQ== 0\n", "byte 0x00", MX8_UNSUPPORTED},
    };
    struct folder f = make_folder();
    struct mx8_tokenizer *t;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *path = in_folder(&f, "file");
        write_file(path, rows[i].text, strlen(rows[i].text));
        assert_status(mx8i_open_tokenizer(path, NULL, &t), rows[i].status);
        assert_message(rows[i].words);
        assert_message(path);
        assert_null(t);
    }
    assert_status(mx8i_open_tokenizer(in_folder(&f, "none"), NULL, &t), MX8_IO_ERROR);
    remove_folder(&f);
}

/* Patterns that engines read differently. */
static void test_patterns(void **state) {
    (void)state;
    static const char *const bad[] = {"\\w+", "a\\b", "[a[bc]]", "[a&&b]", "(", "\\1", "\\h", "\\v", "a\\"};
    if (lacks_pcre2("gpt2.json")) skip();
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct mx8_tokenizer_options options = {.pattern = bad[i]};
        struct mx8_tokenizer *t;
        assert_true(mx8i_open_tokenizer(MX8_TEST_DATA "/tokenizer/ranks.model", &options, &t) != MX8_OK);
        assert_message("the split pattern");
    }
}

static void test_out_of_memory(void **state) {
    (void)state;
    const char *path = MX8_TEST_DATA "/tokenizer/prefix.json";
    if (lacks_pcre2("prefix.json")) skip();
    mx8i_fail_allocation(0, 0);
    struct mx8_tokenizer *t = open_named(path, 0);
    int64_t count = mx8i_count_allocations();
    mx8i_close_tokenizer(t);
    for (int64_t n = 1; n <= count; n += n < 40 ? 1 : count / 20 + 1) {
        mx8i_fail_allocation(n, 1);
        assert_true(mx8i_open_tokenizer(path, NULL, &t) != MX8_OK);
        mx8i_fail_allocation(0, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ids), cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bytes), cmocka_unit_test(test_marks), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_patterns), cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
