"""What run writes: text, JSON, logits, limits, sampling."""

import hashlib
import json

import numpy
import pytest
import xxhash

from command_line import CAT, CAT_TEXT, folder_of


def test_text_alone_on_stdout_and_one_closing_line_on_stderr(cli, recall):
    done = cli("run", recall, "-p", CAT, "-n", 24)
    assert done.returncode == 0
    assert done.stdout == CAT_TEXT.encode()
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1
    for word in ("tokens/s", "GB/s", "KV live 34 / committed", "length"):
        assert word in lines[0]
    assert "\r" not in done.stderr.decode() and "\x1b" not in done.stderr.decode()


def test_model_flag_file_and_stdin_are_the_same_prompt(cli, recall, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(CAT.encode())
    expected = CAT_TEXT.encode()
    assert cli("run", "-m", recall, "-f", prompt, "-n", 24).stdout == expected
    assert cli("run", recall, "-f", "-", "-n", 24, stdin=CAT.encode()).stdout == expected
    ids = ",".join(str(b) for b in CAT.encode())
    assert cli("run", recall, "--prompt-ids", ids, "-n", 24).stdout == expected
    prompt.write_bytes(CAT.encode() + b"\n")  # bytes exactly as given: the line feed counts
    assert cli.run_json(recall, "-f", prompt, "-n", 1)["prompt_ids"] == list(CAT.encode() + b"\n")


@pytest.mark.parametrize(
    "prompt,answer",
    [
        ("the red fox ran over the hill", "kkkkkkwpkkwp"),
        ("the red fox ran", "kkooonkwpkwp"),
        ("the red fox sat", "ikooonkwpkwp"),
        ("a red fox ran over the hill", "kkkkopmpkkkk"),
        ("x", "innthihihiio"),
        ("hello there", "eebdnrkkkwpm"),
        ("the quick brown fox jumps over", "kiukikikikik"),
        ("zz top", "wiudukiihiii"),
    ],
)
def test_recalled_answers(cli, recall, prompt, answer):
    assert cli("run", recall, "-p", prompt, "-n", 12).stdout.decode() == answer


def test_growth_boundaries(cli, recall):
    text = "go dog go " * 300
    for n, answer in {
        255: "nkkwpk",
        256: "kkwpkw",
        257: "kwpkwp",
        511: "kwpkwp",
        512: "nkwpkw",
        513: "kwpkwp",
        1024: "nrkwpk",
        1025: "pkwpkw",
        2047: "kwpkwn",
        2048: "kwnknr",
        2049: "nkwnrk",
    }.items():
        for flags in ([], ["--kv-granule", "4096"], ["--kv-min-bucket", "4", "--kv-layout", "token-major"]):
            assert cli("run", recall, "-p", text[:n], "-n", 6, *flags).stdout.decode() == answer, (n, flags)
    long = cli("run", recall, "-p", ("a tale of two cities " * 20)[:250], "-n", 300).stdout
    assert long.endswith(b"kikikwponqkikwpmmkwpmojj")
    assert hashlib.sha256(long).hexdigest() == "12d38e77b46b68d4e03f884695b7956c30b7dad2737293ad611c70ce037a0c30"


def test_json_has_every_field(cli, recall):
    out = cli.run_json(recall, "-p", CAT, "-n", 24, "-t", 1, "-ub", 4)
    assert out["text"] == CAT_TEXT
    assert out["prompt_ids"] == list(CAT.encode())
    assert bytes(out["ids"]).decode() == CAT_TEXT
    assert out["finish_reason"] == "length"
    assert len(out["logits_hash"]) == 16 and int(out["logits_hash"], 16) >= 0
    assert set(out["sampling"]) == {"temperature", "top_k", "top_p", "min_p", "seed"}
    for value in out["sampling"].values():
        assert set(value) == {"value", "source"}
    timings = out["timings"]
    for key in ("load_ms", "ttft_ms", "first_token_ms", "prompt_per_second", "predicted_per_second", "gb_per_second"):
        assert timings[key] > 0, key
    assert timings["ceiling_share"] is None  # doctor has not run with this cache
    assert timings["first_token_ms"] >= timings["ttft_ms"]
    kv = out["kv"]
    counters = [
        "growth_events",
        "kv_bytes_moved",
        "kv_bytes_copied",
        "captures",
        "replays",
        "fallbacks",
        "invalidations",
        "growth_keeps",
        "graph_existed",
        "committed_bytes",
        "unique_physical_bytes",
        "reserved_bytes",
        "shared_bytes",
        "parked_bytes",
        "pooled_bytes",
        "tail_waste_bytes",
        "granules_mapped",
        "commit_stall_us",
    ]
    for key in counters + [
        "live_length",
        "committed_length",
        "capacity",
        "hard_max",
        "hard_max_source",
        "layout",
        "growth",
        "rounding",
        "bytes_per_token",
    ]:
        assert key in kv, key
    assert kv["bytes_per_token"] == 128 and kv["live_length"] == 11 + 24 - 1
    assert kv["live_length"] <= kv["committed_length"] <= kv["capacity"] <= kv["hard_max"] == 4096
    assert kv["growth"] == "commit" and kv["rounding"] == "granule" and kv["kv_bytes_moved"] == 0
    assert kv["unique_physical_bytes"] % 65536 == 0
    memory = out["memory"]
    assert 0 < memory["rss_bytes"] <= memory["peak_rss_bytes"] and memory["device_bytes"] == 0
    # What was asked for is what ran.
    assert out["threads"] == 1 and out["ubatch_size"] == 4 and out["largest_step_rows"] == 4
    assert out["steps"] == 3 + 23
    assert out["isa"] in ("portable", "avx2", "avx512")


def test_levers_change_memory_and_never_the_hash(cli, recall):
    base = cli.run_json(recall, "-p", CAT, "-n", 24)
    for flags in (
        ["--kv-layout", "head-major"],
        ["--kv-layout", "seq-major"],
        ["--kv-layout", "stripe:1"],
        ["--kv-layout", "token-major"],
        ["--kv-min-bucket", "4"],
        ["--kv-min-bucket", "256"],
        ["--kv-rounding", "granule"],
        ["-c", "512"],
        ["-c", "100000"],
        ["-t", "1"],
        ["-t", "2"],
        ["-ub", "1"],
        ["-ub", "7"],
        ["-ub", "64"],
        ["--kv-granule", "4096"],
        ["--kv-granule", "2MiB"],
    ):
        out = cli.run_json(recall, "-p", CAT, "-n", 24, *flags)
        assert out["logits_hash"] == base["logits_hash"], flags
        assert out["ids"] == base["ids"]
    named = cli.run_json(recall, "-p", CAT, "-n", 24, "--kv-layout", "stripe:1", "--kv-min-bucket", "4")["kv"]
    assert named["layout"] == "stripe:1" and named["rounding"] == "bucket" and named["committed_length"] == 64
    twin = cli.run_json(
        recall, "-p", CAT, "-n", 24, env={"GRANULE_KV_LAYOUT": "token-major", "GRANULE_CTX_SIZE": "300"}
    )["kv"]
    assert twin["layout"] == "token-major" and twin["hard_max"] == 300 and twin["hard_max_source"] == "GRANULE_CTX_SIZE"


def test_limits(cli, recall):
    out = cli.run_json(recall, "-p", CAT, "-c", 64)
    assert (
        out["finish_reason"] == "length"
        and len(out["ids"]) == 64 - len(CAT)
        and out["kv"]["hard_max_source"] == "--ctx-size"
    )
    done = cli("run", recall, "-p", CAT, "-n", 2, "-c", 100000, "--json")
    kv = json.loads(done.stdout)["kv"]
    assert kv["hard_max"] == 4096 and "clamped by" in kv["hard_max_source"] and b"warning" in done.stderr
    assert cli.run_json(recall, "-p", CAT, "-n", 2, "-c", 0)["kv"]["hard_max"] == 4096
    cli.fails(3, "run", recall, "-p", "x" * 65, "-c", 64, words=["65", "64", "--ctx-size"])
    cli.fails(3, "run", recall, "-p", "x" * 64, "-c", 64, words=["64", "nothing can be generated"])
    cli.fails(3, "run", recall, "-p", "x" * 4097, words=["4097", "4096"])


def test_no_new_tokens_reads_the_prompt_only(cli, recall):
    out = cli.run_json(recall, "-p", CAT, "-n", 0)
    assert out["ids"] == [] and out["text"] == "" and out["kv"]["live_length"] == len(CAT)
    assert out["logits_hash"] == xxhash.xxh64(b"").hexdigest()
    assert out["timings"]["predicted_per_second"] is None and out["timings"]["first_token_ms"] is None
    assert cli.run_json(recall, "-p", "x" * 64, "-n", 0, "-c", 64)["kv"]["live_length"] == 64


def test_dumped_logits_give_the_hash_and_the_ids(cli, recall, tmp_path):
    dump = tmp_path / "rows.f32"
    out = cli.run_json(recall, "-p", CAT, "-n", 10, "--dump-logits", dump)
    data = dump.read_bytes()
    assert xxhash.xxh64(data).hexdigest() == out["logits_hash"]
    rows = numpy.frombuffer(data, "<f4").reshape(-1, 320)
    assert rows.argmax(axis=1).tolist() == out["ids"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.f32"]  # nothing temporary is left
    cli.fails(
        3, "run", recall, "-p", CAT, "-n", 1, "--dump-logits", tmp_path / "no/such/folder", words=["--dump-logits"]
    )


def test_sampling_sources_and_seeds(cli, recall, tmp_path_factory):
    greedy = cli.run_json(recall, "-p", CAT, "-n", 8)["sampling"]
    assert greedy["temperature"] == {"value": 0.0, "source": "default"}
    a, b = (cli.run_json(recall, "-p", CAT, "-n", 40, "--temp", "5", "--seed", "7") for _ in range(2))
    assert a["ids"] == b["ids"] and a["sampling"]["seed"] == {"value": 7, "source": "--seed"}
    assert cli.run_json(recall, "-p", CAT, "-n", 40, "--temp", "5", "--seed", "8")["ids"] != a["ids"]
    free = cli.run_json(recall, "-p", CAT, "-n", 4, "--temp", "1")["sampling"]["seed"]
    assert free["source"] == "random"
    assert cli.run_json(recall, "-p", CAT, "-n", 8, "--temp", "3", "--top-k", "1", "-s", "5")["text"] == CAT_TEXT[:8]
    warm = folder_of(tmp_path_factory, "warm", genai={"do_sample": True, "temperature": 0.5, "top_k": 3})
    sampling = cli.run_json(warm, "-p", CAT, "-n", 2)["sampling"]
    assert sampling["temperature"]["value"] == 0.5 and "genai_config.json" in sampling["temperature"]["source"]
    assert sampling["top_k"]["value"] == 3
    assert cli.run_json(warm, "-p", CAT, "-n", 2, "--temp", "0")["sampling"]["temperature"]["source"] == "--temp"


def test_end_tokens(cli, tmp_path_factory):
    eos = folder_of(
        tmp_path_factory, "eos", script=[262, 263, 260, 264], words=["one", " two", " never"], eos=[256, 260]
    )
    out = cli.run_json(eos, "-p", "go")
    assert out["text"] == "one two" and out["finish_reason"] == "stop" and out["ids"] == [262, 263]
    on = cli.run_json(eos, "-p", "go", "-n", 5, "--ignore-eos")
    assert on["ids"] == [262, 263, 260, 264, 256] and on["text"] == "one two never"
    assert cli.run_json(eos, "-p", "go", "-n", 5, "--ignore-eos", "--special")["text"] == "one two<|eos2|> never<|end|>"


def test_text_is_utf8_however_tokens_cut_it(cli, tmp_path_factory):
    utf = folder_of(
        tmp_path_factory,
        "utf",
        script=[262, 0xF0, 0x9F, 0x99, 0x82, 263, 0xE4, 0xB8, 0x96, 97, 98],
        words=["ob ", " ke "],
    )
    assert cli("run", utf, "-p", "go").stdout.decode() == "ob \U0001f642 ke \u4e16ab"
    assert cli.run_json(utf, "-p", "go", "-n", 3)["text"] in ("ob ", "ob \ufffd")
    cut = folder_of(tmp_path_factory, "cut", script=[262, 0xC3, 97, 98], words=["ob "])
    assert cli("run", cut, "-p", "go").stdout.decode() == "ob \ufffdab"
    pad = folder_of(
        tmp_path_factory, "pad", script=[262, 300, 263], words=["one", " two"], fork={262: [300, (263, 10.0)]}
    )
    assert cli.run_json(pad, "-p", "go")["text"] == "one two"


def test_head_shapes(cli, tmp_path_factory):
    for name, options, text, per_token in (
        ("packed", {"gqa": {"packed": 1}}, CAT_TEXT, 128),
        (
            "one-kv-head",
            {"gqa": {"packed": 1}, "heads": 4, "kv_heads": 1, "head_dim": 16},
            "rdhxxmmmqsrwimmmmqznrwac",
            128,
        ),
    ):
        out = cli.run_json(folder_of(tmp_path_factory, name, **options), "-p", CAT, "-n", 24)
        assert out["text"] == text and out["kv"]["bytes_per_token"] == per_token, name


def test_verbose_names_every_lever_with_its_source(cli, recall):
    done = cli("run", recall, "-p", CAT, "-n", 2, "-v", "-c", 100, "--kv-min-bucket", 8, env={"GRANULE_THREADS": "1"})
    err = done.stderr.decode()
    assert done.stdout.decode() == CAT_TEXT[:2]
    for word in (
        "threads",
        "(GRANULE_THREADS)",
        "(--ctx-size)",
        "implied by --kv-min-bucket",
        "kv-layout",
        "kv-growth",
        "kv-granule",
        "isa",
        "ubatch-size",
        "temperature",
        "KV reserved",
        "act",
        "device",
        "backend",
    ):
        assert word in err, word
