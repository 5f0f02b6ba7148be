"""Models that are not all there, or that lie."""

import json
import pathlib
import subprocess
import sys
import time

import onnx
import pytest
import tinymodel


def broken(tmp_path, change):
    tinymodel.make(str(tmp_path), script=[262, 263], words=["fi", "ne"], gqa={}, genai={})
    change(tmp_path)
    return tmp_path


def externalise(folder):
    model = onnx.load(str(folder / "model.onnx"))
    onnx.save(model, str(folder / "model.onnx"), save_as_external_data=True, location="w.bin", size_threshold=1024)


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


def lfs(f):
    (f / "model.onnx").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 18958888\n"
    )


def directory(f):
    (f / "model.onnx").unlink()
    (f / "model.onnx").mkdir()


def missing_external(f):
    externalise(f)
    (f / "w.bin").unlink()


def short_external(f):
    externalise(f)
    cut(f / "w.bin", (f / "w.bin").stat().st_size - 4096)


INCOMPLETE = {
    "lfs": (lfs, ["model.onnx", "Git LFS pointer", "18958888"]),
    "half": (lambda f: cut(f / "model.onnx", (f / "model.onnx").stat().st_size // 2), ["model.onnx", "end"]),
    "empty": (lambda f: (f / "model.onnx").write_bytes(b""), ["model.onnx", "empty"]),
    "html": (lambda f: (f / "model.onnx").write_text("<!doctype html><title>404</title>"), ["model.onnx", "HTML"]),
    "missing-external": (missing_external, ["w.bin"]),
    "short-external": (short_external, ["w.bin"]),
    "half-tokenizer": (
        lambda f: cut(f / "tokenizer.json", (f / "tokenizer.json").stat().st_size // 2),
        ["tokenizer.json"],
    ),
    "directory": (directory, ["model.onnx", "directory"]),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_weights_that_are_not_all_there(cli, tmp_path, case):
    change, words = INCOMPLETE[case]
    folder = broken(tmp_path, change)
    start = time.time()
    cli.fails(3, "run", folder, "-p", "go", words=words)
    assert time.time() - start < 5
    if case != "half-tokenizer":
        cli.fails(3, "inspect", folder, words=words)


def test_spare_bytes_and_a_missing_config_are_fine(cli, tmp_path):
    def change(f):
        externalise(f)
        with open(f / "w.bin", "ab") as file:
            file.write(bytes(4096))
        (f / "config.json").unlink()

    folder = broken(tmp_path, change)
    assert cli("run", folder, "-p", "go").stdout == b"fine"


def test_unknown_operators_are_all_named(cli, tmp_path):
    def change(f):
        model = onnx.load(str(f / "model.onnx"))
        for i, node in enumerate(model.graph.node):
            if node.op_type == "MatMul" and node.output[0] in ("q", "k"):
                node.op_type, node.domain = "Frobnicate", "com.example"
            elif node.output[0] == "h":
                node.op_type, node.domain, node.name = "Twist", "com.example", "the_twist"
        model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
        (f / "model.onnx").write_bytes(model.SerializeToString())

    folder = broken(tmp_path, change)
    cli.fails(3, "run", folder, "-p", "go", words=["Frobnicate", "Twist", "com.example", "2", "the_twist"])
    done = cli("inspect", folder, "--json")
    report = json.loads(done.stdout)
    assert not report["runs"]
    assert {(u["op"], u["count"]) for u in report["unsupported"]} >= {("Frobnicate", 2), ("Twist", 1)}


def test_control_characters_of_a_model_do_not_reach_the_terminal(cli, tmp_path):
    def change(f):
        model = onnx.load(str(f / "model.onnx"))
        model.graph.node[0].op_type = "Evil\x1b[31m"
        (f / "model.onnx").write_bytes(model.SerializeToString())

    folder = broken(tmp_path, change)
    for words in (["run", folder, "-p", "go"], ["inspect", folder]):
        done = cli(*words)
        assert b"\x1b" not in done.stdout + done.stderr
        assert b"Evil" in done.stdout + done.stderr


@pytest.fixture(scope="session")
def lies(tmp_path_factory):
    """The GGUF and ONNX files of tests/lies.py, whose sizes lie."""
    folder = tmp_path_factory.mktemp("lying")
    script = pathlib.Path(tinymodel.__file__).parent / "lies.py"
    subprocess.run([sys.executable, str(script)], cwd=folder, check=True)
    return folder / "lies"


def test_files_that_lie_are_refused_quickly_and_in_words(cli, lies, tmp_path):
    ggufs, models = sorted(lies.glob("*.gguf")), sorted(lies.glob("*.onnx"))
    assert len(ggufs) == 14 and len(models) == 11
    for path in ggufs:
        start = time.time()
        cli.fails(3, "import", path, tmp_path / "out", words=[path.name])
        assert time.time() - start < 5, path.name
        assert not (tmp_path / "out").exists()
    for path in models:
        for words in (["inspect", path], ["run", path, "-p", "x"]):
            start = time.time()
            cli.fails(3, *words, words=[path.name])
            assert time.time() - start < 5, path.name
