/* TOML 1.0 without dates: tables, dotted keys, arrays, inline tables, all kinds of strings and numbers. Errors carry
 * path:line:column. Nesting at most 32 deep, documents at most 16 MB. Arrays of tables are read too. */
#ifndef MX8_BASE_TOML_H
#define MX8_BASE_TOML_H
#include <stdint.h>
#include <stddef.h>
#include "mx8/status.h"

enum mx8_toml_type { MX8_TOML_TEXT, MX8_TOML_INT, MX8_TOML_FLOAT, MX8_TOML_BOOL, MX8_TOML_ARRAY, MX8_TOML_TABLE };
struct mx8_toml {
    enum mx8_toml_type type; char *key; /* NULL for array items and the root */
    char *text; size_t text_size; int64_t integer; double number; /* BOOL uses integer */
    struct mx8_toml *child, *next;      /* ARRAY and TABLE: first child; siblings in order of appearance */
    int32_t line, closed;
};
enum mx8_status mx8i_parse_toml(const char *text, size_t size, const char *path, struct mx8_toml **out);
void mx8i_free_toml(struct mx8_toml *root);
const struct mx8_toml *mx8i_find_toml(const struct mx8_toml *table, const char *key); /* direct child, NULL */
#endif
