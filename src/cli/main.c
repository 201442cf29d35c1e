/* mx8: one executable, a table of subcommands. */
#include <stdio.h>
#include <string.h>
#include "cli/cli.h"

const struct mx8_command mx8i_commands[] = {
    {"train", "train a Llama4-style mixture of experts", mx8i_run_train},
    {"compare", "train the same model with several recipes and compare them", mx8i_run_compare},
    {"report", "write an HTML report of finished runs", mx8i_run_report},
    {"bench", "time one operator on one problem, and check its result", mx8i_run_bench},
    {"plan", "say what a job would take on GPUs that are not here", mx8i_run_plan},
    {"tokenize", "turn text into token shards", mx8i_run_tokenize},
    {"detokenize", "turn a token shard back into text", mx8i_run_detokenize},
    {"inspect", "show what a token shard or a checkpoint holds", mx8i_run_inspect},
    {"generate", "sample text from trained weights", mx8i_run_generate},
    {"convert", "turn weights into Hugging Face's, torchtitan's or MXFP8 form", mx8i_run_convert},
    {"quantize", "quantize a safetensors file to MXFP8", mx8i_run_quantize},
    {"info", "show what this machine has and what mx8 makes of it", mx8i_run_info},
    {"ops", "list the operators", mx8i_run_ops},
    {"conformance", "write test vectors of MXFP8, or check results of them", mx8i_run_conformance},
    {"completion", "print a completion script for bash or zsh", mx8i_run_completion},
    {"man", "print the manual page", mx8i_run_man},
};
#define N_COMMANDS ((int)(sizeof mx8i_commands / sizeof mx8i_commands[0]))
const int32_t mx8i_command_count = N_COMMANDS;

static void print_usage(FILE *out) {
    fprintf(out,
        "mx8 %s: trains mixture-of-experts language models in MXFP8\n\n"
        "usage: mx8 COMMAND [FLAGS]\n\n",
        mx8_get_version_text());
    for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-11s %s\n", mx8i_commands[i].name, mx8i_commands[i].summary);
    fprintf(out, "\n  mx8 COMMAND --help explains a command, mx8 --version prints the version\n"
                 "  exit codes: 0 done, 1 failed, 2 wrong command line, 130 interrupted with nothing saved\n");
}

static const struct mx8_command *find_command(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(mx8i_commands[i].name, name) == 0) return &mx8i_commands[i];
    return NULL;
}

/* The command that shares the longest beginning with the word, when that is at least two letters. */
static const char *suggest_command(const char *word) {
    const char *best = NULL;
    size_t best_length = 1;
    for (int i = 0; i < N_COMMANDS; i++) {
        size_t length = 0;
        while (word[length] && word[length] == mx8i_commands[i].name[length]) length++;
        if (length > best_length) {
            best = mx8i_commands[i].name;
            best_length = length;
        }
    }
    return best;
}

int main(int argc, char **argv) {
    mx8i_expect_file_errors();
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
