"""A model of 131,072 positions at -c 131072 and at -c 512: the same memory, the same time to the first token."""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from alternating import Alternating  # noqa: E402

MODEL = "synth:llama-3.2-1b"
ROUNDS = 20


def run(granule, context):
    words = [granule, "run", MODEL, "--prompt-ids", "785,6722,315,9625,374", "-n", "16", "--temp", "0", "--json", "-c", str(context)]
    report = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return {"rss": report["memory"]["rss_bytes"], "peak": report["memory"]["peak_rss_bytes"], "ttft": report["timings"]["ttft_ms"],
            "ids": report["ids"], "reserved": report["kv"]["reserved_bytes"], "kv": report["kv"]["unique_physical_bytes"]}


def test_the_length_of_the_context_costs_nothing(granule, capsys):
    runs = Alternating(lambda: run(granule, 512), lambda: run(granule, 131072), ROUNDS)
    lines = [runs.describe("rss", 1 << 20, "MiB"), runs.describe("peak", 1 << 20, "MiB"), runs.describe("ttft", 1, "ms"),
             runs.describe("kv", 1 << 20, "MiB"), runs.describe("reserved", 1 << 20, "MiB")]
    with capsys.disabled():
        print(f"\n{MODEL}, -c 512 and -c 131072", *lines, sep="\n  ")
    assert len({tuple(r["ids"]) for three in runs.rounds for r in three}) == 1
    assert max(abs(d) for d in runs.differences("rss")) < 4 << 20
    assert abs(runs.median_difference("peak")) < 4 << 20
    assert not runs.resolved("ttft")
