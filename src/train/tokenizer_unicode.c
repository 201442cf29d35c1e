/* UTF-8 and the two small tables of characters that tokenizers share. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/tokenizer_private.h"

enum mx8_status mx8i_grow_bytes(struct mx8_bytes *b, size_t capacity) {
    if (capacity <= b->capacity) return MX8_OK;
    size_t larger = b->capacity ? 2 * b->capacity : 256;
    if (larger < capacity) larger = capacity;
    uint8_t *data = mx8i_reallocate(b->data, larger, "text");
    if (!data) return MX8_OUT_OF_MEMORY;
    b->data = data;
    b->capacity = larger;
    return MX8_OK;
}

enum mx8_status mx8i_append_bytes(struct mx8_bytes *b, const void *data, size_t size) {
    MX8_TRY(mx8i_grow_bytes(b, b->size + size + 1)); /* so that no bytes have an address, too */
    if (size > 0) memcpy(b->data + b->size, data, size);
    b->size += size;
    return MX8_OK;
}

uint32_t mx8i_decode_utf8(const uint8_t *text, size_t *length) {
    uint32_t first = text[0];
    if (first < 0x80) return *length = 1, first;
    if (first < 0xE0) return *length = 2, (first & 0x1F) << 6 | (text[1] & 0x3FU);
    if (first < 0xF0) return *length = 3, (first & 0x0F) << 12 | (text[1] & 0x3FU) << 6 | (text[2] & 0x3FU);
    *length = 4;
    return (first & 0x07) << 18 | (text[1] & 0x3FU) << 12 | (text[2] & 0x3FU) << 6 | (text[3] & 0x3FU);
}

size_t mx8i_encode_utf8(uint32_t code, uint8_t out[4]) {
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = length - 1; i > 0; i--, code >>= 6) out[i] = (uint8_t)(0x80 | (code & 0x3F));
    out[0] = (uint8_t)(marks[length] | code);
    return length;
}

/* Well-formed sequences (Unicode, table 3-7): how many bytes follow, and the limits of the first of them. */
static size_t count_following(uint8_t first, uint8_t *low, uint8_t *high) {
    *low = 0x80;
    *high = 0xBF;
    if (first >= 0xC2 && first <= 0xDF) return 1;
    if (first >= 0xE0 && first <= 0xEF) {
        if (first == 0xE0) *low = 0xA0;  /* no overlong forms */
        if (first == 0xED) *high = 0x9F; /* no surrogates */
        return 2;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        if (first == 0xF0) *low = 0x90;
        if (first == 0xF4) *high = 0x8F; /* nothing above U+10FFFF */
        return 3;
    }
    return 0;
}

size_t mx8i_check_utf8(const uint8_t *text, size_t size, size_t *bad) {
    size_t at = 0;
    *bad = 0;
    while (at < size) {
        uint64_t eight;
        if (size - at >= 8 && (memcpy(&eight, text + at, 8), !(eight & 0x8080808080808080U))) {
            at += 8;
            continue;
        }
        if (text[at] < 0x80) {
            at++;
            continue;
        }
        uint8_t low, high;
        size_t following = count_following(text[at], &low, &high), good = 0;
        while (good < following && at + 1 + good < size && text[at + 1 + good] >= low && text[at + 1 + good] <= high) {
            good++;
            low = 0x80;
            high = 0xBF;
        }
        if (following == 0 || good < following) {
            *bad = 1 + good;
            return at;
        }
        at += 1 + following;
    }
    return at;
}

enum mx8_status mx8i_repair_utf8(struct mx8_bytes *out, const uint8_t *text, size_t size, int64_t *replaced) {
    out->size = 0;
    while (size > 0) {
        size_t bad, good = mx8i_check_utf8(text, size, &bad);
        MX8_TRY(mx8i_append_bytes(out, text, good));
        if (bad) {
            MX8_TRY(mx8i_append_bytes(out, "\xEF\xBF\xBD", 3));
            ++*replaced;
        }
        text += good + bad;
        size -= good + bad;
    }
    return MX8_OK;
}

int mx8i_is_white(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Bytes that print in Latin-1 stand for themselves; the 68 others are U+0100, U+0101, ... in order. */
static int is_plain(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

static int unmap_character(uint32_t code) {
    if (code < 256) return is_plain(code) ? (int)code : -1;
    if (code < 256 + 33) return (int)(code - 256);             /* 0x00 to 0x20 */
    if (code < 256 + 67) return (int)(code - 256 - 33) + 0x7F; /* 0x7F to 0xA0 */
    return code == 256 + 67 ? 0xAD : -1;
}

int mx8i_unmap_bytes(const char *text, size_t size, struct mx8_bytes *out) {
    out->size = 0;
    for (size_t at = 0, length; at < size; at += length) {
        int byte = unmap_character(mx8i_decode_utf8((const uint8_t *)text + at, &length));
        uint8_t value = (uint8_t)byte;
        if (byte < 0 || mx8i_append_bytes(out, &value, 1) != MX8_OK) return 0;
    }
    return 1;
}
