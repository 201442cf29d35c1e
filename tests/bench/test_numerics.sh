#!/bin/sh
# bench/sqnr.c on a small size: figures that theory gives, and mistakes that must show. bench/numerics.sh --quick: every
# run is made, every file is whole.
. "$(dirname "$0")/../cli/lib.sh"
make_corpus

sqnr() { "$1"/bench_sqnr --size 1024 --json sqnr.json >out 2>err || fail "bench_sqnr gave exit code $?"; }
# figure DATA PRODUCT CONFIG FIELD: one number of sqnr.json.
figure() {
    sed -n "s/.*\"data\": \"$1\", \"product\": \"$2\".*\"config\": \"$3\".*\"$4\": \([-0-9.]*\).*/\1/p" sqnr.json
}
# within LOW VALUE HIGH
within() { awk "BEGIN { exit !($1 <= $2 && $2 <= $3) }" || fail "expected $2 in $1 .. $3: $4"; }
# loses DATA PRODUCT CONFIG FIELD LOW HIGH: against 1x32.
loses() {
    base=$(figure "$1" "$2" 1x32 "$4")
    value=$(figure "$1" "$2" "$3" "$4")
    [ -n "$base" ] && [ -n "$value" ] || fail "no figure for $*"
    within "$5" "$(awk "BEGIN { print $base - $value }")" "$6" "$1, $2: loss of $3 in the $4"
}

sqnr "$1"
# Two operands with 3 bits of mantissa: 28 to 29 dB on Gaussian numbers.
for product in Y dX dW; do
    within 28 "$(figure Gaussian $product 1x32 median)" 29 "Gaussian $product"
    for data in Gaussian 'Student t3' 'token spread' '1 in 24 channels x30' '1 in 24 channels x300' SwiGLU; do
        loses "$data" $product '32x256, FP8 sums of 256 (default)' median -0.1 0.1
    done
    loses 'Student t3' $product '1x32 FLOOR' median 0.3 5
    [ $product = Y ] || loses Gaussian $product '1x32, dY in E5M2' median 3 6
done
loses 'token spread' dX '1x32, codes of the other axis' worst_row 3 60
# Longer sums lose more: against the exact product of the same codes.
within 76 "$(figure Gaussian Y '32x256, FP8 sums of 128' sums_median)" 80 "sums of 128"
within 71 "$(figure Gaussian Y '32x256, FP8 sums of 256 (default)' sums_median)" 76 "sums of 256"
within 55 "$(figure Gaussian Y '32x256, no promotion' sums_median)" 68 "no promotion"
has out '^The Hopper default'
code=0
"$1"/bench_sqnr --size 8 >out 2>err || code=$?
[ $code = 2 ] || fail "--size 8 gave exit code $code"
mkdir empty
if "$1"/bench_sqnr --tensors empty >out 2>err; then fail "an empty folder was accepted"; fi

sh "$2/bench/numerics.sh" --quick --build "$1" --data corpus --out study >out 2>err || fail "numerics.sh failed"
has study/numerics.md '^\| bf16 \| [0-9.]+ \|'
has study/numerics.md '^\| control: 1x32, gradients in E5M2 \| [0-9.]+ \| [+-][0-9.]+ % \|'
[ "$(grep -c '"name"' study/numerics.json)" = 9 ] || fail "numerics.json has not nine recipes"
has study/gaps.svg '</svg>'
has study/seed-1.html '</html>'
has study/sqnr.md 'planted/layers\.1\.moe\.experts\.w2'
for recipe in floor e5m2 reused hopper group128 group256 tile128; do
    if cmp -s study/seed-1/canonical/metrics.jsonl study/seed-1/$recipe/metrics.jsonl; then fail "$recipe is canonical"; fi
done
code=0
sh "$2/bench/numerics.sh" --device tpu >out 2>err || code=$?
[ $code = 2 ] || fail "an unknown device gave exit code $code"
