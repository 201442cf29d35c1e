/* A log sink that the caller installs: nothing below cli writes to a terminal by itself. */
#ifndef MX8_BASE_LOG_H
#define MX8_BASE_LOG_H
typedef void (*mx8_log_function)(void *user, const char *line); /* one line, without newline */
struct mx8_log { mx8_log_function write; void *user; };           /* write NULL: silent */
void mx8i_log(const struct mx8_log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));
#endif
