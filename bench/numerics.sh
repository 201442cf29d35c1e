#!/bin/sh
# Does MXFP8 learn what bf16 learns, and would this study notice if it did not? A small MoE with planted outlier channels
# is trained from three seeds: in bf16, in MXFP8 in several scale geometries, and in MXFP8 made worse on purpose.
# bench_sqnr then measures the products of linears, on formulas and on tensors of the bf16 runs.
#
#     bench/numerics.sh [--device cuda] [--out FOLDER] [--build FOLDER] [--data PATH] [--steps N] [--seeds N]
#                       [--outliers EVERY:FACTOR] [--only training|sqnr] [--quick]
#
# Writes into FOLDER (numerics-out): numerics.md (tables), numerics.json, gaps.svg, seed-1.html (loss curves), sqnr.md,
# sqnr.json, and a folder for every run. A gap is the mean training loss of the last fifth of the steps over that of bf16
# with the same seed, thus the same start and the same batches. --quick is a test of the script, too small to mean
# anything. BUILD holds a configured build of mx8 (build); what is old in it is built first.
set -eu
usage() {
    sed -n '6,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
device=cpu out=numerics-out build=build data='' steps='' seeds=3 outliers=24:30 only='' quick=''
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --device | --out | --build | --data | --steps | --seeds | --outliers | --only)
        [ $# -ge 2 ] || usage
        eval "${1#--}=\$2"
        shift
        ;;
    *) usage ;;
    esac
    shift
done
case $device:$only in cpu: | cuda: | cpu:training | cpu:sqnr | cuda:training | cuda:sqnr) ;; *) usage ;; esac

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
build=$(cd "$build" && pwd)
targets="mx8 bench_sqnr"
[ "$device" = cpu ] || targets="$targets mx8_cuda"
# shellcheck disable=SC2086 # a list of targets
cmake --build "$build" --target $targets >"$out/build.log" 2>&1 || {
    tail -n 20 "$out/build.log" >&2
    exit 1
}
began=$(date +%s)

# The sizes: K is at least 256 everywhere, experts have at least 256 tokens each.
size=4096
case $device in
cuda)
    model="--model.dim=512 --model.n_layers=4 --model.n_heads=8 --model.n_kv_heads=4 --model.multiple_of=256
        --model.vocab_size=288 --moe.num_experts=8 --training.seq_len=512 --training.local_batch_size=16"
    wide="--model.dim=2048 --model.n_layers=4 --model.n_heads=16 --model.n_kv_heads=8 --model.multiple_of=512
        --model.vocab_size=288 --moe.num_experts=4 --training.seq_len=2048 --training.local_batch_size=8"
    wide_steps=200
    : "${steps:=300}"
    ;;
cpu)
    model="--model.dim=256 --model.n_layers=2 --model.n_heads=4 --model.n_kv_heads=2 --model.multiple_of=256
        --model.ffn_dim_multiplier=none --model.vocab_size=288 --moe.num_experts=4 --training.seq_len=128
        --training.local_batch_size=8"
    wide=
    : "${steps:=150}"
    ;;
esac
if [ -n "$quick" ]; then
    model="$model --training.seq_len=64 --training.local_batch_size=2"
    steps=5 seeds=1 size=256 wide=
fi
warmup=$((steps / 10 + 1))
common="--job.device=$device --model.flavor=demo $model --moe.top_k=1 --optimizer.lr=1e-3
    --lr_scheduler.warmup_steps=$warmup --training.steps=$steps --metrics.log_freq=1000000
    --activation_checkpoint.mode=none --debug.outlier_channels=$outliers"

# Whose operands bench_sqnr reads.
linears=layers.1.attention.wq,layers.1.attention.wo,layers.1.moe.experts,layers.1.moe.shared_experts.w2

# name; what the table says; flags
mx="--model.converters=mx --mx.recipe_name=mxfp8 --mx.moe_fqns_prototype=experts --mx.filter_fqns=output,router.gate"
plain="--mx.scale_group=32 --mx.col_tile_rows=1 --mx.weight_scale_group=32 --mx.weight_tile_rows=1"
recipes() {
    cat <<LIST
bf16|bf16|
canonical|1x32 (canonical)|$mx $plain
hopper|1x256, 32x256 (default on Hopper)|$mx --mx.scale_group=256 --mx.col_tile_rows=32 --mx.weight_scale_group=256 --mx.weight_tile_rows=32
group128|1x128|$mx --mx.scale_group=128 --mx.col_tile_rows=1 --mx.weight_scale_group=128 --mx.weight_tile_rows=1
group256|1x256|$mx --mx.scale_group=256 --mx.col_tile_rows=1 --mx.weight_scale_group=256 --mx.weight_tile_rows=1
tile128|1x128, weights 128x128|$mx --mx.scale_group=128 --mx.col_tile_rows=1 --mx.weight_scale_group=128 --mx.weight_tile_rows=128
floor|control: 1x32, FLOOR scales|$mx $plain --mx.scale_rule=floor
e5m2|control: 1x32, gradients in E5M2|$mx $plain --debug.mx_control=e5m2_gradients
reused|control: 1x32, codes of the other axis|$mx $plain --debug.mx_control=reused_codes
LIST
}

# train NAME FLAGS...: one run into out/NAME; a failure shows its end and stops the study.
train() {
    folder=$out/$1
    shift
    mkdir -p "$folder"
    set -- "$@" "--job.dump_folder=$folder"
    [ -z "$data" ] || set -- "$@" "--training.dataset_path=$data"
    rm -f "$folder"/metrics*.jsonl "$folder"/run*.json
    # shellcheck disable=SC2086 # lists of flags
    "$build/mx8" train "$@" >"$folder/log" 2>&1 || {
        tail -n 5 "$folder/log" >&2
        exit 1
    }
}

# shellcheck disable=SC2086 # lists of flags
run_training() {
    seed=1
    while [ "$seed" -le "$seeds" ]; do
        recipes | while IFS='|' read -r name label flags; do
            printf '\rseed %s of %s: %-10s' "$seed" "$seeds" "$name" >&2
            dump=
            [ "$name:$seed" != bf16:1 ] || dump="--debug.dump_tensors=$steps:$out/planted --debug.dump_fqns=$linears"
            train "seed-$seed/$name" $common $flags $dump --training.seed="$seed"
        done
        seed=$((seed + 1))
    done
    printf '\n' >&2
    "$build/mx8" report "$out"/seed-1/bf16 "$out"/seed-1/canonical "$out"/seed-1/hopper "$out"/seed-1/floor \
        "$out"/seed-1/e5m2 "$out"/seed-1/reused -o "$out/seed-1.html" --title 'Numerics: seed 1' >/dev/null
    seed=1
    while [ "$seed" -le "$seeds" ]; do
        recipes | while IFS='|' read -r name label flags; do
            loss=$(awk -v steps="$steps" -f "$here/tail_loss.awk" "$out/seed-$seed/$name/metrics.jsonl")
            echo "$seed|$name|$label|$loss"
        done
        seed=$((seed + 1))
    done >"$out/losses.txt"
    awk -f "$here/numerics.awk" -v json="$out/numerics.json" -v svg="$out/gaps.svg" -v device="$device" \
        -v steps="$steps" -v outliers="$outliers" "$out/losses.txt" | tee "$out/numerics.md"
}

# shellcheck disable=SC2086 # lists of flags
run_sqnr() {
    set -- --size "$size" --json "$out/sqnr.json"
    [ ! -d "$out/planted" ] || set -- "$@" --tensors "$out/planted"
    if [ -n "$wide" ]; then
        printf 'a wider model in bf16\n' >&2
        train wide $common $wide --training.steps=$wide_steps --training.seed=1 \
            --debug.outlier_channels= --debug.dump_tensors=$wide_steps:"$out/plain" --debug.dump_fqns="$linears"
        set -- "$@" --tensors "$out/plain"
    fi
    "$build/bench_sqnr" "$@" >"$out/sqnr.md"
    cat "$out/sqnr.md"
}

[ "$only" = sqnr ] || run_training
[ "$only" = training ] || run_sqnr
printf '\n%s, %s, %s s\n' "$(date +%F)" "$device" "$(($(date +%s) - began))" | tee -a "$out/numerics.md"
