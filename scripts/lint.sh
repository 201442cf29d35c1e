#!/bin/sh
# clang-tidy (.clang-tidy), cppcheck (.cppcheck) and shellcheck over the sources, each where it is installed. No output is
# good output. Usage: scripts/lint.sh [FILE.c...]   (default: all of src/base to src/cli, tests and examples)
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
build build -DMX8_TESTS=ON
status=0
files=$* # ${*-...} would stay empty in dash
[ $# -gt 0 ] || files=$(find src tests/fuzz examples -name '*.c' | sort)

if command -v clang-tidy >/dev/null; then
    # shellcheck disable=SC2086 # a list of files
    printf '%s\n' $files | xargs -P "$(nproc)" -n 4 clang-tidy -p build --quiet --extra-arg=-Wno-unknown-warning-option \
        2>build/lint.err || status=1
else
    echo "clang-tidy is absent: not run" >&2
fi
if command -v cppcheck >/dev/null; then
    # shellcheck disable=SC2086 # a list of files
    cppcheck --quiet --std=c11 --language=c --error-exitcode=1 --inline-suppr --suppressions-list=.cppcheck \
        --enable=warning,performance,portability -j "$(nproc)" -D_GNU_SOURCE -D__x86_64__ -Iinclude -Isrc $files || status=1
else
    echo "cppcheck is absent: not run" >&2
fi
if command -v shellcheck >/dev/null; then
    shellcheck test.sh demo.sh scripts/*.sh .ci/run || status=1
    (cd tests/cli && shellcheck -x ./*.sh) || status=1
fi
[ $status = 0 ] && echo "Nothing to complain about."
exit $status
