/* What tokenize, detokenize and inspect share. */
#ifndef MX8_CLI_TOKEN_TOOLS_H
#define MX8_CLI_TOKEN_TOOLS_H

#include <stdio.h>
#include "cli/cli.h"
#include "train/tokenizer.h"

/* Rows of the option tables. */
#define MX8_TOKENIZER_ROW                                                                                              \
    {                                                                                                                  \
        "tokenizer", MX8_OPT_TEXT, "bytes", NULL, 0, 0,                                                                \
            "bytes, a tokenizer.json or its folder, or a tiktoken rank file (*.model)", NULL                           \
    }
#define MX8_PATTERN_ROW                                                                                                \
    { "pattern", MX8_OPT_TEXT, "", NULL, 0, 0, "split pattern of a rank file; Llama 3's when left out", NULL }

/* NULL for an empty text: options that were not given. */
const char *mx8i_get_given(const struct mx8_options *o, const char *key);
/* The words of a command: its options, and between `least` and `most` others. *code is set when it returns 0. */
int mx8i_parse_command(struct mx8_options *o, const struct mx8_option *table, int32_t count, int argc, char **argv,
    const char **rest, int *n_rest, int least, int most, const char *needs, int *code);
/* All of standard input; release with mx8i_release. */
enum mx8_status mx8i_read_input(char **text, size_t *size);
/* The bytes of ids [0, n) as text; special tokens by their names unless `skip_special`. */
void mx8i_print_tokens(FILE *out, const struct mx8_tokenizer *t, const int32_t *id, int64_t n, int skip_special);

#endif
