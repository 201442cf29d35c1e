/* TOML values: numbers, booleans, arrays and inline tables. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/toml_parser.h"

static int is_bare(int c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' ||
           c == '+' || c == '.' || c == ':';
}

static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* "1979-05-27" or "07:32:00": said by name, because everything else here is TOML 1.0. */
static int is_date(const char *text, size_t size) {
    return (size >= 5 && is_digit(text[0]) && is_digit(text[1]) && is_digit(text[2]) && is_digit(text[3]) &&
               text[4] == '-') ||
           (size >= 3 && is_digit(text[0]) && is_digit(text[1]) && text[2] == ':');
}

static enum mx8_status parse_word(struct mx8_toml_parser *p, struct mx8_toml *node) {
    const char *word = p->at;
    while (is_bare(mx8i_peek_toml(p))) p->at++;
    size_t size = (size_t)(p->at - word);
    int shown = size < 40 ? (int)size : 40;
    if (size == 0) return mx8i_fail_toml(p, word, "expected a value");
    if ((size == 4 && memcmp(word, "true", 4) == 0) || (size == 5 && memcmp(word, "false", 5) == 0)) {
        node->type = MX8_TOML_BOOL;
        node->integer = size == 4;
        return MX8_OK;
    }
    enum mx8_number parsed = mx8i_parse_integer(word, size, &node->integer);
    node->type = MX8_TOML_INT;
    if (parsed == MX8_NUMBER_MALFORMED) {
        parsed = mx8i_parse_number(word, size, &node->number);
        node->type = MX8_TOML_FLOAT;
    }
    if (parsed == MX8_NUMBER_OUT_OF_RANGE) return mx8i_fail_toml(p, word, "number %.*s is out of range", shown, word);
    if (parsed == MX8_NUMBER_OK) return MX8_OK;
    if (is_date(word, size)) return mx8i_fail_toml(p, word, "dates and times are not supported, write a string");
    return mx8i_fail_toml(
        p, word, "\"%.*s\" is no value, expected a number, true, false, a string, [ or {", shown, word);
}

static enum mx8_status parse_array(struct mx8_toml_parser *p, struct mx8_toml *node, int32_t depth) {
    const char *open = p->at++;
    struct mx8_toml *tail = NULL;
    node->type = MX8_TOML_ARRAY;
    node->closed = MX8_TOML_FROZEN;
    for (;;) {
        MX8_TRY(mx8i_skip_toml_lines(p));
        int c = mx8i_peek_toml(p);
        if (c < 0) return mx8i_fail_toml(p, open, "array is not closed");
        if (c == ']') break;
        MX8_TRY(mx8i_add_toml(p, node, tail, NULL, &tail));
        MX8_TRY(mx8i_parse_toml_value(p, tail, depth + 1));
        MX8_TRY(mx8i_skip_toml_lines(p));
        c = mx8i_peek_toml(p);
        if (c == ',')
            p->at++;
        else if (c >= 0 && c != ']')
            return mx8i_fail_toml(p, p->at, "expected , or ] in an array");
    }
    p->at++;
    return MX8_OK;
}

/* Frozen once it is closed: dotted keys inside may still share tables while it is open. */
static void freeze(struct mx8_toml *node) {
    node->closed = MX8_TOML_FROZEN;
    for (struct mx8_toml *child = node->child; child; child = child->next)
        if (child->type == MX8_TOML_TABLE || child->type == MX8_TOML_ARRAY) freeze(child);
}

static enum mx8_status parse_inline_table(struct mx8_toml_parser *p, struct mx8_toml *node, int32_t depth) {
    const char *open = p->at++;
    node->type = MX8_TOML_TABLE;
    mx8i_skip_toml_blanks(p);
    int c = mx8i_peek_toml(p);
    while (c != '}') {
        if (c < 0 || c == '\n' || c == '\r') return mx8i_fail_toml(p, open, "inline table is not closed on its line");
        MX8_TRY(mx8i_parse_toml_pair(p, node, depth + 1));
        mx8i_skip_toml_blanks(p);
        c = mx8i_peek_toml(p);
        if (c == ',') {
            p->at++;
            mx8i_skip_toml_blanks(p);
            c = mx8i_peek_toml(p);
            if (c == '}') return mx8i_fail_toml(p, p->at, "expected a key after the comma");
        } else if (c >= 0 && c != '}' && c != '\n' && c != '\r') {
            return mx8i_fail_toml(p, p->at, "expected , or } in an inline table");
        }
    }
    p->at++;
    freeze(node);
    return MX8_OK;
}

enum mx8_status mx8i_parse_toml_value(struct mx8_toml_parser *p, struct mx8_toml *node, int32_t depth) {
    int c = mx8i_peek_toml(p);
    if ((c == '[' || c == '{') && depth >= MX8_TOML_MAX_DEPTH)
        return mx8i_fail_toml(p, p->at, "nested deeper than %d", MX8_TOML_MAX_DEPTH);
    if (c == '[') return parse_array(p, node, depth);
    if (c == '{') return parse_inline_table(p, node, depth);
    if (c != '"' && c != '\'') return parse_word(p, node);
    node->type = MX8_TOML_TEXT;
    return mx8i_parse_toml_text(p, 1, &node->text, &node->text_size);
}
