/* Words of the command line, failing, and small formatting that subcommands share. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "cli/cli.h"

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
    if (s < 60)
        snprintf(buffer, 32, "%llds", (long long)s);
    else if (s < 3600)
        snprintf(buffer, 32, "%lldm %02llds", (long long)(s / 60), (long long)(s % 60));
    else
        snprintf(buffer, 32, "%lldh %02lldm", (long long)(s / 3600), (long long)(s / 60 % 60));
    return buffer;
}

int32_t mx8i_find_scale_rule(const char *name) {
    static const char *const names[] = {
        [MX8_SCALE_RCEIL] = "rceil", [MX8_SCALE_FLOOR] = "floor", [MX8_SCALE_CEIL] = "ceil", [MX8_SCALE_EVEN] = "even"};
    for (int32_t i = 0; i < (int32_t)(sizeof names / sizeof names[0]); i++)
        if (strcmp(names[i], name) == 0) return i;
    return MX8_SCALE_RCEIL;
}
