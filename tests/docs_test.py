"""The documents against the tree: commands name things that exist, links lead somewhere, files are there."""

import json
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(p for p in [*ROOT.glob("*.md"), ROOT / "src/README.md", *ROOT.glob("docs/**/*.md")] if p.is_file())

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
# `src/onnx/reader.h`, `tests/arrows_test.py`: a path with a folder and an extension, without place-holders.
PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.(?:cc|h|py|sh|md|txt|cmake|json|patch)$")
# Folders that the build makes, and capital letters that stand for any name.
MADE = re.compile(r"^(build|models)/|[A-Z]{4,}/|/x(_\w+)?\.|^x[._]|/name\.")


def commands(text):
    """Lines of shell blocks, without comments."""
    lines = []
    for language, block in FENCE.findall(text):
        if language in {"sh", "bash", "console"}:
            lines += [line.split("  #")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def make_targets(makefile):
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def inline(text):
    return CODE.findall(FENCE.sub("", text))


def unknown_targets(text, targets):
    spoken = [line for line in commands(text) + inline(text) if re.match(r"make [a-z]", line)]
    return [line for line in spoken if line.split()[1] not in targets]


def anchors(text):
    """Names of the headings as links use them."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(text, folder):
    broken = []
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = folder / path if path else None
        if target is not None and not target.exists():
            broken.append(link)
        elif anchor and anchor not in anchors(target.read_text() if target else text):
            broken.append(link)
    return broken


def missing_files(text, folders):
    """Paths in inline code that are not there, seen from any of the folders."""
    spoken = [word for code in inline(text) for word in code.split()]
    spoken += [word for line in commands(text) for word in line.split()]
    return [word for word in spoken
            if PATH.fullmatch(word) and not MADE.search(word) and not any((f / word).exists() for f in folders)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_document(document):
    text = document.read_text()
    assert not unknown_targets(text, make_targets((ROOT / "Makefile").read_text()))
    assert not broken_links(text, document.parent)
    assert not missing_files(text, [ROOT, ROOT / "src", document.parent])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_presets_exist(document):
    presets = {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
    text = document.read_text()
    spoken = set(re.findall(r"(?:scripts/build\.sh|scripts/ctest\.sh|--preset) +([a-z]+)", text))
    spoken |= set(re.findall(r"--test-dir build/([a-z]+)", text))
    assert spoken <= presets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_granule_verbs_exist(document, granule):
    help_text = subprocess.run([granule, "--help"], capture_output=True, text=True, timeout=60).stdout
    verbs = set(re.findall(r"^\s{1,4}([a-z]+)\b", help_text, re.MULTILINE))
    text = document.read_text()
    spoken = {line.split()[1] for line in commands(text) + inline(text)
              if re.match(r"(build/\w+/)?granule [a-z]+", line) and len(line.split()) > 1}
    assert spoken <= verbs, f"{spoken - verbs} not among {sorted(verbs)}"


def test_every_decision_is_listed():
    folder = ROOT / "docs/decisions"
    listed = set(LINK.findall((folder / "README.md").read_text()))
    assert {p.name for p in folder.glob("[0-9]*.md")} <= listed


def test_decisions_that_the_code_names_exist():
    named = {(name, path.relative_to(ROOT).as_posix())
             for path in (ROOT / "src").rglob("*") if path.suffix in {".h", ".cc"}
             for name in re.findall(r"docs/decisions/[\w.-]+\.md", path.read_text())}
    assert not [f"{path}: {name}" for name, path in sorted(named) if not (ROOT / name).exists()]


def test_scripts_can_be_run():
    assert not [p.name for p in [*ROOT.glob("scripts/*.sh"), ROOT / ".ci/run"] if not os.access(p, os.X_OK)]


# That the checks above can fail.

def test_a_wrong_command_is_found():
    text = "```sh\nmake run  # words\nmake nonsense\n```\nand `make other` or `make run`\n"
    assert unknown_targets(text, {"run"}) == ["make nonsense", "make other"]


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# One Head, two\n")
    text = "[a](there.md) [b](gone.md) [c](there.md#one-head-two) [d](there.md#none) [e](https://x/y) [f](#none)\n"
    assert broken_links(text, tmp_path) == ["gone.md", "there.md#none", "#none"]


def test_a_missing_file_is_found(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.h").touch()
    text = "`src/a.h` `src/b.h` `build/x/y.txt` `tests/LAYER/x_test.py` `a b`\n```sh\nscripts/none.sh dev\n```\n"
    assert missing_files(text, [tmp_path]) == ["src/b.h", "scripts/none.sh"]
