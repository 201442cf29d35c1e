#!/bin/sh
# Installs into a folder of its own and builds every example against that, through pkg-config and through CMake; both
# run. Then the tree is moved: nothing in it may name where it was.
. "$(dirname "$0")/../cli/lib.sh"
build=${1:?}
sanitize=$(sed -n 's/^MX8_SANITIZE:STRING=//p' "$build/CMakeCache.txt")
flags="-O1 -Wall -Werror${sanitize:+ -fsanitize=$sanitize}"

cmake --install "$build" --prefix "$work/first" >out 2>err || fail "cmake --install"
mv first moved
"$work/moved/bin/mx8" --version >out || fail "the installed mx8 does not run"
for file in man/man1/mx8.1 bash-completion/completions/mx8 zsh/site-functions/_mx8; do
    [ -s moved/share/$file ] || fail "share/$file is not installed"
done
[ -z "$(grep -rlI "$work/first" moved)" ] || fail "installed files name their first place"

pc=$(dirname "$(find moved -name mx8.pc)")
export PKG_CONFIG_PATH="$work/$pc"
library=$(pkg-config --variable=libdir mx8) || fail "pkg-config does not find mx8"
export LD_LIBRARY_PATH="$library"
[ "$(pkg-config --modversion mx8)" = "$("$mx8" --version | sed 's/mx8 //')" ] || fail "mx8.pc has another version"

cmake -S "$source/examples" -B built -DCMAKE_PREFIX_PATH="$work/moved" -DCMAKE_C_FLAGS="$flags" >out 2>err ||
    fail "the examples do not configure"
cmake --build built >out 2>err || fail "the examples do not build through CMake"
n=0
for file in "$source"/examples/*.c; do
    name=$(basename "$file" .c)
    # shellcheck disable=SC2046,SC2086 # lists of flags
    cc -std=c11 $flags "$file" $(pkg-config --cflags --libs mx8) -lm -o "$name" 2>err || fail "$name: pkg-config"
    for program in "./$name" "built/$name"; do
        "$program" >out 2>err || fail "$program failed"
        [ -s out ] || fail "$program says nothing"
    done
    n=$((n + 1))
done
[ $n -ge 3 ] || fail "only $n examples were found"

# each header alone, strictly, and for C++ where there is a compiler of it
for header in moved/include/mx8/*.h; do
    echo "#include <mx8/$(basename "$header")>" >header.c
    cc -std=c11 -pedantic -Wall -Wextra -Werror -Imoved/include -fsyntax-only header.c 2>err || fail "$header in C"
    command -v c++ >/dev/null || continue
    c++ -std=c++11 -pedantic -Wall -Wextra -Werror -x c++ -Imoved/include -fsyntax-only header.c 2>err || fail "$header in C++"
done

# the installed program opens libraries of the installed tree: this one is none, which the message says. The address
# sanitizer calls dlopen in the program's place, which then looks where libasan lies.
! grep -q '^MX8_SANITIZE.*address' "$1/CMakeCache.txt" || exit 0
unset LD_LIBRARY_PATH
echo "no library" >"$library/libmx8_cuda.so"
PATH=$work/moved/bin:$PATH mx8 info >out || fail "the installed mx8 info"
has out '^cuda .*/libmx8_cuda.so: '
