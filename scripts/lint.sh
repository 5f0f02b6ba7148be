#!/usr/bin/env bash
# make lint: formatting of all sources, the shell and Python files, then clang-tidy on the product sources that
# changed. lint.sh --all: clang-tidy on all of them (nightly).
# "Changed" is against LINT_BASE, else the merge base with origin/main, else the last commit; with what is
# not committed yet. A changed header counts for the .cc beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

all=false
if [[ ${1:-} == --all ]]; then all=true; fi

tracked() { git ls-files -co --exclude-standard -- "$@" | while read -r file; do [[ -e $file ]] && echo "$file"; done; }

changed_base() {
  local head base
  head=$(git rev-parse HEAD)
  base=${LINT_BASE:-$(git merge-base HEAD origin/main 2>/dev/null || true)}
  if [[ -z $base || $base == "$head" ]]; then base=$(git rev-parse -q --verify HEAD~1 || true); fi
  # A history of one commit: everything is new, compare with the empty tree.
  echo "${base:-$(git hash-object -t tree /dev/null)}"
}

changed_sources() {
  { git diff --name-only --diff-filter=d "$(changed_base)" -- src; git ls-files -o --exclude-standard -- src; } |
    sed 's/\.h$/.cc/' | sort -u
}

status=0
echo "lint: clang-format" >&2
mapfile -t sources < <(tracked '*.cc' '*.h' '*.cu' '*.cuh')
clang-format --dry-run -Werror "${sources[@]}" || status=1

echo "lint: shellcheck and ruff" >&2
mapfile -t shell < <(tracked 'scripts/*.sh' .ci/run)
shellcheck "${shell[@]}" || status=1
# The two files of the trials' appendices are kept as they came.
mapfile -t python < <(tracked '*.py' | grep -vE '^tests/(tinymodel|lies)\.py$')
build/venv/bin/python -m ruff check -q --no-cache --select F,E9,W --line-length 120 "${python[@]}" || status=1

if ((status != 0)); then
  echo "lint: see above; make format rewrites C++ sources." >&2
  exit 1
fi

if [[ ! -e build/dev/compile_commands.json ]]; then
  mkdir -p build/dev
  cmake --preset dev >build/dev/configure.log 2>&1 || { tail -n 20 build/dev/configure.log >&2; exit 1; }
fi
if $all; then candidates=$(tracked 'src/*.cc'); else candidates=$(changed_sources); fi
mapfile -t tidy < <(grep -E '\.cc$' <<<"$candidates" | grep -vE '_(test|fuzz|bench)\.cc$' |
                    while read -r file; do [[ -e $file ]] && echo "$file"; done)
echo "lint: clang-tidy on ${#tidy[@]} files" >&2
if ((${#tidy[@]} > 0)); then
  # What clang does not know of gcc's flags is not a finding.
  printf '%s\0' "${tidy[@]}" | xargs -0 -n 4 -P 2 clang-tidy -p build/dev --quiet \
    --extra-arg=-Wno-unknown-warning-option 2>build/dev/tidy.log || { tail -n 20 build/dev/tidy.log >&2; exit 1; }
fi
echo "lint: clean" >&2
