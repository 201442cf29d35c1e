/* Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and the
 * distributions made from it. The key is the seed; the counter is n, then the stream. */
#include "base/rng.h"

#include <math.h>

#include "base/normal.h"

void mx8i_philox(uint64_t seed, uint64_t stream, uint64_t n, uint32_t out[4]) {
    mx8i_make_philox(seed, stream, n, out);
}

double mx8i_random_uniform(uint64_t seed, uint64_t stream, uint64_t n) {
    uint32_t word[4];
    mx8i_philox(seed, stream, n, word);
    return mx8i_make_uniform(word[0], word[1]);
}

double mx8i_random_normal(uint64_t seed, uint64_t stream, uint64_t n) {
    const double two_pi = 6.283185307179586476925;
    uint32_t word[4];
    mx8i_philox(seed, stream, n, word);
    return sqrt(-2.0 * log(mx8i_make_uniform(word[0], word[1]))) * cos(two_pi * mx8i_make_uniform(word[2], word[3]));
}

/* Coefficients of P. J. Acklam's rational approximation, relative error 1.15e-9 before the Halley step. */
static double approximate_inverse_normal(double p) {
    static const double a[] = {-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
        1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239e+00};
    static const double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
        6.680131188771972e+01, -1.328068155288572e+01};
    static const double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
        -2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00};
    static const double d[] = {
        7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
    if (p < 0.02425) {
        double q = sqrt(-2.0 * log(p));
        return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
               ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1.0);
    }
    double q = p - 0.5, r = q * q;
    return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
           (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1.0);
}

double mx8i_inverse_normal(double p) {
    const double sqrt_half = 0.70710678118654752440, sqrt_two_pi = 2.50662827463100050242;
    if (p > 0.5)
        return -mx8i_inverse_normal(1.0 - p); /* the lower half alone: erfc keeps its relative accuracy there */
    double x = approximate_inverse_normal(p);
    double step = (0.5 * erfc(-x * sqrt_half) - p) * sqrt_two_pi * exp(0.5 * x * x);
    return x - step / (1.0 + 0.5 * x * step);
}

uint64_t mx8i_hash_text(const char *text) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001B3u;
    return hash;
}
