#!/bin/sh
# The completion scripts and the manual page are those of this program, and shells take them.
. "$(dirname "$0")/lib.sh"

expect 2 completion
expect 2 completion fish
has err 'fish'
expect 2 man surplus
expect 0 completion bash
cp out mx8.bash
expect 0 completion zsh
cp out _mx8
expect 0 man
cp out mx8.1
for page in mx8.bash _mx8 mx8.1; do
    has $page 'training.steps'
    has $page 'recipes'
done
has mx8.1 '^\.SH MX8 QUANTIZE$'
has_not mx8.bash 'tensor_parallel_degree' # what changes nothing is not offered
has_not mx8.1 "^'"

# "WORDS..." with the last word to be completed -> what bash offers
cat >ask.bash <<'END'
source ./mx8.bash
COMP_WORDS=(mx8 "$@")
COMP_CWORD=$#
_mx8
printf '%s\n' "${COMPREPLY[@]}"
END
offers() {
    wanted=$1
    shift
    [ "$(bash ask.bash "$@" | paste -sd ' ')" = "$wanted" ] || fail "mx8 $* offers: $(bash ask.bash "$@" | paste -sd ' ')"
}
if command -v bash >/dev/null; then
    touch file.toml
    offers 'train tokenize' t
    offers '--training.steps' train --training.st
    offers '--model.print_after_conversion' train --model.print-after
    offers 'sigmoid softmax' train --moe.score_func s
    offers 'sigmoid softmax' train --moe.score-func = s
    offers 'file.toml' train --job.config_file = file.t
    offers 'demo' train --model.flavor dem
    offers '--recipes' compare --rec
    offers 'bash zsh' completion ''
    offers '--check' bench linear 4x4 --ch
fi
if command -v zsh >/dev/null; then
    zsh -n _mx8 || fail "zsh does not take its script"
fi
if command -v mandoc >/dev/null; then
    mandoc -W error -T utf8 mx8.1 >out 2>err || fail "mandoc finds errors in the page"
fi
