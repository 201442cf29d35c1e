#!/bin/sh
# bench/run_cpu --quick: builds, measures every part, leaves whole JSON. Ratios are not judged: machines are shared.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$2/bench/run_cpu" --quick --build "$1" --threads 1 --out "$folder" >"$folder/out"
for word in quantize_rows quantize_cols quantize_both 'linear mxfp8' 'grouped_linear bf16' attention rmsnorm adamw; do
    grep -q "$word" "$folder/out" || { echo "no line about $word"; cat "$folder/out"; exit 1; }
done
python3 - "$folder/cpu-1.json" <<'END'
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
measured = [r for r in rows if "ratio" in r]
assert len(measured) > 20, len(measured)
assert all(0 < r["low"] <= r["ratio"] <= r["high"] for r in measured), measured
END
! "$2/bench/run_cpu" --nonsense 2>"$folder/err" || { echo "--nonsense was taken"; exit 1; }
grep -q nonsense "$folder/err"
