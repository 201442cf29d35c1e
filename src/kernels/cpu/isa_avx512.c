/* Every CPU kernel, compiled for AVX-512 F, BW, VL, DQ, CD. CMake adds the flags that this file's name asks for. */
#define MX8_ISA_AVX512 1
#define MX8_ISA_NAME "cpu-avx512"
#define MX8_ISA_TABLE mx8i_kernels_avx512
#include "kernels/cpu/table.inl"
