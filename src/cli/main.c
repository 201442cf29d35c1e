/* mx8: one executable, a table of subcommands. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "cli/cli.h"

static const struct mx8_command commands[] = {
    {"train", "train a Llama4-style mixture of experts", mx8i_run_train},
    {"compare", "train the same model with several recipes and compare them", mx8i_run_compare},
    {"report", "write an HTML report of finished runs", mx8i_run_report},
    {"bench", "time one operator on one problem, and check its result", mx8i_run_bench},
    {"quantize", "quantize a safetensors file to MXFP8", mx8i_run_quantize},
    {"info", "show what this machine has and what mx8 makes of it", mx8i_run_info},
    {"ops", "list the operators", mx8i_run_ops},
};
#define N_COMMANDS ((int)(sizeof commands / sizeof commands[0]))

static void print_usage(FILE *out) {
    fprintf(out, "mx8 %s: trains mixture-of-experts language models in MXFP8\n\n"
                 "usage: mx8 COMMAND [FLAGS]\n\n", mx8_get_version_text());
    for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n  mx8 COMMAND --help explains a command, mx8 --version prints the version\n"
                 "  exit codes: 0 done, 1 failed, 2 wrong command line, 130 interrupted\n");
}

static const struct mx8_command *find_command(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

/* The command that shares the longest beginning with the word, when that is at least two letters. */
static const char *suggest_command(const char *word) {
    const char *best = NULL;
    size_t best_length = 1;
    for (int i = 0; i < N_COMMANDS; i++) {
        size_t length = 0;
        while (word[length] && word[length] == commands[i].name[length]) length++;
        if (length > best_length) {
            best = commands[i].name;
            best_length = length;
        }
    }
    return best;
}

int mx8i_wants_help(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return 1;
    return 0;
}

static void drop_words(int *argc, char **argv, int at, int n) {
    memmove(&argv[at], &argv[at + n], (size_t)(*argc - at - n) * sizeof *argv);
    *argc -= n;
}

int mx8i_take_word(int *argc, char **argv, const char *name) {
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            drop_words(argc, argv, i, 1);
            return 1;
        }
    }
    return 0;
}

int mx8i_take_value(int *argc, char **argv, const char *name, const char **value) {
    size_t length = strlen(name);
    for (int i = 1; i < *argc; i++) {
        if (strncmp(argv[i], name, length) != 0) continue;
        if (argv[i][length] == '=') {
            *value = argv[i] + length + 1;
            drop_words(argc, argv, i, 1);
            return 1;
        }
        if (argv[i][length] == 0) {
            if (i + 1 >= *argc) return 0;
            *value = argv[i + 1];
            drop_words(argc, argv, i, 2);
            return 1;
        }
    }
    return 1;
}

int mx8i_print_help(const char *usage, const struct mx8_option *table, int32_t count) {
    struct mx8_options options;
    fputs(usage, stdout);
    if (table && mx8i_open_options(table, count, &options) == MX8_OK) {
        int width = mx8i_get_terminal_width();
        fputc('\n', stdout);
        mx8i_print_options(&options, stdout, NULL, width < 60 ? 60 : width > 120 ? 120 : width);
        mx8i_close_options(&options);
    }
    return MX8_EXIT_OK;
}

int mx8i_report_failure(const char *command, enum mx8_status status, int code) {
    const char *text = mx8_get_last_error();
    fflush(stdout);
    fprintf(stderr, "mx8 %s: %s\n", command, *text ? text : mx8_get_status_name(status));
    return status == MX8_INTERRUPTED ? MX8_EXIT_INTERRUPTED : code;
}

int mx8i_report_usage(const char *command, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "mx8 %s: ", command);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n`mx8 %s --help` shows what it takes\n", command);
    va_end(arguments);
    return MX8_EXIT_USAGE;
}

char *mx8i_format_count(char buffer[32], int64_t value) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0 && digits[i - 1] != '-') buffer[at++] = ',';
        buffer[at++] = digits[i];
    }
    buffer[at] = 0;
    return buffer;
}

char *mx8i_format_duration(char buffer[32], double seconds) {
    int64_t s = seconds > 0 ? (int64_t)(seconds + 0.5) : 0;
    if (s < 60) snprintf(buffer, 32, "%llds", (long long)s);
    else if (s < 3600) snprintf(buffer, 32, "%lldm %02llds", (long long)(s / 60), (long long)(s % 60));
    else snprintf(buffer, 32, "%lldh %02lldm", (long long)(s / 3600), (long long)(s / 60 % 60));
    return buffer;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return MX8_EXIT_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("mx8 %s\n", mx8_get_version_text());
        return MX8_EXIT_OK;
    }
    int help = strcmp(word, "help") == 0;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (help && argc == 2)) {
        print_usage(stdout);
        return MX8_EXIT_OK;
    }
    if (help) word = argv[2];
    const struct mx8_command *command = find_command(word);
    if (!command) {
        const char *near = suggest_command(word);
        fprintf(stderr, "mx8: there is no command \"%s\"", word);
        if (near) fprintf(stderr, "; did you mean \"%s\"?", near);
        fprintf(stderr, "\n`mx8 --help` lists the commands\n");
        return MX8_EXIT_USAGE;
    }
    char asked[] = "--help";
    char *help_argv[] = {argv[0], asked, NULL};
    int code = help ? command->run(2, help_argv) : command->run(argc - 1, argv + 1);
    /* output that could not be written (a full disk behind a redirect) is a failure too */
    if (fflush(stdout) != 0 && code == MX8_EXIT_OK) code = MX8_EXIT_FAILURE;
    return code;
}
