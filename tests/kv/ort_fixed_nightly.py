"""The default model through ONNX Runtime, KV at its full strides in virtual memory: nothing moves over 2,048 tokens, memory is what the
tokens touch, and the length of the context costs nothing. Beside it what onnxruntime-genai takes for the same folder.
"""
import json
import os
import pathlib
import subprocess
import sys

import onnxruntime
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from alternating import Alternating  # noqa: E402

TOKENS = 2048
PROMPT = 1536  # the rest is decoded, one token at a time
CHILD = """
import json, pathlib, sys
import onnxruntime_genai as og
def status(key):
    line = next(x for x in pathlib.Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) * 1024
folder, length, new, *prompt = sys.argv[1:]
empty = status("VmRSS")
model = og.Model(folder)
loaded = status("VmRSS")
params = og.GeneratorParams(model)
params.set_search_options(do_sample=False, max_length=int(length))
generator = og.Generator(model, params)
generator.append_tokens([int(i) for i in prompt])
for _ in range(int(new)):
    generator.generate_next_token()
ids = [int(i) for i in generator.get_sequence(0)][len(prompt):]
print(json.dumps({"empty": empty, "loaded": loaded, "rss": status("VmRSS"), "peak": status("VmHWM"), "ids": ids}))
"""


@pytest.fixture(scope="module")
def geometry(real_model):
    decoder = json.loads((real_model / "genai_config.json").read_text())["model"]["decoder"]
    return {"bindings": 2 * decoder["num_hidden_layers"], "heads": decoder["num_key_value_heads"], "row": 4 * decoder["head_size"]}


@pytest.fixture(scope="module")
def prompt(real_model):
    """Ids of a text that the model writes on with, as long as it is."""
    golden = json.loads((pathlib.Path(__file__).resolve().parents[1] / "data/smollm2-long.json").read_text())["items"]
    return max((item["prompt_ids"] for item in golden), key=len)[:PROMPT]


def run(granule, folder, prompt, new, *levers):
    words = [granule, "run", folder, "--prompt-ids", ",".join(map(str, prompt)), "-n", str(new), "--temp", "0", "--ignore-eos",
             "--json", *levers]
    library = pathlib.Path(onnxruntime.__file__).parent / "capi"
    done = subprocess.run(words, capture_output=True, check=True, env={**os.environ, "GRANULE_ORT_LIB": str(library)})
    return json.loads(done.stdout)


def touched(geometry, tokens, granule, capacity):
    """Bytes in granules that the first tokens of each head touch: spans lie behind each other, each from a granule on."""
    span = -(-geometry["heads"] * capacity * geometry["row"] // granule) * granule
    windows = set()
    for binding in range(geometry["bindings"]):
        for head in range(geometry["heads"]):
            begin = binding * span + head * capacity * geometry["row"]
            windows.update(range(begin // granule, (begin + tokens * geometry["row"] - 1) // granule + 1))
    return len(windows) * granule


@pytest.mark.parametrize("granule_bytes", [4096, 65536])
def test_2048_tokens_move_nothing(granule, real_model, geometry, prompt, capsys, granule_bytes):
    new = TOKENS - len(prompt) + 1  # the last id is not written to the KV any more
    report = run(granule, real_model, prompt, new, "--backend", "ort", "--kv-granule", str(granule_bytes))
    kv = report["kv"]
    assert kv["live_length"] == TOKENS
    assert (kv["growth"], kv["layout"], kv["capacity"]) == ("commit", "head-major", 8192)
    assert kv["growth_events"] > 0
    assert kv["kv_bytes_moved"] == 0 and kv["kv_bytes_copied"] == 0
    stripes = touched(geometry, TOKENS, granule_bytes, kv["capacity"])
    assert kv["bytes_per_token"] == geometry["bindings"] * geometry["heads"] * geometry["row"]
    native = run(granule, real_model, prompt, new)
    with capsys.disabled():
        print(f"\n--backend ort, {len(prompt)} + {new} tokens, granule {granule_bytes}: {kv['growth_events']} growths, moved 0; "
              f"physical {kv['unique_physical_bytes']}, touched stripes {stripes}, live KV {TOKENS * kv['bytes_per_token']}, reserved "
              f"{kv['reserved_bytes']} bytes; decode {report['timings']['predicted_per_second']:.2f} tokens/s, "
              f"ids of the native backend: {report['ids'] == native['ids']}")
    assert abs(kv["unique_physical_bytes"] - stripes) <= 0.05 * stripes


def test_the_context_costs_nothing_and_what_genai_takes(granule, real_model, prompt, capsys):
    begin, new = prompt[:16], 16

    def of(length):
        # One thread: with more, what ONNX Runtime's own threads touch differs by 10 MiB and more from run to run.
        report = run(granule, real_model, begin, new, "--backend", "ort", "-c", str(length), "-t", "1")
        return {"rss": report["memory"]["rss_bytes"], "peak": report["memory"]["peak_rss_bytes"], "ids": report["ids"]}

    runs = Alternating(lambda: of(1024), lambda: of(8192), 10)
    genai = {}
    for length in (1024, 8192):
        done = subprocess.run([sys.executable, "-c", CHILD, str(real_model), str(length), str(new), *map(str, begin)], capture_output=True,
                              check=True, text=True)
        genai[length] = json.loads(done.stdout)
    mib = 1 << 20
    with capsys.disabled():
        print(f"\n{len(begin)} + {new} tokens, -c 1024 and 8192, --backend ort -t 1")
        for quantity in ("rss", "peak"):
            print("  " + runs.describe(quantity, mib, "MiB"))
        for length, g in genai.items():
            print(f"  onnxruntime-genai, max_length {length}: rss {g['rss'] / mib:.1f} MiB, peak {g['peak'] / mib:.1f}; "
                  f"{g['loaded'] / mib:.1f} with the model loaded, {g['empty'] / mib:.1f} before")
    for quantity in ("rss", "peak"):
        assert abs(runs.median_difference(quantity)) <= 4 * mib
    expected = {tuple(g["ids"]) for g in genai.values()}
    assert {tuple(r["ids"]) for three in runs.rounds for r in three} == expected
