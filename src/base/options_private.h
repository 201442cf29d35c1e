/* What options.c, options_parse.c and options_help.c share. */
#ifndef MX8_BASE_OPTIONS_PRIVATE_H
#define MX8_BASE_OPTIONS_PRIVATE_H
#include <stddef.h>
#include "base/options.h"

/* Row of the option with that key or alias, '-' and '_' alike; -1: none. */
int32_t mx8i_find_option(const struct mx8_options *o, const char *key, size_t size);
/* INVALID_ARGUMENT for a key that is not in the table, with the nearest that is. `shown` begins the message. */
enum mx8_status mx8i_fail_unknown_option(const struct mx8_options *o, const char *shown, const char *key, size_t size);
/* Whether text is one of the words in "a|b|c"; choices may be NULL. */
int mx8i_is_choice(const char *choices, const char *text);
/* What an option takes, for messages and help: "an integer from 1 to 8 or none". */
void mx8i_describe_option(const struct mx8_option *option, char *text, size_t size);
/* Checks and stores a value of row `index`. */
enum mx8_status mx8i_set_option_row(struct mx8_options *o, int32_t index, const char *text, const char *source);
#endif
