#!/bin/sh
# Installs what is missing, builds mx8 with warnings as errors, runs the quick tests, and runs them once more under the
# address and undefined-behaviour sanitizers. `./test.sh quick` leaves the second round out; `./test.sh python` tests the
# Python package instead, in an environment that it makes for itself.
set -eu
cd "$(dirname "$0")"
. scripts/setup.sh

case "${1-all}" in
all | quick) ;;
python)
    shift
    exec scripts/python.sh "$@"
    ;;
*)
    echo "usage: ./test.sh [quick | python]" >&2
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
echo "All tests passed."
