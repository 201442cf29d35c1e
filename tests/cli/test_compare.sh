#!/bin/sh
# shellcheck disable=SC2086 # $tiny is a list of words
# Three recipes on a tiny model: the table, compare.json and the report; then `mx8 report` on the same folders.
. "$(dirname "$0")/lib.sh"
make_corpus

expect 0 compare --recipes bf16,mxfp8_dense,mxfp8_moe $tiny --training.steps=8 --job.dump_folder=runs \
    --validation.enable --validation.dataset_path=corpus/b.txt --validation.freq=8 --validation.steps=2
has out '^recipe +median tokens/s +peak memory +final loss +loss gap to bf16$'
has out '^bf16 +[0-9,]+ +[0-9.]+ GiB +[0-9.]+ +-$'
has out '^mxfp8_dense +[0-9,]+ +[0-9.]+ GiB +[0-9.]+ +[+-][0-9.]+ %$'
has out '^mxfp8_moe +[0-9,]+ +[0-9.]+ GiB +[0-9.]+ +[+-][0-9.]+ %$'
has out "^Waiting for data: at most [0-9.]+ % of the steps' time\.$"
has out '^Validation loss: bf16 [0-9.]+, mxfp8_dense [0-9.]+, mxfp8_moe [0-9.]+$'
has runs/compare.json '"validation_loss": [0-9]'
has runs/compare.json '"data_share": [0-9]'
has out '^Report: runs/report\.html$'
has_not out "$(printf '\033')"
for recipe in bf16 mxfp8_dense mxfp8_moe; do
    has runs/compare.json "\"recipe\": \"$recipe\""
    [ "$(wc -l <runs/$recipe/metrics.jsonl)" = 8 ] || fail "$recipe has not one line a step"
done
first_loss() { sed -n '1s/.*"loss":\([0-9]*\.[0-9]\).*/\1/p' "runs/$1/metrics.jsonl"; }
[ "$(first_loss bf16)" = "$(first_loss mxfp8_moe)" ] || fail "the recipes did not start from the same weights"

has runs/report.html '<svg '
has runs/report.html '<td>.*mxfp8_moe'
has runs/report.html '</html>'
has_not runs/report.html '<script|http'

expect 0 report runs/bf16 runs/mxfp8_moe -o two.html --title 'A <title>'
has two.html 'A &lt;title&gt;'
expect 1 report runs/bf16 elsewhere
has err 'elsewhere/metrics\.jsonl'
echo '{"step":' >>runs/bf16/metrics.jsonl
expect 1 report runs/bf16
has err 'runs/bf16/metrics\.jsonl:9'

# Runs that are there already are compared by what they came to, though no step is run and no loss is in a checkpoint.
for again in first second; do
    expect 0 compare --recipes bf16,f32 $tiny --training.steps=3 --job.dump_folder=kept --checkpoint.enable
    sed 's/"\(median_tokens_per_second\|seconds\|data_share\)": .*//' kept/compare.json >$again
done
cmp -s first second || fail "compare.json of finished runs differs from that of their runs"
has out '^f32 +[0-9,]+ +[0-9.]+ GiB +[0-9.]+ +[+-][0-9.]+ %$'
has_not out 'nan'

# A recipe that cannot run ends the comparison.
expect 1 compare --recipes bf16 $tiny --training.dataset_path=missing --job.dump_folder=none
has err 'missing'
