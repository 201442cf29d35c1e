#!/bin/sh
# bench/run_cpu --quick and bench/growth.sh --quick: build, measure every part, leave whole JSON and a whole drawing.
# Ratios are not judged: machines are shared.
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

"$2/bench/growth.sh" --quick --build "$1" --out "$folder/growth" >"$folder/growth.out"
for series in tokens experts layers length; do
    [ "$(grep -c "^$series " "$folder/growth.out")" = 2 ] || { cat "$folder/growth.out"; exit 1; }
done
python3 - "$folder/growth/growth.svg" <<'END'
import sys, xml.etree.ElementTree as tree
lines = [e for e in tree.parse(sys.argv[1]).iter() if e.tag.endswith("circle")]
assert len(lines) == 8, len(lines)
END
