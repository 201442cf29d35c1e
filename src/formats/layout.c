/* Plain scale matrices to the 128x4 blocked layout of Blackwell's tensor cores and cuBLAS, and back.
 *
 * A matrix is padded to multiples of 128 rows and 4 columns and cut into tiles of 128x4 = 512 bytes, tiles row-major.
 * Inside a tile the four 32-row quarters lie side by side: byte (r % 32) * 16 + (r % 128) / 32 * 4 + c % 4. Every group
 * or expert is such a matrix of its own; the variants differ in where one begins. The layout is a one-to-one map, so
 * both directions walk the plain matrix and ask for the place of each byte. */
#include <string.h>
#include "formats/jobs.h"

#define TILE_ROWS  128
#define TILE_COLS  4
#define TILE_BYTES 512

enum direction { TO_BLOCKED, FROM_BLOCKED };

/* A submatrix of the plain scales and the bytes it is blocked into. */
struct part {
    uint8_t *plain;
    int64_t row_stride, col_stride;
    int64_t rows, cols;
    uint8_t *blocked;
};

static int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

static int64_t locate(int64_t r, int64_t c, int64_t cols) {
    int64_t tile = r / TILE_ROWS * (round_up(cols, TILE_COLS) / TILE_COLS) + c / TILE_COLS;
    return tile * TILE_BYTES + r % 32 * 16 + r % TILE_ROWS / 32 * 4 + c % TILE_COLS;
}

static void move_part(const struct part *p, enum direction direction) {
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t c = 0; c < p->cols; c++) {
            uint8_t *plain = p->plain + r * p->row_stride + c * p->col_stride;
            uint8_t *blocked = p->blocked + locate(r, c, p->cols);
            if (direction == TO_BLOCKED)
                *blocked = *plain;
            else
                *plain = *blocked;
        }
    }
}

/* Scales past the last group. */
static void clear_tail(const struct mx8_layout_job *j, int64_t first_row, int64_t first_col) {
    for (int64_t r = first_row; r < j->R; r++) {
        for (int64_t c = first_col; c < j->C; c++) {
            j->plain[r * j->plain_stride[1] + c * j->plain_stride[2]] = 0;
        }
    }
}

/* PLAIN and PER_EXPERT: one whole matrix after the other. */
static void move_experts(const struct mx8_layout_job *j, enum direction direction) {
    int64_t size = round_up(j->R, TILE_ROWS) * round_up(j->C, TILE_COLS);
    for (int64_t e = 0; e < j->E; e++) {
        struct part p = {j->plain + e * j->plain_stride[0], j->plain_stride[1], j->plain_stride[2], j->R, j->C,
            j->blocked + e * size};
        move_part(&p, direction);
    }
}

/* M_GROUPS cuts rows, K_GROUPS columns. Each group begins at a multiple of a tile's side, which is counted in `starts`;
 * one step along the cut axis is `pitch` bytes, the padded extent of the other axis. */
static void move_groups(const struct mx8_layout_job *j, enum direction direction) {
    int by_rows = j->layout == MX8_LAYOUT_M_GROUPS;
    int64_t unit = by_rows ? TILE_ROWS : TILE_COLS, stride = j->plain_stride[by_rows ? 1 : 2];
    int64_t pitch = by_rows ? round_up(j->C, TILE_COLS) : round_up(j->R, TILE_ROWS);
    int64_t start = 0, blocked_start = 0;
    int64_t *starts = direction == TO_BLOCKED ? j->starts : NULL;

    for (int32_t g = 0; g < j->n_groups; g++) {
        int64_t size = j->offsets[g] - start;
        struct part p = {j->plain + start * stride, j->plain_stride[1], j->plain_stride[2], by_rows ? size : j->R,
            by_rows ? j->C : size, j->blocked + blocked_start * pitch};
        move_part(&p, direction);
        if (starts) starts[g] = blocked_start;
        start = j->offsets[g];
        blocked_start += round_up(size, unit);
    }
    if (starts) starts[j->n_groups] = blocked_start;
    if (direction == FROM_BLOCKED) clear_tail(j, by_rows ? start : 0, by_rows ? 0 : start);
}

/* Bytes of the whole output, an upper bound in the group variants: how large groups are is data. */
static int64_t count_blocked_bytes(const struct mx8_layout_job *j) {
    int64_t rows = round_up(j->R, TILE_ROWS), cols = round_up(j->C, TILE_COLS);
    if (j->layout == MX8_LAYOUT_M_GROUPS) return (j->R + (int64_t)TILE_ROWS * j->n_groups) * cols;
    if (j->layout == MX8_LAYOUT_K_GROUPS) return rows * (j->C + (int64_t)TILE_COLS * j->n_groups);
    return j->E * rows * cols;
}

static void move_scales(const struct mx8_layout_job *j, enum direction direction) {
    if (j->layout == MX8_LAYOUT_M_GROUPS || j->layout == MX8_LAYOUT_K_GROUPS)
        move_groups(j, direction);
    else
        move_experts(j, direction);
}

void mx8i_reference_block_scales(const struct mx8_layout_job *j) {
    int64_t size = count_blocked_bytes(j);
    if (size > 0) memset(j->blocked, 0, (size_t)size);
    move_scales(j, TO_BLOCKED);
}

void mx8i_reference_unblock_scales(const struct mx8_layout_job *j) {
    move_scales(j, FROM_BLOCKED);
}
