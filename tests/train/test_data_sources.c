/* Sources as a run meets them: mixed, shuffled, described by manifests, huge, many, and changing under it. */
#include "train/job_testing.h"
#include <fcntl.h>
#include <sys/resource.h>

enum { SEQ = 4, V = 300 };

/* A bare uint16 shard of n tokens that count up from `first`. */
static void write_counting(const char *path, int n, int first) {
    uint16_t tokens[4096];
    for (int i = 0; i < n; i++) tokens[i] = (uint16_t)(first + i);
    write_file(path, tokens, (size_t)n * sizeof *tokens);
}

static struct mx8_data_options make_options(const char *path) {
    return (struct mx8_data_options){
        .dataset = "auto", .path = path, .seq_len = SEQ, .vocab_size = V, .document_end = -1, .seed = 7};
}

static struct mx8_data *open_options(const struct mx8_data_options *o) {
    struct mx8_data *d;
    assert_ok(mx8i_open_data(o, &d));
    return d;
}

/* The first token of a sample; its targets must be the next ones. */
static int32_t read_first(struct mx8_data *d, int64_t position) {
    int32_t tokens[SEQ], targets[SEQ];
    assert_ok(mx8i_read_sample(d, position, tokens, targets, NULL));
    assert_memory_equal(tokens + 1, targets, (SEQ - 1) * sizeof *tokens);
    return tokens[0];
}

static void test_mixture(void **state) {
    (void)state;
    struct folder f = make_folder();
    char path[600];
    int64_t given[2] = {0};
    write_counting(in_folder(&f, "a.bin"), 40, 0);   /* 8 samples: 0, 5, ... 35 */
    write_counting(in_folder(&f, "b.bin"), 60, 100); /* 12 samples: 100, 105, ... */
    snprintf(path, sizeof path, "%s=0.25,%s=0.75", in_folder(&f, "a.bin"), in_folder(&f, "b.bin"));
    struct mx8_data_options o = make_options(path);
    struct mx8_data *d = open_options(&o);
    assert_int_equal(mx8i_count_tokens(d), 100);
    assert_int_equal(mx8i_count_samples(d), 20);
    assert_non_null(strstr(mx8i_describe_data(d), "25.0 % of 1 token shard"));
    for (int64_t p = 0; p < 80; p++) {
        int32_t first = read_first(d, p);
        int b = first >= 100;
        assert_int_equal(first, b ? 100 + 5 * (given[1] % 12) : 5 * (given[0] % 8));
        given[b]++;
    }
    assert_true(given[0] == 20 && given[1] == 60);
    mx8i_close_data(d);

    snprintf(path, sizeof path, "%s,%s", in_folder(&f, "a.bin"), in_folder(&f, "b.bin")); /* by size: 2 to 3 */
    d = open_options(&o);
    given[0] = given[1] = 0;
    for (int64_t p = 0; p < 20; p++) given[read_first(d, p) >= 100]++;
    assert_true(given[0] == 8 && given[1] == 12);
    mx8i_close_data(d);
    remove_folder(&f);
}

/* Every pass holds the samples that it holds without the shuffle, in an order of its own; any sample can be asked for
 * at any time. The corpus is no whole number of samples, so that passes are cut at different places. */
static void test_shuffle(void **state) {
    (void)state;
    enum { TOTAL = 203, N = 40 };
    struct folder f = make_folder();
    int64_t same_place = 0, same_as_before = 0;
    int32_t plain[3][N], mixed[3][N], from[3][N];
    write_counting(in_folder(&f, "a.bin"), TOTAL, 0);
    struct mx8_data_options o = make_options(in_folder(&f, "a.bin"));
    struct mx8_data *in_order = open_options(&o);
    o.shuffle = 1;
    struct mx8_data *shuffled = open_options(&o);
    assert_non_null(strstr(mx8i_describe_data(shuffled), "shuffled"));
    for (int pass = 0; pass < 3; pass++) {
        int seen[TOTAL] = {0};
        for (int64_t i = N - 1; i >= 0; i--) {
            plain[pass][i] = read_first(in_order, pass * N + i);
            mixed[pass][i] = read_first(shuffled, pass * N + i);
            seen[plain[pass][i]]++;
            seen[mixed[pass][i]]--;
            same_place += plain[pass][i] == mixed[pass][i];
        }
        for (int i = 0; i < N; i++) {
            for (int k = 0; k < N; k++)
                if (mixed[pass][i] == plain[pass][k]) from[pass][i] = k;
            same_as_before += pass > 0 && from[pass][i] == from[pass - 1][i];
        }
        for (int i = 0; i < TOTAL; i++) assert_int_equal(seen[i], 0);
    }
    assert_int_equal(plain[1][0], 200); /* the tokens that the first pass left over begin the second */
    assert_in_range(same_place, 0, 15);
    assert_in_range(same_as_before, 0, 12);
    for (int i = 0; i < N; i++) assert_int_equal(read_first(shuffled, i), mixed[0][i]);
    o.seed = 8;
    struct mx8_data *other = open_options(&o);
    int64_t alike = 0;
    for (int i = 0; i < N; i++) alike += read_first(other, i) == mixed[0][i];
    assert_in_range(alike, 0, 8);
    mx8i_close_data(other);
    mx8i_close_data(shuffled);
    mx8i_close_data(in_order);
    remove_folder(&f);
}

static void test_hash_tells_data_apart(void **state) {
    (void)state;
    struct folder f = make_folder();
    char path[600], hash[9][65];
    int n = 0;
    write_counting(in_folder(&f, "a.bin"), 40, 0);
    write_counting(in_folder(&f, "b.bin"), 60, 100);
    mkdir(in_folder(&f, "sub"), 0777);
    write_counting(in_folder(&f, "sub/a.bin"), 40, 0);
    struct mx8_data_options o = make_options(path), elsewhere = make_options(in_folder(&f, "sub/a.bin"));
#define HASH(options)                                                                                                  \
    do {                                                                                                               \
        struct mx8_data *d_ = open_options(&(options));                                                                \
        memcpy(hash[n++], mx8i_get_data_hash(d_), sizeof hash[0]);                                                     \
        mx8i_close_data(d_);                                                                                           \
    } while (0)
    snprintf(path, sizeof path, "%s", in_folder(&f, "a.bin"));
    HASH(o);
    HASH(elsewhere);
    o.seed = 8;
    HASH(o);
    assert_string_equal(hash[0], hash[1]);
    assert_string_equal(hash[0], hash[2]); /* without a shuffle the seed changes no sample */
    n = 1;
    o.shuffle = 1;
    HASH(o);
    o.seed = 9;
    HASH(o);
    o.seq_len = 5;
    HASH(o);
    snprintf(path, sizeof path, "%s=1,%s=2", in_folder(&f, "a.bin"), in_folder(&f, "b.bin"));
    HASH(o);
    snprintf(path, sizeof path, "%s=1,%s=3", in_folder(&f, "a.bin"), in_folder(&f, "b.bin"));
    HASH(o);
    snprintf(path, sizeof path, "%s=3,%s=1", in_folder(&f, "b.bin"), in_folder(&f, "a.bin"));
    HASH(o);
    o.document_end = 3;
    HASH(o);
    write_counting(in_folder(&f, "a.bin"), 41, 0);
    HASH(o);
    assert_int_equal(n, 9);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) assert_string_not_equal(hash[i], hash[k]);
    remove_folder(&f);
}

/* ---- manifests ---- */

static void write_manifest(const char *path, const char *tokenizer, const char *shards, const char *complete) {
    char text[1000];
    int n = snprintf(text, sizeof text,
        "{\"format\": \"mx8 token shards\", \"complete\": %s, \"made_from\": {\"tokenizer\": %s}, \"shards\": [%s]}",
        complete, tokenizer, shards);
    write_file(path, text, (size_t)n);
}

#define TOKENIZER(hash, vocabulary, eos) "{\"sha256\": \"" hash "\", \"vocabulary\": " vocabulary ", \"eos\": " eos "}"
#define LISTED                           "{\"file\": \"t.bin\", \"bytes\": 40}"

/* Which token ends documents, seen by the ids of documents. */
static int64_t find_document_end(struct mx8_data *d) {
    int32_t tokens[SEQ], targets[SEQ], docs[SEQ];
    for (int64_t p = 0; p < 4; p++) {
        assert_ok(mx8i_read_sample(d, p, tokens, targets, docs));
        for (int i = 1; i < SEQ; i++)
            if (docs[i] > docs[i - 1]) return tokens[i - 1];
    }
    return -1;
}

static void test_document_ends(void **state) {
    (void)state;
    struct folder f = make_folder();
    write_counting(in_folder(&f, "t.bin"), 20, 0);
    struct mx8_data_options o = make_options(f.path), single = make_options(in_folder(&f, "t.bin"));
    static const char foreign[] = "{\"files\": [1]}";
    struct mx8_data *d = open_options(&o);
    assert_int_equal(find_document_end(d), -1); /* 257, which is not there */
    mx8i_close_data(d);
    write_file(in_folder(&f, "manifest.json"), foreign, sizeof foreign - 1); /* not ours: not looked at */
    d = open_options(&o);
    assert_int_equal(find_document_end(d), -1);
    mx8i_close_data(d);
    write_manifest(in_folder(&f, "manifest.json"), TOKENIZER("aa", "290", "7"), LISTED, "true");
    d = open_options(&o);
    assert_int_equal(find_document_end(d), 7);
    assert_non_null(strstr(mx8i_describe_data(d), "documents end with 7"));
    assert_null(strstr(mx8i_describe_data(d), "has not finished"));
    mx8i_close_data(d);
    d = open_options(&single);
    assert_int_equal(find_document_end(d), 7);
    mx8i_close_data(d);
    o.document_end = 11;
    d = open_options(&o);
    assert_int_equal(find_document_end(d), 11);
    mx8i_close_data(d);
    write_manifest(in_folder(&f, "manifest.json"), TOKENIZER("aa", "290", "7"), LISTED, "false");
    d = open_options(&o);
    assert_non_null(strstr(mx8i_describe_data(d), "has not finished"));
    mx8i_close_data(d);
    o.document_end = V;
    assert_status(mx8i_open_data(&o, &d), MX8_INVALID_ARGUMENT);
    assert_message("documents end with token 300");
    remove_folder(&f);
}

static void test_lying_manifests(void **state) {
    (void)state;
    static const struct {
        const char *tokenizer, *shards;
        enum mx8_status status, alone; /* of the folder, of its shard by itself */
        const char *message;
    } cases[] = {
        {TOKENIZER("aa", "301", "7"), LISTED, MX8_INVALID_ARGUMENT, MX8_INVALID_ARGUMENT, "has 301 ids"},
        {TOKENIZER("aa", "290", "290"), LISTED, MX8_FORMAT_ERROR, MX8_FORMAT_ERROR, "eos is 290"},
        {TOKENIZER("aa", "\"290\"", "7"), LISTED, MX8_FORMAT_ERROR, MX8_FORMAT_ERROR, "lacks one of"},
        {"{\"eos\": 7}", LISTED, MX8_FORMAT_ERROR, MX8_FORMAT_ERROR, "lacks one of"},
        {TOKENIZER("aa", "290", "7"), LISTED ", {\"file\": \"u.bin\", \"bytes\": 8}", MX8_IO_ERROR, MX8_OK, "u.bin"},
        {TOKENIZER("aa", "290", "7"), "{\"file\": \"t.bin\", \"bytes\": 44}", MX8_FORMAT_ERROR, MX8_FORMAT_ERROR,
            "with 44 bytes, the file has 40"},
        {"{\"eos\": ", LISTED, MX8_FORMAT_ERROR, MX8_FORMAT_ERROR, "line 1"},
    };
    struct folder f = make_folder();
    write_counting(in_folder(&f, "t.bin"), 20, 0);
    struct mx8_data_options o = make_options(f.path), single = make_options(in_folder(&f, "t.bin"));
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mx8_data *d;
        write_manifest(in_folder(&f, "manifest.json"), cases[i].tokenizer, cases[i].shards, "true");
        assert_status(mx8i_open_data(&o, &d), cases[i].status);
        assert_message(cases[i].message);
        assert_message("manifest.json");
        assert_status(mx8i_open_data(&single, &d), cases[i].alone);
        mx8i_close_data(d);
    }
    remove_folder(&f);
}

/* Ids of one tokenizer mean nothing to another. */
static void test_tokenizers_are_not_mixed(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_data *d;
    char path[600];
    static const char *const folders[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        mkdir(in_folder(&f, folders[i]), 0777);
        snprintf(name, sizeof name, "%s/t.bin", folders[i]);
        write_counting(in_folder(&f, name), 20, 0);
        snprintf(name, sizeof name, "%s/manifest.json", folders[i]);
        write_manifest(
            in_folder(&f, name), i < 2 ? TOKENIZER("aa", "290", "7") : TOKENIZER("bb", "290", "7"), LISTED, "true");
    }
    write_file(in_folder(&f, "text"), "text", 4);
    struct mx8_data_options o = make_options(path);
    snprintf(path, sizeof path, "%s,%s", in_folder(&f, "a"), in_folder(&f, "b"));
    mx8i_close_data(open_options(&o));
    snprintf(path, sizeof path, "%s,%s", in_folder(&f, "a"), in_folder(&f, "c"));
    assert_status(mx8i_open_data(&o, &d), MX8_INVALID_ARGUMENT);
    assert_message("made by tokenizer aa");
    snprintf(path, sizeof path, "%s,%s", in_folder(&f, "a"), in_folder(&f, "text"));
    assert_status(mx8i_open_data(&o, &d), MX8_INVALID_ARGUMENT);
    assert_message("bytes");
    snprintf(path, sizeof path, "%s", f.path); /* folders below one source */
    o.dataset = "shards";
    assert_status(mx8i_open_data(&o, &d), MX8_INVALID_ARGUMENT);
    assert_message("/c/manifest.json");
    remove_folder(&f);
}

/* ---- files that are many, huge, or change ---- */

/* More shards than may be open, and few file descriptors: each sample is a shard. */
static void test_many_shards(void **state) {
    (void)state;
    enum { SHARDS = 250 };
    struct folder f = make_folder();
    struct rlimit before, few = {.rlim_cur = 160};
    for (int i = 0; i < SHARDS; i++) {
        char name[32];
        snprintf(name, sizeof name, "%03d.bin", i);
        write_counting(in_folder(&f, name), SEQ + 1, i);
    }
    getrlimit(RLIMIT_NOFILE, &before);
    few.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_NOFILE, &few);
    struct mx8_data_options o = make_options(f.path);
    o.shuffle = 1;
    struct mx8_data *d = open_options(&o);
    for (int pass = 0; pass < 3; pass++) {
        int seen[SHARDS] = {0};
        for (int i = 0; i < SHARDS; i++) seen[read_first(d, pass * SHARDS + i)]++;
        for (int i = 0; i < SHARDS; i++) assert_int_equal(seen[i], 1);
    }
    mx8i_close_data(d);
    setrlimit(RLIMIT_NOFILE, &before);
    remove_folder(&f);
}

/* A file with holes: `tokens` uint16 that are 0, but for five from `at` on. */
static void write_sparse(const char *path, int64_t tokens, int64_t at) {
    static const uint16_t marks[SEQ + 1] = {11, 12, 13, 14, 15};
    int file = open(path, O_CREAT | O_WRONLY, 0666);
    assert_true(file >= 0 && ftruncate(file, 2 * tokens) == 0);
    assert_int_equal(pwrite(file, marks, sizeof marks, 2 * at), sizeof marks);
    close(file);
}

static void test_more_tokens_than_32_bits(void **state) {
    (void)state;
    const int64_t big = INT64_C(5) * 900000000; /* 9 GB that take a page */
    struct folder f = make_folder();
    write_sparse(in_folder(&f, "a.bin"), big, big - 5);
    write_sparse(in_folder(&f, "b.bin"), big, 5);
    struct mx8_data_options o = make_options(f.path);
    struct mx8_data *d = open_options(&o);
    assert_int_equal(mx8i_count_tokens(d), 2 * big);
    assert_int_equal(read_first(d, big / 5 - 2), 0);
    assert_int_equal(read_first(d, big / 5 - 1), 11);
    assert_int_equal(read_first(d, big / 5), 0);
    assert_int_equal(read_first(d, big / 5 + 1), 11);
    assert_int_equal(read_first(d, 7 * (2 * big / 5) + big / 5 + 1), 11); /* seven passes later */
    mx8i_close_data(d);
    remove_folder(&f);
}

static void truncate_it(const char *path) {
    assert_int_equal(truncate(path, 30), 0);
}
static void grow_it(const char *path) {
    assert_int_equal(truncate(path, 60), 0);
}
static void rewrite_it(const char *path) {
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}}; /* a clock's tick may be long */
    write_counting(path, 20, 50);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void test_files_that_change(void **state) {
    (void)state;
    static const struct {
        void (*change)(const char *path);
        const char *message;
    } cases[] = {{truncate_it, "had 40 bytes when the run began, and has 30 now"},
        {grow_it, "had 40 bytes when the run began, and has 60 now"}, {rewrite_it, "written to since the run began"}};
    struct folder f = make_folder();
    for (size_t i = 0; i < COUNT(cases); i++) {
        int32_t tokens[SEQ], targets[SEQ];
        const char *path = in_folder(&f, "x.bin");
        write_counting(path, 20, 0);
        struct mx8_data_options o = make_options(path);
        struct mx8_data *d = open_options(&o);
        assert_int_equal(read_first(d, 1), 5);
        cases[i].change(path);
        assert_status(mx8i_read_sample(d, 0, tokens, targets, NULL), MX8_IO_ERROR);
        assert_message(cases[i].message);
        assert_message("x.bin");
        mx8i_close_data(d);
    }
    remove_folder(&f);
}

/* A large text file is read in place, too; a small one was kept and may change. */
static void test_text_that_changes(void **state) {
    (void)state;
    struct folder f = make_folder();
    size_t size = (2 << 20);
    char *bytes = malloc(size);
    int32_t tokens[SEQ], targets[SEQ];
    memset(bytes, 'x', size);
    write_file(in_folder(&f, "large"), bytes, size);
    write_file(in_folder(&f, "small"), "abc", 3);
    free(bytes);
    struct mx8_data_options o = make_options(f.path);
    struct mx8_data *d = open_options(&o);
    assert_int_equal(truncate(in_folder(&f, "large"), 100), 0);
    assert_int_equal(truncate(in_folder(&f, "small"), 0), 0);
    assert_status(mx8i_read_sample(d, 0, tokens, targets, NULL), MX8_IO_ERROR);
    assert_message("large");
    assert_ok(mx8i_read_sample(d, (2 << 20) / 5 + 1, tokens, targets, NULL)); /* begins behind the small file's mark */
    assert_true(tokens[0] == 'a' && tokens[2] == 'c' && tokens[3] == MX8_EOS && targets[3] == MX8_BOS);
    mx8i_close_data(d);
    remove_folder(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixture),
        cmocka_unit_test(test_shuffle),
        cmocka_unit_test(test_hash_tells_data_apart),
        cmocka_unit_test(test_document_ends),
        cmocka_unit_test(test_lying_manifests),
        cmocka_unit_test(test_tokenizers_are_not_mixed),
        cmocka_unit_test(test_many_shards),
        cmocka_unit_test(test_more_tokens_than_32_bits),
        cmocka_unit_test(test_files_that_change),
        cmocka_unit_test(test_text_that_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
