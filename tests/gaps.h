/* Tensors of which it is known how many blocks lie far below the scale that they share; for the kernels of every
 * backend. */
#ifndef MX8_TESTS_GAPS_H
#define MX8_TESTS_GAPS_H

#include <math.h>
#include "kernels/kernels.h"

enum { GAP_ROWS = 200, GAP_COLS = 520, GAP_GROUPS = 4 };
static const int32_t gap_ends[GAP_GROUPS] = {0, 45, 109, 180}; /* 0, 45, 64, 71 rows; 20 behind them */

/* What the tensor does: falls along cols by blocks of 32, or along rows. */
struct gap_case {
    const char *name;
    int32_t fall, along_rows, group, tile, col_tile, grouped, rows, cols; /* fall: binades from a block to the next */
    int64_t wide;
};

/* Along 520 columns there are 16 blocks and one of 8 values; groups of 256 have 8 and the last one has 1. */
static const struct gap_case gap_cases[] = {
    {"own scales", 4, 0, 32, 1, 1, 0, 1, 1, 0},
    {"at the limit", 1, 0, 256, 1, 1, 0, 1, 0, 0},                       /* 7 binades at most */
    {"three binades", 3, 0, 256, 1, 1, 0, 1, 0, 200 * 2 * 4},            /* 12, 15, 18, 21 */
    {"two and a half times", 2, 0, 256, 1, 1, 0, 1, 0, 200 * 2 * 2},     /* 12, 14 */
    {"eleven binades are none", 11, 0, 256, 1, 1, 0, 1, 0, 200 * 2 * 6}, /* 22 to 77 */
    {"rows of groups", 3, 0, 256, 1, 1, 1, 1, 0, 180 * 2 * 4},
    /* along rows, blocks begin anew in each group: 0; 2 blocks (0, 12); 2; 3 (0, 12, 24) */
    {"columns of groups", 12, 1, 256, 1, 1, 1, 0, 1, 520 * (1 + 1 + 2)},
    {"both", 12, 1, 256, 1, 1, 1, 1, 1, 520 * (1 + 1 + 2)},
    /* a tile of 32 columns shares, so 200 rows have 6 blocks and one of 8: all but the first are below */
    {"columns in tiles", 12, 1, 256, 1, 32, 0, 0, 1, 520 * 6},
};

/* Magnitudes 2^-(fall k), and some halves, in block k of the row or of the group. Rows behind the groups are NaN:
 * nobody may read them. */
static inline float make_gap_value(const struct gap_case *c, int64_t r, int64_t col) {
    int64_t start = 0;
    for (int32_t g = 0; c->grouped && g < GAP_GROUPS && gap_ends[g] <= r; g++) start = gap_ends[g];
    if (c->grouped && r >= gap_ends[GAP_GROUPS - 1]) return NAN;
    const int64_t block = c->along_rows ? (r - start) / 32 % 8 : col / 32 % 8;
    return ldexpf((r + col) % 3 ? 1.0f : -0.5f, (int)(-c->fall * block));
}

enum {
    GAP_PADDED = 352,
    GAP_CODES = GAP_PADDED * GAP_COLS,
    GAP_SCALES = GAP_PADDED * (GAP_COLS + 31) / 32 + GAP_COLS * 12
};

/* Codes and scales of either orientation into blocks of GAP_CODES and GAP_SCALES bytes. */
static inline struct mx8_quant_job make_gap_job(const struct gap_case *c, const void *src, int32_t dtype,
    const int32_t *ends, uint8_t *codes[2], uint8_t *scales[2]) {
    const int64_t padded = c->grouped ? GAP_PADDED : GAP_ROWS;
    struct mx8_quant_job j = {.src = src,
        .src_dtype = dtype,
        .batch = 1,
        .rows = GAP_ROWS,
        .cols = GAP_COLS,
        .src_stride = {0, GAP_COLS, 1},
        .padded_rows = padded,
        .rule = MX8_SCALE_RCEIL,
        .format = MX8_F8_E4M3,
        .group = c->group,
        .tile = c->tile,
        .col_tile = c->col_tile};
    if (c->grouped) j.offsets = ends, j.n_groups = GAP_GROUPS;
    if (c->rows) {
        j.row_codes = codes[0];
        j.row_scales = scales[0];
        j.row_code_stride[1] = GAP_COLS;
        j.row_scale_stride[1] = (GAP_COLS + 31) / 32;
        j.row_code_stride[2] = j.row_scale_stride[2] = 1;
    }
    if (c->cols) {
        j.col_codes = codes[1];
        j.col_scales = scales[1];
        j.col_code_stride[2] = padded;
        j.col_scale_stride[2] = (padded + 31) / 32;
        j.col_code_stride[1] = j.col_scale_stride[1] = 1;
    }
    return j;
}

#endif
