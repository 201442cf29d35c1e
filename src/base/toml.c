/* TOML 1.0 documents: lines, keys, headers, and the tree they make. Which of two definitions of a table may extend the
 * other follows the specification's examples; the state is kept in `closed` (toml_parser.h). */
#include "base/toml.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/toml_parser.h"

enum { MAX_SIZE = 16 << 20, MAX_KEYS = 4096 }; /* MAX_KEYS entries in one table: looking one up is linear */

enum mx8_status mx8i_fail_toml(const struct mx8_toml_parser *p, const char *at, const char *format, ...) {
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    int line = 1, column = 1; /* columns count characters, not bytes */
    for (const char *c = p->start; c < at; c++) {
        if (*c == '\n')
            line++, column = 1;
        else if (((unsigned char)*c & 0xC0) != 0x80)
            column++;
    }
    return MX8_FAIL(MX8_FORMAT_ERROR, "%s:%d:%d: %s", p->path, line, column, message);
}

int mx8i_peek_toml(const struct mx8_toml_parser *p) {
    return p->at < p->end ? (unsigned char)*p->at : -1;
}

void mx8i_skip_toml_blanks(struct mx8_toml_parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t')) p->at++;
}

int mx8i_skip_toml_line_end(struct mx8_toml_parser *p) {
    size_t size = p->at < p->end && *p->at == '\n' ? 1 : 0;
    if (p->end - p->at >= 2 && p->at[0] == '\r' && p->at[1] == '\n') size = 2;
    p->at += size;
    return size > 0;
}

static enum mx8_status skip_comment(struct mx8_toml_parser *p) {
    if (mx8i_peek_toml(p) != '#') return MX8_OK;
    for (int c = mx8i_peek_toml(p); c >= 0 && c != '\n'; c = mx8i_peek_toml(p)) {
        int ends = c == '\r' && p->end - p->at >= 2 && p->at[1] == '\n';
        if (ends) return MX8_OK;
        if ((c < 0x20 && c != '\t') || c == 0x7F)
            return mx8i_fail_toml(p, p->at, "control character 0x%02X in a comment", (unsigned)c);
        p->at++;
    }
    return MX8_OK;
}

enum mx8_status mx8i_skip_toml_lines(struct mx8_toml_parser *p) {
    do {
        mx8i_skip_toml_blanks(p);
        MX8_TRY(skip_comment(p));
    } while (mx8i_skip_toml_line_end(p));
    return MX8_OK;
}

/* Lines are counted once along the document: nodes are made in its order. */
static int32_t get_line(struct mx8_toml_parser *p) {
    for (; p->counted < p->at; p->counted++) p->line += *p->counted == '\n';
    return p->line;
}

enum mx8_status mx8i_add_toml(
    struct mx8_toml_parser *p, struct mx8_toml *parent, struct mx8_toml *tail, char *key, struct mx8_toml **out) {
    struct mx8_toml *node = mx8i_allocate(sizeof *node, "a TOML value");
    if (!node) {
        mx8i_release(key);
        return MX8_OUT_OF_MEMORY;
    }
    node->key = key;
    node->line = get_line(p);
    if (tail)
        tail->next = node;
    else
        parent->child = node;
    *out = node;
    return MX8_OK;
}

/* What it stores in *key is the caller's to release, also when it fails. */
static enum mx8_status parse_key(struct mx8_toml_parser *p, char **key) {
    const char *at = p->at;
    int c = mx8i_peek_toml(p);
    if (c == '"' || c == '\'') {
        size_t size;
        MX8_TRY(mx8i_parse_toml_text(p, 0, key, &size));
        return strlen(*key) == size ? MX8_OK : mx8i_fail_toml(p, at, "a key may not contain U+0000");
    }
    while ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-') {
        p->at++;
        c = mx8i_peek_toml(p);
    }
    if (p->at == at) return mx8i_fail_toml(p, at, "expected a key");
    *key = mx8i_format_text("%.*s", (int)(p->at - at), at);
    return *key ? MX8_OK : MX8_OUT_OF_MEMORY;
}

/* The child of that name, or NULL; and the last child, after which a new one goes. key NULL looks for the last only. */
static enum mx8_status look_up(const struct mx8_toml_parser *p, const char *at, const struct mx8_toml *parent,
    const char *key, struct mx8_toml **found, struct mx8_toml **tail) {
    int count = 0;
    *found = *tail = NULL;
    for (struct mx8_toml *child = parent->child; child && !*found; child = child->next) {
        if (key && strcmp(child->key, key) == 0) *found = child;
        *tail = child;
        count++;
    }
    if (!*found && count >= MAX_KEYS) return mx8i_fail_toml(p, at, "more than %d entries in a table", MAX_KEYS);
    return MX8_OK;
}

/* One part of a key and where it stands. */
struct place {
    const char *at;
    char *key; /* owned here until it becomes a node's */
};

/* Steps into the table that a key names before its last part; makes it when it is missing. */
static enum mx8_status descend(
    struct mx8_toml_parser *p, struct place *place, enum mx8_toml_state made, struct mx8_toml **table) {
    struct mx8_toml *found, *tail;
    MX8_TRY(look_up(p, place->at, *table, place->key, &found, &tail));
    if (!found) {
        char *key = place->key;
        place->key = NULL;
        MX8_TRY(mx8i_add_toml(p, *table, tail, key, table));
        (*table)->type = MX8_TOML_TABLE;
        (*table)->closed = made;
        return MX8_OK;
    }
    int is_header = made == MX8_TOML_IMPLICIT;
    if (is_header && found->type == MX8_TOML_ARRAY && found->closed == MX8_TOML_ITEMS) {
        struct mx8_toml *none;
        MX8_TRY(look_up(p, place->at, found, NULL, &none, table));
        return MX8_OK;
    }
    if (found->type != MX8_TOML_TABLE || found->closed == MX8_TOML_FROZEN ||
        (!is_header && found->closed == MX8_TOML_HEADED))
        return mx8i_fail_toml(
            p, place->at, "\"%s\" was completed in line %d and cannot be extended", found->key, (int)found->line);
    if (!is_header) found->closed = made;
    *table = found;
    return MX8_OK;
}

/* A dotted key: descends to the table of its last part, which stays in `place` for the caller to release. */
static enum mx8_status parse_dotted_key(
    struct mx8_toml_parser *p, enum mx8_toml_state made, struct mx8_toml **table, int32_t *depth, struct place *place) {
    for (;;) {
        *place = (struct place){.at = p->at};
        MX8_TRY(parse_key(p, &place->key));
        mx8i_skip_toml_blanks(p);
        if (mx8i_peek_toml(p) != '.') return MX8_OK;
        p->at++;
        mx8i_skip_toml_blanks(p);
        if (++*depth > MX8_TOML_MAX_DEPTH)
            return mx8i_fail_toml(p, place->at, "nested deeper than %d", MX8_TOML_MAX_DEPTH);
        MX8_TRY(descend(p, place, made, table));
        mx8i_release(place->key);
    }
}

static enum mx8_status add_pair(struct mx8_toml_parser *p, struct mx8_toml *table, int32_t depth, struct place *place) {
    if (mx8i_peek_toml(p) != '=') return mx8i_fail_toml(p, p->at, "expected = after key \"%s\"", place->key);
    p->at++;
    mx8i_skip_toml_blanks(p);
    struct mx8_toml *found, *tail, *node;
    MX8_TRY(look_up(p, place->at, table, place->key, &found, &tail));
    if (found)
        return mx8i_fail_toml(p, place->at, "key \"%s\" is given already in line %d", found->key, (int)found->line);
    char *key = place->key;
    place->key = NULL;
    MX8_TRY(mx8i_add_toml(p, table, tail, key, &node));
    return mx8i_parse_toml_value(p, node, depth);
}

enum mx8_status mx8i_parse_toml_pair(struct mx8_toml_parser *p, struct mx8_toml *table, int32_t depth) {
    struct place place = {0};
    enum mx8_status status = parse_dotted_key(p, MX8_TOML_DOTTED, &table, &depth, &place);
    if (status == MX8_OK) status = add_pair(p, table, depth, &place);
    mx8i_release(place.key);
    return status;
}

/* The table that a header opens: new, or so far only named on the way, or one more item of an array of tables. */
static enum mx8_status open_table(
    struct mx8_toml_parser *p, struct mx8_toml *parent, int is_item, struct place *place, struct mx8_toml **table) {
    struct mx8_toml *found, *tail;
    MX8_TRY(look_up(p, place->at, parent, place->key, &found, &tail));
    int is_fit = !found || (is_item ? found->type == MX8_TOML_ARRAY && found->closed == MX8_TOML_ITEMS
                                    : found->type == MX8_TOML_TABLE && found->closed == MX8_TOML_IMPLICIT);
    if (!is_fit)
        return mx8i_fail_toml(p, place->at, "\"%s\" is given already in line %d", found->key, (int)found->line);
    if (!found) {
        char *key = place->key;
        place->key = NULL;
        MX8_TRY(mx8i_add_toml(p, parent, tail, key, &found));
        found->type = is_item ? MX8_TOML_ARRAY : MX8_TOML_TABLE;
        found->closed = MX8_TOML_ITEMS;
    }
    if (is_item) {
        struct mx8_toml *none, *array = found;
        MX8_TRY(look_up(p, place->at, array, NULL, &none, &tail));
        MX8_TRY(mx8i_add_toml(p, array, tail, NULL, &found));
        found->type = MX8_TOML_TABLE;
    }
    found->closed = MX8_TOML_HEADED;
    *table = found;
    return MX8_OK;
}

static enum mx8_status parse_header(
    struct mx8_toml_parser *p, struct mx8_toml *root, struct mx8_toml **table, int32_t *depth) {
    p->at++;
    int is_item = mx8i_peek_toml(p) == '[';
    p->at += is_item;
    mx8i_skip_toml_blanks(p);
    struct place place = {0};
    *depth = 1;
    enum mx8_status status = parse_dotted_key(p, MX8_TOML_IMPLICIT, &root, depth, &place);
    for (int i = 0; i <= is_item && status == MX8_OK; i++)
        if (mx8i_peek_toml(p) == ']')
            p->at++;
        else
            status = mx8i_fail_toml(p, p->at, "expected %s after the name of a table", is_item ? "]]" : "]");
    if (status == MX8_OK) status = open_table(p, root, is_item, &place, table);
    mx8i_release(place.key);
    return status;
}

static enum mx8_status parse_document(struct mx8_toml_parser *p, struct mx8_toml *root) {
    struct mx8_toml *table = root;
    int32_t depth = 0;
    for (;;) {
        MX8_TRY(mx8i_skip_toml_lines(p));
        int c = mx8i_peek_toml(p);
        if (c < 0) return MX8_OK;
        if (c == '[')
            MX8_TRY(parse_header(p, root, &table, &depth));
        else
            MX8_TRY(mx8i_parse_toml_pair(p, table, depth));
        mx8i_skip_toml_blanks(p);
        MX8_TRY(skip_comment(p));
        if (mx8i_peek_toml(p) >= 0 && !mx8i_skip_toml_line_end(p))
            return mx8i_fail_toml(p, p->at, "expected the end of the line");
    }
}

enum mx8_status mx8i_parse_toml(const char *text, size_t size, const char *path, struct mx8_toml **out) {
    struct mx8_toml_parser p = {
        .start = text, .at = text, .end = text + size, .path = path, .counted = text, .line = 1};
    *out = NULL;
    if (size > MAX_SIZE)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: %zu bytes of TOML, expected at most %d", path, size, MAX_SIZE);
    MX8_TRY(mx8i_check_toml_encoding(&p));
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) p.at += 3; /* editors put it there */
    struct mx8_toml *root = mx8i_allocate(sizeof *root, "a TOML document");
    if (!root) return MX8_OUT_OF_MEMORY;
    root->type = MX8_TOML_TABLE;
    root->line = 1;
    root->closed = MX8_TOML_HEADED;
    enum mx8_status status = parse_document(&p, root);
    if (status == MX8_OK)
        *out = root;
    else
        mx8i_free_toml(root);
    return status;
}

void mx8i_free_toml(struct mx8_toml *root) {
    while (root) { /* recursion is as deep as the nesting, which is limited */
        struct mx8_toml *next = root->next;
        mx8i_free_toml(root->child);
        mx8i_release(root->key);
        mx8i_release(root->text);
        mx8i_release(root);
        root = next;
    }
}

const struct mx8_toml *mx8i_find_toml(const struct mx8_toml *table, const char *key) {
    for (const struct mx8_toml *child = table->child; child; child = child->next)
        if (child->key && strcmp(child->key, key) == 0) return child;
    return NULL;
}
