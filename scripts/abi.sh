#!/bin/sh
# Writes tests/data/libmx8.abi, the ABI that tests/arch/test_abi.sh compares with. Needs abigail-tools.
# Usage: scripts/abi.sh [BUILD_FOLDER]
set -eu
cd "$(dirname "$0")/.."
abidw --headers-dir include/mx8 --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed \
    --no-parameter-names --drop-undefined-syms --type-id-style hash --drop-private-types "${1-build}/libmx8.so" >tests/data/libmx8.abi
