# shellcheck shell=sh disable=SC2034
# Sourced by the scripts here: sh test_NAME.sh BUILD_FOLDER SOURCE_FOLDER. Gives them mx8, a folder that is removed at the
# end, and checks that say what went wrong.
set -eu
mx8=$1/mx8
source=$2
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
    echo "FAILED: $*" >&2
    for log in out err; do
        if [ -s "$log" ]; then
            echo "--- $log" >&2
            tail -n 30 "$log" >&2
        fi
    done
    exit 1
}

# expect CODE WORDS...: runs mx8; stdout and stderr are left in the files out and err.
expect() {
    wanted=$1
    shift
    code=0
    "$mx8" "$@" >out 2>err </dev/null || code=$?
    [ "$code" = "$wanted" ] || fail "mx8 $* gave exit code $code, expected $wanted"
}

# has FILE PATTERN: an extended regular expression that some line of the file matches.
has() { grep -Eq -e "$2" "$1" || fail "no line of $1 matches: $2"; }
has_not() { if grep -Eq -e "$2" "$1"; then fail "a line of $1 matches: $2"; fi; }

# A corpus of the same bytes everywhere.
make_corpus() {
    mkdir -p corpus
    seq 1 4000 >corpus/a.txt
    seq 4000 -3 1 >corpus/b.txt
}

tiny="--model.dim=64 --model.n_layers=2 --model.n_heads=2 --model.n_kv_heads=1 --moe.num_experts=4 --moe.top_k=1
    --training.seq_len=64 --training.local_batch_size=2 --training.dataset_path=corpus --metrics.log_freq=2"
