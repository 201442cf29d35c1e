/* Failing with a message. MX8_FAIL records the text for mx8_get_last_error() and yields the status:
 *     if (k < 0) return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8_quantize_rows: K is %lld, expected >= 0", (long long)k);
 *     MX8_TRY(other_function());          returns from the caller when it fails */
#ifndef MX8_BASE_ERROR_H
#define MX8_BASE_ERROR_H

#include "mx8/status.h"

#ifdef __clang_analyzer__ /* sees one file at a time: a failure is one, whatever it thinks of mx8i_fail */
#define MX8_FAIL(status, ...) (mx8i_fail((status), __VA_ARGS__), (status))
#else
#define MX8_FAIL(status, ...) mx8i_fail((status), __VA_ARGS__)
#endif
#define MX8_TRY(expression)                               \
    do {                                                  \
        enum mx8_status mx8_try_status_ = (expression);   \
        if (mx8_try_status_ != MX8_OK) return mx8_try_status_; \
    } while (0)

/* Stores a message of at most 1023 bytes (longer ones end in "...") for this thread; returns status. */
enum mx8_status mx8i_fail(enum mx8_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* Puts "text: " before the stored message: context on the way up. Returns status. */
enum mx8_status mx8i_fail_prefix(enum mx8_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

#endif
