/* Unicode normalization form C. Text is taken in runs: a character that can neither change nor join what is before it
 * begins a new one, and a run is decomposed, put in canonical order and composed (Unicode, 3.11). */
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/tokenizer_nfc_table.h"
#include "train/tokenizer_private.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])
#define CODE_MASK    0x1FFFFFU

enum { HANGUL = 0xAC00, LEAD = 0x1100, VOWEL = 0x1161, TAIL = 0x11A7, N_LEAD = 19, N_VOWEL = 21, N_TAIL = 28 };
enum { N_HANGUL = N_LEAD * N_VOWEL * N_TAIL };

/* Characters of one run: combining class << 56 | place << 24 | code, so that sorting keeps the order of equals. */
struct run {
    uint64_t *item;
    size_t count, capacity;
};

/* The last entry <= key; NULL when all are larger. */
static const uint64_t *find_entry(const uint64_t *table, size_t count, uint64_t key) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle] <= key)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &table[low - 1] : NULL;
}

static int is_unsafe(uint32_t code) {
    if (code < 0x300) return 0;
    const uint64_t *range = find_entry(unsafe, COUNT(unsafe), (uint64_t)code << 32 | UINT32_MAX);
    return range && code <= (uint32_t)*range;
}

static uint64_t find_class(uint32_t code) {
    const uint64_t *range = find_entry(classes, COUNT(classes), (uint64_t)code << 40 | 0xFFFFFFFFFF);
    return range && code <= (*range >> 8 & 0xFFFFFFFF) ? *range & 0xFF : 0;
}

int mx8i_is_nfc(const uint8_t *text, size_t size) {
    for (size_t at = 0, length; at < size; at += length) {
        if (text[at] < 0xCC) { /* below U+0300 */
            length = text[at] < 0x80 ? 1 : 2;
            continue;
        }
        if (is_unsafe(mx8i_decode_utf8(text + at, &length))) return 0;
    }
    return 1;
}

static enum mx8_status add_code(struct run *r, uint32_t code) {
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 64;
        uint64_t *larger = mx8i_reallocate(r->item, capacity * sizeof *larger, "characters to normalize");
        if (!larger) return MX8_OUT_OF_MEMORY;
        r->item = larger;
        r->capacity = capacity;
    }
    r->item[r->count] = find_class(code) << 56 | (uint64_t)(r->count & UINT32_MAX) << 24 | code;
    r->count++;
    return MX8_OK;
}

static enum mx8_status decompose(struct run *r, uint32_t code) {
    if (code >= HANGUL && code < HANGUL + N_HANGUL) {
        uint32_t index = code - HANGUL, tail = index % N_TAIL;
        MX8_TRY(add_code(r, LEAD + index / (N_VOWEL * N_TAIL)));
        MX8_TRY(add_code(r, VOWEL + index / N_TAIL % N_VOWEL));
        return tail ? add_code(r, TAIL + tail) : MX8_OK;
    }
    const uint64_t *entry = find_entry(decompositions, COUNT(decompositions), (uint64_t)(code + 1) << 42);
    if (!entry || *entry >> 42 != code) return add_code(r, code);
    MX8_TRY(decompose(r, (uint32_t)(*entry >> 21) & CODE_MASK));
    uint32_t second = (uint32_t)*entry & CODE_MASK;
    return second ? decompose(r, second) : MX8_OK;
}

static int compare_items(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static void order(struct run *r) {
    for (size_t at = 0; at < r->count;) {
        size_t end = at;
        while (end < r->count && r->item[end] >> 56) end++;
        if (end > at + 1) qsort(r->item + at, end - at, sizeof *r->item, compare_items);
        at = end + 1;
    }
}

/* The character that the two make together; 0: none. */
static uint32_t join(uint32_t first, uint32_t second) {
    if (first >= LEAD && first < LEAD + N_LEAD && second >= VOWEL && second < VOWEL + N_VOWEL)
        return HANGUL + ((first - LEAD) * N_VOWEL + second - VOWEL) * N_TAIL;
    if (first >= HANGUL && first < HANGUL + N_HANGUL && (first - HANGUL) % N_TAIL == 0 && second > TAIL &&
        second < TAIL + N_TAIL)
        return first + second - TAIL;
    uint64_t key = (uint64_t)first << 42 | (uint64_t)second << 21;
    const uint64_t *entry = find_entry(compositions, COUNT(compositions), key | CODE_MASK);
    return entry && (*entry & ~(uint64_t)CODE_MASK) == key ? (uint32_t)*entry & CODE_MASK : 0;
}

/* Joins each character with the last starter, unless one between them has its class or a higher one. */
static void compose(struct run *r) {
    size_t kept = 0, starter = SIZE_MAX;
    uint64_t last_class = 0;
    for (size_t i = 0; i < r->count; i++) {
        uint64_t class = r->item[i] >> 56;
        uint32_t code = (uint32_t)r->item[i] & 0xFFFFFF, joined = 0;
        int adjacent = starter != SIZE_MAX && starter + 1 == kept;
        if (starter != SIZE_MAX && (adjacent || last_class < class))
            joined = join((uint32_t)r->item[starter] & 0xFFFFFF, code);
        if (joined) {
            r->item[starter] = joined;
            continue;
        }
        if (class == 0) starter = kept;
        last_class = class;
        r->item[kept++] = r->item[i];
    }
    r->count = kept;
}

static enum mx8_status flush(struct run *r, struct mx8_bytes *out) {
    order(r);
    compose(r);
    for (size_t i = 0; i < r->count; i++) {
        uint8_t bytes[4];
        MX8_TRY(mx8i_append_bytes(out, bytes, mx8i_encode_utf8((uint32_t)r->item[i] & 0xFFFFFF, bytes)));
    }
    r->count = 0;
    return MX8_OK;
}

static enum mx8_status normalize(struct run *r, struct mx8_bytes *out, const uint8_t *text, size_t size) {
    for (size_t at = 0, length; at < size; at += length) {
        uint32_t code = mx8i_decode_utf8(text + at, &length);
        if (!is_unsafe(code)) MX8_TRY(flush(r, out));
        MX8_TRY(decompose(r, code));
    }
    return flush(r, out);
}

enum mx8_status mx8i_normalize_nfc(struct mx8_bytes *out, const uint8_t *text, size_t size) {
    struct run run = {0};
    out->size = 0;
    enum mx8_status status = normalize(&run, out, text, size);
    mx8i_release(run.item);
    return status;
}
