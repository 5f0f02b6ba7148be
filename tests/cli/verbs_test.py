"""The other verbs: inspect, tokenize, doctor, version, import."""

import json
import time

import pytest
import tinymodel

from command_line import CAT, Cli


def test_inspect(cli, recall):
    report = json.loads(cli("inspect", recall, "--json").stdout)
    assert report["kv"]["bytes_per_token"] == 128 and report["vocab_size"] == 320
    assert report["hard_max"] == 4096 and report["eos_ids"] == [256] and report["runs"] is True
    assert report["operators"]["com.microsoft::GroupQueryAttention"] == 1 and report["operators"]["MatMul"] == 5
    assert report["roles"]["logits"] == "logits" and report["kv"]["layers"][0]["kv_heads"] == 2
    assert report["chat_template"] is True and report["unsupported"] == []
    text = cli("inspect", recall).stdout.decode()
    for word in ("ORT-GenAI folder", "128 B per token", "4096 tokens", "GroupQueryAttention", "float32"):
        assert word in text, word
    assert "plan" in cli("inspect", recall, "--plan").stdout.decode()


def test_tokenize(cli, recall, tmp_path):
    assert json.loads(cli("tokenize", recall, "-p", "hi<|end|>", "--json").stdout) == [104, 105, 256]
    assert json.loads(
        cli("tokenize", recall / "tokenizer.json", "-p", "hi<|end|>", "--json", "--no-parse-special").stdout
    ) == list(b"hi<|end|>")
    listing = cli("tokenize", recall, "-p", 'a"\n\u00e9<|end|>').stdout.decode().splitlines()
    assert [line.split(None, 1) for line in listing] == [
        ["97", '"a"'],
        ["34", '"\\""'],
        ["10", '"\\n"'],
        ["195", '"\\xc3"'],
        ["169", '"\\xa9"'],
        ["256", '"<|end|>"  special'],
    ]
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"one\n\ntwo\r\nend")
    out = cli("tokenize", recall, "--lines", lines).stdout.decode().splitlines()
    assert [json.loads(line) for line in out] == [list(b"one"), [], list(b"two\r"), list(b"end")]
    lines.write_bytes(b"fine\nba\xffd\n")
    done = cli("tokenize", recall, "--lines", lines)
    assert done.returncode == 3 and "line 2" in done.stderr.decode() and "UTF-8" in done.stderr.decode()
    cli.fails(2, "tokenize", recall, words=["--lines"])
    cli.fails(2, "tokenize", recall, "-p", "x", "--lines", lines)
    cli.fails(3, "tokenize", recall / "config.json", "-p", "x", words=["config.json"])


def test_added_special_tokens_are_those_of_the_tokenizer(cli, tmp_path):
    tinymodel.make(str(tmp_path), gqa={}, genai={})
    path = tmp_path / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|pad|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|pad|>": {"id": "<|pad|>", "ids": [261], "tokens": ["<|pad|>"]}},
    }
    path.write_text(json.dumps(tokenizer))
    out = cli.run_json(tmp_path, "-p", "Hello!", "-n", 12)
    assert out["prompt_ids"] == [261, *b"Hello!"] and out["text"] == "tytytvxxxxaw"
    assert cli.run_json(tmp_path, "-p", "", "-n", 1)["prompt_ids"] == [261]  # an empty prompt has a token here
    assert json.loads(cli("tokenize", tmp_path, "-p", "Hello!", "--no-bos", "--json").stdout) == list(b"Hello!")


def test_doctor_measures_once_and_run_shows_the_share(granule, recall, tmp_path):
    cli = Cli(granule, tmp_path)
    quiet = cli("doctor", "--quiet", "--if-missing", "-t", 1)
    assert quiet.returncode == 0 and quiet.stdout == b"", quiet.stderr
    stored = tmp_path / "granule/ceilings.json"
    first = stored.read_bytes()
    record = json.loads(first)["records"][0]
    assert record["threads"] == 1 and record["read_bytes_per_second"] > 1e8 and record["fma_flops_per_second"] > 1e8
    start = time.time()
    report = json.loads(cli("doctor", "--if-missing", "-t", 1, "--json").stdout)
    assert time.time() - start < 5 and stored.read_bytes() == first
    assert report["ceilings"][0]["read_bytes_per_second"] == record["read_bytes_per_second"]
    assert (
        report["vmm"]["works"] is True
        and report["vmm"]["granule_bytes"] == 65536
        and report["vmm"]["reservation_bytes"] > 1 << 30
    )
    assert report["cuda"] is None or report["cuda"]["devices"]
    assert report["onnx_runtime"] is None or report["onnx_runtime"]["version"].startswith("1.")
    out = cli.run_json(recall, "-p", CAT, "-n", 24, "-t", 1)["timings"]
    assert out["ceiling_share"] == pytest.approx(out["gb_per_second"] * 1e9 / record["read_bytes_per_second"])
    text = cli("doctor", "--if-missing", "-t", 1).stdout.decode()
    for word in ("CPU", "threads", "cgroup", "virtual memory", "GB/s", "CUDA"):
        assert word in text


def test_doctor_with_a_cache_that_cannot_be_written(granule, tmp_path):
    (tmp_path / "file").write_text("x")
    done = Cli(granule, tmp_path / "file")("doctor", "-t", 1)
    assert (
        done.returncode == 0 and b"warning" in done.stderr and b"not stored" in done.stderr and b"GB/s" in done.stdout
    )


def test_version_names_the_libraries(cli):
    for words in (["--version"], ["version"]):
        text = cli(*words).stdout.decode()
        for name in (
            "granule ",
            "fmt",
            "CLI11",
            "nlohmann-json",
            "protozero",
            "PCRE2",
            "utf8proc",
            "xxHash",
            "compiler",
        ):
            assert name in text


def test_import_refuses_what_is_no_gguf(cli, tmp_path):
    source = tmp_path / "not.gguf"
    source.write_bytes(b"nonsense")
    cli.fails(3, "import", source, tmp_path / "out", words=["not.gguf"])
    cli.fails(3, "import", tmp_path / "missing.gguf", tmp_path / "out", words=["missing.gguf"])
    assert not (tmp_path / "out").exists() and [p.name for p in tmp_path.iterdir()] == ["not.gguf"]


def test_numbers_do_not_depend_on_the_locale(cli, recall):
    for name in ("de_DE.UTF-8", "C", "tr_TR.UTF-8"):
        out = cli.run_json(recall, "-p", CAT, "-n", 2, "--temp", "0.5", "-s", "1", env={"LC_ALL": name})
        assert out["sampling"]["temperature"]["value"] == 0.5


def test_the_real_model_continues_paris(cli, real_model):
    done = cli("run", real_model, "-p", "The capital of France is", "-n", 3, "--temp", 0)
    assert done.returncode == 0 and "Paris" in done.stdout.decode()
