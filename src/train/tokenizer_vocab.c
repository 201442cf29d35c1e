/* Two open-addressed hash tables: tokens by their bytes, merges by the two ids they join. Both are filled once, at most
 * half full, and only read afterwards, so that threads share them without locks. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/tokenizer_private.h"

#define MIX 0x9E3779B97F4A7C15U

static uint64_t stir(uint64_t x) {
    x = (x ^ x >> 32) * MIX;
    return x ^ x >> 29;
}

uint64_t mx8i_hash_bytes(const uint8_t *bytes, size_t size) {
    uint64_t hash = size * MIX, part;
    for (; size >= 8; bytes += 8, size -= 8) {
        memcpy(&part, bytes, 8);
        hash = stir(hash ^ part);
    }
    part = 0;
    if (size > 0) memcpy(&part, bytes, size);
    return stir(stir(hash ^ part));
}

static uint64_t fit_slots(int64_t count) {
    uint64_t slots = 64;
    while (slots < 2 * (uint64_t)count) slots *= 2;
    return slots;
}

enum mx8_status mx8i_set_token(struct mx8_vocab *v, int64_t id, const void *bytes, size_t size, int mergeable) {
    if (id >= v->capacity) {
        int64_t capacity = v->capacity ? v->capacity : 64;
        while (capacity <= id) capacity *= 2;
        struct mx8_vocab_token *larger = mx8i_reallocate(v->token, (size_t)capacity * sizeof *larger, "a vocabulary");
        if (!larger) return MX8_OUT_OF_MEMORY;
        memset(larger + v->capacity, 0, (size_t)(capacity - v->capacity) * sizeof *larger);
        v->token = larger;
        v->capacity = capacity;
    }
    struct mx8_vocab_token *token = &v->token[id];
    *token = (struct mx8_vocab_token){.offset = v->bytes.size, .size = (uint32_t)size, .present = 1};
    token->mergeable = mergeable != 0;
    if (id >= v->count) v->count = id + 1;
    return mx8i_append_bytes(&v->bytes, bytes, size);
}

enum mx8_status mx8i_index_vocab(struct mx8_vocab *v) {
    uint64_t slots = fit_slots(v->count);
    v->slot = mx8i_allocate(slots * sizeof *v->slot, "the index of a vocabulary");
    if (!v->slot) return MX8_OUT_OF_MEMORY;
    memset(v->slot, 0xFF, slots * sizeof *v->slot); /* -1: free */
    v->mask = slots - 1;
    for (int64_t id = 0; id < v->count; id++) {
        const struct mx8_vocab_token *token = &v->token[id];
        if (!token->mergeable) continue;
        uint64_t at = mx8i_hash_bytes(v->bytes.data + token->offset, token->size) & v->mask;
        while (v->slot[at] >= 0) at = (at + 1) & v->mask;
        v->slot[at] = (int32_t)id;
    }
    return MX8_OK;
}

int32_t mx8i_look_up_bytes(const struct mx8_vocab *v, const uint8_t *bytes, size_t size) {
    if (!v->slot) return -1;
    for (uint64_t at = mx8i_hash_bytes(bytes, size) & v->mask;; at = (at + 1) & v->mask) {
        int32_t id = v->slot[at];
        if (id < 0) return -1;
        const struct mx8_vocab_token *token = &v->token[id];
        if (token->size == size && !memcmp(v->bytes.data + token->offset, bytes, size)) return id;
    }
}

void mx8i_close_vocab(struct mx8_vocab *v) {
    mx8i_release(v->bytes.data);
    mx8i_release(v->token);
    mx8i_release(v->slot);
}

static uint64_t join(int32_t left, int32_t right) {
    return ((uint64_t)left + 1) << 32 | (uint32_t)right;
}

enum mx8_status mx8i_open_merges(struct mx8_merges *m, int64_t expected) {
    uint64_t slots = fit_slots(expected);
    m->slot = mx8i_allocate(slots * sizeof *m->slot, "a table of merges");
    m->mask = slots - 1;
    return m->slot ? MX8_OK : MX8_OUT_OF_MEMORY;
}

static struct mx8_merge *find_slot(const struct mx8_merges *m, uint64_t pair) {
    uint64_t at = stir(pair) & m->mask;
    while (m->slot[at].pair != pair && m->slot[at].pair != 0) at = (at + 1) & m->mask;
    return &m->slot[at];
}

static enum mx8_status grow_merges(struct mx8_merges *m) {
    struct mx8_merges larger = {.count = m->count};
    MX8_TRY(mx8i_open_merges(&larger, 2 * m->count));
    for (uint64_t i = 0; i <= m->mask; i++)
        if (m->slot[i].pair) *find_slot(&larger, m->slot[i].pair) = m->slot[i];
    mx8i_release(m->slot);
    *m = larger;
    return MX8_OK;
}

enum mx8_status mx8i_add_merge(struct mx8_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    if (2 * (uint64_t)m->count > m->mask) MX8_TRY(grow_merges(m));
    struct mx8_merge *slot = find_slot(m, join(left, right));
    m->count += slot->pair == 0;
    *slot = (struct mx8_merge){.pair = join(left, right), .rank = rank, .id = id};
    return MX8_OK;
}

const struct mx8_merge *mx8i_find_merge(const struct mx8_merges *m, int32_t left, int32_t right) {
    const struct mx8_merge *slot = find_slot(m, join(left, right));
    return slot->pair ? slot : NULL;
}
