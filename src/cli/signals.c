#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "cli/cli.h"

static volatile sig_atomic_t stopping;

static void ask_to_stop(int signal_number) {
    (void)signal_number;
    stopping = 1;
}

void mx8i_catch_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = ask_to_stop;
    action.sa_flags = (int)SA_RESETHAND; /* the second Ctrl-C must work even when a step hangs */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* Files are read through maps: a page of one that was cut meanwhile cannot be read. Only calls that handlers may make.
 */
static void explain_bus_error(int signal_number) {
    static const char text[] =
        "mx8: a file was cut while it was being read (or memory is damaged); nothing was saved\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    _exit(written > 0 && signal_number == SIGBUS ? MX8_EXIT_FAILURE : MX8_EXIT_USAGE);
}

void mx8i_expect_file_errors(void) {
    signal(SIGBUS, explain_bus_error);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond its limit is an error of write, which says so and loses nothing */
}

int mx8i_is_stopping(void) {
    return stopping;
}
