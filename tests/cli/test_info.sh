#!/bin/sh
# What mx8 says about the machine and about itself.
. "$(dirname "$0")/lib.sh"

MX8_ISA=scalar
export MX8_ISA
expect 0 info
has out '^kernels +cpu-scalar: .*MX8_ISA'
MX8_ISA=quantum
expect 1 info
has err 'quantum'
unset MX8_ISA
expect 0 info
has out '^version +[0-9]+\.[0-9]+\.[0-9]+$'
has out '^cuda +'
has out '^flavors +.*demo'

# Libraries beside the program are found by whatever way the program is: this one is no library, which the message says.
mkdir beside
cp "$mx8" beside/mx8
echo "no library" >beside/libmx8_cuda.so
for program in beside/mx8 "$work/beside/mx8" mx8; do
    PATH=$work/beside:$PATH "$program" info >out 2>err || fail "$program info"
    has out '^cuda .*beside/libmx8_cuda.so: '
done

expect 0 ops
has out '^grouped_linear +fb '
expect 0 ops linear
has out '^forward +linear\('
expect 0 ops --markdown
has out '^## quantize_3d$'
if [ -f "$source/docs/operators.md" ]; then
    diff -u "$source/docs/operators.md" out || fail "docs/operators.md is not what mx8 ops --markdown prints"
fi
