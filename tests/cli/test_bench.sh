#!/bin/sh
# Small problems of every kind, each checked against its reference in the same run.
. "$(dirname "$0")/lib.sh"

check() {
    expect 0 bench "$@" --check --reps 1
    has out 'check passed'
    has_not out 'FAILED'
}
for isa in scalar best; do
    if [ $isa = scalar ]; then export MX8_ISA=scalar; else unset MX8_ISA; fi
    check quantize_rows 100x96
    check quantize_rows 33x65 --scale-rule floor
    check quantize_cols 96x40
    check quantize_both 128x256 --scale-group 128
    check quantize_3d 3x64x32 --dtype f32
    check dequantize 64x64
    check group_pad 100x32xG5
    check linear 65x96x64 --dtype f32 --pass both
    check linear 33x64x96 --pass both
    check grouped_linear 130x64x32xG8 --dtype bf16 --pass both
    check grouped_linear 130x64x32xG8 --pass both
    check attention 2x40xH4xKV2xd16 --pass both
    check lm_head_loss 70x32xV100 --pass both
    check rmsnorm 65x96 --pass both
    check swiglu 65x96 --pass both
    check router 100xE8xk2 --pass both
    check permute 100x32xE8xk2
    check combine 100x32xE8xk2
    check block_scales 200x13
    check embedding 100xV50x33
    check add 1001
    check adamw 1000
    check memcpy 10000
done
expect 0 bench linear 32x32x32 --reps 3 --json figures.json --check
for key in device backend threads commit median_seconds against; do has figures.json "\"$key\":"; done
