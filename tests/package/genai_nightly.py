"""The imported model in onnxruntime-genai itself: it opens, and writes the golden ids wherever the margin is 0.02 or more."""
import json
import pathlib

import onnxruntime_genai as og
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = json.loads((ROOT / "tests/data/smollm2-greedy.json").read_text())["items"]


@pytest.fixture(scope="session")
def model(real_model, tmp_path_factory):
    """The folder as it is but for its end token, which must not stop the golden runs."""
    folder = tmp_path_factory.mktemp("genai")
    for file in real_model.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((real_model / "genai_config.json").read_text())
    config["model"]["eos_token_id"] = config["model"]["vocab_size"] - 1
    (folder / "genai_config.json").unlink()
    (folder / "genai_config.json").write_text(json.dumps(config))
    return og.Model(str(folder))


def test_the_folder_opens_unchanged(real_model):
    assert og.Model(str(real_model)).type == "llama"


@pytest.mark.parametrize("item", GOLDEN, ids=[item["prompt"][:20] for item in GOLDEN])
def test_golden_ids(model, item):
    prompt = item["prompt_ids"]
    assert list(og.Tokenizer(model).encode(item["prompt"])) == prompt
    params = og.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(prompt) + len(item["generated_ids"]))
    generator = og.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    ids = list(generator.get_sequence(0))[len(prompt):]
    assert len(ids) == len(item["generated_ids"])
    sure = next((i for i, margin in enumerate(item["margins"]) if margin < 0.02), len(ids))
    assert ids[:sure] == item["generated_ids"][:sure]
