/* A permutation that is computed instead of stored: a Feistel network permutes 0 .. 4^h - 1, the least such range that
 * holds n numbers, whatever its round function is; a result that is n or more goes through again until it falls below n
 * (cycle walking), which keeps it a permutation of 0 .. n - 1 and takes fewer than four turns on average. */
#include "base/rng.h"
#include "train/mixture.h"

enum { ROUNDS = 8 };

/* The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every bit of x moves every bit of the result. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static void make_keys(uint64_t seed, uint64_t stream, uint64_t epoch, uint64_t key[ROUNDS]) {
    uint64_t name = mx8i_hash_text("shuffle") + stream;
    for (uint64_t i = 0; i < ROUNDS; i += 2) {
        uint32_t words[4];
        mx8i_philox(seed, name, epoch * (ROUNDS / 2) + i / 2, words);
        key[i] = (uint64_t)words[0] << 32 | words[1];
        key[i + 1] = (uint64_t)words[2] << 32 | words[3];
    }
}

int64_t mx8i_permute(uint64_t seed, uint64_t stream, uint64_t epoch, int64_t n, int64_t i) {
    uint64_t key[ROUNDS], x = (uint64_t)i;
    int half = 1;
    if (n < 2) return i;
    while ((uint64_t)(n - 1) >> 2 * half) half++;
    make_keys(seed, stream, epoch, key);
    do {
        uint64_t left = x >> half, right = x & ((UINT64_C(1) << half) - 1);
        for (int r = 0; r < ROUNDS; r++) {
            uint64_t next = left ^ mix(right + key[r]) >> (64 - half);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}
