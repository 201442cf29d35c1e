#!/bin/sh
# Installs what is missing, builds mx8, and trains a small mixture of experts on the C headers of this machine in three
# recipes from the same start; ends with a table and an HTML report. Flags go to `mx8 compare`, such as
#     ./demo.sh --training.dataset_path ~/books --training.steps 300
set -eu
root=$(cd "$(dirname "$0")" && pwd)
here=$(pwd)
cd "$root"
. scripts/setup.sh

# shellcheck disable=SC2086 # a list of words
install_packages $base_packages
build build

# On a machine that does other work too, a waiting thread soon gives its core away.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT-10000}"
cd "$here" # so that relative paths among the flags mean what they say
exec "$root/build/mx8" compare --recipes bf16,mxfp8_dense,mxfp8_moe --job.dump_folder "$root/demo-out" \
    --model.flavor demo --training.steps 80 --training.local_batch_size 16 --optimizer.lr 1e-3 \
    --lr_scheduler.warmup_steps 10 --lr_scheduler.min_lr_factor 0.1 "$@"
