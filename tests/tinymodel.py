# tinymodel.py - makes small decoder folders for the trials. Needs: numpy, onnx.
import json, os, numpy as np, onnx
from onnx import helper as oh, numpy_helper as nh, TensorProto as TP

def rnd(n, seed, scale):                       # portable "random" weights, no library RNG
    i = np.arange(n, dtype=np.uint64)
    x = (i * np.uint64(2654435761) + np.uint64(seed) * np.uint64(40503) + np.uint64(12345)) % np.uint64(1 << 32)
    x = (x ^ (x >> np.uint64(15))) * np.uint64(2246822519) % np.uint64(1 << 32)
    x = (x ^ (x >> np.uint64(13))) * np.uint64(3266489917) % np.uint64(1 << 32)
    return ((x ^ (x >> np.uint64(16))).astype(np.float64) / 2**32 * 2 - 1).astype(np.float32) * scale

def byte_chars():                              # the GPT-2 byte <-> printable character table
    bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)); cs = bs[:]; n = 0
    for b in range(256):
        if b not in bs: bs.append(b); cs.append(256 + n); n += 1
    return {b: chr(c) for b, c in zip(bs, cs)}

SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|eos2|>", "<|pad|>"]   # ids 256..261
TEMPLATE = ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")

def tokenizer(words=()):                       # words get ids 262, 263, ...
    bc = byte_chars(); vocab = {bc[b]: b for b in range(256)}
    vocab.update({s: 256 + k for k, s in enumerate(SPECIAL)})
    for k, w in enumerate(words): vocab["".join(bc[b] for b in w.encode())] = 262 + k
    added = [dict(id=256 + k, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False,
                  special=True) for k, s in enumerate(SPECIAL)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}

def make(out, script=None, words=(), fork=None, vocab=320, heads=4, kv_heads=2, head_dim=8, ctx=4096, kv="float32",
         position_ids=True, gqa=None, longrope=0, quant=None, eos=256, sub="", config=None, genai=None):
    """script: list of ids -> 'table' model: the last token alone decides the next one. None -> 'recall' model:
    the next token depends on every earlier token and its position. fork={id: [a, b]} makes a fair coin after id,
    fork={id: [a, (b, 10.0)]} a clear first and second choice."""
    os.makedirs(os.path.join(out, sub), exist_ok=True)
    table = script is not None
    H = 512 if table else 32; V = vocab; hq, hk, D = heads, kv_heads, head_dim
    init, nodes = [], []
    def const(name, a): init.append(nh.from_array(np.array(a, order="C"), name)); return name
    def op(t, ins, outs, domain="", **kw): nodes.append(oh.make_node(t, ins, outs, domain=domain, **kw)); return outs[0]
    if table:
        E = np.eye(V, H, dtype=np.float32); W = np.zeros((H, V), np.float32)
        nxt = {t: script[0] for t in range(V)}
        for a, b in zip(script, script[1:] + [eos if isinstance(eos, int) else eos[0]]): nxt[a] = b
        for t in range(V):
            for b in (fork or {}).get(t, [nxt[t]]):
                b, w = b if isinstance(b, tuple) else (b, 20.0); W[t, b] = w
        pos = np.zeros((ctx, 1), np.float32); so = 0.0
    else:
        E = rnd(V * H, 1, 1.0).reshape(V, H); W = rnd(H * V, 2, 1.0).reshape(H, V)
        W[:, [t for t in range(V) if t != 32 and not 97 <= t <= 122]] = 0    # it only ever writes a-z and space
        pos = rnd(ctx * H, 3, 0.5).reshape(ctx, H); so = 0.6 * (32 / (hq * D)) ** 0.5
    wq = const("wq", rnd(H * hq * D, 4, 0.4).reshape(H, -1)); wk = const("wk", rnd(H * hk * D, 5, 0.4).reshape(H, -1))
    wv = const("wv", rnd(H * hk * D, 6, 0.6).reshape(H, -1)); wo = const("wo", rnd(hq * D * H, 7, so).reshape(-1, H))
    e = op("Gather", [const("embed", E), "input_ids"], ["e"])
    S = op("Gather", [op("Shape", ["input_ids"], ["ids_shape"]), const("one", np.array(1, np.int64))], ["S"])
    if position_ids: pid = "position_ids"
    else:                                       # no position input: derive it from the mask
        cs = op("CumSum", ["attention_mask", const("axis1", np.array(1, np.int64))], ["cs"])
        p0 = op("Clip", [op("Sub", [cs, const("i1", np.array(1, np.int64))], ["p_all"]), const("i0", np.array(0, np.int64))], ["p_clip"])
        negS = op("Neg", [op("Unsqueeze", ["S", const("ax0a", np.array([0], np.int64))], ["S1"])], ["negS"])
        pid = op("Slice", [p0, negS, const("big", np.array([1 << 40], np.int64)), const("axs", np.array([1], np.int64))], ["pid"])
    if longrope:                                # the whole table changes once the sequence is longer than `longrope`
        mx = op("ReduceMax", [pid], ["mx"], keepdims=0)
        p = op("Where", [op("GreaterOrEqual", [mx, const("orig", np.array(longrope, np.int64))], ["is_long"]),
                         const("pos_long", pos[::-1].copy()), const("pos", pos)], ["pos_sel"])
    else: p = const("pos", pos)
    h = op("Add", [e, op("Gather", [p, pid], ["pe"])], ["h"])
    q = op("MatMul", [h, wq], ["q"]); k = op("MatMul", [h, wk], ["k"]); v = op("MatMul", [h, wv], ["v"])
    f16 = kv == "float16"; KT = TP.FLOAT16 if f16 else TP.FLOAT
    if gqa is not None:                         # com.microsoft.GroupQueryAttention, optional packed QKV and window
        am = op("Cast", ["attention_mask"], ["am32"], to=TP.INT32)
        tot = op("ReduceSum", [am, const("axs1", np.array([1], np.int64))], ["tot"], keepdims=0)
        sk = op("Sub", [tot, const("i1_32", np.array(1, np.int32))], ["seqlens_k"])
        tl = op("Cast", [op("Gather", [op("Shape", ["attention_mask"], ["am_shape"]), "one"], ["T0"])], ["total"], to=TP.INT32)
        pk, pv = "past_key_values.0.key", "past_key_values.0.value"
        ins = [op("Concat", [q, k, v], ["qkv"], axis=-1), "", ""] if gqa.get("packed") else [q, k, v]
        op("GroupQueryAttention", ins + [pk, pv, sk, tl], ["a", "present.0.key", "present.0.value"], domain="com.microsoft",
           num_heads=hq, kv_num_heads=hk, local_window_size=gqa.get("window", -1), do_rotary=0)
        a = "a"
    else:                                       # plain operators, as an Optimum export writes them
        def split(x, n, name):
            r = op("Reshape", [x, const(name + "_shape", np.array([0, 0, n, D], np.int64))], [name + "_r"])
            return op("Transpose", [r], [name + "_t"], perm=[0, 2, 1, 3])
        qt, kt, vt = split(q, hq, "q4"), split(k, hk, "k4"), split(v, hk, "v4")
        if f16: kt = op("Cast", [kt], ["k_h"], to=KT); vt = op("Cast", [vt], ["v_h"], to=KT)
        ka = op("Concat", ["past_key_values.0.key", kt], ["present.0.key"], axis=2)
        va = op("Concat", ["past_key_values.0.value", vt], ["present.0.value"], axis=2)
        if f16: ka = op("Cast", [ka], ["k_f"], to=TP.FLOAT); va = op("Cast", [va], ["v_f"], to=TP.FLOAT)
        def rep(x, name):                       # repeat kv heads
            g = hq // hk
            u = op("Unsqueeze", [x, const(name + "_ax", np.array([2], np.int64))], [name + "_u"])
            u = op("Concat", [u] * g, [name + "_c"], axis=2)
            return op("Reshape", [u, const(name + "_s", np.array([0, hq, -1, D], np.int64))], [name + "_rep"])
        ka, va = rep(ka, "kr"), rep(va, "vr")
        T = op("Gather", [op("Shape", [ka], ["ka_shape"]), const("two", np.array(2, np.int64))], ["T"])
        z, o1 = const("z", np.array(0, np.int64)), const("o1", np.array(1, np.int64))
        kp = op("Range", [z, T, o1], ["kp"]); qp = op("Range", [op("Sub", [T, "S"], ["T_S"]), T, o1], ["qp"])
        cm = op("LessOrEqual", [op("Unsqueeze", [kp, const("ax0", np.array([0], np.int64))], ["kp1"]),
                                op("Unsqueeze", [qp, const("ax1", np.array([1], np.int64))], ["qp1"])], ["causal"])
        pm = op("Unsqueeze", [op("Cast", ["attention_mask"], ["amb"], to=TP.BOOL), const("ax12", np.array([1, 2], np.int64))], ["am4"])
        m = op("Where", [op("And", [cm, pm], ["ok"]), const("f0", np.float32(0)), const("fneg", np.float32(-1e9))], ["mask"])
        s = op("Mul", [op("MatMul", [qt, op("Transpose", [ka], ["kT"], perm=[0, 1, 3, 2])], ["qk"]), const("scale", np.float32(D ** -0.5))], ["qks"])
        a = op("MatMul", [op("Softmax", [op("Add", [s, m], ["qkm"])], ["prob"], axis=-1), va], ["av"])
        a = op("Reshape", [op("Transpose", [a], ["avt"], perm=[0, 2, 1, 3]), const("avs", np.array([0, 0, hq * D], np.int64))], ["a"])
    y = op("Add", [h, op("MatMul", [a, wo], ["o"])], ["y"])
    if quant:                                   # 4-bit lm_head; zero_points left out when quant["zp"] is None
        bs, zp = quant["block"], quant.get("zp"); z0 = 8 if zp is None else zp
        nb = -(-H // bs); pad = np.zeros((V, nb * bs), np.float32); pad[:, :H] = W.T
        blk = pad.reshape(V, nb, bs); sc = np.maximum(np.abs(blk).max(-1) / (15 - z0), 1e-8).astype(np.float32)
        code = np.clip(np.rint(blk / sc[..., None]) + z0, 0, 15).astype(np.uint8)
        ins = [y, const("wqt", (code[..., 0::2] | (code[..., 1::2] << 4)).reshape(V, nb, bs // 2)), const("wsc", sc)]
        if zp is not None: ins.append(const("wzp", np.full((V, (nb + 1) // 2), zp | zp << 4, np.uint8)))
        op("MatMulNBits", ins, ["logits"], domain="com.microsoft", K=H, N=V, bits=4, block_size=bs)
    else: op("MatMul", [y, const("lm_head", W)], ["logits"])
    vi = oh.make_tensor_value_info
    gi = [vi("input_ids", TP.INT64, ["batch", "seq"]), vi("attention_mask", TP.INT64, ["batch", "total"])]
    if position_ids: gi.append(vi("position_ids", TP.INT64, ["batch", "seq"]))
    for n in ("key", "value"): gi.append(vi(f"past_key_values.0.{n}", KT, ["batch", hk, "past", D]))
    go = [vi("logits", TP.FLOAT, ["batch", "seq", V])] + [vi(f"present.0.{n}", KT, ["batch", hk, "total", D]) for n in ("key", "value")]
    m = oh.make_model(oh.make_graph(nodes, "tiny", gi, go, init), opset_imports=[oh.make_opsetid("", 17), oh.make_opsetid("com.microsoft", 1)], ir_version=8)
    onnx.save(m, os.path.join(out, sub, "model.onnx"))
    cfg = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=H, num_hidden_layers=1, num_attention_heads=hq,
               num_key_value_heads=hk, head_dim=D, vocab_size=V, max_position_embeddings=ctx, bos_token_id=None, pad_token_id=261,
               eos_token_id=eos if isinstance(eos, int) else eos[0], torch_dtype="float32")
    cfg.update(config or {})
    dump = lambda n, x: json.dump(x, open(os.path.join(out, n), "w", encoding="utf-8"), ensure_ascii=False)
    dump("config.json", cfg); dump("generation_config.json", dict(eos_token_id=eos, pad_token_id=261)); dump("tokenizer.json", tokenizer(words))
    dump("tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|end|>", pad_token="<|pad|>", chat_template=TEMPLATE))
    if genai is not None:                       # ONNX Runtime GenAI folder: same graph, its own config file
        dump("genai_config.json", {"model": {"type": "llama", "bos_token_id": 257, "eos_token_id": eos, "pad_token_id": 261, "context_length": ctx, "vocab_size": V,
            "decoder": {"session_options": {"provider_options": []}, "filename": os.path.join(sub, "model.onnx"), "head_size": D, "hidden_size": H,
                "num_attention_heads": hq, "num_hidden_layers": 1, "num_key_value_heads": hk,
                "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **({"position_ids": "position_ids"} if position_ids else {}),
                           "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
                "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}}},
            "search": {"do_sample": False, "max_length": ctx, "past_present_share_buffer": True, **genai}})
