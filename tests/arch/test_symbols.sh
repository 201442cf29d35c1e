#!/bin/sh
# libmx8.so exports what the headers declare, and nothing else, under one symbol version and a SONAME.
. "$(dirname "$0")/../cli/lib.sh"
library=${1:?}/libmx8.so

sed -n 's/.*MX8_API.*[ *]\(mx8_[a-z0-9_]*\)(.*/\1/p' "$source"/include/mx8/*.h | sort >declared
[ "$(wc -l <declared)" -gt 30 ] || fail "the headers were not understood"
nm -D --with-symbol-versions --defined-only "$library" | awk '$2 != "A" {print $3}' >symbols
if grep -v '@@MX8_0$' symbols >out; then fail "a symbol without our version"; fi
sed 's/@@MX8_0$//' symbols | sort >exported
diff declared exported >out || fail "declared (<) and exported (>) functions differ"

readelf -d "$library" >dynamic
has dynamic 'SONAME.*\[libmx8\.so\.0\]'
