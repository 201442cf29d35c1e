#!/bin/sh
# Ranks that die, that fall behind, or that were given other data.
. "$(dirname "$0")/lib.sh"
ranks ok 2 two

# kill -9: mpirun itself names the rank and ends the others.
start 2 --comm.train_timeout_seconds=5
kill -KILL "$(find_rank 1)"
ends 30
has err 'process rank 1 .*exited on signal 9'

# The same where the launcher does not look after its processes.
start 3 --training.global_batch_size=3 --comm.train_timeout_seconds=2
for p in $(find_rank 0) $(find_rank 1) $(find_rank 2); do kill -0 "$p"; done
kill -STOP "$(find_rank 2)"
ends 20
has err 'rank 0: waited [0-9.]+ s; no sign of life from rank 2'
has err 'rank 1: waited [0-9.]+ s; no sign of life from rank 2'

# All stand still for longer than the limit, as when a machine sleeps: nobody is to blame, and the job goes on.
start 2 --training.global_batch_size=2 --comm.train_timeout_seconds=2
both="$(find_rank 0) $(find_rank 1)"
for p in $both; do kill -STOP "$p"; done
sleep 4
lines=$(grep -c "" long/metrics.jsonl)
for p in $both; do kill -CONT "$p"; done
for _ in $(seq 1 100); do [ "$(grep -c "" long/metrics.jsonl)" -gt $((lines + 2)) ] && break || sleep 0.1; done
[ "$(grep -c "" long/metrics.jsonl)" -gt $((lines + 2)) ] || fail "no steps after standing still: $(cat err)"
kill -TERM "$(find_rank 0)"
ends 30

# More than ten times slower than the others: it stands still most of the time.
start 2 --training.global_batch_size=2 --comm.train_timeout_seconds=20
slow=$(find_rank 1)
(while kill -STOP "$slow" 2>/dev/null; do
    sleep 0.5
    kill -CONT "$slow" 2>/dev/null || break
    sleep 0.02
done) &
ends 60
has err 'rank 1 is far behind: over the last [0-9]+ steps it took'

# Other data behind the same path.
mkdir -p here/corpus
cp corpus/a.txt here/corpus/
code=0
# shellcheck disable=SC2086,SC2154
timeout 60 sh "$ranks_script" "$build" 1 "$mx8" train $job --job.dump_folder=none : -n 1 -wdir "$work/here" "$mx8" train $job \
    --job.dump_folder=none >out 2>err </dev/null || code=$?
[ "$code" != 0 ] && [ "$code" != 124 ] || fail "differing data gave exit code $code"
has err 'rank 1 has another number of tokens than rank 0'

# A rank that fails alone takes the others with it, and says why.
code=0
# shellcheck disable=SC2086
timeout 60 sh "$ranks_script" "$build" 1 "$mx8" train $job --job.dump_folder=none : -n 1 -wdir / "$mx8" train $job \
    --job.dump_folder=none >out 2>err </dev/null || code=$?
[ "$code" != 0 ] && [ "$code" != 124 ] || fail "a failing rank gave exit code $code"
has err 'rank 1: .*corpus'

# Degrees that do not fit are the command line's fault.
ranks fails 2 none --parallelism.data_parallel_shard_degree=3
has err 'data_parallel_shard_degree 3 is 3, but there are 2 processes'
ranks fails 2 none --parallelism.expert_parallel_degree=2 --moe.num_experts=3
has err 'expert_parallel_degree is 2, expected a divisor of moe.num_experts, which is 3'
ranks fails 2 none --training.global_batch_size=3
has err 'times the number of processes'

ranks fails 2 none --debug.dump_tensors=1:dump
has err 'debug.dump_tensors: only one process'

# Ctrl-C: every rank stops after the same step, and the exit code says so.
start 2
kill -TERM "$(find_rank 1)"
for _ in $(seq 1 100); do kill -0 $job_pid 2>/dev/null || break; sleep 0.1; done
code=0
wait $job_pid || code=$?
[ "$code" = 130 ] || fail "an interrupted job gave exit code $code"
