#include "cli/terminal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "base/clock.h"

#define CLEAR_LINE "\r\033[K"

void mx8i_open_terminal(struct mx8_terminal *t) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    memset(t, 0, sizeof *t);
    t->tty = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    t->color = t->tty && !(no_color && *no_color);
    setvbuf(stdout, NULL, _IOLBF, 0); /* a pipe's reader sees each line when it happens */
}

int mx8i_get_terminal_width(void) {
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

static void erase(const struct mx8_terminal *t) {
    if (t->status[0]) fputs(CLEAR_LINE, stdout);
}

static void draw(const struct mx8_terminal *t) {
    if (t->status[0]) {
        /* the last column stays free: some terminals wrap when it is written */
        int width = mx8i_get_terminal_width() - 1;
        fprintf(stdout, "%s%.*s%s", t->color ? "\033[1m" : "", width, t->status, t->color ? "\033[0m" : "");
    }
    fflush(stdout);
}

void mx8i_print_line(struct mx8_terminal *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    erase(t);
    vfprintf(stdout, format, arguments);
    fputc('\n', stdout);
    draw(t);
    va_end(arguments);
}

void mx8i_show_status(struct mx8_terminal *t, int now, const char *format, ...) {
    va_list arguments;
    double time = mx8i_get_seconds();
    if (!t->tty || (!now && t->status[0] && time - t->drawn < 0.1)) return;
    erase(t);
    va_start(arguments, format);
    vsnprintf(t->status, sizeof t->status, format, arguments);
    va_end(arguments);
    t->drawn = time;
    draw(t);
}

void mx8i_clear_status(struct mx8_terminal *t) {
    erase(t);
    t->status[0] = 0;
    fflush(stdout);
}

static void write_log_line(void *user, const char *line) {
    struct mx8_terminal *t = user;
    char time[32];
    if (t->bare) {
        mx8i_print_line(t, "%s", line);
        return;
    }
    mx8i_format_time(time);
    mx8i_print_line(
        t, "%s[titan] %s - root - INFO - %s%s", t->color ? "\033[2m" : "", time, t->color ? "\033[0m" : "", line);
}

struct mx8_log mx8i_log_to_terminal(struct mx8_terminal *t) {
    return (struct mx8_log){.write = write_log_line, .user = t};
}
