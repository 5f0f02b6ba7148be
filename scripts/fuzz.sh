#!/usr/bin/env bash
# fuzz.sh SECONDS: builds every libFuzzer target (src/LAYER/**/NAME_fuzz.cc) and runs each that long, starting from
# its seeds: tests/LAYER/corpus/NAME_fuzz where there is such a folder, else tests/LAYER/corpus. A target without
# seeds fails: it would hardly get past the first bytes. New inputs go to build/fuzz/found/, a crash to
# build/fuzz/crashes/, named so that `build/fuzz/NAME_fuzz FILE` repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
mapfile -t files < <(find src -name '*_fuzz.cc' | sort)
if ((${#files[@]} == 0)); then
  echo "fuzz: there is no fuzz target under src/." >&2
  exit 1
fi
names=()
for file in "${files[@]}"; do names+=("$(basename "$file" .cc)"); done
scripts/build.sh fuzz "${names[@]}"

mkdir -p build/fuzz/crashes
failed=()
for file in "${files[@]}"; do
  name=$(basename "$file" .cc)
  layer=$(cut -d / -f 2 <<<"$file")
  seeds=tests/$layer/corpus
  if [[ -d $seeds/$name ]]; then seeds=$seeds/$name; fi
  if [[ -z $(find "$seeds" -type f 2>/dev/null | head -n 1) ]]; then
    echo "fuzz: $name has no seeds in tests/$layer/corpus." >&2
    failed+=("$name")
    continue
  fi
  mkdir -p "build/fuzz/found/$name"
  log=build/fuzz/$name.log
  if build/fuzz/"$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
       -artifact_prefix=build/fuzz/crashes/"$name"- "build/fuzz/found/$name" "$seeds" >"$log" 2>&1; then
    echo "fuzz: $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs in $seconds s, no finding"
  else
    tail -n 40 "$log"
    echo "fuzz: $name FAILED ($log, build/fuzz/crashes/)"
    failed+=("$name")
  fi
done
if ((${#failed[@]} > 0)); then
  echo "fuzz: ${#failed[@]} of ${#files[@]} targets failed: ${failed[*]}" >&2
  exit 1
fi
