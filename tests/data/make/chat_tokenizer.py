"""Makes the tokenizer of diffusion_chat_tiny: byte-level BPE of 512 tokens with DiffusionGemma's special tokens.

    python chat_tokenizer.py

Ids: the special tokens as in DiffusionGemma; the rest ascending: 256 bytes, 210 pairs of capitals (labels of choices),
"yes" and "no" with the step between (labels of yes-no questions), and tokens that no text yields.
"""
from itertools import product
from pathlib import Path
from string import ascii_uppercase

from files import FIXTURES, write_json

VOCAB, PAIRS = 512, 210
SPECIALS = {
    "<pad>": 0,
    "<eos>": 1,
    "<bos>": 2,
    "<unk>": 3,
    "<mask>": 4,
    "<|think|>": 98,
    "<|channel>": 100,
    "<channel|>": 101,
    "<|turn>": 105,
    "<turn|>": 106,
}
NAMED = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "mask", "pad", "unk")}
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def byte_letters():
    """GPT-2's printable letter for each byte: itself where it prints, else the next one from U+0100 on."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(others)) for byte in range(256)]


def merges():
    pairs = list(product(ascii_uppercase, repeat=2))[:PAIRS]
    return pairs + [("y", "e"), ("ye", "s"), ("n", "o")]


def vocabulary():
    """Token -> id."""
    texts = byte_letters() + [left + right for left, right in merges()]
    free = [i for i in range(VOCAB) if i not in SPECIALS.values()]
    texts += [f"<unused{n}>" for n in range(len(free) - len(texts))]
    return SPECIALS | dict(zip(texts, free, strict=True))


class Tokenizer:
    """Enough of it for prompts without capitals pairs, "yes" or "no", and for every answer."""

    def __init__(self):
        self.ids = vocabulary()
        self.bytes = {self.ids[letter]: bytes([byte]) for byte, letter in enumerate(byte_letters())}

    def encode(self, text):
        """Ids of text without special tokens and without what merges."""
        assert not any(left + right in text for left, right in merges())
        return [self.ids[byte_letters()[byte]] for byte in text.encode()]

    def decode(self, ids):
        """The text of ids without the special ones; bytes that are no UTF-8 become U+FFFD."""
        texts = {i: text.encode() for text, i in self.ids.items()} | self.bytes
        shown = (texts[i] for i in ids if i not in SPECIALS.values())
        return b"".join(shown).decode("utf-8", errors="replace")


def write(folder):
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bos, text = ({kind: {"id": name, "type_id": 0}} for kind, name in (("SpecialToken", "<bos>"), ("Sequence", "A")))
    second = {"Sequence": {"id": "B", "type_id": 0}}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **plain} for text, i in SPECIALS.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, text],
            "pair": [bos, text, second],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [SPECIALS["<bos>"]], "tokens": ["<bos>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(sorted(vocabulary().items(), key=lambda item: item[1])),
            "merges": [list(pair) for pair in merges()],
        },
    }
    config = NAMED | {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {str(i): {"content": text, **plain} for text, i in SPECIALS.items()},
        "chat_template": TEMPLATE.read_text(encoding="utf-8"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": 16384,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "special_tokens_map.json", NAMED)


if __name__ == "__main__":
    write(FIXTURES / "diffusion_chat_tiny")
