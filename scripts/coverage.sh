#!/usr/bin/env bash
# make coverage: the tests of the coverage build, then line coverage of the project, of the files with a floor and of
# the changed lines (scripts/coverage.py says which).
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/build.sh coverage
find build/coverage -name '*.gcda' -delete
code=0
scripts/ctest.sh coverage "$@" || code=$?
build/venv/bin/python -m gcovr --root . --object-directory build/coverage build/coverage --filter 'src/' \
  --exclude '.*_(test|fuzz|bench)\.cc$' --exclude-unreachable-branches --exclude-throw-branches \
  --gcov-ignore-parse-errors=negative_hits.warn_once_per_file --merge-mode-functions=separate -j 2 \
  --json build/coverage/lines.json >build/coverage/gcovr.log 2>&1 || { tail -n 20 build/coverage/gcovr.log >&2; exit 1; }
build/venv/bin/python scripts/coverage.py build/coverage/lines.json
exit $code
