#!/usr/bin/env bash
# make run: from a fresh clone to text. Each step is a no-op when its work is done.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh run
scripts/build.sh release granule
if [[ $MODEL == models/smollm2-135m-instruct ]]; then scripts/model.sh; fi

# What share of the machine a run used is only known once its ceilings are: measured once for each CPU.
if [[ ! -e ${XDG_CACHE_HOME:-${HOME:-/}/.cache}/granule/ceilings.json ]]; then
  echo "run: measuring this machine's read and multiply-add ceilings, once" >&2
fi
build/release/granule doctor --quiet --if-missing >&2 ||
  echo "run: the ceilings could not be measured or stored, see above; going on without them" >&2

exec build/release/granule run "$MODEL" -p "$PROMPT" -n "$TOKENS" --temp 0
