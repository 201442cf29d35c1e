/* TOML's number grammar. */
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DIGITS = 512 }; /* of a float: more would only pad it */

static int get_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return 99;
}

/* Bytes of the run of digits at the start of text, underscores between two digits included. */
static size_t measure_digits(const char *text, size_t size, int base) {
    size_t i = 0;
    while (i < size) {
        int is_joint = text[i] == '_' && i > 0 && i + 1 < size && get_digit(text[i + 1]) < base;
        if (get_digit(text[i]) >= base && !is_joint) break;
        i++;
    }
    return i;
}

static int has_leading_zero(const char *text, size_t size) {
    return size > 1 && text[0] == '0';
}

enum mx8_number mx8i_parse_integer(const char *text, size_t size, int64_t *out) {
    int is_negative = size > 0 && text[0] == '-', has_sign = is_negative || (size > 0 && text[0] == '+'), base = 10;
    const char *digits = text + has_sign;
    size -= (size_t)has_sign;
    if (!has_sign && size > 2 && digits[0] == '0') {
        base = digits[1] == 'x' ? 16 : digits[1] == 'o' ? 8 : digits[1] == 'b' ? 2 : 10;
        if (base != 10) digits += 2, size -= 2;
    }
    if (size == 0 || measure_digits(digits, size, base) != size || (base == 10 && has_leading_zero(digits, size)))
        return MX8_NUMBER_MALFORMED;
    int64_t value = 0;
    for (size_t i = 0; i < size; i++) {
        if (digits[i] == '_') continue;
        int digit = get_digit(digits[i]); /* built with its sign: INT64_MIN has no positive */
        if (__builtin_mul_overflow(value, base, &value) ||
            __builtin_add_overflow(value, is_negative ? -digit : digit, &value))
            return MX8_NUMBER_OUT_OF_RANGE;
    }
    *out = value;
    return MX8_NUMBER_OK;
}

/* Whether text is a TOML float; strtod alone takes hexadecimals, ".5" and "5.". */
static int is_number(const char *text, size_t size) {
    size_t i = size > 0 && (text[0] == '-' || text[0] == '+');
    size_t whole = measure_digits(text + i, size - i, 10);
    if (whole == 0 || has_leading_zero(text + i, whole)) return 0;
    i += whole;
    if (i == size) return 0; /* an integer */
    if (text[i] == '.') {
        size_t fraction = measure_digits(text + i + 1, size - i - 1, 10);
        if (fraction == 0) return 0;
        i += 1 + fraction;
    }
    if (i < size && (text[i] == 'e' || text[i] == 'E')) {
        i++;
        if (i < size && (text[i] == '-' || text[i] == '+')) i++;
        size_t exponent = measure_digits(text + i, size - i, 10);
        if (exponent == 0) return 0;
        i += exponent;
    }
    return i == size;
}

enum mx8_number mx8i_parse_number(const char *text, size_t size, double *out) {
    char plain[MAX_DIGITS];
    size_t length = 0, sign = size > 0 && (text[0] == '-' || text[0] == '+');
    int is_word = size - sign == 3 && (memcmp(text + sign, "inf", 3) == 0 || memcmp(text + sign, "nan", 3) == 0);
    if (!is_word && !is_number(text, size)) return MX8_NUMBER_MALFORMED;
    if (size >= sizeof plain) return MX8_NUMBER_OUT_OF_RANGE;
    for (size_t i = 0; i < size; i++)
        if (text[i] != '_') plain[length++] = text[i];
    plain[length] = 0;
    *out = strtod(plain, NULL);
    return MX8_NUMBER_OK;
}
