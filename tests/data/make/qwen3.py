"""Qwen3 in plain numpy, for any attention pattern: causal, bidirectional, or block by block over a cache."""
import numpy as np

from numerics import attend, rms_norm, rotate, silu


def random_weights(config, seed):
    """Tensors under their Hugging Face names, not yet rounded; queries are long, so that attention is sharp."""
    random = np.random.RandomState(seed)
    hidden, ff, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (config[name] * dim for name in ("num_attention_heads", "num_key_value_heads"))

    def matrix(rows, columns):
        return random.randn(rows, columns) / np.sqrt(columns)

    def norm(size):
        return 1 + 0.25 * random.randn(size)

    weights = {"model.embed_tokens.weight": 0.35 * random.randn(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "input_layernorm": norm(hidden),
            "self_attn.q_proj": matrix(queries, hidden),
            "self_attn.k_proj": matrix(keys, hidden),
            "self_attn.v_proj": matrix(keys, hidden),
            "self_attn.q_norm": 3 * norm(dim),
            "self_attn.k_norm": norm(dim),
            "self_attn.o_proj": matrix(hidden, queries),
            "post_attention_layernorm": norm(hidden),
            "mlp.gate_proj": matrix(ff, hidden),
            "mlp.up_proj": matrix(ff, hidden),
            "mlp.down_proj": matrix(hidden, ff),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": x for name, x in parts.items()}
    return weights | {"model.norm.weight": norm(hidden)}


class Pass:
    """What one pass over T tokens left: logits [T, V], inputs of the layers, the last norm's output, K and V."""

    def __init__(self):
        self.inputs, self.cache = [], []


class Qwen3:
    def __init__(self, config, weights, dtype):
        self.config = config
        self.weights = {name.removeprefix("model."): x.astype(dtype) for name, x in weights.items()}
        half = config["head_dim"] // 2
        self.frequencies = config["rope_theta"] ** -(np.arange(half) / half)

    def run(self, ids, cache=None, visible=None):
        """One pass over `ids`, which follow the positions of `cache`: K and V per layer.

        Row t sees what `visible` [T, S] says, all without it.
        """
        result, w, eps = Pass(), self.weights, self.config["rms_norm_eps"]
        past = len(cache[0][0]) if cache else 0
        positions = past + np.arange(len(ids))
        if visible is None:
            visible = np.ones((len(ids), past + len(ids)), bool)
        x = w["embed_tokens.weight"][ids]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"layers.{layer}."
            result.inputs.append(x)
            z = rms_norm(x, eps, w[name + "input_layernorm.weight"])
            q, k, v = (self.project(z, name + f"self_attn.{part}") for part in "qkv")
            q, k = rotate(q, positions, self.frequencies), rotate(k, positions, self.frequencies)
            if cache:
                k, v = (np.concatenate(pair) for pair in zip(cache[layer], (k, v)))
            result.cache.append((k, v))
            attended = attend(q, k, v, visible, self.config["head_dim"] ** -0.5)
            x = x + attended @ w[name + "self_attn.o_proj.weight"].T
            z = rms_norm(x, eps, w[name + "post_attention_layernorm.weight"])
            gate, up = (z @ w[name + f"mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            x = x + (silu(gate) * up) @ w[name + "mlp.down_proj.weight"].T
        result.normed = rms_norm(x, eps, w["norm.weight"])
        result.logits = result.normed @ w["embed_tokens.weight"].T
        return result

    def project(self, z, name):
        """Heads [T, heads, d]; those of queries and keys are normed one by one."""
        heads = (z @ self.weights[name + "_proj.weight"].T).reshape(len(z), -1, self.config["head_dim"])
        norm = self.weights.get(name + "_norm.weight")
        return heads if norm is None else rms_norm(heads, self.config["rms_norm_eps"], norm)

    def run_causal(self, ids, cache=None):
        past = len(cache[0][0]) if cache else 0
        columns = np.arange(past + len(ids))
        return self.run(ids, cache, columns <= past + np.arange(len(ids))[:, None])
