#include "formats/conformance_inputs.h"
#include <math.h>
#include <string.h>
#include "base/rng.h"
#include "mx8/formats.h"

enum { SEED = 2026, KINDS = 16, SPECIAL = 20 };

static uint32_t draw(uint64_t stream, uint64_t n) {
    uint32_t words[4];
    mx8i_philox(SEED, stream, n / 4, words);
    return words[n % 4];
}

static float make_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- single values ---- */

static const uint32_t special[SPECIAL] = {0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000,
    0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x43E80000 /* 464 */,
    0x43E80001, 0x43E7FFFF, 0x47700000 /* 61440 */, 0x476FFFFF, 0x47700001, 0x3F800000};

/* The positive finite codes of e4m3 and e5m2 give four values each, with both signs. */
int64_t mx8i_count_element_inputs(void) {
    return SPECIAL + 2 * 4 * (0x7E + 0x7B + 2);
}

void mx8i_fill_element_inputs(float *out) {
    for (int i = 0; i < SPECIAL; i++) *out++ = make_float(special[i]);
    for (int format = 0; format < 2; format++) {
        for (int code = 0; code <= (format ? 0x7B : 0x7E); code++) {
            float value = format ? mx8_decode_e5m2((uint8_t)code) : mx8_decode_e4m3((uint8_t)code);
            int last = code == (format ? 0x7B : 0x7E);
            float next = last     ? value * 1.0625f
                         : format ? mx8_decode_e5m2((uint8_t)(code + 1))
                                  : mx8_decode_e4m3((uint8_t)(code + 1));
            float middle = (value + next) / 2; /* exact: a tie */
            const float four[] = {value, middle, nextafterf(middle, 0), nextafterf(middle, next * 2)};
            for (int i = 0; i < 4; i++) {
                *out++ = four[i];
                *out++ = -four[i];
            }
        }
    }
}

/* ---- matrices ---- */

/* Largest magnitudes at which the rules part: docs/formats.md has the table. */
static const uint32_t corners[] = {0x00000001, 0x00800000, 0x04600000, 0x04600001, 0x04600002, 0x07E00000, 0x07E00001,
    0x3F800000, 0x43E00000, 0x43E00001, 0x43F80000, 0x43F7FFFF, 0x43FFFFFF, 0x44000000, 0x47600000, 0x47600001,
    0x477FFFFF, 0x7F77FFFF, 0x7F780000, 0x7F7FFFFF, 0x7F6FFFFF, 0x7F700000};
#define N_CORNERS (sizeof corners / sizeof corners[0])

/* In [-1, 1), a multiple of 2^-23. */
static float draw_fraction(uint64_t at) {
    return ldexpf((float)(int32_t)(draw(1, at) >> 8), -23) - 1;
}

/* Element i of a block of some kind; `at` is a number of its own for each element. */
static float make_element(uint64_t kind, int i, uint64_t at, int32_t format) {
    float fraction = draw_fraction(at);
    int top = format == MX8_F8_E5M2 ? 15 : 8;
    switch (kind % KINDS) {
    case 0:
        return i % 2 ? 0.0f : -0.0f;
    case 1:
        return i == 7 ? NAN : fraction;
    case 2:
        return i == 31 || i == 3 ? -INFINITY : fraction;
    case 3: /* ties between neighbouring codes, where the scale is 1 */
        return i == 0 ? ldexpf(1, top) : ldexpf((float)(2 * (8 + i % 8) + 1), top - 5) * (i % 2 ? -1.0f : 1.0f);
    case 4: /* ties between subnormal codes */
        return i == 0 ? ldexpf(1, top) : ldexpf((float)i, format == MX8_F8_E5M2 ? -17 : -10);
    case 5:
        return make_float((draw(2, at) & 0x807FFFFFu)); /* float subnormals */
    case 6:
        return ldexpf(fraction, (int)(draw(3, at) % 60) - 40);
    case 7:
        return ldexpf(fraction, 120);
    case 8:
    case 9:
    case 10:
    case 11: { /* a corner as the largest magnitude */
        float amax = make_float(corners[(kind / KINDS * 4 + kind % KINDS - 8) % N_CORNERS]);
        return i == 5 ? -amax : fraction * amax;
    }
    default:
        return ldexpf(fraction, (int)(draw(4, kind) % 40) - 20); /* ordinary */
    }
}

void mx8i_fill_matrix(void *out, int32_t dtype, const struct mx8_input_shape *s) {
    int64_t length = s->along_rows ? s->rows : s->cols, blocks = (length + MX8_BLOCK - 1) / MX8_BLOCK, at = 0;
    int64_t lines = s->along_rows ? s->cols : s->rows;
    for (int64_t e = 0; e < s->batch; e++) {
        for (int64_t r = 0; r < s->rows; r++) {
            for (int64_t c = 0; c < s->cols; c++, at++) {
                int64_t line = s->along_rows ? c : r, i = s->along_rows ? r : c;
                uint64_t block = (uint64_t)((e * lines + line) * blocks + i / MX8_BLOCK);
                uint64_t unit = s->unit > 1 ? (uint64_t)s->unit : 1;
                float value = block % unit ? draw_fraction((uint64_t)at)
                                           : make_element(block / unit, (int)(i % MX8_BLOCK), (uint64_t)at, s->format);
                if (dtype == MX8_F32)
                    ((float *)out)[at] = value;
                else
                    ((uint16_t *)out)[at] = mx8_encode_bf16(value);
            }
        }
    }
}

void mx8i_fill_bytes(uint8_t *out, int64_t n, uint64_t stream) {
    for (int64_t i = 0; i < n; i++) out[i] = i < 256 ? (uint8_t)i : (uint8_t)draw(stream + 10, (uint64_t)i);
}

void mx8i_fill_offsets(int32_t *out, int32_t groups, int64_t extent) {
    for (int32_t g = 0; g < groups; g++)
        out[g] = (int32_t)(g == 1 ? out[0] : extent * (g + 1) * (g + 2) / ((int64_t)groups * (groups + 1)));
}
