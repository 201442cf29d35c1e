#!/bin/sh
# Command lines that are wrong, and help: output and exit codes, word for word.
. "$(dirname "$0")/lib.sh"

# The words of each line of expected/usage.txt that begins with "$ mx8".
show() {
    echo "\$ mx8${*:+ $*}"
    code=0
    "$mx8" "$@" 2>&1 </dev/null || code=$?
    echo "exit code $code"
}
{
    show
    show help
    show --version
    show trian
    show nonsense
    show train --training.step 5
    show train --training.steps many
    show train --training.steps
    show train surplus
    show train --model.flavor huge
    show compare --recipes bf16,fp4
    show compare --recipes bf16,bf16
    show report
    show report -o
    show bench
    show bench convolution 3x3
    show bench linear 3x3
    show bench linear 3xK4x5
    show bench quantize_rows 64x64 --dtype mxfp8
    show bench quantize_rows 64x64 --pass both
    show quantize only-one
    show quantize a b --axis diagonal
    show ops conv
    show info surplus
} >usage.txt
expected=$source/tests/cli/expected/usage.txt
diff -u "$expected" usage.txt || fail "differs from $expected"

for command in train compare report bench tokenize detokenize inspect quantize info ops; do
    expect 0 "$command" --help
    has out "^usage: mx8 $command"
    "$mx8" help "$command" >help.txt
    cmp out help.txt || fail "mx8 help $command is not mx8 $command --help"
done
