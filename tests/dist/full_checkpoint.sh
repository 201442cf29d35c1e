#!/bin/sh
# A checkpoint of four processes resumes with the same bits at four, and within rounding at other numbers of processes and
# with experts spread otherwise; one that a rank cannot write is nobody's.
. "$(dirname "$0")/lib.sh"
job="$job --training.global_batch_size=8 --checkpoint.enable --checkpoint.interval=10 --checkpoint.last_save_model_only=false"
ranks ok 4 four --parallelism.expert_parallel_degree=2
has out 'Saved a checkpoint of step 10 to .*, 4 processes'
ls four/checkpoint/step-10 >files
has files 'state-0003-0000.safetensors'

# tail_of A: losses from step 11 on, A's own or of the run it was copied from.
tail_of() { sed -n 's/^{"step":\(1[1-9]\|20\),"loss":\([^,]*\),.*/\2/p' "$1/metrics.jsonl"; }
tail_of four >four.losses
[ "$(wc -l <four.losses)" = 10 ] || fail "no ten losses after the checkpoint"

while read -r name n flags; do
    mkdir -p "$name/checkpoint"
    cp -r four/checkpoint/step-10 "$name/checkpoint/"
    # shellcheck disable=SC2086
    ranks ok "$n" "$name" $flags
    has out 'Resuming from step 10'
    tail_of "$name" >"$name.losses"
    paste four.losses "$name.losses" | awk -v name="$name" '
        { d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; n++ }
        END { printf "%s: largest difference %g\n", name, worst; exit !(n == 10 && worst <= 1e-5) }' ||
        fail "$name does not go on as four processes did"
    [ "$name" != same ] || cmp four.losses same.losses || fail "the same number of processes gave other bits"
done <<END
same 4 --parallelism.expert_parallel_degree=2
spread 4 --parallelism.expert_parallel_degree=4
hybrid 4 --parallelism.data_parallel_replicate_degree=2
two 2
eight 8 --parallelism.expert_parallel_degree=2
END

# One process reads it, too, and two read what one wrote.
mkdir -p one/checkpoint
cp -r four/checkpoint/step-10 one/checkpoint/
# shellcheck disable=SC2086
expect 0 train $job --job.dump_folder=one
tail_of one >one.losses
paste four.losses one.losses | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5) exit 1 }' || fail "one process goes another way"
mkdir -p back/checkpoint
cp -r one/checkpoint/step-20 back/checkpoint/
ranks ok 2 back --training.steps=22
has back/metrics.jsonl '"step":22,'

# A damaged piece: the checkpoint is set aside by the first rank, and the one before is used by all.
mkdir -p damaged/checkpoint
cp -r four/checkpoint/step-10 four/checkpoint/step-20 damaged/checkpoint/
printf x | dd of=damaged/checkpoint/step-20/state-0002-0000.safetensors bs=1 seek=4000 conv=notrunc 2>/dev/null
ranks ok 4 damaged --training.steps=21
has out 'Resuming from step 10'
[ -d damaged/checkpoint/step-20.damaged ] || fail "the damaged checkpoint was not kept"

# Weights alone, for another job.
ranks ok 2 weights --checkpoint.last_save_model_only --training.steps=3
ranks ok 4 other --training.steps=2 --checkpoint.initial_load_path=weights/checkpoint/step-3
has out 'Loaded the weights of step 3'
