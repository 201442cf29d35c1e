/* Numbers as TOML 1.0 writes them; flags accept the same. size counts the bytes of text; all must belong to the number.
 */
#ifndef MX8_BASE_NUMBER_H
#define MX8_BASE_NUMBER_H
#include <stddef.h>
#include <stdint.h>

enum mx8_number { MX8_NUMBER_OK, MX8_NUMBER_MALFORMED, MX8_NUMBER_OUT_OF_RANGE };

/* [+-]digits with single underscores between digits, or 0x, 0o, 0b and digits. No leading zeros. */
enum mx8_number mx8i_parse_integer(const char *text, size_t size, int64_t *out);
/* [+-]digits[.digits][e[+-]digits] with a fraction or an exponent; inf and nan with a sign or without. */
enum mx8_number mx8i_parse_number(const char *text, size_t size, double *out);
#endif
