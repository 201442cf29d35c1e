/* The calling thread's last error message, the names of the statuses, and the version of the library. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_SIZE = 1024 };

static _Thread_local char last_message[MESSAGE_SIZE];

/* Marks a text that did not fit with "...", without leaving half a UTF-8 character before the dots. */
static void mark_cut(char *text) {
    size_t end = MESSAGE_SIZE - 4;
    while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80) end--;
    memcpy(text + end, "...", 4);
}

/* Formats beside the stored message and copies at the end: the arguments may point into the stored message. */
static void store(const char *tail, const char *format, va_list arguments) {
    char text[MESSAGE_SIZE];
    int wanted = vsnprintf(text, sizeof text, format, arguments);
    size_t length = wanted < 0 ? 0 : (size_t)wanted;
    if (length < sizeof text && tail) {
        int added = snprintf(text + length, sizeof text - length, ": %s", tail);
        length += added < 0 ? 0 : (size_t)added;
    }
    if (wanted < 0) text[0] = 0;
    if (length >= sizeof text) mark_cut(text);
    memcpy(last_message, text, strlen(text) + 1);
}

enum mx8_status mx8i_fail(enum mx8_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    store(NULL, format, arguments);
    va_end(arguments);
    return status;
}

enum mx8_status mx8i_fail_prefix(enum mx8_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    store(last_message, format, arguments);
    va_end(arguments);
    return status;
}

const char *mx8_get_last_error(void) {
    return last_message;
}

const char *mx8_get_status_name(enum mx8_status status) {
    static const struct {
        enum mx8_status status;
        const char *name;
    } rows[] = {
#define ROW(name) {name, #name}
        ROW(MX8_OK),
        ROW(MX8_INVALID_ARGUMENT),
        ROW(MX8_UNSUPPORTED),
        ROW(MX8_OUT_OF_MEMORY),
        ROW(MX8_WORKSPACE_TOO_SMALL),
        ROW(MX8_IO_ERROR),
        ROW(MX8_FORMAT_ERROR),
        ROW(MX8_NOT_FINITE),
        ROW(MX8_CUDA_ERROR),
        ROW(MX8_LIBRARY_ERROR),
        ROW(MX8_COMM_ERROR),
        ROW(MX8_INTERRUPTED),
        ROW(MX8_INTERNAL),
#undef ROW
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].status == status) return rows[i].name;
    return "MX8_UNKNOWN";
}

int mx8_get_version(void) {
    return MX8_VERSION;
}

#define TEXT_OF(number)       #number
#define VERSION_TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *mx8_get_version_text(void) {
    return VERSION_TEXT(MX8_VERSION_MAJOR, MX8_VERSION_MINOR, MX8_VERSION_PATCH);
}
