"""reference_logits.py OUT MODEL...: logits of ONNX Runtime for 64 positions of each model, as the GPU tests take them.

MODEL is a folder, or synth:NAME (written with build/release/granule first). OUT gets NAME.json {"model", "ids"} and
NAME.bin, little-endian fp32 [64, vocab]. Run with build/venv/bin/python; GRANULE_REFERENCE_LOGITS=OUT names the result.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import onnxruntime

POSITIONS = 64


def token_ids(folder, vocab):
    golden = pathlib.Path(__file__).parent.parent / "tests/data/smollm2-greedy.json"
    if (folder / "granule.json").exists() and "synth" not in (folder / "granule.json").read_text():
        item = json.loads(golden.read_text())["items"][4]
        return (item["prompt_ids"] + item["generated_ids"])[:POSITIONS]
    return [int(i) for i in numpy.random.default_rng(7).integers(300, vocab - 300, POSITIONS)]


def logits_of(folder, ids):
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    feeds = {}
    for port in session.get_inputs():
        shape = [d if isinstance(d, int) else 1 for d in port.shape]
        if port.name == "input_ids":
            feeds[port.name] = numpy.array([ids], numpy.int64)
        elif port.name == "attention_mask":
            feeds[port.name] = numpy.ones((1, len(ids)), numpy.int64)
        elif port.name == "position_ids":
            feeds[port.name] = numpy.arange(len(ids), dtype=numpy.int64)[None]
        else:
            shape[2] = 0
            dtype = numpy.float16 if "float16" in port.type else numpy.float32
            feeds[port.name] = numpy.zeros(shape, dtype)
    return session.run(["logits"], feeds)[0][0].astype(numpy.float32)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for model in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(model)
            if model.startswith("synth:"):
                folder = pathlib.Path(scratch) / "model"
                subprocess.run(["build/release/granule", "synth", model[len("synth:") :], str(folder)], check=True)
            vocab = json.loads((folder / "genai_config.json").read_text())["model"]["vocab_size"]
            ids = token_ids(folder, vocab)
            logits = logits_of(folder, ids)
            assert logits.shape == (len(ids), vocab) and numpy.isfinite(logits).all(), logits.shape
            name = model.replace("synth:", "").replace(":", "-").rstrip("/").split("/")[-1]
            (out / f"{name}.bin").write_bytes(logits.tobytes())
            (out / f"{name}.json").write_text(json.dumps({"model": model, "ids": ids}) + "\n")
            print(f"{name}: {logits.shape[0]} positions of {logits.shape[1]}, ONNX Runtime {onnxruntime.__version__}")


if __name__ == "__main__":
    main()
