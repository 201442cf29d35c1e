#include "train/mixture.h"
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

/* Weights are whole numbers of millionths, below a million: with up to a thousand sources every sum fits 63 bits. */
enum { DECIMALS = 6, MOST_DIGITS = 6, MOST_SOURCES = 1000 };

static int exists(const char *path) {
    return mx8i_is_file(path) || mx8i_is_folder(path);
}

/* The '=' before something that is meant as a number; NULL when there is none. */
static char *find_weight(char *item) {
    char *sign = strrchr(item, '=');
    return sign && strchr("0123456789.+-", sign[1]) ? sign : NULL;
}

/* In millionths; 0 when it is no number in range. */
static int64_t parse_weight(const char *text) {
    size_t whole = strspn(text, "0123456789");
    const char *rest = text + whole;
    size_t part = *rest == '.' ? strspn(rest + 1, "0123456789") : 0;
    if (whole > MOST_DIGITS || part > DECIMALS || whole + part == 0 || rest[part + (*rest == '.')]) return 0;
    int64_t value = 0;
    for (size_t i = 0; i < whole; i++) value = 10 * value + (text[i] - '0');
    for (size_t i = 1; i <= DECIMALS; i++) value = 10 * value + (i <= part ? rest[i] - '0' : 0);
    return value;
}

static enum mx8_status add_item(struct mx8_mixture *m, char *item, const char *option) {
    char *sign = exists(item) ? NULL : find_weight(item);
    int64_t weight = 0;
    if (sign) {
        *sign = 0;
        weight = parse_weight(sign + 1);
        if (weight == 0)
            return MX8_FAIL(MX8_INVALID_ARGUMENT,
                "%s: the weight of \"%s\" is \"%s\", expected a number above 0 such as 0.7, below a million and with "
                "at most %d decimals",
                option, item, sign + 1, DECIMALS);
    }
    if (!*item) return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: an empty path", option);
    for (int64_t i = 0; i < m->count; i++)
        if (!strcmp(m->path[i], item)) return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: \"%s\" stands twice", option, item);
    m->path[m->count] = mx8i_copy_text(item);
    m->weight[m->count] = weight;
    return m->path[m->count++] ? MX8_OK : MX8_OUT_OF_MEMORY;
}

static int64_t find_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void reduce(struct mx8_mixture *m) {
    int64_t divisor = 0;
    for (int64_t i = 0; i < m->count; i++) divisor = find_divisor(m->weight[i], divisor);
    m->sum = 0;
    for (int64_t i = 0; i < m->count && divisor; i++) m->sum += m->weight[i] /= divisor;
}

void mx8i_set_weights(struct mx8_mixture *m, const int64_t *sizes) {
    for (int64_t i = 0; i < m->count; i++) m->weight[i] = sizes[i];
    reduce(m);
}

static enum mx8_status check_weights(struct mx8_mixture *m, const char *option) {
    for (int64_t i = 1; i < m->count; i++)
        if (!m->weight[i] != !m->weight[0])
            return MX8_FAIL(MX8_INVALID_ARGUMENT,
                "%s: \"%s\" has a weight and \"%s\" has none; expected PATH=WEIGHT for all paths or for none", option,
                m->path[m->weight[0] ? 0 : i], m->path[m->weight[0] ? i : 0]);
    reduce(m);
    return MX8_OK;
}

/* Cuts `list` up. */
static enum mx8_status add_items(struct mx8_mixture *m, char *list, const char *option) {
    int64_t commas = 0;
    for (const char *at = list; *at; at++) commas += *at == ',';
    if (commas >= MOST_SOURCES)
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s: %lld paths, expected at most %d", option, (long long)commas + 1, MOST_SOURCES);
    m->path = mx8i_allocate((size_t)(commas + 1) * sizeof *m->path, "paths");
    m->weight = mx8i_allocate((size_t)(commas + 1) * sizeof *m->weight, "weights");
    if (!m->path || !m->weight) return MX8_OUT_OF_MEMORY;
    if (exists(list)) return add_item(m, list, option);
    for (char *item; (item = strsep(&list, ","));) MX8_TRY(add_item(m, item, option));
    return check_weights(m, option);
}

enum mx8_status mx8i_parse_mixture(const char *text, const char *option, struct mx8_mixture *out) {
    *out = (struct mx8_mixture){0};
    char *copy = mx8i_copy_text(text);
    if (!copy) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = add_items(out, copy, option);
    mx8i_release(copy);
    return status;
}

void mx8i_release_mixture(struct mx8_mixture *m) {
    for (int64_t i = 0; i < m->count; i++) mx8i_release(m->path[i]);
    mx8i_release(m->path);
    mx8i_release(m->weight);
    *m = (struct mx8_mixture){0};
}

/* position * weight / sum, to the nearest whole number. */
static int64_t take_share(int64_t position, int64_t weight, int64_t sum) {
    unsigned __int128 product = (unsigned __int128)(uint64_t)position * (uint64_t)weight + (uint64_t)(sum / 2);
    return (int64_t)(product / (uint64_t)sum);
}

/* The first source has its share of all positions; what it leaves is the others', in their order. */
void mx8i_pick_source(const struct mx8_mixture *m, int64_t position, int64_t *source, int64_t *index) {
    int64_t sum = m->sum;
    for (*source = 0; *source < m->count - 1; ++*source) {
        int64_t weight = m->weight[*source], before = take_share(position, weight, sum);
        *index = before;
        if (take_share(position + 1, weight, sum) > before) return;
        position -= before;
        sum -= weight;
    }
    *index = position;
}
