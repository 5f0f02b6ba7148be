"""granule synth and granule plan as a user meets them."""

import json
import os
import subprocess

import pytest


@pytest.fixture
def call(granule):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRANULE_") or k == "GRANULE_BIN"}

    def run(*words, code=0):
        done = subprocess.run([granule, *map(str, words)], check=False, capture_output=True, env=env, timeout=300)
        assert done.returncode == code, done.stderr.decode()
        return done

    return run


def report(call, model, *words):
    out = call("run", model, "--prompt-ids", "785,674,315,425,374", "-n", "48", "--temp", "0", "--json", *words)
    return json.loads(out.stdout)


def test_a_folder_and_memory_give_the_same_run(call, tmp_path):
    done = call("synth", "tiny", tmp_path / "m", "--seed", "3")
    assert done.stdout == b"" and b"written" in done.stderr
    folder = report(call, tmp_path / "m")
    memory = report(call, "synth:tiny,seed=3")
    for key in ("ids", "logits_hash", "text"):
        assert folder[key] == memory[key]
    assert len(set(folder["ids"])) == 48 and folder["finish_reason"] == "length"
    assert folder["text"].startswith(" t") or any(i < 256 for i in folder["ids"])
    assert report(call, "synth:tiny")["ids"] != folder["ids"]


def test_text_is_a_prompt_in_memory_too(call):
    out = json.loads(call("run", "synth:tiny", "-p", "Hi", "-n", "1", "--json").stdout)
    assert out["prompt_ids"] == [72, 105]


def test_synth_refuses_in_words(call, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a").write_text("mine")
    for words, code, expected in [
        (["tiny"], 2, "folder to make"),
        (["huge", tmp_path / "m"], 3, "qwen2.5-14b"),
        (["tiny:int3", tmp_path / "m"], 3, "int4, int8, fp16 and fp32"),
        (["tiny", tmp_path / "m", "--seed", "-1"], 2, "--seed"),
        (["tiny", tmp_path / "notes"], 2, "exists already"),
        (["tiny", tmp_path / "notes", "--force"], 2, "not a model folder"),
    ]:
        assert expected in call("synth", *words, code=code).stderr.decode(), words
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes"]
    call("synth", "tiny", tmp_path / "m")
    call("synth", "tiny", tmp_path / "m", code=2)
    call("synth", "tiny:int8", tmp_path / "m", "--force")


def test_the_bill_of_a_model_that_is_not_there(call):
    out = call("plan", "synth:qwen2.5-14b", "--ram-limit", "16GiB", "--sequences", "2", "--json")
    bill = json.loads(out.stdout)
    assert bill["bytes_per_token"] == 196608 and bill["hard_max"] == 131072
    assert bill["allocated_at_load"] == {"bytes": 24 << 30, "sessions": 0}
    assert bill["budget_source"] == "--ram-limit" and bill["budget_bytes"] == 16 << 30
    assert bill["kv_budget_bytes"] == (16 << 30) - bill["weight_bytes"]
    layouts = {layout["layout"]: layout for layout in bill["layouts"]}
    assert list(layouts) == ["head-major", "seq-major", "stripe:4", "token-major"]
    assert layouts["head-major"]["floor_bytes"] == 48 * 2 * 8 * 65536
    assert layouts["seq-major"]["floor_bytes"] == 48 * 2 * 65536
    assert layouts["token-major"]["floor_bytes"] == 196608
    for layout in layouts.values():
        assert layout["bytes_at_tokens"] == 4096 * 196608
        assert layout["sessions"] == bill["kv_budget_bytes"] // (4096 * 196608)
        used = layout["capacity_tokens"] * 196608
        assert used <= bill["kv_budget_bytes"] // 2 < used + 2 * layout["floor_bytes"]


def test_plan_follows_its_levers(call):
    words = ["plan", "synth:tiny", "-c", "1000", "--tokens", "10", "--kv-granule", "4KiB"]
    bill = json.loads(call(*words, "--json").stdout)
    assert bill["limit_tokens"] == 1000 and bill["tokens"] == 10 and bill["granule_bytes"] == 4096
    assert bill["hard_max_source"] == "--ctx-size" and bill["budget_bytes"] > 0
    text = call(*words).stdout.decode()
    for word in ("head-major", "seq-major", "token-major *", "allocated at load", "sessions of 10", "1000 tokens"):
        assert word in text, word
    assert max(len(line) for line in text.splitlines()) <= 110
    assert b"alone take" in call("plan", "synth:tiny", "--ram-limit", "1KiB").stderr
    for bad in (["--tokens", "0"], ["--sequences", "x"], ["--ram-limit", "lots"], ["-c", "8", "--tokens", "9"]):
        assert call("plan", "synth:tiny", *bad, code=2).stdout == b""
    call("plan", "synth:nothing", code=3)
