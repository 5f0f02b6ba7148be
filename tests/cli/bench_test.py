"""granule bench growth, floor and vmm: the seeds' numbers on the KV geometry of qwen2.5-0.5b, with weights that load at once."""

import json
from pathlib import Path

import pytest

# 24 layers, 2 KV heads, head size 64, fp16 KV: what the counters depend on.
GEOMETRY = "synth:layers=24,hidden=64,heads=2,kv_heads=2,head_dim=64,kv=fp16"
GRANULE = 2 << 20


@pytest.fixture(scope="module")
def rows(cli):
    done = cli("bench", "growth", GEOMETRY, "--device", "cpu", "--json", timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def pick(rows, **want):
    found = [row for row in rows if all(row[key] == value for key, value in want.items())]
    assert len(found) == 1, (want, len(found))
    assert found[0]["status"] == "ok", found[0]
    return found[0]


@pytest.mark.parametrize(
    "layout,growth,moved,invalidations,keeps,committed",
    [
        ("head-major", "restride", 688_576, 4, 0, 100_663_296),
        ("seq-major", "commit", 0, 1, 3, 100_663_296),
        ("head-major", "realloc", 688_576, 4, 0, 786_432),
        ("seq-major", "realloc", 688_576, 4, 0, 786_432),
        ("token-major", "commit", 0, 1, 3, 2_097_152),
    ],
)
def test_the_seeds_numbers(rows, layout, growth, moved, invalidations, keeps, committed):
    row = pick(rows, backend="native", layout=layout, growth=growth, arm="forced", rounding="bucket")
    assert row["growth_events"] == 3 and row["kv_bytes_moved"] == moved
    assert row["invalidations"] == invalidations and row["growth_keeps"] == keeps
    assert row["captures"] == row["replays"] == 0 and not row["graph_existed"]
    assert row["committed_bytes"] == committed and row["committed_length"] == 64
    control = pick(rows, backend="native", layout=layout, growth=growth, arm="control", rounding="bucket")
    assert control["growth_events"] == control["kv_bytes_moved"] == 0 and control["invalidations"] == 1
    assert control["committed_bytes"] == committed


def test_one_set_of_ids_and_one_hash_per_backend(rows):
    native = [row for row in rows if row["backend"] == "native"]
    assert len({row["logits_hash"] for row in native}) == 1
    assert len({tuple(row["ids"]) for row in rows}) == 1 and len(rows[0]["ids"]) == 48
    assert len(set(rows[0]["ids"])) >= 24


def test_rows_of_a_gpu_that_is_not_there_say_so_and_have_no_numbers(cli):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    done = cli("bench", "growth", GEOMETRY, "--device", "cuda", "--json", timeout=300)
    assert done.returncode == 4 and b"CUDA" in done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 44 and {row["capture"] for row in rows} == {"on", "off"}
    for row in rows:
        assert row["device"] == "cuda:0" and "CUDA" in row["status"] and "captures" not in row


def test_the_floor_follows_the_layout_and_the_file_agrees_with_the_ledger(cli):
    # One layer, 8 KV heads, head size 128, fp16, hard maximum 32,768: at 1 token 16 granules, 2, and 1.
    model = "synth:layers=1,hidden=64,heads=8,kv_heads=8,head_dim=128,kv=fp16"
    done = cli("bench", "floor", model, "--json", timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    granules = {}
    for row in json.loads(done.stdout):
        assert row["device_bytes"] == row["unique_physical_bytes"] and row["kv_bytes_moved"] == 0
        assert row["base_unchanged"] is True
        granules[row["layout"], row["length"]] = row["committed_bytes"] // GRANULE
    assert [granules[layout, 1] for layout in ("head-major", "seq-major", "token-major")] == [16, 2, 1]
    assert [granules[layout, 8192] for layout in ("head-major", "seq-major", "token-major")] == [16, 16, 16]
    assert granules["token-major", 32000] == 63


def test_vmm_on_the_host(cli):
    done = cli("bench", "vmm", "--device", "cpu", "--json", timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    text = json.dumps(report)
    for call in ("create", "map", "unmap", "release"):
        assert f'"{call}"' in text


def test_what_bench_does_not_know(cli):
    cli.fails(2, "bench", words=["growth, floor and vmm"])
    cli.fails(2, "bench", "speed", words=["speed"])
    cli.fails(2, "bench", "growth", "--row", "nonsense", words=["--row"])
    cli.fails(2, "bench", "growth", "-c", 100, words=["--ctx-size", "bench growth"])
    cli.fails(2, "bench", "floor", "--markdown", words=["--markdown", "bench floor"])
    cli.fails(2, "bench", "vmm", "synth:tiny", words=["takes no model"])
