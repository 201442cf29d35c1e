#!/bin/sh
# Every command that a page shows is run by a test: what stands in no block marked "sh run" (test_docs.sh runs those) has an
# entry in doc_commands.txt, which runs it in small or says why not. An entry whose command is gone fails too.
. "$(dirname "$0")/lib.sh"
here=$source/tests/cli
make_corpus
mkdir bin web books code held-out Llama-3.1-8B
ln -s "$mx8" bin/mx8
ln -s "$source/configs" configs
PATH=$work/bin:$PATH
for folder in web books code held-out; do cp corpus/a.txt $folder/; done
seq 1 50 | sed 's/.*/{"text": "page &"}/' | gzip >crawl-1.jsonl.gz
cp "$source/tests/data/tokenizer/llama3.json" Llama-3.1-8B/tokenizer.json
export MX8_MPI_LIBRARY="$1/libmx8_mpi.so" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"

for page in "$source"/README.md "$source"/docs/*.md; do awk -f "$here/doc_commands.awk" "$page"; done | sort -u >shown
sed -n '/^[^ #]/p' "$here/doc_commands.txt" | sort >known
[ "$(sort -u known | wc -l)" = "$(wc -l <known)" ] || fail "doc_commands.txt has an entry twice: $(uniq -d known)"
comm -23 shown known >missing
[ ! -s missing ] || fail "commands without an entry in tests/cli/doc_commands.txt: $(cat missing)"
comm -13 shown known >gone
[ ! -s gone ] || fail "entries of tests/cli/doc_commands.txt whose command no page shows: $(cat gone)"

n=0
sed -n 's/^    run //p' "$here/doc_commands.txt" >commands
while read -r command; do
    case $command in
    *mpirun*) if ! command -v mpirun >/dev/null || [ ! -e "$MX8_MPI_LIBRARY" ]; then continue; fi ;;
    esac
    (eval "$command") >out 2>err </dev/null || fail "$command"
    n=$((n + 1))
done <commands
[ $n -ge 20 ] || fail "only $n commands were run"
[ "$(grep -c '^    ' "$here/doc_commands.txt")" = "$(wc -l <known)" ] || fail "an entry does not say what becomes of it"
