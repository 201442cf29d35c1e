#!/bin/sh
# shellcheck disable=SC2086 # $tiny is a list of words
# Writing where nothing can be written: a full disk, a folder that takes no files, a signal in the middle. The old file
# stays whole, no temporary file is left behind, the message names the path, the exit code is 1.
. "$(dirname "$0")/lib.sh"
make_corpus

expect 0 train $tiny --training.steps=2 --job.dump_folder=run --checkpoint.enable
weights=$(find run -name 'model.safetensors')

# A limit on the size of files stands for the full disk: write() fails in the middle.
limited() {
    wanted=$1
    shift
    # through a pipe: the limit holds for redirections, too
    { code=0; (ulimit -f "$limit"; exec "$mx8" "$@") </dev/null || code=$?; echo $code >code; } 2>&1 | cat >err
    code=$(cat code)
    [ "$code" = "$wanted" ] || fail "mx8 $* on a full disk gave exit code $code, expected $wanted"
}
same_as_before() { # FILE FOLDER
    [ "$(cat "$1")" = "old" ] || fail "$1 was damaged"
    [ -z "$(find "$2" -name '*.tmp-*')" ] || fail "a temporary file was left in $2"
}
mkdir results
limit=8
echo old >results/out.safetensors
limited 1 quantize "$weights" results/out.safetensors
has err 'results/out\.safetensors'
same_as_before results/out.safetensors results
limit=2
echo old >results/report.html
limited 1 report run -o results/report.html
has err 'results/report\.html'
same_as_before results/report.html results
limit=8
limited 1 tokenize corpus --output shards
has err 'shards'
[ -z "$(find shards -name '*.tmp-*' 2>/dev/null)" ] || fail "tokenize left a temporary file"
limited 1 conformance write vectors
has err 'vectors/'
expect 0 tokenize corpus --output shards # goes on from there
has out '^shards: '
limit=0
limited 1 train $tiny --training.steps=2 --job.dump_folder=full
has err 'full/'

# A folder that takes no files, even from root.
expect 1 quantize "$weights" /proc/out.safetensors
has err '/proc/out\.safetensors'
expect 1 report run -o /proc/report.html
has err '/proc/report\.html'
expect 1 tokenize corpus --output /proc/shards
has err '/proc/shards'
expect 1 train $tiny --training.steps=1 --job.dump_folder=/proc/run
has err '/proc/run'
expect 1 bench add 10 --reps 1 --json /proc/figures.json
has err '/proc/figures\.json'

# The same on a disk of our own, where the kernel lets us mount one: full in the middle of a file, then read-only.
mkdir disk
cat >on_disk.sh <<'EOF'
mount -t tmpfs -o size=12k none disk || exit 77
refused() { # REASON ARGUMENTS...
    reason=$1
    shift
    code=0
    "$mx8" "$@" </dev/null >out 2>err || code=$?
    [ $code = 1 ] && grep -q "disk/.*$reason" err && [ "$(cat disk/old)" = old ] &&
        [ -z "$(find disk -name '*.tmp-*')" ] && return
    echo "on a disk of our own: mx8 $*: exit code $code: $(cat err)" >&2
    ls -la disk >&2
    exit 1
}
echo old >disk/old
refused 'No space left' quantize "$weights" disk/old
refused 'No space left' report run -o disk/old
refused 'No space left' conformance write disk/vectors
rm -r disk/vectors
refused 'No space left' train $tiny --training.steps=2 --job.dump_folder=disk/run --checkpoint.enable
rm -r disk/run
mount -o remount,ro disk
refused 'Read-only' quantize "$weights" disk/old
refused 'Read-only' report run -o disk/old
refused 'Read-only' conformance write disk/vectors
refused 'Read-only' tokenize corpus --output disk/shards
refused 'Read-only' train $tiny --training.steps=2 --job.dump_folder=disk/run
EOF
export mx8 weights tiny
code=0
unshare -rm sh on_disk.sh 2>on_disk.log || code=$?
[ $code = 0 ] || grep -qE '^(unshare|mount):|unshare: not found' on_disk.log || fail "$(cat on_disk.log)"
[ $code = 0 ] || echo "no disk of our own: $(head -n 1 on_disk.log)"

# A signal in the middle of a write: the old file, or the new one whole.
big=big.safetensors
{ # one f32 tensor of 64 MB
    header='{"w":{"dtype":"F32","shape":[4096,4096],"data_offsets":[0,67108864]}}'
    printf '%b' "\\0$(printf '%o' ${#header})\\000\\000\\000\\000\\000\\000\\000"
    printf '%s' "$header"
    head -c 67108864 /dev/zero
} >$big
for signal in TERM KILL; do
    echo old >results/out.safetensors
    "$mx8" quantize $big results/out.safetensors >out 2>err &
    job=$!
    for _ in $(seq 1 100); do
        [ -n "$(find results -name '*.tmp-*')" ] && break
        sleep 0.02
    done
    kill -$signal $job 2>/dev/null || true
    wait $job || true
    [ "$(head -c 3 results/out.safetensors)" = old ] ||
        [ "$(wc -c <results/out.safetensors)" -gt 16777216 ] || fail "SIG$signal left half a file"
    rm -f results/*.tmp-*
done

# A file that is cut while it is read: a message, not a crash.
"$mx8" quantize $big results/cut.safetensors >out 2>err &
job=$!
: >$big
code=0
wait $job || code=$?
[ "$code" -lt 126 ] || fail "a file cut while in use ended mx8 with code $code"
