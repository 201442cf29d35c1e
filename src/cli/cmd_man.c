/* The manual page, made of what --help says. */
#include <stdio.h>
#include <string.h>
#include "base/options_private.h"
#include "cli/cli.h"

static const char usage[] = "usage: mx8 man\n\n"
                            "Prints the manual page, which `make install` puts in place: mx8 man | man -l -\n";

static const char about[] =
    "mx8 trains Mixture-of-Experts language models in MXFP8: blocks of 32 values share one power-of-two scale, and\n"
    "matrix products run on 8-bit numbers. One program trains, compares recipes, benchmarks its own kernels, "
    "quantizes\n"
    "files, turns text into token shards and writes reports. Settings of a job have the sections and names of\n"
    "torchtitan's TOML files; a later source wins: default, TOML file, flag.\n";

static const char *const environment[][2] = {
    {"MX8_ISA", "scalar, avx2 or avx512: the CPU kernels to use instead of the best that the CPU has."},
    {"OMP_NUM_THREADS", "CPU threads, where no flag says how many."},
    {"MX8_CUDA_LIBRARY", "path of libmx8_cuda.so, instead of the one beside the program."},
    {"NO_COLOR", "when set, no colours on the terminal."},
};
static const char *const exits[][2] = {
    {"0", "done"}, {"1", "failed"}, {"2", "wrong command line"}, {"130", "interrupted by a signal"}};

/* Text that roff must leave alone. */
static void print_text(const char *text) {
    int start = 1;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        start = *text == '\n';
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else if (*text == '\'')
            fputs("\\(aq", stdout);
        else if (*text == '`')
            fputs("\\(ga", stdout);
        else
            putchar(*text);
    }
}

static void print_pairs(const char *heading, const char *const (*pair)[2], size_t n) {
    printf(".SH %s\n", heading);
    for (size_t i = 0; i < n; i++) {
        printf(".TP\n.B ");
        print_text(pair[i][0]);
        putchar('\n');
        print_text(pair[i][1]);
        putchar('\n');
    }
}

static void print_option(const struct mx8_option *o) {
    char takes[256];
    mx8i_describe_option(o, takes, sizeof takes);
    printf(".TP\n.B \\-\\-");
    print_text(o->key);
    putchar('\n');
    print_text(o->help ? o->help : "");
    printf(".\nTakes ");
    print_text(takes);
    if (o->value && *o->value) {
        printf("; default ");
        print_text(o->value);
    }
    printf(".\n");
    if (o->alias) {
        printf("Also written as ");
        print_text(o->alias);
        printf(".\n");
    }
}

static void print_command(const struct mx8_command *c, const struct mx8_option **seen) {
    struct mx8_help h;
    if (!mx8i_ask_help(c, &h)) return;
    printf(".SH MX8 ");
    for (const char *at = c->name; *at; at++) putchar(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    putchar('\n');
    print_text(c->summary);
    printf(".\n.PP\n.nf\n");
    print_text(h.usage);
    printf(".fi\n");
    if (h.table && h.table == *seen) {
        printf(".PP\nThe options are those of mx8 train.\n");
    } else {
        for (int32_t i = 0; h.table && i < h.count; i++) print_option(&h.table[i]);
        if (strcmp(c->name, "train") == 0) *seen = h.table;
    }
    mx8i_release_help(&h);
}

int mx8i_run_man(int argc, char **argv) {
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, NULL, 0);
    if (argc > 1) return mx8i_report_usage("man", "unexpected \"%s\"", argv[1]);
    const struct mx8_option *seen = NULL;
    printf(".TH MX8 1 \"\" \"mx8 %s\" \"User Commands\"\n", mx8_get_version_text());
    printf(".SH NAME\nmx8 \\- trains mixture\\-of\\-experts language models in MXFP8\n");
    printf(".SH SYNOPSIS\n.B mx8\n.I command\n.RI [ flags ]\n.SH DESCRIPTION\n");
    print_text(about);
    for (int32_t i = 0; i < mx8i_command_count; i++) {
        printf(".TP\n.B %s\n", mx8i_commands[i].name);
        print_text(mx8i_commands[i].summary);
        printf(".\n");
    }
    for (int32_t i = 0; i < mx8i_command_count; i++) print_command(&mx8i_commands[i], &seen);
    print_pairs("ENVIRONMENT", environment, sizeof environment / sizeof environment[0]);
    print_pairs("EXIT STATUS", exits, sizeof exits / sizeof exits[0]);
    return MX8_EXIT_OK;
}
