"""Makes smollm2-long.json: what ONNX Runtime writes after a short prompt over 320 tokens (every growth of the default settings) and after
3,700 tokens of text. Run from the repository with build/venv's Python: make_long_golden.py MODEL_FOLDER"""
import json
import pathlib
import sys

import tokenizers

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "package"))
from ort_greedy import Decoder  # noqa: E402

NAMES = ["Ada", "Ben", "Chen", "Dora", "Eli", "Fay", "Gus", "Hana", "Ivan", "Jo"]
PLACES = ["the harbour", "a small library", "the old mill", "Lisbon", "the market", "a quiet valley", "the station"]
THINGS = ["a letter", "three apples", "a broken clock", "an atlas", "two tickets", "a lantern", "the wrong key"]


def long_text():
    lines = []
    for i in range(400):
        lines.append(f"{i + 1}. {NAMES[i * 7 % 10]} walked to {PLACES[i * 5 % 7]} with {THINGS[i * 3 % 7]} "
                     f"and met {NAMES[(i * 3 + 1) % 10]} there at {i % 12 + 1} o'clock.")
    return "\n".join(lines)


def main():
    folder = pathlib.Path(sys.argv[1])
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    decoder = Decoder(folder)
    items = []
    for prompt_ids, count in ((tokenizer.encode("The capital of France is").ids, 320), (tokenizer.encode(long_text()).ids[:3700], 24)):
        ids, margins = decoder.greedy(prompt_ids, count)
        items.append({"prompt_ids": prompt_ids, "generated_ids": ids, "margins": [round(m, 4) for m in margins]})
    made = {"engine": "onnxruntime 1.32.0, CPU, fp32, the imported folder; greedy; end token does not stop", "items": items}
    (HERE / "smollm2-long.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")


main()
