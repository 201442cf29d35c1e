/* Records of text, lines and JSON lines, plain and compressed; damage is named with its file and place. */
#include "train/job_testing.h"
#include "base/memory.h"
#include "train/corpus.h"

/* Text of the next record, or NULL at the end; in a static buffer. */
static const char *next(struct mx8_corpus *c, int64_t line) {
    static char text[4096];
    struct mx8_record r;
    int found;
    assert_ok(mx8i_next_record(c, &r, &found));
    if (!found) return NULL;
    assert_true(r.size < sizeof text);
    memcpy(text, r.data, r.size);
    text[r.size] = 0;
    assert_int_equal(r.line, line);
    return text;
}

static struct mx8_corpus *open_one(const char *path, enum mx8_corpus_format format) {
    struct mx8_corpus *c;
    assert_ok(mx8i_open_corpus(&path, 1, format, &c));
    return c;
}

static void test_text(void **state) {
    (void)state;
    struct folder f = make_folder();
    mkdir(in_folder(&f, "in"), 0777);
    mkdir(in_folder(&f, "in/b"), 0777);
    write_file(in_folder(&f, "in/c"), "third\n", 6);
    write_file(in_folder(&f, "in/b/x"), "second", 6);
    write_file(in_folder(&f, "in/a"), "first", 5);
    write_file(in_folder(&f, "in/empty"), "", 0);
    write_file(in_folder(&f, "last"), "last", 4);
    const char *paths[] = {in_folder(&f, "in"), in_folder(&f, "last")};
    struct mx8_corpus *c;
    assert_ok(mx8i_open_corpus(paths, 2, MX8_CORPUS_AUTO, &c));
    assert_int_equal(mx8i_count_corpus_files(c), 5);
    assert_int_equal(mx8i_count_corpus_bytes(c), 21);
    assert_string_equal(next(c, 0), "first");
    assert_string_equal(next(c, 0), "second");
    assert_string_equal(next(c, 0), "third\n");
    assert_string_equal(next(c, 0), "last");
    assert_null(next(c, 0));
    assert_null(next(c, 0));
    assert_int_equal(mx8i_count_corpus_read(c), 21);
    mx8i_close_corpus(c);

    paths[0] = in_folder(&f, "none");
    assert_status(mx8i_open_corpus(paths, 1, MX8_CORPUS_AUTO, &c), MX8_IO_ERROR);
    assert_message("/none");
    mkdir(in_folder(&f, "hollow"), 0777);
    paths[0] = in_folder(&f, "hollow");
    assert_status(mx8i_open_corpus(paths, 1, MX8_CORPUS_AUTO, &c), MX8_INVALID_ARGUMENT);
    assert_null(c);
    remove_folder(&f);
}

static void test_lines(void **state) {
    (void)state;
    static const char text[] = "one\ntwo\r\n\n\r\nfive";
    struct folder f = make_folder();
    write_file(in_folder(&f, "x"), text, sizeof text - 1);
    struct mx8_corpus *c = open_one(in_folder(&f, "x"), MX8_CORPUS_LINES);
    assert_string_equal(next(c, 1), "one");
    assert_string_equal(next(c, 2), "two");
    assert_string_equal(next(c, 5), "five");
    assert_null(next(c, 0));
    mx8i_close_corpus(c);
    remove_folder(&f);
}

static void test_json(void **state) {
    (void)state;
    static const struct {
        const char *line, *words;
        size_t size;
        enum mx8_status status;
    } rows[] = {
        {"{\"text\": \"a\\u00e9\\ud83d\\ude00\\u0000b\", \"n\": 1}", "", 9, MX8_OK},
        {"  {\"text\": \"\"}  ", "", 0, MX8_OK},
        {"{\"body\": \"a\"}", "line 7: no text in a field \"text\"", 0, MX8_FORMAT_ERROR},
        {"{\"text\": 5}", "line 7: no text", 0, MX8_FORMAT_ERROR},
        {"[1]", "line 7: no text", 0, MX8_FORMAT_ERROR},
        {"{\"text\": \"a", "line 7, byte", 0, MX8_FORMAT_ERROR},
        {"{\"text\": \"\xff\"}", "line 7, byte", 0, MX8_FORMAT_ERROR},
        {"{\"text\": \"\\ud800\"}", "line 7, byte", 0, MX8_FORMAT_ERROR},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mx8_record r = {
            .data = (const uint8_t *)rows[i].line, .size = strlen(rows[i].line), .path = "f", .line = 7};
        char *text;
        size_t size;
        assert_status(mx8i_read_json_field(&r, "text", &text, &size), rows[i].status);
        if (rows[i].status == MX8_OK)
            assert_int_equal(size, rows[i].size);
        else
            assert_message(rows[i].words);
        if (rows[i].status == MX8_OK) mx8i_release(text);
    }
    struct folder f = make_folder();
    struct mx8_record r;
    int found;
    static const char *const names[] = {"a.jsonl", "b.ndjson", "c.json", "d.txt"};
    for (size_t i = 0; i < COUNT(names); i++) write_file(in_folder(&f, names[i]), "{}\n", 3);
    struct mx8_corpus *c = open_one(f.path, MX8_CORPUS_AUTO);
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_ok(mx8i_next_record(c, &r, &found));
        assert_true(found);
        assert_int_equal(r.is_json, i < 3);
    }
    mx8i_close_corpus(c);
    remove_folder(&f);
}

/* Compresses with the tool of that name; 0: there is none. */
static int compress(const struct folder *f, const char *tool, const char *from, const char *to) {
    char command[1024];
    snprintf(command, sizeof command, "%s -c %s/%s >>%s/%s 2>/dev/null", tool, f->path, from, f->path, to);
    return system(command) == 0;
}

static void check_compressed(const char *tool, const char *name, const char *library) {
    struct folder f = make_folder();
    const char *path = in_folder(&f, name);
    struct mx8_corpus *c;
    struct mx8_record r;
    int found;
    size_t size = 3 << 20; /* longer than a chunk */
    char *bytes = malloc(size);
    for (size_t i = 0; i < size; i++) bytes[i] = i % 100001 == 100000 ? '\n' : (char)('a' + i * i % 23);
    write_file(in_folder(&f, "plain"), bytes, size);
    if (!compress(&f, tool, "plain", name)) { /* no such tool here: nothing to read */
        free(bytes);
        remove_folder(&f);
        return;
    }
    c = open_one(path, MX8_CORPUS_TEXT);
    enum mx8_status status = mx8i_next_record(c, &r, &found);
    if (status == MX8_UNSUPPORTED) { /* this build lacks the library and says so */
        assert_message(library);
    } else {
        assert_ok(status);
        assert_int_equal(r.size, size);
        assert_memory_equal(r.data, bytes, size);
        assert_null(next(c, 0));
        mx8i_close_corpus(c);

        assert_true(compress(&f, tool, "plain", name)); /* a second member behind the first */
        c = open_one(path, MX8_CORPUS_LINES);
        size_t lines = 0, total = 0;
        for (found = 1; found; lines += found, total += found ? r.size : 0) assert_ok(mx8i_next_record(c, &r, &found));
        assert_int_equal(total, 2 * (size - 31));
        assert_int_equal(lines, 63); /* the first copy's last line goes on in the second's first */
        assert_int_equal(mx8i_count_corpus_read(c), mx8i_count_corpus_bytes(c));
        mx8i_close_corpus(c);

        FILE *file = fopen(path, "r+");
        assert_non_null(file);
        fseek(file, 0, SEEK_END);
        assert_int_equal(ftruncate(fileno(file), ftell(file) - 20), 0);
        fclose(file);
        c = open_one(path, MX8_CORPUS_TEXT);
        assert_status(mx8i_next_record(c, &r, &found), MX8_FORMAT_ERROR);
        assert_message(path);
        assert_message("ends early");
        mx8i_close_corpus(c);

        file = fopen(path, "r+");
        fseek(file, 5000, SEEK_SET);
        for (int i = 0; i < 2000; i++) fputc(0x5A, file);
        fclose(file);
        c = open_one(path, MX8_CORPUS_TEXT);
        assert_status(mx8i_next_record(c, &r, &found), MX8_FORMAT_ERROR);
        assert_message("byte ");
    }
    mx8i_close_corpus(c);
    free(bytes);
    remove_folder(&f);
}

static void test_compressed(void **state) {
    (void)state;
    check_compressed("gzip", "x.gz", "zlib1g-dev");
    check_compressed("zstd -q", "x.zst", "libzstd-dev");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_lines),
        cmocka_unit_test(test_json), cmocka_unit_test(test_compressed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
