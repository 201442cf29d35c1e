#!/bin/sh
# mx8 plan and mx8 bench dist from the command line.
. "$(dirname "$0")/../cli/lib.sh"
expect 0 plan --world 256 --gpu h200 --model 17bx16e --activation_checkpoint.mode=full --parallelism.expert_parallel_degree=8
has out '^256 x h200: replicate 1, shard 256, expert parallel 8; llama4 17bx16e'
has out '^  all +[0-9.]+ GiB, [0-9.]+ GiB there: fits'
has out 'tokens/s a GPU'
expect 0 plan --gpu b200 --model 17bx128e --table --activation_checkpoint.mode=full --parallelism.expert_parallel_degree=16
has out '^ +8 .*expert_parallel_degree is 16, expected a divisor'
has out '^ 1024 +1024 +16 '
expect 2 plan --world 0
has err 'expected 1 to 65536'
expect 2 plan --gpu h100
has err 'expected h200 or b200'
expect 2 plan --world 6 --parallelism.data_parallel_replicate_degree=4
has err 'divisor of the 6 processes'

bench="--model.dim=64 --model.n_layers=2 --model.n_heads=2 --model.n_kv_heads=1 --moe.num_experts=4 --training.seq_len=32
    --training.local_batch_size=2 --training.dataset=random --reps=2"
# shellcheck disable=SC2086
expect 0 bench dist $bench
has out 'tokens/s, '
code=0
# shellcheck disable=SC2086,SC2154
timeout 60 sh "$source/tests/dist/run_ranks.sh" "$(dirname "$mx8")" 2 "$mx8" bench dist $bench \
    --parallelism.expert_parallel_degree=2 >out 2>err </dev/null || code=$?
[ "$code" != 77 ] || exit 0
[ "$code" = 0 ] || fail "mx8 bench dist with two processes gave exit code $code"
sent=$(sed -n 's/^sent by rank 0: \(.*\) bytes a step, planned .*/\1/p' out)
[ -n "$sent" ] && grep -q "planned $sent\$" out || fail "what was sent is not what was planned"
