#!/bin/sh
# The ABI is that of tests/data/libmx8.abi. After a change that is meant: scripts/abi.sh writes the file anew.
. "$(dirname "$0")/../cli/lib.sh"
if ! command -v abidiff >/dev/null; then
    echo "Skipped: abidiff (Debian: abigail-tools) is absent"
    exit 77
fi
[ -z "$(sed -n 's/^MX8_SANITIZE:STRING=//p' "$1/CMakeCache.txt")" ] || exit 77 # a sanitizer's symbols are no ABI
abidiff --no-show-locs --no-added-syms "$source/tests/data/libmx8.abi" "$1/libmx8.so" >out 2>err ||
    { cat out; fail "the ABI has changed; if that is meant, run scripts/abi.sh and raise SOVERSION for a breaking change"; }
