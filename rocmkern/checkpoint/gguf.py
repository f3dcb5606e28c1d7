"""Tensors and metadata of GGUF files, version 2 and 3, little-endian.

============  =========================================================================================================
part          meaning
============  =========================================================================================================
head          ``GGUF``, u32 version, u64 number of tensors, u64 number of pairs
pairs         each a string (u64 length, bytes), u32 type, and a value of it; an array is u32 type, u64 count, values
tensors       each a string, u32 number of axes, u64 extents from the innermost one on, u32 type, u64 offset of its data
data          from the next multiple of ``general.alignment`` on, to which offsets count and of which they are multiples
============  =========================================================================================================

Source: gguf.md in the documentation of ggml, and its types, https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from rocmkern.checkpoint.data_file import DataFile
from rocmkern.checkpoint.names import checked_name, short, shown
from rocmkern.checkpoint.tensors import FileTensor, is_too_large
from rocmkern.runtime.errors import CheckpointError


class Kind(NamedTuple):
    """A type of ggml: elements and bytes of a block; or a dtype, of which there are no blocks."""

    name: str
    elements: int
    nbytes: int
    dtype: Any = None


#: By number.
KINDS = {
    0: Kind("f32", 1, 4, np.float32), 1: Kind("f16", 1, 2, np.float16), 2: Kind("q4_0", 32, 18),
    3: Kind("q4_1", 32, 20), 6: Kind("q5_0", 32, 22), 7: Kind("q5_1", 32, 24), 8: Kind("q8_0", 32, 34),
    10: Kind("q2_k", 256, 84), 11: Kind("q3_k", 256, 110), 12: Kind("q4_k", 256, 144), 13: Kind("q5_k", 256, 176),
    14: Kind("q6_k", 256, 210), 15: Kind("q8_k", 256, 292), 16: Kind("iq2_xxs", 256, 66), 17: Kind("iq2_xs", 256, 74),
    18: Kind("iq3_xxs", 256, 98), 19: Kind("iq1_s", 256, 50), 20: Kind("iq4_nl", 32, 18), 21: Kind("iq3_s", 256, 110),
    22: Kind("iq2_s", 256, 82), 23: Kind("iq4_xs", 256, 136), 24: Kind("i8", 1, 1, np.int8),
    25: Kind("i16", 1, 2, np.int16), 26: Kind("i32", 1, 4, np.int32), 27: Kind("i64", 1, 8, np.int64),
    28: Kind("f64", 1, 8, np.float64), 29: Kind("iq1_m", 256, 56), 30: Kind("bf16", 1, 2, ml_dtypes.bfloat16),
    34: Kind("tq1_0", 256, 54), 35: Kind("tq2_0", 256, 66), 39: Kind("mxfp4", 32, 17), 40: Kind("nvfp4", 64, 36),
    41: Kind("q1_0", 128, 18),
}  # fmt: skip
#: Numbers among the types of values, and the others.
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
#: What a header may have at most: bytes, tensors and as many pairs, axes of a tensor (as ggml), and elements of all
#: its arrays: vocabularies and their merges have about a million.
_MOST_BYTES, _MOST_TENSORS, _MOST_AXES, _MOST_ELEMENTS = 100_000_000, 1 << 17, 4, 1 << 22
_DEFAULT_ALIGNMENT = 32


class _Entry(NamedTuple):
    """A tensor of a header; the extents are those of the file, the innermost one first."""

    name: str
    extents: tuple[int, ...]
    kind: Kind
    offset: int
    nbytes: int


def contents_of(file: DataFile) -> tuple[dict[str, Any], list[FileTensor]]:
    """The metadata and the tensors of a file.

    Raises
    ------
    CheckpointError
        The file is damaged, or one of several into which a model was split.
    """
    header = _Header(file)
    count, pairs = header.head()
    metadata = header.metadata(pairs)
    parts = metadata.get("split.count", 0)
    if not isinstance(parts, int) or parts > 1:
        raise CheckpointError(
            f"{file.path} is one of {shown(parts)} files of a model: merge them with gguf-split --merge"
        )
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise CheckpointError(f"{file.path}: general.alignment is {shown(alignment)}, not a power of two")
    entries = header.entries(count)
    start = -(-header.at // alignment) * alignment
    _check_places(file, entries, start, alignment)
    return metadata, [_tensor(file, start, entry) for entry in entries]


def _check_places(file: DataFile, entries: list[_Entry], start: int, alignment: int) -> None:
    """Whether the data of tensors lies apart, where it may, and within the file."""
    for entry in entries:
        if entry.offset % alignment:
            raise CheckpointError(
                f"{file.path}: the offset of {shown(entry.name)} is {entry.offset}, no multiple of {alignment}"
            )
        end = start + entry.offset + entry.nbytes
        if end > file.size:
            raise CheckpointError(
                f"{file.path} is incomplete: the data of {shown(entry.name)} ends at byte {end}, and the file at "
                f"{file.size}"
            )
    for one, next_one in pairwise(sorted((e for e in entries if e.nbytes), key=lambda entry: entry.offset)):
        if one.offset + one.nbytes > next_one.offset:
            raise CheckpointError(f"{file.path}: the data of {shown(one.name)} and of {shown(next_one.name)} overlap")


def _tensor(file: DataFile, start: int, entry: _Entry) -> FileTensor:
    name, extents, kind, offset, _ = entry
    shape = extents[::-1]
    if kind.dtype is not None:
        return FileTensor(name, shape, np.dtype(kind.dtype), None, file.path, file, start + offset)
    row_bytes = shape[-1] // kind.elements * kind.nbytes
    blocks = (*shape[:-1], row_bytes)
    return FileTensor(name, blocks, np.dtype(np.uint8), kind.name, file.path, file, start + offset)


# -------------------------------------------------------------------------------------------------------------- header


class _Header:
    """Reads a header from left to right, a window of it at a time."""

    WINDOW = 1 << 20

    def __init__(self, file: DataFile):
        self.file, self.path = file, file.path
        self.window, self.window_at, self.at = b"", 0, 0
        self.elements = 0

    def head(self) -> tuple[int, int]:
        """Numbers of tensors and of pairs."""
        magic, version, count, pairs = struct.unpack("<4sIQQ", self.take(24, "its head"))
        if magic != b"GGUF":
            raise CheckpointError(f"{self.path} is not a GGUF file: it starts with {magic!r}")
        if version not in (2, 3):
            big = version and version & 0xFFFF == 0
            advice = "it is big-endian: convert it with gguf-convert-endian" if big else "2 and 3 are read"
            raise CheckpointError(f"{self.path} has version {version} of GGUF; {advice}")
        # A tensor takes 24 bytes at least, a pair 13.
        if max(count, pairs) > _MOST_TENSORS or 24 * count + 13 * pairs > self.file.size:
            raise CheckpointError(f"{self.path} is damaged: it cannot have {count} tensors and {pairs} pairs")
        return count, pairs

    def metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = checked_name(self.text("a key"), self.path, "a key")
            if key in found:
                raise CheckpointError(f"{self.path} has the key {shown(key)} twice")
            found[key] = self.value(self.number("<I", key), key)
        return found

    def entries(self, count: int) -> list[_Entry]:
        entries: dict[str, _Entry] = {}
        for _ in range(count):
            name = checked_name(self.text("a tensor"), self.path, "the name of a tensor")
            if name in entries:
                raise CheckpointError(f"{self.path} has the tensor {shown(name)} twice")
            entries[name] = self.entry(name)
        return list(entries.values())

    def entry(self, name: str) -> _Entry:
        what = f"the tensor {shown(name)}"
        axes = self.number("<I", what)
        if not 1 <= axes <= _MOST_AXES:
            raise CheckpointError(f"{self.path}: {what} has {axes} axes; 1 to {_MOST_AXES} are allowed")
        extents = struct.unpack(f"<{axes}Q", self.take(8 * axes, what))
        number, offset = struct.unpack("<IQ", self.take(12, what))
        if number not in KINDS:
            raise CheckpointError(
                f"{self.path}: {what} is of type {number}, which is not known here: quantize the model again"
            )
        kind, count = KINDS[number], math.prod(extents)
        if extents[0] % kind.elements:
            raise CheckpointError(
                f"{self.path}: {what} has rows of {extents[0]} elements; {kind.name} has blocks of {kind.elements}"
            )
        if is_too_large(extents, kind.nbytes):
            raise CheckpointError(f"{self.path}: {what} has the extents {list(extents)}, beyond what an array can have")
        return _Entry(name, extents, kind, offset, count // kind.elements * kind.nbytes)

    def value(self, kind: int, key: str) -> Any:
        """A value of a type by its number."""
        if kind == _STRING:
            return self.decoded(self.text(key), key)
        if kind == _ARRAY:
            inner, count = self.number("<I", key), self.number("<Q", key)
            return self.array(inner, count, key)
        return self.array(kind, 1, key)[0]

    def array(self, kind: int, count: int, key: str) -> list[Any]:
        if kind not in _NUMBERS and kind not in (_BOOL, _STRING):
            raise CheckpointError(f"{self.path}: {shown(key)} has values of type {kind}, which are not read here")
        size = np.dtype(_NUMBERS.get(kind, "<u1")).itemsize if kind != _STRING else 8
        self.elements += count
        if self.elements > _MOST_ELEMENTS:
            raise CheckpointError(
                f"{self.path} is damaged: arrays up to {shown(key)} have {self.elements} elements; at most "
                f"{_MOST_ELEMENTS} are read"
            )
        if kind == _STRING:
            return [self.decoded(self.text(key), key) for _ in range(count)]
        data = self.take(size * count, key)
        if kind != _BOOL:
            numbers: list[Any] = np.frombuffer(data, _NUMBERS[kind]).tolist()
            return numbers
        if set(data) - {0, 1}:
            raise CheckpointError(f"{self.path}: {shown(key)} has a truth value that is neither 0 nor 1")
        return [x == 1 for x in data]

    def decoded(self, text: bytes, key: str) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"{self.path}: {shown(key)} has a text that is not UTF-8") from None

    def text(self, what: str) -> bytes:
        return self.take(self.number("<Q", what), what)

    def number(self, format: str, what: str) -> int:
        return int(struct.unpack(format, self.take(struct.calcsize(format), what))[0])

    def take(self, count: int, what: str) -> bytes:
        """The next bytes."""
        start = self.at - self.window_at
        if start + count > len(self.window):
            if self.at + count > min(self.file.size, _MOST_BYTES):
                limit = "the file" if self.file.size <= _MOST_BYTES else "what a header may have"
                raise CheckpointError(
                    f"{self.path} is incomplete or damaged: {short(what)} at byte {self.at} has {count} bytes more, "
                    f"and {limit} ends at {min(self.file.size, _MOST_BYTES)}"
                )
            size = min(max(count, self.WINDOW), self.file.size - self.at)
            self.window, self.window_at, start = self.file.read(self.at, size, "its header").tobytes(), self.at, 0
        self.at += count
        return self.window[start : start + count]
