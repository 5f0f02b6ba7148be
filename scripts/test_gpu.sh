#!/usr/bin/env bash
# test_gpu.sh [BUILD]: the tests that need a GPU, on a machine that has one; its absence is a failure here, not a skip.
# BUILD is a folder with the test programs of a dev build (default build/dev, built first where the sources
# are complete); programs that were carried from another machine work too. GRANULE_GPU_FILTER narrows the tests.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

build=${1:-}
if [[ -z $build ]]; then
  build=build/dev
  scripts/build.sh dev || exit 1
fi
export GRANULE_TEST_GPU=1
filter=${GRANULE_GPU_FILTER:-'*Cuda*:*Gpu*'}
code=0
for layer in base memory kv kernels engine cli; do
  program=$build/${layer}_test
  [[ -x $program ]] || continue
  echo "== $layer"
  "$program" --gtest_filter="$filter" --gtest_brief=1 || code=1
done
if ((code == 0)); then echo "test-gpu: everything passed"; else echo "test-gpu: FAILED"; fi
exit $code
