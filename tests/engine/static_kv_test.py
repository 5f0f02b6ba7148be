"""KV forms without growth through --backend ort: a past of a fixed length, and Concat KV as Optimum writes it.

The oracle is onnxruntime itself, fed by hand. Every position's margin is checked to be wide enough for ids to be compared.
"""
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from tinymodel import make  # noqa: E402

SLOTS = 48
PROMPT = [int(b) for b in b"go dog go"]
NEW = 24


def fix_length(model, one_row=False):
    """The graph with its past, present and mask fixed to SLOTS tokens, and perhaps its rows to one a run."""
    for port in [*model.graph.input, *model.graph.output]:
        dims = port.type.tensor_type.shape.dim
        if port.name.startswith(("past", "present")):
            dims[2].dim_value = SLOTS
        elif port.name == "attention_mask":
            dims[1].dim_value = SLOTS
        elif one_row:
            dims[1].dim_value = 1


def write_to_slots(model):
    """Concat(past, new) becomes Where(slot == position, new, past), as exports of a static cache have it."""
    nodes = list(model.graph.node)
    model.graph.initializer.append(numpy_helper.from_array(np.arange(SLOTS, dtype=np.int64).reshape(1, 1, SLOTS, 1), "slots"))
    for i, node in enumerate(nodes):
        if node.op_type == "Concat" and node.input[0].startswith("past_key_values"):
            nodes[i] = helper.make_node("Where", ["is_slot", node.input[1], node.input[0]], list(node.output))
    nodes.insert(0, helper.make_node("Equal", ["slots", "position_ids"], ["is_slot"]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def folder_of(path, edit, **shape):
    make(str(path), genai={}, ctx=256, **shape)
    model = onnx.load(path / "model.onnx")
    edit(model)
    onnx.checker.check_model(model)
    onnx.save(model, path / "model.onnx")
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("forms")

    def slots(model):
        fix_length(model, one_row=True)
        write_to_slots(model)

    return {
        "fixed GroupQueryAttention": folder_of(root / "gqa", fix_length, gqa={}),
        "fixed plain operators": folder_of(root / "slots", slots),
        "growing Concat": folder_of(root / "concat", lambda model: None),
        "growing Concat, fp16 KV": folder_of(root / "half", lambda model: None, kv="float16"),
    }


def oracle(folder):
    """Greedy ids of onnxruntime, and the smallest distance to a second best."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    shapes = {i.name: i.shape for i in session.get_inputs()}
    past = [i for i in session.get_inputs() if i.name.startswith("past")]
    fixed = isinstance(past[0].shape[2], int)
    kv = {i.name: np.zeros((1, i.shape[1], SLOTS if fixed else 0, i.shape[3]), np.float16 if "16" in i.type else np.float32) for i in past}
    queue, live, ids, margin = list(PROMPT), 0, [], np.inf
    while len(ids) < NEW:
        fresh = queue[:1] if shapes["input_ids"][1] == 1 else queue
        queue = queue[len(fresh):]
        mask = np.zeros((1, SLOTS if fixed else live + len(fresh)), np.int64)
        mask[0, : live + len(fresh)] = 1
        out = session.run(None, {"input_ids": [fresh], "attention_mask": mask,
                                 "position_ids": [list(range(live, live + len(fresh)))], **kv})
        kv = dict(zip(kv, out[1:], strict=True))
        live += len(fresh)
        if not queue:
            row = out[0][0, -1].astype(np.float64)
            margin = min(margin, float(np.diff(np.sort(row)[-2:])[0]))
            ids.append(int(row.argmax()))
            queue = [ids[-1]]
    return ids, margin


def run(granule, folder, *levers, new=NEW):
    words = [granule, "run", str(folder), "--prompt-ids", ",".join(map(str, PROMPT)), "-n", str(new), "--temp", "0", "--ignore-eos",
             "--json", *levers]
    library = pathlib.Path(onnxruntime.__file__).parent / "capi"  # the oracle's own
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env={**os.environ, "GRANULE_ORT_LIB": str(library)})


@pytest.mark.parametrize("form", ["fixed GroupQueryAttention", "fixed plain operators", "growing Concat", "growing Concat, fp16 KV"])
@pytest.mark.parametrize("levers", [[], ["-ub", "4"], ["--kv-growth", "realloc", "--kv-min-bucket", "4"]], ids=" ".join)
def test_ort_writes_the_ids_of_onnxruntime(granule, folders, form, levers):
    expected, margin = oracle(folders[form])
    assert margin > 1e-3
    assert len(set(expected)) > 4  # a walk that says something
    done = run(granule, folders[form], "--backend", "ort", *levers)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ids"] == expected
    fixed = form.startswith("fixed")
    assert report["kv"]["hard_max"] == (SLOTS if fixed else 256)
    assert ("fixed KV shape of the graph" in report["kv"]["hard_max_source"]) == fixed


def test_the_fixed_length_is_where_it_ends(granule, folders):
    done = run(granule, folders["fixed GroupQueryAttention"], "--backend", "ort", new=-1)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["ids"]) == SLOTS - len(PROMPT)
    assert report["finish_reason"] == "length"


def test_inspect_says_what_is_fixed(granule, folders):
    for form, fixed in (("fixed GroupQueryAttention", SLOTS), ("growing Concat", None)):
        done = subprocess.run([granule, "inspect", str(folders[form]), "--json"], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["kv"]["layers"][0]["fixed_past"] == fixed
        done = subprocess.run([granule, "inspect", str(folders[form])], capture_output=True, text=True, check=True)
        assert (f"fixed to {SLOTS} tokens" in done.stdout) == bool(fixed)


def test_a_graph_that_appends_to_a_full_buffer_is_refused_by_name(granule, tmp_path):
    def edit(model):
        fix_length(model)
        for port in model.graph.output:
            if port.name.startswith("present"):
                port.type.tensor_type.shape.dim[2].dim_param = "all"
        for port in model.graph.input:
            if port.name == "attention_mask":
                port.type.tensor_type.shape.dim[1].dim_param = "all"

    # Masked to nothing but itself, so that it runs at all: the mask's width is another than the keys'.
    folder = folder_of(tmp_path / "append", edit)
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        if node.op_type == "And":
            node.input[1] = node.input[0]
    onnx.save(model, folder / "model.onnx")
    done = run(granule, folder, "--backend", "ort")
    assert done.returncode == 3, done.stderr
    for word in ("present.0.key", f"fixed to {SLOTS}", "appends to a full buffer"):
        assert word in done.stderr


def test_the_native_backend_refuses_it_by_name(granule, folders):
    done = run(granule, folders["fixed GroupQueryAttention"])
    assert done.returncode == 3, done.stderr
    for word in ("GroupQueryAttention", f"its past is fixed to {SLOTS} tokens", "--backend ort"):
        assert word in done.stderr
