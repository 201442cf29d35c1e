#!/bin/sh
# Transcripts: cases/NAME.txt holds command lines ("$ mx8 ..."), each with what it must print (lines of stderr begin with
# "! ") and its exit code. Any other command line prepares files. `sh test_cases.sh BUILD SOURCE write` writes them anew.
. "$(dirname "$0")/lib.sh"

mx8() { "$mx8" "$@"; }
# The same on every machine: one kernel table, no terminal.
export MX8_ISA=scalar COLUMNS=100

replay() {
    mkdir "$work/$name" && cd "$work/$name"
    grep '^\$ ' "$1" | sed 's/^\$ //' >"$work/lines"
    while IFS= read -r line; do
        printf '$ %s\n' "$line"
        code=0
        eval "$line" >"$work/out" 2>"$work/err" </dev/null || code=$?
        cat "$work/out"
        sed 's/^/! /' "$work/err"
        case $line in mx8*) echo "exit code $code" ;; *) [ $code = 0 ] || echo "exit code $code" ;; esac
    done <"$work/lines"
    cd "$work"
}

n=0
for file in "$source"/tests/cli/cases/*.txt; do
    name=$(basename "$file" .txt)
    replay "$file" >"$name.got"
    n=$((n + $(grep -c '^\$ mx8' "$file")))
    if [ "${3-}" = write ]; then
        cp "$name.got" "$file"
    else
        diff -u "$file" "$name.got" || fail "what mx8 prints differs from $file"
    fi
done
[ $n -gt 40 ] || fail "only $n command lines were found"
