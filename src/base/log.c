/* One formatted line to the installed sink. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void mx8i_log(const struct mx8_log *log, const char *format, ...) {
    if (!log || !log->write) return;
    char line[4096]; /* a longer line is cut: logging must not fail and so must not allocate */
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length >= 0) log->write(log->user, line);
}
