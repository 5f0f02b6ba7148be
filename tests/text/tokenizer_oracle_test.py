"""src/text against the Python package `tokenizers`: same ids, same text, on thousands of odd strings.

Each tokenizer is a small vocabulary trained here on built-in text and dressed as a family of models dresses it. The
strings mix scripts, emoji, combining marks, control characters, runs of white space, digits, contractions and long
repeats; characters assigned after Unicode 14 are left out (tokenizer.h says why).
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import unicodedata

import pytest

tokenizers = pytest.importorskip("tokenizers")

TEXT = """The quick brown fox jumps over the lazy dog. It's 12:30 and we'll see what they've got; I'd say 3,141.59!
def main(argv):\n    for i in range(10):\n        print(f"{i:02d}")\n\treturn 0\r\n\r\n  <html>  </html>
Ünïcödé straße naïve café — “quotes” … Привет, как дела? Это проверка. Γειά σου Κόσμε. שלום עולם مرحبا بالعالم
你好，世界。こんにちは世界！ 안녕하세요 세계 नमस्ते दुनिया สวัสดีชาวโลก 🙂👍🏽👨‍👩‍👧‍👦🇩🇪 x² ½ Ⅷ ① é a\u0301 o\u0308\u0323
""" * 3

GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
NO_REGEX = {**GPT2, "use_regex": False}
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
ODD = [r"\w+", r"\W+", r"\d+", r"\bt\w*", r"\p{N}{2}?", r"\p{N}{1,2}+", r"[a-z&&[^aeiou]]+", r"\h+", r"^.|.$", r"x*",
       r"(?m:a.)", r"[^\s\w]+", r"[[:word:]]+", r"\p{Han}+", r"\p{^Latin}", r"[^\p{Cyrillic}a]", r"\s+$", r"(?<!\S)\S", r"\u0061+|\x62", r"[[a-f][0-9]]+", r"\R",
       r"[^a-z&&[^b]]+", r"(?>a+)b", r"a{,2}", r"[\p{L}&&\p{Lu}]", r"\S+", r"[\S]+", r"é|ü"]


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def seq(*parts, kind="pretokenizers"):
    return {"type": "Sequence", kind: list(parts)}


def added(content, special=True, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": not special,
            "special": special, **flags}


CHAT = [added("<|im_start|>"), added("<|im_end|>"), added("<|endoftext|>")]
ODDITIES = CHAT + [
    added("<R>", rstrip=True), added("<L>", lstrip=True), added("<B>", lstrip=True, rstrip=True),
    added("cat", special=False, single_word=True), added("  ", special=False, normalized=False),
    added("<|im", special=False), added("é", special=False), added("世界", special=False, single_word=True),
    added("İx", special=False), added(" tok", special=False, lstrip=True), added("a b", special=False, normalized=True),
    added("x" * 40, special=False), added("<N>", normalized=True, rstrip=True)]


def train_bytes(size=500):
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator([TEXT], trainer)
    return json.loads(tok.to_str())["model"]


def llama2_model():
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, show_progress=False, special_tokens=pieces, initial_alphabet=list("▁abcdefghijklmnopqrstuvwxyz"),
        limit_alphabet=60)
    tok.train_from_iterator(TEXT.split("\n"), trainer)
    model = json.loads(tok.to_str())["model"]
    return {**model, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}


def without(model, *tokens):
    """The model without some entries and the merges that need them."""
    vocab = {t: i for t, i in model["vocab"].items() if t not in tokens}
    merges = [m for m in model["merges"] if all(p in vocab for p in m) and "".join(m) in vocab]
    return {**model, "vocab": vocab, "merges": merges}


def definition(model, pre=None, norm=None, post=None, dec=None, added_tokens=()):
    tokens = [{"id": model["vocab"].get(t["content"], len(model["vocab"]) + i), **t} for i, t in enumerate(added_tokens)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": norm,
            "pre_tokenizer": pre, "post_processor": post, "decoder": dec, "model": model}


def families():
    model = train_bytes()
    joined = {**model, "merges": [" ".join(m) for m in model["merges"]]}
    byte_decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    bos = {"type": "TemplateProcessing",
           "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
           "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [7, 9], "tokens": ["a", "b"]}}}
    yield "smollm2", definition(model, seq({"type": "Digits", "individual_digits": True}, GPT2), dec=byte_decoder,
                                added_tokens=CHAT)
    yield "gpt2", definition(joined, {**GPT2, "add_prefix_space": True}, post={**GPT2}, dec=byte_decoder,
                             added_tokens=ODDITIES)
    yield "roberta", definition(model, GPT2, dec=byte_decoder, added_tokens=CHAT, post={
        "type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True,
        "add_prefix_space": False})
    yield "llama3", definition({**model, "ignore_merges": True}, seq(split(LLAMA3), NO_REGEX), dec=byte_decoder,
                               added_tokens=ODDITIES, post=seq(NO_REGEX, bos, kind="processors"))
    yield "qwen2", definition(model, seq(split(QWEN2), NO_REGEX), norm={"type": "NFC"}, dec=byte_decoder,
                              added_tokens=ODDITIES)
    yield "o200k", definition(model, seq(split(O200K, "Removed", True), NO_REGEX), dec=byte_decoder, added_tokens=CHAT)
    yield "deepseek", definition(model, seq(*[split(p) for p in DEEPSEEK], NO_REGEX), dec=byte_decoder,
                                 added_tokens=CHAT)
    yield "nfkd-lower", definition(model, GPT2, dec=byte_decoder, added_tokens=ODDITIES, norm=seq(
        {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"},
        {"type": "Strip", "strip_left": True, "strip_right": True}, kind="normalizers"))
    yield "nfd", definition(model, GPT2, norm={"type": "NFD"}, dec=byte_decoder, added_tokens=ODDITIES)
    yield "nfkc-replace", definition(model, GPT2, dec=byte_decoder, norm=seq(
        {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Replace", "pattern": {"String": "the"}, "content": "<T>"}, kind="normalizers"))
    yield "byte-normalizer", definition(model, norm={"type": "ByteLevel"}, dec=byte_decoder, added_tokens=CHAT)
    yield "words", definition(
        {**without(model, "Ġ", "é"), "unk_token": "!", "fuse_unk": True},
        seq({"type": "Whitespace"}, {"type": "Punctuation", "behavior": "MergedWithPrevious"}), added_tokens=CHAT)
    yield "unk", definition({**model, "unk_token": "!"},
                            seq({"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": False}))
    yield "affixes", definition({
        "type": "BPE", "unk_token": "?", "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>",
        "vocab": {t: i for i, t in enumerate(["?", "a", "b", "##a", "##b", "a</w>", "##b</w>", "##a</w>", "ab", "ab</w>",
                                              "##ab</w>", "aba</w>", "aab</w>"])},
        "merges": ["a ##b", "a ##b</w>", "##a ##b</w>", "ab ##a</w>", "a ##ab</w>"]}, {"type": "Whitespace"})

    llama = llama2_model()
    specials = [added("<unk>"), added("<s>"), added("</s>", rstrip=True)]
    llama_decoder = seq({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}, kind="decoders")
    mark = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}
    yield "llama2", definition(llama, dec=llama_decoder, added_tokens=specials, norm=seq(
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        kind="normalizers"))
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            yield f"metaspace-{scheme}-{cut}", definition(
                llama, {**mark, "prepend_scheme": scheme, "split": cut}, dec={**mark, "prepend_scheme": scheme},
                added_tokens=specials)
    yield "half-fallback", definition({**without(llama, *[f"<0x{b:02X}>" for b in range(0x80, 0xA0)])}, mark,
                                      dec=llama_decoder, added_tokens=specials)
    yield "strip-first", definition(llama, {**mark, "prepend_scheme": "first"}, added_tokens=specials,
                                    norm={"type": "Strip", "strip_left": True, "strip_right": False})
    for n, pattern in enumerate(ODD):
        behaviors = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
        yield f"odd-{n}", definition(model, seq(split(pattern, behaviors[n % 5], n % 3 == 0), NO_REGEX), dec=byte_decoder)
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for pattern in (" ", "", "a."):
            yield f"string-{behavior}-{pattern!r}", definition(
                model, seq(split(pattern, behavior, pattern == " ", "String"), NO_REGEX), dec=byte_decoder)
    yield "decoders", definition(llama, mark, dec=seq(
        {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "▁t"}, "content": "+"},
        {"type": "Replace", "pattern": {"Regex": "e+"}, "content": "E"},
        {"type": "Strip", "content": "▁", "start": 2, "stop": 0}, kind="decoders"))


# What Unicode 15 assigned below U+30000, for Pythons that know it (tokenizer.h says why it is left out).
SINCE_15 = [(0xCF3, 0xCF3), (0xECE, 0xECE), (0x10EFD, 0x10EFF), (0x1123F, 0x11241), (0x11B00, 0x11B09), (0x11F00, 0x11F59),
            (0x1342F, 0x1342F), (0x13439, 0x13455), (0x1B132, 0x1B132), (0x1B155, 0x1B155), (0x1D2C0, 0x1D2D3),
            (0x1DF25, 0x1DF2A), (0x1E030, 0x1E08F), (0x1E4D0, 0x1E4F9), (0x1F6DC, 0x1F6DC), (0x1F774, 0x1F776),
            (0x1F77B, 0x1F77F), (0x1F7D9, 0x1F7D9), (0x1FA75, 0x1FA77), (0x1FA87, 0x1FA88), (0x1FAAD, 0x1FAAF),
            (0x1FABB, 0x1FABD), (0x1FABF, 0x1FABF), (0x1FACE, 0x1FACF), (0x1FADA, 0x1FADB), (0x1FAE8, 0x1FAE8),
            (0x1FAF7, 0x1FAF8)]


def alphabet():
    new = {c for first, last in SINCE_15 for c in range(first, last + 1)}
    every = [chr(c) for c in range(1, 0x30000) if c not in new and unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
    marks = [c for c in every if unicodedata.combining(c)]
    return every, marks


def strings(count, seed):
    rng = random.Random(seed)
    every, marks = alphabet()
    words = TEXT.split(" ") + [t["content"] for t in ODDITIES] + ["<s>", "</s>", "<unk>", "'S", "'LL", "'ſ", "a b", "catcat",
            "can't", "I'D've", "①②", "١٢٣", "x" * 40, "x" * 39, "aaaa", "İx", "\u180e", "\u200b", "\ufeff", "\ufffd", "e\u0301"]
    spaces = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2003", "\x0b", "\x85", "\u2028", "\x1c", " \n \n", "   "]
    makers = [
        lambda: rng.choice(words),
        lambda: rng.choice(spaces) * rng.choice([1, 1, 2, 5]),
        lambda: "".join(rng.choice(every) for _ in range(rng.randint(1, 4))),
        lambda: rng.choice("aeoui한각") + "".join(rng.choice(marks) for _ in range(rng.randint(1, 6))),
        lambda: str(rng.randint(0, 10 ** rng.randint(1, 12))),
        lambda: chr(rng.randint(1, 0x7F)) * rng.randint(1, 8),
        lambda: rng.choice(["🙂", "👍🏽", "👨‍👩‍👧", "🇩🇪🇫🇷", "世界", "한국", "Straße", "ΑΣ"]),
        lambda: rng.choice(["a", " ", "ab", "\n", "é", "!", "9"]) * rng.randint(10, 300),
    ]
    yield from ["", " ", "  ", "a", "\n", "\x00"]
    for _ in range(count):
        yield "".join(rng.choice(makers[:7] if rng.random() < 0.97 else makers)() for _ in range(rng.randint(1, 12)))


def id_lists(count, size, seed):
    rng = random.Random(seed)
    for _ in range(count):
        yield [rng.randint(0, size + 5) for _ in range(rng.randint(0, 12))]


def answers(path, lines, *mode):
    binary = pathlib.Path(os.environ.get("GRANULE_BUILD", "build/dev")) / "tests/encode_lines"
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run = subprocess.run([binary, path, *mode], input=text, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def assert_same(ours, theirs, inputs):
    assert len(ours) == len(theirs)
    wrong = [(i, o, t) for i, o, t in zip(inputs, ours, theirs) if o != t]
    assert not wrong, f"{len(wrong)} of {len(inputs)} differ; input, ours, theirs: {wrong[0]!r}"


FAMILIES = dict(families())


@pytest.mark.parametrize("name", FAMILIES)
def test_same_as_tokenizers(name, tmp_path):
    check(FAMILIES[name], tmp_path / "tokenizer.json", count=int(os.environ.get("GRANULE_ORACLE_STRINGS", "400")))


def check(file, path, count):
    path.write_text(json.dumps(file), encoding="utf-8")
    oracle = tokenizers.Tokenizer.from_file(str(path))
    inputs = list(strings(count, seed=count))
    plain = [e.ids for e in oracle.encode_batch(inputs, add_special_tokens=False)]
    assert_same(answers(path, inputs, "encode"), plain, inputs)
    some = inputs[:100]
    assert_same(answers(path, some, "encode", "add-special"), [e.ids for e in oracle.encode_batch(some)], some)
    oracle.encode_special_tokens = True
    untrusted = [e.ids for e in oracle.encode_batch(inputs, add_special_tokens=False)]
    oracle.encode_special_tokens = False
    assert_same(answers(path, inputs, "encode", "no-special"), untrusted, inputs)

    ids = plain + list(id_lists(count, oracle.get_vocab_size(), seed=7))
    for skip in (False, True):
        flags = ["skip-special"] if skip else []
        theirs = [oracle.decode(line, skip_special_tokens=skip) for line in ids]
        assert_same(answers(path, ids, "decode", *flags), theirs, ids)
        assert_same(answers(path, ids, "stream", *flags), theirs, ids)


if __name__ == "__main__":  # any tokenizer.json: tokenizer_oracle_test.py FILE [STRINGS]
    file = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    check(file, pathlib.Path("oracle-tokenizer.json"), int(sys.argv[2]) if len(sys.argv) > 2 else 5000)
    print("no differences")
