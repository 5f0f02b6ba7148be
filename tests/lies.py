# lies.py - writes files whose sizes lie (GGUF and ONNX) into ./lies. Needs: onnx.
import os, struct, onnx
from onnx import helper as oh, TensorProto as TP
os.makedirs("lies", exist_ok=True)
s = lambda x: struct.pack("<Q", len(x)) + x.encode()
head = lambda nt, nkv: b"GGUF" + struct.pack("<IQQ", 3, nt, nkv)
arch = s("general.architecture") + struct.pack("<I", 8) + s("llama")
def info(dims, typ=0, off=0):
    return s("token_embd.weight") + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d % 2**64) for d in dims) + struct.pack("<IQ", typ, off)
M = 2**63 - 1
for n, b in {
    "a_magic": b"GGUX" + head(0, 0)[4:], "b_short": head(1, 1)[:20],
    "c_many_tensors": head(M // 100, 1) + arch, "d_minus_one_tensors": head(2**64 - 1, 1) + arch,
    "e_long_string": head(0, 1) + struct.pack("<Q", 2**64 - 8) + b"x",
    "f_big_array": head(0, 1) + s("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2**60),
    "g_product_negative": head(1, 1) + arch + info([M, 2, 1, 1], 24), "h_product_zero": head(1, 1) + arch + info([2**32, 2**32]),
    "i_negative_dim": head(1, 1) + arch + info([-1, 32]), "j_five_dims": head(1, 1) + arch + info([2] * 5),
    "k_bad_type": head(1, 1) + arch + info([32, 32], 9999), "l_offset_past_end": head(1, 1) + arch + info([32, 32], 0, 2**40),
    "m_nested_array": head(0, 1) + s("x") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100000,
    "n_alignment_zero": head(0, 2) + arch + s("general.alignment") + struct.pack("<II", 4, 0)}.items():
    open(f"lies/{n}.gguf", "wb").write(b)
def model(dims, raw=None, **ext):                    # one initializer, passed through Identity
    t = TP(name="w", data_type=TP.FLOAT, dims=dims)
    if raw is None:
        t.data_location = TP.EXTERNAL
        for k, v in ext.items(): t.external_data.add(key=k, value=v)
    else: t.raw_data = raw
    g = oh.make_graph([oh.make_node("Identity", ["w"], ["y"])], "g", [], [oh.make_tensor_value_info("y", TP.FLOAT, None)], [t])
    return oh.make_model(g, opset_imports=[oh.make_opsetid("", 17)], ir_version=8).SerializeToString()
open("lies/ok.bin", "wb").write(bytes(16))
for n, b in {
    "o_product_negative": model([2**62, 4], b""), "p_product_zero": model([2**32, 2**32], b""), "q_negative_dim": model([-1, 4], bytes(16)),
    "r_short_raw": model([4, 4], bytes(60)), "s_long_raw": model([2, 2], bytes(64)), "t_empty": b"",
    "u_offset_negative": model([4], location="ok.bin", offset="-16", length="16"),
    "v_offset_wraps": model([4], location="ok.bin", offset="18446744073709551600", length="32"),
    "w_length_differs": model([4], location="ok.bin", length="8"), "x_past_end": model([5], location="ok.bin")}.items():
    open(f"lies/{n}.onnx", "wb").write(b)
def var(n):
    o = b""
    while n > 127: o += bytes([n & 127 | 128]); n >>= 7
    return o + bytes([n])
ld = lambda f, p: var(f << 3 | 2) + var(len(p)) + p
g = ld(2, b"leaf")                                   # 5,000 graphs inside each other
for _ in range(5000): g = ld(1, ld(1, b"c") + ld(2, b"y") + ld(4, b"If") + ld(5, ld(1, b"then_branch") + ld(6, g) + var(20 << 3) + var(5)))
open("lies/y_nested.onnx", "wb").write(var(1 << 3) + var(8) + ld(7, g) + ld(8, var(2 << 3) + var(17)))
