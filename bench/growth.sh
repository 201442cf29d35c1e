#!/bin/sh
# How a training step's cost grows: processor time a token and memory of a narrow model against tokens, experts, layers and
# sequence length, one at a time, as a table and as a drawing (growth.awk).
#
#   bench/growth.sh [--quick] [--out FOLDER] [--build FOLDER] [-- FLAGS OF mx8 train]
#
# The model is 64 wide, so that 256 experts and 32,768 tokens in a sequence take minutes and not hours. Each point is two runs
# on one thread that differ by some steps, and the difference of their processor times: work on the same machine hardly
# changes it. The fastest of two rounds counts. Times are in units of the series' first point. Memory is what the plan says and
# the run reports, to the byte.
set -eu
cd "$(dirname "$0")/.."
out=outputs/growth build=build least=30 rounds=2 # least: hundredths of a second
tokens="1 2 4 8 16" experts="1 4 16 64 256" layers="1 2 4 8 16" lengths="256 1024 4096 16384 32768"
while [ $# -gt 0 ]; do
    case $1 in
    --quick) tokens="1 4" experts="1 8" layers="1 2" lengths="128 512" least=1 rounds=1 ;;
    --out) out=$2; shift ;;
    --build) build=$2; shift ;;
    --) shift; break ;;
    *) echo "growth.sh: unknown argument $1; see the head of bench/growth.sh" >&2; exit 2 ;;
    esac
    shift
done
mkdir -p "$out"
export OMP_WAIT_POLICY=passive

narrow="--model.dim=64 --model.n_heads=2 --model.n_kv_heads=1 --model.n_layers=2 --moe.num_experts=8"

# run_steps N FLAGS...: hundredths of a second of processor time that a run of N steps takes.
run_steps() {
    n=$1
    shift
    rm -rf "$out/run"
    # shellcheck disable=SC2086 # a list of words
    (
        "$build/mx8" train --model.flavor demo $narrow --training.dataset random --training.steps "$n" --job.threads 1 \
            --metrics.log_freq 100000 --job.dump_folder "$out/run" "$@" >"$out/log" 2>&1 || exit 1
        times
    ) >"$out/times" || return 1
    awk 'END { n = split($0, t, /[ms ]+/); print int(100 * (60 * t[1] + t[2] + 60 * t[3] + t[4]) + 0.5) }' "$out/times"
}

# measure SERIES VALUE FLAGS...: appends "series value tokens/s bytes"; 0 0 where a run failed, whose message is shown.
measure() {
    series=$1 value=$2 more=1
    shift 2
    while :; do
        if ! { few=$(run_steps 1 "$@") && many=$(run_steps $((1 + more)) "$@"); }; then
            tail -n 1 "$out/log" >&2
            echo "$series $value 0 0" >>"$out/points"
            return
        fi
        if [ $((many - few)) -ge "$least" ] || [ $more -ge 512 ]; then break; fi
        more=$((more * 4))
    done
    awk -v s="$series" -v v="$value" -v n="$more" -v spent=$((many - few)) '
        match($0, /"tokens":[0-9]+/) { tokens = substr($0, RSTART + 9, RLENGTH - 9) / ++lines }
        match($0, /"memory":[0-9]+/) { memory = substr($0, RSTART + 9, RLENGTH - 9) }
        END { print s, v, (spent > 0 ? 100 * n * tokens / spent : 0), memory }' "$out/run/metrics.jsonl" >>"$out/points"
}

: >"$out/points"
round=0
while [ $round -lt $rounds ]; do
    for n in $tokens; do measure tokens $((n * 256)) --training.local_batch_size "$n" "$@"; done
    for n in $experts; do measure experts "$n" --training.local_batch_size 4 --moe.num_experts "$n" "$@"; done
    for n in $layers; do measure layers "$n" --training.local_batch_size 4 --model.n_layers "$n" "$@"; done
    for n in $lengths; do
        if [ $round -gt 0 ] && [ "$n" -gt 4096 ]; then continue; fi # long enough to be right at once
        measure length "$n" --training.local_batch_size 1 --training.seq_len "$n" --model.n_layers 1 "$@"
    done
    round=$((round + 1))
done
rm -rf "$out/run"
awk -v svg="$out/growth.svg" -f bench/growth.awk "$out/points" | tee "$out/growth.txt"
echo "drawing: $out/growth.svg"
