"""The onnx layer against the onnx package: reading, shape inference, folding, writing, and files that lie."""

import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as TP
from onnx import helper as oh
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))
from tinymodel import make  # noqa: E402

NAMES = {TP.FLOAT: "float32", TP.FLOAT16: "float16", TP.BFLOAT16: "bfloat16", TP.INT4: "int4", TP.UINT4: "uint4",
         TP.INT8: "int8", TP.UINT8: "uint8", TP.INT32: "int32", TP.INT64: "int64", TP.BOOL: "bool"}
MIB = 1 << 20


@pytest.fixture(scope="session")
def program():
    build = os.environ.get("GRANULE_BUILD")
    if not build:
        pytest.skip("GRANULE_BUILD is not set: run through ctest, or set it to a build folder")
    path = pathlib.Path(build) / "tests/onnx/onnx_dump_model"
    assert path.is_file(), f"{path} was not built"
    return str(path)


def run(program, path, *passes):
    return subprocess.run([program, str(path), *passes], capture_output=True, text=True, timeout=60)


def dump(program, path, *passes):
    done = run(program, path, *passes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Peak memory is inherited through fork and exec: a small process in between keeps pytest's out of the number.
LAUNCH = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def refused(program, path, seconds=1.0):
    """The words of a refusal. It must be quick and small, and no signal."""
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-S", "-c", LAUNCH, program, str(path), "infer", "simplify"], capture_output=True, text=True)
    code, peak_kib = map(int, done.stdout.split())
    assert code == 3, (code, done.stderr)
    assert time.monotonic() - before < seconds, done.stderr
    assert peak_kib * 1024 < 64 * MIB, (peak_kib, done.stderr)
    return done.stderr


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def raw_bytes(tensor):
    """The element bytes as raw_data would hold them, by the onnx package."""
    if tensor.data_type in (TP.INT4, TP.UINT4):
        flat = nh.to_array(tensor).astype(np.int8).reshape(-1) & 15
        flat = np.append(flat, np.zeros(flat.size % 2, np.int8)).astype(np.uint8)
        return (flat[0::2] | flat[1::2] << 4).tobytes()
    return np.ascontiguousarray(nh.to_array(tensor)).tobytes()


def expect_tensor(got, tensor):
    assert got["type"] == NAMES[tensor.data_type]
    assert got["dims"] == list(tensor.dims)
    data = raw_bytes(tensor)
    assert got["bytes"] == len(data)
    assert got["fnv"] == fnv(data), tensor.name


SAMPLES = {TP.FLOAT: [1.5, -0.0, 3e38, float("inf"), 1e-40], TP.FLOAT16: [1.5, -2.0, 65504.0, 6e-8, 0.1],
           TP.BFLOAT16: [1.5, -2.0, 3e38, 0.1, 1.0], TP.INT4: [-8, 7, 0, -1, 3], TP.UINT4: [0, 15, 8, 1, 3],
           TP.INT8: [-128, 127, 0, -1, 3], TP.UINT8: [0, 255, 128, 1, 3], TP.INT32: [-2**31, 2**31 - 1, 0, -1, 3],
           TP.INT64: [-2**63, 2**63 - 1, 0, -1, 3], TP.BOOL: [True, False, True, True, False]}


@pytest.mark.parametrize("data_type", SAMPLES, ids=NAMES.get)
def test_every_type_raw_and_typed(program, tmp_path, data_type):
    values = SAMPLES[data_type]
    tensors = []
    for count in range(len(values) + 1):
        typed = oh.make_tensor(f"typed{count}", data_type, [count], values[:count])
        tensors += [typed, oh.make_tensor(f"raw{count}", data_type, [count], raw_bytes(typed), raw=True)]
    graph = oh.make_graph([], "g", [], [], tensors)
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    got = dump(program, tmp_path / "m.onnx")["tensors"]
    assert len(got) == len(tensors)
    for tensor in tensors:
        expect_tensor(got[tensor.name], tensor)


VARIANTS = {"table": dict(script=[262, 263], words=["fi", "ne"]), "recall": {}, "f16": dict(kv="float16"),
            "no_positions": dict(position_ids=False), "longrope": dict(longrope=64), "quant": dict(quant=dict(block=16, zp=7)),
            "quant_odd": dict(quant=dict(block=32)), "gqa": dict(gqa={}), "gqa_packed": dict(gqa=dict(packed=True, window=16), position_ids=False),
            "gqa_f16": dict(gqa={}, kv="float16"), "one_kv_head": dict(heads=3, kv_heads=1, head_dim=5)}


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, options in VARIANTS.items():
        make(str(folder / name), ctx=256, **options)
    return folder


def attribute_json(a):
    value = oh.get_attribute_value(a)
    if a.type == onnx.AttributeProto.STRING:
        return {"string": value.decode()}
    if a.type == onnx.AttributeProto.TENSOR:
        return None
    kind = {onnx.AttributeProto.INT: "int", onnx.AttributeProto.FLOAT: "float", onnx.AttributeProto.INTS: "ints",
            onnx.AttributeProto.FLOATS: "floats"}[a.type]
    return {kind: list(value) if kind.endswith("s") else value}


def expect_model(got, model):
    assert got["ir_version"] == model.ir_version
    assert got["producer"] == model.producer_name
    assert got["graph"] == model.graph.name
    assert got["opsets"] == {o.domain: o.version for o in model.opset_import}
    assert got["inputs"] == [v.name for v in model.graph.input]
    assert got["outputs"] == [v.name for v in model.graph.output]
    assert len(got["nodes"]) == len(model.graph.node)
    # The reader sorts; the names of the outputs say which node is which.
    by_output = {n["outputs"][0]: n for n in got["nodes"]}
    for node in model.graph.node:
        mine = by_output[node.output[0]]
        assert [mine["op"], mine["domain"], mine["name"]] == [node.op_type, node.domain, node.name]
        assert mine["inputs"] == list(node.input) and mine["outputs"] == list(node.output)
        assert mine["attributes"] == {a.name: attribute_json(a) for a in node.attribute}
    assert set(got["tensors"]) == {t.name for t in model.graph.initializer}
    for tensor in model.graph.initializer:
        expect_tensor(got["tensors"][tensor.name], tensor)


@pytest.mark.parametrize("variant", VARIANTS)
def test_models(program, models, variant):
    path = models / variant / "model.onnx"
    expect_model(dump(program, path), onnx.load(path))


@pytest.mark.parametrize("one_file", [True, False], ids=["one_file", "many_files"])
def test_external_data(program, models, tmp_path, one_file):
    model = onnx.load(models / "table/model.onnx")
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, all_tensors_to_one_file=one_file,
              location="w.bin" if one_file else None, size_threshold=0)
    expect_model(dump(program, tmp_path / "m.onnx"), onnx.load(models / "table/model.onnx"))


def dims_of(info):
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in info.type.tensor_type.shape.dim]


@pytest.mark.parametrize("variant", VARIANTS)
def test_shape_inference(program, models, variant):
    path = models / variant / "model.onnx"
    model = onnx.load(path)
    theirs = onnx.shape_inference.infer_shapes(model, check_type=True, data_prop=True)
    symbols = {d for v in model.graph.input for d in dims_of(v) if isinstance(d, str)}
    mine = {v["name"]: v for v in dump(program, path, "infer")["values"]}
    checked = 0
    for info in list(theirs.graph.value_info) + list(theirs.graph.output):
        value = mine[info.name]
        assert value["type"] == NAMES[info.type.tensor_type.elem_type], info.name
        if not info.type.tensor_type.HasField("shape"):
            continue
        dims = dims_of(info)
        assert "shape" in value, f"{info.name}: onnx says {dims}, nothing is inferred"
        assert len(value["shape"]) == len(dims), info.name
        for ours, other in zip(value["shape"], dims):
            if isinstance(other, int):
                assert ours == other, (info.name, value["shape"], dims)
            elif other in symbols:  # made-up symbols (unk__3) have no counterpart
                assert ours == other or ours is None or ours in symbols, (info.name, value["shape"], dims)
        checked += 1
    assert checked >= 3
    if "gqa" in variant:
        for name in ("logits", "present.0.key", "a", "y"):
            assert "shape" in mine[name] and "type" in mine[name]


def folding_graph():
    """One node per evaluator over constants, each with an output of its own."""
    rng = np.random.default_rng(5)
    consts, nodes = {}, []

    def c(array):
        name = f"c{len(consts)}"
        consts[name] = np.asarray(array)
        return name

    def op(kind, *ins, **attributes):
        nodes.append(oh.make_node(kind, list(ins), [f"o{len(nodes)}_{kind}"], **attributes))
        return nodes[-1].output[0]

    f = rng.normal(size=(2, 3, 4)).astype(np.float32)
    g = rng.normal(size=(3, 1)).astype(np.float32)
    i = rng.integers(-50, 50, size=(2, 3, 4))
    j = rng.integers(1, 9, size=(4,))
    a, b, k, m = c(f), c(g), c(i), c(j)
    h, h2 = c(f.astype(np.float16)), c(g.astype(np.float16))
    i32, u8, i8 = c(i.astype(np.int32)), c(np.abs(i).astype(np.uint8)), c(i.astype(np.int8))
    t, t2 = c(f > 0), c(g > 0)
    for kind in ("Add", "Sub", "Mul"):
        op(kind, a, b), op(kind, k, m), op(kind, h, h2)
    # The reference evaluator rounds a negative quotient down, the specification cuts it: positive ones only.
    op("Div", a, b), op("Div", c(np.abs(i)), m), op("Div", h, h2)
    op("Add", i32, i32), op("Mul", u8, u8), op("Sub", i8, i8)
    for kind in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"):
        op(kind, a, b), op(kind, k, m)
    for kind in ("And", "Or", "Xor"):
        op(kind, t, t2)
    for kind in ("Neg", "Abs", "Floor", "Ceil"):
        op(kind, a)
    op("Sqrt", c(np.abs(f))), op("Reciprocal", a), op("Not", t), op("Neg", k), op("Abs", k)
    op("Max", k, m), op("Min", a, b)
    for to in (TP.FLOAT16, TP.INT64, TP.INT32, TP.INT8, TP.BOOL, TP.FLOAT):
        op("Cast", a, to=to)
    for to in (TP.FLOAT, TP.INT32, TP.INT8, TP.UINT8, TP.BOOL, TP.FLOAT16):
        op("Cast", k, to=to)
    op("Cast", t, to=TP.INT64), op("Cast", h, to=TP.FLOAT)
    ints = lambda *v: c(np.array(v, np.int64))  # noqa: E731
    op("Reshape", a, ints(0, -1)), op("Reshape", a, ints(4, 6)), op("Flatten", a, axis=2)
    op("Transpose", a), op("Transpose", k, perm=[1, 2, 0])
    op("Squeeze", b, ints(-1)), op("Unsqueeze", a, ints(0, -1))
    op("Concat", a, a, axis=1), op("Concat", k, k, k, axis=-1)
    op("Slice", a, ints(1), ints(3), ints(1)), op("Slice", k, ints(-1, 0), ints(-100, 2), ints(2, 0), ints(-2, 1))
    op("Slice", k, ints(0), ints(2**62), ints(-1), ints(3))
    op("Gather", a, ints(2, -1, 0), axis=1), op("Gather", k, c(np.array([[0, 1], [1, 0]])), axis=0), op("Gather", a, c(np.array(1)), axis=2)
    op("Where", t, a, b), op("Where", t2, k, m), op("Expand", b, ints(2, 1, 4)), op("Shape", a), op("Shape", a, start=1, end=-1), op("Size", a)
    op("Range", c(np.array(3)), c(np.array(-9)), c(np.array(-5))), op("Range", c(np.array(0)), c(np.array(7)), c(np.array(2)))
    op("ConstantOfShape", ints(2, 3)), op("ConstantOfShape", ints(2), value=oh.make_tensor("v", TP.INT64, [1], [9]))
    nodes.append(oh.make_node("Constant", [], ["kc"], value=nh.from_array(f)))
    nodes.append(oh.make_node("Constant", [], ["ki"], value_ints=[3, 4]))
    nodes.append(oh.make_node("Identity", [a], ["id"]))
    outputs = [oh.make_tensor_value_info(n.output[0], TP.UNDEFINED, None) for n in nodes]
    graph = oh.make_graph(nodes, "fold", [], outputs, [nh.from_array(v, n) for n, v in consts.items()])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)


def test_folding(program, tmp_path):
    model = folding_graph()
    onnx.save(model, tmp_path / "m.onnx")
    got = dump(program, tmp_path / "m.onnx", "infer", "simplify")
    assert got["nodes"] == [], "everything is constant"
    names = [o.name for o in model.graph.output]
    for name, value in zip(names, ReferenceEvaluator(model).run(None, {})):
        value = np.array(value, order="C")
        mine = got["tensors"][name]
        assert mine["dims"] == list(np.shape(value)), name
        assert mine["type"] == str(value.dtype), name
        assert mine["fnv"] == fnv(value.tobytes()), (name, value)


def feeds(variant):
    """Three tokens at the start of a sequence, for any variant."""
    kind = np.float16 if "f16" in variant else np.float32
    heads, dim = (1, 5) if variant == "one_kv_head" else (2, 8)
    past = np.zeros((1, heads, 0, dim), kind)
    out = {"input_ids": np.array([[65, 66, 67]]), "attention_mask": np.ones((1, 3), np.int64),
           "past_key_values.0.key": past, "past_key_values.0.value": past}
    if variant not in ("no_positions", "gqa_packed"):
        out["position_ids"] = np.array([[0, 1, 2]])
    return out


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "gqa_f16"])
def test_written_models_check_and_run(program, models, tmp_path, variant):
    source, written = models / variant / "model.onnx", tmp_path / "w.onnx"
    dump(program, source, f"write={written}")
    model = onnx.load(written)
    if not any(n.domain for n in model.graph.node):
        onnx.checker.check_model(str(written), full_check=True)
    original = onnx.load(source)
    got = dump(program, written)
    model.graph.name, model.producer_name = original.graph.name, original.producer_name
    got["graph"], got["producer"] = original.graph.name, original.producer_name
    expect_model(got, original)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = lambda path: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])  # noqa: E731
    want, have = (session(p).run(None, feeds(variant)) for p in (source, written))
    for x, y in zip(want, have):
        assert np.array_equal(x, y)


@pytest.mark.parametrize("variant", ["recall", "no_positions", "longrope", "quant", "gqa", "gqa_packed"])
def test_simplified_models_say_the_same(program, models, tmp_path, variant):
    source, written = models / variant / "model.onnx", tmp_path / "w.onnx"
    dump(program, source, "infer", "simplify", f"write={written}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = lambda path: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])  # noqa: E731
    for x, y in zip(session(source).run(None, feeds(variant)), session(written).run(None, feeds(variant))):
        assert np.array_equal(x, y)


LIES = {"o_product_negative": "does not fit into 63 bits", "p_product_zero": "does not fit into 63 bits",
        "q_negative_dim": "its dims [-1,4] have a negative one", "r_short_raw": "needs 64 bytes, has 60",
        "s_long_raw": "needs 16 bytes, has 64", "t_empty": "is empty", "u_offset_negative": 'is "-16", not a number',
        "v_offset_wraps": "not a number from 0 to 2^63-1", "w_length_differs": "has length 8, its dims need 16 bytes",
        "x_past_end": '"ok.bin" needs 20 bytes', "y_nested": "nodes with subgraphs (1:"}


@pytest.fixture(scope="session")
def lies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lies")
    subprocess.run([sys.executable, str(TESTS / "lies.py")], cwd=folder, check=True)
    return folder / "lies"


def test_every_lie_is_listed(lies):
    assert {p.stem for p in lies.glob("*.onnx")} == set(LIES)


@pytest.mark.parametrize("name", LIES)
def test_files_that_lie(program, lies, name):
    words = refused(program, lies / f"{name}.onnx")
    assert f"{name}.onnx" in words and LIES[name] in words


def test_weights_that_are_not_all_there(program, models, tmp_path):
    good = (models / "table/model.onnx").read_bytes()
    path = tmp_path / "model.onnx"

    def words(data):
        path.write_bytes(data)
        text = refused(program, path)
        assert str(path) in text
        return text

    lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 18958888\n"
    assert "is a Git LFS pointer, the real file is 18958888 bytes" in words(lfs)
    assert "ends early" in words(good[: len(good) // 2])
    assert "is empty" in words(b"")
    assert "is an HTML page" in words(b"<!doctype html><title>404</title>")
    path.unlink()
    path.mkdir()
    assert "a directory" in refused(program, path)
    path.rmdir()

    onnx.save(onnx.load_from_string(good), path, save_as_external_data=True, location="w.bin", size_threshold=1024)
    whole = (tmp_path / "w.bin").read_bytes()
    dump(program, path)
    (tmp_path / "w.bin").write_bytes(whole[:-4096])
    text = refused(program, path)
    assert '"w.bin" needs ' in text and f"has {len(whole) - 4096}" in text
    (tmp_path / "w.bin").unlink()
    assert "missing w.bin" in refused(program, path)
    (tmp_path / "w.bin").write_bytes(bytes(len(whole) + 4096))
    dump(program, path)  # spare bytes are legal


def test_single_byte_changes(program, models, tmp_path):
    """Loads or is refused, nothing else: 200 of them here, millions under the fuzzer."""
    make(str(tmp_path / "small"), ctx=4, vocab=8, gqa={})
    good = (tmp_path / "small/model.onnx").read_bytes()
    rng = np.random.default_rng(1)
    for at, value in zip(rng.integers(0, len(good), 200), rng.integers(0, 256, 200)):
        changed = bytearray(good)
        changed[at] = value
        (tmp_path / "c.onnx").write_bytes(changed)
        assert run(program, tmp_path / "c.onnx", "infer", "simplify").returncode in (0, 3)


def test_no_memory_by_claimed_size(program, tmp_path):
    """A pile of nodes that each claim to make a terabyte."""
    n = oh.make_tensor("n", TP.INT64, [2], [1 << 20, 1 << 18])
    nodes = [oh.make_node("ConstantOfShape", ["n"], [f"v{i}"]) for i in range(50)]
    outputs = [oh.make_tensor_value_info(f"v{i}", TP.FLOAT, None) for i in range(50)]
    model = oh.make_model(oh.make_graph(nodes, "g", [], outputs, [n]), opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (512 * MIB, 512 * MIB))  # noqa: E731
    if "__asan" in subprocess.run(["nm", program], capture_output=True, text=True).stdout:
        limit = None  # the sanitizer reserves terabytes itself
    done = subprocess.run([program, str(tmp_path / "m.onnx"), "infer", "simplify"], capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["nodes"]) == 50
    shutil.rmtree(tmp_path)
