#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: configures the preset where that has not been done, and builds. Speaks
# on stderr, and only when there is work: what make run prints on stdout is the model's text.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
dir=build/$preset
if [[ ! -e $dir/build.ninja ]]; then
  log=$dir/configure.log
  mkdir -p "$dir"
  echo "build: configuring $dir" >&2
  # GRANULE_CUDA_ARCHITECTURES=dev spares a release build the GPUs that are not at hand.
  if ! cmake --preset "$preset" ${GRANULE_CUDA_ARCHITECTURES:+-D"GRANULE_CUDA_ARCHITECTURES=$GRANULE_CUDA_ARCHITECTURES"} >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "build: cmake could not configure $dir ($log has all of it)." >&2
    exit 1
  fi
  sed -n 's/^-- \(CUDA kernels: .*\)/build: \1/p' "$log" >&2
fi

# Steps overwrite one line on a terminal; everything else (warnings, errors) stays. Ninja's lines about nothing to do are
# dropped here: its dry run cannot tell, since the check for new source files counts as work.
show() {
  local line columns=0 open=false
  if [[ -t 2 ]]; then columns=$(tput cols 2>/dev/null || echo 80); fi
  while IFS= read -r line; do
    case $line in
      *"Re-checking globbed directories"* | "ninja: no work to do." | "ninja: Entering directory"*) ;;
      \[*)
        if ((columns > 0)); then
          printf '\r\033[K%s' "${line:0:columns-1}"
          open=true
        else
          echo "$line"
        fi
        ;;
      *)
        if $open; then echo; fi
        open=false
        echo "$line"
        ;;
    esac
  done
  if $open; then printf '\r\033[K'; fi
} >&2

ninja -C "$dir" "$@" 2>&1 | show
