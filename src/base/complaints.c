#include "base/complaints.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST_TEXT = 200 }; /* bytes of one complaint: names of tensors are longer than words, but no essays */

void mx8i_complain(struct mx8_complaints *c, const char *format, ...) {
    static const char more[] = "; ...";
    const size_t used = strlen(c->text), room = sizeof c->text - sizeof more;
    c->count++;
    if (used + 2 + MOST_TEXT > room) {
        if (used < 4 || strcmp(c->text + used - 3, "...") != 0) memcpy(c->text + used, more, sizeof more);
        return;
    }
    const size_t at = used ? used + 2 : 0;
    va_list args;
    if (used) memcpy(c->text + used, "; ", 2);
    va_start(args, format);
    vsnprintf(c->text + at, MOST_TEXT, format, args);
    va_end(args);
}

const char *mx8i_format_shape(char text[64], int32_t ndim, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, 64, "(");
    for (int32_t i = 0; i < ndim; i++) {
        if (used > 64 - 30) { /* a separator, a number of any size, the end */
            used += (size_t)snprintf(text + used, 64 - used, ", ...");
            break;
        }
        used += (size_t)snprintf(text + used, 64 - used, i ? ", %lld" : "%lld", (long long)shape[i]);
    }
    snprintf(text + used, 64 - used, ")");
    return text;
}
