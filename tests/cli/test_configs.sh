#!/bin/sh
# Every file under configs/ resolves to a memory plan.
. "$(dirname "$0")/lib.sh"

make_corpus
for config in "$source"/configs/*.toml; do
    expect 0 train --job.config_file "$config" --training.dataset_path corpus --dry-run
    has out '^total +[0-9,]+ bytes'
done
