"""Damaged checkpoints by number: which one it is follows from a seed and a number alone.

A checkpoint is files by name. Some of a few sound ones are cut, flipped, written over, spliced, or have numbers and
words of their headers exchanged. Whatever comes of it, opening and reading it ends in a `RocmkernError`, or in tensors
that are what the bytes of the files say (`open_all`).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from written import entry, gguf, pair, safetensors, tensor, text

import rocmkern
from rocmkern.decoder import DecoderConfig, load_weights
from rocmkern.runtime.errors import RocmkernError

Files = dict[str, bytes]

INDEX = "model.safetensors.index.json"
#: Numbers that are the end of something.
NUMBERS = (0, 1, 2, 7, 31, 32, 255, 4096, *(2**n + d for n in (15, 16, 31, 32, 53, 62, 63, 64) for d in (-1, 0)))
#: What stands in the place of a number or a word of a JSON text.
WORDS = (
    "-1", "1e400", "0.5", "NaN", "null", "true", "[]", "{}", '""', '"a"', "01", "[[", "9" * 30, "9" * 5000, '"\\u0000"',
    '"\\ud800"', '"../one.safetensors"', '"F64"', '"F4"', '"F6_E2M3"', '"two.safetensors"', "[1,2,3]", "[" * 2000,
)  # fmt: skip


# -------------------------------------------------------------------------------------------------- sound checkpoints


def one_file() -> Files:
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", (3, 4), 0, 48),
        "b": entry("BF16", (8,), 48, 64),
        "c": entry("F8_E4M3", (2, 8), 64, 80),
        "d": entry("F4", (16,), 80, 88),
        "e": entry("I64", (), 88, 96),
        "f": entry("U8", (0, 5), 96, 96),
    }
    return {"model.safetensors": safetensors(header, bytes(range(96))), "config.json": b'{"model_type": "other"}'}


def two_files() -> Files:
    one = {"a": entry("F16", (4,), 0, 8), "b": entry("F16", (4,), 8, 16)}
    two = {"b": entry("F16", (4,), 0, 8), "c": entry("I32", (1, 2), 8, 16)}
    weight_map = {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}
    return {
        "one.safetensors": safetensors(one, bytes(range(16))),
        "two.safetensors": safetensors(two, bytes(range(16, 32))),
        INDEX: json.dumps({"metadata": {"total_size": 32}, "weight_map": weight_map}, indent=1).encode(),
    }


def _model() -> dict[str, np.ndarray]:
    from small_checkpoints import hugging_face_weights

    return hugging_face_weights(biases=True, tied=True)


def model_of_hugging_face() -> Files:
    from small_checkpoints import HUGGING_FACE

    header, data = {}, b""
    for name, array in _model().items():
        header[name] = entry("F32", array.shape, len(data), len(data) + array.nbytes)
        data += array.tobytes()
    return {"model.safetensors": safetensors(header, data), "config.json": json.dumps(HUGGING_FACE).encode()}


def _names_of_gguf(name: str) -> str:
    from small_checkpoints import GGUF_NAMES

    stem, _, kind = name.rpartition(".")
    match = re.match(r"model\.layers\.(\d+)\.(.*)", stem)
    return f"blk.{match[1]}.{GGUF_NAMES[match[2]]}.{kind}" if match else f"{GGUF_NAMES[stem]}.{kind}"


def model_of_gguf() -> Files:
    u32 = {
        "block_count": 2, "embedding_length": 32, "feed_forward_length": 64, "attention.head_count": 4,
        "attention.head_count_kv": 2, "vocab_size": 50,
    }  # fmt: skip
    pairs = [pair("general.architecture", 8, text("qwen2"))]
    pairs += [pair(f"qwen2.{key}", 4, struct.pack("<I", value)) for key, value in u32.items()]
    pairs.append(pair("qwen2.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)))
    words = b"".join(text(word) for word in ("a", "b", "c"))
    pairs.append(pair("tokenizer.ggml.words", 9, struct.pack("<IQ", 8, 3) + words))
    pairs.append(pair("tokenizer.ggml.scores", 9, struct.pack("<IQ3f", 6, 3, 0.5, 1, 2)))
    tensors, data = [], b""
    for name, array in _model().items():
        bytes_of, kind = array.tobytes(), 0
        if "mlp" in name:
            bytes_of, kind = rocmkern.quantize(array, "q5_0").tobytes(), 6
        tensors.append(tensor(_names_of_gguf(name), array.shape[::-1], kind, len(data)))
        data += bytes_of + bytes(-len(bytes_of) % 32)
    return {"model.gguf": gguf(pairs, tensors, data)}


SOUND = (one_file, two_files, model_of_hugging_face, model_of_gguf)


# -------------------------------------------------------------------------------------------------------------- damage


def cut(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: rng.integers(len(data) + 1)]


def flipped(rng: np.random.Generator, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.integers(1, 9)):
        changed[_place(rng, len(data))] ^= 1 << rng.integers(8)
    return bytes(changed)


def written_over(rng: np.random.Generator, data: bytes) -> bytes:
    """A number of 4 or 8 bytes."""
    number, size = _number(rng), int(rng.choice([4, 8]))
    place = _place(rng, len(data))
    return data[:place] + (number % 2 ** (8 * size)).to_bytes(size, "little") + data[place + size :]


def spliced(rng: np.random.Generator, data: bytes) -> bytes:
    """A part is left out, doubled, or moved."""
    start, stop, place = sorted(_place(rng, len(data)) for _ in range(3))
    kind = rng.integers(3)
    if kind == 0:
        return data[:start] + data[stop:]
    if kind == 1:
        return data[:stop] + data[start:]
    return data[:start] + data[stop:place] + data[start:stop] + data[place:]


def reworded(rng: np.random.Generator, data: bytes) -> bytes:
    """A number or a word of a JSON text is another one; the length of a header is made to fit."""
    start = next((at for at in (0, 8) if data[at : at + 1] == b"{"), None)
    if start is None:
        return written_over(rng, data)
    end = start + struct.unpack("<Q", data[:8])[0] if start else len(data)
    found = list(re.finditer(rb'"[^"]*"|[0-9.]+|\[[0-9, ]*\]', data[start:end]))
    if not found:
        return data
    match = found[rng.integers(len(found))]
    word = str(_number(rng)) if rng.integers(2) else WORDS[rng.integers(len(WORDS))]
    header = data[start : start + match.start()] + word.encode() + data[start + match.end() : end]
    return (struct.pack("<Q", len(header)) if start else b"") + header + data[end:]


def renamed(rng: np.random.Generator, data: bytes) -> bytes:
    """A name is the one of something else."""
    names = re.findall(rb"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+", data)
    if not names:
        return flipped(rng, data)
    old, new = (names[i] for i in rng.integers(len(names), size=2))
    return data.replace(old, new, 1)


def _number(rng: np.random.Generator) -> int:
    return NUMBERS[rng.integers(len(NUMBERS))]


def _place(rng: np.random.Generator, length: int) -> int:
    """Headers are at the beginning, and small beside the data."""
    return int(rng.integers(max(1, min(length, int(rng.choice([32, 400, 4000, length or 1]))))))


DAMAGES: tuple[Callable[[np.random.Generator, bytes], bytes], ...] = (
    cut,
    flipped,
    written_over,
    spliced,
    reworded,
    reworded,
    renamed,
)


def damaged(seed: int, number: int, sound: list[Files]) -> tuple[str, Files]:
    """What was done to which checkpoint, and its files."""
    rng = np.random.default_rng([seed, number])
    files, done = dict(sound[number % len(sound)]), []
    for _ in range(1 + int(rng.random() < 0.3)):
        name = list(files)[rng.integers(len(files))]
        change = DAMAGES[rng.integers(len(DAMAGES))]
        if files[name]:
            files[name] = change(rng, files[name])
        done.append(f"{name} {change.__name__}")
    return ", ".join(done), files


# ------------------------------------------------------------------------------------------------------------- opening


def open_all(path: Path) -> str:
    """Open a directory, read all its tensors, and load them as a decoder's: what came of it.

    Raises
    ------
    AssertionError
        A tensor is not what the files say.
    """
    try:
        with rocmkern.open_checkpoint(path) as checkpoint:
            for there in checkpoint.values():
                _check(there)
            try:
                read = DecoderConfig.from_gguf if checkpoint.format == "gguf" else DecoderConfig.from_hugging_face
                load_weights(checkpoint, read(checkpoint.metadata))
            except RocmkernError as error:
                return f"opened; no decoder: {error}"
            return "opened; a decoder"
    except RocmkernError as error:
        return f"refused: {error}"


def _check(there: rocmkern.FileTensor) -> None:
    array = there.to_numpy()
    assert (array.shape, array.dtype) == (there.shape, there.dtype), there
    pieces = [*there.pieces()]
    assert b"".join(piece.tobytes() for piece in pieces) == array.tobytes(), there
    data = Path(there.path).read_bytes()
    if there.path.endswith(".safetensors"):
        # By another reader of the header than ours.
        (length,) = struct.unpack("<Q", data[:8])
        stated = json.loads(data[8 : 8 + length])[there.name]
        begin, end = (8 + length + offset for offset in stated["data_offsets"])
        assert there.format is not None or list(there.shape) == stated["shape"], there
    else:
        begin, end = there._offset, there._offset + array.nbytes
        assert there.name.encode() in data[:begin], there
    expected = np.frombuffer(data[begin:end], np.uint8)
    if there.dtype.name == "float4_e2m1fn":
        expected = np.stack([expected & 15, expected >> 4], axis=-1)
    assert array.tobytes() == expected.tobytes(), there
