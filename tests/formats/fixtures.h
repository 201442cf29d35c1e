/* Reference data made by torchao, found by name; and comparison of codes. */
#ifndef MX8_FORMATS_FIXTURES_H
#define MX8_FORMATS_FIXTURES_H

#include "test.h"
#include "base/safetensors.h"

static struct mx8_safetensors fixtures;

static inline int open_fixtures(const char *file) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", MX8_TEST_DATA, file);
    if (mx8i_open_safetensors(path, &fixtures) == MX8_OK) return 0;
    fprintf(stderr, "%s\n", mx8_get_last_error());
    return -1;
}

static inline int close_fixtures(void **state) {
    (void)state;
    mx8i_close_safetensors(&fixtures);
    return 0;
}

/* The tensor called by a printf format. A missing one fails the test: names are part of what is tested. */
static inline const struct mx8_st_entry *get_fixture(const char *format, ...)
    __attribute__((format(printf, 1, 2), unused));
static inline const struct mx8_st_entry *get_fixture(const char *format, ...) {
    char name[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    const struct mx8_st_entry *entry = mx8i_find_tensor(&fixtures, name);
    if (!entry) fail_msg("no tensor %s", name);
    return entry;
}

static inline void *make_bytes(size_t size) {
    void *bytes = malloc(size > 0 ? size : 1);
    assert_non_null(bytes);
    memset(bytes, 0xA5, size);
    return bytes;
}

/* torchao leaves the sign of a NaN code open. */
static inline void check_codes(const struct mx8_st_entry *want, const uint8_t *got, int32_t format) {
    int largest = format == MX8_F8_E5M2 ? 0x7C : 0x7E;
    const uint8_t *bytes = want->data;
    for (size_t i = 0; i < want->size; i++) {
        int both_nan = (bytes[i] & 0x7F) > largest && (got[i] & 0x7F) > largest;
        if (bytes[i] != got[i] && !both_nan)
            fail_msg("%s: 0x%02X at %zu, expected 0x%02X", want->name, got[i], i, bytes[i]);
    }
}

static inline void check_bytes(const struct mx8_st_entry *want, const void *got) {
    const uint8_t *a = want->data, *b = got;
    for (size_t i = 0; i < want->size; i++) {
        if (a[i] != b[i]) fail_msg("%s: 0x%02X at byte %zu, expected 0x%02X", want->name, b[i], i, a[i]);
    }
}

#endif
