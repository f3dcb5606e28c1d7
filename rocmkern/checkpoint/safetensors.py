"""Tensors of safetensors files.

===============  =====================================================================================================
bytes            meaning
===============  =====================================================================================================
0 to 8           length n of the header, little-endian
8 to 8 + n       header: a JSON object. A key ``__metadata__`` has an object of strings; every other one is a tensor:
                 ``{"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}``, offsets counted from 8 + n
8 + n to end     data, in C order, little-endian; tensors lie side by side, without a gap
===============  =====================================================================================================

The header is read by a grammar of its own: nothing nested, long or repeated is built before it is refused.

Source: the format's description, huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from rocmkern.checkpoint.data_file import DataFile
from rocmkern.checkpoint.names import checked_name, short, shown
from rocmkern.checkpoint.tensors import FileTensor, is_too_large
from rocmkern.runtime.errors import CheckpointError

#: By name: what elements become. Those of 4 bits lie two in a byte, the first one low.
_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F32": np.float32, "F64": np.float64, "C64": np.complex64, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz, "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F4": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
_PER_BYTE = {"F4": 2}
#: Longest header; the library ``safetensors`` has the same limit.
_LONGEST_HEADER = 100_000_000
#: Most tensors of a file; and axes of a tensor: NumPy's limit in all its versions.
_MOST_KEYS, _MOST_AXES = 1 << 17, 32

_SPACE = re.compile(rb"[ \t\n\r]*")
_NUMBER = rb"[ \t\n\r]*(?:0|[1-9][0-9]{0,19})[ \t\n\r]*"
_NUMBERS = re.compile(rb"\[(?:[ \t\n\r]*|(%b(?:,%b){0,%d}))\]" % (_NUMBER, _NUMBER, _MOST_AXES - 1))


class _Entry(NamedTuple):
    """A tensor of a header."""

    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


def tensors_of(file: DataFile) -> list[FileTensor]:
    """The tensors of a file, in the order of their data.

    Those of a dtype that NumPy and `ml_dtypes` do not know are their bytes, with the dtype's name as format.

    Raises
    ------
    CheckpointError
        The file is not a safetensors file.
    """
    start, entries = _header(file)
    end = start
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if start + entry.begin != end:
            kind = "has a gap before" if start + entry.begin > end else "has other data where"
            raise CheckpointError(f"{file.path} {kind} the data of {shown(entry.name)}, at byte {start + entry.begin}")
        end = start + entry.end
        if end > file.size:
            raise CheckpointError(
                f"{file.path} is incomplete: the data of {shown(entry.name)} ends at byte {end}, and the file at "
                f"{file.size}"
            )
    if end != file.size:
        raise CheckpointError(f"{file.path} has {file.size - end} bytes behind the data of its last tensor")
    return [_tensor(file, start, entry) for entry in sorted(entries, key=lambda entry: entry.begin)]


def _tensor(file: DataFile, start: int, entry: _Entry) -> FileTensor:
    name, kind, shape, begin, end = entry
    if kind not in _DTYPES:
        return FileTensor(name, (end - begin,), np.dtype(np.uint8), kind.lower(), file.path, file, start + begin)
    dtype, per_byte = np.dtype(_DTYPES[kind]), _PER_BYTE.get(kind, 1)
    if is_too_large(shape, dtype.itemsize):
        raise CheckpointError(f"{file.path}: {shown(name)} has shape {_shown(shape)}, beyond what an array can have")
    nbytes, rest = divmod(math.prod(shape) * dtype.itemsize, per_byte)
    if rest or nbytes != end - begin:
        raise CheckpointError(
            f"{file.path}: {shown(name)} of dtype {kind} and shape {_shown(shape)} cannot have {end - begin} bytes"
        )
    return FileTensor(name, shape, dtype, None, file.path, file, start + begin, per_byte)


def _shown(shape: tuple[int, ...]) -> str:
    return short(str(list(shape)))


# -------------------------------------------------------------------------------------------------------------- header


def _header(file: DataFile) -> tuple[int, list[_Entry]]:
    """Where data starts, and what the header says of it."""
    if file.size < 9:
        what = f"it is {file.other_kind() or 'too short'}"
        raise CheckpointError(f"{file.path} is not a safetensors file: {what}")
    # Only then: the length of a header may look like the beginning of something else.
    other = "" if file.read(8, 1, "its header").tobytes() == b"{" else file.other_kind()
    if other:
        raise CheckpointError(f"{file.path} is not a safetensors file: it is {other}")
    length = int.from_bytes(file.read(0, 8, "the length of its header").tobytes(), "little")
    if length > _LONGEST_HEADER:
        raise CheckpointError(
            f"{file.path} is not a safetensors file: a header of {length} bytes; at most {_LONGEST_HEADER} are allowed"
        )
    if 8 + length > file.size:
        raise CheckpointError(
            f"{file.path} is incomplete, or not a safetensors file: its header ends at byte {8 + length}, the file at "
            f"{file.size}"
        )
    return 8 + length, _Header(file.read(8, length, "its header").tobytes(), file.path).entries()


class _Header:
    """Reads the text of a header from left to right."""

    def __init__(self, text: bytes, path: str):
        self.text, self.path, self.at = text, path, 0

    def entries(self) -> list[_Entry]:
        entries: dict[str, _Entry] = {}
        for key in self.keys("the header"):
            if key == "__metadata__":
                for _ in self.keys(key):
                    self.string("a value of __metadata__")
                continue
            name = checked_name(key, self.path, "the name of a tensor")
            entries[name] = self.entry(name)
        self.space()
        if self.at != len(self.text):
            raise self.error("the header", "its end")
        return list(entries.values())

    def entry(self, name: str) -> _Entry:
        what = f"the entry of {shown(name)}"
        found: dict[str, Any] = {}
        for key in self.keys(what):
            if key == "dtype":
                found[key] = checked_name(self.string(what), self.path, f"the dtype of {shown(name)}")
            elif key in ("shape", "data_offsets"):
                found[key] = self.numbers(what)
            else:
                raise CheckpointError(f"{self.path}: {what} has an unknown key {shown(key)}")
        for key in ("dtype", "shape", "data_offsets"):
            if key not in found:
                raise CheckpointError(f"{self.path}: {what} has no {key}")
        shape, offsets = found["shape"], found["data_offsets"]
        if len(offsets) != 2 or offsets[0] > offsets[1]:
            raise CheckpointError(f"{self.path}: {what} has data_offsets {_shown(offsets)}, not a begin and an end")
        return _Entry(name, found["dtype"], shape, *offsets)

    def keys(self, what: str) -> Iterator[str]:
        """The keys of an object, each before its value is read; none is there twice."""
        seen: set[str] = set()
        self.expect(b"{", what)
        if self.found(b"}"):
            return
        while True:
            key = self.string(what)
            if key in seen:
                raise CheckpointError(f"{self.path}: {what} has {shown(key)} twice")
            if len(seen) == _MOST_KEYS:
                raise CheckpointError(f"{self.path}: {what} has more than {_MOST_KEYS} keys")
            seen.add(key)
            self.expect(b":", what)
            yield key
            if self.found(b"}"):
                return
            self.expect(b",", what)

    def space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def string(self, what: str) -> str:
        self.space()
        start = end = self.at
        escaped = self.text.startswith(b'"', start)
        while escaped:
            before, end = end, self.text.find(b'"', end + 1)
            piece = self.text[before : max(end, before)]
            escaped = end > 0 and (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
        if end <= start:
            raise self.error(what, "a string")
        self.at, literal = end + 1, self.text[start : end + 1]
        try:
            text: str = json.loads(literal.decode())
            return text
        except ValueError:  # no UTF-8, a control character, or an escape that does not exist
            raise CheckpointError(f"{self.path}: {what} has a damaged string {shown(literal)}") from None

    def numbers(self, what: str) -> tuple[int, ...]:
        self.space()
        match = _NUMBERS.match(self.text, self.at)
        if match is None:
            raise self.error(what, f"an array of at most {_MOST_AXES} whole numbers that are not negative")
        self.at = match.end()
        return tuple(map(int, match[1].split(b","))) if match[1] else ()

    def found(self, mark: bytes) -> bool:
        self.space()
        there = self.text.startswith(mark, self.at)
        self.at += len(mark) * there
        return there

    def expect(self, mark: bytes, what: str) -> None:
        if not self.found(mark):
            raise self.error(what, mark.decode())

    def error(self, what: str, wanted: str) -> CheckpointError:
        got = short(repr(self.text[self.at : self.at + 21]), 40)
        return CheckpointError(f"{self.path} has a damaged header: {what} has {got} at byte {self.at}, not {wanted}")
