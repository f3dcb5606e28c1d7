"""A launch's arguments as the 64-bit words that reach the kernel (see `rocmkern.tile.entry`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rocmkern.tile import entry


def pack(kernel: Callable, args: Sequence[Any]) -> list[int]:
    """Launch words of a kernel's arguments. A tensor without elements has address 0."""
    words: list[int] = []
    for (_, parameter), value in zip(kernel.parameters, args, strict=True):
        kind = parameter.kind
        if kind == "tensor":
            words.append(value.__array_interface__["data"][0] if value.size else 0)
            words += value.shape
            words += value.strides
        elif kind == "int":
            words.append(int(value))
        else:
            words.append(entry.float32_bits(value))
    return words
