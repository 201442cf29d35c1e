#!/bin/sh
# Files stay small, know nothing of the machine they were written on, and public headers stand on their own in C and C++.
set -eu
cd "$2"
status=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

complain() {
    echo "$*"
    status=1
}

if [ -e .git ] && command -v git >/dev/null; then
    git -c safe.directory="*" ls-files -- . ':!tests/data' >"$scratch/files"
else
    find . -type f -not -path './.git/*' -not -path './build*' -not -path './tests/data/*' -not -path './demo-out/*' >"$scratch/files"
fi

outside='\.\./sh''ared|/wo''rk/' # in two parts, so that this file does not find itself
while read -r file; do
    [ -f "$file" ] || continue
    case $file in
    *.c | *.h | *.inl | *.cu | *.cuh)
        lines=$(wc -l <"$file")
        [ "$lines" -le 900 ] || complain "$file has $lines lines, at most 900 are allowed"
        ;;
    esac
    if grep -IEq "$outside" "$file"; then complain "$file names a path outside the repository"; fi
done <"$scratch/files"

for header in include/mx8/*.h; do
    name=mx8/$(basename "$header")
    printf '#include "%s"\nint main(void) { return 0; }\n' "$name" >"$scratch/probe.c"
    cc -std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only "$scratch/probe.c" || complain "$name: not alone in C11"
    command -v c++ >/dev/null || continue
    cp "$scratch/probe.c" "$scratch/probe.cpp"
    c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only "$scratch/probe.cpp" ||
        complain "$name: not alone in C++"
done
exit $status
