#!/bin/sh
# Weights that travel as MXFP8 codes: losses and gradient norms to the last bit those of weights that travel as bf16,
# and fewer bytes.
. "$(dirname "$0")/lib_gather.sh"
same_bits 2 plain
same_bits 3 uneven --moe.top_k=1 --activation_checkpoint.mode=full
same_bits 4 spread --moe.num_experts=6 --parallelism.expert_parallel_degree=2 \
    --parallelism.fsdp_reshard_after_forward=never

# What has no codes cannot travel as such.
# shellcheck disable=SC2154
expect 1 train --training.dataset=random --parallelism.fsdp_gather_dtype=mxfp8 --job.dump_folder=none
has err 'fsdp_gather_dtype is mxfp8, but recipe bf16 converts no weights'
[ ! -e none ] || fail "a job that could not start left files"
