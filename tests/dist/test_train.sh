#!/bin/sh
# Training with several processes: the same losses as with one, disagreement found at start, a stopped rank named.
. "$(dirname "$0")/lib.sh"
ranks ok 4 hybrid --parallelism.data_parallel_replicate_degree=2 --parallelism.expert_parallel_degree=2

# shellcheck disable=SC2086,SC2154 # a list of words
expect 0 train $job --job.dump_folder=one
same_losses one hybrid 1e-5
has hybrid/metrics.jsonl '"step":20,'
[ ! -e hybrid/rank-1 ] || fail "a later rank wrote metrics without being asked to"

# Three processes cut nothing evenly; each writes metrics when asked to.
ranks ok 3 uneven --metrics.save_for_all_ranks --comm.log_all_ranks
same_losses one uneven 1e-5
has out '\[rank 2\] step: 10'
cmp uneven/losses one/losses >/dev/null 2>&1 || true
[ "$(wc -l <uneven/rank-2/metrics.jsonl)" = 20 ] || fail "rank 2 has no metrics of its own"

# Moments in bfloat16 are rounded by the element's number, whichever process has it, before and after a resume by another
# number of processes. Other random bits would change losses by 3e-5.
narrow=--optimizer.state_dtype=bfloat16
# shellcheck disable=SC2086
expect 0 train $job --job.dump_folder=narrow1 $narrow
ranks ok 3 narrow3 $narrow --checkpoint.enable --checkpoint.interval=10
same_losses narrow1 narrow3 2e-6
# shellcheck disable=SC2086
expect 0 train $job --job.dump_folder=narrow3 $narrow --checkpoint.enable --checkpoint.load_step=10
has out 'Resuming from step 10'
same_losses narrow1 narrow3 2e-6

# From a Hugging Face folder and to one: each process reads its parts, the first one writes the whole.
# shellcheck disable=SC2086
expect 0 train $job --job.dump_folder=open --training.steps=1 --checkpoint.enable --checkpoint.last_save_in_hf \
    --moe.load_balance_coeff=none
start_open="--checkpoint.initial_load_in_hf --checkpoint.initial_load_path=open/hf/step-1"
# shellcheck disable=SC2086
expect 0 train $job $start_open --job.dump_folder=open1
# shellcheck disable=SC2086
ranks ok 3 open3 $start_open --checkpoint.enable --checkpoint.last_save_in_hf
same_losses open1 open3 1e-5
expect 0 generate open3/hf/step-20 --max-new-tokens 3 --precision f32

# One process with another option than the rest.
code=0
# shellcheck disable=SC2086
timeout 60 sh "$ranks_script" "$build" 1 "$mx8" train $job --job.dump_folder=none : -n 1 "$mx8" train $job \
    --job.dump_folder=none --optimizer.lr=0.5 >out 2>err </dev/null || code=$?
[ "$code" != 0 ] && [ "$code" != 124 ] || fail "differing options gave exit code $code"
has err 'optimizer.lr is "8e-4" on rank 0 and "0.5" on rank 1'
[ ! -e none ] || fail "a job that could not start left files"

# A rank that stops answering.
start 3 --training.global_batch_size=3 --comm.train_timeout_seconds=2
kill -STOP "$(find_rank 1)"
ends 20
has err 'rank 0: waited [0-9.]+ s; no sign of life from rank 1:'
has err 'rank 2: waited [0-9.]+ s; no sign of life from rank 1:'
