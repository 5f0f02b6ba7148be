#!/usr/bin/env bash
# seeds.sh: how much of its parser each fuzz target's checked-in seeds reach, without any fuzzing; under 90 % of the
# lines is a failure. NAME_fuzz.cc names the files in a line of its own: "// parser: src/onnx/reader.cc ...".
set -euo pipefail
cd "$(dirname "$0")/.."

readonly kFloor=90
dir=build/seeds
cmake --preset fuzz -B $dir -DGRANULE_COVERAGE=ON >build/seeds.log 2>&1 || { tail -n 20 build/seeds.log >&2; exit 1; }
mapfile -t files < <(find src -name '*_fuzz.cc' | sort)
failed=0
for file in "${files[@]}"; do
  name=$(basename "$file" .cc)
  layer=$(cut -d / -f 2 <<<"$file")
  seeds=tests/$layer/corpus
  if [[ -d $seeds/$name ]]; then seeds=$seeds/$name; fi
  read -ra parser < <(sed -n 's|^// parser: *||p' "$file") || true
  if ((${#parser[@]} == 0)); then
    echo "seeds: $file has no line '// parser: FILES'"
    failed=1
    continue
  fi
  ninja -C $dir "$name" >build/seeds.log 2>&1 || { tail -n 20 build/seeds.log >&2; exit 1; }
  find $dir -name '*.gcda' -delete
  $dir/"$name" -runs=0 "$seeds" >build/seeds.log 2>&1 || { tail -n 20 build/seeds.log >&2; exit 1; }
  filters=()
  for source in "${parser[@]}"; do filters+=(--filter "$source"); done
  percent=$(build/venv/bin/python -m gcovr --root . --object-directory $dir $dir "${filters[@]}" \
    --gcov-executable 'llvm-cov gcov' --merge-mode-functions=separate --json-summary 2>build/seeds.log |
    build/venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["line_percent"])')
  echo "seeds: $name reaches $percent % of the lines of ${parser[*]}"
  if ! awk "BEGIN { exit !($percent >= $kFloor) }"; then
    echo "seeds: that is under $kFloor %"
    failed=1
  fi
done
exit $failed
