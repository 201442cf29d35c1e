/* Every CPU kernel, compiled for any CPU in plain C. CMake adds the flags that this file's name asks for. */
#define MX8_ISA_SCALAR 1
#define MX8_ISA_NAME "cpu-scalar"
#define MX8_ISA_TABLE mx8i_kernels_scalar
#include "kernels/cpu/table.inl"
