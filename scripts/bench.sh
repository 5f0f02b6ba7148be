#!/usr/bin/env bash
# make bench: every LAYER_bench program (src/LAYER/**/*_bench.cc), then `granule bench` where this granule has it.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/build.sh bench
found=false
for program in build/bench/*_bench; do
  if [[ ! -x $program ]]; then continue; fi
  found=true
  echo "bench: $(basename "$program")"
  "$program" --benchmark_counters_tabular=true
done
if build/bench/granule --help | grep -qE '^ +bench\b'; then
  found=true
  GRANULE=build/bench/granule scripts/model.sh
  build/bench/granule bench models/smollm2-135m-instruct
fi
if ! $found; then
  echo "bench: there is nothing to measure yet: no src/**/*_bench.cc and no granule bench." >&2
  exit 1
fi
