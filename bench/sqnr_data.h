/* What the SQNR study multiplies: x (T,K), w (N,K) and dy (T,N) of one linear, made by a formula or read from a file
 * that debug.dump_tensors wrote. Any element can be had without the others, so that a study of 4096^3 reads a few
 * lines. */
#ifndef MX8_BENCH_SQNR_DATA_H
#define MX8_BENCH_SQNR_DATA_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "base/safetensors.h"
#include "mx8/formats.h"

enum tensor { TENSOR_X, TENSOR_W, TENSOR_DY };

/* A formula's entries: how x is distributed, and whether tokens' gradients spread over magnitudes as they do in
 * training. */
enum shape { SHAPE_GAUSS, SHAPE_T3, SHAPE_SWIGLU };
struct source {
    char name[96];
    enum shape shape;
    double outlier; /* every `step`-th channel of x times this; 0: none */
    int step;
    int balanced; /* the weights that meet these channels are smaller by as much, as where training made them so */
    int spread;   /* dy: a token's gradients times exp(2 g), g a normal number of the token's own */
    int64_t T, N, K;
    struct mx8_safetensors *file; /* NULL: a formula */
    const struct mx8_st_entry *entry[3];
    int64_t first_row, matrix; /* of the file: an expert's rows of x and dy, and which matrix of w */
};

static inline double draw_normal(uint64_t stream, int64_t row, int64_t col) {
    return mx8i_random_normal(1, stream, (uint64_t)row << 32 | (uint64_t)col);
}

/* Student's t with 3 degrees of freedom. */
static inline double draw_t3(uint64_t stream, int64_t row, int64_t col) {
    double square = 0;
    for (uint64_t i = 1; i <= 3; i++) {
        double g = draw_normal(stream + 100 * i, row, col);
        square += g * g;
    }
    return draw_normal(stream, row, col) / sqrt(square / 3);
}

static inline double draw_x(const struct source *s, int64_t t, int64_t k) {
    double g = s->shape == SHAPE_T3 ? draw_t3(1, t, k) : draw_normal(1, t, k);
    if (s->shape == SHAPE_SWIGLU) g = g / (1 + exp(-g)) * draw_normal(2, t, k) * exp(draw_normal(3, 0, k));
    return s->outlier > 0 && k % s->step == 0 ? g * s->outlier : g;
}

static inline double draw_element(const struct source *s, enum tensor which, int64_t row, int64_t col) {
    if (which == TENSOR_X) return draw_x(s, row, col);
    double g = s->shape == SHAPE_T3 ? draw_t3(4 + which, row, col) : draw_normal(4 + which, row, col);
    if (which == TENSOR_W) return s->balanced && col % s->step == 0 ? g * 0.02 / s->outlier : g * 0.02;
    return g * 1e-4 * (s->spread ? exp(2 * draw_normal(9, row, 0)) : 1);
}

static inline float read_element(const struct source *s, enum tensor which, int64_t row, int64_t col) {
    if (!s->file) return (float)draw_element(s, which, row, col);
    const struct mx8_st_entry *e = s->entry[which];
    int64_t cols = e->shape[e->ndim - 1];
    row += which == TENSOR_W ? s->matrix * s->N : s->first_row;
    if (e->dtype == MX8_F32) return ((const float *)e->data)[row * cols + col];
    return mx8_decode_bf16(((const uint16_t *)e->data)[row * cols + col]);
}

/* Out (lines, depth): elements [first, first + lines) x [0, depth) of the tensor, or of its transpose. */
static inline void read_lines(
    const struct source *s, enum tensor which, int transposed, int64_t lines, int64_t depth, float *out) {
#pragma omp parallel for schedule(static)
    for (int64_t l = 0; l < lines; l++)
        for (int64_t d = 0; d < depth; d++)
            out[l * depth + d] = transposed ? read_element(s, which, d, l) : read_element(s, which, l, d);
}

/* The expert with the most rows. */
static inline void pick_expert(struct source *s, const struct mx8_st_entry *offsets) {
    const int32_t *ends = offsets->data;
    s->T = 0;
    for (int64_t e = 0, start = 0; e < offsets->shape[0]; start = ends[e++]) {
        if (ends[e] - start <= s->T) continue;
        s->T = ends[e] - start;
        s->first_row = start;
        s->matrix = e;
    }
}

/* One file of debug.dump_tensors. Returns 0 and says why when it is none. */
static inline int open_source(const char *path, struct source *s) {
    *s = (struct source){.file = calloc(1, sizeof *s->file)};
    const char *start = strrchr(path, '/'); /* the name with its folder's */
    while (start && start > path && start[-1] != '/') start--;
    snprintf(s->name, sizeof s->name, "%s", start ? start : path);
    char *suffix = strstr(s->name, ".safetensors");
    if (suffix) *suffix = 0;
    if (!s->file || mx8i_open_safetensors(path, s->file) != MX8_OK) {
        fprintf(stderr, "sqnr: %s\n", mx8_get_last_error());
        return 0;
    }
    static const char *const names[] = {"x", "w", "dy"};
    for (int i = 0; i < 3; i++) {
        s->entry[i] = mx8i_find_tensor(s->file, names[i]);
        if (s->entry[i]) continue;
        fprintf(
            stderr, "sqnr: %s has no tensor \"%s\", expected a file that debug.dump_tensors wrote\n", path, names[i]);
        return 0;
    }
    s->T = s->entry[TENSOR_X]->shape[0];
    s->K = s->entry[TENSOR_X]->shape[1];
    s->N = s->entry[TENSOR_DY]->shape[1];
    const struct mx8_st_entry *offsets = mx8i_find_tensor(s->file, "offsets");
    if (offsets) pick_expert(s, offsets);
    return 1;
}

static inline void close_source(struct source *s) {
    if (s->file) mx8i_close_safetensors(s->file);
    free(s->file);
    s->file = NULL;
}

#endif
