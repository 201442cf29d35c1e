/* The option table's values: checking, storing and reading them. Values are kept as text, so that --help, the resolved
 * configuration and the getters all see the same thing. */
#include "base/options.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/options_private.h"

static char fold(char c) {
    return c == '-' ? '_' : c;
}

static int is_same_key(const char *a, size_t a_size, const char *b, size_t b_size) {
    if (a_size != b_size) return 0;
    for (size_t i = 0; i < a_size; i++)
        if (fold(a[i]) != fold(b[i])) return 0;
    return 1;
}

/* The key and then the aliases: moves *at behind the next spelling of an option and gives its size; 0: no more. */
static size_t next_spelling(const struct mx8_option *option, const char **at, const char **spelling) {
    int is_first = !*at;
    *spelling = is_first ? option->key : *at + strspn(*at, " ");
    size_t size = is_first ? strlen(option->key) : strcspn(*spelling, " ");
    *at = is_first ? option->alias ? option->alias : "" : *spelling + size;
    return size;
}

static int has_spelling(const struct mx8_option *option, const char *key, size_t size) {
    const char *at = NULL, *spelling;
    for (size_t n; (n = next_spelling(option, &at, &spelling)) > 0;)
        if (is_same_key(spelling, n, key, size)) return 1;
    return 0;
}

/* A job looks up every option that there is: by a hash, or the table would be walked once for each of its rows. */
static uint32_t hash_key(const char *key, size_t size) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ (uint8_t)fold(key[i])) * 16777619u;
    return hash ^ hash >> 15;
}

int32_t mx8i_find_option(const struct mx8_options *o, const char *key, size_t size) {
    for (uint32_t at = hash_key(key, size) & o->mask; o->slot[at] >= 0; at = (at + 1) & o->mask)
        if (has_spelling(&o->table[o->slot[at]], key, size)) return o->slot[at];
    return -1;
}

static enum mx8_status index_options(struct mx8_options *o) {
    const char *at = NULL, *spelling;
    uint32_t n = 0, slots = 16;
    for (int32_t i = 0; i < o->count; i++, at = NULL)
        while (next_spelling(&o->table[i], &at, &spelling)) n++;
    while (slots < 2 * n) slots *= 2;
    o->mask = slots - 1;
    o->slot = mx8i_allocate(slots * sizeof *o->slot, "the options");
    if (!o->slot) return MX8_OUT_OF_MEMORY;
    memset(o->slot, 0xFF, slots * sizeof *o->slot); /* -1: free */
    for (int32_t i = 0; i < o->count; i++, at = NULL)
        for (size_t size; (size = next_spelling(&o->table[i], &at, &spelling)) > 0;) {
            uint32_t to = hash_key(spelling, size) & o->mask;
            while (o->slot[to] >= 0) to = (to + 1) & o->mask;
            o->slot[to] = i;
        }
    return MX8_OK;
}

int mx8i_is_choice(const char *choices, const char *text) {
    size_t size = strlen(text);
    while (choices && *choices) {
        size_t length = strcspn(choices, "|");
        if (length == size && memcmp(choices, text, size) == 0) return 1;
        choices += length + (choices[length] == '|');
    }
    return 0;
}

/* Every check_* gives the text to store, which may be `text` itself, or NULL when it is not what the option takes. */
static const char *check_int(const struct mx8_option *option, const char *text) {
    int64_t value;
    if (mx8i_is_choice(option->choices, text)) return text;
    if (mx8i_parse_integer(text, strlen(text), &value) != MX8_NUMBER_OK) return NULL;
    int is_limited = option->min < option->max;
    return is_limited && ((double)value < option->min || (double)value > option->max) ? NULL : text;
}

/* A float option takes integers, too. NaN is no value: the getter says it for a word. */
static int parse_float(const char *text, double *value) {
    int64_t integer;
    size_t size = strlen(text);
    if (mx8i_parse_integer(text, size, &integer) == MX8_NUMBER_OK) {
        *value = (double)integer;
        return 1;
    }
    return mx8i_parse_number(text, size, value) == MX8_NUMBER_OK && !isnan(*value);
}

static const char *check_float(const struct mx8_option *option, const char *text) {
    double value;
    if (mx8i_is_choice(option->choices, text)) return text;
    if (!parse_float(text, &value)) return NULL;
    int is_limited = option->min < option->max;
    return is_limited && (value < option->min || value > option->max) ? NULL : text;
}

static const char *check_bool(const struct mx8_option *option, const char *text) {
    (void)option; /* "True" is what Python users write */
    if (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0) return "true";
    if (strcasecmp(text, "false") == 0 || strcmp(text, "0") == 0) return "false";
    return NULL;
}

static const char *check_choice(const struct mx8_option *option, const char *text) {
    return mx8i_is_choice(option->choices, text) ? text : NULL;
}

static const char *check_text(const struct mx8_option *option, const char *text) {
    (void)option;
    return text;
}

static const char *(*const checks[])(const struct mx8_option *option, const char *text) = {
    [MX8_OPT_INT] = check_int,
    [MX8_OPT_FLOAT] = check_float,
    [MX8_OPT_BOOL] = check_bool,
    [MX8_OPT_TEXT] = check_text,
    [MX8_OPT_CHOICE] = check_choice,
    [MX8_OPT_LIST] = check_text,
};

/* One block holds the text and then the source, so that a value lives as long as where it came from. */
static enum mx8_status store(struct mx8_value *value, const char *text, const char *source) {
    size_t text_size = strlen(text) + 1, source_size = strlen(source) + 1;
    char *block = mx8i_allocate(text_size + source_size, "an option's value");
    if (!block) return MX8_OUT_OF_MEMORY;
    memcpy(block, text, text_size);
    memcpy(block + text_size, source, source_size);
    mx8i_release(value->block); /* last: text and source may point into it */
    *value = (struct mx8_value){.text = block, .source = block + text_size, .set = 1, .block = block};
    return MX8_OK;
}

enum mx8_status mx8i_set_option_row(struct mx8_options *o, int32_t index, const char *text, const char *source) {
    const struct mx8_option *option = &o->table[index];
    const char *checked = checks[option->type](option, text);
    if (checked) return store(&o->value[index], checked, source);
    char expected[256];
    mx8i_describe_option(option, expected, sizeof expected);
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: \"%s\", expected %s", option->key, text, expected);
}

enum mx8_status mx8i_set_option(struct mx8_options *o, const char *key, const char *text, const char *source) {
    int32_t index = mx8i_find_option(o, key, strlen(key));
    return index < 0 ? mx8i_fail_unknown_option(o, source, key, strlen(key))
                     : mx8i_set_option_row(o, index, text, source);
}

/* An empty default is legal for every type; another must be a value that a user could give. The table owns it. */
static enum mx8_status take_default(struct mx8_options *o, int32_t index) {
    const struct mx8_option *option = &o->table[index];
    const char *text = option->value ? option->value : "", *checked = *text ? checks[option->type](option, text) : text;
    o->value[index] = (struct mx8_value){.text = checked, .source = "default"};
    return checked
               ? MX8_OK
               : MX8_FAIL(MX8_INTERNAL, "option table: the default \"%s\" of %s is no value of it", text, option->key);
}

enum mx8_status mx8i_open_options(const struct mx8_option *table, int32_t count, struct mx8_options *out) {
    *out = (struct mx8_options){.table = table, .count = count};
    out->value = mx8i_allocate((size_t)count * sizeof *out->value, "the options");
    enum mx8_status status = out->value ? index_options(out) : MX8_OUT_OF_MEMORY;
    for (int32_t i = 0; i < count && status == MX8_OK; i++) status = take_default(out, i);
    if (status != MX8_OK) mx8i_close_options(out);
    return status;
}

void mx8i_close_options(struct mx8_options *o) {
    for (int32_t i = 0; o->value && i < o->count; i++) mx8i_release(o->value[i].block);
    mx8i_release(o->value);
    mx8i_release(o->slot);
    *o = (struct mx8_options){0};
}

static const struct mx8_value *get_value(const struct mx8_options *o, const char *key) {
    static const struct mx8_value none = {.text = "", .source = "default"};
    int32_t index = mx8i_find_option(o, key, strlen(key));
    assert(index >= 0 && "a key that is not in the option table");
    return index < 0 ? &none : &o->value[index];
}

int64_t mx8i_get_int(const struct mx8_options *o, const char *key) {
    const char *text = get_value(o, key)->text;
    int64_t value = 0;
    if (*text && mx8i_parse_integer(text, strlen(text), &value) != MX8_NUMBER_OK) return INT64_MIN;
    return value;
}

double mx8i_get_float(const struct mx8_options *o, const char *key) {
    const char *text = get_value(o, key)->text;
    double value = 0;
    return *text && !parse_float(text, &value) ? (double)NAN : value;
}

int mx8i_get_bool(const struct mx8_options *o, const char *key) {
    return strcmp(get_value(o, key)->text, "true") == 0;
}

const char *mx8i_get_text(const struct mx8_options *o, const char *key) {
    return get_value(o, key)->text;
}

int mx8i_is_set(const struct mx8_options *o, const char *key) {
    return get_value(o, key)->set;
}

int mx8i_get_list(
    const struct mx8_options *o, const char *key, void (*item)(void *user, const char *text), void *user) {
    char *copy = mx8i_copy_text(get_value(o, key)->text);
    int count = copy ? 0 : -1;
    for (char *at = copy; at && *at;) { /* items may have blanks around them; empty ones are none */
        char *next = at + strcspn(at, ",");
        char *end = next;
        if (*next) next++;
        at += strspn(at, " \t");
        while (end > at && (end[-1] == ' ' || end[-1] == '\t')) end--;
        if (at < end) {
            *end = 0;
            if (item) item(user, at);
            count++;
        }
        at = next;
    }
    mx8i_release(copy);
    return count;
}
