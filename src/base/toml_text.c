/* TOML strings: basic and literal, on one line or several. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/toml_parser.h"

struct buffer {
    char *text;
    size_t size, capacity;
};

static enum mx8_status put(struct buffer *b, const char *bytes, size_t size) {
    if (!b->text || b->capacity - b->size < size + 1) {
        size_t capacity = 2 * (b->size + size) + 32;
        char *text = mx8i_reallocate(b->text, capacity, "a TOML string");
        if (!text) return MX8_OUT_OF_MEMORY;
        b->text = text;
        b->capacity = capacity;
    }
    memcpy(b->text + b->size, bytes, size);
    b->size += size;
    b->text[b->size] = 0;
    return MX8_OK;
}

static enum mx8_status put_code_point(struct buffer *b, uint32_t code) {
    char bytes[4];
    size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint32_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = size - 1; i > 0; i--) {
        bytes[i] = (char)(0x80 | (code & 0x3F));
        code >>= 6;
    }
    bytes[0] = (char)(lead[size] | code);
    return put(b, bytes, size);
}

/* Bytes of the UTF-8 character at c (0 when it is none): no surrogate, nothing overlong, nothing past U+10FFFF. */
static size_t measure_character(const unsigned char *c, size_t room) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (c[0] < 0x80) return 1;
    size_t size = c[0] >= 0xF0 ? 4 : c[0] >= 0xE0 ? 3 : 2;
    if (c[0] < 0xC2 || c[0] > 0xF4 || size > room) return 0;
    uint32_t code = c[0] & (0x7Fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((c[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (c[i] & 0x3Fu);
    }
    int is_surrogate = code >= 0xD800 && code < 0xE000;
    return code < least[size] || code > 0x10FFFF || is_surrogate ? 0 : size;
}

enum mx8_status mx8i_check_toml_encoding(const struct mx8_toml_parser *p) {
    for (const char *at = p->at; at < p->end;) {
        size_t size = measure_character((const unsigned char *)at, (size_t)(p->end - at));
        if (size == 0) return mx8i_fail_toml(p, at, "byte 0x%02X is no UTF-8", (unsigned)(unsigned char)*at);
        at += size;
    }
    return MX8_OK;
}

static int is_next(const struct mx8_toml_parser *p, const char *text) {
    size_t size = strlen(text);
    return (size_t)(p->end - p->at) >= size && memcmp(p->at, text, size) == 0;
}

static enum mx8_status parse_unicode_escape(struct mx8_toml_parser *p, struct buffer *b, int digits) {
    const char *at = p->at;
    uint32_t code = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        int c = mx8i_peek_toml(p);
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)c - '0'
                         : c >= 'a' && c <= 'f' ? (uint32_t)c - 'a' + 10
                         : c >= 'A' && c <= 'F' ? (uint32_t)c - 'A' + 10
                                                : 99;
        if (digit == 99) return mx8i_fail_toml(p, at, "escape needs %d hexadecimal digits", digits);
        code = code << 4 | digit;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return mx8i_fail_toml(p, at, "U+%X is no Unicode character", (unsigned)code);
    return put_code_point(b, code);
}

/* A backslash at the end of a line takes the line end and all blank space after it away. */
static int skip_continuation(struct mx8_toml_parser *p) {
    const char *at = p->at;
    mx8i_skip_toml_blanks(p);
    if (!mx8i_skip_toml_line_end(p)) {
        p->at = at;
        return 0;
    }
    do mx8i_skip_toml_blanks(p);
    while (mx8i_skip_toml_line_end(p));
    return 1;
}

static enum mx8_status parse_escape(struct mx8_toml_parser *p, struct buffer *b, int has_lines) {
    static const char letters[] = "btnfr\"\\", bytes[] = "\b\t\n\f\r\"\\";
    const char *at = p->at++;
    if (has_lines && skip_continuation(p)) return MX8_OK;
    int c = mx8i_peek_toml(p);
    p->at += c >= 0;
    if (c == 'u') return parse_unicode_escape(p, b, 4);
    if (c == 'U') return parse_unicode_escape(p, b, 8);
    const char *letter = c > 0 ? strchr(letters, c) : NULL;
    if (!letter)
        return mx8i_fail_toml(
            p, at, "unknown escape, expected one of \\b \\t \\n \\f \\r \\\" \\\\ \\uXXXX \\UXXXXXXXX");
    return put(b, &bytes[letter - letters], 1);
}

/* One or two quotes may stand right before the three that close a string of several lines. */
static enum mx8_status close_lines(struct mx8_toml_parser *p, struct buffer *b, char quote, int *closed) {
    size_t quotes = 0;
    while (mx8i_peek_toml(p) == quote && quotes < 5) {
        quotes++;
        p->at++;
    }
    *closed = quotes >= 3;
    return put(b, quote == '"' ? "\"\"" : "''", *closed ? quotes - 3 : quotes);
}

static enum mx8_status parse_body(struct mx8_toml_parser *p, struct buffer *b, char quote, int has_lines) {
    const char *open = p->at;
    for (;;) {
        const char *run = p->at; /* plain bytes are copied in one piece */
        int c = mx8i_peek_toml(p);
        while (c >= 0x20 && c != 0x7F && c != quote && !(c == '\\' && quote == '"')) {
            p->at++;
            c = mx8i_peek_toml(p);
        }
        MX8_TRY(put(b, run, (size_t)(p->at - run)));
        if (c == '\t') {
            p->at++;
            MX8_TRY(put(b, "\t", 1));
        } else if (c == '\\') {
            MX8_TRY(parse_escape(p, b, has_lines));
        } else if (c == quote) {
            int closed = 1;
            if (has_lines)
                MX8_TRY(close_lines(p, b, quote, &closed));
            else
                p->at++;
            if (closed) return MX8_OK;
        } else if (has_lines && mx8i_skip_toml_line_end(p)) {
            MX8_TRY(put(b, "\n", 1)); /* "\r\n" is read as "\n", so a document means the same on every system */
        } else if (c < 0 || c == '\n' || c == '\r') {
            return mx8i_fail_toml(p, open, "string is not closed%s", c < 0 || has_lines ? "" : " on its line");
        } else {
            return mx8i_fail_toml(p, p->at, "control character 0x%02X in a string, expected an escape", (unsigned)c);
        }
    }
}

enum mx8_status mx8i_parse_toml_text(struct mx8_toml_parser *p, int allow_lines, char **text, size_t *size) {
    char quote = *p->at;
    int has_lines = is_next(p, quote == '"' ? "\"\"\"" : "'''");
    if (has_lines && !allow_lines) return mx8i_fail_toml(p, p->at, "a key may not be a string of several lines");
    p->at += has_lines ? 3 : 1;
    if (has_lines) mx8i_skip_toml_line_end(p); /* right after the opening it is no part of the string */
    struct buffer b = {0};
    enum mx8_status status = parse_body(p, &b, quote, has_lines);
    if (status != MX8_OK) {
        mx8i_release(b.text);
        return status;
    }
    *text = b.text;
    *size = b.size;
    return MX8_OK;
}
