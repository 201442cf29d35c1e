#include <signal.h>
#include <string.h>
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
    signal(SIGXFSZ, SIG_IGN); /* a file beyond its limit is an error of write, which says so and loses nothing */
}

int mx8i_is_stopping(void) {
    return stopping;
}
