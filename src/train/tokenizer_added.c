/* Added tokens are found in a sorted list by narrowing: all tokens that share the first d bytes with the text stand
 * side by side, and one binary search a byte finds them. A token that is exactly those d bytes stands first among them.
 */
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/tokenizer_private.h"

enum mx8_status mx8i_add_added(struct mx8_added *a, const void *text, size_t size, struct mx8_added_token properties) {
    if (size == 0) return MX8_OK;
    if (a->count == a->capacity) {
        int64_t capacity = a->capacity ? 2 * a->capacity : 64;
        struct mx8_added_token *larger = mx8i_reallocate(a->token, (size_t)capacity * sizeof *larger, "added tokens");
        if (!larger) return MX8_OUT_OF_MEMORY;
        a->token = larger;
        a->capacity = capacity;
    }
    char *copy = mx8i_allocate(size + 1, "an added token");
    if (!copy) return MX8_OUT_OF_MEMORY;
    memcpy(copy, text, size);
    properties.text = copy;
    properties.size = size;
    a->token[a->count++] = properties;
    a->starts[(uint8_t)copy[0]] = 1;
    return MX8_OK;
}

static int compare_text(const void *left, const void *right) {
    const struct mx8_added_token *a = left, *b = right;
    int order = memcmp(a->text, b->text, a->size < b->size ? a->size : b->size);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

void mx8i_sort_added(struct mx8_added *a) {
    if (a->count > 1) qsort(a->token, (size_t)a->count, sizeof *a->token, compare_text);
}

/* First token in [low, high) whose byte `depth` is at least `byte`; all of them agree before it. */
static int64_t find_bound(const struct mx8_added *a, int64_t low, int64_t high, size_t depth, int byte) {
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const struct mx8_added_token *token = &a->token[middle];
        int here = depth < token->size ? (uint8_t)token->text[depth] : -1;
        if (here < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const struct mx8_added_token *match_here(const struct mx8_added *a, const uint8_t *text, size_t size) {
    const struct mx8_added_token *longest = NULL;
    int64_t low = 0, high = a->count;
    for (size_t depth = 0; depth < size && low < high; depth++) {
        low = find_bound(a, low, high, depth, text[depth]);
        high = find_bound(a, low, high, depth, text[depth] + 1);
        for (int64_t i = low; i < high && a->token[i].size == depth + 1; i++) longest = &a->token[i];
    }
    return longest;
}

static size_t skip_white(const uint8_t *text, size_t size, size_t at) {
    for (size_t length; at < size && mx8i_is_white(mx8i_decode_utf8(text + at, &length)); at += length) {
    }
    return at;
}

static size_t skip_white_back(const uint8_t *text, size_t limit, size_t at) {
    while (at > limit) {
        size_t before = at - 1, length;
        while (before > limit && (text[before] & 0xC0) == 0x80) before--;
        if (!mx8i_is_white(mx8i_decode_utf8(text + before, &length))) break;
        at = before;
    }
    return at;
}

int mx8i_match_added(const struct mx8_added *a, const uint8_t *text, size_t size, size_t from, int specials,
    struct mx8_added_match *out) {
    if (a->count == 0) return 0;
    for (size_t at = from; at < size; at++) {
        if (!a->starts[text[at]]) continue;
        const struct mx8_added_token *token = match_here(a, text + at, size - at);
        if (!token) continue;
        if (token->special && !specials) {
            at += token->size - 1; /* text as a whole: no other token begins within it */
            continue;
        }
        out->id = token->id;
        out->start = token->lstrip ? skip_white_back(text, from, at) : at;
        out->stop = token->rstrip ? skip_white(text, size, at + token->size) : at + token->size;
        return 1;
    }
    return 0;
}

void mx8i_close_added(struct mx8_added *a) {
    for (int64_t i = 0; i < a->count; i++) mx8i_release((void *)(uintptr_t)a->token[i].text);
    mx8i_release(a->token);
}
