/* What the halves of the TOML parser share: toml.c reads the document and builds the tree, toml_value.c reads values,
 * toml_text.c the four kinds of strings. */
#ifndef MX8_BASE_TOML_PARSER_H
#define MX8_BASE_TOML_PARSER_H
#include "base/toml.h"

enum { MX8_TOML_MAX_DEPTH = 32 };

/* struct mx8_toml's `closed`: what may still be added to a table or array. */
enum mx8_toml_state {
    MX8_TOML_IMPLICIT = 0, /* table named only on the way to another: its own header may follow */
    MX8_TOML_HEADED,       /* table with its own [header] */
    MX8_TOML_DOTTED,       /* table made by a dotted key */
    MX8_TOML_ITEMS,        /* array made by [[header]] */
    MX8_TOML_FROZEN        /* inline table or array: complete */
};

struct mx8_toml_parser {
    const char *start, *at, *end; /* *end is not read */
    const char *path;
    const char *counted; /* lines are counted up to here */
    int32_t line;
};

/* Records "path:line:column: message" for the place `at`; gives FORMAT_ERROR. */
enum mx8_status mx8i_fail_toml(const struct mx8_toml_parser *p, const char *at, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* The next byte, or -1 at the end (a byte is never negative here). */
int mx8i_peek_toml(const struct mx8_toml_parser *p);
void mx8i_skip_toml_blanks(struct mx8_toml_parser *p); /* spaces and tabs */
/* Blanks, comments and line ends. */
enum mx8_status mx8i_skip_toml_lines(struct mx8_toml_parser *p);
int mx8i_skip_toml_line_end(struct mx8_toml_parser *p); /* whether there was one */

/* The document must be UTF-8 throughout. */
enum mx8_status mx8i_check_toml_encoding(const struct mx8_toml_parser *p);
/* A string of any kind, at its opening quote. */
enum mx8_status mx8i_parse_toml_text(struct mx8_toml_parser *p, int allow_lines, char **text, size_t *size);
/* Fills node's type and contents. depth counts the tables and arrays around the value. */
enum mx8_status mx8i_parse_toml_value(struct mx8_toml_parser *p, struct mx8_toml *node, int32_t depth);
/* "a.b = value" into table. */
enum mx8_status mx8i_parse_toml_pair(struct mx8_toml_parser *p, struct mx8_toml *table, int32_t depth);
/* A new child after tail, the last one so far (NULL: none yet). Takes over key in every case. */
enum mx8_status mx8i_add_toml(
    struct mx8_toml_parser *p, struct mx8_toml *parent, struct mx8_toml *tail, char *key, struct mx8_toml **out);
#endif
