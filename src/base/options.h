/* One option table drives TOML files, --section.key flags, --help and the manual.
 * Flags: `--section.key value`, `--section.key=value`, '-' and '_' alike, booleans `--s.k`, `--s.k=true|false`,
 * `--s.no-k`. TOML: a table per section. Later sources win: default < TOML < flag. Unknown keys fail with the nearest
 * known key. Lists are comma separated in flags and arrays (or comma separated text) in TOML. */
#ifndef MX8_BASE_OPTIONS_H
#define MX8_BASE_OPTIONS_H
#include <stdint.h>
#include <stdio.h>
#include "mx8/status.h"

enum mx8_option_type { MX8_OPT_INT, MX8_OPT_FLOAT, MX8_OPT_BOOL, MX8_OPT_TEXT, MX8_OPT_CHOICE, MX8_OPT_LIST };

struct mx8_option {
    const char *key;            /* "training.steps" */
    enum mx8_option_type type;
    const char *value;          /* default as text; "" for none */
    const char *choices;        /* CHOICE: "sigmoid|softmax"; INT and FLOAT: "none" or "auto" style words also legal, or NULL */
    double min, max;            /* INT, FLOAT; min == max: no limits */
    const char *help;           /* one line */
    const char *alias;          /* another spelling of the key, or NULL; several separated by spaces */
};

struct mx8_value {
    const char *text;
    const char *source;         /* "default", path of the TOML, "command line" */
    int32_t set;
    char *block;                /* what owns text and source; NULL: the table does */
};

struct mx8_options {
    const struct mx8_option *table; /* outlives this */
    int32_t count;
    struct mx8_value *value;
    int32_t *slot;              /* rows by the hash of their keys and aliases, -1: none */
    uint32_t mask;
};

enum mx8_status mx8i_open_options(const struct mx8_option *table, int32_t count, struct mx8_options *out);
void mx8i_close_options(struct mx8_options *o);
/* argv without the program and subcommand. Words that are no flag go to rest (up to rest_max; more is an error). A flag
 * named `config_key` ("job.config_file") is looked for first and its TOML is read before the flags are applied. */
enum mx8_status mx8i_parse_flags(struct mx8_options *o, int argc, char **argv, const char *config_key,
                                 const char **rest, int *rest_count, int rest_max);
enum mx8_status mx8i_parse_toml_file(struct mx8_options *o, const char *path);
enum mx8_status mx8i_set_option(struct mx8_options *o, const char *key, const char *text, const char *source);
/* Getters: an unknown key is a defect in mx8 and aborts in debug builds, else gives 0 / "". */
int64_t mx8i_get_int(const struct mx8_options *o, const char *key);      /* a word such as "none": INT64_MIN */
double mx8i_get_float(const struct mx8_options *o, const char *key);     /* a word such as "none": NaN */
int mx8i_get_bool(const struct mx8_options *o, const char *key);
const char *mx8i_get_text(const struct mx8_options *o, const char *key);
int mx8i_is_set(const struct mx8_options *o, const char *key);           /* by TOML or flag */
/* Items of a LIST: calls back in order; returns their number, -1 when out of memory. item may
 * be NULL. */
int mx8i_get_list(const struct mx8_options *o, const char *key, void (*item)(void *user, const char *text), void *user);
/* Help by section: key, type or choices, default, help; wrapped at `width` columns. section NULL: all. */
void mx8i_print_options(const struct mx8_options *o, FILE *out, const char *section, int width);
#endif
