#!/bin/sh
# Lines that the quick tests run, by floor; fails when base, formats or ops have less than 85 %. Needs gcc's gcov and
# python3. Usage: scripts/coverage.sh
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
build build-coverage -DMX8_TESTS=ON -DMX8_COVERAGE=ON
find build-coverage -name '*.gcda' -delete
ctest --test-dir build-coverage -L quick -E 'fuzz|arch' -j "$(nproc)" >build-coverage/test.log ||
    { tail -n 20 build-coverage/test.log >&2; exit 1; }
python3 scripts/coverage.py build-coverage | tee build-coverage/coverage.txt
