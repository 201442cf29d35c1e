/* Shards and their manifest: what is written, what is kept when a run goes on, and what is refused. */
#include "train/job_testing.h"
#include <jansson.h>
#include "base/memory.h"
#include "train/data.h"
#include "train/sha256.h"
#include "train/shard_writer.h"
#include "train/source.h"
#include "train/tokenize.h"

enum { DOCUMENTS = 50 };

static json_t *describe(const char *name) {
    return json_pack("{s:{s:s, s:i, s:i}}", "tokenizer", "sha256", name, "vocabulary", 200, "eos", 199);
}

static enum mx8_status open_writer(
    const char *folder, int32_t width, const char *name, int overwrite, struct mx8_shard_writer **w) {
    json_t *made_from = describe(name);
    struct mx8_shard_options options = {
        .folder = folder, .width = width, .shard_tokens = 100, .overwrite = overwrite, .made_from = made_from};
    enum mx8_status status = mx8i_open_shard_writer(&options, w);
    json_decref(made_from);
    return status;
}

/* Document i: i + 1 tokens that count up from i. */
static void append_documents(struct mx8_shard_writer *w, int64_t from, int64_t to) {
    int32_t tokens[DOCUMENTS];
    for (int64_t i = from; i < to; i++) {
        for (int32_t j = 0; j <= i; j++) tokens[j] = (int32_t)i + j;
        struct mx8_shard_counts counts = {.records = 1, .text_bytes = 2 * i};
        assert_ok(mx8i_append_document(w, tokens, i + 1, &counts));
    }
}

static void expect_tokens(const struct folder *f, int64_t shards, int64_t documents, int32_t width) {
    int64_t i = 0, j = 0;
    for (int64_t index = 0; index < shards; index++) {
        char name[64];
        struct mx8_shard s;
        snprintf(name, sizeof name, "out/tokens_%06lld.bin", (long long)index);
        assert_ok(mx8i_open_shard(in_folder(f, name), &s));
        assert_int_equal(s.width, width);
        for (int64_t k = 0; k < s.count; k++) {
            assert_int_equal(mx8i_load_token(&s, k), i + j);
            if (++j > i) i++, j = 0;
        }
        assert_int_equal(j, 0); /* no document is cut */
        if (index + 1 < shards) assert_true(s.count >= 100);
        mx8i_close_shard(&s);
    }
    assert_int_equal(i, documents);
}

static void write_all(const struct folder *f, int32_t width) {
    struct mx8_shard_writer *w;
    assert_ok(open_writer(in_folder(f, "out/"), width, "a", 0, &w));
    append_documents(w, 0, DOCUMENTS);
    assert_ok(mx8i_finish_shards(w));
    assert_int_equal(mx8i_count_shards(w), 11);
    mx8i_close_shard_writer(w);
}

static void test_shards(void **state) {
    (void)state;
    for (int32_t width = 2; width <= 4; width += 2) {
        struct folder f = make_folder();
        struct mx8_data *d;
        write_all(&f, width);
        expect_tokens(&f, 11, DOCUMENTS, width);
        json_t *manifest = json_load_file(in_folder(&f, "out/manifest.json"), 0, NULL);
        assert_true(json_is_true(json_object_get(manifest, "complete")));
        assert_int_equal(json_integer_value(json_object_get(manifest, "tokens")), DOCUMENTS * (DOCUMENTS + 1) / 2);
        assert_int_equal(json_integer_value(json_object_get(manifest, "text_bytes")), DOCUMENTS * (DOCUMENTS - 1));
        const json_t *shard = json_array_get(json_object_get(manifest, "shards"), 3);
        char hash[65];
        assert_ok(mx8i_hash_file(in_folder(&f, "out/tokens_000003.bin"), hash));
        assert_string_equal(json_string_value(json_object_get(shard, "sha256")), hash);
        json_decref(manifest);
        assert_ok(open_data("auto", in_folder(&f, "out"), 0, 4, 200, 0, &d)); /* as the trainer reads them */
        assert_int_equal(mx8i_count_tokens(d), DOCUMENTS * (DOCUMENTS + 1) / 2);
        mx8i_close_data(d);
        remove_folder(&f);
    }
}

static void flip_byte(const char *path) {
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    fseek(file, 1030, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, 1030, SEEK_SET);
    fputc(byte ^ 1, file);
    fclose(file);
}

static void test_going_on(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_shard_writer *w;
    assert_ok(open_writer(in_folder(&f, "out"), 4, "a", 0, &w));
    append_documents(w, 0, 30);
    int64_t shards = mx8i_count_shards(w);
    assert_true(shards > 2);
    mx8i_close_shard_writer(w); /* stopped: what was not finished is gone */

    assert_ok(open_writer(in_folder(&f, "out"), 4, "a", 0, &w));
    assert_int_equal(mx8i_count_shards(w), shards);
    assert_false(mx8i_is_complete(w));
    int64_t kept = mx8i_sum_shards(w).records;
    assert_true(kept > 20 && kept < 30);
    append_documents(w, kept, DOCUMENTS);
    assert_ok(mx8i_finish_shards(w));
    mx8i_close_shard_writer(w);
    expect_tokens(&f, 11, DOCUMENTS, 4);

    assert_ok(open_writer(in_folder(&f, "out"), 4, "a", 0, &w));
    assert_true(mx8i_is_complete(w));
    mx8i_close_shard_writer(w);

    flip_byte(in_folder(&f, "out/tokens_000002.bin")); /* it and those after it are made again */
    assert_ok(open_writer(in_folder(&f, "out"), 4, "a", 0, &w));
    assert_int_equal(mx8i_count_shards(w), 2);
    assert_false(mx8i_is_complete(w));
    assert_true(access(in_folder(&f, "out/tokens_000002.bin"), F_OK) != 0);
    assert_true(access(in_folder(&f, "out/tokens_000010.bin"), F_OK) != 0);
    append_documents(w, mx8i_sum_shards(w).records, DOCUMENTS);
    assert_ok(mx8i_finish_shards(w));
    mx8i_close_shard_writer(w);
    expect_tokens(&f, 11, DOCUMENTS, 4);
    remove_folder(&f);
}

static void test_refusals(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_shard_writer *w;
    write_all(&f, 4);
    assert_status(open_writer(in_folder(&f, "out"), 4, "b", 0, &w), MX8_INVALID_ARGUMENT);
    assert_message("another \"tokenizer\"");
    assert_null(w);
    expect_tokens(&f, 11, DOCUMENTS, 4); /* nothing was touched */
    assert_ok(open_writer(in_folder(&f, "out"), 4, "b", 1, &w));
    assert_int_equal(mx8i_count_shards(w), 0);
    mx8i_close_shard_writer(w);
    assert_true(access(in_folder(&f, "out/tokens_000000.bin"), F_OK) != 0);

    write_file(in_folder(&f, "out/other.bin"), "x", 1);
    assert_status(open_writer(in_folder(&f, "out"), 4, "b", 0, &w), MX8_INVALID_ARGUMENT);
    assert_message("other.bin");
    remove(in_folder(&f, "out/other.bin"));
    write_file(in_folder(&f, "out/manifest.json"), "{\"shards\"", 9);
    assert_status(open_writer(in_folder(&f, "out"), 4, "b", 0, &w), MX8_FORMAT_ERROR);
    assert_message("manifest.json: line 1");
    write_file(in_folder(&f, "file"), "x", 1);
    assert_status(open_writer(in_folder(&f, "file"), 4, "b", 0, &w), MX8_IO_ERROR);
    assert_status(open_writer(in_folder(&f, "out"), 3, "b", 0, &w), MX8_INVALID_ARGUMENT);
    remove_folder(&f);
}

/* The whole way with the bytes tokenizer, which the trainer's text reader must agree with. */
static void test_corpus_to_shards(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_tokenizer *t;
    struct mx8_tokenize_progress progress;
    struct mx8_data *text, *shards;
    mkdir(in_folder(&f, "in"), 0777);
    for (int i = 0; i < 200; i++) {
        char name[32], bytes[64];
        snprintf(name, sizeof name, "in/%03d", i);
        write_file(in_folder(&f, name), bytes, (size_t)snprintf(bytes, sizeof bytes, "%0*d", i % 50, i * i));
    }
    const char *paths[] = {in_folder(&f, "in")};
    assert_ok(mx8i_open_tokenizer("bytes", NULL, &t));
    struct mx8_tokenize_options options = {.tokenizer = t,
        .paths = paths,
        .n_paths = 1,
        .field = "text",
        .folder = in_folder(&f, "out"),
        .width = 2,
        .shard_tokens = 500};
    assert_ok(mx8i_tokenize_corpus(&options, &progress));
    assert_int_equal(progress.counts.documents, 200);
    assert_int_equal(progress.counts.tokens, progress.counts.text_bytes + 400);
    assert_ok(open_data("text", paths[0], 0, 63, 300, 0, &text));
    assert_ok(open_data("shards", options.folder, 0, 63, 300, 0, &shards));
    assert_int_equal(mx8i_count_tokens(shards), mx8i_count_tokens(text));
    for (int64_t p = 0; p < 90; p++) {
        int32_t a[63], b[63], targets[63];
        assert_ok(mx8i_read_sample(text, p, a, targets, NULL));
        assert_ok(mx8i_read_sample(shards, p, b, targets, NULL));
        assert_memory_equal(a, b, sizeof a);
    }
    mx8i_close_data(text);
    mx8i_close_data(shards);
    mx8i_close_tokenizer(t);
    remove_folder(&f);
}

static void test_sha256(void **state) {
    (void)state;
    static const struct {
        const char *unit, *hex;
        int times;
    } rows[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 0},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 1},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1", 1},
        {"aaaaaaaaaa", "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", 100000}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mx8_sha256 h;
        char hex[65];
        mx8i_begin_sha256(&h);
        for (int j = 0; j < rows[i].times; j++) mx8i_add_sha256(&h, rows[i].unit, strlen(rows[i].unit));
        mx8i_end_sha256(&h, hex);
        assert_string_equal(hex, rows[i].hex);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shards), cmocka_unit_test(test_going_on),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_corpus_to_shards), cmocka_unit_test(test_sha256)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
