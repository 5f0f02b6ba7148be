#!/usr/bin/env bash
# pytest.sh FILE: runs one Python test file for ctest. Exit code 77 means skipped: the environment is
# not there, or every test in the file skipped itself (tests/conftest.py turns that into 77).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/build/venv/bin/python
if [[ ! -x $python || ! -e $root/build/venv/requirements.txt ]]; then
  echo "SKIPPED: build/venv is not there: make setup makes it (it needs the network once)."
  exit 77
fi
exec "$python" -B -m pytest -p no:cacheprovider -q -rs --rootdir "$root/tests" "$1"
