"""Makes diffusion_chat_tiny: the weights of diffusion_gemma_tiny with a tokenizer that can chat, and two answers.

    python chat_fixture.py

The canvas has 64 positions, so that it holds the empty thought, twelve answers of one label each and the turn's end.
The second answer meets the end of the turn, the first does not.
"""
import json
import shutil

import numpy as np

import chat_tokenizer
from diffusion_gemma import DiffusionGemma, generate
from files import FIXTURES, read_safetensors, write_json

CANVAS, CONTEXT, NEW_TOKENS, MARGIN = 64, 16384, 64, 1e-4
TRACES = {"chat_trace": 5, "chat_trace_eos": 19}
GENERATION = {
    "max_new_tokens": 256,
    "max_denoising_steps": 8,
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
    "t_min": 0.4,
    "t_max": 0.8,
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
    "bos_token_id": 2,
    "eos_token_id": [1, 106],
    "pad_token_id": 0,
}


def templated(tokenizer, message):
    """Ids of one user message with thinking off, as the chat template writes it."""
    turn, end, channel, close = (chat_tokenizer.SPECIALS[t] for t in ("<|turn>", "<turn|>", "<|channel>", "<channel|>"))
    user, line, model, thought = map(tokenizer.encode, (f"user\n{message}", "\n", "model\n", "thought\n"))
    return [2, turn, *user, end, *line, turn, *model, channel, *thought, close]


def networks(config, weights):
    """The network itself, in float32, and with errors of 1e-5: each must decide alike (about experts, too)."""
    yield DiffusionGemma(config, weights, np.float64)
    yield DiffusionGemma(config, weights, np.float32)
    random = np.random.RandomState(0)
    for _ in range(4):
        inexact = {name: x * (1 + 1e-5 * random.randn(*x.shape)) for name, x in weights.items()}
        yield DiffusionGemma(config, inexact, np.float64)


def main():
    source, folder = FIXTURES / "diffusion_gemma_tiny", FIXTURES / "diffusion_chat_tiny"
    config = json.loads((source / "config.json").read_text())
    config["canvas_length"] = CANVAS
    config["text_config"]["max_position_embeddings"] = CONTEXT
    chat_tokenizer.write(folder)
    shutil.copyfile(source / "model.safetensors", folder / "model.safetensors")
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", GENERATION)

    tokenizer, weights = chat_tokenizer.Tokenizer(), read_safetensors(source / "model.safetensors")
    prompt = templated(tokenizer, "Hello")
    options = GENERATION | GENERATION["sampler_config"]
    for name, seed in TRACES.items():
        runs = [generate(network, prompt, options, seed, NEW_TOKENS) for network in networks(config, weights)]
        output, canvases, margins = runs[0]
        assert all(run[:2] == (output, canvases) for run in runs) and min(margins.values()) > MARGIN
        ends = [i for i, token in enumerate(output) if token in GENERATION["eos_token_id"]]
        text = tokenizer.decode(output[: ends[0]] if ends else output)
        trace = {"prompt_ids": prompt, "seed": seed, "max_new_tokens": NEW_TOKENS, "output": output, "text": text}
        trace["steps"] = [len(steps) for steps in canvases]
        write_json(folder / f"{name}.json", trace, indent=None)
        accepted = [[sum(step["accepted"]) for step in steps] for steps in canvases]
        print(f"{name}: accepted {accepted}, margins {margins}, end {ends[:1]}, {text!r}")


if __name__ == "__main__":
    main()
