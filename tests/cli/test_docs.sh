#!/bin/sh
# The documentation: blocks marked "sh run" are run, a page in a folder of its own; links lead somewhere; flags exist.
. "$(dirname "$0")/lib.sh"
mkdir bin
ln -s "$mx8" bin/mx8
PATH=$work/bin:$PATH

# shellcheck disable=SC2016 # backquotes of the documents
blocks() { sed -n '/^```sh run$/,/^```$/p' "$1" | sed '/^```/d'; }
n=0
for page in "$source"/docs/*.md "$source"/README.md; do
    blocks "$page" >script
    [ -s script ] || continue
    name=$(basename "$page" .md)
    mkdir "$name"
    (cd "$name" && sh -eu "$work/script" >"$work/out" 2>"$work/err" </dev/null) || fail "a command of $page failed"
    n=$((n + 1))
done
[ $n -ge 1 ] || fail "no page has a block that can be run"
[ -s tutorial/runs/bf16/report.html ] || fail "the tutorial left no report"

# "mx8 COMMAND ... --flag" in any page: a flag of that command
"$mx8" help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p' | grep -v '^mx\|^exit' >commands
while read -r command; do
    "$mx8" "$command" --help >help.txt
    grep -ho "mx8 $command [^\`|]*" "$source"/docs/*.md "$source"/README.md | grep -o -e ' --[a-zA-Z0-9._-]*' | sed 's/ --//; s/=.*//' |
        tr - _ | sort -u >flags
    while read -r flag; do
        case $flag in '' | help) continue ;; esac
        tr - _ <help.txt | grep -Eq -e "__$flag([^a-zA-Z0-9._]|\$)|[ .]$flag(\$| )" || fail "docs name mx8 $command --$flag, which is no flag"
    done <flags
done <commands

# relative links between pages
for page in "$source"/docs/*.md "$source"/README.md; do
    folder=$(dirname "$page")
    grep -o ']([^)#]*[)#]' "$page" | sed 's/^](//; s/[)#]$//' | grep -v '^http' | while read -r link; do
        [ -z "$link" ] || [ -e "$folder/$link" ] || { echo "$page: $link" >>broken; }
    done
done
[ ! -s broken ] || fail "links lead nowhere: $(cat broken)"
