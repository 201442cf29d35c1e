#!/bin/sh
# shellcheck disable=SC2086,SC2016 # $tiny is a list of words; words of another shell
# Runs that are stopped, killed, or cannot write: exit codes, messages, and the checkpoints that must survive.
. "$(dirname "$0")/lib.sh"
# shellcheck source=kills.sh disable=SC2154
. "$source/tests/cli/kills.sh"
make_corpus
save="--checkpoint.enable --checkpoint.interval=2"

# Whether a process may have mounts of its own here.
can_mount() { unshare -rm sh -c 'mount -t tmpfs none "$1"' sh "$1" 2>/dev/null; }

# SIGTERM and SIGINT: the step is finished and saved, exit code 0, the same command goes on.
for signal in TERM INT; do
    "$mx8" train $tiny $save --checkpoint.interval=100000 --training.steps=100000 --job.dump_folder=stop >out 2>err &
    job=$!
    for _ in $(seq 1 200); do
        lines=$(grep -c "" stop/metrics.jsonl 2>/dev/null) || true
        [ "${lines:-0}" -ge 3 ] && grep -q 'step:' out && break
        sleep 0.05
    done
    kill -$signal $job
    code=0
    wait $job || code=$?
    [ "$code" = 0 ] || fail "a run that SIG$signal stopped gave exit code $code"
    last=$(tail -n 1 stop/metrics.jsonl | sed 's/{"step":\([0-9]*\),.*/\1/')
    has out "Saved a checkpoint of step $last to stop/checkpoint/step-$last"
    has out '^stopped by a signal; step [0-9,]+ is saved, the same command goes on from there'
    [ -f "stop/checkpoint/step-$last/manifest.json" ] || fail "step $last is not there"
done
has out 'Resuming from step'

# Two processes do not share a folder of checkpoints.
"$mx8" train $tiny $save --training.steps=100000 --job.dump_folder=busy >first 2>&1 &
job=$!
for _ in $(seq 1 200); do
    grep -q 'Saved a checkpoint' first && break
    sleep 0.05
done
expect 1 train $tiny $save --job.dump_folder=busy
has err 'busy/checkpoint: another process is using these checkpoints'
kill -TERM $job
wait $job || fail "the first process did not survive the second"

# A disk that fills up: the run says so, and the checkpoint before is whole. 4 MB hold one checkpoint, not two.
mkdir -p small
if can_mount small; then
    code=0
    unshare -rm sh -c 'mount -t tmpfs -o size=4m none small && shift 0 && {
        "$@" >out 2>err; code=$?
        ls small/run/checkpoint >names
        "$@" --training.steps=3 --job.dump_folder=small/run >again 2>&1
        exit $code; }' sh "$mx8" train $tiny $save --training.steps=20 --job.dump_folder=small/run </dev/null || code=$?
    [ "$code" = 1 ] || fail "a full disk gave exit code $code"
    has err 'step 4 was not saved: .*No space left on device; the newest checkpoint is step-2'
    [ "$(cat names)" = step-2 ] || fail "beside step-2 there is: $(cat names)"
    has again 'Resuming from step 2'
else
    echo "skipped: a full disk (mounting is not allowed here)"
fi

# A limit on the size of files, which needs no privilege.
code=0
(ulimit -f 1000 && exec "$mx8" train $tiny $save --training.steps=20 --job.dump_folder=limited >out 2>err) || code=$?
[ "$code" = 1 ] || fail "a file beyond its limit gave exit code $code"
has err 'step 2 was not saved: .*model.safetensors: cannot write: File too large; there is no checkpoint yet'
[ -z "$(ls limited/checkpoint)" ] || fail "leftovers: $(ls limited/checkpoint)"

# A folder that cannot be written: told before the first step.
expect 0 train $tiny $save --training.steps=3 --job.dump_folder=fixed
if can_mount small; then
    code=0
    unshare -rm sh -c 'mount --bind fixed fixed && mount -o remount,bind,ro fixed && exec "$@"' sh \
        "$mx8" train $tiny $save --training.steps=5 --job.dump_folder=fixed >out 2>err </dev/null || code=$?
    [ "$code" = 1 ] || fail "a read-only folder gave exit code $code"
    has err 'job\.dump_folder is fixed: cannot write to fixed: Read-only file system'
    has_not out 'Training starts'
else
    echo "skipped: a read-only folder (mounting is not allowed here)"
fi
expect 0 train $tiny $save --training.steps=5 --job.dump_folder=fixed
has out 'Resuming from step 2'

# The weights of any checkpoint are good for the other commands, with nothing else to say.
for step in 4 5; do
    expect 0 generate fixed/checkpoint/step-$step --prompt 12 --max-new-tokens=3
    expect 0 convert fixed/checkpoint/step-$step "weights-$step" --to torchtitan
done

kill_often 10
