/* What every test program includes before anything else of its own. */
#ifndef MX8_TEST_H
#define MX8_TEST_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "mx8/mx8.h"

/* Fails with mx8's own message when a call does not return `expected`. */
#define assert_status(expression, expected)                                                                    \
    do {                                                                                                        \
        enum mx8_status got_ = (expression);                                                                    \
        if (got_ != (expected))                                                                                 \
            fail_msg("%s gave %s, expected %s: %s", #expression, mx8_get_status_name(got_),                     \
                     mx8_get_status_name(expected), mx8_get_last_error());                                      \
    } while (0)
#define assert_ok(expression) assert_status(expression, MX8_OK)
/* The last message must contain every word given. */
#define assert_message(text)                                                                                    \
    do {                                                                                                        \
        if (!strstr(mx8_get_last_error(), text))                                                                \
            fail_msg("message \"%s\" does not contain \"%s\"", mx8_get_last_error(), text);                     \
    } while (0)
#endif
