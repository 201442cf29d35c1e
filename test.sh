#!/bin/sh
# Installs what is missing, builds mx8 with warnings as errors, runs the quick tests, and runs them once more under the
# address and undefined-behaviour sanitizers. Others, by name:
#     quick      without the second round
#     full       both rounds, the tests labelled `full`, valgrind and the thread sanitizer
#     cuda       builds the CUDA backend, where nvcc is, and runs the tests that need a GPU, where one is
#     python     the Python package, in an environment that it makes for itself
#     soak       the fuzz targets, ten million inputs each; `soak RUNS TARGET...` for less
#     lint       clang-tidy, cppcheck and shellcheck, where they are installed
#     coverage   lines that the quick tests run, by floor
set -eu
cd "$(dirname "$0")"
. scripts/setup.sh

case "${1-all}" in
all | quick | full) ;;
soak | lint | coverage)
    command=$1
    shift
    # shellcheck disable=SC2086 # a list of words
    install_packages $base_packages $test_packages
    exec "scripts/$command.sh" "$@"
    ;;
cuda)
    # shellcheck disable=SC2086 # a list of words
    install_packages $base_packages $test_packages
    command -v nvcc >/dev/null || {
        echo "No nvcc here: the CUDA backend is neither built nor tested."
        exit 75
    }
    build build-cuda -DMX8_CUDA=ON -DMX8_TESTS=ON -DMX8_WERROR=ON
    exec ctest --test-dir build-cuda -L gpu --output-on-failure
    ;;
python)
    shift
    exec scripts/python.sh "$@"
    ;;
*)
    echo "usage: ./test.sh [quick | full | cuda | python | soak | lint | coverage]" >&2
    exit 2
    ;;
esac

# run_round FOLDER CMAKE_FLAGS...
run_round() {
    build "$@" -DMX8_TESTS=ON -DMX8_WERROR=ON
    ctest --test-dir "$1" -L quick --output-on-failure -j "$(nproc)"
}

# shellcheck disable=SC2086 # a list of words
install_packages $base_packages $test_packages
export OMP_WAIT_POLICY=passive # tests run side by side: a waiting thread must not hold a core

run_round build
[ "${1-all}" = quick ] || run_round build-asan -DMX8_SANITIZE=address,undefined
[ "${1-all}" != full ] || scripts/deep.sh
echo "All tests passed."
