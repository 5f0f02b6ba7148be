"""Small GGUF files of the llama architecture: the ones of the public trial R19, and one per tensor type."""
import pathlib
import sys

import gguf
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from tinymodel import SPECIAL, byte_chars, rnd  # noqa: E402

Q = gguf.GGMLQuantizationType


def make_gguf(path, tied, V=263, H=64, F=128, heads=4, kv=2, layers=1, types=None, extra=None, tensors=None):
    """types: {substring of a tensor's name: type}, the last match counts; vectors stay F32.
    extra(writer) adds metadata, tensors(add) adds tensors."""
    w = gguf.GGUFWriter(path, "llama")
    D = H // heads
    bc = byte_chars()
    w.add_context_length(512)
    w.add_embedding_length(H)
    w.add_block_count(layers)
    w.add_feed_forward_length(F)
    w.add_vocab_size(V)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(D)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([bc[b] for b in range(256)] + SPECIAL + [bc[0] * 2])
    w.add_token_types([1] * 256 + [3] * 6 + [1])
    w.add_token_merges([bc[0] + " " + bc[0]])
    w.add_eos_token_id(256)
    w.add_add_bos_token(False)
    if extra:
        extra(w)

    def add(name, shape, seed, scale):
        data = rnd(int(np.prod(shape)), seed, scale).reshape(shape)
        qtype = Q.F32
        for part, wanted in (types or {}).items():
            if part in name and len(shape) == 2:
                qtype = wanted
        if qtype == Q.F32:
            w.add_tensor(name, data)
        elif qtype == Q.F16:
            w.add_tensor(name, data.astype(np.float16))
        else:
            w.add_tensor(name, gguf.quants.quantize(data, qtype), raw_dtype=qtype)

    add("token_embd.weight", (V, H), 21, 1.0)
    if not tied:
        add("output.weight", (V, H), 21, 1.0)
    norms = ["output_norm"] + [f"blk.{i}.{n}" for i in range(layers) for n in ("attn_norm", "ffn_norm")]
    for n in norms:
        w.add_tensor(n + ".weight", np.ones(H, np.float32))
    for i in range(layers):
        for n, s, seed in (
            ("attn_q", (H, H), 22),
            ("attn_k", (kv * D, H), 23),
            ("attn_v", (kv * D, H), 24),
            ("attn_output", (H, H), 25),
            ("ffn_gate", (F, H), 26),
            ("ffn_up", (F, H), 27),
            ("ffn_down", (H, F), 28),
        ):
            add(f"blk.{i}.{n}.weight", s, seed + 10 * i, 0.3)
    if tensors:
        tensors(w)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    make_gguf("tied.gguf", True)
    make_gguf("untied.gguf", False)
