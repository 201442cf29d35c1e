#!/bin/sh
# Weights that travel as codes, over grids, recipes and ways of running: bit for bit those that travel as bf16.
. "$(dirname "$0")/lib_gather.sh"
for replicate in 1 2; do
    for shard in 2 3 4; do
        for expert in 1 2 3 4; do
            if [ $((shard % expert)) != 0 ] || [ $((replicate * shard)) -gt 6 ]; then continue; fi
            same_bits $((replicate * shard)) grid --moe.num_experts=12 --parallelism.expert_parallel_degree=$expert \
                --parallelism.data_parallel_replicate_degree=$replicate --parallelism.data_parallel_shard_degree=$shard
            echo "replicate $replicate, shard $shard, expert parallel $expert: the same"
            rm -rf grid-bf16 grid-codes
        done
    done
done
while read -r name flags; do
    # shellcheck disable=SC2086
    same_bits 3 "$name" $flags
    echo "$name: the same"
done <<END
kept --parallelism.fsdp_reshard_after_forward=never
plain --parallelism.fsdp_overlap=false
recomputed --activation_checkpoint.mode=full
every-second --activation_checkpoint.mode=selective --activation_checkpoint.selective_ac_option=2
ops --activation_checkpoint.selective_ac_option=op
microbatches --training.global_batch_size=6
head --mx.filter_fqns=router.gate,wk,wv --model.vocab_size=320
dense-only --mx.moe_fqns_prototype=
experts-only --model.converters=quantize.grouped_mm.mx --quantize.grouped_mm.mx.fqns=experts
exact --mx.exact
high-precision-wgrad --mx.wgrad_hp
float32 --training.mixed_precision_param=float32
tiles --mx.weight_tile_rows=32
wide-tiles --mx.weight_tile_rows=128 --model.dim=256 --model.multiple_of=256
floor --mx.scale_rule=floor
validated --validation.enable --validation.dataset=text --validation.dataset_path=corpus --validation.steps=2
END
# Scale groups of several blocks move the cuts, and with them the order in which the gradient norm is summed.
for group in 128 256; do
    # shellcheck disable=SC2154
    job="$job --training.steps=20"
    # shellcheck disable=SC2086
    flags="$gather_job --training.steps=20 --mx.weight_scale_group=$group --mx.weight_tile_rows=32 --model.dim=256"
    # shellcheck disable=SC2086
    ranks ok 3 one-$group $flags
    # shellcheck disable=SC2086
    ranks ok 3 two-$group $flags --parallelism.fsdp_gather_dtype=mxfp8
    same_losses one-$group two-$group 1e-4
done
