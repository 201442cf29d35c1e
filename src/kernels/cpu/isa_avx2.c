/* Every CPU kernel, compiled for AVX2, FMA, F16C and BMI2. CMake adds the flags that this file's name asks for. */
#define MX8_ISA_AVX2 1
#define MX8_ISA_NAME "cpu-avx2"
#define MX8_ISA_TABLE mx8i_kernels_avx2
#include "kernels/cpu/table.inl"
