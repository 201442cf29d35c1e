/* Options from the command line and from TOML files, and the messages for keys that do not exist. */
#include "base/options.h"

#include <stdio.h>
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

/* Levenshtein distance of two keys, '-' and '_' alike. Texts longer than MAX_KEY are as far as can be. */
static int measure_distance(const char *a, size_t a_size, const char *b, size_t b_size) {
    if (a_size > MAX_KEY || b_size > MAX_KEY) return MAX_KEY;
    int row[MAX_KEY + 1];
    for (size_t j = 0; j <= b_size; j++) row[j] = (int)j;
    for (size_t i = 1; i <= a_size; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= b_size; j++) {
            int swap = diagonal + (fold(a[i - 1]) != fold(b[j - 1]));
            int step = (row[j - 1] < row[j] ? row[j - 1] : row[j]) + 1;
            diagonal = row[j];
            row[j] = swap < step ? swap : step;
        }
    }
    return row[b_size];
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
    int distance = measure_distance(text, size, wanted, wanted_size);
    if (distance < best->distance) *best = (struct nearest){text, size, distance};
}

/* The nearest whole key is the best guess, then the nearest section. A guess that shares less than half of its letters
 * helps nobody. */
enum mx8_status mx8i_fail_unknown_option(const struct mx8_options *o, const char *shown, const char *key, size_t size) {
    size_t section = measure_section(key, size);
    struct nearest near_key = {.distance = (int)(size / 2) + 1}, near_section = {.distance = (int)(section / 2) + 1};
    int has_section = section == 0;
    for (int32_t i = 0; i < o->count; i++) {
        const char *known = o->table[i].key;
        size_t known_size = strlen(known), known_section = measure_section(known, known_size);
        offer(&near_key, known, known_size, key, size);
        offer(&near_section, known, known_section, key, section);
        has_section |= known_section == section && measure_distance(known, section, key, section) == 0;
    }
    char kind[MAX_KEY + 32] = "option";
    if (!has_section)
        snprintf(kind, sizeof kind, "section \"%.*s\"", (int)(section < MAX_KEY ? section : MAX_KEY), key);
    const struct nearest *best = near_key.text || has_section ? &near_key : &near_section;
    if (!best->text) return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %.*s: no such %s", shown, (int)size, key, kind);
    return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %.*s: no such %s, did you mean \"%.*s\"?", shown, (int)size, key, kind,
        (int)best->size, best->text);
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

/* An array as comma separated text, which is how lists are kept. NULL: an item that cannot be said so, or no memory. */
static char *join_array(const struct mx8_toml *array) {
    char *joined = mx8i_copy_text("");
    for (const struct mx8_toml *item = array->child; item && joined; item = item->next) {
        char *longer = NULL;
        const char *comma = item == array->child ? "" : ",";
        if (item->type == MX8_TOML_TEXT && !strchr(item->text, ',') && strlen(item->text) == item->text_size)
            longer = mx8i_format_text("%s%s%s", joined, comma, item->text);
        else if (item->type == MX8_TOML_INT)
            longer = mx8i_format_text("%s%s%lld", joined, comma, (long long)item->integer);
        mx8i_release(joined);
        joined = longer;
    }
    return joined;
}

/* The shortest text that gives the same double, and that reads as a float. */
static char *format_float(double value) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double back;
        if (sscanf(text, "%lf", &back) == 1 && back == value) break;
    }
    return mx8i_copy_text(text);
}

/* Text of a value, where its TOML type is one that the option takes; else NULL. */
static char *make_text(const struct mx8_option *option, const struct mx8_toml *node) {
    enum mx8_option_type type = option->type;
    switch (node->type) {
    case MX8_TOML_INT:
        return type == MX8_OPT_INT || type == MX8_OPT_FLOAT ? mx8i_format_text("%lld", (long long)node->integer) : NULL;
    case MX8_TOML_FLOAT:
        return type == MX8_OPT_FLOAT ? format_float(node->number) : NULL;
    case MX8_TOML_BOOL:
        return type == MX8_OPT_BOOL ? mx8i_copy_text(node->integer ? "true" : "false") : NULL;
    case MX8_TOML_ARRAY:
        return type == MX8_OPT_LIST ? join_array(node) : NULL;
    case MX8_TOML_TABLE:
        return NULL;
    case MX8_TOML_TEXT:
        break;
    }
    int is_text = type == MX8_OPT_TEXT || type == MX8_OPT_CHOICE || type == MX8_OPT_LIST;
    if (strlen(node->text) != node->text_size) return NULL;
    return is_text || mx8i_is_choice(option->choices, node->text) ? mx8i_copy_text(node->text) : NULL;
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
    char *text = make_text(option, node), expected[256];
    if (!text) {
        mx8i_describe_option(option, expected, sizeof expected);
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s:%d: %s: %s%s%.*s, expected %s", path, (int)node->line, option->key,
            names[node->type], node->text ? " " : "", 60, node->text ? node->text : "", expected);
    }
    enum mx8_status status = mx8i_set_option_row(o, index, text, path);
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
