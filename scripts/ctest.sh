#!/usr/bin/env bash
# ctest.sh PRESET [ctest arguments]: runs the tests of one build, then says what was skipped and why, and
# closes with ctest's own closing lines (also kept in build/PRESET/closing.txt).
# With GRANULE_NO_MODEL_SKIPS=1 a skip whose reason speaks of the model is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
dir=build/$preset
log=$dir/ctest.log
code=0
# Passing tests keep more than ctest's 1 KiB of output: the reasons of skips inside a file are there.
ctest --test-dir "$dir" --output-on-failure --no-tests=error -j 2 --test-output-size-passed 65536 "$@" | tee "$log" ||
  code=$?

skips=$dir/skips.txt
{
  sed -n 's/^\t *[0-9]* - \(.*\) (\(Skipped\|Disabled\))$/  \1/p' "$log"
  # pytest: "SKIPPED [2] file:line: reason"; GoogleTest: the line after "file:line: Skipped".
  grep -aE '^SKIPPED' "$dir/Testing/Temporary/LastTest.log" | sed 's/^/  /' || true
  grep -aA 1 -E '^[^ ]+:[0-9]+: Skipped$' "$dir/Testing/Temporary/LastTest.log" | grep -avE ': Skipped$|^--$' |
    sed 's/^/  reason: /' | sort | uniq -c | sed 's/^ *\([0-9]*\)   reason: /  reason (\1 times): /' || true
} >"$skips"
echo
if [[ -s $skips ]]; then
  echo "Skipped, with the reasons the tests gave:"
  cat "$skips"
else
  echo "Nothing was skipped."
fi
if [[ -n ${GRANULE_NO_MODEL_SKIPS:-} ]] && grep -iE '(reason|SKIPPED).*(model|venv)' "$skips"; then
  echo "ctest: tests of the real model were skipped where they must run." >&2
  code=1
fi
echo
grep -E '^[0-9]+% tests passed|^Total Test time' "$log" | tee "$dir/closing.txt"
exit $code
