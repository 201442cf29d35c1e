#!/bin/sh
# Every combination of shard 1, 2, 4, replicate 1, 2 and expert parallel 1, 2, 4 gives the losses of one process.
. "$(dirname "$0")/lib.sh"
ranks ok 2 two
# eight processes need a batch of eight
job="$job --training.global_batch_size=8"
# shellcheck disable=SC2086,SC2154
expect 0 train $job --job.dump_folder=one
for replicate in 1 2; do
    for shard in 1 2 4; do
        for expert in 1 2 4; do
            n=$((replicate * shard))
            if [ $n = 1 ] || [ $((shard % expert)) != 0 ]; then continue; fi
            ranks ok $n grid --parallelism.data_parallel_replicate_degree=$replicate \
                --parallelism.data_parallel_shard_degree=$shard --parallelism.expert_parallel_degree=$expert
            same_losses one grid 1e-5
            echo "replicate $replicate, shard $shard, expert parallel $expert: $(cat difference)"
            rm -rf grid
        done
    done
done

# What must not change the losses: weights kept, no overlap, recomputed layers, scores after the experts, two microbatches.
while read -r name flags; do
    # shellcheck disable=SC2086
    expect 0 train $job $flags --job.dump_folder="one-$name"
    # shellcheck disable=SC2086
    ranks ok 4 "four-$name" $flags --parallelism.expert_parallel_degree=2
    same_losses "one-$name" "four-$name" 1e-5
    echo "$name: $(cat difference)"
done <<END
kept --parallelism.fsdp_reshard_after_forward=never
plain --parallelism.fsdp_overlap=false
recomputed --activation_checkpoint.mode=full
ops --activation_checkpoint.selective_ac_option=op
ops-after --activation_checkpoint.selective_ac_option=op --moe.score_before_experts=false
after --moe.score_before_experts=false
one-expert --moe.top_k=1 --moe.load_balance_coeff=none
odd --model.vocab_size=301 --model.multiple_of=1 --model.dim=68
END

# Experts that get nothing on any rank: one expert wins every token.
# shellcheck disable=SC2086
expect 0 train $job --moe.num_experts=16 --moe.top_k=1 --moe.load_balance_coeff=none --training.local_batch_size=1 \
    --training.seq_len=8 --job.dump_folder=one-empty
ranks ok 4 empty --moe.num_experts=16 --moe.top_k=1 --moe.load_balance_coeff=none --training.seq_len=8 \
    --parallelism.expert_parallel_degree=4
same_losses one-empty empty 1e-5
has empty/metrics.jsonl '"expert_load":.*[[,]0[],]'

# Validation is shared out, too.
# shellcheck disable=SC2086
expect 0 train $job --validation.enable --validation.dataset=text --validation.dataset_path=corpus --validation.steps=3 \
    --validation.freq=20 --validation.seq_len=32 --validation.local_batch_size=1 --job.dump_folder=one-validated
cp out one-out
ranks ok 2 validated --validation.enable --validation.dataset=text --validation.dataset_path=corpus --validation.steps=3 \
    --validation.freq=20 --validation.seq_len=32 --validation.local_batch_size=1
for file in one-out out; do sed -n 's/.*validate step: 20  loss: *\([0-9.]*\).*/\1/p' $file >$file.loss; done
[ -s out.loss ] || fail "no validation was logged"
cmp one-out.loss out.loss || fail "the validation losses differ"
