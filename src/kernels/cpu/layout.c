/* Scale matrices to the 128x4 blocked layout and back (mx8_block_scales has the variants).
 *
 * A matrix is cut into tiles of 128x4; a tile's 512 bytes lie together, row r and column c of it at byte
 * (r % 32) * 16 + r / 32 * 4 + c. Threads take whole tiles, and a tile writes all its bytes, those beyond the matrix as
 * zeros, so that only what lies behind the last group is left to clear. Moves R * C bytes in and out. */
#include <string.h>
#include "kernels/cpu/cpu_kernels.h"

enum { TILE_ROWS = 128, TILE_COLS = 4, TILE_BYTES = 512 };

/* A submatrix of the plain scales and the bytes it is blocked into. */
struct part {
    uint8_t *plain, *blocked;
    int64_t row_stride, col_stride, rows, cols;
};

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

static int64_t tile_count(const struct part *p) {
    return round_up(p->rows, TILE_ROWS) / TILE_ROWS * (round_up(p->cols, TILE_COLS) / TILE_COLS);
}

static int64_t limit(int64_t left, int64_t most) { return left < most ? left : most; }

static void move_tile(const struct part *p, int64_t tile, int to_blocked) {
    int64_t across = round_up(p->cols, TILE_COLS) / TILE_COLS;
    int64_t r0 = tile / across * TILE_ROWS, c0 = tile % across * TILE_COLS;
    int64_t rows = limit(p->rows - r0, TILE_ROWS), cols = limit(p->cols - c0, TILE_COLS);
    uint8_t *blocked = p->blocked + tile * TILE_BYTES;
    if (to_blocked && (rows < TILE_ROWS || cols < TILE_COLS)) memset(blocked, 0, TILE_BYTES);

    for (int64_t r = 0; r < rows; r++) {
        uint8_t *plain = p->plain + (r0 + r) * p->row_stride + c0 * p->col_stride;
        uint8_t *four = blocked + r % 32 * 16 + r / 32 * 4;
        for (int64_t c = 0; c < cols; c++) {
            if (to_blocked)
                four[c] = plain[c * p->col_stride];
            else
                plain[c * p->col_stride] = four[c];
        }
    }
}

/* PLAIN and PER_EXPERT: one whole matrix after the other. */
static void move_experts(const struct mx8_exec *x, const struct mx8_layout_job *j, int to_blocked) {
    struct part first = {j->plain, j->blocked, j->plain_stride[1], j->plain_stride[2], j->R, j->C};
    int64_t tiles = tile_count(&first);
#pragma omp parallel for num_threads(x->threads) schedule(static)
    for (int64_t i = 0; i < j->E * tiles; i++) {
        struct part p = first;
        p.plain += i / tiles * j->plain_stride[0];
        p.blocked += i / tiles * tiles * TILE_BYTES;
        move_tile(&p, i % tiles, to_blocked);
    }
}

static int64_t count_group_bytes(const struct mx8_layout_job *j) {
    if (j->layout == MX8_LAYOUT_M_GROUPS) return (j->R + (int64_t)TILE_ROWS * j->n_groups) * round_up(j->C, TILE_COLS);
    return round_up(j->R, TILE_ROWS) * (j->C + (int64_t)TILE_COLS * j->n_groups);
}

/* Plain scales at and past the last group's end read back as zeros. */
static void clear_plain(const struct mx8_layout_job *j, int64_t first_row, int64_t first_col) {
    for (int64_t r = first_row; r < j->R; r++)
        for (int64_t c = first_col; c < j->C; c++) j->plain[r * j->plain_stride[1] + c * j->plain_stride[2]] = 0;
}

/* M_GROUPS cuts rows, K_GROUPS columns; `pitch` is the bytes of one step along the cut axis. Every thread walks all the
 * groups and takes its share of each one's tiles. */
static void move_groups(const struct mx8_exec *x, const struct mx8_layout_job *j, int to_blocked) {
    int by_rows = j->layout == MX8_LAYOUT_M_GROUPS;
    int64_t unit = by_rows ? TILE_ROWS : TILE_COLS, stride = j->plain_stride[by_rows ? 1 : 2];
    int64_t pitch = by_rows ? round_up(j->C, TILE_COLS) : round_up(j->R, TILE_ROWS);
    int64_t end = j->n_groups ? j->offsets[j->n_groups - 1] : 0, blocked_end = 0;

#pragma omp parallel num_threads(x->threads)
    {
        int64_t start = 0, blocked_start = 0;
        for (int32_t g = 0; g < j->n_groups; g++) {
            int64_t size = j->offsets[g] - start;
            struct part p = {j->plain + start * stride, j->blocked + blocked_start * pitch, j->plain_stride[1],
                j->plain_stride[2], by_rows ? size : j->R, by_rows ? j->C : size};
            int64_t tiles = tile_count(&p);
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < tiles; i++) move_tile(&p, i, to_blocked);
            start = j->offsets[g];
            blocked_start += round_up(size, unit);
        }
#pragma omp master
        blocked_end = blocked_start;
    }
    if (!to_blocked)
        clear_plain(j, by_rows ? end : 0, by_rows ? 0 : end);
    else if (count_group_bytes(j) > blocked_end * pitch)
        memset(j->blocked + blocked_end * pitch, 0, (size_t)(count_group_bytes(j) - blocked_end * pitch));
}

static void write_starts(const struct mx8_layout_job *j) {
    int64_t unit = j->layout == MX8_LAYOUT_M_GROUPS ? TILE_ROWS : TILE_COLS, start = 0, blocked_start = 0;
    for (int32_t g = 0; g < j->n_groups; g++) {
        j->starts[g] = blocked_start;
        blocked_start += round_up(j->offsets[g] - start, unit);
        start = j->offsets[g];
    }
    j->starts[j->n_groups] = blocked_start;
}

static enum mx8_status move_scales(const struct mx8_exec *x, const struct mx8_layout_job *j, int to_blocked) {
    if (j->layout == MX8_LAYOUT_M_GROUPS || j->layout == MX8_LAYOUT_K_GROUPS) {
        move_groups(x, j, to_blocked);
        if (to_blocked && j->starts) write_starts(j);
    } else {
        move_experts(x, j, to_blocked);
    }
    return MX8_OK;
}

enum mx8_status mx8i_cpu_block_scales(const struct mx8_exec *x, const struct mx8_layout_job *j) {
    return move_scales(x, j, 1);
}

enum mx8_status mx8i_cpu_unblock_scales(const struct mx8_exec *x, const struct mx8_layout_job *j) {
    return move_scales(x, j, 0);
}
