"""Synthetic folders in onnxruntime-genai itself: they open, and write the ids that granule writes.

Margins of a synthetic walk are wide (src/package/synth_values.h), so ids must agree to the last one.
"""
import json
import subprocess

import onnxruntime_genai as og
import pytest

PROMPT = [785, 6722, 315, 9625, 374]
NEW_TOKENS = 48


def greedy(model, prompt, new_tokens):
    params = og.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(prompt) + new_tokens)
    generator = og.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    return [int(i) for i in generator.get_sequence(0)][len(prompt) :]


@pytest.mark.parametrize(
    "name",
    [
        "tiny",
        "tiny:int8",
        "tiny:fp16",
        "tiny:fp32",
        "tiny,kv=fp16",
        "smollm2-135m,context=1024",
        "qwen2.5-0.5b,context=1024",
    ],
)
def test_the_folder_opens_and_walks_the_same_way(granule, tmp_path, name):
    folder = tmp_path / "model"
    subprocess.run([granule, "synth", name, folder], check=True, capture_output=True)
    config = json.loads((folder / "genai_config.json").read_text())
    prompt = [i % config["model"]["vocab_size"] for i in PROMPT]
    words = [granule, "run", folder, "--prompt-ids", ",".join(map(str, prompt))]
    words += ["-n", str(NEW_TOKENS), "--temp", "0", "--json"]
    ours = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)

    model = og.Model(str(folder))
    assert model.type == config["model"]["type"]
    assert greedy(model, prompt, NEW_TOKENS) == ours["ids"]
    tokenizer = og.Tokenizer(model)
    assert list(tokenizer.encode("Hi <|im_end|>")) == [72, 105, 32, 258]
    assert tokenizer.decode([72, 105, 300]) == "Hi t300"
