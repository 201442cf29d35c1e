/* What is wrong with a file, as one error: the first complaints word by word, then their number alone. */
#ifndef MX8_BASE_COMPLAINTS_H
#define MX8_BASE_COMPLAINTS_H

#include <stddef.h>
#include <stdint.h>

struct mx8_complaints {
    char text[768]; /* "a; b; c", and "; ..." when not all of them fit */
    int64_t count;
};

void mx8i_complain(struct mx8_complaints *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "(2, 64, 32)"; a shape that is too long ends in "...". Returns text. */
const char *mx8i_format_shape(char text[64], int32_t ndim, const int64_t *shape);

#endif
