#!/bin/sh
# The slow part of ./test.sh full: tests labelled `full`, valgrind on the AVX2 kernels, and a build for the thread
# sanitizer. What is not installed is named and left out.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
ctest --test-dir build -L full --output-on-failure --no-tests=ignore

if command -v valgrind >/dev/null; then
    echo "valgrind, MX8_ISA=avx2"
    for program in base_test_file base_test_safetensors base_test_toml base_test_options kernels_test_quantize kernels_test_layout \
        kernels_test_model_permute kernels_test_model_router ops_test_linear ops_test_grouped_linear train_test_events; do
        MX8_ISA=avx2 OMP_NUM_THREADS=2 valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
            --suppressions=scripts/valgrind.supp "build/tests/$program" >build/valgrind.log 2>&1 ||
            { echo "valgrind: $program" >&2; tail -n 40 build/valgrind.log >&2; exit 1; }
    done
else
    echo "valgrind is absent: not run" >&2
fi

# gcc's OpenMP is not instrumented, so its barriers look like races. clang's tells the sanitizer through archer; with gcc
# one OpenMP thread leaves the threads that we make ourselves.
for archer in /usr/lib/llvm-*/lib/libarcher.so; do :; done # the newest
if [ -f "$archer" ] && command -v clang >/dev/null; then
    build build-tsan -DCMAKE_C_COMPILER=clang -DMX8_TESTS=ON -DMX8_SANITIZE=thread
    export OMP_TOOL_LIBRARIES="$archer" TSAN_OPTIONS="ignore_noninstrumented_modules=1" OMP_NUM_THREADS=3
else
    build build-tsan -DMX8_TESTS=ON -DMX8_SANITIZE=thread
    export OMP_NUM_THREADS=1
fi
MX8_ISA=avx2 ctest --test-dir build-tsan -L quick -R '^(base|kernels|ops|train)\.' --output-on-failure
