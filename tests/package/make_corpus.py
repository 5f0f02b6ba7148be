"""Writes corpus/gguf_fuzz: the seeds of the fuzz target. Needs gguf and numpy; the files are checked in.

Small models that import, one value of every metadata type, every tensor type, and the refusals that random changes
would not find from there."""
import pathlib
import struct
import sys

import gguf
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from make_gguf import Q, make_gguf  # noqa: E402

folder = pathlib.Path(__file__).resolve().parent / "corpus/gguf_fuzz"
folder.mkdir(parents=True, exist_ok=True)

TINY = {"V": 32, "H": 32, "F": 32, "heads": 2, "kv": 1}


def tiny(name, **options):
    def extra(w):
        for key in ("tokens", "token_type", "merges"):
            w.kv_data[0].pop(f"tokenizer.ggml.{key}")
        w.add_token_list([*"abcdefghijkl", "ab", "<|end|>"])
        w.add_token_types([1] * 13 + [3])
        w.add_token_merges(["a b", "a zz"])
        w.kv_data[0].pop("tokenizer.ggml.eos_token_id")
        w.add_eos_token_id(13)
        more(w)

    more = options.pop("extra", lambda w: None)
    make_gguf(folder / f"{name}.gguf", options.pop("tied", True), **TINY, extra=extra, **options)


def every_type(w):
    w.add_bool("x.bool", True)
    w.add_float64("x.f64", 1.5)
    w.add_int8("x.i8", -1)
    w.add_uint8("x.u8", 1)
    w.add_int16("x.i16", -1)
    w.add_uint16("x.u16", 1)
    w.add_int32("x.i32", -1)
    w.add_int64("x.i64", -1)
    w.add_uint64("x.u64", 2**64 - 1)
    w.add_array("x.strings", ["a", "bc"])
    w.add_array("x.floats", [1.0, 2.0])
    w.add_array("x.nested", [[1, 2], [3]])
    w.add_array("llama.attention.head_count_kv", [1])
    w.add_chat_template("{{ x }}")
    w.add_custom_alignment(64)


tiny("tied_q4_0", types={"": Q.Q4_0})
tiny("untied_mixed", tied=False, types={"": Q.Q8_0, "attn": Q.Q4_1, "ffn": Q.BF16, "output": Q.F16})
tiny("every_value_type", types={"": Q.Q4_0},
     extra=lambda w: (w.kv_data[0].pop("llama.attention.head_count_kv"), every_type(w)),
     tensors=lambda w: w.add_tensor("rope_freqs.weight", np.ones(8, np.float32)))


def text(x):
    return struct.pack("<Q", len(x)) + x.encode()


def head(tensors, entries, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def entry(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def tensor(name, dims, kind=0, offset=0):
    return text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, offset)


def put(name, data):
    (folder / f"{name}.gguf").write_bytes(data)


ints = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}
put("int_arrays", head(0, len(ints)) + b"".join(
    entry(f"a{kind}", 9, struct.pack("<IQ", kind, 2) + struct.pack(f"<2{code}", 1, 2)) for kind, code in ints.items()))
pad = bytes(4096)
known = sum(int(q) < 40 for q in gguf.GGML_QUANT_SIZES)
put("all_tensor_types", head(known, 0) + b"".join(
    tensor(f"t{int(q)}", [256], int(q), 0) for q in gguf.GGML_QUANT_SIZES if int(q) < 40) + pad)
put("not_gguf", b"hello")
put("empty_page", b"<!doctype html><title>404</title>")
put("big_endian", b"GGUF" + struct.pack(">I", 3) + bytes(16))
put("version_1", head(0, 0, 1))
put("short", head(1, 1)[:14])
put("many_tensors", head(2**60, 0) + pad[:64])
put("many_entries", head(0, 2**64 - 1) + pad[:64])
put("long_key", head(0, 1) + struct.pack("<Q", 2**63) + pad[:64])
put("empty_key", head(0, 1) + text("") + pad[:64])
put("value_type", head(0, 1) + entry("k", 13, pad[:64]))
put("element_type", head(0, 1) + entry("k", 9, struct.pack("<IQ", 77, 1) + pad[:64]))
put("short_value", head(0, 1) + entry("key", 10, b"\1"))
put("long_array", head(0, 1) + entry("k", 9, struct.pack("<IQ", 8, 2**60)))
put("deep_array", head(0, 1) + entry("k", 9, struct.pack("<IQ", 9, 1) * 9))
put("twice", head(0, 2) + entry("k", 0, b"\1") * 2)
put("alignment", head(0, 1) + entry("general.alignment", 4, struct.pack("<I", 3)))
put("alignment_text", head(0, 1) + entry("general.alignment", 8, text("32")))
put("no_dims", head(1, 0) + tensor("t", []) + pad)
put("zero_dim", head(1, 0) + tensor("t", [0]) + pad)
put("product", head(1, 0) + tensor("t", [2**32, 2**32]) + pad)
put("bytes_product", head(1, 0) + tensor("t", [2**62]) + pad)
put("tensor_type", head(1, 0) + tensor("t", [4], 99) + pad)
put("row", head(1, 0) + tensor("t", [33], 2) + pad)
put("offset", head(1, 0) + tensor("t", [4], 0, 2**40) + pad)
put("unaligned", head(1, 0) + tensor("t", [4], 0, 5) + pad)
put("tensor_twice", head(2, 0) + tensor("t", [4]) * 2 + pad)
put("no_name", head(1, 0) + tensor("", [4]) + pad)
put("version_2", head(1, 0, 2) + tensor("t", [4]) + pad)
