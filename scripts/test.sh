#!/usr/bin/env bash
# make test: setup, the dev build, the model, every test. Without network the model and build/venv are
# missing and the tests that need them are counted as skipped. Arguments go to ctest.
# The last lines are what was skipped, with the reasons, and ctest's own closing lines.
set -euo pipefail
cd "$(dirname "$0")/.."

tolerate_offline() {
  local code=0
  "$@" || code=$?
  if ((code == 69)); then
    echo "test: going on without it; the tests that need it will be skipped" >&2
  elif ((code != 0)); then
    exit $code
  fi
}

tolerate_offline scripts/setup.sh test
scripts/build.sh dev
if [[ -z ${GRANULE_TEST_MODEL:-} ]]; then GRANULE=build/dev/granule tolerate_offline scripts/model.sh; fi
exec scripts/ctest.sh dev "$@"
