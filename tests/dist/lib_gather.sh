# shellcheck shell=sh disable=SC2034,SC2154 # sourced: the scripts that compare weights sent as bf16 and as codes
. "$(dirname "$0")/lib.sh"
gather_job="--training.mixed_precision_param=bfloat16 --model.converters=mx --mx.moe_fqns_prototype=experts
    --mx.filter_fqns=output,router.gate,wk,wv --training.steps=4
    --model.dim=96 --model.n_layers=3 --moe.num_experts=3" # cuts fall inside of matrices and of experts

# losses_of FOLDER: what tells of every weight, gradient and update: losses and gradient norms.
losses_of() {
    sed 's/.*"loss":\([^,]*\),.*"grad_norm":\([^,}]*\).*/\1 \2/' "$1/metrics.jsonl"
}

# same_bits N NAME FLAGS...: both ways of travelling with N processes.
same_bits() {
    ranks_n=$1 name=$2
    shift 2
    # shellcheck disable=SC2086
    ranks ok "$ranks_n" "$name-bf16" $gather_job "$@"
    # shellcheck disable=SC2086
    ranks ok "$ranks_n" "$name-codes" $gather_job "$@" --parallelism.fsdp_gather_dtype=mxfp8
    losses_of "$name-bf16" >bf16.losses
    losses_of "$name-codes" >codes.losses
    [ "$(grep -c '^[0-9.e-]* [0-9.e-]*$' bf16.losses)" -ge 4 ] || fail "$name: $(head -n 1 bf16.losses) is no loss and norm"
    cmp bf16.losses codes.losses || fail "$name: $* with codes gives other losses: $(paste bf16.losses codes.losses)"
}
