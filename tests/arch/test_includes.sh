#!/bin/sh
# The house rule: a file includes only from its own floor and from those below it. `dist` stands beside ops, above base.
set -eu
cd "$2"

# allowed FLOOR: the floors that it may include from.
allowed() {
    case $1 in
    base) echo "base" ;;
    formats) echo "base formats" ;;
    kernels) echo "base formats kernels" ;;
    ops) echo "base formats kernels ops" ;;
    dist) echo "base dist" ;;
    model) echo "base formats kernels ops dist model" ;;
    train) echo "base formats kernels ops dist model train" ;;
    cli) echo "base formats kernels ops dist model train cli" ;;
    *) echo "" ;;
    esac
}

# check FOLDER: prints every include that goes up.
check() {
    for folder in "$1"/src/*/; do
        floor=$(basename "$folder")
        may=$(allowed "$floor")
        if [ -z "$may" ]; then
            echo "$folder: not a floor of the house"
            continue
        fi
        find "$folder" -type f \( -name '*.[ch]' -o -name '*.inl' -o -name '*.cu' -o -name '*.cuh' \) | sort |
            while read -r file; do
                sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' "$file" | while read -r header; do
                    case $header in
                    mx8/*) continue ;;
                    ../*) echo "$file: \"$header\" is no path from the root" ;;
                    */*) ;;
                    *) continue ;; # a file of the same folder
                    esac
                    from=${header%%/*}
                    [ -d "$1/src/$from" ] || continue
                    case " $may " in
                    *" $from "*) ;;
                    *) echo "$file: \"$header\" lies above $floor" ;;
                    esac
                done
            done
    done
}

# The check itself must be able to fail.
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
mkdir -p "$probe/src/base" "$probe/src/ops"
echo '#include "ops/rows.h"' >"$probe/src/base/bad.c"
[ -n "$(check "$probe")" ] || {
    echo "an upward include was not noticed"
    exit 1
}

found=$(check .)
if [ -n "$found" ]; then
    echo "$found"
    exit 1
fi
