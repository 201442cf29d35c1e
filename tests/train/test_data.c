/* Samples of text, token shards and random tokens. */
#include "train/job_testing.h"
#include "train/data.h"

enum { SEQ = 4, V = 300 };

static void expect_sample(struct mx8_data *d, int64_t position, const int32_t *stream, int64_t total) {
    int32_t tokens[SEQ], targets[SEQ], docs[SEQ], doc = 0;
    assert_ok(mx8i_read_sample(d, position, tokens, targets, docs));
    for (int64_t i = 0; i < SEQ; i++) {
        int64_t at = position * (SEQ + 1) + i;
        assert_int_equal(tokens[i], stream[at % total]);
        assert_int_equal(targets[i], stream[(at + 1) % total]);
        assert_int_equal(docs[i], doc);
        doc += tokens[i] == MX8_EOS;
    }
}

static void test_text(void **state) {
    (void)state;
    static const int32_t stream[] = {
        MX8_BOS, 'a', 'b', MX8_EOS, MX8_BOS, 255, MX8_EOS, MX8_BOS, 'x', 'y', 'z', MX8_EOS};
    struct folder f = make_folder();
    struct mx8_data *d;
    mkdir(in_folder(&f, "b"), 0777);
    write_file(in_folder(&f, "c"), "xyz", 3);
    write_file(in_folder(&f, "b/inner"), "\xff", 1);
    write_file(in_folder(&f, "b/nothing"), "", 0);
    write_file(in_folder(&f, "a"), "ab", 2);
    assert_ok(open_data("auto", f.path, 0, SEQ, V, 0, &d));
    assert_int_equal(mx8i_count_tokens(d), COUNT(stream));
    assert_non_null(strstr(mx8i_describe_data(d), "3 files"));
    for (int64_t p = 0; p < 30; p++) expect_sample(d, p, stream, COUNT(stream)); /* wraps several times */
    expect_sample(d, 1000000007, stream, COUNT(stream));
    int32_t tokens[SEQ], targets[SEQ];
    assert_ok(mx8i_read_sample(d, 0, tokens, targets, NULL));
    assert_status(mx8i_read_sample(d, -1, tokens, targets, NULL), MX8_INVALID_ARGUMENT);
    mx8i_close_data(d);

    assert_ok(open_data("text", f.path, 4, SEQ, V, 0, &d)); /* "ab", 255 and one byte of "xyz" */
    assert_int_equal(mx8i_count_tokens(d), 10);
    mx8i_close_data(d);
    remove_folder(&f);
}

/* A corpus shorter than a sample, and one that is mapped instead of copied. */
static void test_short_and_long_text(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_data *d;
    static const int32_t stream[] = {MX8_BOS, 'q', MX8_EOS};
    write_file(in_folder(&f, "short"), "q", 1);
    assert_ok(open_data("text", in_folder(&f, "short"), 0, SEQ, V, 0, &d));
    for (int64_t p = 0; p < 4; p++) expect_sample(d, p, stream, COUNT(stream));
    mx8i_close_data(d);

    size_t size = (1 << 20) + 5;
    char *bytes = malloc(size);
    int32_t tokens[SEQ], targets[SEQ];
    for (size_t i = 0; i < size; i++) bytes[i] = (char)(i % 100);
    write_file(in_folder(&f, "long"), bytes, size);
    free(bytes);
    assert_ok(open_data("auto", in_folder(&f, "long"), 0, SEQ, V, 0, &d));
    assert_ok(mx8i_read_sample(d, 200000, tokens, targets, NULL));
    assert_int_equal(tokens[0], 999999 % 100);
    mx8i_close_data(d);
    remove_folder(&f);
}

/* In a folder, what begins like no text is left out, short or long; a file that is named is taken. */
static void test_binary_files(void **state) {
    (void)state;
    enum { LONG = (1 << 20) + 5 };
    struct folder f = make_folder();
    struct mx8_data *d;
    int32_t tokens[SEQ], targets[SEQ];
    char *bytes = calloc(LONG, 1);
    assert_non_null(bytes);
    bytes[0] = 'x';
    write_file(in_folder(&f, "0"), bytes, 9);
    write_file(in_folder(&f, "1"), bytes, LONG);
    assert_status(open_data("text", f.path, 0, SEQ, V, 0, &d), MX8_FORMAT_ERROR);
    assert_message("no text, 0 empty files, 2 with zero bytes");
    memset(bytes, 'y', LONG);
    write_file(in_folder(&f, "2"), bytes, LONG);
    write_file(in_folder(&f, "3"), "\0", 1);
    free(bytes);
    assert_ok(open_data("text", f.path, 0, SEQ, V, 0, &d));
    assert_non_null(strstr(mx8i_describe_data(d), "1 file, 1.0 MB of text"));
    assert_non_null(strstr(mx8i_describe_data(d), "(left out: 3 with zero bytes, no text)"));
    assert_ok(mx8i_read_sample(d, 0, tokens, targets, NULL));
    assert_int_equal(targets[0], 'y');
    mx8i_close_data(d);
    assert_ok(open_data("text", in_folder(&f, "0"), 0, 4, V, 0, &d));
    assert_ok(mx8i_read_sample(d, 0, tokens, targets, NULL));
    assert_int_equal(targets[0], 'x');
    assert_int_equal(targets[1], 0);
    mx8i_close_data(d);
    remove_folder(&f);
}

static void test_text_errors(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_data *d;
    assert_status(open_data("auto", in_folder(&f, "none"), 0, SEQ, V, 0, &d), MX8_IO_ERROR);
    assert_message("/none");
    assert_null(d);
    assert_status(open_data("text", f.path, 0, SEQ, V, 0, &d), MX8_FORMAT_ERROR);
    write_file(in_folder(&f, "empty"), "", 0);
    assert_status(open_data("text", f.path, 0, SEQ, V, 0, &d), MX8_FORMAT_ERROR);
    assert_message("no text");
    write_file(in_folder(&f, "a"), "a", 1);
    assert_status(open_data("text", f.path, 0, SEQ, 257, 0, &d), MX8_INVALID_ARGUMENT);
    assert_message("model.vocab_size >= 258");
    assert_ok(open_data("text", f.path, 0, SEQ, 258, 0, &d));
    mx8i_close_data(d);
    remove_folder(&f);
}

struct shard_header {
    int32_t magic, version, count;
};

/* A shard of `tokens`, each in `width` bytes; header NULL: bare. `cut` bytes are left out at the end. */
static void write_shard(
    const char *path, const struct shard_header *header, int width, const uint32_t *tokens, int n, size_t cut) {
    uint8_t bytes[1024 + 64] = {0};
    size_t size = 0;
    if (header) {
        memcpy(bytes, header, sizeof *header);
        size = 1024;
    }
    for (int i = 0; i < n; i++, size += (size_t)width) memcpy(bytes + size, &tokens[i], (size_t)width);
    write_file(path, bytes, size - cut);
}

static void test_shards(void **state) {
    (void)state;
    static const uint32_t a[] = {1, 2, 3}, b[] = {10, MX8_EOS, 12, 13}, c[] = {20}, e[] = {30, 31};
    static const int32_t stream[] = {1, 2, 3, 10, MX8_EOS, 12, 13, 20, 30, 31};
    struct folder f = make_folder();
    struct mx8_data *d;
    write_shard(in_folder(&f, "1.bin"), &(struct shard_header){20240520, 1, 3}, 2, a, 3, 0);
    write_shard(in_folder(&f, "2.bin"), &(struct shard_header){20240801, 7, 4}, 4, b, 4, 0);
    write_shard(in_folder(&f, "3.bin"), NULL, 2, c, 1, 0);
    write_shard(in_folder(&f, "3b.bin"), &(struct shard_header){20240520, 1, 0}, 2, c, 0, 0);
    write_shard(in_folder(&f, "4.u32.bin"), NULL, 4, e, 2, 0);
    write_file(in_folder(&f, "README"), "not a shard", 11);
    assert_ok(open_data("auto", f.path, 0, SEQ, V, 0, &d));
    assert_int_equal(mx8i_count_tokens(d), COUNT(stream));
    assert_non_null(strstr(mx8i_describe_data(d), "5 token shards"));
    for (int64_t p = 0; p < 30; p++) expect_sample(d, p, stream, COUNT(stream));
    mx8i_close_data(d);
    assert_ok(open_data("shards", in_folder(&f, "2.bin"), 0, SEQ, V, 0, &d));
    assert_int_equal(mx8i_count_tokens(d), 4);
    mx8i_close_data(d);
    remove_folder(&f);
}

static void test_lying_shards(void **state) {
    (void)state;
    static const uint32_t tokens[] = {1, 2, 299, 300};
    static const struct {
        struct shard_header header;
        int bare, width, n;
        size_t cut;
        enum mx8_status status;
        const char *message;
    } cases[] = {
        {{20240520, 1, 3}, 0, 2, 3, 2, MX8_FORMAT_ERROR, "says 3 tokens"}, /* truncated */
        {{20240520, 1, 2}, 0, 2, 3, 0, MX8_FORMAT_ERROR, "says 2 tokens"}, /* longer than it says */
        {{20240520, 1, -1}, 0, 2, 3, 0, MX8_FORMAT_ERROR, "says -1 tokens"},
        {{20240520, 1, 0x7fffffff}, 0, 2, 3, 0, MX8_FORMAT_ERROR, "2147483647"},
        {{20240520, 7, 3}, 0, 2, 3, 0, MX8_FORMAT_ERROR, "version 7, expected version 1"},
        {{20240801, 1, 3}, 0, 4, 3, 0, MX8_FORMAT_ERROR, "version 1, expected version 7"},
        {{20240520, 1, 3}, 0, 2, 3, 1000, MX8_FORMAT_ERROR, "header is cut"},
        {{20240520, 1, 3}, 0, 2, 3, 1030 - 4, MX8_FORMAT_ERROR, "header is cut"}, /* the magic alone */
        {{0, 0, 0}, 1, 2, 3, 1, MX8_FORMAT_ERROR, "whole number"},
        {{0, 0, 0}, 1, 2, 0, 0, MX8_FORMAT_ERROR, "no tokens"},
        {{20240520, 1, 4}, 0, 2, 4, 0, MX8_INVALID_ARGUMENT, "token 3 is 300"},
    };
    struct folder f = make_folder();
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mx8_data *d;
        const char *path = in_folder(&f, "x.bin");
        write_shard(path, cases[i].bare ? NULL : &cases[i].header, cases[i].width, tokens, cases[i].n, cases[i].cut);
        assert_status(open_data("shards", path, 0, SEQ, V, 0, &d), cases[i].status);
        assert_message(cases[i].message);
        assert_message("x.bin");
    }
    remove_folder(&f);
}

/* Past the part that is checked at start, a token that the model lacks is found when it is read. */
static void test_late_bad_token(void **state) {
    (void)state;
    enum { N = 70000 };
    struct folder f = make_folder();
    struct mx8_data *d;
    int32_t tokens[SEQ], targets[SEQ];
    uint16_t *shard = calloc(N, sizeof *shard);
    shard[N - 1] = V;
    write_file(in_folder(&f, "x.bin"), shard, N * sizeof *shard);
    free(shard);
    assert_ok(open_data("auto", in_folder(&f, "x.bin"), 0, SEQ, V, 0, &d));
    assert_ok(mx8i_read_sample(d, 0, tokens, targets, NULL));
    assert_status(mx8i_read_sample(d, N / (SEQ + 1) - 1, tokens, targets, NULL), MX8_INVALID_ARGUMENT);
    assert_message("token 69999 is 300");
    mx8i_close_data(d);
    remove_folder(&f);
}

static void test_random(void **state) {
    (void)state;
    enum { S = 1000 };
    struct mx8_data *d[3];
    static int32_t tokens[3][S], targets[3][S];
    int seen[7] = {0};
    for (int i = 0; i < 3; i++) {
        assert_ok(open_data("random", "", 0, S, 7, i == 2 ? 6 : 5, &d[i]));
        assert_ok(mx8i_read_sample(d[i], 3, tokens[i], targets[i], NULL));
        mx8i_close_data(d[i]);
    }
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    assert_memory_not_equal(tokens[0], tokens[2], sizeof tokens[0]);
    assert_memory_equal(tokens[0] + 1, targets[0], (S - 1) * sizeof tokens[0][0]);
    for (int i = 0; i < S; i++) {
        assert_in_range(tokens[0][i], 0, 6);
        seen[tokens[0][i]]++;
    }
    for (int i = 0; i < 7; i++) assert_in_range(seen[i], 90, 200);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_short_and_long_text),
        cmocka_unit_test(test_binary_files),
        cmocka_unit_test(test_text_errors),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_lying_shards),
        cmocka_unit_test(test_late_bad_token),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
