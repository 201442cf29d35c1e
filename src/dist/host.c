/* Small collectives in host memory, made of a transport's gather and exchange: metrics, hashes, counts, decisions. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "dist/dist.h"

static enum mx8_status gather_now(struct mx8_comm *c, void *buffer, const size_t *cut) {
    int32_t ticket = 0;
    MX8_TRY(c->t->start_gather(c, buffer, cut, &ticket));
    return c->t->wait(c, &ticket);
}

enum mx8_status mx8i_gather_entries(struct mx8_comm *c, void *all, size_t bytes) {
    if (c->size == 1) return MX8_OK;
    size_t *cut = mx8i_allocate(((size_t)c->size + 1) * sizeof *cut, "a gather");
    if (!cut) return MX8_OUT_OF_MEMORY;
    for (int32_t r = 0; r <= c->size; r++) cut[r] = (size_t)r * bytes;
    enum mx8_status status = gather_now(c, all, cut);
    mx8i_release(cut);
    return status;
}

/* Every rank's n values of 8 bytes, this rank's filled in. */
static enum mx8_status gather_values(struct mx8_comm *c, const void *values, int64_t n, void **all) {
    const size_t bytes = (size_t)n * sizeof(double);
    *all = mx8i_allocate((size_t)c->size * bytes, "a sum over ranks");
    if (!*all) return MX8_OUT_OF_MEMORY;
    memcpy((char *)*all + (size_t)c->rank * bytes, values, bytes);
    return mx8i_gather_entries(c, *all, bytes);
}

enum mx8_status mx8i_sum_doubles(struct mx8_comm *c, double *values, int64_t n) {
    void *all = NULL;
    if (c->size == 1) return MX8_OK;
    enum mx8_status status = gather_values(c, values, n, &all);
    const double *from = all;
    for (int64_t i = 0; status == MX8_OK && i < n; i++) {
        values[i] = from[i];
        for (int32_t r = 1; r < c->size; r++) values[i] += from[r * n + i];
    }
    mx8i_release(all);
    return status;
}

enum mx8_status mx8i_sum_integers(struct mx8_comm *c, int64_t *values, int64_t n) {
    void *all = NULL;
    if (c->size == 1) return MX8_OK;
    enum mx8_status status = gather_values(c, values, n, &all);
    const int64_t *from = all;
    for (int64_t i = 0; status == MX8_OK && i < n; i++) {
        values[i] = 0;
        for (int32_t r = 0; r < c->size; r++) values[i] += from[r * n + i];
    }
    mx8i_release(all);
    return status;
}

enum mx8_status mx8i_sum_over_shards(struct mx8_dist *d, double *value) {
    const int32_t first = d->grid.rank / d->grid.shard * d->grid.shard;
    void *all = NULL;
    if (d->host.size == 1) return MX8_OK;
    enum mx8_status status = gather_values(&d->host, value, 1, &all);
    *value = 0;
    for (int32_t r = first; status == MX8_OK && r < first + d->grid.shard; r++) *value += ((const double *)all)[r];
    mx8i_release(all);
    return status;
}

enum mx8_status mx8i_find_least(struct mx8_comm *c, int64_t *value) {
    void *all = NULL;
    if (c->size == 1) return MX8_OK;
    enum mx8_status status = gather_values(c, value, 1, &all);
    for (int32_t r = 0; status == MX8_OK && r < c->size; r++) {
        if (*value > ((const int64_t *)all)[r]) *value = ((const int64_t *)all)[r];
    }
    mx8i_release(all);
    return status;
}

enum mx8_status mx8i_broadcast(struct mx8_comm *c, void *data, size_t bytes, int32_t from) {
    if (c->size == 1 || !bytes) return MX8_OK;
    size_t *cut = mx8i_allocate(((size_t)c->size + 1) * sizeof *cut, "a broadcast");
    if (!cut) return MX8_OUT_OF_MEMORY;
    for (int32_t r = 0; r <= c->size; r++) cut[r] = r > from ? bytes : 0; /* a gather to which one rank gives */
    enum mx8_status status = gather_now(c, data, cut);
    mx8i_release(cut);
    return status;
}

enum mx8_status mx8i_barrier(struct mx8_comm *c) {
    int64_t one = 1;
    return mx8i_sum_integers(c, &one, 1);
}

/* A rank sums n / size floats, rounded up, of each of the others: pieces that the scratch has room for. */
static size_t get_piece(const struct mx8_comm *c, size_t scratch_bytes) {
    return (scratch_bytes / sizeof(float) / (size_t)(c->size - 1) - 1) * (size_t)c->size;
}

static size_t get_cut(const struct mx8_comm *c, size_t n, int32_t rank) {
    return n * (size_t)rank / (size_t)c->size;
}

static enum mx8_status sum_piece(struct mx8_comm *c, float *values, size_t n, size_t *cut, void *scratch) {
    int32_t ticket = 0;
    for (int32_t r = 0; r <= c->size; r++) cut[r] = get_cut(c, n, r);
    MX8_TRY(c->t->start_reduce(c, values + cut[c->rank], values, cut, 0, scratch, &ticket));
    MX8_TRY(c->t->wait(c, &ticket));
    for (int32_t r = 0; r <= c->size; r++) cut[r] *= sizeof *values;
    return gather_now(c, values, cut);
}

enum mx8_status mx8i_sum_floats(struct mx8_comm *c, float *values, size_t n, void *scratch, size_t scratch_bytes) {
    if (c->size == 1) return MX8_OK;
    const size_t most = get_piece(c, scratch_bytes);
    size_t *cut = mx8i_allocate(((size_t)c->size + 1) * sizeof *cut, "a sum");
    enum mx8_status status = cut ? MX8_OK : MX8_OUT_OF_MEMORY;
    for (size_t at = 0; at < n && status == MX8_OK; at += most) {
        status = sum_piece(c, values + at, n - at < most ? n - at : most, cut, scratch);
    }
    mx8i_release(cut);
    return status;
}

int64_t mx8i_count_sum_bytes(const struct mx8_comm *c, size_t n, size_t scratch_bytes) {
    if (c->size == 1) return 0;
    const size_t most = get_piece(c, scratch_bytes);
    int64_t floats = 0;
    for (size_t at = 0; at < n; at += most) {
        const size_t piece = n - at < most ? n - at : most;
        const size_t own = get_cut(c, piece, c->rank + 1) - get_cut(c, piece, c->rank);
        floats += (int64_t)(piece - own + own * (size_t)(c->size - 1));
    }
    return floats * (int64_t)sizeof(float);
}
