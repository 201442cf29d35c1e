#!/bin/sh
# Help of every command, both ways of asking for it.
. "$(dirname "$0")/lib.sh"

"$mx8" help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p' | grep -v '^mx\|^exit' >commands
[ "$(wc -l <commands)" -ge 12 ] || fail "mx8 help was not understood"
while read -r command; do
    expect 0 "$command" --help
    has out "^usage: mx8 $command"
    "$mx8" help "$command" >help.txt
    cmp out help.txt || fail "mx8 help $command is not mx8 $command --help"
done <commands
