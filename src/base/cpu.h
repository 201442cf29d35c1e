/* What the CPU can do, from CPUID and XGETBV bits alone (never from its name). */
#ifndef MX8_BASE_CPU_H
#define MX8_BASE_CPU_H
#include <stdint.h>
struct mx8_cpu {
    int32_t avx2_fma;     /* AVX2, FMA, F16C and BMI2, and the OS saves YMM */
    int32_t avx512;       /* F, BW, VL, DQ, CD, and the OS saves ZMM and opmask */
    int32_t avx512_bf16;
    int32_t cores;        /* that this process may run on */
    char brand[64];       /* for printing only */
};
struct mx8_cpu mx8i_get_cpu(void);
#endif
