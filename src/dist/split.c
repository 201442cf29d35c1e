/* Where shards begin. A segment is the tensors of one layer side by side; it is cut into one contiguous range a rank,
 * so that a gather is a single message without copies. A cut moves to the nearest edge of a granule: 32 rows (or a
 * weight tile's) of a matrix, which no MX block of either orientation crosses. */
#include "dist/dist.h"

/* The granule edge nearest to `target`. The end of a run is the beginning of the next one. */
static size_t find_edge(const struct mx8_run_of *run, int64_t runs, size_t size, size_t target) {
    int64_t i = 0;
    while (i + 1 < runs && run[i + 1].at <= target) i++;
    const struct mx8_run_of *r = &run[i];
    const size_t end = i + 1 < runs ? run[i + 1].at : size;
    if (target >= r->at + r->count) return end; /* between two tensors */
    const size_t inside = target - r->at, below = inside / r->granule * r->granule;
    size_t above = below + r->granule;
    if (inside - below < above - inside) return r->at + below;
    if (above >= r->count) return end;
    return r->at + above;
}

void mx8i_split(const struct mx8_run_of *run, int64_t runs, size_t size, int32_t parts, size_t *cut) {
    cut[0] = 0;
    cut[parts] = size;
    for (int32_t p = 1; p < parts; p++) {
        const size_t target = size / (size_t)parts * (size_t)p + size % (size_t)parts * (size_t)p / (size_t)parts;
        cut[p] = runs ? find_edge(run, runs, size, target) : 0;
        if (cut[p] < cut[p - 1]) cut[p] = cut[p - 1];
    }
}
