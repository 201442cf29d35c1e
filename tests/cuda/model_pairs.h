/* What the comparisons of model kernels share: both dtypes, lengths, and the name of a case. */
#ifndef MX8_MODEL_PAIRS_H
#define MX8_MODEL_PAIRS_H

#include "pairs.h"

static const int32_t dtypes[] = {MX8_F32, MX8_BF16};
static const int64_t lengths[] = {0, 1, 31, 33, 4099, 300000};

static inline const char *describe(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline const char *describe(const char *format, ...) {
    static char text[200];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return text;
}

#endif
