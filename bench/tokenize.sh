#!/bin/sh
# Speed of mx8 tokenize against Hugging Face's `tokenizers` on the same documents, in the same run, with one thread and
# two, alternating; and whether the ids are the same.
#
#     bench/tokenize.sh BUILD_FOLDER TEXT_FOLDER [ROUNDS]
#
# TEXT_FOLDER is read as UTF-8 text (files with NUL bytes are passed over), at most 40 MB of it. A vocabulary of 32,000 is
# trained on a part of it with the pattern of Llama 3. Needs python3 with venv; `tokenizers` goes into a folder that is
# removed at the end. mx8 reads JSON lines and writes shards, `tokenizers` gets its strings ready in memory.
set -eu
if [ $# -lt 2 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
mx8=$(cd "$1" && pwd)/mx8
text=$(cd "$2" && pwd)
rounds=${3-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q tokenizers

cat >"$work/prepare.py" <<'PYTHON'
import json, os, random, sys
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

text, out = sys.argv[1:]
documents = []
for folder, _, names in os.walk(text):
    for name in sorted(names):
        try:
            with open(os.path.join(folder, name), "rb") as f:
                data = f.read(1 << 20)
        except OSError:
            continue
        if data and b"\0" not in data:
            documents.append(data.decode("utf-8", errors="replace"))
random.Random(0).shuffle(documents)
kept, size = [], 0
for document in documents:
    if size > 40e6:
        break
    kept.append(document)
    size += len(document.encode())
split = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
)
trainer = trainers.BpeTrainer(
    vocab_size=32000,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    special_tokens=["<|endoftext|>"],
    show_progress=False,
)
tokenizer.train_from_iterator(kept[: max(1, len(kept) // 4)], trainer)
tokenizer.save(out + "/tokenizer.json")
with open(out + "/documents.jsonl", "w") as f:
    for document in kept:
        f.write(json.dumps({"text": document}) + "\n")
print(f"{len(kept)} documents, {size / 1e6:.1f} MB, {tokenizer.get_vocab_size()} tokens in the vocabulary")
PYTHON

cat >"$work/time.py" <<'PYTHON'
import array, json, sys, time
from tokenizers import Tokenizer

work, check = sys.argv[1], len(sys.argv) > 2
tokenizer = Tokenizer.from_file(work + "/tokenizer.json")
documents = [json.loads(line)["text"] for line in open(work + "/documents.jsonl")]
size = sum(len(d.encode()) for d in documents)
start = time.perf_counter()
encodings = tokenizer.encode_batch_fast(documents, add_special_tokens=False)
print(f"  tokenizers  {size / 1e6 / (time.perf_counter() - start):8.1f} MB/s")
if check:
    end, ids, shard = tokenizer.token_to_id("<|endoftext|>"), array.array("I"), array.array("I")
    for encoding in encodings:
        ids.extend(encoding.ids)
        ids.append(end)
    with open(work + "/shards/tokens_000000.bin", "rb") as f:
        shard.frombytes(f.read()[1024:])
    print("  the same ids" if ids == shard else "  DIFFERENT IDS")
    sys.exit(ids != shard)
PYTHON

"$work/venv/bin/python" "$work/prepare.py" "$text" "$work"
for threads in 1 2; do
    echo "$threads $([ $threads = 1 ] && echo thread || echo threads)"
    round=0
    while [ "$round" -lt "$rounds" ]; do
        "$mx8" tokenize "$work/documents.jsonl" --tokenizer "$work/tokenizer.json" --output "$work/shards" \
            --shard-tokens 2000000000 --threads $threads --overwrite | sed -n 's/.*, \([0-9.]* MB\/s\)$/  mx8         \1/p'
        RAYON_NUM_THREADS=$threads TOKENIZERS_PARALLELISM=true "$work/venv/bin/python" "$work/time.py" "$work"
        round=$((round + 1))
    done
done
"$work/venv/bin/python" "$work/time.py" "$work" check
