/* Rounding to bf16 at random, up with the probability that makes the mean exact. For values that are stored after every
 * small change of theirs: a running mean of decay 0.999 moves by a thousandth of the way to its next value, a bf16
 * holds two and a half digits, so rounding to nearest gives the old value back whenever the change is below half a
 * unit, for ever. The random bits are a hash of the update and the element's number, no state: they are the same on
 * every device, for any number of threads and of processes. C and CUDA compile this text; the CPU's kernel says it in
 * vectors. */
#ifndef MX8_FORMATS_STOCHASTIC_H
#define MX8_FORMATS_STOCHASTIC_H

#include "base/normal.h"

/* Multipliers: the golden ratio's odd word, so that neighbours are far apart, and those of MurmurHash3's finalizer. */
#define MX8_HASH_SPREAD 0x9E3779B9u
#define MX8_HASH_FIRST  0x85EBCA6Bu
#define MX8_HASH_SECOND 0xC2B2AE35u

/* 32 random bits of an element; salt: of the update. A bijection of the element's low 32 bits. Elements that are a
 * multiple of 2^32 apart get the same bits, which biases neither. */
MX8_ANYWHERE uint32_t mx8i_make_rounding_bits(uint32_t salt, uint64_t element) {
    uint32_t h = (uint32_t)element * MX8_HASH_SPREAD + salt;
    h = (h ^ h >> 16) * MX8_HASH_FIRST;
    h = (h ^ h >> 13) * MX8_HASH_SECOND;
    return h ^ h >> 16;
}

/* bf16 bits of the float whose bits are given: plus noise (16 bits) below the last place that is kept, cut. What is a
 * bf16 number stays; a NaN stays one; beyond the largest number is infinity. */
MX8_ANYWHERE uint16_t mx8i_round_bf16_randomly(uint32_t bits, uint32_t noise) {
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + noise) >> 16);
}

#endif
