#!/bin/sh
# SIGKILL at 200 random moments; MX8_TEST_KILLS for another number. The quick tests do ten.
. "$(dirname "$0")/lib.sh"
# shellcheck source=kills.sh disable=SC2154
. "$source/tests/cli/kills.sh"
make_corpus
kill_often "${MX8_TEST_KILLS:-200}"
