#!/usr/bin/env bash
# make nightly: what takes too long for every change. Every stage runs even when one before it failed; the last line
# counts them. FUZZ_SECONDS (600) is the time of each fuzz target.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

passed=0
failed=()
skipped=()

stage() {  # NAME COMMAND...
  local name=$1 code=0
  shift
  echo "nightly: == $name"
  "$@" || code=$?
  case $code in
    0) passed=$((passed + 1)) ;;
    77) skipped+=("$name") ;;
    *) failed+=("$name") ;;
  esac
}

# The property tests with many more steps: rapidcheck reads RC_PARAMS, tests with their own loops GRANULE_NIGHTLY.
properties() {
  GRANULE_NIGHTLY=1 RC_PARAMS="max_success=5000" scripts/ctest.sh dev -L '^(memory|kv|generate)$' -E 'Stress.RandomUse'
}

# By itself: it says how many operations it made, fails below 10^6, and a busy machine may take longer than ctest waits.
million_operations() {
  GRANULE_NIGHTLY=1 RC_PARAMS="max_success=5000" build/dev/kv_test --gtest_filter='Stress.RandomUse*'
}

# The runtimes that granule is compared with live in an environment of their own: they must not change what
# the tests use.
make_oracles() {
  local venv=build/venv-nightly
  local pins=(-r tests/requirements.txt -r tests/requirements-nightly.txt)
  if ! cat tests/requirements.txt tests/requirements-nightly.txt | cmp -s - $venv/pins.txt; then
    python3 -m venv --clear $venv &&
      $venv/bin/python -m pip install -q --no-deps --only-binary=:all: "${pins[@]}" || return 1
    cat tests/requirements.txt tests/requirements-nightly.txt >$venv/pins.txt
  fi
}

# tests/LAYER/x_nightly.py: a pytest file, or a program whose exit code says it (77: skipped).
oracle() {
  export GRANULE_BIN=$PWD/build/release/granule GRANULE_BUILD=$PWD/build/release
  if grep -qE '^(def test_|class Test)' "$1"; then
    build/venv-nightly/bin/python -B -m pytest -p no:cacheprovider -q -rs --rootdir tests "$1"
  else
    build/venv-nightly/bin/python -B "$1"
  fi
}

stage "build" scripts/build.sh release
stage "model" scripts/model.sh
stage "dev build" scripts/build.sh dev
stage "lint of everything" scripts/lint.sh --all
stage "long properties" properties
stage "a million operations on sequences" million_operations
stage "long fuzzing" scripts/fuzz.sh "${FUZZ_SECONDS:-600}"
stage "mutations" scripts/mutations.sh
stage "seeds reach the parsers' lines" scripts/seeds.sh
stage "coverage" scripts/coverage.sh
stage "oracle environment" make_oracles
for file in tests/*/*_nightly.py; do
  [[ -e $file ]] && stage "oracle $file" oracle "$file"
done

echo
if ((${#skipped[@]} > 0)); then printf 'nightly: skipped: %s\n' "${skipped[@]}"; fi
if ((${#failed[@]} > 0)); then printf 'nightly: FAILED: %s\n' "${failed[@]}"; fi
echo "nightly: $passed passed, ${#failed[@]} failed, ${#skipped[@]} skipped"
((${#failed[@]} == 0))
