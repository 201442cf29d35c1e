#!/bin/sh
# shellcheck disable=SC2086 # $tiny is a list of words
# A tiny training job from flags alone: log lines, metrics, dry run, errors, Ctrl-C.
. "$(dirname "$0")/lib.sh"
make_corpus

expect 0 train $tiny --training.steps=6 --job.dump_folder=run
has out '^\[titan\] [0-9-]+ [0-9:]+,[0-9]{3} - root - INFO - step:  1  loss: +[0-9.]+  grad_norm: +[0-9.]+  memory: +[0-9.]+GiB\([0-9.]+%\)  tps: [0-9,]+'
has out 'step:  6  loss:'
has out '^final loss: [0-9]'
has out '^median tokens/s without step 1: [0-9]'
has_not out "$(printf '\033')"
[ "$(wc -l <run/metrics.jsonl)" = 6 ] || fail "metrics.jsonl has not one line a step"
has run/metrics.jsonl '^\{"step":6,.*"expert_load":\[\[[0-9]+,[0-9]+,[0-9]+,[0-9]+\]'
has run/run.json '"recipe": "bf16"'

has out '^waiting for data: [0-9.]+ % of the steps. time$'
has run/metrics.jsonl '"data_share":[0-9]'

# A shuffled mixture, validated with part of it; the report shows both.
mkdir held
seq 1 3 900 >held/v.txt
expect 0 train $tiny --training.steps=4 --job.dump_folder=mixed --training.dataset_path=corpus=3,held=1 --training.shuffle \
    --validation.enable --validation.dataset_path=held --validation.freq=2 --validation.steps=2
has out 'Data: 75\.0 % of 2 files, .* under corpus; 25\.0 % of 1 file, .* under held, shuffled, '
has out 'INFO - validate step:  2  loss: +[0-9.]+  memory: +[0-9.]+GiB\([0-9.]+%\)  tps: [0-9,]+'
has out '^validation loss: [0-9.]+, after step 4$'
[ "$(grep -c validation_loss mixed/metrics.jsonl)" = 3 ] || fail "not three validations in metrics.jsonl"
expect 0 report mixed --output mixed.html
has mixed.html 'validation loss by step'
has mixed.html '<th>Data wait</th><th>Validation</th>'
expect 2 train $tiny --training.dataset_path=corpus --validation.enable
has err 'validation\.dataset_path'

# The same seed gives the same losses.
expect 0 train $tiny --training.steps=6 --job.dump_folder=again
for run in run again; do sed 's/.*"loss":\([^,]*\),.*/\1/' $run/metrics.jsonl >$run/losses; done
cmp run/losses again/losses || fail "two runs of the same job differ"

# The table of converted tensors, and a filter that matches nothing.
expect 0 train $tiny --training.steps=1 --job.dump_folder=mx --model.converters=mx \
    --mx.filter_fqns=output,router.gate,wk,wv --mx.moe_fqns_prototype=experts
has out 'layers\.\*\.moe\.experts\.w1 .*mxfp8'
has out 'layers\.\*\.attention\.wk\.weight .*kept'
expect 1 train $tiny --training.steps=1 --job.dump_folder=bad --model.converters=mx --mx.filter_fqns=nowhere
has err 'nowhere'

# A folder that cannot be written to is told before anything is set up.
: >taken
expect 1 train $tiny --training.steps=1 --job.dump_folder=taken/run
has err 'job\.dump_folder is taken/run: taken is a file, expected a folder'

# The memory plan, and nothing else.
expect 0 train $tiny --dry-run --job.dump_folder=dry
has out '^total'
[ ! -e dry ] || fail "--dry-run left files"

# Settings from TOML, overridden by a flag.
printf '[training]\nsteps = 3\ndataset_path = "corpus"\n' >job.toml
expect 0 train --job.config_file job.toml $tiny --training.steps 2 --job.dump_folder=toml
[ "$(wc -l <toml/metrics.jsonl)" = 2 ] || fail "the flag did not win over the TOML file"
printf '[training]\nsteps = 1\ndataset_path = ["corpus=0.25", "held=0.75"]\n' >job.toml
expect 0 train $tiny --training.dataset_path=corpus --job.config_file job.toml --job.dump_folder=list
has_not out 'under held'
# shellcheck disable=SC2046 # a list of words
expect 0 train $(echo "$tiny" | sed 's/--training.dataset_path=corpus//') --job.config_file job.toml --job.dump_folder=list
has out 'Data: 25\.0 % of 2 files, .* under corpus; 75\.0 % of 1 file, .* under held, '
printf '[training]\nsteps = "three"\n' >job.toml
expect 2 train --job.config_file job.toml
has err 'job\.toml'

expect 1 train $tiny --training.dataset_path=missing --job.dump_folder=none
has err 'missing'
[ ! -e none ] || fail "a job that could not start left files"

# Ctrl-C: the step is finished, the metrics are whole, the exit code is 130.
"$mx8" train $tiny --training.steps=100000 --job.dump_folder=stop >out 2>err &
job=$!
for _ in $(seq 1 200); do
    lines=$(grep -c "" stop/metrics.jsonl 2>/dev/null) || true
    [ "${lines:-0}" -ge 3 ] && break
    sleep 0.1
done
kill -TERM $job
code=0
wait $job || code=$?
[ "$code" = 130 ] || fail "an interrupted job gave exit code $code"
has out '^interrupted after [0-9]'
tail -n 1 stop/metrics.jsonl | grep -q '}$' || fail "the last line of the metrics is cut off"

# A report while the job runs, which browsers load anew, and one of the end, which they do not.
expect 0 train $tiny --training.steps=3 --job.dump_folder=reported --report
has reported/report.html '</html>'
has_not reported/report.html 'http-equiv="refresh"'
"$mx8" train $tiny --training.steps=100000 --job.dump_folder=reported2 --report >out 2>err &
job=$!
for _ in $(seq 1 200); do
    [ -s reported2/report.html ] && break
    sleep 0.1
done
has reported2/report.html 'http-equiv="refresh" content="10"'
kill -TERM $job
wait $job || true
has_not reported2/report.html 'http-equiv="refresh"'

# Event files for TensorBoard (tests/python reads them), below one folder a start.
expect 0 train $tiny --training.steps=2 --job.dump_folder=board --metrics.enable_tensorboard --metrics.save_tb_folder=events
[ "$(find board/events -path '*/20*-*/events.out.tfevents.*' | wc -l)" = 1 ] || fail "no event file"
[ ! -e run/tb ] || fail "event files that nobody asked for"
