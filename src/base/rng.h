/* Counter-based random numbers (Philox 4x32-10): the n-th number of a stream depends on (seed, stream, n) alone, so that
 * initial weights do not depend on order, thread count or sharding. Source: Salmon et al., SC 2011. */
#ifndef MX8_BASE_RNG_H
#define MX8_BASE_RNG_H
#include <stdint.h>

/* Four 32-bit words of counter n. */
void mx8i_philox(uint64_t seed, uint64_t stream, uint64_t n, uint32_t out[4]);
/* The n-th uniform in (0,1), and the n-th standard normal (Box-Muller in double), of a stream. */
double mx8i_random_uniform(uint64_t seed, uint64_t stream, uint64_t n);
double mx8i_random_normal(uint64_t seed, uint64_t stream, uint64_t n);
/* Inverse normal distribution function (Acklam + one Halley step), p in (0,1). */
double mx8i_inverse_normal(double p);
/* FNV-1a of a name: the stream of a tensor. */
uint64_t mx8i_hash_text(const char *text);
#endif
