/* The list of what is saved. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/checkpoint.h"

static void *grow(void *list, int64_t count, size_t size) {
    if (count % 64) return list;
    return mx8i_reallocate(list, (size_t)(count + 64) * size, "the list of what is saved");
}

static enum mx8_status add_tensor(
    struct mx8_state *s, const char *name, int32_t dtype, int32_t ndim, const int64_t *shape, int64_t *count) {
    struct mx8_state_tensor *tensors = grow(s->tensor, s->n_tensors, sizeof *tensors);
    char *copy = tensors ? mx8i_copy_text(name) : NULL;
    if (tensors) s->tensor = tensors;
    if (!copy) return MX8_OUT_OF_MEMORY;
    struct mx8_state_tensor t = {.name = copy, .dtype = dtype, .stored = dtype, .ndim = ndim, .count = 1};
    for (int32_t d = 0; d < ndim; d++) t.count *= t.shape[d] = shape[d];
    *count = t.count;
    s->tensor[s->n_tensors++] = t;
    return MX8_OK;
}

/* Of the tensor that was added last. */
static enum mx8_status add_piece(struct mx8_state *s, struct mx8_piece piece) {
    struct mx8_piece *pieces = grow(s->piece, s->n_pieces, sizeof *pieces);
    if (!pieces) return MX8_OUT_OF_MEMORY;
    piece.tensor = s->n_tensors - 1;
    s->piece = pieces;
    s->piece[s->n_pieces++] = piece;
    return MX8_OK;
}

enum mx8_status mx8i_add_state(struct mx8_state *s, const char *name, int32_t dtype, int32_t ndim, const int64_t *shape,
    void *data, int32_t on_host) {
    int64_t count;
    MX8_TRY(add_tensor(s, name, dtype, ndim, shape, &count));
    return add_piece(s, (struct mx8_piece){.count = count, .data = data, .on_host = on_host, .common = 1});
}

enum mx8_status mx8i_add_state_part(struct mx8_state *s, const char *name, int32_t dtype, int32_t ndim,
    const int64_t *shape, void *data, int64_t start, int64_t count) {
    int64_t whole;
    MX8_TRY(add_tensor(s, name, dtype, ndim, shape, &whole));
    return count ? add_piece(s, (struct mx8_piece){.start = start, .count = count, .data = data}) : MX8_OK;
}

void mx8i_drop_pieces(struct mx8_state *s, int32_t common) {
    int64_t kept = 0;
    for (int64_t i = 0; i < s->n_pieces; i++) {
        if (!s->piece[i].common == !common) continue;
        s->piece[kept++] = s->piece[i];
    }
    s->n_pieces = kept;
}

void mx8i_free_state(struct mx8_state *s) {
    for (int64_t i = 0; i < s->n_tensors; i++) mx8i_release(s->tensor[i].name);
    mx8i_release(s->tensor);
    mx8i_release(s->piece);
    *s = (struct mx8_state){0};
}

size_t mx8i_count_state_bytes(const struct mx8_state *s) {
    size_t bytes = 0;
    for (int64_t i = 0; i < s->n_pieces; i++)
        bytes += (size_t)s->piece[i].count * mx8_get_dtype_size(s->tensor[s->piece[i].tensor].dtype);
    return bytes;
}

size_t mx8i_count_snapshot_bytes(const struct mx8_state *s) {
    size_t bytes = 0;
    for (int64_t i = 0; i < s->n_pieces; i++) {
        size_t size = (size_t)s->piece[i].count * mx8_get_dtype_size(s->tensor[s->piece[i].tensor].dtype);
        bytes += (size + MX8_SNAPSHOT_ALIGNMENT - 1) / MX8_SNAPSHOT_ALIGNMENT * MX8_SNAPSHOT_ALIGNMENT;
    }
    return bytes;
}
