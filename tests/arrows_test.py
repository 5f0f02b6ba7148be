"""The architecture, as a test: who includes whom, where CUDA may appear, and nothing of one machine in any file."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|cufft|curand|cusparse|nvrtc|nvml|nccl|nvToolsExt|cub/|thrust/)")
CUDA_SOURCES = re.compile(r"^kernels/cuda/.*\.cuh?$")


def read_arrows(readme):
    """The block ```arrows of src/README.md: layer -> the layers it may include."""
    block = re.search(r"^```arrows\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block, "src/README.md has no block that begins with ```arrows"
    arrows = {}
    for line in block[1].splitlines():
        layer, _, allowed = line.partition(":")
        arrows[layer.strip()] = set(allowed.split())
    return arrows


def wrong_includes(path, text, arrows, exists):
    """What is wrong with the includes of src/<path>. `exists` says whether src/<path> is a file."""
    layer, wrong = path.split("/")[0], []
    for match in INCLUDE.finditer(text):
        quoted, name = match[1] is not None, match[1] or match[2]
        line = text.count("\n", 0, match.start()) + 1
        where = f"src/{path}:{line}: "
        if CUDA_HEADER.match(name) and not CUDA_SOURCES.match(path):
            wrong.append(where + f"{name}: CUDA headers belong in the .cu and .cuh files of kernels/cuda")
        if not quoted:
            if name.split("/")[0] in arrows and exists(name):
                wrong.append(where + f"<{name}> is a file of granule: include it with quotes")
            continue
        if ".." in name.split("/") or not exists(name):
            wrong.append(where + f'"{name}" is not a path below src/')
            continue
        target = name.split("/")[0]
        if target != layer and target not in arrows[layer]:
            allowed = " ".join(sorted(arrows[layer])) or "nothing"
            wrong.append(where + f"{layer} may not include {target} (it may include: {allowed})")
    return wrong


def cmake_arrows(text):
    """The same list as CMakeLists.txt has it: granule_layer(NAME DEPS ... LIBS ...)."""
    arrows = {}
    for name, rest in re.findall(r"^\s*granule_layer\((\w+)([^)]*)\)", text, re.MULTILINE):
        deps = re.search(r"\bDEPS\b(.*?)(?:\bLIBS\b|$)", rest, re.DOTALL)
        arrows[name] = set(deps[1].split()) if deps else set()
    return arrows


def tracked_files():
    listing = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-coz", "--exclude-standard"], capture_output=True)
    if listing.returncode != 0:
        pytest.skip("this is not a git checkout, so there is no list of the project's files")
    return [name for name in listing.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


# Built from parts, so that this file does not contain what it looks for.
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.$}*~-])/(" + "|".join(["home", "root", "work", "mnt", "Users"]) + r")/")
REGISTRY_HOST = re.compile(r"\b(" + "|".join(
    re.escape(".".join(parts)) for parts in [
        ("pypi", "org"), ("pythonhosted", "org"), ("pypi", "python", "org"), ("deb", "debian", "org"),
        ("security", "debian", "org"), ("archive", "ubuntu", "com"), ("security", "ubuntu", "com"),
        ("registry", "npmjs", "org"), ("crates", "io"), ("proxy", "golang", "org"), ("conda", "anaconda", "org"),
    ]) + r")\b")


def foreign_lines(text):
    """Lines that name a path of one machine or the host of a package registry."""
    return [number for number, line in enumerate(text.splitlines(), 1)
            if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line)]


def sources():
    return [p for p in sorted((ROOT / "src").rglob("*")) if p.suffix in {".h", ".cc", ".cu", ".cuh"}]


def test_includes_follow_the_arrows():
    arrows = read_arrows((ROOT / "src/README.md").read_text())
    files = sources()
    assert files
    wrong = []
    for path in files:
        wrong += wrong_includes(path.relative_to(ROOT / "src").as_posix(), path.read_text(), arrows,
                                lambda name: (ROOT / "src" / name).is_file())
    assert not wrong, "\n".join(wrong)


def test_every_folder_is_a_layer_with_arrows():
    arrows = read_arrows((ROOT / "src/README.md").read_text())
    folders = {path.relative_to(ROOT / "src").parts[0] for path in sources()}
    assert folders <= set(arrows), f"not in src/README.md: {folders - set(arrows)}"


def test_arrows_have_no_cycle():
    arrows = read_arrows((ROOT / "src/README.md").read_text())

    def reach(layer, path):
        assert layer not in path, " -> ".join([*path, layer])
        for target in arrows[layer]:
            reach(target, [*path, layer])

    for layer in arrows:
        reach(layer, [])


def test_cmake_has_the_same_arrows():
    assert cmake_arrows((ROOT / "CMakeLists.txt").read_text()) == read_arrows((ROOT / "src/README.md").read_text())


def test_no_file_names_a_machine_or_a_registry():
    found = []
    for name in tracked_files():
        data = (ROOT / name).read_bytes()
        if b"\0" in data:
            continue
        found += [f"{name}:{line}" for line in foreign_lines(data.decode("utf-8", "replace"))]
    assert not found, "a path of one machine or a registry's host name:\n" + "\n".join(found)


# That the checks above can fail.

ARROWS = {"base": set(), "kv": {"memory", "base"}, "memory": {"base"}, "onnx": {"base"}, "kernels": {"base"}}


@pytest.mark.parametrize("path,line,words", [
    ("memory/x.cc", '#include "kv/layout.h"', "memory may not include kv"),
    ("kv/x.h", '  #  include   "onnx/graph.h"', "kv may not include onnx"),
    ("base/x.h", '#include "memory/vmm.h"', "it may include: nothing"),
    ("onnx/x_test.cc", '#include "kernels/matmul.h"', "onnx may not include kernels"),
    ("kv/x.cc", '#include "../memory/vmm.h"', "not a path below src/"),
    ("kv/x.cc", '#include "layout.h"', "not a path below src/"),
    ("kv/x.cc", "#include <kv/layout.h>", "include it with quotes"),
    ("kernels/cpu/x.cc", "#include <cuda_runtime.h>", "CUDA headers"),
    ("memory/host/x.cc", '#include "cuda.h"', "CUDA headers"),
    ("kernels/cuda/x.cc", "#include <cuda.h>", "CUDA headers"),
])
def test_a_wrong_include_is_found(path, line, words):
    wrong = wrong_includes(path, f"#pragma once\n{line}\n", ARROWS, lambda name: "/" in name and ".." not in name)
    assert any(words in w and w.startswith(f"src/{path}:2: ") for w in wrong), wrong


@pytest.mark.parametrize("path,line", [
    ("kv/x.cc", '#include "kv/layout.h"'),
    ("kv/x.cc", '#include "memory/vmm.h"'),
    ("kv/x.cc", "#include <vector>"),
    ("kernels/cuda/x.cu", "#include <cuda_fp16.h>"),
    ("kernels/cuda/x.cuh", "#include <cuda_bf16.h>"),
    ("kv/x.cc", '// #include "onnx/graph.h"'),
])
def test_a_right_include_is_not(path, line):
    assert not wrong_includes(path, line + "\n", ARROWS, lambda name: "/" in name)


def test_cmake_lines_are_read():
    text = "granule_layer(base LIBS Threads::Threads)\ngranule_layer(kv DEPS memory\n  base LIBS a b)\n"
    assert cmake_arrows(text) == {"base": set(), "kv": {"memory", "base"}}


@pytest.mark.parametrize("line,foreign", [
    ('open("' + "/".join(["", "home", "someone", "x"]) + '")', True),
    ("see " + "/".join(["", "work", "main", "x"]), True),
    ("https://" + ".".join(["pypi", "org"]) + "/simple", True),
    ("${prefix}/home/x and build/work/x and /usr/lib/x", False),
    ("the registry, by package name", False),
])
def test_foreign_lines_are_found(line, foreign):
    assert bool(foreign_lines(line)) == foreign
