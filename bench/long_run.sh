#!/bin/sh
# Does MXFP8 learn the same over thousands of steps? A MoE of 215 M parameters, 101 M active, on at least 200 MB of text
# that the machine has: bf16, MXFP8 on experts and dense layers, and the head too, from the same start on the same batches;
# loss on held-out files while training and at the end.
#
#     bench/long_run.sh [--device cuda] [--out FOLDER] [--build FOLDER] [--steps N] [--recipes LIST] [--seed N]
#                       [--megabytes N] [--valid-every N] [--data FOLDER]... [--quick]
#
# Recipes: bf16, mxfp8, mxfp8_head (all of them; the first is what gaps are taken to). --data: where text is looked for (/usr
# and /opt; Python's packages below them). Text is sources and documents of 256 bytes to 1 MB, each content once, in
# the order of its SHA-256, whose first byte also says what is held out: the same files give the same corpus. A step is
# 8 x 2048 bytes. Writes into FOLDER (long-run-out): corpus, shards, a folder for every recipe, long_run.md,
# long_run.json, long_run.html (curves). Shards that are there are used again. --quick is a test of the script.
set -eu
usage() {
    sed -n '6,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
device=cuda out=long-run-out build=build steps=3000 recipes=bf16,mxfp8,mxfp8_head seed=1 megabytes=200 every=250 data='' quick=''
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --data) data="$data ${2:?}" && shift ;;
    --valid-every) every=${2:?} && shift ;;
    --device | --out | --build | --steps | --recipes | --seed | --megabytes)
        [ $# -ge 2 ] || usage
        eval "${1#--}=\$2"
        shift
        ;;
    *) usage ;;
    esac
    shift
done
data=${data:-/usr /opt}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
build=$(cd "$build" && pwd)
targets=mx8
[ "$device" = cpu ] || targets="mx8 mx8_cuda"
# shellcheck disable=SC2086 # a list of targets
cmake --build "$build" --target $targets >"$out/build.log" 2>&1 || {
    tail -n 20 "$out/build.log" >&2
    exit 1
}

model="--model.dim=1024 --model.n_layers=8 --model.n_heads=16 --model.n_kv_heads=8 --model.multiple_of=256
    --model.ffn_dim_multiplier=none --model.vocab_size=288 --moe.num_experts=4 --training.seq_len=2048
    --training.local_batch_size=8 --validation.steps=32"
if [ -n "$quick" ]; then
    model="--model.dim=64 --model.n_layers=2 --model.n_heads=2 --model.n_kv_heads=1 --model.vocab_size=288
        --moe.num_experts=4 --training.seq_len=64 --training.local_batch_size=2 --validation.steps=2"
fi
[ "$device" = cpu ] || model="$model --compile.enable"

# link_files: "SHA-256  PATH" lines in order -> links in corpus/train and corpus/valid; the sizes of both on stdout.
link_files() {
    perl -e '
        my ($out, $most) = @ARGV;
        my (%bytes, %files, $last) = (train => 0, valid => 0);
        my %limit = (train => $most, valid => $most / 25);
        while (<STDIN>) {
            next unless /^([0-9a-f]{64})  (.*)$/ && $1 ne ($last // "");
            $last = $1;
            my $part = hex(substr($1, 0, 2)) < 8 ? "valid" : "train";
            next if $bytes{$part} >= $limit{$part};
            my $target = substr($2, 0, 1) eq "/" ? $2 : "$ENV{PWD}/$2";
            symlink($target, "$out/$part/$1.txt") or die "$out/$part/$1.txt: $!\n";
            $bytes{$part} += -s $2;
            $files{$part}++;
        }
        printf "%d files, %.1f MB to train on; %d files, %.1f MB held out\n", $files{train} // 0, $bytes{train} / 1e6,
            $files{valid} // 0, $bytes{valid} / 1e6;
        exit 3 if $bytes{train} < $most || !$bytes{valid};
    ' "$out/corpus" "$((megabytes * 1000000))"
}

# shellcheck disable=SC2086 # a list of folders
collect() {
    echo "Looking for text under $data"
    rm -rf "$out/corpus" && mkdir -p "$out/corpus/train" "$out/corpus/valid"
    set -- -name '*.py'
    for suffix in pyi c h cc cpp hpp cu cuh inl md rst txt cmake sh pl pm rs go js ts java sql; do
        set -- "$@" -o -name "*.$suffix"
    done
    find -H $data -xdev -type f \( "$@" \) -size +255c -size -1000000c -print0 2>/dev/null |
        xargs -0 -P "$(nproc)" -n 500 sha256sum 2>/dev/null >"$out/corpus/hashes" || :
    LC_ALL=C sort "$out/corpus/hashes" | link_files >"$out/corpus/size" || {
        echo "long_run: $(cat "$out/corpus/size"); expected $megabytes MB: name more folders with --data" >&2
        exit 1
    }
    for part in train valid; do
        "$build/mx8" tokenize "$out/corpus/$part" --format text --tokenizer bytes --dtype uint16 --output "$out/shards/$part" \
            >"$out/corpus/$part.log" 2>&1 || {
            tail -n 3 "$out/corpus/$part.log" >&2
            exit 1
        }
    done
}

mx="--model.converters=mx --mx.recipe_name=mxfp8 --mx.moe_fqns_prototype=experts"
flags_of() {
    case $1 in
    bf16) ;;
    mxfp8) echo "$mx --mx.filter_fqns=output,router.gate,wk,wv" ;;
    mxfp8_head) echo "$mx --mx.filter_fqns=router.gate,wk,wv" ;;
    *) return 1 ;;
    esac
}

names=$(echo "$recipes" | tr , ' ')
for name in $names; do
    flags_of "$name" >/dev/null || usage
done
[ -f "$out/shards/valid/manifest.json" ] || collect
cat "$out/corpus/size"

set --
for name in $names; do
    folder=$out/$name
    mkdir -p "$folder"
    rm -f "$folder"/metrics*.jsonl "$folder"/run*.json
    echo "$name: $steps steps"
    # shellcheck disable=SC2046,SC2086 # lists of flags
    "$build/mx8" train --job.device="$device" --model.flavor=demo $model $(flags_of "$name") --moe.top_k=1 \
        --training.dataset=shards --training.dataset_path="$out/shards/train" --training.seed="$seed" \
        --training.steps="$steps" --optimizer.lr=6e-4 --lr_scheduler.warmup_steps=$((steps / 20 + 1)) \
        --lr_scheduler.decay_type=cosine --lr_scheduler.min_lr_factor=0.1 --activation_checkpoint.mode=none \
        --validation.enable --validation.dataset=shards --validation.dataset_path="$out/shards/valid" \
        --validation.freq="$every" --metrics.log_freq=100 --job.dump_folder="$folder" \
        --job.description="$name, $(cat "$out/corpus/size")" >"$folder/log" 2>&1 || {
        tail -n 5 "$folder/log" >&2
        exit 1
    }
    set -- "$@" "$folder"
done
"$build/mx8" report "$@" -o "$out/long_run.html" --title "bf16 and MXFP8, $steps steps" >/dev/null
for folder in "$@"; do
    awk -v name="$(basename "$folder")" -f "$here/validations.awk" "$folder/metrics.jsonl"
done >"$out/validations.txt"
{
    echo "$(date +%F), $device, seed $seed; $(cat "$out/corpus/size")"
    awk -v json="$out/long_run.json" -f "$here/long_run.awk" "$out/validations.txt"
} | tee "$out/long_run.md"
