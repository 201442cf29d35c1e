#!/bin/sh
# Conformance vectors: the same files each time, every kernel table passes, and what differs is found and named.
. "$(dirname "$0")/lib.sh"

expect 2 conformance
expect 2 conformance frobnicate folder
expect 2 conformance check missing
expect 0 conformance write one
has out '^[0-9]+ cases in one$'
expect 0 conformance write two
diff -r one two || fail "two writes differ"
[ "$(du -sk one | cut -f1)" -lt 4000 ] || fail "the vectors are larger than they should be"
cases=$(grep -c '"operation"' one/index.json)
[ "$(find one -name '*.safetensors' | wc -l)" = "$cases" ] || fail "index.json and the files differ"
for word in encode decode quantize_rows quantize_cols quantize_both quantize_3d dequantize block_scales group_pad; do
    has one/index.json "\"operation\": \"$word\""
done
for word in rceil floor ceil even e5m2 k_groups; do has one/index.json "\"$word\""; done

expect 0 conformance check one
has out "^$cases cases passed, 0 failed, 0 absent$"
for isa in scalar avx2 avx512; do
    MX8_ISA=$isa "$mx8" info >/dev/null 2>&1 || continue # not on this CPU
    rm -rf results
    MX8_ISA=$isa OMP_NUM_THREADS=3 "$mx8" conformance run results >out 2>err || fail "conformance run, $isa"
    expect 0 conformance check results
    has out "^$cases cases passed, 0 failed, 0 absent$"
done

# one byte of one output: named, and the exit code says so
file=results/rows-e4m3-rceil-f32.safetensors
size=$(wc -c <$file)
printf '\377' | dd of=$file bs=1 seek=$((size - 1)) conv=notrunc 2>/dev/null
expect 1 conformance check results
has out '^FAILED  rows-e4m3-rceil-f32: 1 of 120 scales differ, the first at \[23,4\]: 0xFF, expected 0x'
has out "^$((cases - 1)) cases passed, 1 failed, 0 absent$"
rm $file
expect 0 conformance check results
has out '^absent  rows-e4m3-rceil-f32$'
mkdir none
expect 1 conformance check none
head -c 100 one/group_pad.safetensors >results/group_pad.safetensors
expect 1 conformance check results
has err 'results/group_pad\.safetensors'
