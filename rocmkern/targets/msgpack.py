"""Reading MessagePack, in which a code object's metadata is written (msgpack.org, the specification)."""

from __future__ import annotations

import struct
from typing import Any

_NUMBERS = {0xCA + i: f">{letter}" for i, letter in enumerate("fdBHIQbhiq")}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
#: First byte: (kind, format of the length).
_SIZED: dict[int, tuple[type, str]] = {
    **{0xC4 + i: (bytes, f">{letter}") for i, letter in enumerate("BHI")},
    **{0xD9 + i: (str, f">{letter}") for i, letter in enumerate("BHI")},
    **{0xDC + i: (list, f">{letter}") for i, letter in enumerate("HI")},
    **{0xDE + i: (dict, f">{letter}") for i, letter in enumerate("HI")},
}


def unpack(data: bytes) -> Any:
    """The first value of some bytes.

    Raises
    ------
    ValueError
        If they are no MessagePack.
    """
    try:
        return _value(data, 0)[0]
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise ValueError(f"no MessagePack: {error}") from None


def _value(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at a byte, and where the next one begins."""
    first, at = data[at], at + 1
    if first < 0x80 or first >= 0xE0:
        return first if first < 0x80 else first - 256, at
    if first < 0xC0:
        kind: type
        kind, length = (dict, first & 15) if first < 0x90 else (list, first & 15) if first < 0xA0 else (str, first & 31)
        return _sized(kind, length, data, at)
    if first in _CONSTANTS:
        return _CONSTANTS[first], at
    if first in _NUMBERS:
        layout = _NUMBERS[first]
        return struct.unpack_from(layout, data, at)[0], at + struct.calcsize(layout)
    if first in _SIZED:
        kind, layout = _SIZED[first]
        return _sized(kind, struct.unpack_from(layout, data, at)[0], data, at + struct.calcsize(layout))
    raise ValueError(f"no MessagePack: first byte {first:#x} of a value")


def _sized(kind: type, length: int, data: bytes, at: int) -> tuple[Any, int]:
    if kind in (str, bytes):
        if at + length > len(data):
            raise ValueError(f"no MessagePack: {length} bytes at {at} of {len(data)}")
        raw = data[at : at + length]
        return (raw.decode() if kind is str else raw), at + length
    values = []
    for _ in range(length * (2 if kind is dict else 1)):
        value, at = _value(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2], strict=True)) if kind is dict else values), at
