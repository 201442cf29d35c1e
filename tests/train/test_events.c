/* Event files, byte by byte: checksums, frames, messages. tests/python reads them with the tensorboard package itself.
 */
#include "train/job_testing.h"
#include "base/file.h"
#include "base/memory.h"
#include "train/events.h"

static void test_crc32c(void **state) {
    (void)state;
    uint8_t bytes[32] = {0};
    assert_int_equal(mx8i_compute_crc32c("123456789", 9), 0xE3069283u);
    assert_int_equal(mx8i_compute_crc32c("", 0), 0);
    assert_int_equal(mx8i_compute_crc32c(bytes, 32), 0x8A9136AAu); /* RFC 3720, B.4 */
    memset(bytes, 0xFF, 32);
    assert_int_equal(mx8i_compute_crc32c(bytes, 32), 0x62A8AB43u);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    assert_int_equal(mx8i_compute_crc32c(bytes, 32), 0x46DD794Eu);
    assert_int_equal(mx8i_mask_crc32c(0), 0xA282EAD8u);
    assert_int_equal(mx8i_mask_crc32c(0x12345678u), (0x12345678u >> 15 | 0x12345678u << 17) + 0xA282EAD8u);
}

static uint64_t get_little(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

static void test_frames(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 7, 300};
    uint8_t data[300], record[316];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        mx8i_frame_record(record, data, sizes[i]);
        assert_int_equal(get_little(record, 8), sizes[i]);
        assert_int_equal(get_little(record + 8, 4), mx8i_mask_crc32c(mx8i_compute_crc32c(record, 8)));
        if (sizes[i]) assert_memory_equal(record + 12, data, sizes[i]);
        assert_int_equal(get_little(record + 12 + sizes[i], 4), mx8i_mask_crc32c(mx8i_compute_crc32c(data, sizes[i])));
    }
}

static void test_file(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_events e;
    const struct mx8_scalar scalars[] = {{"lr", 0.5}, {"a(%)", -2}};
    assert_ok(mx8i_open_events(in_folder(&f, "tb/now"), 0, &e));
    assert_non_null(strstr(e.path, "/tb/now/events.out.tfevents."));
    assert_ok(mx8i_write_events(&e, 300, scalars, 2));
    assert_ok(mx8i_write_events(&e, 301, scalars, 0));

    char *text;
    size_t size;
    assert_ok(mx8i_read_file(e.path, 1000, &text, &size)); /* on disk before the file is closed */
    const uint8_t *at = (const uint8_t *)text;
    assert_int_equal(get_little(at, 8), 24);
    assert_int_equal(at[12], 0x09); /* wall_time: field 1, 8 bytes */
    assert_memory_equal(at + 21,
        "\x1a\x0d"
        "brain.Event:2",
        15);
    at += 24 + 16;
    static const uint8_t expected[] = {0x10, 0xAC, 0x02, /* step: field 2, 300 as a varint */
        0x2A, 24,                                        /* summary: field 5, 24 bytes */
        0x0A, 9, 0x0A, 2, 'l', 'r', 0x15, 0, 0, 0, 0x3F, /* value: tag, then 0.5f */
        0x0A, 11, 0x0A, 4, 'a', '(', '%', ')', 0x15, 0, 0, 0, 0xC0};
    assert_int_equal(get_little(at, 8), 9 + sizeof expected);
    assert_memory_equal(at + 12 + 9, expected, sizeof expected);
    assert_int_equal((const char *)at + 9 + sizeof expected + 16 + 9 + 5 + 16 - text, size);
    mx8i_release(text);

    char long_tag[200];
    memset(long_tag, 'x', sizeof long_tag - 1);
    long_tag[sizeof long_tag - 1] = 0;
    const struct mx8_scalar bad = {long_tag, 1};
    assert_status(mx8i_write_events(&e, 1, &bad, 1), MX8_INVALID_ARGUMENT);
    assert_status(mx8i_write_events(&e, 1, scalars, 65), MX8_INVALID_ARGUMENT);
    mx8i_close_events(&e);
    mx8i_close_events(&e);
    remove_folder(&f);
}

/* A run that goes on: its file comes after the one before by name, and begins with the step that counts from here. */
static void test_going_on(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_events e[3];
    char *text;
    size_t size;
    write_file(in_folder(&f, "events.out.tfevents.x"), "", 0); /* no time: left out of the comparison */
    for (int i = 0; i < 3; i++) {
        assert_ok(mx8i_open_events(f.path, i ? 300 : 0, &e[i]));
        if (i) assert_true(strcmp(e[i - 1].path, e[i].path) < 0);
    }
    assert_ok(mx8i_read_file(e[1].path, 1000, &text, &size));
    static const uint8_t expected[] = {0x10, 0xAC, 0x02, /* step */
        0x3A, 2, 0x08, 1};                               /* session_log: field 7 { status: field 1, START } */
    const uint8_t *at = (const uint8_t *)text + 24 + 16;
    assert_int_equal(get_little(at, 8), 9 + sizeof expected);
    assert_memory_equal(at + 12 + 9, expected, sizeof expected);
    assert_int_equal(size, 24 + 16 + 9 + sizeof expected + 16);
    mx8i_release(text);
    for (int i = 0; i < 3; i++) mx8i_close_events(&e[i]);
    remove_folder(&f);
}

static void test_no_folder(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_events e;
    write_file(in_folder(&f, "file"), "", 0);
    assert_status(mx8i_open_events(in_folder(&f, "file/tb"), 0, &e), MX8_IO_ERROR);
    assert_message("file");
    mx8i_close_events(&e);
    remove_folder(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_crc32c), cmocka_unit_test(test_frames),
        cmocka_unit_test(test_file), cmocka_unit_test(test_going_on), cmocka_unit_test(test_no_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
