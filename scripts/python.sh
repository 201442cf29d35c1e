#!/bin/sh
# Tests of the Python package: makes build/venv (torch for the CPU, pytest), builds the library, runs tests/python.
# Arguments go to pytest. Status 75: PyPI cannot be reached and there is no environment yet; nothing was tested.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh

venv_package=
python3 -c 'import ensurepip, venv' 2>/dev/null || venv_package="python3 python3-venv"
# shellcheck disable=SC2086 # lists of words
install_packages $base_packages binutils $venv_package
build build

status=0
python3 python/setup_venv.py build/venv || status=$?
if [ "$status" = 75 ]; then
    echo "Skipped: the Python tests need torch from PyPI, and PyPI cannot be reached." >&2
fi
[ "$status" = 0 ] || exit "$status"

export OMP_WAIT_POLICY=passive
MX8_LIBRARY=$PWD/build/libmx8.so PYTHONPATH=$PWD/python build/venv/bin/python -m pytest -q "$@" tests/python
