# shellcheck shell=sh disable=SC2034,SC2154 # sourced: the scripts here run mx8 by mpirun
. "$(dirname "$0")/../cli/lib.sh"
ranks_script=$source/tests/dist/run_ranks.sh
build=$(dirname "$mx8")
unset OMP_NUM_THREADS
export OMP_NUM_THREADS=1
make_corpus

# The job of all runs: f32, 20 steps of 12 sequences, of which each process takes its share.
job="--model.dim=64 --model.n_layers=2 --model.n_heads=2 --model.n_kv_heads=1 --moe.num_experts=4 --moe.top_k=2
    --training.seq_len=32 --training.local_batch_size=1 --training.global_batch_size=12 --training.dataset_path=corpus
    --training.steps=20 --training.mixed_precision_param=float32 --lr_scheduler.warmup_steps=2 --metrics.log_freq=10
    --comm.init_timeout_seconds=90 --comm.train_timeout_seconds=90"

# ranks CODE N FOLDER FLAGS...: a job of N processes; CODE ok or fails.
ranks() {
    wanted=$1 n=$2 folder=$3
    shift 3
    code=0
    # shellcheck disable=SC2086 # a list of words
    timeout 300 sh "$ranks_script" "$build" "$n" "$mx8" train $job --job.dump_folder="$folder" "$@" >out 2>err </dev/null || code=$?
    if [ "$code" = 77 ]; then
        cat out
        exit 77
    fi
    [ "$code" != 124 ] || fail "$n processes with $* did not end"
    if [ "$wanted" = ok ]; then
        [ "$code" = 0 ] || fail "$n processes with $* gave exit code $code"
    else
        [ "$code" != 0 ] || fail "$n processes with $* ended with success"
    fi
}

# same_losses A B TOLERANCE: the losses of two runs, step by step.
same_losses() {
    for run in "$1" "$2"; do sed 's/.*"loss":\([^,]*\),.*/\1/' "$run/metrics.jsonl" >"$run/losses"; done
    paste "$1/losses" "$2/losses" | awk -v tolerance="$3" '
        { d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; n++ }
        END { printf "largest difference of %d losses: %g\n", n, worst; exit !(n == 20 && worst <= tolerance) }' >difference ||
        fail "$1 and $2: $(cat difference), allowed $3"
}

# start N FLAGS...: a long job in the background; $job_pid is mpirun's. Returns when steps are being written.
start() {
    n=$1
    shift
    rm -rf long
    # shellcheck disable=SC2086
    sh "$ranks_script" "$build" "$n" "$mx8" train $job --job.dump_folder=long --training.steps=1000000 "$@" >out 2>err </dev/null &
    job_pid=$!
    for _ in $(seq 1 1200); do
        lines=$(grep -c "" long/metrics.jsonl 2>/dev/null) || true
        [ "${lines:-0}" -ge 3 ] && return
        kill -0 $job_pid 2>/dev/null || fail "the job ended by itself"
        sleep 0.1
    done
    fail "no step within 120 s"
}

# find_rank N: process of that rank below mpirun.
find_rank() {
    for p in $(ps -o pid= --ppid "$job_pid"); do
        if tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then
            echo "$p"
            return
        fi
    done
    fail "rank $1 was not found below mpirun"
}

# ends SECONDS: the background job must end by then, and not with success.
ends() {
    for _ in $(seq 1 "$(($1 * 10))"); do
        kill -0 $job_pid 2>/dev/null || break
        sleep 0.1
    done
    if kill -0 $job_pid 2>/dev/null; then
        kill -KILL $job_pid
        fail "the job did not end within $1 s"
    fi
    code=0
    wait $job_pid || code=$?
    [ "$code" != 0 ] || fail "the job ended with success"
}
