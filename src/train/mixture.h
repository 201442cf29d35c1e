/* Which source a position reads from, and which place in it: pure functions of the position. */
#ifndef MX8_TRAIN_MIXTURE_H
#define MX8_TRAIN_MIXTURE_H

#include <stdint.h>
#include "mx8/status.h"

/* Paths and their weights, whole numbers in lowest terms. */
struct mx8_mixture {
    int64_t count, sum;
    char **path;
    int64_t *weight; /* all 0: none were given, mx8i_set_weights comes next */
};

/* "PATH", or "PATH=WEIGHT,PATH=WEIGHT,..."; weights are decimal numbers above 0, for all paths or for none. What exists
 * as it stands is a path, whatever signs are in it. option: its name, for messages. Release it in every case. */
enum mx8_status mx8i_parse_mixture(const char *text, const char *option, struct mx8_mixture *out);
void mx8i_release_mixture(struct mx8_mixture *m);
/* Weights of paths that came without: one of each of these sizes, in lowest terms. */
void mx8i_set_weights(struct mx8_mixture *m, const int64_t *sizes);
/* Among the first `position` samples each source has its share but for a fraction of count / 2 samples, and exactly its
 * share after every `sum` samples. *index counts the samples that the source gave before this one. */
void mx8i_pick_source(const struct mx8_mixture *m, int64_t position, int64_t *source, int64_t *index);

/* Where i goes in a permutation of 0 .. n - 1 that (seed, stream, epoch) choose. Nothing is stored: the time is that of a
 * few dozen multiplications, whatever n is. */
int64_t mx8i_permute(uint64_t seed, uint64_t stream, uint64_t epoch, int64_t n, int64_t i);

#endif
