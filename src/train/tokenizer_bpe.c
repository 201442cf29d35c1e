/* A piece of text to ids: its bytes as tokens, then merges, the lowest rank first and the leftmost among equals, until
 * none applies. Short pieces scan an array of ranks for each merge. Long ones (a base64 blob, a line of dashes) keep
 * their symbols in a linked list and candidates in a heap: n log n where scanning would take n^2. Both give the same.
 */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/tokenizer_private.h"

#define SHORT_PIECE  48                /* bytes */
#define FEWEST_SLOTS ((size_t)1 << 10) /* of the cache */
#define MOST_SLOTS   ((size_t)1 << 15)
#define NO_RANK      UINT32_MAX

enum mx8_status mx8i_append_token(struct mx8_tokens *out, int32_t id) {
    if (out->count == out->capacity) {
        int64_t capacity = out->capacity ? 2 * out->capacity : 256;
        int32_t *larger = mx8i_reallocate(out->id, (size_t)capacity * sizeof *larger, "tokens");
        if (!larger) return MX8_OUT_OF_MEMORY;
        out->id = larger;
        out->capacity = capacity;
    }
    out->id[out->count++] = id;
    return MX8_OK;
}

static uint32_t find_rank(const struct mx8_tokenizer *t, int32_t left, int32_t right, int32_t *merged) {
    const struct mx8_merge *merge = mx8i_find_merge(&t->merges, left, right);
    if (!merge) return NO_RANK;
    *merged = merge->id;
    return merge->rank;
}

/* Returns how many ids are left. rank[i] and merged[i] belong to the pair (id[i], id[i + 1]). */
static size_t merge_short(const struct mx8_tokenizer *t, int32_t *id, size_t n) {
    uint32_t rank[SHORT_PIECE];
    int32_t merged[SHORT_PIECE];
    for (size_t i = 0; i + 1 < n; i++) rank[i] = find_rank(t, id[i], id[i + 1], &merged[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        id[best] = merged[best];
        size_t after = n - best - 2; /* symbols behind the pair */
        memmove(id + best + 1, id + best + 2, after * sizeof *id);
        memmove(rank + best, rank + best + 1, after * sizeof *rank);
        memmove(merged + best, merged + best + 1, after * sizeof *merged);
        n--;
        if (best + 1 < n) rank[best] = find_rank(t, id[best], id[best + 1], &merged[best]);
        if (best > 0) rank[best - 1] = find_rank(t, id[best - 1], id[best], &merged[best - 1]);
    }
    return n;
}

/* A heap of rank << 32 | position: the smallest is the next merge. */
struct heap {
    uint64_t *entry;
    size_t count;
};

static void push(struct heap *h, uint64_t value) {
    size_t at = h->count++;
    while (at > 0 && h->entry[(at - 1) / 2] > value) {
        h->entry[at] = h->entry[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    h->entry[at] = value;
}

static uint64_t pop(struct heap *h) {
    uint64_t top = h->entry[0], last = h->entry[--h->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= h->count) break;
        if (child + 1 < h->count && h->entry[child + 1] < h->entry[child]) child++;
        if (h->entry[child] >= last) break;
        h->entry[at] = h->entry[child];
        at = child;
    }
    h->entry[at] = last;
    return top;
}

struct symbols {
    const struct mx8_tokenizer *t;
    int32_t *id, *merged, *next, *previous; /* next and previous: -1 at the ends */
    uint32_t *rank;                         /* of the pair that begins here; NO_RANK also where a symbol is gone */
    struct heap heap;
};

static void consider(struct symbols *s, int32_t left) {
    int32_t right = s->next[left];
    s->rank[left] = right < 0 ? NO_RANK : find_rank(s->t, s->id[left], s->id[right], &s->merged[left]);
    if (s->rank[left] != NO_RANK) push(&s->heap, (uint64_t)s->rank[left] << 32 | (uint32_t)left);
}

/* Every merge adds at most two candidates, one of them in place of its own: 2 n entries are enough. */
static enum mx8_status open_symbols(struct mx8_encoder *e, struct symbols *s, size_t n) {
    size_t need = n * (2 * sizeof(uint64_t) + 5 * sizeof(int32_t));
    if (n > INT32_MAX)
        return MX8_FAIL(
            MX8_UNSUPPORTED, "a piece of %zu bytes without a place to split, expected at most %d", n, INT32_MAX);
    if (!e->merge_block || need > e->merge_block_size) {
        mx8i_release(e->merge_block);
        e->merge_block_size = 0;
        e->merge_block = mx8i_allocate_aligned(need, 64, "the symbols of a long piece");
        if (!e->merge_block) return MX8_OUT_OF_MEMORY;
        e->merge_block_size = need;
    }
    s->t = e->t;
    s->heap = (struct heap){.entry = e->merge_block};
    s->id = (int32_t *)(s->heap.entry + 2 * n);
    s->merged = s->id + n;
    s->next = s->merged + n;
    s->previous = s->next + n;
    s->rank = (uint32_t *)(s->previous + n);
    return MX8_OK;
}

static enum mx8_status merge_long(struct mx8_encoder *e, const uint8_t *piece, size_t n) {
    struct symbols s = {0};
    MX8_TRY(open_symbols(e, &s, n));
    for (size_t i = 0; i < n; i++) {
        s.id[i] = e->t->byte_id[piece[i]];
        s.next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
        s.previous[i] = (int32_t)i - 1;
    }
    for (size_t i = 0; i < n; i++) consider(&s, (int32_t)i);
    while (s.heap.count > 0) {
        uint64_t top = pop(&s.heap);
        int32_t left = (int32_t)(top & UINT32_MAX);
        if (s.rank[left] != (uint32_t)(top >> 32)) continue; /* one of the two has grown meanwhile */
        int32_t right = s.next[left], beyond = s.next[right];
        s.id[left] = s.merged[left];
        s.rank[right] = NO_RANK;
        s.next[left] = beyond;
        if (beyond >= 0) s.previous[beyond] = left;
        consider(&s, left);
        if (s.previous[left] >= 0) consider(&s, s.previous[left]);
    }
    for (int32_t at = 0; at >= 0; at = s.next[at]) MX8_TRY(mx8i_append_token(e->out, s.id[at]));
    return MX8_OK;
}

static enum mx8_status append_all(struct mx8_encoder *e, const int32_t *id, size_t n) {
    for (size_t i = 0; i < n; i++) MX8_TRY(mx8i_append_token(e->out, id[i]));
    return MX8_OK;
}

enum mx8_status mx8i_open_cache(struct mx8_encoder *e) {
    size_t slots = FEWEST_SLOTS; /* 2 for each token, so that a small vocabulary has little to clear */
    while (slots < MOST_SLOTS && slots < 2 * (size_t)e->t->vocab.count) slots *= 2;
    e->cache = mx8i_allocate_aligned(slots * sizeof *e->cache, 64, "the cache of pieces");
    if (!e->cache) return MX8_OUT_OF_MEMORY;
    memset(e->cache, 0, slots * sizeof *e->cache);
    e->cache_mask = slots - 1;
    return MX8_OK;
}

enum mx8_status mx8i_encode_piece(struct mx8_encoder *e, const uint8_t *piece, size_t size) {
    const struct mx8_tokenizer *t = e->t;
    if (size == 0) return MX8_OK;
    if (size == 1) return mx8i_append_token(e->out, t->byte_id[piece[0]]);
    struct mx8_cached_piece *cached = NULL;
    if (size <= MX8_CACHE_KEY) {
        cached = &e->cache[mx8i_hash_bytes(piece, size) & e->cache_mask];
        if (cached->size == size && !memcmp(cached->key, piece, size)) return append_all(e, cached->id, cached->count);
    }
    int32_t id[SHORT_PIECE];
    size_t n = 1;
    id[0] = t->whole_first ? mx8i_look_up_bytes(&t->vocab, piece, size) : -1;
    if (id[0] < 0) {
        if (size > SHORT_PIECE) return merge_long(e, piece, size);
        for (size_t i = 0; i < size; i++) id[i] = t->byte_id[piece[i]];
        n = merge_short(t, id, size);
    }
    if (cached && n <= MX8_CACHE_IDS) {
        memcpy(cached->key, piece, size);
        memcpy(cached->id, id, n * sizeof *id);
        cached->size = (uint8_t)size;
        cached->count = (uint8_t)n;
    }
    return append_all(e, id, n);
}
