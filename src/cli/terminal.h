/* Where the user looks: log lines, and on a terminal one status line below them that is redrawn in place. Piped output
 * is plain lines without escape codes. */
#ifndef MX8_CLI_TERMINAL_H
#define MX8_CLI_TERMINAL_H

#include <stdint.h>
#include "base/log.h"

struct mx8_terminal {
    int32_t tty;      /* stdout is a terminal that can redraw a line */
    int32_t color;    /* and may show colours: no NO_COLOR in the environment */
    int32_t bare;     /* log lines without torchtitan's prefix */
    double drawn;     /* when the status line was drawn last */
    char status[256]; /* what it says; "" when there is none */
};

void mx8i_open_terminal(struct mx8_terminal *t);
/* One line above the status line. */
void mx8i_print_line(struct mx8_terminal *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Replaces the status line, at most ten times a second unless `now`. Does nothing when piped. */
void mx8i_show_status(struct mx8_terminal *t, int now, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Removes it, so that other output can follow. */
void mx8i_clear_status(struct mx8_terminal *t);
/* A log sink: lines with torchtitan's prefix, "[titan] 2025-09-18 12:34:56,789 - root - INFO - ". */
struct mx8_log mx8i_log_to_terminal(struct mx8_terminal *t);
int mx8i_get_terminal_width(void); /* 80 when unknown */

#endif
