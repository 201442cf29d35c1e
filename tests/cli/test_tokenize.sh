#!/bin/sh
# shellcheck disable=SC2086 # $tiny and $llama3 are lists of words
# mx8 tokenize, detokenize and inspect: text to shards and back, thread counts, going on, and what is refused.
. "$(dirname "$0")/lib.sh"
data=$source/tests/data/tokenizer
make_corpus

# without a tokenizer file: bytes, back to the same bytes
expect 0 tokenize corpus --output shards
has out '^shards: [0-9,]+ tokens of 2 documents in 1 shard; '
expect 0 detokenize shards/tokens_000000.bin --skip-special
cat corpus/a.txt corpus/b.txt >all.txt
cmp out all.txt || fail "the text came back changed"
expect 0 detokenize shards/tokens_000000.bin --count 5
[ "$(cat out)" = "<bos>1
2
" ] || [ "$(cat out)" = "<bos>1
2" ] || fail "--count 5 gave $(cat out)"
expect 0 inspect shards/tokens_000000.bin --tokenizer bytes --documents 1 --tokens 3
has out '^  format     llm\.c, uint32 tokens$'
has out '^  documents  2 that end with token 257'
has out '^        256  <bos>$'
has out '^         49  "1"$'
has out 'sha256     [0-9a-f]{64}$'
expect 0 train $tiny --training.steps=1 --training.dataset_path=shards --job.dump_folder=run

# a complete folder is left alone, another tokenization is refused, and --overwrite is obeyed
expect 0 tokenize corpus --output shards
has out 'all shards are there already'
expect 1 tokenize corpus --output shards --format lines
has err 'made with another "options"'
expect 0 tokenize corpus --output shards --format lines --overwrite
has out 'of 5,334 documents'
: >foreign.bin
expect 1 tokenize corpus --output .
has err 'foreign\.bin'

# wrong input names its place
printf '{"text": "a"}\n{"txt": "b"}\n' >bad.jsonl
expect 1 tokenize bad.jsonl --output bad
has err 'bad\.jsonl: line 2: no text in a field "text"'
expect 1 tokenize missing --output bad
has err 'missing'
expect 2 tokenize corpus
has err 'needs --output'
printf '{"model": {"type": "Unigram"}}' >unigram.json
expect 1 tokenize corpus --output bad --tokenizer unigram.json
has err 'unigram\.json: model "Unigram" is not supported'

if "$mx8" tokenize corpus --output probe --tokenizer "$data/llama3.json" --eos '<|end|>' >out 2>err; then :; else
    has err 'libpcre2-dev' # a build without PCRE2 says what it lacks; the rest needs it
    exit 0
fi
llama3="--tokenizer $data/llama3.json --eos <|end|>"

# ids of standard input and back
printf 'Straße <|end|> 漢字\n' >text
"$mx8" tokenize - $llama3 <text >ids
"$mx8" detokenize - $llama3 <ids >back 2>err && fail "--eos is no flag of detokenize"
"$mx8" detokenize - --tokenizer "$data/llama3.json" <ids >back
cmp text back || fail "ids did not give the text back"
echo 99999 | "$mx8" detokenize - --tokenizer "$data/llama3.json" >back 2>err && fail "id 99999 was taken"
has err 'is no id below'

# the same shards from one thread and three, from JSON lines plain and packed
seq 1 3000 | sed 's/.*/{"text": "line & of text, its value squared\\n"}/' >lines.jsonl
gzip -kn lines.jsonl
for threads in 1 3; do
    expect 0 tokenize lines.jsonl $llama3 --output t$threads --threads $threads --shard-tokens 9000
done
for shard in t1/*.bin; do cmp "$shard" "t3/${shard#t1/}" || fail "$shard depends on the thread count"; done
[ "$(find t1 -name '*.bin' | wc -l)" -gt 3 ] || fail "too few shards"
eos=$(sed -n 's/.*"eos": \([0-9]*\).*/\1/p' t1/manifest.json)
expect 0 inspect t1/tokens_000000.bin # without a tokenizer the manifest says what ends documents
has out "documents  [0-9,]+ that end with token $eos, "
if "$mx8" tokenize lines.jsonl.gz $llama3 --output packed --shard-tokens 9000 >out 2>err; then
    for shard in t1/*.bin; do cmp "$shard" "packed/${shard#t1/}" || fail "$shard differs from that of packed text"; done
else
    has err 'zlib1g-dev'
fi

# going on: a shard that is lost or damaged is made again, with those after it
cp -r t1 t4
rm t4/tokens_000002.bin
expect 0 tokenize lines.jsonl $llama3 --output t4 --shard-tokens 9000
has out '2 finished shards are kept'
for shard in t1/*.bin; do cmp "$shard" "t4/${shard#t1/}" || fail "$shard differs after going on"; done
cmp t1/manifest.json t4/manifest.json || fail "the manifest differs after going on"
expect 1 tokenize lines.jsonl --tokenizer "$data/gpt2.json" --eos '<|end|>' --output t4 --shard-tokens 9000
has err 'another "tokenizer"'
expect 1 tokenize lines.jsonl --tokenizer "$data/llama3.json" --output none
has err 'name one with --eos'
expect 1 detokenize t1/tokens_000000.bin --tokenizer bytes
has err "another one's shard"
