"""Reads and writes the formats of the fixtures: safetensors, GGUF and JSON."""
import json
import struct
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def to_bf16(x):
    """The values of `x` rounded to the nearest bfloat16 (even on ties), as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def bf16_bytes(x):
    """The upper halves of float32 numbers that are bfloat16 already."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype("<u2").tobytes()


def read_safetensors(path):
    """Name -> float32 or int32 array."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            data = (np.frombuffer(raw[begin:end], "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            data = np.frombuffer(raw[begin:end], {"F32": "<f4", "I32": "<i4"}[entry["dtype"]])
        tensors[name] = data.reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors, bf16=False):
    """Floats become BF16 or F32, whole numbers I32."""
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        x = np.asarray(tensors[name])
        if x.dtype.kind == "f":
            kind, blob = ("BF16", bf16_bytes(x)) if bf16 else ("F32", x.astype("<f4").tobytes())
        else:
            kind, blob = "I32", x.astype("<i4").tobytes()
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_json(path, value, indent=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _gguf_value(value):
    """Type number and bytes; whole numbers are u32, or i32 inside lists."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _gguf_string(value)
    if isinstance(value[0], int):
        return 9, struct.pack("<IQ", 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return 9, struct.pack("<IQ", 8, len(value)) + b"".join(map(_gguf_string, value))


def write_gguf(path, metadata, tensors, alignment=32):
    """Matrices are stored as BF16, vectors as F32."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, data = _gguf_value(value)
        head += _gguf_string(key) + struct.pack("<I", kind) + data
    body = b""
    for name, x in tensors.items():
        kind, data = (30, bf16_bytes(x)) if x.ndim > 1 else (0, x.astype("<f4").tobytes())
        head += _gguf_string(name) + struct.pack("<I", x.ndim)
        head += struct.pack(f"<{x.ndim}Q", *reversed(x.shape)) + struct.pack("<IQ", kind, len(body))
        body += data + b"\0" * (-len(data) % alignment)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + b"\0" * (-len(head) % alignment) + body)
