#!/usr/bin/env bash
# Installs what this machine lacks. setup.sh run: what building the release binary and fetching the
# model need. setup.sh test: that, and what the tests and the linters need, and build/venv.
# Says nothing and takes milliseconds when everything is there: probes look for the command, header or
# library itself, so a toolchain that came from elsewhere counts too.
# Exit codes: 0 ready, 1 something is missing and could not be installed, 69 only build/venv is
# missing (no network): the tests that need it are then counted as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

level=${1:-}
if [[ $level != run && $level != test ]]; then
  echo "usage: scripts/setup.sh run|test" >&2
  exit 2
fi

missing=()

need_command() {  # COMMAND PACKAGE
  command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

need_header() {  # HEADER PACKAGE
  [[ -e /usr/include/$1 || -e /usr/include/x86_64-linux-gnu/$1 || -e /usr/local/include/$1 ]] || missing+=("$2")
}

need_static() {  # LIBRARY PACKAGE
  local found
  found=$(compgen -G "/usr/lib*/lib$1.a" || compgen -G "/usr/lib/x86_64-linux-gnu/lib$1.a" ||
          compgen -G "/usr/local/lib*/lib$1.a" || true)
  [[ -n $found ]] || missing+=("$2")
}

need_python() {  # MODULE PACKAGE
  python3 -c "import $1" >/dev/null 2>&1 || missing+=("$2")
}

probe_run() {
  need_command g++ g++
  need_command cmake cmake
  need_command ninja ninja-build
  need_command ccache ccache
  need_command python3 python3
  need_python pip python3-pip
  need_header protozero/pbf_reader.hpp libprotozero-dev
  need_header nlohmann/json.hpp nlohmann-json3-dev
  need_header CLI/CLI.hpp libcli11-dev
  need_header fmt/format.h libfmt-dev
  need_header xxhash.h libxxhash-dev
  need_header pcre2.h libpcre2-dev
  need_static pcre2-8 libpcre2-dev
  need_header utf8proc.h libutf8proc-dev
  need_static utf8proc libutf8proc-dev
}

probe_test() {
  need_static gtest libgtest-dev
  need_static rapidcheck librapidcheck-dev
  need_header benchmark/benchmark.h libbenchmark-dev
  need_command clang++ clang
  need_command llvm-cov llvm
  need_command clang-format clang-format
  need_command clang-tidy clang-tidy
  need_command shellcheck shellcheck
  need_command git git
  need_command patch patch
  need_python ensurepip python3-venv
  # The fuzzer's run-time library is a package of its own, named after the compiler's version.
  local runtime
  runtime=$(compgen -G "/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-x86_64.a" || true)
  if [[ -z $runtime ]]; then missing+=(FUZZER_RUNTIME); fi
}

fuzzer_runtime_package() {
  if apt-cache show libclang-rt-dev >/dev/null 2>&1; then
    echo libclang-rt-dev
  else  # the candidate of clang reads like 1:18.0-59
    echo "libclang-rt-$(apt-cache policy clang | sed -n 's/.*Candidate: *\(.*:\)\{0,1\}\([0-9]*\).*/\2/p')-dev"
  fi
}

probe() {
  missing=()
  probe_run
  if [[ $level == test ]]; then probe_test; fi
  # libpcre2-dev and its like bring a header and a library: once is enough.
  if ((${#missing[@]} > 0)); then mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u); fi
}

install_missing() {
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: this machine lacks: ${missing[*]}" >&2
    echo "setup: these are Debian's names, and there is no apt-get here: install what corresponds, then run this again." >&2
    exit 1
  fi
  local root=()
  if ((EUID != 0)); then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
      root=(sudo -n)
    elif command -v sudo >/dev/null 2>&1 && [[ -t 0 && -t 2 ]]; then
      root=(sudo)
    else
      local names=("${missing[@]/FUZZER_RUNTIME/libclang-rt-dev}")
      echo "setup: packages are missing and this user may not install them. Run this line as root, then the same make again:" >&2
      echo "apt-get update && apt-get install -y --no-install-recommends ${names[*]}" >&2
      exit 1
    fi
  fi
  echo "setup: installing ${missing[*]/FUZZER_RUNTIME/the fuzzer\'s run-time library}" >&2
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  local log=build/setup.log
  mkdir -p build
  if ! "${apt[@]}" update >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "setup: apt-get update failed: check the network and /etc/apt/sources.list, then run this again ($log has all of it)." >&2
    exit 1
  fi
  missing=("${missing[@]/FUZZER_RUNTIME/$(fuzzer_runtime_package)}")
  if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "setup: apt-get could not install ${missing[*]}: see above ($log has all of it)." >&2
    exit 1
  fi
}

check_versions() {
  local major
  major=$(g++ -dumpversion)
  if ((${major%%.*} < 12)); then
    echo "setup: g++ is version $major, granule is written in C++20 for g++ 12 or newer: install a newer one and make it the g++ in PATH." >&2
    exit 1
  fi
}

# One environment, made anew whenever tests/requirements.txt changes; the copy of that file inside is
# written last, so that a half-made one is never used.
make_venv() {
  local venv=build/venv
  cmp -s tests/requirements.txt $venv/requirements.txt && return 0
  if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup: the test environment needs Python 3.11 or newer, this is $(python3 --version): the tests that use it will be skipped." >&2
    exit 69
  fi
  echo "setup: making $venv from tests/requirements.txt" >&2
  mkdir -p build
  rm -f $venv/requirements.txt
  if ! { python3 -m venv --clear $venv &&
         $venv/bin/python -m pip install --disable-pip-version-check -q --retries 2 --timeout 30 --no-deps \
           --only-binary=:all: -r tests/requirements.txt; } >build/venv.log 2>&1; then
    grep -v '^WARNING: Retrying' build/venv.log | tail -n 5 >&2
    rm -rf $venv
    echo "setup: the Python packages of the tests could not be installed: check the network and the space left, then run this again (build/venv.log has all of it)." >&2
    exit 69
  fi
  cp tests/requirements.txt $venv/requirements.txt
}

# The oldest ONNX Runtime that granule takes, as a library only: tests prove the part of its interface that is used.
make_oldest_ort() {
  local folder=build/ort-oldest version
  version=$(cat tests/ort-oldest-version)
  [[ -e $folder/$version ]] && return 0
  rm -rf $folder
  if ! build/venv/bin/python -m pip install --disable-pip-version-check -q --retries 2 --timeout 30 --no-deps \
    --only-binary=:all: --target $folder "onnxruntime==$version" >build/ort-oldest.log 2>&1; then
    rm -rf $folder
    echo "setup: onnxruntime $version could not be installed: its tests will be skipped (build/ort-oldest.log)." >&2
    return 0
  fi
  touch "$folder/$version"
}

probe
if ((${#missing[@]} > 0)); then
  install_missing
  probe
  if ((${#missing[@]} > 0)); then
    echo "setup: still missing after the installation: ${missing[*]}" >&2
    exit 1
  fi
fi
check_versions
if [[ $level == test ]]; then
  make_venv
  make_oldest_ort
fi
