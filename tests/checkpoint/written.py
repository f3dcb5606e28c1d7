"""Files as the tests want them: headers of safetensors files and GGUF files, byte by byte."""

from __future__ import annotations

import json
import struct

import pytest

import rocmkern
from rocmkern.runtime.errors import CheckpointError


def safetensors(header, data=b"", length=None):
    """Bytes of a safetensors file; the header as an object or as its text."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype="U8", shape=(2,), begin=0, end=2):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def text(x):
    raw = x if isinstance(x, bytes) else x.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key, kind, value):
    """A key-value pair; the value as bytes."""
    return text(key) + struct.pack("<I", kind) + value


def tensor(name, extents, kind=0, offset=0):
    """A tensor of a header; extents from the innermost one on."""
    return text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, offset)


def gguf(pairs=(), tensors=(), data=b"", version=3, counts=None, alignment=32):
    """Bytes of a GGUF file."""
    count, keys = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, count, keys) + b"".join([*pairs, *tensors])
    return head + b"\0" * (-len(head) % alignment) + data


def refusal(path, data):
    """The message of opening a file of some bytes: it names the file, here without its directory, and is short."""
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        rocmkern.open_checkpoint(path)
    message = str(caught.value)
    assert path.name in message and len(message) < 700
    return message.replace(f"{path.parent}/", "")
