"""Words and exit codes: help, unknown verbs and flags, bad values."""

from pathlib import Path

import pytest

RUN_VERBS = ["run", "import", "synth", "inspect", "plan", "bench", "tokenize", "doctor", "version"]
UNBUILT_VERBS = ["chat", "serve", "check", "detokenize", "template", "embed", "perplexity"]


def test_no_words_shows_the_verbs_and_is_usage(cli):
    done = cli()
    assert done.returncode == 2 and done.stdout == b""
    for verb in RUN_VERBS:
        assert verb in done.stderr.decode()


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_lists_what_is_built_and_nothing_else(cli, words):
    done = cli(*words)
    text = done.stdout.decode()
    assert done.returncode == 0 and done.stderr == b""
    for verb in RUN_VERBS:
        assert f"\n  {verb} " in text
    for verb in UNBUILT_VERBS:
        assert f"\n  {verb} " not in text
    assert "Exit codes" in text


@pytest.mark.parametrize("verb", RUN_VERBS)
def test_help_of_a_verb(cli, verb):
    for words in ([verb, "--help"], ["help", verb], [verb, "-h", "--nonsense"]):
        done = cli(*words)
        text = done.stdout.decode()
        assert done.returncode == 0 and done.stderr == b""
        assert text.startswith(f"granule {verb}: ")
        assert f"Usage: granule {verb}" in text and "Exit codes:" in text
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "--kv-dtype" not in text and "--chat" not in text


def test_help_of_run_teaches_every_flag(cli):
    text = cli("run", "--help").stdout.decode()
    flags = [
        "-p",
        "-f",
        "--prompt-ids",
        "-n",
        "--temp",
        "--top-k",
        "--top-p",
        "--min-p",
        "-s",
        "--seed",
        "--ignore-eos",
        "--json",
        "--dump-logits",
        "-v",
        "-t",
        "-c",
        "-ub",
        "--kv-layout",
        "--kv-growth",
        "--kv-rounding",
        "--kv-min-bucket",
        "--kv-granule",
        "--act",
        "--isa",
        "--device",
        "--cuda-graph",
        "--backend",
        "-m",
    ]
    for flag in flags:
        assert f"{flag}," in text or f"{flag} " in text or f"{flag}\n" in text, flag
    for absent in ("int8", "--kv-dtype"):
        assert absent not in text


@pytest.mark.parametrize("verb", UNBUILT_VERBS)
def test_verbs_that_are_not_built_are_refused_by_name(cli, verb):
    cli.fails(2, verb, "model", words=[f"granule {verb}: error: this verb is not built yet"])


def test_unknown_verbs_and_flags_name_the_closest(cli, recall):
    cli.fails(2, "inspct", recall, words=["did you mean inspect?"])
    cli.fails(2, "frobnicate", words=["unknown verb", "tokenize"])
    cli.fails(2, "--json", words=["expected a verb first"])
    cli.fails(2, "run", recall, "--promt", "x", words=["did you mean --prompt?"])
    cli.fails(2, "run", recall, "-p", "x", "--kv-dtype", "fp16", words=["--kv-dtype", "not built yet"])


BAD_VALUES = [
    (["-n", "-5"], ["-n", '"-5"', "-1"]),
    (["-n", "ten"], ["-n", '"ten"']),
    (["-n", "5x"], ["-n", '"5x"']),
    (["-n", "99999999999999999999"], ["-n"]),
    (["--kv-layout", "foo"], ["--kv-layout", '"foo"', "head-major", "stripe:G"]),
    (["--kv-layout", "stripe:0"], ["--kv-layout", "G >= 1"]),
    (["--kv-growth", "double"], ["--kv-growth", "double", "commit, restride, realloc"]),
    (["--kv-rounding", "page"], ["--kv-rounding", "granule, bucket"]),
    (["--kv-min-bucket", "0"], ["--kv-min-bucket", "1 or more"]),
    (["--kv-min-bucket", "4", "--kv-rounding", "granule"], ["--kv-min-bucket", "--kv-rounding"]),
    (["--kv-granule", "1000"], ["--kv-granule", "2MiB"]),
    (["--act", "int8"], ["--act int8", "not built yet", "exact"]),
    (["--isa", "sse9"], ["--isa", "avx2"]),
    (["--device", "gpu"], ["--device", "cpu, cuda, cuda:N"]),
    (["--device", "cuda:x"], ["--device", "cuda:N"]),
    (["--device", "cuda", "--backend", "ort"], ["--backend ort", "cuda:0"]),
    (["--device", "cuda", "--kv-granule", "64KiB"], ["--kv-granule", "driver"]),
    (["--cuda-graph", "maybe"], ["--cuda-graph", "auto, on, off"]),
    (["--backend", "tensorrt"], ["--backend", "tensorrt", "native, ort"]),
    (["-c", "abc"], ["--ctx-size", '"abc"', "tokens"]),
    (["-c", "-1"], ["--ctx-size"]),
    (["-t", "0"], ["--threads", "1 to 1024"]),
    (["-ub", "0"], ["--ubatch-size", "1 to"]),
    (["--temp", "-1"], ["--temp", '"-1"', "0 to 1000"]),
    (["--temp", "nan"], ["--temp"]),
    (["--top-p", "1.5"], ["--top-p", "up to 1"]),
    (["--min-p", "x"], ["--min-p", "0 to 1"]),
    (["--top-k", "-2"], ["--top-k"]),
    (["--seed", "-2"], ["--seed"]),
    (["--json=1"], ["--json", "switch"]),
    (["-n"], ["--n-predict needs a value"]),
    (["-f", "x"], ["-p and -f"]),
    (["--prompt-ids", "1,2"], ["--prompt-ids"]),
    (["second"], ["unexpected word"]),
    (["-m", "other"], ["two models"]),
]


@pytest.mark.parametrize("flags,words", BAD_VALUES, ids=lambda v: " ".join(v))
def test_bad_flag_values_are_usage_in_words(cli, recall, flags, words):
    cli.fails(2, "run", recall, "-p", "x", *flags, words=words)


def test_a_gpu_that_is_not_there_is_said_and_nothing_is_printed(cli, recall):
    """No driver, no device or no kernels in this build: exit code 4 and the way out, whatever the machine lacks."""
    if any(path.exists() for path in (Path("/dev/nvidia0"), Path("/dev/nvidiactl"))):
        pytest.skip("this machine has a GPU")
    cli.fails(4, "run", recall, "-p", "x", "--device", "cuda", words=["CUDA", "--device cpu"])
    cli.fails(4, "run", recall, "-p", "x", "--device", "cuda:7", words=["CUDA"])


def test_a_graph_that_is_asked_for_on_a_cpu_declines_by_predicate(cli, recall):
    on = cli.run_json(recall, "-p", "The cat", "-n", 8, "--cuda-graph", "on")
    auto = cli.run_json(recall, "-p", "The cat", "-n", 8)
    assert on["ids"] == auto["ids"] and on["logits_hash"] == auto["logits_hash"]
    assert on["kv"]["fallbacks"] == 1 and on["kv"]["captures"] == 0 and not on["kv"]["graph_existed"]
    assert "predicate `backend` declined capture" in on["cuda_graph"]["last"]
    assert auto["kv"]["fallbacks"] == 0
    assert auto["cuda_graph"] == {"enabled": False, "reason": auto["cuda_graph"]["reason"], "last": ""}
    assert "predicate `device` declined capture: device is cpu" in auto["cuda_graph"]["reason"]


def test_bad_environment_values_are_refused_by_name(cli, recall):
    for name, value in {
        "GRANULE_KV_LAYOUT": "foo",
        "GRANULE_CTX_SIZE": "abc",
        "GRANULE_THREADS": "0",
        "GRANULE_DEVICE": "gpu",
        "GRANULE_CUDA_GRAPH": "maybe",
        "GRANULE_KV_DTYPE": "fp16",
        "GRANULE_UBATCH_SIZE": "-3",
    }.items():
        cli.fails(2, "run", recall, "-p", "x", env={name: value}, words=[name])
    cli.fails(
        2,
        "run",
        recall,
        "-p",
        "x",
        "--kv-layout",
        "seq-major",
        env={"GRANULE_KV_LAYOUT": "foo"},
        words=["GRANULE_KV_LAYOUT"],
    )
    # A verb without that lever does not care.
    assert cli("tokenize", recall, "-p", "x", env={"GRANULE_KV_LAYOUT": "foo"}).returncode == 0


def test_prompts_that_are_none(cli, recall, tmp_path):
    cli.fails(2, "run", recall, words=["-p TEXT"])
    cli.fails(2, "run", "-p", "x", words=["no MODEL"])
    cli.fails(3, "run", recall, "-p", "", words=["empty"])
    cli.fails(3, "run", recall, "-f", tmp_path / "missing.txt", words=["missing.txt"])
    cli.fails(3, "run", recall, "-f", tmp_path, words=["directory"])
    cli.fails(3, "run", recall, "-p", b"good\xffbad", words=["4", "UTF-8"])
    cli.fails(3, "run", recall, "--prompt-ids", "1,5000", words=["5000", "320"])
    for ids in ("", "1,,2", "1, 2", "-1", "1,x", "1,2,", "99999999999"):
        cli.fails(2, "run", recall, "--prompt-ids", ids, words=["--prompt-ids"])
    (tmp_path / "bytes").write_bytes(b"abc\xe2\x82")
    cli.fails(3, "run", recall, "-f", tmp_path / "bytes", words=["3", "UTF-8"])


def test_a_model_that_is_not_there(cli, tmp_path):
    for verb in ("run", "inspect"):
        words = [verb, tmp_path / "nothing"] + (["-p", "x"] if verb == "run" else [])
        cli.fails(3, *words, words=["nothing"])
    cli.fails(3, "tokenize", tmp_path, "-p", "x", words=["tokenizer.json"])
    cli.fails(2, "import", "only-one", words=["SRC DST"])
