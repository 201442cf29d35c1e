/* What the subcommands share: exit codes, help, failing, and running one training job under a terminal. */
#ifndef MX8_CLI_CLI_H
#define MX8_CLI_CLI_H

#include "base/options.h"
#include "cli/terminal.h"
#include "train/loop.h"

enum mx8_exit { MX8_EXIT_OK = 0, MX8_EXIT_FAILURE = 1, MX8_EXIT_USAGE = 2, MX8_EXIT_INTERRUPTED = 130 };

/* One row of the subcommand table (main.c). argv[0] is the subcommand's name. */
struct mx8_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
};
extern const struct mx8_command mx8i_commands[];
extern const int32_t mx8i_command_count;

int mx8i_run_train(int argc, char **argv);
int mx8i_run_compare(int argc, char **argv);
int mx8i_run_report(int argc, char **argv);
int mx8i_run_bench(int argc, char **argv);
int mx8i_run_bench_dist(int argc, char **argv); /* mx8 bench dist: bench_dist.c */
int mx8i_run_plan(int argc, char **argv);
int mx8i_run_info(int argc, char **argv);
int mx8i_run_ops(int argc, char **argv);
int mx8i_run_generate(int argc, char **argv);
int mx8i_run_convert(int argc, char **argv);
int mx8i_run_quantize(int argc, char **argv);
int mx8i_run_tokenize(int argc, char **argv);
int mx8i_run_detokenize(int argc, char **argv);
int mx8i_run_inspect(int argc, char **argv);
int mx8i_run_conformance(int argc, char **argv);
int mx8i_run_completion(int argc, char **argv);
int mx8i_run_man(int argc, char **argv);

/* 1 when -h, --help or help is among the words. */
int mx8i_wants_help(int argc, char **argv);
/* Takes the word `name` out of argv (the count in *argc falls); 1 when it was there. */
int mx8i_take_word(int *argc, char **argv, const char *name);
/* Takes `name VALUE` or `name=VALUE` out of argv. *value stays as it is when the flag is absent. 0 when VALUE lacks. */
int mx8i_take_value(int *argc, char **argv, const char *name, const char **value);
/* Prints usage, a blank line, and the option table (NULL: none) to stdout; returns MX8_EXIT_OK. */
int mx8i_print_help(const char *usage, const struct mx8_option *table, int32_t count);

/* What a command's --help is made of. */
struct mx8_help {
    char *usage;
    const struct mx8_option *table; /* NULL: none */
    int32_t count;
};
int mx8i_ask_help(const struct mx8_command *command, struct mx8_help *out); /* 0 when it has none */
void mx8i_release_help(struct mx8_help *h);
/* The next flag like "--recipes" that a usage text names and that is no key of a table with sections; NULL: no more. */
const char *mx8i_next_flag(const char *text, size_t *size);

/* "mx8 COMMAND: last error" to stderr. The exit code is 130 after an interrupt, else `code`. */
int mx8i_report_failure(const char *command, enum mx8_status status, int code);
/* A wrong command line: the text, then where to find help, to stderr; returns MX8_EXIT_USAGE. */
int mx8i_report_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* SIGINT and SIGTERM ask the job to stop after its step; the same signal again ends the process at once. A file that
 * reaches its size limit becomes an error of the write. */
void mx8i_catch_signals(void);
/* A file that shrinks while it is read, or grows beyond a limit, ends in a message: once, at the program's start. */
void mx8i_expect_file_errors(void);
int mx8i_is_stopping(void);

/* Resolves the options and runs the job: log lines and the status line on the terminal. `label` stands before the
 * status ("recipe 2/3 bf16"), may be NULL. *code is the exit code that a failure deserves. */
enum mx8_status mx8i_start_job(
    const struct mx8_options *o, struct mx8_terminal *t, const char *label, struct mx8_summary *out, int *code);
/* The memory plan of the same job, on stdout. */
enum mx8_status mx8i_show_plan(const struct mx8_options *o, struct mx8_terminal *t, int *code);

/* Scale rule of a name that an option table has let through. */
int32_t mx8i_find_scale_rule(const char *name);

/* 1234567 -> "1,234,567"; seconds -> "1m 23s". Both return buffer. */
char *mx8i_format_count(char buffer[32], int64_t value);
char *mx8i_format_duration(char buffer[32], double seconds);

#endif
