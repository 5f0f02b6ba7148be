"""Writes tests/text/corpus/: seeds of tokenizer_fuzz, each a small tokenizer.json, a zero byte and a text.

Between them they name every supported part once, and every way to be refused.
    python3 tests/text/make_corpus.py
"""

import json
import pathlib
import shutil

OUT = pathlib.Path(__file__).resolve().parent / "corpus"
TEXT = "It's a <s> cat, x  12 é e\u0301 ½ 世界 🙂\n\n\tAB catcat <R>  y"


def model(**more):
    chars = "abcehistx12 ,'ĠĊéâ▁<>/sR"
    vocab = {"<unk>": 0, "</s>": 1}
    for c in chars:
        vocab.setdefault(c, len(vocab))
    for token in ("at", "cat", "Ġc", "Ġcat", "<0xE4>", "<0xB8>", "<0x96>", "▁c"):
        vocab[token] = len(vocab)
    merges = ["a t", "c at", ["Ġ", "c"], "Ġc at", "▁ c"]
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges, **more}


def added(content, **flags):
    return {"id": 60, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


ADDED = [added("<s>"), added("<R>", rstrip=True, lstrip=True), added("cat", single_word=True, special=False),
         added("É", normalized=True, special=False), added("<s>"), added("")]
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
MARK = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}


def seq(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def file(**parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": ADDED, "normalizer": None,
            "pre_tokenizer": BYTES, "post_processor": None, "decoder": BYTES, "model": model(), **parts}


SINGLE = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
GOOD = {
    "bytes": file(),
    "plain": file(pre_tokenizer=None, decoder=None, added_tokens=None),
    "llama": file(
        model=model(byte_fallback=True, fuse_unk=True, unk_token="<unk>"),
        normalizer=seq("normalizers", {"type": "Prepend", "prepend": "▁"},
                       {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        pre_tokenizer=None,
        decoder=seq("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1})),
    "marks": file(pre_tokenizer=MARK, decoder=MARK, model=model(unk_token="<unk>")),
    "old_marks": file(pre_tokenizer={"type": "Metaspace", "add_prefix_space": False},
                      decoder={"type": "Metaspace", "add_prefix_space": False}),
    "always": file(pre_tokenizer={**MARK, "prepend_scheme": "always", "split": False}, decoder=None),
    "forms": file(normalizer=seq("normalizers", *[{"type": t} for t in (
        "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "ByteLevel")])),
    "replace": file(normalizer={"type": "Replace", "pattern": {"Regex": "\\s+|x*"}, "content": "_"},
                    decoder={"type": "Replace", "pattern": {"Regex": "a+"}, "content": "A"}),
    "cutters": file(pre_tokenizer=seq(
        "pretokenizers", {"type": "Digits", "individual_digits": True}, {"type": "Digits", "individual_digits": False},
        {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Contiguous"})),
    "splits": file(pre_tokenizer=seq(
        "pretokenizers", split("\\p{L}+", "MergedWithPrevious"), split("[^\\s]", "MergedWithNext", True),
        split("a", "Removed", kind="String"), split("", "Isolated", kind="String"), {**BYTES, "use_regex": False})),
    "syntax": file(pre_tokenizer=split(
        r"(?i:'s|'t)|[^\r\n\p{L}]?\p{^Han}+|\w\W\d\D\S\h\H\b\B|a{1,2}+b{2}?c{,3}d{x}|[a-z&&[^b][0-9]]|[^a[b]]|[]a^]"
        r"|[[:space:][:word:][:digit:][:xdigit:]]|\x41\x{42}\u0043\.\世|(?<!x)(?=y)(?>z)|(?m-i:.)|^\A\z\Z\R$|\v[\v\s\w]")),
    "template": file(post_processor=seq("processors", BYTES, {
        "type": "TemplateProcessing", "single": SINGLE, "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["x"]}}})),
    "frame": file(post_processor={"type": "RobertaProcessing", "cls": ["<s>", 1], "sep": ["</s>", 2]}),
    "whole_words": file(model=model(ignore_merges=True, dropout=0)),
    "affixes": file(pre_tokenizer={"type": "Whitespace"}, decoder=None, model={
        "vocab": {"a": 0, "##b": 1, "##b</w>": 2, "ab</w>": 3, "a</w>": 3, "b": 9}, "merges": ["#version: 0.2", "a ##b</w>"],
        "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>"}),
}


def changed(path, value):
    result = file()
    place = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return result


BAD = [
    [], {}, {"model": 1}, {"tokenizer_class": "x"}, {"model_type": "x"}, {"model": {}}, {"model": {"type": None}},
    changed(["version"], "2.0"), changed(["model", "type"], "Unigram"), changed(["model", "type"], 1),
    changed(["model", "vocab"], None), changed(["model", "vocab"], []), changed(["model", "vocab", "a"], -1),
    changed(["model", "vocab", "a"], 1.5), changed(["model", "merges"], None), changed(["model", "merges"], ["a b c"]),
    changed(["model", "merges"], [["a"]]), changed(["model", "merges"], ["a zz"]), changed(["model", "merges"], ["a b"]),
    changed(["model", "merges"], [["zz", "a"]]), changed(["model", "dropout"], 0.5), changed(["model", "fuse_unk"], "yes"),
    changed(["model", "continuing_subword_prefix"], "##"), changed(["model", "unk_token"], "missing"),
    changed(["added_tokens"], 1), changed(["added_tokens"], [1]), changed(["added_tokens"], [{"content": 1}]),
    changed(["added_tokens"], [{"content": "a", "id": -1}]), changed(["added_tokens"], [{"content": "a" * 1100}]),
    *[changed([part], {"type": "Odd"}) for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder")],
    *[changed([part], 1) for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder")],
    changed(["pre_tokenizer"], seq("pretokenizers", {"type": "Odd"})), changed(["pre_tokenizer"], seq("pretokenizers", 1)),
    changed(["pre_tokenizer"], split("(", "Isolated")), changed(["pre_tokenizer"], split("a", "Odd")),
    changed(["pre_tokenizer"], split("a", "Isolated", kind="Odd")), changed(["pre_tokenizer"], {"type": "Punctuation", "behavior": "x"}),
    changed(["pre_tokenizer"], {**MARK, "replacement": "ab"}), changed(["pre_tokenizer"], {**MARK, "prepend_scheme": "odd"}),
    changed(["pre_tokenizer"], {**MARK, "add_prefix_space": False}),
    changed(["normalizer"], {"type": "Replace", "pattern": 1, "content": ""}),
    changed(["decoder"], {"type": "Replace", "pattern": 1, "content": ""}),
    changed(["decoder"], {"type": "Strip", "content": " ", "start": -1, "stop": 0}),
    *[changed(["post_processor"], {"type": "TemplateProcessing", "single": single, "special_tokens": specials})
      for single, specials in ((SINGLE, {}), (SINGLE, {"<s>": {"ids": [-1]}}), ([{"Odd": 1}], {}),
                               ([{"Sequence": {"id": "B"}}], {}), (SINGLE * 20, {"<s>": {"ids": [1]}}))],
    changed(["post_processor"], {"type": "RobertaProcessing", "cls": ["<s>"], "sep": ["</s>", 2]}),
    *[changed(["pre_tokenizer"], split(pattern)) for pattern in (
        "\\", "[a", "(?x)a", "(?#c)", "(*F)", "\\Q", "\\pL", "\\x{", "[\\W]", "[\\b]", "[\\A]", "[[:odd:]]", "[:a:]",
        "[" * 40)],
]
RAW = {
    "empty": b"", "cut": json.dumps(file()).encode()[:300], "bad_utf8": b'{"model": "\xff"}', "literal": b'{"model": nil}',
    "deep": b"[" * 100, "numbers": b'{"a": [1, -1, 1.5, 18446744073709551615, true, null], "model": {"merges": 3}}',
    "html": b"<!DOCTYPE html><html>", "lfs": b"version https://git-lfs.github.com/spec/v1\nsize 5\n",
}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    text = TEXT.encode()
    for name, content in GOOD.items():
        (OUT / f"good_{name}").write_bytes(json.dumps(content, ensure_ascii=False).encode() + b"\0" + text)
    (OUT / "good_bad_text").write_bytes(json.dumps(file(), ensure_ascii=False).encode() + b"\0" + b"a\xff\xf0\x9f")
    ids = json.dumps(GOOD["llama"], ensure_ascii=False).encode() + b"\0"
    (OUT / "good_ids").write_bytes(ids + b"".join(i.to_bytes(2, "little", signed=True) for i in range(1, 120, 3))
                                   .replace(b"\0", b"\1") + b"\xff\xff\x10\x27")
    for n, content in enumerate(BAD):
        (OUT / f"bad_{n:02}").write_bytes(json.dumps(content, ensure_ascii=False).encode() + b"\0" + b"a")
    for name, content in RAW.items():
        (OUT / f"raw_{name}").write_bytes(content)
    print(f"{len(list(OUT.iterdir()))} files, {sum(f.stat().st_size for f in OUT.iterdir())} bytes")


if __name__ == "__main__":
    main()
