/* Counter-based normal numbers from operations that IEEE 754 rounds correctly: + - * / and square roots of doubles, no
 * library function and no fused multiply-add. C and CUDA compile the same text, so that every device makes the same bits.
 * Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Inverse normal
 * distribution function: M. J. Wichura, algorithm AS 241 (PPND16), Applied Statistics 37 (1988), relative error 1e-16. */
#ifndef MX8_BASE_NORMAL_H
#define MX8_BASE_NORMAL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MX8_ANYWHERE static __host__ __device__ inline
#else
#define MX8_ANYWHERE static inline
#endif

/* Four words: the key is the seed, the counter n, then the stream. */
MX8_ANYWHERE void mx8i_make_philox(uint64_t seed, uint64_t stream, uint64_t n, uint32_t out[4]) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)n, c1 = (uint32_t)(n >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* 52 bits and a half step: exact in a double, never 0 and never 1. */
MX8_ANYWHERE double mx8i_make_uniform(uint32_t low, uint32_t high) {
    const uint64_t bits = ((uint64_t)high << 32 | low) >> 12;
    return ((double)bits + 0.5) * 0x1p-52;
}

/* Of a normal x > 0: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)) as a series of 12 terms. */
MX8_ANYWHERE double mx8i_make_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double sum = 1.0 / 23.0;
    for (int k = 21; k >= 1; k -= 2) sum = sum * z + 1.0 / (double)k;
    return (double)e * 0.69314718055994530942 + 2.0 * s * sum;
}

/* The ratio of two polynomials of degree 7, coefficients rising. */
MX8_ANYWHERE double mx8i_make_ratio(const double top[8], const double bottom[8], double r) {
    double a = top[7], b = bottom[7];
    for (int i = 6; i >= 0; i--) {
        a = a * r + top[i];
        b = b * r + bottom[i];
    }
    return a / b;
}

/* x with probability p below it, 0 < p < 1. */
MX8_ANYWHERE double mx8i_make_normal(double p) {
    const double middle_top[8] = {3.3871328727963666080e0, 1.3314166789178437745e+2, 1.9715909503065514427e+3,
        1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4,
        2.5090809287301226727e+3};
    const double middle_bottom[8] = {1.0, 4.2313330701600911252e+1, 6.8718700749205790830e+2, 5.3941960214247511077e+3,
        2.1213794301586595867e+4, 3.9307895800092710610e+4, 2.8729085735721942674e+4, 5.2264952788528545610e+3};
    const double near_top[8] = {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
        3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2,
        7.74545014278341407640e-4};
    const double near_bottom[8] = {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
        1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9};
    const double far_top[8] = {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
        2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5,
        2.01033439929228813265e-7};
    const double far_bottom[8] = {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
        7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15};
    const double q = p - 0.5;
    if (q <= 0.425 && q >= -0.425) return q * mx8i_make_ratio(middle_top, middle_bottom, 0.180625 - q * q);
    const double r = sqrt(-mx8i_make_log(q < 0 ? p : 1.0 - p));
    const double x = r <= 5.0 ? mx8i_make_ratio(near_top, near_bottom, r - 1.6)
                              : mx8i_make_ratio(far_top, far_bottom, r - 5.0);
    return q < 0 ? -x : x;
}

/* Value n of a stream: std * the normal at low + width * uniform. low 0, width 1: not truncated. */
MX8_ANYWHERE float mx8i_make_weight(uint64_t seed, uint64_t stream, uint64_t n, double std, double low, double width) {
    uint32_t word[4];
    mx8i_make_philox(seed, stream, n, word);
    return (float)(std * mx8i_make_normal(low + width * mx8i_make_uniform(word[0], word[1])));
}

#endif
