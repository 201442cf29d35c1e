# shellcheck shell=sh disable=SC2034 # sourced by demo.sh and test.sh: packages and builds; POSIX sh

base_packages="gcc libc6-dev make cmake ninja-build pkg-config libjansson-dev"
test_packages="libcmocka-dev libpcre2-dev zlib1g-dev libzstd-dev libopenmpi-dev openmpi-bin"

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install_packages NAME...: what is missing, through apt; without root it prints the line to run, and stops.
install_packages() {
    command -v dpkg-query >/dev/null || return 0 # no Debian: configure says what it lacks
    missing=
    for package in "$@"; do is_installed "$package" || missing="$missing $package"; done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        echo "Packages are missing. As root: apt-get update && apt-get install -y --no-install-recommends$missing" >&2
        exit 1
    fi
    echo "Installing$missing"
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of words
    if ! { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        exit 1
    fi
    rm -f "$log"
}

# build FOLDER CMAKE_FLAGS...: a terminal sees ninja's one line, a pipe only a failure's log.
build() {
    folder=$1
    shift
    echo "Building in $folder"
    mkdir -p "$folder"
    if cmake -S . -B "$folder" -G Ninja "$@" >"$folder/build.log" 2>&1; then
        if [ -t 1 ]; then
            cmake --build "$folder" && return 0
            exit 1
        fi
        cmake --build "$folder" >>"$folder/build.log" 2>&1 && return 0
    fi
    tail -n 40 "$folder/build.log" >&2
    exit 1
}
