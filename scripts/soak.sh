#!/bin/sh
# Runs each fuzz target for RUNS inputs (default ten million): libFuzzer where clang and its OpenMP are installed (Debian:
# clang libomp-dev), else our own driver under the sanitizers of gcc. Findings are left in the build folder.
# Usage: scripts/soak.sh [RUNS [TARGET...]]
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
runs=${1-10000000}
[ $# = 0 ] || shift
export OMP_NUM_THREADS=1
# Several times the inputs a second; a finding is repeated without.
export ASAN_OPTIONS=malloc_context_size=1:quarantine_size_mb=1:thread_local_quarantine_size_kb=64

folder=build-soak
libfuzzer=
if command -v clang >/dev/null && echo 'int main(void){return 0;}' | clang -fopenmp -x c -o /dev/null - 2>/dev/null; then
    libfuzzer=1
    folder=build-fuzz
    build $folder -DCMAKE_C_COMPILER=clang -DMX8_FUZZ=ON -DMX8_TESTS=ON -DMX8_SANITIZE=address,undefined
else
    build $folder -DMX8_TESTS=ON -DMX8_SANITIZE=address,undefined
fi
for corpus in tests/fuzz/corpus/*; do
    name=$(basename "$corpus")
    [ $# = 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
    echo "fuzz_$name: $runs inputs"
    if [ "$libfuzzer" ]; then
        mkdir -p "$folder/found/$name"
        max=4096 # longer inputs hold more of the same
        [ "$name" != infer ] || max=512
        # An even choice among inputs leaves more time for them: "entropic" counts every feature of every input.
        (cd "$folder" && tests/fuzz_"$name" -runs="$runs" -max_len=$max -entropic=0 -timeout=60 -print_final_stats=1 \
            "found/$name" "../$corpus" >"soak-$name.log" 2>&1) || { tail -n 40 "$folder/soak-$name.log" >&2; exit 1; }
    else
        (cd "$folder" && tests/fuzz_"$name" "../$corpus" --runs "$runs")
    fi
done
