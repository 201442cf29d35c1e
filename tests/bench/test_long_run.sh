#!/bin/sh
# bench/long_run.sh --quick: the corpus is the same twice, holds each content once, nothing held out is trained on.
. "$(dirname "$0")/../cli/lib.sh"
mkdir text
i=0
while [ $i -lt 400 ]; do
    seq $((i * 7)) $((i * 7 + 900)) >text/$i.txt
    i=$((i + 1))
done
cp text/3.txt text/copy.md
printf 'short' >text/short.py
seq 1 400000 >text/long.c

run() {
    sh "$2/bench/long_run.sh" --quick --device cpu --build "$1" --megabytes 1 --data text --steps 4 --valid-every 2 \
        --recipes bf16,mxfp8 --out "$3" >out 2>err || fail "long_run.sh failed"
}
run "$1" "$2" first
has out '^[0-9]+ files, 1\.[0-9] MB to train on; [0-9]+ files, 0\.[0-9] MB held out$'
has first/long_run.md '^\| 4 \| [0-9.]+ \| [0-9.]+ \| [+-][0-9.]+ % \|$'
[ "$(grep -c '"name"' first/long_run.json)" = 2 ] || fail "long_run.json has not two recipes"
has first/long_run.html '</html>'
for part in train valid; do (cd first/corpus/$part && sha256sum -- *.txt) | awk '{ if ($1 ".txt" != $2) exit 1 }' || fail "$part: a name is no hash"; done
for file in first/corpus/valid/*.txt; do
    [ ! -e "first/corpus/train/$(basename "$file")" ] || fail "$file is trained on"
done
for file in first/corpus/*/*.txt; do
    case $(readlink "$file") in *short.py | *long.c) fail "$file should have been left out" ;; esac
done
run "$1" "$2" second
cmp first/shards/train/tokens_000000.bin second/shards/train/tokens_000000.bin || fail "the corpus changed"

code=0
sh "$2/bench/long_run.sh" --quick --device cpu --build "$1" --megabytes 900 --data text --out third >out 2>err || code=$?
[ $code = 1 ] || fail "too little text gave exit code $code"
has err 'expected 900 MB: name more folders with --data'
code=0
sh "$2/bench/long_run.sh" --recipes bf17 --device cpu --build "$1" --out third >out 2>err || code=$?
[ $code = 2 ] || fail "an unknown recipe gave exit code $code"
