"""Makes qwen3_tiny (autoregressive; also as GGUF), qwen3_mdlm_tiny and qwen3_bd3lm_tiny (masked diffusion).

    python qwen3_fixtures.py

Weights are random numbers rounded to bfloat16. References are computed in float64 and stored as float32. Traces are
computed a second time in float32, which must decide the same everywhere.
"""
from functools import partial

import numpy as np

from files import FIXTURES, to_bf16, write_gguf, write_json, write_safetensors
from masked import ByCount, ByThreshold, Denoiser
from numerics import SplitMix64
from qwen3 import Qwen3, random_weights

VOCAB, MASK, BLOCK = 512, 511, 8
PROMPT, ANSWER = 13, 16
MARGIN = 1e-4

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "max_window_layers": 3,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}
MASKED_CONFIG = CONFIG | {
    "architectures": ["A2DQwen3LMHeadModel"],
    "head_dim": 16,
    "layer_types": ["full_attention"] * 3,
    "model_type": "a2d-qwen3",
}

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def prompt(length, seed):
    """BOS and ordinary tokens: neither special ones nor the mask."""
    random = SplitMix64(seed)
    return [2] + [8 + random.token(MASK - 8) for _ in range(length - 1)]


def rounded_weights(config, seed):
    return {name: to_bf16(x) for name, x in random_weights(config, seed).items()}


def hidden(result):
    return {f"hidden.{i}": x for i, x in enumerate(result.inputs)} | {"hidden.final_normed": result.normed}


def autoregressive(seed=162):
    weights = rounded_weights(CONFIG, seed)
    network = Qwen3(CONFIG, weights, np.float64)
    ids = prompt(24, seed)
    prefill = network.run_causal(ids)

    random, cache, rows = SplitMix64(seed + 1), prefill.cache, []
    decode_ids = [8 + random.token(VOCAB - 8) for _ in range(4)]
    for token in decode_ids:
        result = network.run_causal([token], cache)
        rows.append(result.logits[0])
        cache = result.cache
    whole = network.run_causal(ids + decode_ids)
    assert np.allclose(whole.logits[len(ids) :], rows, atol=1e-9)

    greedy, result = [], prefill
    for _ in range(12):
        best, second = np.sort(result.logits[-1])[:-3:-1]
        assert best - second > MARGIN
        greedy.append(int(result.logits[-1].argmax()))
        result = network.run_causal(greedy[-1:], result.cache)

    folder = FIXTURES / "qwen3_tiny"
    write_json(folder / "config.json", CONFIG)
    write_safetensors(folder / "model.safetensors", weights, bf16=True)
    reference = {"input_ids": np.array(ids), "prefill_logits": prefill.logits, **hidden(prefill)}
    reference |= {"decode_ids": np.array(decode_ids), "decode_logits": np.array(rows), "greedy_ids": np.array(greedy)}
    write_safetensors(folder / "reference.safetensors", reference)
    gguf(weights)
    print("qwen3_tiny: greedy", greedy)


def gguf(weights):
    """The same weights as llama.cpp names them; Qwen3's queries and keys are not permuted."""
    tensors = {}
    for name, x in weights.items():
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            _, _, layer, stem = stem.split(".", 3)
            tensors[f"blk.{layer}.{GGUF_NAMES[stem]}.weight"] = x
        else:
            tensors[GGUF_NAMES[stem] + ".weight"] = x
    c = CONFIG
    numbers = {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.key_length": c["head_dim"],
        "attention.value_length": c["head_dim"],
        "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
        "rope.freq_base": float(c["rope_theta"]),
    }
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    metadata = {"general.architecture": "qwen3", "general.name": "qwen3_tiny", "general.file_type": 32}
    metadata |= {f"qwen3.{key}": value for key, value in numbers.items()}
    metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": specials + [f"t{i}" for i in range(len(specials), VOCAB)],
        "tokenizer.ggml.token_type": [3] * len(specials) + [1] * (VOCAB - len(specials)),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
    write_gguf(FIXTURES / "qwen3_tiny_gguf" / "model.gguf", metadata, tensors)


def mdlm_run(network, ids, denoiser, steps):
    """All answer positions are one block; every pass runs over prompt and answer, each seeing all."""

    def forward(tokens):
        return network.run(ids + tokens).logits[len(ids) :]

    init = [MASK] * ANSWER
    steps = denoiser.denoise(init, forward, ByCount(ANSWER, steps))
    return [{"start": len(ids), "steps": steps}], steps[-1]["tokens_out"]


def bd3lm_run(network, ids, denoiser, threshold):
    """Blocks at multiples of BLOCK; a block sees itself and all before it. Returns blocks, output and the cache."""
    end = -(-(len(ids) + ANSWER) // BLOCK) * BLOCK
    tokens = ids + [MASK] * (end - len(ids))
    cache, blocks = None, []
    for start in range(0, end, BLOCK):
        block = tokens[start : start + BLOCK]

        def forward(tokens):
            return network.run(tokens, cache).logits

        steps = denoiser.denoise(block, forward, ByThreshold(threshold))
        if steps:
            blocks.append({"start": start, "steps": steps})
            block = steps[-1]["tokens_out"]
        tokens[start : start + BLOCK] = block
        cache = network.run(block, cache).cache
    return blocks, tokens[len(ids) :], cache


def staircase(length):
    block = np.arange(length) // BLOCK
    return block <= block[:, None]


def decisions(blocks):
    keys = ("candidate", "chosen", "tokens_out")
    return [[step[key] for key in keys] for block in blocks for step in block["steps"]]


def trace(name, params, ids, run, networks, seeds=(None,)):
    """The run of the first seed with no decision near its boundary and no EOS in the answer."""
    for seed in seeds:
        runs, margins = [], []
        for network in networks:
            denoiser = Denoiser(MASK, params["temperature"], seed)
            runs.append(run(network, ids, denoiser))
            margins.append(denoiser.margin)
        if min(margins) > MARGIN and 1 not in runs[0][1]:
            break
    else:
        raise SystemExit(f"{name}: no seed keeps clear of the boundaries")
    assert decisions(runs[0][0]) == decisions(runs[1][0])
    blocks, output = runs[0][:2]
    counts = [[len(step["chosen"]) for step in block["steps"]] for block in blocks]
    print(f"{name}: seed {seed}, chosen {counts}, margin {min(margins):.1e}, output {output}")
    return {"params": params, "seed": seed, "prompt": ids, "blocks": blocks, "output": output}, runs[0]


def masked(seed=163, threshold=0.2, steps=6, temperature=0.7):
    weights = rounded_weights(MASKED_CONFIG, seed)
    networks = [Qwen3(MASKED_CONFIG, weights, dtype) for dtype in (np.float64, np.float32)]
    ids = prompt(PROMPT, seed)
    for kind, length in (("mdlm", ANSWER), ("bd3lm", BLOCK)):
        folder = FIXTURES / f"qwen3_{kind}_tiny"
        # Published checkpoints do not say which of the two they are: this key is Laneway's own.
        own = {"kind": kind, "block_length": length, "mask_token_id": MASK}
        write_json(folder / "config.json", MASKED_CONFIG | {"diffusion": own})
        write_safetensors(folder / "model.safetensors", weights, bf16=True)

    canvas = networks[0].run(ids + [MASK] * ANSWER)
    reference = {"input_ids": np.array(ids), "canvas_logits.step0": canvas.logits, **hidden(canvas)}
    write_safetensors(FIXTURES / "qwen3_mdlm_tiny" / "reference.safetensors", reference)
    cold = {"kind": "mdlm", "mask_token_id": MASK, "block_length": ANSWER}
    cold |= {"selection": "count", "steps": steps, "temperature": 0.0}
    run = partial(mdlm_run, steps=steps)
    traces = {
        "low_confidence": trace("mdlm, greedy", cold, ids, run, networks)[0],
        "temperature": trace("mdlm, drawn", cold | {"temperature": temperature}, ids, run, networks, range(1000))[0],
    }
    write_json(FIXTURES / "qwen3_mdlm_tiny" / "trace.json", traces, indent=None)

    params = {"kind": "bd3lm", "mask_token_id": MASK, "block_length": BLOCK, "selection": "threshold"}
    params |= {"threshold": threshold, "least": 1, "temperature": 0.0}
    run = partial(bd3lm_run, threshold=threshold)
    record, (_, output, cache) = trace("bd3lm", params, ids, run, networks)
    write_json(FIXTURES / "qwen3_bd3lm_tiny" / "trace.json", {"threshold": record}, indent=None)
    first = networks[0].run(ids[:BLOCK])
    block = ids[BLOCK:] + [MASK] * (2 * BLOCK - PROMPT)
    second = networks[0].run(block, first.cache)
    whole = networks[0].run(ids[:BLOCK] + block, visible=staircase(2 * BLOCK))
    assert np.allclose(whole.logits[BLOCK:], second.logits, atol=1e-9)
    clean = networks[0].run(ids + output, visible=staircase(len(ids + output)))
    reference = {"input_ids": np.array(ids), "prefix_logits": first.logits, "block_ids.step0": np.array(block)}
    reference |= {"block_logits.step0": second.logits, **hidden(second)}
    for layer, pair in enumerate(cache):
        for letter, x, same in zip("kv", pair, clean.cache[layer]):
            assert np.allclose(x, same, atol=1e-9)
            reference[f"cache_{letter}.{layer}"] = x.swapaxes(0, 1)
    write_safetensors(FIXTURES / "qwen3_bd3lm_tiny" / "reference.safetensors", reference)


if __name__ == "__main__":
    autoregressive()
    masked()
