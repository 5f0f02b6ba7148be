"""GGUF import against outside references: gguf's own dequantiser, ONNX Runtime, Hugging Face tokenizers."""
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

import gguf
import numpy as np
import onnx
import pytest
import tokenizers
from onnx import numpy_helper

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from make_gguf import Q, make_gguf  # noqa: E402
from ort_greedy import Decoder  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
TYPES = {"F32": Q.F32, "F16": Q.F16, "BF16": Q.BF16, "Q8_0": Q.Q8_0, "Q4_0": Q.Q4_0, "Q4_1": Q.Q4_1}
HELLO = [111] * 4 + [25] + [127] * 5 + [7] * 6 + [26] * 4


@pytest.fixture(scope="session")
def importer():
    build = os.environ.get("GRANULE_BUILD")
    if not build:
        pytest.skip("GRANULE_BUILD is not set: run through ctest, or set it to a build folder")
    path = pathlib.Path(build) / "tests/package/import_gguf"
    assert os.access(path, os.X_OK), f"{path} is not there: build the target import_gguf"
    return path


def run(importer, source, folder, *flags, **options):
    return subprocess.run([importer, source, folder, *flags], capture_output=True, text=True, **options)


def imported(importer, source, folder):
    result = run(importer, source, folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="session")
def real_gguf():
    """The GGUF that the default model is made from: GRANULE_TEST_GGUF, or where make model puts it."""
    asked = os.environ.get("GRANULE_TEST_GGUF")
    path = pathlib.Path(asked) if asked else ROOT / "build/download/SmolLM2-135M-Instruct.Q4_1.gguf"
    if asked:
        assert path.is_file(), f"GRANULE_TEST_GGUF={asked} is not a file"
    elif not path.is_file():
        pytest.skip("no GGUF in build/download: make model fetches it")
    return path


@pytest.fixture(scope="session")
def real_folder(importer, real_gguf, tmp_path_factory):
    return imported(importer, real_gguf, tmp_path_factory.mktemp("real") / "model")


def halves(rows, heads):
    """Rows of llama.cpp's neighbouring pairs -> rows of Hugging Face's halves."""
    n, k = rows.shape
    return rows.reshape(heads, n // heads // 2, 2, k).swapaxes(1, 2).reshape(n, k)


def dequantised(graph):
    """{node name: weight [N, K]} of every product and table of the graph."""
    init = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    views = {n.output[0]: init[n.input[0]] for n in graph.node if n.op_type in ("Reshape", "Transpose")}
    views |= {n.output[0]: init[n.input[0]].T for n in graph.node if n.op_type == "Transpose"}
    weights = {}
    for node in graph.node:
        if node.op_type == "MatMul":
            weights[node.name] = (views | init)[node.input[1]].T
        elif node.op_type == "Gather" and node.name.startswith("/model/embed"):
            weights[node.name] = init[node.input[0]]
        elif node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
            attrs = {a.name: a.i for a in node.attribute}
            product = node.op_type == "MatMulNBits"
            codes = init[node.input[1]] if product else (views | init)[node.input[0]]
            scales = init[node.input[2]]
            codes = codes.reshape(codes.shape[0], -1)
            if attrs["bits"] == 4:
                codes = np.stack([codes & 15, codes >> 4], -1)
            codes = codes.reshape(*scales.shape, 32).astype(np.float32)
            zero = init[node.input[3]] if len(node.input) > 3 else np.full_like(scales, 2 ** (attrs["bits"] - 1))
            assert scales.dtype == np.float32 and zero.dtype == np.float32
            weights[node.name] = ((codes - zero[..., None]) * scales[..., None]).reshape(codes.shape[0], -1)
    return weights


def check_weights(source, folder, heads, kv_heads):
    """Every matrix of the file equals gguf's dequantiser, Q4_1 within 3 ulp of the largest end of its block."""
    graph = onnx.load(folder / "model.onnx").graph
    weights = {name.split("/MatMul")[0].removeprefix("/"): w for name, w in dequantised(graph).items()}
    places = {"attn_q": "attn/q_proj", "attn_k": "attn/k_proj", "attn_v": "attn/v_proj", "attn_output": "attn/o_proj",
              "ffn_gate": "mlp/gate_proj", "ffn_up": "mlp/up_proj", "ffn_down": "mlp/down_proj"}
    seen = 0
    for tensor in gguf.GGUFReader(source).tensors:
        if len(tensor.shape) < 2:
            continue
        wanted = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(tensor.shape[::-1])
        bound = np.zeros(1, np.float32)
        if tensor.tensor_type == Q.Q4_1:
            heads_of_blocks = tensor.data.reshape(-1, 20)[:, :4].copy().view(np.float16).astype(np.float32)
            d, m = heads_of_blocks[:, :1], heads_of_blocks[:, 1:]
            largest = np.maximum(np.abs(m), np.abs(m + 15 * d)).astype(np.float32)
            bound = np.repeat(3 * np.spacing(largest), 32, 1).reshape(wanted.shape)
        part = tensor.name.split(".")
        if part[0] == "blk":
            found = [weights[f"model/layers.{part[1]}/{places[part[2]]}"]]
            if part[2] in ("attn_q", "attn_k"):
                count = heads if part[2] == "attn_q" else kv_heads
                wanted = halves(wanted, count)
                bound = halves(bound, count) if bound.size > 1 else bound
        elif part[0] == "output":
            found = [weights["lm_head"]]
        else:
            found = [w for name, w in weights.items() if name.startswith("model/embed_tokens")]
            if not any(t.name == "output.weight" for t in gguf.GGUFReader(source).tensors):
                found.append(weights["lm_head"])
        for weight in found:
            assert weight.shape == wanted.shape, tensor.name
            assert np.all(np.abs(weight.astype(np.float64) - wanted) <= bound), tensor.name
            seen += 1
    return seen


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", TYPES)
def test_weights_equal_the_dequantiser(importer, tmp_path, name, tied):
    source = tmp_path / "x.gguf"
    make_gguf(source, tied, layers=2, types={"": TYPES[name]})
    folder = imported(importer, source, tmp_path / "model")
    assert check_weights(source, folder, heads=4, kv_heads=2) == 16
    ids, _ = Decoder(folder).greedy(list(b"hello"), 4)
    assert all(0 <= i < 263 for i in ids)


def test_mixed_types_and_odd_vocabulary(importer, tmp_path):
    source = tmp_path / "x.gguf"
    make_gguf(source, False, V=271, H=160, F=96, heads=2, kv=1, layers=2,
              types={"": Q.Q4_0, "ffn_down": Q.Q8_0, "attn_v": Q.F16, "output": Q.Q4_1, "token_embd": Q.Q8_0})
    folder = imported(importer, source, tmp_path / "model")
    check_weights(source, folder, heads=2, kv_heads=1)
    Decoder(folder).greedy([1, 2, 3], 3)


@pytest.mark.parametrize("tied", [True, False])
def test_r19_writes_what_llama_cpp_writes(importer, tmp_path, tied):
    source = tmp_path / "x.gguf"
    make_gguf(source, tied)
    folder = imported(importer, source, tmp_path / "model")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode("hello").ids
    assert prompt == list(b"hello")
    assert Decoder(folder).greedy(prompt, 20)[0] == HELLO


def test_a_tied_table_is_stored_once(importer, tmp_path):
    """R19: the tied model holds 263 * 64 * 4 bytes less, on disk too."""
    size = {}
    for tied in (True, False):
        source = tmp_path / f"{tied}.gguf"
        make_gguf(source, tied)
        folder = imported(importer, source, tmp_path / f"model-{tied}")
        size[tied] = sum(numpy_helper.to_array(i).nbytes for i in onnx.load(folder / "model.onnx").graph.initializer)
        size[tied, "disk"] = (folder / "model.onnx.data").stat().st_size
    assert size[False] - size[True] == 67328
    assert size[False, "disk"] - size[True, "disk"] >= 67328


def test_rope_tables_are_those_of_transformers(importer, tmp_path):
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    source = tmp_path / "x.gguf"

    def extra(w):
        w.add_rope_freq_base(500000.0)
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(2.0)

    make_gguf(source, True, extra=extra, tensors=lambda w: w.add_tensor("rope_freqs.weight", factors))
    folder = imported(importer, source, tmp_path / "model")
    tables = {i.name: numpy_helper.to_array(i) for i in onnx.load(folder / "model.onnx").graph.initializer}
    inverse = 1.0 / np.float32(500000.0) ** (np.arange(0, 16, 2, dtype=np.float32) / np.float32(16))
    angle = np.outer(np.arange(512, dtype=np.float32), (inverse / factors / np.float32(2)).astype(np.float32))
    for name, function in (("cos_cache", np.cos), ("sin_cache", np.sin)):
        assert tables[name].dtype == np.float32 and tables[name].shape == (512, 8)
        # The frequency may differ in its last bit, which the position multiplies.
        np.testing.assert_allclose(tables[name], function(angle.astype(np.float64)), rtol=0, atol=512 * 2**-23)


def test_the_folder_says_what_the_file_said(importer, tmp_path):
    source = tmp_path / "x.gguf"

    def extra(w):
        w.add_bos_token_id(257)
        w.add_eot_token_id(260)
        w.add_pad_token_id(261)
        w.add_chat_template("{{ messages }} ünï")

    make_gguf(source, True, extra=extra)
    folder = imported(importer, source, tmp_path / "model")
    config = json.loads((folder / "genai_config.json").read_text())
    model = config["model"]
    assert (model["bos_token_id"], model["eos_token_id"], model["pad_token_id"]) == (257, [256, 260], 261)
    assert (model["type"], model["vocab_size"], model["context_length"]) == ("llama", 263, 512)
    assert model["decoder"]["head_size"] == 16 and model["decoder"]["num_key_value_heads"] == 2
    assert config["search"]["max_length"] == 512 and config["search"]["past_present_share_buffer"] is True
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [256, 260]
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }} ünï"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages }} ünï"
    assert (settings["bos_token"], settings["eos_token"], settings["pad_token"]) == ("<|user|>", "<|end|>", "<|pad|>")
    record = json.loads((folder / "granule.json").read_text())
    assert record["source_tensor_bytes"] == sum(t.n_bytes for t in gguf.GGUFReader(source).tensors)
    model_file = onnx.load(folder / "model.onnx", load_external_data=False)
    assert model_file.ir_version == 10 and {o.domain: o.version for o in model_file.opset_import} == {"": 21, "com.microsoft": 1}
    ports = {v.name: [d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim]
             for v in list(model_file.graph.input) + list(model_file.graph.output)}
    assert ports["past_key_values.0.key"] == ["batch_size", 2, "past_sequence_length", 16]
    assert ports["logits"] == ["batch_size", "sequence_length", 263]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("a<|end|>\0\0").ids == [97, 256, 262]


@pytest.mark.parametrize("pre", ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "deepseek-coder", "starcoder"])
def test_every_split_loads_in_hugging_face(importer, tmp_path, pre):
    source = tmp_path / "x.gguf"
    make_gguf(source, True, extra=lambda w: (w.kv_data[0].pop("tokenizer.ggml.pre"), w.add_tokenizer_pre(pre)))
    folder = imported(importer, source, tmp_path / "model")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "It's 12345 naïve   words,\n\n中文 x++"
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    numbers = [p for p in pieces if any(c.isdigit() for c in p)]
    expected = {"gpt-2": 1, "default": 2, "llama-bpe": 2}.get(pre, 5)
    assert len(numbers) == expected, pieces
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_bos_is_added_where_the_file_says_so(importer, tmp_path):
    source = tmp_path / "x.gguf"

    def extra(w):
        w.add_bos_token_id(257)
        w.kv_data[0].pop("tokenizer.ggml.add_bos_token")
        w.add_add_bos_token(True)
        w.add_add_eos_token(True)

    make_gguf(source, True, extra=extra)
    folder = imported(importer, source, tmp_path / "model")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("a").ids == [257, 97, 256]
    assert tokenizer.encode("a", add_special_tokens=False).ids == [97]
    assert tokenizer.encode("a", "b").ids == [257, 97, 256, 257, 98, 256]


def test_lies_are_refused(importer, tmp_path):
    """R37: each in under a second, in 64 MiB of address space, with the field and its value, and no folder left."""
    sanitized = b"__asan_init" in importer.read_bytes()  # reserves terabytes

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (64 << 20, 64 << 20))

    subprocess.run([sys.executable, ROOT / "tests/lies.py"], cwd=tmp_path, check=True)
    words = {
        "a_magic": "GGUX", "b_short": "metadata count", "c_many_tensors": "92233720368547758",
        "d_minus_one_tensors": "-1", "e_long_string": "18446744073709551608", "f_big_array": "1152921504606846976",
        "g_product_negative": "token_embd.weight", "h_product_zero": "4294967296", "i_negative_dim": "-1",
        "j_five_dims": "has 5 dimensions", "k_bad_type": "9999", "l_offset_past_end": "1099511627776",
        "m_nested_array": "nests arrays", "n_alignment_zero": "general.alignment\" is 0",
    }
    files = sorted((tmp_path / "lies").glob("*.gguf"))
    assert [f.stem for f in files] == sorted(words)
    for file in files:
        start = time.monotonic()
        result = run(importer, file, tmp_path / "out", preexec_fn=None if sanitized else limit)
        assert time.monotonic() - start < 1, file.stem
        assert result.returncode == 3, (file.stem, result.returncode, result.stderr)
        assert words[file.stem] in result.stderr, result.stderr
        assert str(file) in result.stderr
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("tied", [True, False])
def test_changed_bytes_load_or_are_refused(importer, tmp_path, tied):
    """R37: single-byte changes of the good files end in exit code 0 or 3 (or 4: a size that the disk refuses), never in a signal."""
    source = tmp_path / "x.gguf"
    make_gguf(source, tied)
    good = source.read_bytes()
    head = good.index(b"blk.0.ffn_down.weight") + 60
    random = np.random.default_rng(7)
    for _ in range(60):
        at = int(random.integers(0, head))
        changed = bytearray(good)
        changed[at] = int(random.integers(0, 256))
        source.write_bytes(changed)
        result = run(importer, source, tmp_path / "out", "--overwrite", timeout=60)
        assert result.returncode in (0, 3), (at, changed[at], result.returncode, result.stderr)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_refusals_name_what_is_wrong(importer, tmp_path):
    source = tmp_path / "x.gguf"

    def refused(*words, **options):
        make_gguf(source, options.pop("tied", True), **options)
        result = run(importer, source, tmp_path / "out")
        assert result.returncode == 3, (result.returncode, result.stderr)
        for word in words:
            assert word in result.stderr, result.stderr
        assert sorted(p.name for p in tmp_path.iterdir()) == ["x.gguf"]

    def swap(key, add):
        def extra(w):
            w.kv_data[0].pop(key)
            add(w)
        return extra

    refused("\"spm-like\"", "gpt2", extra=swap("tokenizer.ggml.model", lambda w: w.add_tokenizer_model("spm-like")))
    refused("\"martian\"", "smollm", extra=swap("tokenizer.ggml.pre", lambda w: w.add_tokenizer_pre("martian")))
    refused("\"phi9\"", "llama", extra=swap("general.architecture", lambda w: w.add_string("general.architecture", "phi9")))
    refused("Q5_0 (1 tensors)", types={"ffn_down": Q.Q5_0})
    refused("Q5_0 (2 tensors)", "Q5_1 (1 tensors)", types={"attn_q": Q.Q5_0, "attn_k": Q.Q5_0, "ffn_up": Q.Q5_1})
    refused("yarn", extra=lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN))
    refused("llama.expert_count", extra=lambda w: w.add_expert_count(8))
    refused("blk.0.attn_q.bias", tensors=lambda w: w.add_tensor("blk.0.attn_q.bias", np.zeros(64, np.float32)))
    refused("llama.context_length", "is missing", extra=lambda w: w.kv_data[0].pop("llama.context_length"))
    refused("blk.0.attn_q.weight", "[64, 64]", "[64, 128]",
            extra=lambda w: (w.add_key_length(32), w.add_value_length(32), w.kv_data[0].pop("llama.rope.dimension_count")))
    refused("eos_token_id", "9999", extra=swap("tokenizer.ggml.eos_token_id", lambda w: w.add_eos_token_id(9999)))


def test_real_model(real_folder, real_gguf):
    check_weights(real_gguf, real_folder, heads=9, kv_heads=3)
    golden = json.loads((ROOT / "tests/data/smollm2-greedy.json").read_text())["items"]
    tokenizer = tokenizers.Tokenizer.from_file(str(real_folder / "tokenizer.json"))
    split = json.loads((real_folder / "tokenizer.json").read_text())["pre_tokenizer"]
    assert split == {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]}
    for item in golden:
        assert tokenizer.encode(item["prompt"]).ids == item["prompt_ids"]
    decoder = Decoder(real_folder)
    count = 8  # of 48: ONNX Runtime is slow with float zero points; genai_nightly.py goes all the way
    for item in golden:
        ids, _ = decoder.greedy(item["prompt_ids"], count)
        sure = next((i for i, margin in enumerate(item["margins"]) if margin < 0.02), len(item["margins"]))
        assert ids[:sure] == item["generated_ids"][:min(count, sure)]
