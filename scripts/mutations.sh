#!/usr/bin/env bash
# mutations.sh: every tests/*/mutations/*.patch takes one check out of the code, and the test named in it must notice.
# The lines before the diff say which, one line for each test that must fail:
#   # target: fuzz NAME_fuzz CORPUS        the fuzz target, from these seeds, finds a crash within MUTATION_SECONDS
#   # target: test LAYER_test [arguments]  the test program fails
# The work happens in a copy under build/mutations/tree; the checkout is not touched. First the unchanged copy must
# pass; a patch that does not apply, or a mutant that does not build, is a failure and not a catch.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${MUTATION_SECONDS:-300}
work=build/mutations
tree=$work/tree
rm -rf $work/tree
mkdir -p $tree
git ls-files -coz --exclude-standard | tar -cf - --null --ignore-failed-read -T - 2>/dev/null | tar -xf - -C $tree

build() {  # PRESET TARGET
  [[ -e $tree/build/$1/build.ninja ]] || (cd $tree && cmake --preset "$1") >>$work/build.log 2>&1 || return 1
  ninja -C "$tree/build/$1" "$2" >>$work/build.log 2>&1
}

# Whether the target of one header line passes on the tree as it is. 0 passes, 1 fails, 2 cannot be built.
# `limit` bounds a fuzz target: seconds, or 0 to only replay the seeds.
passes() {  # LIMIT KIND NAME ARGUMENTS...
  local limit=$1 kind=$2 name=$3
  shift 3
  if [[ $kind == fuzz ]]; then
    build fuzz "$name" || return 2
    local found=$work/found options=(-runs=0)
    rm -rf $found && mkdir -p $found
    if ((limit > 0)); then options=(-max_total_time="$limit"); fi
    (cd $tree && "build/fuzz/$name" "${options[@]}" -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$OLDPWD/$work/" \
      "$OLDPWD/$found" "$@") >$work/run.log 2>&1 || return 1
  else
    build dev "$name" || return 2
    (cd $tree && timeout 600 "build/dev/$name" "$@") >$work/run.log 2>&1 || return 1
  fi
}

mapfile -t patches < <(find tests -path '*/mutations/*.patch' | sort)
if ((${#patches[@]} == 0)); then
  echo "mutations: there is no tests/*/mutations/*.patch." >&2
  exit 1
fi
caught=0
missed=()
for patch in "${patches[@]}"; do
  mapfile -t targets < <(sed -n '/^\(diff\|---\) /q; s/^# target: *//p' "$patch")
  if ((${#targets[@]} == 0)); then
    echo "mutations: $patch names no target in a line '# target: ...'" >&2
    missed+=("$patch")
    continue
  fi
  for target in "${targets[@]}"; do
    read -ra words <<<"$target"
    if [[ ${words[0]} != fuzz && ${words[0]} != test ]] || ((${#words[@]} < 2)); then
      verdict="has a target line that is neither 'fuzz NAME SEEDS' nor 'test NAME ARGUMENTS': $target"
    elif ! passes 0 "${words[@]}"; then
      verdict="$target fails or does not build without the patch"
    elif ! patch -s -p1 -d $tree <"$patch" >$work/patch.log 2>&1; then
      verdict="does not apply: $(head -n 1 $work/patch.log)"
      patch -s -R -f -p1 -d $tree <"$patch" >/dev/null 2>&1 || true
    else
      code=0
      passes "$seconds" "${words[@]}" || code=$?
      patch -s -R -p1 -d $tree <"$patch"
      case $code in
        0) verdict="NOT NOTICED by $target" ;;
        1) verdict="" ;;
        2) verdict="does not build" ;;
      esac
    fi
    if [[ -z $verdict ]]; then
      caught=$((caught + 1))
      echo "mutations: $patch: noticed by $target"
    else
      missed+=("$patch")
      echo "mutations: $patch: $verdict"
    fi
  done
done
echo "mutations: $caught noticed, ${#missed[@]} not"
((${#missed[@]} == 0))
