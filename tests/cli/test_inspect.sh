#!/bin/sh
# shellcheck disable=SC2086 # $tiny is a list of words
# mx8 inspect on checkpoints: what they hold, whether they are whole, and what is wrong when they are not.
. "$(dirname "$0")/lib.sh"
make_corpus
"$mx8" train $tiny --training.steps=4 --job.dump_folder=run --checkpoint.enable --checkpoint.interval=2 >log || fail "no run"

expect 0 inspect run/checkpoint/step-2
has out '^run/checkpoint/step-2$'
has out '^  holds +the full state after step 2$'
has out '^  stands at +[0-9]+ samples read, 2 updates of AdamW$'
has out '^  written +by 1 process$'
has out '^    weights +[0-9]+ +[0-9,]+ elements +f32 +[0-9,]+ bytes$'
has out '^    (first|second) moments +[0-9]+ '
has out '^    history +2 '
has out "whole, their SHA-256 sums are the manifest's$"
for file in model.safetensors state-0000-0000.safetensors; do
    sum=$(sha256sum run/checkpoint/step-2/$file | cut -c1-16)
    has out "^    $file +[0-9,]+ bytes +sha256 $sum"
done
has_not out 'tok_embeddings'

# Every tensor; a folder of checkpoints; the last one, of weights alone.
expect 0 inspect run/checkpoint --tensors
has out '^run/checkpoint/step-2$'
has out '^run/checkpoint/step-4$'
has out '^  holds +weights alone, which cannot be resumed, after step 4$'
has out '^    f32 +\([0-9]+, [0-9]+\) +tok_embeddings\.weight$'
has out '^    f32 +\([0-9]+, [0-9]+\) +optimizer\.exp_avg_sq\.tok_embeddings\.weight$'

# One byte changed: seen when all is read, not when sizes alone are compared.
printf '\377' | dd of=run/checkpoint/step-2/model.safetensors bs=1 seek=5000 conv=notrunc 2>/dev/null
expect 1 inspect run/checkpoint/step-2
has out '^  holds +the full state after step 2$'
has err 'mx8 inspect: .*step-2/model\.safetensors: was changed since it was saved'
expect 0 inspect run/checkpoint/step-2 --no-verify
has out 'their sums not looked at$'
printf x >>run/checkpoint/step-2/model.safetensors
expect 1 inspect run/checkpoint/step-2 --no-verify
has err 'model\.safetensors: holds [0-9]+ bytes, the manifest says [0-9]+'
sed -i 's/"updates": *2/"updates":3/' run/checkpoint/step-2/manifest.json
expect 1 inspect run/checkpoint/step-2
has err 'manifest\.json: its checksum is [0-9a-f]+, its contents give [0-9a-f]+'

# A folder that holds neither.
mkdir empty
expect 1 inspect empty
has err 'empty'
