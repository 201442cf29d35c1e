/* Options from the command line and from TOML files, and the messages for keys that do not exist. */
#include "base/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/options_private.h"
#include "base/toml.h"

enum { MAX_KEY = 128, MAX_CONFIG = 16 << 20 };

static int fold(char c) {
    return c == '-' ? '_' : c;
}

/* Levenshtein distance of two keys, '-' and '_' alike; `limit` when it is that or more. */
static int measure_distance(const char *a, size_t a_size, const char *b, size_t b_size, int limit) {
    const size_t apart = a_size > b_size ? a_size - b_size : b_size - a_size;
    if (a_size > MAX_KEY || b_size > MAX_KEY || apart >= (size_t)limit) return limit;
    int row[MAX_KEY + 1];
    for (size_t j = 0; j <= b_size; j++) row[j] = (int)j;
    for (size_t i = 1; i <= a_size; i++) {
        int diagonal = row[0], least = (int)i;
        row[0] = (int)i;
        for (size_t j = 1; j <= b_size; j++) {
            int swap = diagonal + (fold(a[i - 1]) != fold(b[j - 1]));
            int step = (row[j - 1] < row[j] ? row[j - 1] : row[j]) + 1;
            diagonal = row[j];
            row[j] = swap < step ? swap : step;
            if (row[j] < least) least = row[j];
        }
        if (least >= limit) return limit; /* a row's least never falls */
    }
    return row[b_size] < limit ? row[b_size] : limit;
}

/* Bytes of "training" in "training.steps"; 0 when there is no dot. */
static size_t measure_section(const char *key, size_t size) {
    while (size > 0 && key[size - 1] != '.') size--;
    return size > 0 ? size - 1 : 0;
}

struct nearest {
    const char *text;
    size_t size;
    int distance;
};

static void offer(struct nearest *best, const char *text, size_t size, const char *wanted, size_t wanted_size) {
    int distance = measure_distance(text, size, wanted, wanted_size, best->distance);
    if (distance < best->distance) *best = (struct nearest){text, size, distance};
}

static struct nearest find_nearest_key(const struct mx8_options *o, const char *key, size_t size) {
    struct nearest best = {.distance = (int)(size / 2) + 1}; /* a guess that shares less than half helps nobody */
    for (int32_t i = 0; i < o->count; i++) offer(&best, o->table[i].key, strlen(o->table[i].key), key, size);
    return best;
}

static struct nearest find_nearest_section(const struct mx8_options *o, const char *section, size_t size) {
    struct nearest best = {.distance = (int)(size / 2) + 1};
    const char *before = "";
    size_t before_size = 0;
    for (int32_t i = 0; i < o->count; i++) {
        const char *known = o->table[i].key;
        size_t known_size = measure_section(known, strlen(known));
        if (known_size == before_size && !memcmp(known, before, known_size)) continue; /* rows of a section are near */
        offer(&best, known, known_size, section, size);
        before = known;
        before_size = known_size;
    }
    return best;
}

enum { MOST_MEANT = 3 }; /* more of them help nobody */

/* Options whose name without its section is the key, as they stand between quotes. Returns how many there are. */
static int find_without_section(const struct mx8_options *o, const char *key, size_t size, char *text, size_t room) {
    int found = 0;
    size_t at = 0;
    for (int32_t i = 0; i < o->count; i++) {
        const char *known = o->table[i].key;
        const size_t length = strlen(known), section = measure_section(known, length),
                     start = section ? section + 1 : 0;
        if (measure_distance(known + start, length - start, key, size, 1)) continue;
        if (found++ < MOST_MEANT && at < room)
            at += (size_t)snprintf(text + at, room - at, "%s%s", found > 1 ? "\" or \"" : "", known);
    }
    return found;
}

/* In a mistyped section a key that the right one has is meant; if it has none of that name, the section is all that can
 * be guessed. In a section that exists the nearest key is; without any, options that end like it. */
enum mx8_status mx8i_fail_unknown_option(const struct mx8_options *o, const char *shown, const char *key, size_t size) {
    size_t section_size = measure_section(key, size);
    struct nearest section = find_nearest_section(o, key, section_size), best = find_nearest_key(o, key, size);
    int is_section_known = section_size == 0 || section.distance == 0;
    char whole[MOST_MEANT * (MAX_KEY + 8)] = "";
    int n_whole = section_size == 0 ? find_without_section(o, key, size, whole, sizeof whole) : 0;
    if (n_whole > 0 && n_whole <= MOST_MEANT) best = (struct nearest){.text = whole, .size = strlen(whole)};
    char kind[MAX_KEY + 32] = "option";
    if (!is_section_known) {
        int cut = (int)(section_size < MAX_KEY ? section_size : MAX_KEY);
        snprintf(kind, sizeof kind, "section \"%.*s\"", cut, key);
    }
    if (!is_section_known && section.text) {
        char meant[2 * MAX_KEY];
        int meant_size = snprintf(meant, sizeof meant, "%.*s%.*s", (int)section.size, section.text,
            (int)(size - section_size), key + section_size);
        int32_t index = meant_size < (int)sizeof meant ? mx8i_find_option(o, meant, (size_t)meant_size) : -1;
        best = section;
        if (index >= 0) best = (struct nearest){.text = o->table[index].key, .size = strlen(o->table[index].key)};
    }
    if (!best.text) return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %.*s: no such %s", shown, (int)size, key, kind);
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %.*s: no such %s, did you mean \"%.*s\"?", shown, (int)size, key, kind,
        (int)best.size, best.text);
}

struct flag {
    int32_t index;
    const char *text;
};

/* "--s.no-k" or "--s.no_k" of a boolean s.k; -1 when it is not that. */
static int32_t find_negated(const struct mx8_options *o, const char *key, size_t size) {
    char positive[MAX_KEY];
    size_t section = measure_section(key, size), start = section ? section + 1 : 0;
    if (size >= sizeof positive || size < start + 3 || strncmp(key + start, "no", 2) != 0 ||
        fold(key[start + 2]) != '_')
        return -1;
    memcpy(positive, key, start);
    memcpy(positive + start, key + start + 3, size - start - 3);
    int32_t index = mx8i_find_option(o, positive, size - 3);
    return index >= 0 && o->table[index].type == MX8_OPT_BOOL ? index : -1;
}

/* The flag at argv[*i]; moves *i to its last word. A boolean never takes the next word: "--model.print run" stays
 * readable without knowing the table. */
static enum mx8_status read_flag(const struct mx8_options *o, int argc, char **argv, int *i, struct flag *flag) {
    const char *key = argv[*i] + 2, *equals = strchr(key, '=');
    size_t size = equals ? (size_t)(equals - key) : strlen(key);
    flag->index = mx8i_find_option(o, key, size);
    flag->text = equals ? equals + 1 : NULL;
    if (flag->index < 0) {
        flag->index = find_negated(o, key, size);
        if (flag->index < 0) return mx8i_fail_unknown_option(o, "command line", key, size);
        if (equals) return MX8_FAIL(MX8_INVALID_ARGUMENT, "command line: --%.*s takes no value", (int)size, key);
        flag->text = "false";
    } else if (!equals && o->table[flag->index].type == MX8_OPT_BOOL) {
        flag->text = "true";
    } else if (!equals) {
        int has_value = *i + 1 < argc && strncmp(argv[*i + 1], "--", 2) != 0;
        char expected[256];
        mx8i_describe_option(&o->table[flag->index], expected, sizeof expected);
        if (!has_value)
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "command line: --%s has no value, expected %s", key, expected);
        flag->text = argv[++*i];
    }
    return MX8_OK;
}

static enum mx8_status set_from_flag(struct mx8_options *o, const struct flag *flag) {
    enum mx8_status status = mx8i_set_option_row(o, flag->index, flag->text, "command line");
    return status == MX8_OK ? status : mx8i_fail_prefix(status, "command line");
}

static enum mx8_status add_rest(const char *word, const char *before, const char **rest, int *count, int max) {
    if (*count < max) {
        rest[(*count)++] = word;
        return MX8_OK;
    }
    int is_bool = strcmp(word, "true") == 0 || strcmp(word, "false") == 0;
    if (is_bool && before && strncmp(before, "--", 2) == 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "command line: \"%s %s\": write %s=%s", before, word, before, word);
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "command line: unexpected \"%s\", flags begin with --", word);
}

/* One pass over the words. The first (is_config) only reads the configuration file that a flag names, so that flags
 * win over it wherever they stand. */
static enum mx8_status apply_flags(struct mx8_options *o, int argc, char **argv, int32_t config, int is_config,
    const char **rest, int *rest_count, int rest_max) {
    const char *path = NULL;
    int only_words = 0;
    *rest_count = 0;
    for (int i = 0; i < argc; i++) {
        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = 1;
        } else if (only_words || strncmp(argv[i], "--", 2) != 0) {
            MX8_TRY(add_rest(argv[i], i > 0 ? argv[i - 1] : NULL, rest, rest_count, rest_max));
        } else {
            struct flag flag;
            MX8_TRY(read_flag(o, argc, argv, &i, &flag));
            if (is_config)
                path = flag.index == config ? flag.text : path;
            else
                MX8_TRY(set_from_flag(o, &flag));
        }
    }
    return path && *path ? mx8i_parse_toml_file(o, path) : MX8_OK;
}

enum mx8_status mx8i_parse_flags(struct mx8_options *o, int argc, char **argv, const char *config_key,
    const char **rest, int *rest_count, int rest_max) {
    int32_t config = config_key ? mx8i_find_option(o, config_key, strlen(config_key)) : -1;
    MX8_TRY(apply_flags(o, argc, argv, config, 1, rest, rest_count, rest_max));
    return apply_flags(o, argc, argv, config, 0, rest, rest_count, rest_max);
}

/* Commas separate the items of a list, so an item may have none; no text may hold U+0000. */
static int is_plain(const struct mx8_toml *node, int is_item) {
    return strlen(node->text) == node->text_size && !(is_item && strchr(node->text, ','));
}

/* Whether the option takes a value of this TOML type. */
static int is_fit(const struct mx8_option *option, const struct mx8_toml *node) {
    enum mx8_option_type type = option->type;
    switch (node->type) {
    case MX8_TOML_INT:
        return type == MX8_OPT_INT || type == MX8_OPT_FLOAT;
    case MX8_TOML_FLOAT:
        return type == MX8_OPT_FLOAT;
    case MX8_TOML_BOOL:
        return type == MX8_OPT_BOOL;
    case MX8_TOML_TABLE:
        return 0;
    case MX8_TOML_ARRAY:
        for (const struct mx8_toml *item = node->child; item; item = item->next)
            if (item->type != MX8_TOML_INT && !(item->type == MX8_TOML_TEXT && is_plain(item, 1))) return 0;
        return type == MX8_OPT_LIST;
    case MX8_TOML_TEXT:
        break;
    }
    int is_text = type == MX8_OPT_TEXT || type == MX8_OPT_CHOICE || type == MX8_OPT_LIST;
    return is_plain(node, 0) && (is_text || mx8i_is_choice(option->choices, node->text));
}

/* The shortest text that gives the same double. */
static char *format_float(double value) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    return mx8i_copy_text(text);
}

/* The items of an array, which is_fit looked at, with commas between them: one block, as a list may fill a file. */
static char *join_items(const struct mx8_toml *first) {
    enum { INT_SIZE = 20 };
    size_t room = 1, size = 0;
    for (const struct mx8_toml *item = first; item; item = item->next)
        room += 1 + (item->type == MX8_TOML_TEXT ? item->text_size : INT_SIZE);
    char *joined = mx8i_allocate(room, "a list");
    for (const struct mx8_toml *item = first; item && joined; item = item->next) {
        if (item != first) joined[size++] = ',';
        if (item->type == MX8_TOML_TEXT) {
            memcpy(joined + size, item->text, item->text_size);
            size += item->text_size;
        } else {
            size += (size_t)snprintf(joined + size, room - size, "%lld", (long long)item->integer);
        }
    }
    return joined;
}

/* A value that fits, as a flag would write it. NULL when out of memory. */
static char *make_text(const struct mx8_toml *node) {
    if (node->type == MX8_TOML_TEXT) return mx8i_copy_text(node->text);
    if (node->type == MX8_TOML_INT) return mx8i_format_text("%lld", (long long)node->integer);
    if (node->type == MX8_TOML_FLOAT) return format_float(node->number);
    if (node->type == MX8_TOML_BOOL) return mx8i_copy_text(node->integer ? "true" : "false");
    return join_items(node->child);
}

static enum mx8_status set_from_toml(
    struct mx8_options *o, int32_t index, const struct mx8_toml *node, const char *path) {
    static const char *const names[] = {[MX8_TOML_TEXT] = "a string",
        [MX8_TOML_INT] = "an integer",
        [MX8_TOML_FLOAT] = "a float",
        [MX8_TOML_BOOL] = "a boolean",
        [MX8_TOML_ARRAY] = "an array",
        [MX8_TOML_TABLE] = "a table"};
    const struct mx8_option *option = &o->table[index];
    if (!is_fit(option, node)) {
        char expected[256];
        mx8i_describe_option(option, expected, sizeof expected);
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s:%d: %s: %s%s%.*s, expected %s", path, (int)node->line, option->key,
            names[node->type], node->text ? " " : "", 60, node->text ? node->text : "", expected);
    }
    char *text = make_text(node);
    enum mx8_status status = text ? mx8i_set_option_row(o, index, text, path) : MX8_OUT_OF_MEMORY;
    mx8i_release(text);
    return status == MX8_OK ? status : mx8i_fail_prefix(status, "%s:%d", path, (int)node->line);
}

static enum mx8_status apply_table(
    struct mx8_options *o, const struct mx8_toml *table, const char *section, const char *path) {
    for (const struct mx8_toml *node = table->child; node; node = node->next) {
        char key[2 * MAX_KEY], place[MAX_KEY];
        int size = snprintf(key, sizeof key, "%s%s%s", section, *section ? "." : "", node->key);
        if (size >= (int)sizeof key) size = (int)sizeof key - 1; /* no option has such a key */
        int32_t index = mx8i_find_option(o, key, (size_t)size);
        if (index >= 0) {
            MX8_TRY(set_from_toml(o, index, node, path));
        } else if (node->type == MX8_TOML_TABLE && node->child) {
            MX8_TRY(apply_table(o, node, key, path));
        } else if (node->type != MX8_TOML_TABLE) {
            snprintf(place, sizeof place, "%s:%d", path, (int)node->line);
            return mx8i_fail_unknown_option(o, place, key, (size_t)size);
        }
    }
    return MX8_OK;
}

enum mx8_status mx8i_parse_toml_file(struct mx8_options *o, const char *path) {
    char *text;
    size_t size;
    struct mx8_toml *root;
    MX8_TRY(mx8i_read_file(path, MAX_CONFIG, &text, &size));
    enum mx8_status status = mx8i_parse_toml(text, size, path, &root);
    mx8i_release(text);
    MX8_TRY(status);
    status = apply_table(o, root, "", path);
    mx8i_free_toml(root);
    return status;
}
