#!/bin/sh
# How a training step's cost grows: time a token and memory of the demo model against tokens, experts, layers and sequence
# length, one at a time, as a table and as a drawing (growth.awk).
#
#   bench/growth.sh [--quick] [--out FOLDER] [--build FOLDER] [-- FLAGS OF mx8 train]
#
# Each point is a run of a few steps; the fastest step of two rounds counts, since on a shared machine others only ever add
# time. Times are in units of the series' first point. Memory is what the plan says and the run reports, to the byte.
set -eu
cd "$(dirname "$0")/.."
out=outputs/growth build=build steps=3 rounds=2
tokens="1 2 4 8 16" experts="1 4 16 64 256" layers="1 2 4 8" lengths="256 1024 4096 16384 32768" # the last takes minutes
while [ $# -gt 0 ]; do
    case $1 in
    --quick) tokens="1 4" experts="1 8" layers="1 2" lengths="128 512" steps=2 rounds=1 ;;
    --out) out=$2; shift ;;
    --build) build=$2; shift ;;
    --) shift; break ;;
    *) echo "growth.sh: unknown argument $1; see the head of bench/growth.sh" >&2; exit 2 ;;
    esac
    shift
done
mkdir -p "$out"
export OMP_WAIT_POLICY=passive

# measure SERIES VALUE FLAGS...: appends "series value tokens/s bytes"; 0 0 where the run failed, whose message is shown.
measure() {
    series=$1 value=$2
    shift 2
    rm -rf "$out/run"
    if "$build/mx8" train --model.flavor demo --training.dataset random --training.steps "$steps" \
        --metrics.log_freq 1000 --job.dump_folder "$out/run" "$@" >"$out/log" 2>&1; then
        awk -v s="$series" -v v="$value" '
            match($0, /"tokens_per_second":[0-9.e+]+/) { r = substr($0, RSTART + 20, RLENGTH - 20) + 0; if (r > best) best = r }
            match($0, /"memory":[0-9]+/) { memory = substr($0, RSTART + 9, RLENGTH - 9) }
            END { print s, v, best, memory }' "$out/run/metrics.jsonl"
    else
        tail -n 1 "$out/log" >&2
        echo "$series $value 0 0"
    fi >>"$out/points"
}

: >"$out/points"
round=0
while [ $round -lt $rounds ]; do
    for n in $tokens; do measure tokens $((n * 256)) --training.local_batch_size "$n" "$@"; done
    for n in $experts; do measure experts "$n" --training.local_batch_size 4 --moe.num_experts "$n" "$@"; done
    for n in $layers; do measure layers "$n" --training.local_batch_size 4 --model.n_layers "$n" "$@"; done
    for n in $lengths; do measure length "$n" --training.local_batch_size 1 --training.seq_len "$n" "$@"; done
    round=$((round + 1))
done
rm -rf "$out/run"
awk -v svg="$out/growth.svg" -f bench/growth.awk "$out/points" | tee "$out/growth.txt"
echo "drawing: $out/growth.svg"
