"""Makes the seed corpus of the ONNX reader's fuzz target. Needs: numpy, onnx.

    python make_corpus.py FOLDER        (the checked-in one: tests/onnx/corpus)

Small files that together reach the reader: every element type raw and typed, packed and not, attributes of every
kind, all operators that inference and folding know, ports, external data, and what is refused.
"""

import itertools
import pathlib
import sys

import numpy as np
from onnx import TensorProto as TP
from onnx import helper as oh
from onnx import numpy_helper as nh

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from tinymodel import make  # noqa: E402

vi = oh.make_tensor_value_info


def model(nodes=(), inputs=(), outputs=(), init=(), opset=21, ir=10, **more):
    graph = oh.make_graph(list(nodes), "g", list(inputs), list(outputs), list(init), **more)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset), oh.make_opsetid("com.microsoft", 1)], ir_version=ir)


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def number(field_number, value):
    return varint(field_number << 3) + varint(value % 2**64)


def with_tensor(tensor):
    return number(1, 8) + field(7, field(5, tensor))


def types():
    values = {TP.FLOAT: [1.5, -2.0, 0.0], TP.FLOAT16: [1.5, -2.0, 0.0], TP.BFLOAT16: [1.5, -2.0, 0.0], TP.INT4: [-8, 7, 1],
              TP.UINT4: [0, 15, 8], TP.INT8: [-128, 127, 1], TP.UINT8: [0, 255, 1], TP.INT32: [-5, 7, 1], TP.INT64: [-5, 7, 1],
              TP.BOOL: [True, False, True]}
    init = []
    for t, v in values.items():
        init.append(oh.make_tensor(f"t{t}", t, [3], v))
        raw = nh.from_array(nh.to_array(init[-1]), f"r{t}") if t not in (TP.INT4, TP.UINT4) else None
        if raw is not None:
            init.append(raw)
    return model(init=init).SerializeToString()


def unpacked():
    head = number(1, 2)
    yield with_tensor(head + number(2, 1) + field(8, b"w") + b"\x25\0\0\x80\x3f\x25\0\0\0\x40")
    yield with_tensor(head + number(2, 7) + field(8, b"w") + number(7, 5) + number(7, -5))
    yield with_tensor(head + number(2, 6) + field(8, b"w") + number(5, 5) + number(5, -5))
    yield with_tensor(field(1, b"\x02") + number(2, 2) + field(8, b"w") + number(5, 5) + number(5, 256))
    yield with_tensor(head + number(2, 9) + field(8, b"w") + field(9, b"\x01\x02"))


def math():
    c = lambda n, a: nh.from_array(np.array(a), n)  # noqa: E731
    f, i, b = c("f", np.arange(6, dtype=np.float32).reshape(2, 3)), c("i", np.arange(1, 7).reshape(2, 3)), c("b", [True, False, True])
    h = c("h", np.arange(3, dtype=np.float16))
    nodes, count = [], itertools.count()
    n = lambda t, *ins, **kw: oh.make_node(t, list(ins), [f"{t}_{next(count)}"], **kw)  # noqa: E731
    for t in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        for x in ("f", "i", "h"):
            nodes.append(n(t, x, x))
    for t in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        nodes += [n(t, "f", "f"), n(t, "i", "i")]
    for t in ("And", "Or", "Xor"):
        nodes.append(n(t, "b", "b"))
    for t in ("Neg", "Abs", "Floor", "Ceil", "Sqrt", "Reciprocal"):
        nodes.append(n(t, "f"))
    nodes += [n("Not", "b"), n("Neg", "i"), n("Abs", "i"), n("Pow", "f", "f")]
    for to in (1, 2, 3, 6, 7, 9, 10, 16):
        nodes += [n("Cast", "f", to=to), n("Cast", "i", to=to), n("Cast", "b", to=to), n("Cast", "h", to=to)]
    nodes += [n("Where", "b", "f", "f"), n("Softmax", "f"), n("Clip", "f"), n("CumSum", "f", "s0")]
    outputs = [vi(x.output[0], TP.UNDEFINED, None) for x in nodes]
    return model(nodes, [], outputs, [f, i, b, h, c("s0", np.array(0))]).SerializeToString()


def movement():
    ints = {"z": [0, -1], "two": [2], "one": [1], "m1": [-1], "big": [1 << 40], "shape": [2, 1, 3], "none": [], "flat": [-1], "rep": [2, 1, 1], "sizes": [1, 2], "a0": [0]}
    init = [nh.from_array(np.array(v, np.int64), k) for k, v in ints.items()]
    init += [nh.from_array(np.array(v, np.int64), k) for k, v in {"s1": 1, "s0": 0, "s9": 9, "sm": -2}.items()]
    init += [nh.from_array(np.arange(24, dtype=np.float32).reshape(2, 3, 4), "f"), nh.from_array(np.arange(6, dtype=np.int8).reshape(2, 3), "q")]
    nodes = []

    def n(t, *ins, outs=1, **kw):
        nodes.append(oh.make_node(t, list(ins), [f"o{len(nodes)}_{k}" for k in range(outs)], **kw))
        return nodes[-1].output[0]

    for x in ("f", "x"):
        n("Reshape", x, "z"), n("Reshape", x, "flat"), n("Flatten", x, axis=1), n("Transpose", x), n("Transpose", x, perm=[1, 2, 0])
        n("Squeeze", n("Unsqueeze", x, "one"), "one"), n("Concat", x, x, axis=-1), n("Gather", x, "two", axis=2), n("Gather", x, "s1")
        n("Slice", x, "one", "big", "two"), n("Slice", x, "m1", "big", "two")
        n("Slice", x, "one", "two", "one", "two"), n("Split", x, outs=2, axis=1), n("Split", x, "sizes", outs=2, axis=1)
        s = n("Shape", x)
        n("Shape", x, start=1, end=-1), n("Size", x), n("ConstantOfShape", s), n("Range", "s0", n("Gather", s, "s1"), "s1")
        n("Reshape", x, n("Concat", n("Slice", s, "one", "big"), "flat", axis=0)), n("Expand", "q", "shape"), n("Tile", x, "rep")
        n("ReduceSum", x, "m1", keepdims=0), n("ReduceMax", x), n("ReduceMean", x, "one")
        n("Identity", n("Identity", x)), n("MatMul", x, n("Transpose", x, perm=[0, 2, 1]))
        n("Squeeze", x), n("Mul", n("Gather", s, "s1"), "s1"), n("Sub", n("Unsqueeze", n("Gather", s, "s1"), "a0"), "m1")
    n("Range", "s9", "s0", "sm"), n("ConstantOfShape", "two", value=oh.make_tensor("v", TP.INT64, [1], [9])), n("Constant", value_ints=[1, 2])
    n("Constant", value_float=1.0), n("Constant", value_floats=[1.0]), n("Constant", value_int=3), n("Constant", value=nh.from_array(np.array([1, 2])))
    outputs = [vi(o, TP.UNDEFINED, None) for x in nodes for o in x.output]
    yield model(nodes, [vi("x", TP.FLOAT, ["b", 3, 4])], outputs, init).SerializeToString()
    old = [oh.make_node("Slice", ["x"], ["a"], starts=[1], ends=[3], axes=[1]), oh.make_node("Unsqueeze", ["a"], ["c"], axes=[0]),
           oh.make_node("Squeeze", ["c"], ["d"], axes=[0]), oh.make_node("Split", ["d"], ["e", "f"], split=[1, 1], axis=1),
           oh.make_node("ReduceSum", ["e"], ["y"], axes=[-1], keepdims=0)]
    yield model(old, [vi("x", TP.FLOAT, ["b", 3, 4])], [vi("y", TP.FLOAT, None)], opset=9, ir=3).SerializeToString()


def attributes():
    every = dict(i=1, f=1.5, s="text", ints=[1, -2], floats=[1.0, 2.0], strings=["a", "b"], t=nh.from_array(np.array([1.0], np.float32)))
    yield model([oh.make_node("Custom", ["x"], ["y", ""], domain="x", name="n", **every)], [vi("x", TP.FLOAT, [-1])], [vi("y", TP.FLOAT, None)]).SerializeToString()
    packed = field(1, b"a") + field(8, b"\x01\x02\x80\x01") + number(20, 7)
    floats = field(1, b"b") + field(7, bytes(8)) + number(20, 6)
    node = field(2, b"y") + field(4, b"Custom") + field(7, b"x")
    yield number(1, 8) + field(7, field(1, node + field(5, packed) + field(5, floats)))
    for kind in (field(6, b""), field(11, b""), field(10, b""), field(22, b""), field(23, b""), field(14, b""), field(15, b""), field(21, b"r"),
                 number(20, 77), number(20, 4), number(3, 1) + field(4, b"s"), field(5, number(2, 11)), number(3, 1) + number(20, 1)):
        yield number(1, 8) + field(7, field(1, node + field(5, field(1, b"a") + kind)))


def refusals():
    yield b""
    yield b"version https://git-lfs.github.com/spec/v1\nsize 1\n"
    yield b"\x3a\x82\x80\x80\x80\x10\x12\x00"
    yield number(1, 8) + field(7, b"") + field(7, b"")
    yield number(1, 8) + field(25, field(1, b"F") + field(10, b"x")) + field(7, field(1, field(2, b"y") + field(4, b"F") + field(7, b"x")))
    yield with_tensor(number(1, -1) + number(2, 1) + field(8, b"w"))
    yield with_tensor(number(1, 1 << 62) + number(1, 4) + number(2, 1) + field(8, b"w"))
    yield with_tensor(number(1, 4) + number(2, 11) + field(8, b"w"))
    yield with_tensor(number(1, 4) + number(2, 1) + field(8, b"w") + field(13, field(1, b"location") + field(2, b"w.bin")) + number(14, 1))
    # The fuzz target has a folder with w.bin (16 bytes) in it.
    for location, more in ((b"w.bin", field(13, field(1, b"offset") + field(2, b"0"))), (b"w.bin", field(13, field(1, b"offset") + field(2, b"9"))), (b"/w.bin", b""),
                           (b"../w.bin", b""), (b"gone.bin", b""), (b"w\0bin", b""), (b".", b""), (b"link.bin", b""), (b"w.bin/x", b""), (b"same.bin", b"")):
        yield with_tensor(number(1, 4) + number(2, 1) + field(8, b"w") + field(13, field(1, b"location") + field(2, location)) + more + number(14, 1))
    yield with_tensor(number(1, 4) + number(2, 1) + field(8, b"w") + field(13, field(1, b"offset") + field(2, b"-1")) + number(14, 1))
    yield with_tensor(number(1, 4) + number(2, 1) + field(8, b"w") + field(13, field(1, b"length") + field(2, b"16")) + number(14, 1))
    yield number(1, 8) + field(7, field(15, field(1, field(8, b"s"))))
    yield number(1, 8) + field(7, field(5, number(2, 1) + number(1, 0) + field(8, b"w")) * 2)
    for kind in (field(4, b""), field(5, b""), field(7, b""), field(8, b""), field(9, b""), field(6, b"d")):
        yield number(1, 8) + field(7, field(11, field(1, b"x") + field(2, kind)))
    neg = [oh.make_node("Neg", ["a"], ["b"]), oh.make_node("Neg", ["b"], ["a"])]
    yield model(neg).SerializeToString()
    yield model([oh.make_node("Neg", ["lost"], ["b"])], [], [vi("gone", TP.FLOAT, [])]).SerializeToString()
    yield model([oh.make_node("Neg", ["x"], ["x"])], [vi("x", TP.FLOAT, [1])]).SerializeToString()
    yield model([oh.make_node("Add", ["x"], ["b"])], [vi("x", TP.FLOAT, [1])]).SerializeToString()
    yield model([oh.make_node("Gather", ["x", "x"], ["b"], axis=1.0)], [vi("x", TP.FLOAT, [1])]).SerializeToString()
    yield model([oh.make_node("Neg", ["x"], ["y"])], [vi("x", TP.FLOAT, [1])], [vi("y", TP.FLOAT16, [2])]).SerializeToString()
    yield model([oh.make_node("Neg", ["x"], ["y"])], [vi("x", TP.FLOAT, [1]), vi("w", TP.FLOAT, [2])], [vi("y", TP.FLOAT, [1])],
                [nh.from_array(np.zeros(2, np.float32), "w")], ir=3, value_info=[vi("y", TP.FLOAT, ["n"])]).SerializeToString()


def contradictions():
    """One node each that inference refuses or folding leaves alone."""
    ints = {"bad": [7, 7], "neg": [-5], "two": [2], "open2": [-1, -1], "copies": [1, 1, 1, 0], "zero": [0], "none": [], "nine": [9]}
    init = [nh.from_array(np.array(v, np.int64), k) for k, v in ints.items()]
    init += [nh.from_array(np.ones((2, 3), np.float32), "c"), nh.from_array(np.array(0), "s0"), nh.from_array(np.array([True]), "t")]
    q = dict(domain="com.microsoft")
    cases = [("Reshape", "x bad"), ("Reshape", "x neg"), ("Reshape", "x open2"), ("Reshape", "x copies"), ("Reshape", "c bad"), ("Reshape", "c open2"),
             ("Transpose", "x", dict(perm=[0, 0])), ("Transpose", "c", dict(perm=[0])), ("Squeeze", "x two"), ("Squeeze", "c zero"), ("Unsqueeze", "x nine"),
             ("Concat", "x c"), ("Concat", "c c", dict(axis=4)), ("Split", "x bad"), ("Split", "x neg"), ("Slice", "x bad two"), ("Slice", "x"),
             ("Slice", "x zero two zero zero"), ("Slice", "c zero two nine"), ("Gather", "x s0", dict(axis=5)), ("Gather", "c nine"), ("Expand", "x bad"), ("Expand", "c bad"),
             ("Expand", "c neg"), ("Tile", "x neg"), ("Range", "s0 s0 s0"), ("ConstantOfShape", "neg"), ("Flatten", "x", dict(axis=9)), ("Add", "x t"),
             ("Add", "x bad"), ("Div", "bad zero"), ("Where", "t x zero"), ("Not", "x"), ("Max", "x t c"), ("MatMul", "x x"), ("MatMul", "x s0"), ("Gemm", "x x"),
             ("Gemm", "x zero"), ("ReduceSum", "x nine"), ("Cast", "c", dict(to=11)), ("Cast", "c", dict(to=22)), ("Sqrt", "zero"), ("Floor", "zero"),
             ("MatMulNBits", "x c c", dict(K=0, N=1, **q)), ("MatMulNBits", "x c c", dict(K=9, N=1, **q)), ("GatherBlockQuantized", "c zero c", dict(bits=3, **q)),
             ("GroupQueryAttention", "x x x x x zero zero", dict(num_heads=0, **q)), ("GroupQueryAttention", "x x x x x zero zero", dict(num_heads=1, kv_num_heads=1, **q)),
             ("Shape", "x", dict(start=-9, end=9)), ("Clip", "x"), ("Constant", "", dict(value_string="s"))]
    for op, ins, *kw in cases:
        yield model([oh.make_node(op, ins.split(), ["y"], **(kw[0] if kw else {}))], [vi("x", TP.FLOAT, [2, 3])], [vi("y", TP.UNDEFINED, None)], init).SerializeToString()


def oddities():
    """Fields that the reader skips, declarations that contradict each other, sizes that do not match."""
    u = number(99, 1) + field(98, b"u") + varint(97 << 3 | 5) + bytes(4) + varint(96 << 3 | 1) + bytes(8)  # unknown, each wire type
    head = number(2, 1) + field(8, b"w")

    def port(kind, name, type_=1, dims=(), extra=b""):
        shape = b"".join(field(1, number(1, d) if isinstance(d, int) else field(2, d)) for d in dims)
        return field(kind, field(1, name) + extra + field(2, field(1, number(1, type_) + extra + field(2, shape + extra)) + extra))

    graph = field(2, b"g") + u + field(1, field(1, b"x") + field(2, b"y") + field(4, b"Neg") + u)
    graph += port(11, b"x", dims=[b"n", 2], extra=u) + port(12, b"y", dims=[-1, 2]) + port(13, b"y", dims=[b"m", 2]) + port(13, b"stray")
    graph += field(5, number(1, 0) + head + field(13, field(1, b"k") + u) + u)
    yield number(1, 8) + field(2, b"producer") + u + field(8, field(1, b"ai.onnx") + number(2, 17) + u) + field(7, graph) + field(25, field(1, b"F") + u)
    both = lambda a, b: number(1, 8) + field(7, a + b)  # noqa: E731
    yield both(port(11, b"x"), port(11, b"x"))
    yield both(port(11, b"x"), port(12, b"x") * 2)
    yield both(port(11, b"x", 11), port(12, b"y", 99) + port(13, b"z", 8))
    yield both(port(11, b"x", dims=[-5]), b"")
    yield both(port(11, b"x", dims=[1] * 33), b"")
    yield both(port(11, b"x", 1), port(12, b"x", 7))
    yield both(port(11, b"x", dims=[2]), port(12, b"x", dims=[3]))
    yield both(port(11, b"x", dims=[b"n"]), port(12, b"x", dims=[b"n", 3]))
    yield both(port(11, b"x", 1) + field(5, number(1, 0) + number(2, 7) + field(8, b"x")), b"")
    yield both(port(11, b""), b"")
    neg = field(1, b"w") + field(2, b"y") + field(4, b"Neg")
    # Data shorter than its dims, and a node that would read it all.
    yield both(field(1, neg) + port(12, b"y"), field(5, number(1, 4) + number(1, 4) + head + field(9, bytes(60))))
    yield both(field(1, neg) + port(12, b"y"), field(5, number(1, 4) + number(1, 4) + head + field(4, bytes(60))))
    yield both(field(1, field(1, b"w") + field(2, b"w") + field(4, b"Neg")), field(5, number(1, 0) + head))
    yield both(field(1, field(2, b"y") + field(4, b"Neg")) * 2, b"")
    yield both(field(1, field(2, b"y") + field(4, b"A") + field(7, b"x")) * 2, b"")
    yield both(field(1, field(1, b"") + field(2, b"y") + field(4, b"Neg")), b"")
    yield both(field(1, field(1, b"w") + field(4, b"Neg")), field(5, number(1, 0) + head))
    yield both(field(1, field(2, b"y") + field(7, b"x")), b"")
    a = field(5, field(1, b"a") + number(3, 1) + number(20, 2) + u)
    yield both(field(1, field(2, b"y") + field(4, b"A") + field(7, b"x") + a + a), b"")
    yield with_tensor(number(1, 1) * 33 + head)
    yield with_tensor(number(1, 1) + head + field(9, bytes(4)) + field(4, bytes(4)))
    yield with_tensor(number(1, 1) + number(2, 7) + field(8, b"w") + field(7, b"\x81"))
    yield with_tensor(number(1, 1) + head + field(4, bytes(3)))
    yield with_tensor(number(1, 1) + head + number(4, 1) + field(4, bytes(4)))
    yield with_tensor(number(1, 1) + number(2, 2) + field(8, b"w") + number(5, 300))
    yield with_tensor(number(1, 4) + head + field(13, field(1, b"location") + field(2, b"w.bin")) + field(13, field(1, b"length") + field(2, b"8")) + number(14, 1))
    w = field(13, field(1, b"location") + field(2, b"w.bin")) + number(14, 1)
    yield both(field(5, number(1, 4) + head + w), field(5, number(1, 4) + number(2, 1) + field(8, b"v") + w))
    same = field(13, field(1, b"location") + field(2, b"same.bin")) + number(14, 1)
    yield both(field(5, number(1, 4) + head + w), field(5, number(1, 4) + number(2, 1) + field(8, b"v") + same))
    yield field(1, b"y") + b"\x08"
    yield b"\x08"
    yield number(1, 8) + b"\x3a\x7f\x0a"
    yield number(1, 8) + field(7, b"\x12\x7f") + number(1, 8)
    yield both(field(1, field(2, b"y") + field(4, b"A") + field(7, b"x") + field(5, field(1, b"a") + field(7, bytes(3)))), b"")
    for op, attribute in (("Gather", dict(axis="s")), ("Gather", dict(axis=[1])), ("Gather", dict(axis=[1.0])), ("Gather", dict(axis=["s"])),
                          ("Gather", dict(axis=nh.from_array(np.zeros(1, np.float32)))), ("Transpose", dict(perm=1))):
        ins = ["x", "x"] if op == "Gather" else ["x"]
        yield model([oh.make_node(op, ins, ["b"], **attribute)], [vi("x", TP.FLOAT, [1])]).SerializeToString()


def norms():
    w = nh.from_array(np.ones(8, np.float32), "g")
    cos = nh.from_array(np.ones((16, 4), np.float32), "cos")
    q = nh.from_array(np.zeros((9, 4), np.uint8), "q")
    s = nh.from_array(np.ones((9, 1), np.float32), "s")
    ms = dict(domain="com.microsoft")
    nodes = [oh.make_node("GatherBlockQuantized", ["q", "ids", "s"], ["x"], bits=4, block_size=16, quantize_axis=1, **ms),
             oh.make_node("SimplifiedLayerNormalization", ["x", "g"], ["a"], epsilon=1e-5),
             oh.make_node("RMSNormalization", ["x", "g"], ["b"]),
             oh.make_node("SkipSimplifiedLayerNormalization", ["a", "b", "g"], ["c", "", "", "d"], **ms),
             oh.make_node("RotaryEmbedding", ["c", "ids", "cos", "cos"], ["e"], **ms),
             oh.make_node("Gemm", ["w2", "w2"], ["f"], transB=1),
             oh.make_node("GroupQueryAttention", ["e", "", "", "past", "past", "lens", "tot"], ["h", "pk", "pv"], num_heads=2, kv_num_heads=1, **ms)]
    inputs = [vi("ids", TP.INT64, ["b", "s"]), vi("w2", TP.FLOAT, [2, 3]), vi("past", TP.FLOAT, ["b", 1, "p", 2]), vi("lens", TP.INT32, ["b"]), vi("tot", TP.INT32, [])]
    return model(nodes, inputs, [vi(n, TP.FLOAT, None) for n in ("d", "f", "h", "pk")], [w, cos, q, s]).SerializeToString()


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = {"types": types(), "math": math(), "norms": norms()}
    for group in (unpacked, movement, attributes, refusals, contradictions, oddities):
        files.update({f"{group.__name__}_{k:02}": data for k, data in enumerate(group())})
    scratch = folder / "scratch"
    small = dict(ctx=4, vocab=8)
    for name, options in {"gqa": dict(gqa={}), "packed": dict(gqa=dict(packed=True, window=4), position_ids=False, longrope=2),
                          "plain": dict(kv="float16", quant=dict(block=16, zp=7))}.items():
        make(str(scratch), **small, **options)
        files[name] = (scratch / "model.onnx").read_bytes()
        for path in scratch.iterdir():
            path.unlink()
        scratch.rmdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    print(f"{len(files)} files, {sum(map(len, files.values()))} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
