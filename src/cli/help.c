/* Help of a subcommand: for people on stdout, and for the manual and shell completion, which are made of it. */
#include <stdio.h>
#include <string.h>
#include "base/memory.h"
#include "cli/cli.h"

static struct mx8_help *collected; /* where help goes instead of stdout, while mx8i_ask_help waits for it */

int mx8i_wants_help(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return 1;
    return 0;
}

int mx8i_print_help(const char *usage, const struct mx8_option *table, int32_t count) {
    struct mx8_options options;
    if (collected) {
        *collected = (struct mx8_help){.usage = mx8i_copy_text(usage), .table = table, .count = count};
        return collected->usage ? MX8_EXIT_OK : MX8_EXIT_FAILURE;
    }
    fputs(usage, stdout);
    if (table && mx8i_open_options(table, count, &options) == MX8_OK) {
        int width = mx8i_get_terminal_width();
        fputc('\n', stdout);
        mx8i_print_options(&options, stdout, NULL, width < 60 ? 60 : width > 120 ? 120 : width);
        mx8i_close_options(&options);
    }
    return MX8_EXIT_OK;
}

int mx8i_ask_help(const struct mx8_command *command, struct mx8_help *out) {
    char name[32], asked[] = "--help";
    char *argv[] = {name, asked, NULL};
    snprintf(name, sizeof name, "%s", command->name);
    *out = (struct mx8_help){0};
    collected = out;
    int code = command->run(2, argv);
    collected = NULL;
    return code == MX8_EXIT_OK && out->usage;
}

void mx8i_release_help(struct mx8_help *h) {
    mx8i_release(h->usage);
    *h = (struct mx8_help){0};
}

const char *mx8i_next_flag(const char *text, size_t *size) {
    for (const char *at = strstr(text, "--"); at; at = strstr(at + 2, "--")) {
        *size = 2 + strspn(at + 2, "abcdefghijklmnopqrstuvwxyz0123456789-_");
        char before = at == text ? ' ' : at[-1];
        /* a flag of the command itself: no dots, and no dash that is a part of something else */
        if (*size > 3 && at[*size] != '.' && !strchr("-`", before)) return at;
    }
    return NULL;
}
