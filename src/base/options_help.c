/* The option table as text for people. */
#include "base/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/options_private.h"

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* snprintf at the end of text; what does not fit is cut. */
static void append(char *text, size_t size, const char *format, ...) {
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, size - length, format, arguments);
    va_end(arguments);
}

static void append_choices(const struct mx8_option *option, char *text, size_t size, const char *joint) {
    for (const char *at = option->choices; at && *at;) {
        size_t length = strcspn(at, "|");
        append(text, size, "%s%.*s", joint, (int)length, at);
        joint = at[length] && !strchr(at + length + 1, '|') ? " or " : ", ";
        at += length + (at[length] == '|');
    }
}

void mx8i_describe_option(const struct mx8_option *option, char *text, size_t size) {
    static const char *const names[] = {[MX8_OPT_INT] = "an integer",
        [MX8_OPT_FLOAT] = "a number",
        [MX8_OPT_BOOL] = "true or false",
        [MX8_OPT_TEXT] = "a text",
        [MX8_OPT_CHOICE] = "one of ",
        [MX8_OPT_LIST] = "a list of texts separated by commas"};
    text[0] = 0;
    append(text, size, "%s", names[option->type]);
    if (option->type == MX8_OPT_CHOICE) append_choices(option, text, size, "");
    if (option->type != MX8_OPT_INT && option->type != MX8_OPT_FLOAT) return;
    int has_end = option->max < 1e15; /* tables write a huge number for "no upper limit" */
    if (option->min < option->max && has_end) append(text, size, " from %.15g to %.15g", option->min, option->max);
    if (option->min < option->max && !has_end) append(text, size, " >= %.15g", option->min);
    append_choices(option, text, size, " or ");
}

static void print_usage(const struct mx8_option *option, FILE *out) {
    static const char *const names[] = {[MX8_OPT_INT] = "INT",
        [MX8_OPT_FLOAT] = "NUMBER",
        [MX8_OPT_BOOL] = "",
        [MX8_OPT_TEXT] = "TEXT",
        [MX8_OPT_CHOICE] = "",
        [MX8_OPT_LIST] = "A,B,..."};
    const char *name = names[option->type], *choices = option->choices ? option->choices : "";
    const char *dot = strrchr(option->key, '.'), *last = dot ? dot + 1 : option->key;
    fprintf(out, "  --%s", option->key);
    if (option->type == MX8_OPT_BOOL)
        fprintf(out, " | --%.*sno_%s", (int)(last - option->key), option->key, last);
    else
        fprintf(out, " %s%s%s", name, *name && *choices ? "|" : "", choices);
    if (option->value && *option->value) fprintf(out, " (default: %s)", option->value);
    fputc('\n', out);
    if (option->alias) fprintf(out, "      Also written as: %s\n", option->alias);
}

/* Greedy: a word goes to the next line when it would pass `width`. A word longer than a line stands alone. */
static void print_wrapped(const char *text, FILE *out, int indent, int width) {
    int column = 0;
    for (const char *word = text + strspn(text, " "); *word;) {
        int size = (int)strcspn(word, " ");
        if (column > 0 && column + 1 + size > width) {
            fputc('\n', out);
            column = 0;
        }
        fprintf(out, "%*s%.*s", column == 0 ? indent : 1, "", size, word);
        column += (column == 0 ? indent : 1) + size;
        word += size;
        word += strspn(word, " ");
    }
    if (column > 0) fputc('\n', out);
}

/* "quantize" holds "quantize.linear.mx.recipe_name", too. */
static int is_in_section(const char *key, const char *section) {
    size_t size = strlen(section);
    return strncmp(key, section, size) == 0 && key[size] == '.';
}

void mx8i_print_options(const struct mx8_options *o, FILE *out, const char *section, int width) {
    const char *open = "";
    size_t open_size = 0;
    for (int32_t i = 0; i < o->count; i++) {
        const struct mx8_option *option = &o->table[i];
        if (section && !is_in_section(option->key, section)) continue;
        const char *dot = strrchr(option->key, '.');
        size_t size = dot ? (size_t)(dot - option->key) : 0;
        if (size > 0 && (size != open_size || memcmp(open, option->key, size) != 0))
            fprintf(out, "[%.*s]\n", (int)size, option->key);
        open = option->key;
        open_size = size;
        print_usage(option, out);
        print_wrapped(option->help ? option->help : "", out, 6, width < 40 ? 40 : width);
    }
}
