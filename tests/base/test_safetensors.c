/* safetensors: what mx8 writes it reads back; what is not a safetensors file is refused with a reason. */
#include "scratch.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/safetensors.h"

/* A file of a header, as it stands, and `data` bytes 0, 1, 2, ... */
static const char *write_file(const char *header, size_t data) {
    static uint8_t bytes[8192];
    size_t length = strlen(header);
    memset(bytes, 0, 8);
    bytes[0] = (uint8_t)length;
    bytes[1] = (uint8_t)(length >> 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data; i++) bytes[8 + length + i] = (uint8_t)i;
    return scratch_write("case.safetensors", bytes, 8 + length + data);
}

#define F32(name, shape, begin, end)                                                                                   \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void test_malformed(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } rows[] = {
        {"", 0, "begin with '{'"},
        {" {}", 0, "begin with '{'"},
        {"[]", 0, "begin with '{'"},
        {"{", 0, "header, byte"},
        {"{}x", 0, "header, byte"},
        {"{\"\xFF\":1}", 0, "header, byte"},
        {"{\"a\\u0000b\":1}", 0, "header, byte"},
        {"{" F32("a", "[1]", 0, 4) "," F32("a", "[1]", 4, 8) "}", 8, "duplicate"},
        {"{}", 1, "file goes on"},
        {"{\"a\":1}", 0, "\"a\": has no dtype"},
        {"{\"a\":[[[{\"b\":[{}]}]]]}", 0, "\"a\": has no dtype"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "has no dtype"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "tensor \"a\": dtype \"F16\""},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape is no array"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", 4, "shape is no array"},
        {"{" F32("a", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "at most 8"},
        {"{" F32("a", "[-1]", 0, 4) "}", 4, "no integer >= 0"},
        {"{" F32("a", "[1.0]", 0, 4) "}", 4, "no integer >= 0"},
        {"{" F32("a", "[\"1\"]", 0, 4) "}", 4, "no integer >= 0"},
        {"{" F32("a", "[[1]]", 0, 4) "}", 4, "no integer >= 0"},
        {"{" F32("a", "[99999999999999999999]", 0, 4) "}", 4, "header, byte"},
        {"{" F32("a", "[4611686018427387904,4]", 0, 4) "}", 4, "overflows"},
        {"{" F32("a", "[4294967296,4294967296]", 0, 0) "}", 0, "overflows"},
        {"{" F32("a", "[0,4294967296,4294967296]", 0, 0) "}", 0, "overflows"},
        {"{" F32("a", "[2305843009213693952]", 0, 0) "}", 0, "overflows"},
        {"{" F32("a", "[1]", 0, 8) "}", 8, "holds 8 bytes"},
        {"{" F32("a", "[2]", 0, 4) "}", 4, "need 8"},
        {"{" F32("a", "[0]", 0, 4) "}", 4, "need 0"},
        {"{" F32("a", "[1]", 4, 0) "}", 4, "not inside"},
        {"{" F32("a", "[1]", -4, 0) "}", 4, "not inside"},
        {"{" F32("a", "[2]", 0, 8) "}", 4, "not inside"},
        {"{" F32("a", "[1]", 9223372036854775803, 9223372036854775807) "}", 4, "not inside"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "no pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "no pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 4, "no pair"},
        {"{" F32("a", "[2]", 0, 8) "," F32("b", "[1]", 4, 8) "}", 8, "\"b\": starts at byte 4 of the data, inside"},
        {"{" F32("a", "[1]", 0, 4) "," F32("b", "[1]", 0, 4) "}", 4, "inside another"},
        {"{" F32("a", "[1]", 0, 4) "," F32("b", "[1]", 8, 12) "}", 12, "after a hole"},
        {"{" F32("a", "[1]", 4, 8) "}", 8, "after a hole"},
        {"{" F32("a", "[1]", 0, 4) "," F32("b", "[0]", 2, 2) "}", 4, "inside another"},
        {"{" F32("a", "[1]", 0, 4) "}", 5, "file goes on"},
        {"{\"__metadata__\":[]}", 0, "__metadata__"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "\"a\" is no text"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *path = write_file(rows[i].header, rows[i].data);
        struct mx8_safetensors st;
        enum mx8_status status = mx8i_open_safetensors(path, &st);
        if (status != MX8_FORMAT_ERROR) fail_msg("%s gave %s", rows[i].header, mx8_get_status_name(status));
        if (!strstr(mx8_get_last_error(), rows[i].message) || strncmp(mx8_get_last_error(), path, strlen(path)) != 0)
            fail_msg("%s: message \"%s\", expected \"%s\"", rows[i].header, mx8_get_last_error(), rows[i].message);
        assert_null(st.map.data);
        mx8i_close_safetensors(&st); /* harmless after a failure */
    }
}

static void test_lying_lengths(void **state) {
    (void)state;
    static const uint64_t lengths[] = {3, 100, 100000001, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    struct mx8_safetensors st;
    for (size_t size = 0; size < 8; size++) {
        assert_status(mx8i_open_safetensors(scratch_write("short", "\2\0\0\0\0\0\0\0", size), &st), MX8_FORMAT_ERROR);
        assert_message("expected at least");
    }
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint8_t bytes[10] = "\0\0\0\0\0\0\0\0{}";
        for (int b = 0; b < 8; b++) bytes[b] = (uint8_t)(lengths[i] >> (8 * b));
        assert_status(mx8i_open_safetensors(scratch_write("lying", bytes, sizeof bytes), &st), MX8_FORMAT_ERROR);
        assert_message("expected at most 2");
    }
    const char *path = scratch_write("huge", "\1\xE1\xF5\5\0\0\0\0{", 9); /* 100,000,001 bytes, and they are there */
    assert_int_equal(truncate(path, 100000100), 0);
    assert_status(mx8i_open_safetensors(path, &st), MX8_FORMAT_ERROR);
    assert_message("expected at most 100000000");
    assert_status(mx8i_open_safetensors(scratch_path("absent"), &st), MX8_IO_ERROR);
}

static void test_legal_corners(void **state) {
    (void)state;
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(write_file("{}", 0), &st));
    assert_int_equal(st.count, 0);
    mx8i_close_safetensors(&st);
    /* order of the header, not of the data; empty tensors anywhere; blanks after the header; unknown fields */
    const char *header =
        "{" F32("z", "[1,2]", 4, 12) ",\"__metadata__\":{\"k\":\"v\",\"\":\"\"}," F32("e", "[3,0]", 4, 4) "," F32(
            "s", "[]", 0, 4) ",\"b\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[12,14],\"x\":null}," F32("f",
            "[0]", 14, 14) "}   ";
    const char *path = write_file(header, 14);
    assert_ok(mx8i_open_safetensors(path, &st));
    static const char *const names[] = {"z", "e", "s", "b", "f"};
    assert_int_equal(st.count, 5);
    for (int i = 0; i < 5; i++) assert_string_equal(st.entry[i].name, names[i]);
    assert_int_equal(((const uint8_t *)st.entry[0].data)[0], 4);
    assert_int_equal(st.entry[0].ndim, 2);
    assert_int_equal(st.entry[0].shape[1], 2);
    assert_int_equal(st.entry[1].size, 0);
    assert_int_equal(st.entry[2].ndim, 0);
    assert_int_equal(st.entry[3].dtype, MX8_U8);
    assert_int_equal(st.meta_count, 2);
    assert_string_equal(st.meta_key[0], "k");
    assert_string_equal(st.meta_value[0], "v");
    assert_ptr_equal(mx8i_find_tensor(&st, "s"), &st.entry[2]);
    assert_null(mx8i_find_tensor(&st, "__metadata__"));
    mx8i_close_safetensors(&st);
    mx8i_close_safetensors(&st);
    for (int n = 1, done = 0; !done; n++) {
        mx8i_fail_allocation(n, 0);
        enum mx8_status status = mx8i_open_safetensors(path, &st);
        mx8i_fail_allocation(0, 0);
        done = status == MX8_OK;
        assert_true(done || status == MX8_OUT_OF_MEMORY);
        if (!done) assert_message(path);
        mx8i_close_safetensors(&st);
    }
}

static void test_reference_file(void **state) {
    (void)state; /* written by the format's own library */
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(MX8_TEST_DATA "/quantize.safetensors", &st));
    assert_true(st.count > 0);
    mx8i_close_safetensors(&st);
}

static const struct mx8_st_entry described[] = {
    {.name = (char *)"w.\"quoted\"\\/\n", .dtype = MX8_BF16, .ndim = 2, .shape = {3, 5}},
    {.name = (char *)"empty first", .dtype = MX8_F32, .ndim = 3, .shape = {4, 0, 7}},
    {.name = (char *)"\xC3\xA9", .dtype = MX8_F8_E8M0, .ndim = 1, .shape = {7}},
    {.name = (char *)"scalar", .dtype = MX8_I64, .ndim = 0},
    {.name = (char *)"codes", .dtype = MX8_F8_E4M3, .ndim = 8, .shape = {1, 2, 1, 2, 1, 2, 1, 2}},
    {.name = (char *)"grads", .dtype = MX8_F8_E5M2, .ndim = 1, .shape = {1}},
    {.name = (char *)"doubles", .dtype = MX8_F64, .ndim = 1, .shape = {2}},
    {.name = (char *)"ints", .dtype = MX8_I32, .ndim = 1, .shape = {3}},
    {.name = (char *)"bytes", .dtype = MX8_U8, .ndim = 1, .shape = {9}},
    {.name = (char *)"last", .dtype = MX8_F32, .ndim = 1, .shape = {0}},
};
enum { DESCRIBED = sizeof described / sizeof described[0], BYTES = 30 + 7 + 8 + 16 + 1 + 16 + 12 + 9 };

static void test_round_trip(void **state) {
    (void)state;
    static const size_t sizes[DESCRIBED] = {30, 0, 7, 8, 16, 1, 16, 12, 9, 0};
    const char *const metadata[] = {"format", "pt", "step", "12", NULL};
    uint8_t bytes[BYTES];
    for (size_t i = 0; i < BYTES; i++) bytes[i] = (uint8_t)(i * 37);
    for (size_t piece = 1; piece <= 64; piece *= 4) {
        struct mx8_st_writer w;
        assert_ok(mx8i_begin_safetensors(scratch_path("trip"), described, DESCRIBED, metadata, &w));
        const uint8_t *at = bytes;
        for (int i = 0; i < DESCRIBED; i++) {
            if (sizes[i] == 0) assert_ok(mx8i_write_tensor(&w, NULL, 0));
            for (size_t done = 0; done < sizes[i];) {
                size_t now = sizes[i] - done < piece ? sizes[i] - done : piece;
                assert_ok(mx8i_write_tensor(&w, at, now));
                done += now;
                at += now;
            }
        }
        assert_status(mx8i_write_tensor(&w, bytes, 1), MX8_INVALID_ARGUMENT);
        assert_ok(mx8i_commit_safetensors(&w));
        struct mx8_safetensors st;
        assert_ok(mx8i_open_safetensors(scratch_path("trip"), &st));
        assert_int_equal(st.count, DESCRIBED);
        assert_int_equal(((const uint8_t *)st.entry[0].data - st.map.data) % 64, 0);
        for (int i = 0; i < DESCRIBED; i++) {
            const struct mx8_st_entry *got = &st.entry[i], *want = &described[i];
            assert_string_equal(got->name, want->name);
            assert_true(got->dtype == want->dtype && got->ndim == want->ndim && got->size == sizes[i]);
            assert_memory_equal(got->shape, want->shape, sizeof got->shape);
        }
        assert_memory_equal(st.entry[0].data, bytes, BYTES);
        assert_int_equal(st.meta_count, 2);
        assert_string_equal(st.meta_value[1], "12");
        mx8i_close_safetensors(&st);
    }
    struct mx8_st_writer w; /* nothing at all is a file, too */
    struct mx8_safetensors st;
    assert_ok(mx8i_begin_safetensors(scratch_path("nothing"), NULL, 0, NULL, &w));
    assert_ok(mx8i_commit_safetensors(&w));
    assert_ok(mx8i_open_safetensors(scratch_path("nothing"), &st));
    mx8i_close_safetensors(&st);
}

static void test_writer_errors(void **state) {
    (void)state;
    static const struct {
        struct mx8_st_entry entry[2];
        const char *message;
    } rows[] = {
        {{{.name = (char *)"a", .dtype = 77}, {.name = (char *)"b"}}, "77 is no dtype"},
        {{{.name = (char *)"a", .ndim = 9}, {.name = (char *)"b"}}, "ndim is 9"},
        {{{.name = (char *)"a", .ndim = -1}, {.name = (char *)"b"}}, "ndim is -1"},
        {{{.name = (char *)"a", .ndim = 1, .shape = {-2}}, {.name = (char *)"b"}}, "negative"},
        {{{.name = (char *)"a", .ndim = 2, .shape = {INT64_MAX, 2}}, {.name = (char *)"b"}}, "overflows"},
        {{{.name = (char *)"a", .dtype = MX8_U8, .ndim = 1, .shape = {INT64_MAX}}, {.name = (char *)"b"}}, "together"},
        {{{.name = (char *)"a"}, {.name = (char *)"a"}}, "\"a\" is given twice"},
        {{{.name = (char *)"\xFF"}, {.name = (char *)"a"}}, "UTF-8"},
        {{{.name = (char *)"__metadata__"}, {.name = (char *)"a"}}, "reserved"},
    };
    struct mx8_st_writer w;
    const char *path = scratch_path("wrong");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_status(mx8i_begin_safetensors(path, rows[i].entry, 2, NULL, &w), MX8_INVALID_ARGUMENT);
        assert_message(path);
        assert_message(rows[i].message);
        mx8i_abandon_safetensors(&w);
    }
    const char *const bad_metadata[] = {"k", "\xFF", NULL};
    assert_status(mx8i_begin_safetensors(path, described, 1, bad_metadata, &w), MX8_INVALID_ARGUMENT);
    assert_status(mx8i_begin_safetensors(scratch_path("no/folder"), described, 1, NULL, &w), MX8_IO_ERROR);

    uint8_t bytes[31] = {0}; /* missing and surplus bytes; no file is left in either case */
    assert_ok(mx8i_begin_safetensors(path, described, DESCRIBED, NULL, &w));
    assert_status(mx8i_write_tensor(&w, bytes, 31), MX8_INVALID_ARGUMENT);
    assert_message("expected at most 30");
    assert_ok(mx8i_write_tensor(&w, bytes, 30));
    assert_status(mx8i_commit_safetensors(&w), MX8_INVALID_ARGUMENT);
    assert_message("not complete");
    mx8i_abandon_safetensors(&w);
    for (int n = 1, done = 0; !done; n++) {
        mx8i_fail_allocation(n, 0);
        enum mx8_status status = mx8i_begin_safetensors(path, described, DESCRIBED, NULL, &w);
        mx8i_fail_allocation(0, 0);
        done = status == MX8_OK;
        assert_true(done || status == MX8_OUT_OF_MEMORY);
        mx8i_abandon_safetensors(&w);
    }
    char **files;
    int64_t count;
    assert_ok(mx8i_list_files(scratch_folder, NULL, &files, &count));
    for (int64_t i = 0; i < count; i++) assert_null(strstr(files[i], "wrong"));
    mx8i_release_list(files, count);
}

/* Every prefix of a good file is refused, and no flipped byte of it does worse than change what is read. */
static void test_damaged_files(void **state) {
    (void)state;
    const char *header = "{\"__metadata__\":{\"k\":\"v\"}," F32("a", "[2,1]", 0, 8) "," F32("b", "[1]", 8, 12) "}";
    struct mx8_safetensors st;
    char *good;
    size_t size;
    assert_ok(mx8i_read_file(write_file(header, 12), 8192, &good, &size));
    for (size_t cut = 0; cut < size; cut++)
        assert_status(mx8i_open_safetensors(scratch_write("cut", good, cut), &st), MX8_FORMAT_ERROR);
    for (size_t i = 0; i < size; i++)
        for (int bit = 0; bit < 8; bit += 2) {
            good[i] = (char)(good[i] ^ 1 << bit);
            enum mx8_status status = mx8i_open_safetensors(scratch_write("flip", good, size), &st);
            assert_true(status == MX8_OK || status == MX8_FORMAT_ERROR);
            size_t total = 0;
            for (int64_t e = 0; status == MX8_OK && e < st.count; e++) total += st.entry[e].size;
            assert_true(status != MX8_OK || total == 12);
            mx8i_close_safetensors(&st);
            good[i] = (char)(good[i] ^ 1 << bit);
        }
    mx8i_release(good);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_lying_lengths),
        cmocka_unit_test(test_legal_corners),
        cmocka_unit_test(test_reference_file),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_writer_errors),
        cmocka_unit_test(test_damaged_files),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
