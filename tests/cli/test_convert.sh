#!/bin/sh
# shellcheck disable=SC2086 # $tiny, $arch and $start are lists of words
# mx8 convert and mx8 generate on weights that mx8 train wrote: there and back, MXFP8, text, and what is refused.
. "$(dirname "$0")/lib.sh"
make_corpus

expect 0 train $tiny --training.steps=2 --moe.load_balance_coeff=none --job.dump_folder=run --checkpoint.enable \
    --checkpoint.export_dtype=bfloat16 --checkpoint.last_save_in_hf --checkpoint.enable_first_step_checkpoint
has out 'Saved step 2 as a Hugging Face model to run/hf/step-2$'
weights=run/checkpoint/step-2

# a checkpoint tells its architecture; a file without metadata does not
expect 0 convert $weights hf// --to hf
has out 'hf/model\.safetensors'
has out "torchtitan's names, demo as Llama4ForCausalLM in bf16"
has hf/config.json '"Llama4ForCausalLM"'
cmp hf/model.safetensors run/hf/step-2/model.safetensors || fail "last_save_in_hf wrote something else"
expect 0 convert $weights/model.safetensors file --to hf
cmp hf/model.safetensors file/model.safetensors || fail "another file from the checkpoint's file"
LC_ALL=C sed 's/"mx8\.config"/"mx8.absent"/' $weights/model.safetensors >bare.safetensors
expect 1 convert bare.safetensors other --to hf
has err 'says nothing about its architecture.*--model.flavor'
arch="--model.flavor=demo --model.dim=64 --model.n_layers=2 --model.n_heads=2 --model.n_kv_heads=1 --moe.num_experts=4"
expect 0 convert bare.safetensors bare --to hf $arch --moe.load_balance_coeff=none
cmp hf/model.safetensors bare/model.safetensors || fail "another file from the bare weights"
expect 0 convert run/checkpoint/step-1 resumable --to hf --dtype bf16
expect 0 generate run/checkpoint/step-1 --max-new-tokens 8 --seed 3
cp out text-resumable
expect 0 generate resumable --max-new-tokens 8 --seed 3
cmp text-resumable out || fail "another text from the resumable checkpoint"

expect 0 convert hf back --to torchtitan
has out 'Llama4ForCausalLM, llama4 as torchtitan.s names in bf16'
expect 0 convert back again --to hf --architecture llama4 --shard-mb 1
cmp hf/model.safetensors again/model.safetensors || fail "another file after a round trip"
expect 0 convert back codes --to mxfp8
expect 0 convert codes plain --to torchtitan
expect 0 convert hf wide --to torchtitan --dtype f32

# training goes on from open weights: their own architecture, and no other
grep -v '"eos_token_id"' hf/config.json | sed 's/^{/{ "eos_token_id": 7,/' >config && cp config hf/config.json
start="--checkpoint.initial_load_in_hf --checkpoint.initial_load_path=hf --training.seq_len=64 --training.dataset_path=corpus
    --training.local_batch_size=2 --training.steps=1"
expect 0 train $start --job.dump_folder=on --checkpoint.enable --checkpoint.last_save_in_hf
has out 'Loading weights from the Hugging Face folder hf$'
has on/hf/step-1/config.json '"eos_token_id": 7'
expect 2 train $start --job.dump_folder=on2 --checkpoint.enable --checkpoint.last_save_in_hf --moe.load_balance_coeff=1e-3
has err 'moe.load_balance_coeff is 0.001: no Hugging Face family has a place'
expect 1 train $start --job.dump_folder=on3 --model.flavor=demo
has err 'hf: model.n_layers is 4 for one and 2 for the other|do not fit the architecture|model.dim is 256 for one and 64'
expect 2 train --checkpoint.initial_load_in_hf
has err 'expected the folder as checkpoint.initial_load_path'
expect 2 train $start --checkpoint.last_save_in_hf
has err 'expected checkpoint.enable too'

# the same text from every form of the same weights, from any number of threads, and another from another seed
for form in hf back wide; do
    expect 0 generate $form --prompt "12" --max-new-tokens 16 --seed 3 --tokenizer bytes
    cp out text-$form
    has err '^16 tokens in '
    cmp text-hf text-$form || fail "another text from $form"
done
expect 0 generate hf --prompt 12 --max-new-tokens 16 --seed 3 --threads 1
cmp text-hf out || fail "another text from one thread"
expect 0 generate hf --prompt 12 --max-new-tokens 16 --seed 4
cmp -s text-hf out && fail "the same text from another seed"
expect 0 generate hf --prompt 12 --max-new-tokens 8 --temperature 0 --echo
has out '^12'
iconv -f UTF-8 -t UTF-8 text-hf >/dev/null || fail "no valid UTF-8"
expect 0 generate codes --max-new-tokens 4 --top-k 5 --top-p 0.9
expect 0 generate hf --ids 256,49,50 --logits logits.safetensors
[ "$(stat -c %s logits.safetensors)" -gt 3456 ] || fail "no logits"

expect 1 convert hf hf --to torchtitan
has err 'hf has [0-9]+ files? in it, expected a new folder'
expect 1 convert hf other --to hf --architecture mixtral
has err 'MixtralForCausalLM: this model and what config.json can say: '
expect 2 convert hf other
has err 'needs --to'
expect 2 convert hf other --to onnx
expect 1 convert corpus/a.txt other --to hf --model.flavor demo
has err 'a\.txt'
expect 1 convert bare.safetensors other --to hf --model.flavor demo
has err 'do not fit the architecture'
expect 1 convert $weights other --to hf --model.flavor demo
has err 'in another shape|is missing'
expect 1 generate hf --ids 1,x
has err '"x" is no token id'
expect 1 generate hf --ids 1,288
has err 'token 288 at position 1, expected 0 to 287'
expect 2 generate
sed 's/"silu"/"gelu"/' hf/config.json >config && cp config hf/config.json
expect 1 generate hf
has err 'hf/config.json: "hidden_act" is "gelu", expected "silu"'
[ ! -e other ] || fail "a failed run left a folder"
