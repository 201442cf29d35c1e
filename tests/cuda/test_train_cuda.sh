#!/bin/sh
# shellcheck disable=SC2086 # $small is a list of words
# Whole runs on a GPU: the same bits again, through a checkpoint, beside another process, and with a CUDA graph; a job that
# is too large; the memory that was announced.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
device=${MX8_TEST_DEVICE:-cuda} # cpu: a test of this script
found="^$device .*"
[ "$device" = cpu ] || found="$found compute capability"
"$mx8" info >facts 2>&1 || true
if ! grep -Eq "$found" facts; then
    echo "skipped: $(grep -E '^cuda' facts || echo 'mx8 info names no GPU')"
    exit 77
fi
make_corpus
small="--device=$device --model.dim=256 --model.n_layers=2 --model.n_heads=4 --model.n_kv_heads=2 --moe.num_experts=4
    --moe.top_k=1 --training.seq_len=256 --training.local_batch_size=4 --training.dataset_path=corpus --metrics.log_freq=1
    --checkpoint.interval=6 --model.converters=mx --mx.recipe_name=mxfp8_cublas --mx.moe_fqns_prototype=experts
    --mx.filter_fqns=output,router.gate,wk,wv --lr_scheduler.warmup_steps=2 --lr_scheduler.decay_ratio=0 --checkpoint.last_save_model_only=false"

# What a run learned, without the times.
losses() { sed -n 's/.*"step":\([0-9]*\),.*"loss":\([0-9.e+-]*\).*/\1 \2/p' "$1/metrics.jsonl"; }
same() { { [ -s "$1" ] && cmp -s "$1" "$2"; } || fail "$3: $(diff "$1" "$2" | head -n 4 | tr '\n' ' ')"; }

expect 0 train $small --checkpoint.enable --training.steps=12 --job.dump_folder=whole
losses whole >whole.losses
[ "$(wc -l <whole.losses)" = 12 ] || fail "12 steps left $(wc -l <whole.losses) losses"

# Stopped after six steps, gone on with: the losses and the weights of the run in one piece.
expect 0 train $small --checkpoint.enable --training.steps=6 --job.dump_folder=parts
expect 0 train $small --checkpoint.enable --training.steps=12 --job.dump_folder=parts
has out 'Resuming from step 6'
losses parts >parts.losses
same whole.losses parts.losses "a run in two parts differs"
cmp -s whole/checkpoint/step-12/model.safetensors parts/checkpoint/step-12/model.safetensors ||
    fail "the weights after a resume differ"

# Killed at any moment: the next start finds the newest whole checkpoint.
for moment in 1 2 3; do
    "$mx8" train $small --checkpoint.enable --checkpoint.interval=1 --training.steps=12 --job.dump_folder=killed >out 2>err &
    job=$!
    sleep "$moment"
    kill -9 $job 2>/dev/null || true
    wait $job 2>/dev/null || true
done
expect 0 train $small --checkpoint.enable --checkpoint.interval=1 --training.steps=12 --job.dump_folder=killed
cmp -s whole/checkpoint/step-12/model.safetensors killed/checkpoint/step-12/model.safetensors ||
    fail "the weights after three kills differ"

# Two processes on one card, and a run as one CUDA graph a step.
"$mx8" train $small --training.steps=12 --job.dump_folder=beside >beside.out 2>&1 &
job=$!
expect 0 train $small --training.steps=12 --job.dump_folder=beside2
wait $job || fail "one of two processes on a card failed: $(tail -n 3 beside.out)"
expect 0 train $small --compile.enable --training.steps=12 --job.dump_folder=graph
for folder in beside beside2 graph; do
    losses $folder >$folder.losses
    same whole.losses $folder.losses "$folder differs"
done

# Too large: what was needed, what is free, which options would help; nothing was allocated for good.
expect 1 train $small --model.dim=8192 --model.n_heads=64 --moe.num_experts=64 --training.steps=1 --job.dump_folder=large
has err 'the (model|job) needs [0-9.]+ GiB.* [0-9.]+ GiB (are free|left)'
has err 'optimizer.state_dtype=bfloat16'

# The announced peak is what the run uses.
expect 0 train $small --dry-run --job.dump_folder=dry
planned=$(sed -n 's/^total *\([0-9,]*\) bytes.*/\1/p' out | tr -d ,)
used=$(sed -n 's/.*"memory":\([0-9]*\),.*/\1/p' whole/metrics.jsonl | tail -n 1)
echo "$planned $used" | awk '{ exit !(NF == 2 && $1 > 0 && $1 / $2 < 1.02 && $2 / $1 < 1.02) }' ||
    fail "announced $planned bytes, used $used"
