"""DiffusionGemma in plain numpy: the causal pass that writes the cache, the canvas pass, and the entropy-bound loop."""
import numpy as np

from numerics import SplitMix64, attend, gelu_tanh, inverse_cdf, rms_norm, rotate, softmax

DECODER, ENCODER = "model.decoder.", "model.encoder.language_model."


class DiffusionGemma:
    """A network with the K and V of the committed positions."""

    def __init__(self, config, weights, dtype):
        self.config, self.text = config, config["text_config"]
        self.weights = {name: x.astype(dtype) for name, x in weights.items()}
        self.embedding = self.weights[DECODER + "embed_tokens.weight"]
        self.eps, self.kinds = self.text["rms_norm_eps"], self.text["layer_types"]
        self.cache = [None] * len(self.kinds)
        self.committed = 0

    def norm(self, x, name):
        return rms_norm(x, self.eps, self.weights[DECODER + name + ".weight"])

    def linear(self, x, name):
        return x @ self.weights[DECODER + name + ".weight"].T

    def mlp(self, x, name):
        gate, up = self.linear(x, name + "gate_proj"), self.linear(x, name + "up_proj")
        return self.linear(gelu_tanh(gate) * up, name + "down_proj")

    def embed(self, ids):
        return self.embedding[ids] * np.sqrt(self.text["hidden_size"]).astype(self.embedding.dtype)

    def commit(self, ids):
        """Final tokens: each sees itself and what is before it."""
        self.layers(self.embed(ids), is_canvas=False)
        self.committed += len(ids)

    def denoise(self, canvas, previous):
        """Logits [C, V]; `previous` are those of the step before, divided by its temperature."""
        x = self.embed(canvas)
        soft = np.zeros_like(x) if previous is None else softmax(previous) @ self.embed(slice(None))
        x = rms_norm(x + self.mlp(self.norm(soft, "self_conditioning.pre_norm"), "self_conditioning."), self.eps)
        logits = self.norm(self.layers(x, is_canvas=True), "norm") @ self.embedding.T
        cap = self.text["final_logit_softcapping"]
        return np.tanh(logits / cap) * cap

    def layers(self, x, is_canvas):
        for layer in range(len(self.kinds)):
            name = f"layers.{layer}."
            attended = self.attention(self.norm(x, name + "input_layernorm"), layer, is_canvas)
            x = x + self.norm(attended, name + "post_attention_layernorm")
            dense = self.mlp(self.norm(x, name + "pre_feedforward_layernorm"), name + "mlp.")
            both = self.norm(dense, name + "post_feedforward_layernorm_1")
            both = both + self.norm(self.experts(x, name), name + "post_feedforward_layernorm_2")
            x = x + self.norm(both, name + "post_feedforward_layernorm")
            x = x * self.weights[(DECODER if is_canvas else ENCODER) + name + "layer_scalar"]
        return x

    def attention(self, z, layer, is_canvas):
        name, is_local = f"layers.{layer}.self_attn.", self.kinds[layer] == "sliding_attention"
        dim = self.text["head_dim" if is_local else "global_head_dim"]
        positions = self.committed + np.arange(len(z))

        def heads(part):
            return self.linear(z, name + part).reshape(len(z), -1, dim)

        k = heads("k_proj")
        v = rms_norm(heads("v_proj") if is_local else k, self.eps)
        frequencies = self.frequencies(layer, dim)
        q = rotate(self.norm(heads("q_proj"), name + "q_norm"), positions, frequencies)
        k = rotate(self.norm(k, name + "k_norm"), positions, frequencies)
        if self.cache[layer]:
            k, v = (np.concatenate(pair) for pair in zip(self.cache[layer], (k, v)))
        if not is_canvas:
            self.cache[layer] = (k, v)

        columns, rows = np.arange(len(k)), positions[:, None]
        visible = columns <= (len(k) if is_canvas else rows)
        if is_local:
            visible = visible & (columns > (self.committed if is_canvas else rows) - self.text["sliding_window"])
        visible = np.broadcast_to(visible, (len(z), len(k)))
        return self.linear(attend(q, k, v, visible, 1.0), name + "o_proj")

    def frequencies(self, layer, dim):
        rope, half = self.text["rope_parameters"][self.kinds[layer]], dim // 2
        turning = int(half * rope.get("partial_rotary_factor", 1.0))
        return np.where(np.arange(half) < turning, rope["rope_theta"] ** -(np.arange(half) / half), 0.0)

    def experts(self, x, name):
        w = {part: self.weights[f"{DECODER}{name}{part}"] for part in ("router.scale", "router.per_expert_scale")}
        gate_up, down = (self.weights[f"{DECODER}{name}experts.{part}_proj"] for part in ("gate_up", "down"))
        scaled = rms_norm(x, self.eps) * w["router.scale"] / np.sqrt(x.shape[1]).astype(x.dtype)
        scores = softmax(self.linear(scaled, name + "router.proj"))
        rank = np.argsort(np.argsort(-scores, axis=-1, kind="stable"), axis=-1)
        kept = np.where(rank < self.text["top_k_experts"], scores, 0)
        share = kept / kept.sum(axis=-1, keepdims=True) * w["router.per_expert_scale"]
        z = self.norm(x, name + "pre_feedforward_layernorm_2")
        gate, up = np.split(np.einsum("td,efd->tef", z, gate_up), 2, axis=-1)
        return np.einsum("tef,edf,te->td", gelu_tanh(gate) * up, down, share)


def generate(network, prompt, options, seed, max_new_tokens):
    """The answer, its canvases' steps, and the least distances of its decisions to their boundaries.

    Draws: one token per position of a fresh canvas; then in each step a unit per position (the candidate, by inverse
    CDF) and after these a token per position (the new noise), whether it is used or not.
    """
    length, vocab, random = network.config["canvas_length"], len(network.embedding), SplitMix64(seed)
    output, canvases, pending, margins = [], [], prompt, []
    for _ in range(-(-max_new_tokens // length)):
        network.commit(pending)
        canvas, previous, drafts, steps = [random.token(vocab) for _ in range(length)], None, [], []
        for left in range(options["max_denoising_steps"], 0, -1):
            low, high = options["t_min"], options["t_max"]
            temperature = low + (high - low) * left / options["max_denoising_steps"]
            previous = network.denoise(canvas, previous) / np.asarray(temperature, network.embedding.dtype)
            probabilities = softmax(previous.astype(np.float64))
            entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(axis=-1)
            drawn = [inverse_cdf(row, random.unit()) for row in probabilities]
            noise = [random.token(vocab) for _ in range(length)]

            order = np.argsort(entropy, kind="stable")
            before = np.cumsum(entropy[order]) - entropy[order]
            accepted = np.zeros(length, bool)
            accepted[order] = before <= options["entropy_bound"]
            draft = previous.argmax(axis=-1).tolist()
            best = np.sort(previous, axis=-1)
            mean, window = entropy.mean(), options["stability_threshold"]
            margins.append({
                "draw": min(margin for (_, margin), used in zip(drawn, accepted) if used),
                "bound": float(np.abs(before - options["entropy_bound"]).min()),
                "argmax": float((best[:, -1] - best[:, -2]).min()),
                "stop": float(abs(mean - options["confidence_threshold"])),
            })
            stable = len(drafts) >= window and all(earlier == draft for earlier in drafts[len(drafts) - window :])
            after = [token if used else other for (token, _), used, other in zip(drawn, accepted, noise)]
            step = {"canvas_in": canvas, "accepted": accepted.astype(int).tolist()}
            steps.append(step | {"argmax": draft, "canvas_out": after})
            drafts.append(draft)
            canvas = after
            if stable and mean < options["confidence_threshold"]:
                break
        canvases.append(steps)
        ends = [i for i, token in enumerate(draft) if token in options["eos_token_id"]]
        if ends:
            draft = draft[: ends[0] + 1] + [options["pad_token_id"]] * (length - ends[0] - 1)
        output += draft
        pending = draft
        if ends:
            break
    return output, canvases, {key: min(m[key] for m in margins) for key in margins[0]}
